"""Gradients averaged over several points: one unit's share whatever their number, on every path of the engine."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.query_neighbours import CASES, LOSSES, D, Pair, as_units, pairs, points

from privopt.curator.audit import Audit
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Poisson
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.public import Public
from privopt.queries import slopes
from privopt.queries.gradient_norms import AveragedGradient
from privopt.queries.slopes import ClippedGradient

POINTS = 3


def moved(left, right, relation, query, understate=0.0):
    ledger = Ledger(Budget(10.0, 1e-5), relation)
    audit = Audit(left, right, ledger, noise=NoiseSource(1), understate=understate)
    with double_precision():
        assert np.all(np.isfinite(audit.release(query, Gaussian(5.0))))
    return audit.moves[0][1]


QUICK = [("logistic", "dense"), ("squared", "sparse users"), ("own", "users")]
SLOWER = [pytest.param(*case, marks=pytest.mark.audit) for case in CASES if case not in QUICK]


@pytest.mark.at_once("own-users")
@pytest.mark.parametrize(("loss", "layout"), [*QUICK, *SLOWER])
@given(
    data=st.data(),
    at=st.lists(points, min_size=POINTS, max_size=POINTS),
    clip=st.sampled_from([1e-6, 0.3, 50.0]),
)
def test_one_unit_moves_the_average_by_at_most_its_sensitivity(loss, layout, data, at, clip):
    public = [(6, "add-or-remove-one"), (2, "replace-one")]
    pair = data.draw(pairs(5 if "users" in layout else 1, public))
    left, right = (as_units(owned, pair, layout) for owned in pair.sides())
    formula, at = LOSSES[loss], np.stack(at)
    if formula.outputs > 1:
        at = at[:, :, None] * np.array([1.0, -0.5, 0.0])
    query = AveragedGradient(loss=formula, points=at, clip=clip)
    assert query.shape(left.public) == at.shape[1:]
    assert moved(left, right, pair.relation, query) <= 1.0


def nine_units(loss, layout):
    """Nine units, and some points of the loss's shape."""
    generator, outputs = np.random.default_rng(0), LOSSES[loss].outputs
    owned = [
        [(generator.normal(size=D), float(k % 3)) for _ in range(1 + k % 2 if "users" in layout else 1)]
        for k in range(9)
    ]
    units = as_units(owned, Pair(owned, 0, [], "replace-one"), layout)
    return units, generator.normal(size=(POINTS, D) if outputs == 1 else (POINTS, D, outputs))


@pytest.mark.later("softmax-users", "squared-sparse users")
@pytest.mark.parametrize(("loss", "layout"), [*QUICK, ("softmax", "users"), *SLOWER])
def test_it_is_the_average_of_what_the_points_would_answer_one_by_one(loss, layout, monkeypatch):
    formula, (units, at) = LOSSES[loss], nine_units(loss, layout)
    drawn = np.array([0, 3, 4])
    with double_precision():
        engine = InProcessEngine(units)
        each = [ClippedGradient(loss=formula, at=one, clip=0.4) for one in at]
        query = AveragedGradient(loss=formula, points=at, clip=0.4)
        for group in (2**19, 1):  # all at once; point by point
            monkeypatch.setattr(slopes, "_GROUP_ENTRIES", group)
            for draw in (None, drawn):
                expected = np.mean([engine.clipped_sum(one, draw) for one in each], axis=0)
                np.testing.assert_allclose(engine.clipped_sum(query, draw), expected, rtol=1e-7, atol=1e-12)
        np.testing.assert_allclose(
            engine.general_sum(query), engine.clipped_sum(query), rtol=1e-8, atol=1e-12
        )


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("count", [1, 7])
def test_the_sensitivity_is_attained_at_any_number_of_points(relation, count):
    rows, targets = np.tile([1.0, 0.0, 0.0], (6, 1)), np.full(6, 9.0)
    kept = slice(0, 6) if relation == "replace-one" else slice(0, 5)
    other = targets.copy()
    other[5] = -9.0
    left = Units.from_arrays(rows, targets, row_bound=1.0, relation=relation, n=6)
    right = Units.from_arrays(rows[kept], other[kept], row_bound=1.0, relation=relation, n=6)
    query = AveragedGradient(
        loss=losses.squared, points=np.linspace(-1.0, 1.0, 3 * count).reshape(-1, 3), clip=0.7
    )
    assert 0.999 < moved(left, right, relation, query) <= 1.0
    assert moved(left, right, relation, query, understate=0.002) > 1.0


def test_the_sensitivity_is_the_mean_of_those_at_the_points():
    sizes = Public(n=10, d=2)
    at = np.array([[0.0, 0.0], [0.0, 0.5], [4.0, 0.0]])
    with double_precision():
        each = [float(ClippedGradient(loss=losses.logistic, at=w, clip=1.0).sensitivity(sizes)) for w in at]
        query = AveragedGradient(loss=losses.logistic, points=at, clip=1.0)
        assert float(query.sensitivity(sizes)) == pytest.approx(np.mean(each), rel=1e-12)
        assert each[0] < each[2]
        plain = AveragedGradient(loss=losses.squared, points=at, clip=1.0)
        assert float(plain.sensitivity(sizes)) == pytest.approx(0.2)
        assert float(plain.sensitivity(sizes, Poisson(0.5))) == pytest.approx(0.4)


def test_a_unit_is_left_out_at_the_points_where_its_gradient_is_not_finite_and_nowhere_else():
    def broken(params, features, target):
        return jnp.where(params[0] > 0, jnp.inf, 1.0) * (features @ params) + target

    rows = np.array([[1.0, 0.0], [0.0, 1.0]])
    units = Units.from_arrays(rows, np.zeros(2), row_bound=1.0)
    with double_precision():
        query = AveragedGradient(
            loss=losses.RecordLoss(broken), points=np.array([[1.0, 0.0], [-1.0, 0.0]]), clip=2.0
        )
        found = InProcessEngine(units).clipped_sum(query)
    np.testing.assert_allclose(found, [0.5, 0.5], rtol=1e-6)
