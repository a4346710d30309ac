"""Norms of gradients at several points: the range by which one unit moves them, on every path of the engine."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.query_neighbours import CASES, CASES_IN_TURN, LOSSES, D, Pair, as_units, pairs, points
from tests.support.turns import but_later

from privopt.curator.audit import Audit
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Poisson
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.public import Public
from privopt.queries import slopes
from privopt.queries.gradient_norms import GradientNorms
from privopt.queries.slopes import ClippedGradient, GradientNorm

POINTS = 4


def audited(left, right, relation, query, understate=0.0):
    ledger = Ledger(Budget(10.0, 1e-5), relation, composition="zcdp")
    audit = Audit(left, right, ledger, noise=NoiseSource(1), understate=understate)
    with double_precision():
        chosen = int(audit.release(query, ExponentialMechanism(0.1)))
    return audit.moves[0][1], chosen


@pytest.mark.later("logistic dense", "softmax dense", "squared sparse users")
@pytest.mark.parametrize(("loss", "layout"), CASES_IN_TURN, ids=[" ".join(case) for case in CASES])
@given(
    data=st.data(),
    at=st.lists(points, min_size=POINTS, max_size=POINTS),
    clip=st.sampled_from([1e-6, 0.3, 50.0]),
    offset=st.sampled_from([0.0, 0.1]),
)
def test_one_unit_moves_the_scores_by_a_range_of_at_most_their_sensitivity(
    loss, layout, data, at, clip, offset
):
    public = [(6, "add-or-remove-one"), (2, "replace-one")]
    pair = data.draw(pairs(5 if "users" in layout else 1, public))
    left, right = (as_units(owned, pair, layout) for owned in pair.sides())
    formula, at = LOSSES[loss], np.stack(at)
    if formula.outputs > 1:
        at = at[:, :, None] * np.array([1.0, -0.5, 0.0])
    query = GradientNorms(loss=formula, points=at, clip=clip, offsets=offset * at)
    assert query.shape(left.public) == (POINTS,)
    moved, chosen = audited(left, right, pair.relation, query)
    assert 0 <= chosen < POINTS
    assert moved <= 1.0


def nine_units(loss, layout):
    """Nine units, and some points of the loss's shape."""
    generator, outputs = np.random.default_rng(0), LOSSES[loss].outputs
    owned = [
        [(generator.normal(size=D), float(k % 3)) for _ in range(1 + k % 2 if "users" in layout else 1)]
        for k in range(9)
    ]
    units = as_units(owned, Pair(owned, 0, [], "replace-one"), layout)
    return units, generator.normal(size=(POINTS, D) if outputs == 1 else (POINTS, D, outputs))


@pytest.mark.at_once("own-users", "softmax-sparse")
@pytest.mark.parametrize(
    ("loss", "layout"),
    [*CASES_IN_TURN, *but_later([("softmax", "sparse")], [("softmax", "users"), ("softmax", "sparse")])],
    ids=lambda case: case,
)
def test_they_are_minus_the_norm_at_each_point(loss, layout, monkeypatch):
    formula, (units, at) = LOSSES[loss], nine_units(loss, layout)
    with double_precision():
        engine = InProcessEngine(units)
        for group in (2**19, 1):  # all at once; point by point
            monkeypatch.setattr(slopes, "_GROUP_ENTRIES", group)
            query = GradientNorms(loss=formula, points=at, clip=0.4, offsets=0.1 * at)
            found = query.finish(jnp.asarray(engine.clipped_sum(query)) / 9)
            np.testing.assert_allclose(engine.clipped_sum(query), engine.general_sum(query), rtol=1e-8)
        each = [ClippedGradient(loss=formula, at=one, clip=0.4) for one in at]
        means = [engine.clipped_sum(one) / 9 + 0.1 * one.at for one in each]
        np.testing.assert_allclose(found, [-np.linalg.norm(mean) for mean in means], rtol=1e-7)


@pytest.mark.parametrize(("loss", "layout"), [("logistic", "dense"), ("own", "users")])
def test_at_one_point_it_is_minus_the_gradients_norm(loss, layout):
    formula, (units, at) = LOSSES[loss], nine_units(loss, layout)
    with double_precision():
        engine = InProcessEngine(units)
        norm = GradientNorm(loss=formula, at=at[0], clip=0.4)
        alone = GradientNorms(loss=formula, points=at[:1], clip=0.4)
        values = [float(jnp.sum(q.finish(jnp.asarray(engine.clipped_sum(q)) / 9))) for q in (norm, alone)]
    assert values[0] == pytest.approx(-values[1], rel=1e-7)


@pytest.mark.later("replace-one")
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_the_range_is_attained_by_a_unit_that_lengthens_one_mean_and_shortens_another(relation):
    def turning(params, features, target):
        """Gradient `(a_1 + y w_1) e_3` where w_3 = 0."""
        return params[2] * (features[0] + target * params[0])

    # The other units' gradients are e_3 at both points; the last one's is e_3 at one and -e_3 at the other.
    rows, targets = np.tile([1.0, 0.0, 0.0], (6, 1)), np.zeros(6)
    rows[5], targets[5] = 0.0, 1.0
    kept = slice(0, 6) if relation == "replace-one" else slice(0, 5)
    other_targets = targets.copy()
    other_targets[5] = -1.0
    left = Units.from_arrays(rows, targets, row_bound=1.0, relation=relation, n=6)
    right = Units.from_arrays(rows[kept], other_targets[kept], row_bound=1.0, relation=relation, n=6)
    query = GradientNorms(
        loss=losses.RecordLoss(turning), points=np.array([[1.0, 0, 0], [-1.0, 0, 0]]), clip=1.0
    )
    assert 0.999 < audited(left, right, relation, query)[0] <= 1.0
    assert audited(left, right, relation, query, understate=0.002)[0] > 1.0


def test_the_sensitivity_is_the_sum_of_the_two_largest():
    sizes = Public(n=10, d=2)
    at = np.array([[0.0, 0.0], [0.0, 0.5], [4.0, 0.0]])
    with double_precision():
        each = [float(ClippedGradient(loss=losses.logistic, at=w, clip=1.0).sensitivity(sizes)) for w in at]
        query = GradientNorms(loss=losses.logistic, points=at, clip=1.0)
        assert float(query.sensitivity(sizes)) == pytest.approx(each[1] + each[2], rel=1e-12)
        assert each[0] < each[1] < each[2]
        squared = GradientNorms(loss=losses.squared, points=at, clip=1.0)
        assert float(squared.sensitivity(sizes)) == pytest.approx(2 * 2 * 1.0 / 10)
        assert float(squared.sensitivity(sizes, Poisson(0.5))) == pytest.approx(2 * 2 * 1.0 / 5)
        alone = GradientNorms(loss=losses.squared, points=at[:1], clip=1.0)
        assert float(alone.sensitivity(sizes)) == 0.0


def test_noise_of_another_norm_is_refused():
    units = Units.from_arrays(np.ones((4, 3)), np.ones(4), row_bound=1.0)
    audit = Audit(units, units, Ledger(Budget(10.0, 1e-5), "replace-one"), noise=NoiseSource(1))
    query = GradientNorms(loss=losses.logistic, points=np.zeros((2, 3)), clip=0.2)
    with double_precision(), pytest.raises(ValueError, match="range norm"):
        audit.release(query, Gaussian(5.0))
