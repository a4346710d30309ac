"""Losses, gradients and shares of groups: what one unit moves them by, be it that it changes groups."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import query_neighbours
from tests.support.query_neighbours import D, Pair, as_units, points

from privopt.curator.audit import Audit
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.vertex_stream import VertexSampler
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.grouped_loss import GroupedLoss
from privopt.public import Public
from privopt.queries.groups import (
    GroupedGradient,
    GroupedVertexScores,
    GroupLosses,
    GroupLossScores,
    GroupShares,
)

LOSS = GroupedLoss(losses.logistic, 3, (0.6, 0.3, 0.1))
TARGETS = st.sampled_from([1.0, -1.0, 2.0, -2.0, 3.0, -3.0, 0.0, 4.0, 2.5, np.nan, np.inf, -1e300])
WEIGHTS = np.array([0.2, 1.0, 8.0])
QUERIES = {
    "gradient": lambda at, clip: GroupedGradient(loss=LOSS, at=at, weights=WEIGHTS, clip=clip),
    "gradient, not balanced": lambda at, clip: GroupedGradient(
        loss=LOSS, at=at, weights=WEIGHTS, clip=clip, balanced=False
    ),
    "losses": lambda at, clip: GroupLosses(loss=LOSS, at=at),
    "shares": lambda at, clip: GroupShares(loss=LOSS),
    "vertex scores": lambda at, clip: GroupedVertexScores(
        loss=LOSS, at=at, weights=WEIGHTS, clip=clip, columns=D - 1
    ),
    "loss scores": lambda at, clip: GroupLossScores(
        loss=LOSS, at=at, divisors=np.array([0.6, 0.3, 0.1]), constants=np.ones(3)
    ),
}
OF_RANGE = ("vertex scores", "loss scores")


@st.composite
def grouped_pairs(draw, most_records):
    """`query_neighbours.pairs`, with targets that say label and group, or nothing that makes sense."""
    relation = draw(st.sampled_from(["add-or-remove-one", "replace-one"]))
    record = st.tuples(st.lists(query_neighbours.entries, min_size=D, max_size=D), TARGETS)
    sizes = [1] * 6 if most_records == 1 else [draw(st.integers(0, query_neighbours.CAP)) for _ in range(6)]
    units = [[draw(record) for _ in range(size)] for size in sizes]
    fewest = 1 if most_records == 1 else 0
    instead = draw(st.lists(record, min_size=fewest, max_size=most_records))
    return Pair(units, draw(st.integers(0, 5)), [] if relation == "add-or-remove-one" else instead, relation)


@pytest.mark.at_once("shares-dense")
@pytest.mark.parametrize(
    ("kind", "layout"),
    [*((kind, "dense") for kind in QUERIES), ("gradient", "sparse users"), ("loss scores", "users")],
)
@given(data=st.data(), at=points, clip=st.sampled_from([1e-6, 0.3, 50.0]))
def test_one_unit_moves_a_query_of_groups_by_at_most_its_sensitivity(kind, layout, data, at, clip):
    pair = data.draw(grouped_pairs(5 if "users" in layout else 1))
    left, right = (as_units(owned, pair, layout) for owned in pair.sides())
    query = QUERIES[kind](at, clip)
    composition = "zcdp" if kind in OF_RANGE else "gaussian"
    audit = Audit(
        left, right, Ledger(Budget(10.0, 1e-5), pair.relation, composition=composition), noise=NoiseSource(1)
    )
    with double_precision():
        audit.release(query, ExponentialMechanism(0.1) if kind in OF_RANGE else Gaussian(5.0))
        engine = InProcessEngine(left)
        fast, general = engine.clipped_sum(query), engine.general_sum(query)
    assert audit.moves[0][1] <= 1.0
    np.testing.assert_allclose(fast, general, rtol=1e-6, atol=1e-6 * max(clip, 1e-3))


def switched(targets, other):
    """Two data sets of four records that differ in the target of the first."""
    rows = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.5, 0.5, 0.0]])
    return [Units.from_arrays(rows, np.array([one, *targets]), row_bound=1.0) for one in other]


@pytest.mark.parametrize(
    ("kind", "at", "other"),
    [
        # From a loss of nothing to the cap in one group; from one group to another; to a group of three.
        ("losses", np.array([1e3, 0.0, 0.0]), (1.0, -1.0)),
        ("shares", np.zeros(3), (1.0, 3.0)),
        ("gradient", np.zeros(3), (3.0, -3.0)),
        ("loss scores", np.array([1e3, 0.0, 0.0]), (3.0, -3.0)),
        ("vertex scores", np.zeros(3), (3.0, -3.0)),
    ],
)
def test_the_sensitivity_is_attained_and_an_understated_one_is_noticed(kind, at, other):
    sides = switched([2.0, -2.0, 1.0], other)
    query = QUERIES[kind](at, 0.2)
    composition = "zcdp" if kind in OF_RANGE else "gaussian"
    for understate, above in ((0.0, False), (0.002, True)):
        audit = Audit(
            *sides,
            Ledger(Budget(10.0, 1e-5), "replace-one", composition=composition),
            noise=NoiseSource(1),
            understate=understate,
        )
        with double_precision():
            audit.release(query, ExponentialMechanism(0.1) if kind in OF_RANGE else Gaussian(5.0))
        assert audit.moves[0][1] == pytest.approx(1.0, rel=3e-3)
        assert (audit.moves[0][1] > 1.0) == above


def test_a_change_of_groups_moves_losses_by_less_than_a_change_of_the_loss():
    sides = switched([2.0, -2.0, 1.0], (-1.0, -2.0))
    with double_precision():
        left, right = (
            InProcessEngine(side).clipped_sum(QUERIES["losses"](np.array([1e3, 0.0, 0.0]), 1.0))
            for side in sides
        )
    assert np.linalg.norm(left - right) == pytest.approx(np.sqrt(2.0) * LOSS.cap / 2, rel=1e-6)


def test_a_record_of_an_unknown_group_or_label_adds_nothing():
    rows = np.ones((3, 3)) / 2
    units = Units.from_arrays(rows, np.array([0.0, 4.0, 2.5]), row_bound=1.0)
    with double_precision():
        for kind, make in QUERIES.items():
            private_sum = InProcessEngine(units).clipped_sum(make(np.ones(3), 1.0))
            assert not np.any(private_sum), kind


def test_losses_and_gradients_are_those_of_the_groups():
    rng = np.random.default_rng(3)
    rows = rng.uniform(-1.0, 1.0, (300, 3))
    groups, labels = rng.integers(0, 3, 300), rng.choice([-1.0, 1.0], 300)
    units = Units.from_arrays(rows, (groups + 1) * labels, row_bound=2.0, storage="float64")
    at = np.array([0.5, -1.0, 2.0])
    each = np.logaddexp(0.0, -labels * (rows @ at))
    slopes = -labels / (1.0 + np.exp(labels * (rows @ at)))
    with double_precision():
        engine = InProcessEngine(units)
        sums = engine.clipped_sum(GroupLosses(loss=LOSS, at=at)) / 300
        gradient = engine.clipped_sum(GroupedGradient(loss=LOSS, at=at, weights=WEIGHTS, clip=1e3)) / 300
        shares = engine.clipped_sum(GroupShares(loss=LOSS)) / 300
    counted = np.bincount(groups) / 300
    capped = np.minimum(each, LOSS.cap)
    np.testing.assert_allclose(shares, counted, rtol=1e-6)
    np.testing.assert_allclose(
        LOSS.mean_losses(sums, counted), [np.mean(capped[groups == g]) for g in range(3)], rtol=1e-6
    )
    np.testing.assert_allclose(gradient, rows.T @ (WEIGHTS[groups] * slopes) / 300, rtol=1e-6)


def test_balanced_gradients_are_shortened_alike_for_both_labels():
    rows = np.array([[1.0, 0.0, 0.0]])
    at = np.array([2.0, 0.0, 0.0])
    with double_precision():
        sums = [
            InProcessEngine(Units.from_arrays(rows, np.array([t]), row_bound=1.0, n=2)).clipped_sum(
                GroupedGradient(loss=LOSS, at=at, weights=WEIGHTS, clip=1.0)
            )[0]
            for t in (3.0, -3.0)
        ]
    # p - 1 for the label +1 and p for -1, as without a clip.
    assert sums[0] / sums[1] == pytest.approx(-1.0 / np.exp(2.0), rel=1e-6)
    assert max(map(abs, sums)) == pytest.approx(1.0, rel=1e-6)


def test_a_stream_of_draws_takes_the_scores_of_losses():
    query = QUERIES["loss scores"](np.zeros(3), 1.0)
    public = Public(n=10, d=3)
    with double_precision():
        assert float(query.sensitivity(public)) == pytest.approx(2 * LOSS.cap / (2 * 0.1 * 10))
    assert VertexSampler.norm == query.norm
    assert jnp.shape(query.at) == (3,)
