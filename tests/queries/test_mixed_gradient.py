"""The mixed gradient: one unit moves it by at most its sensitivity, on every path, and the bound is attained."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.query_neighbours import CASES, LOSSES, PUBLIC, D, Pair, as_units, pairs, points

from privopt.curator.audit import Audit
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.ledger.amounts import Budget
from privopt.ledger.events import FixedSize, Poisson
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.public import Public, Relation
from privopt.queries.slopes import ClippedGradient, MixedGradient

CLIPS = [(0.3, 0.1), (1e-6, 50.0), (50.0, 0.0), (0.0, 0.2)]


def audited(left, right, relation, query, understate=0.0):
    """How far the query moves between neighbours, over its sensitivity; and what is released."""
    ledger = Ledger(Budget(10.0, 1e-5), relation, composition="gaussian")
    audit = Audit(left, right, ledger, noise=NoiseSource(1), understate=understate)
    with double_precision():
        released = audit.release(query, Gaussian(5.0))
    return audit.moves[0][1], np.asarray(released)


@pytest.mark.at_once("huber dense")
@pytest.mark.parametrize(("loss", "layout"), CASES, ids=[" ".join(case) for case in CASES])
@given(
    data=st.data(),
    at=points,
    previous=points,
    clips=st.sampled_from(CLIPS),
    gain=st.sampled_from([0.0, 0.3, 1.0]),
)
def test_one_unit_moves_it_by_at_most_its_sensitivity(loss, layout, data, at, previous, clips, gain):
    public = PUBLIC if loss in ("logistic", "squared", "huber") else PUBLIC[:2]
    pair = data.draw(pairs(5 if "users" in layout else 1, public))
    left, right = (as_units(owned, pair, layout) for owned in pair.sides())
    formula = LOSSES[loss]
    if formula.outputs > 1:
        at, previous = (np.outer(point, [1.0, -0.5, 0.0]) for point in (at, previous))
    query = MixedGradient(
        loss=formula, at=at, previous=previous, clip=clips[0], change_clip=clips[1], gain=gain
    )
    moved, released = audited(left, right, pair.relation, query)
    assert released.shape == at.shape
    assert np.all(np.isfinite(released))
    assert moved <= 1.0


def moving(params, features, target):
    """Gradient `a + y L w`: rows say where it points, targets how it changes."""
    return features @ params + target * 0.5 * 0.8 * jnp.sum(params * params)


@pytest.mark.later("0.0-add-or-remove-one", "0.0-replace-one")
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("gain", [0.0, 0.3, 1.0])
def test_a_pair_attains_the_sensitivity(relation, gain):
    at, previous = np.array([0.0, 0.0, 0.0]), np.array([-1.0, 0.0, 0.0])
    row = np.array([1.5, 0.0, 0.0])  # at 0 its gradient is the row, and grows by 0.8 along it from `previous`
    rows, targets = np.tile(row, (6, 1)), np.ones(6)
    other, others = (-rows[:1], -targets[:1]) if relation == "replace-one" else (rows[:0], targets[:0])
    left = Units.from_arrays(rows, targets, row_bound=1.5, relation=relation, n=6)
    right = Units.from_arrays(
        np.concatenate([rows[1:], other]),
        np.concatenate([targets[1:], others]),
        row_bound=1.5,
        relation=relation,
        n=6,
    )
    query = MixedGradient(
        loss=losses.RecordLoss(moving), at=at, previous=previous, clip=1.4, change_clip=0.75, gain=gain
    )
    assert 0.999 < audited(left, right, relation, query)[0] <= 1.0
    assert audited(left, right, relation, query, understate=0.002)[0] > 1.0


@pytest.mark.parametrize("layout", ["dense", "users"])
def test_of_the_two_parts_only_the_one_that_is_not_finite_counts_as_zero(layout):
    at, previous = np.array([0.5, 0.0, 0.0]), np.array([np.inf, 0.0, 0.0])
    record = ([1.0, 0.2, 0.0], 1.0)
    pair = Pair([[record]] * 6, 0, [], "replace-one")
    units = as_units(pair.units, pair, layout)
    with double_precision():
        query = MixedGradient(
            loss=losses.squared, at=at, previous=previous, clip=0.3, change_clip=0.2, gain=0.25
        )
        engine = InProcessEngine(units)
        plain = engine.clipped_sum(ClippedGradient(loss=losses.squared, at=at, clip=0.3))
        for found in (engine.clipped_sum(query), engine.general_sum(query)):
            np.testing.assert_allclose(found, 0.75 * plain, rtol=1e-12)
            assert np.any(found)


def test_a_change_clip_of_zero_makes_the_change_exactly_zero():
    pair = Pair([[([1.0, 0.2, -0.3], 1.0)]] * 6, 0, [], "replace-one")
    units = as_units(pair.units, pair, "dense")
    with double_precision():
        for at in (np.ones(D), np.full(D, -40.0)):
            query = MixedGradient(
                loss=losses.squared, at=at, previous=np.zeros(D), clip=1.0, change_clip=0.0, gain=1.0
            )
            engine = InProcessEngine(units)
            assert not np.any(engine.clipped_sum(query))
            assert not np.any(engine.general_sum(query))
            assert float(query.sensitivity(units.public)) == 0.0


@pytest.mark.parametrize(
    ("gain", "counts_as"), [(-0.5, 0.0), (1.7, 1.0), (math.nan, 0.0), (math.inf, 1.0), (-math.inf, 0.0)]
)
@pytest.mark.parametrize("loss", ["logistic", "own"])
def test_a_gain_beyond_an_end_counts_as_that_end(loss, gain, counts_as):
    pair = Pair([[([1.0, 0.2, -0.3], 1.0)]] * 6, 0, [], "replace-one")
    units = as_units(pair.units, pair, "dense")

    def mixed(weight):
        return MixedGradient(
            loss=LOSSES[loss], at=np.ones(D), previous=-np.ones(D), clip=0.4, change_clip=0.3, gain=weight
        )

    with double_precision():
        found, expected = mixed(gain), mixed(counts_as)
        assert float(found.sensitivity(units.public)) == float(expected.sensitivity(units.public))
        assert float(found.radius()) == float(expected.radius())
        traced = mixed(jnp.asarray(gain))
        assert float(traced.radius()) == pytest.approx(float(expected.radius()))
        sums = [InProcessEngine(units).clipped_sum(query) for query in (found, expected, traced)]
    assert np.array_equal(sums[0], sums[1])
    assert np.array_equal(sums[0], sums[2])


def test_clips_that_are_negative_or_no_numbers_never_understate():
    sizes = Public(n=10, d=D)

    def mixed(clip, change_clip, gain):
        query = MixedGradient(
            loss=losses.squared,
            at=np.ones(D),
            previous=-np.ones(D),
            clip=clip,
            change_clip=change_clip,
            gain=gain,
        )
        return float(query.sensitivity(sizes))

    with double_precision():
        assert mixed(-1.0, 0.5, 0.5) == pytest.approx(2 * 0.25 / 10)
        assert mixed(0.5, -1.0, 0.5) == pytest.approx(2 * 0.25 / 10)
        assert math.isnan(mixed(math.nan, 0.5, 0.5))  # which the curator refuses
        assert math.isnan(mixed(0.5, math.nan, 0.5))
        assert mixed(0.5, math.inf, 0.0) == pytest.approx(2 * 0.5 / 10)
        assert mixed(math.inf, 0.5, 1.0) == pytest.approx(2 * 0.5 / 10)
        assert math.isinf(mixed(math.inf, 0.5, 0.5))


@pytest.mark.parametrize("relation", list(Relation))
def test_the_sensitivity_is_the_mixture_of_the_clipped_gradients_and_the_changes(relation):
    sizes = Public(n=10, d=D, relation=relation)
    with double_precision():
        for at in (np.zeros(D), np.full(D, 3.0)):
            query = MixedGradient(
                loss=losses.logistic, at=at, previous=np.ones(D), clip=1.0, change_clip=0.2, gain=0.25
            )
            plain = ClippedGradient(loss=losses.logistic, at=at, clip=1.0).sensitivity(sizes)
            expected = 0.75 * float(plain) + 0.25 * relation.factor * 0.2 / 10
            assert float(query.sensitivity(sizes)) == pytest.approx(expected, rel=1e-15)
            for sampling in (Poisson(0.5), FixedSize(5, 10)):
                assert float(query.sensitivity(sizes, sampling)) == pytest.approx(
                    relation.factor * float(query.radius()) / 5
                )
