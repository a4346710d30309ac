"""The Newton direction: its value, and that no unit moves it by more than the bound, under both relations."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.query_neighbours import D, as_units, pairs, points
from tests.support.turns import in_turn

from privopt.curator.audit import Audit
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.engine.rounding import rounding_bound
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Poisson
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.public import Public
from privopt.queries.moments import NewtonDirection

MODELS = [(losses.logistic, "bound"), (losses.logistic, "hessian"), (losses.squared, "hessian")]


@pytest.fixture(autouse=True)
def _double() -> Iterator[None]:
    with double_precision():
        yield


def direction(loss, model, at, gradient, *, damping=0.05, ridge=0.0, row_bound=1.5, clip=None):
    return NewtonDirection(
        loss=loss,
        at=at,
        gradient=gradient,
        ridge=np.full(len(at), ridge),
        damping=damping,
        clip=loss.curvature * row_bound**2 if clip is None else clip,
        model=model,
    )


@pytest.mark.at_once("Logistic(), hessian-sparse")
@pytest.mark.parametrize(
    ("model_of", "layout"), in_turn(MODELS, ("dense", "sparse", "users", "sparse users"))
)
@given(
    data=st.data(),
    at=points,
    gradient=points,
    damping=st.sampled_from([1e-3, 0.05, 4.0]),
    clip=st.sampled_from([None, 0.1]),
    public=st.sampled_from([(6, "add-or-remove-one"), (2, "replace-one")]),
)
def test_one_unit_moves_the_direction_by_at_most_its_sensitivity(
    model_of, layout, data, at, gradient, damping, clip, public
):
    loss, model = model_of
    pair = data.draw(pairs(5 if "users" in layout else 1, [public]))
    left, right = (as_units(owned, pair, layout) for owned in pair.sides())
    ledger = Ledger(Budget(10.0, 1e-5), pair.relation, composition="gaussian")
    audit = Audit(left, right, ledger, noise=NoiseSource(1))
    with double_precision():
        released = audit.release(
            direction(loss, model, at, gradient, damping=damping, clip=clip), Gaussian(5.0)
        )
    assert released.shape == (D,)
    assert np.all(np.isfinite(released))
    assert audit.moves[0][1] <= 1.0


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_the_sensitivity_is_attained_under_both_relations(relation):
    rows = np.zeros((5, 3))
    other = rows.copy()
    other[2, 1] = 0.999
    left, right = (
        Units.from_arrays(part, np.ones(5), row_bound=1.0, relation=relation, n=5) for part in (rows, other)
    )
    asked = direction(losses.squared, "hessian", np.zeros(3), np.array([0.0, 2.0, 0.0]), row_bound=1.0)
    ledger = Ledger(Budget(10.0, 1e-5), relation, composition="gaussian")
    audit = Audit(left, right, ledger, noise=NoiseSource(1))
    audit.release(asked, Gaussian(5.0))
    assert 0.99 <= audit.moves[0][1] <= 1.0


@pytest.mark.later("3")
@pytest.mark.parametrize("rank", [1, 3])
def test_no_positive_semidefinite_change_moves_the_solution_further(rank):
    generator = np.random.default_rng(0)
    worst = {"add-or-remove-one": 0.0, "replace-one": 0.0}
    for _ in range(400):
        d, n = int(generator.integers(1, 5)), int(generator.integers(2, 8))
        clip, least = generator.uniform(0.1, 2.0), 10.0 ** generator.uniform(-3, 1)
        common = _semidefinite(generator, d, d) * generator.integers(0, 2) / n
        changes = [_semidefinite(generator, d, rank) for _ in range(2)]
        changes = [m * clip / np.linalg.norm(m) / n for m in changes]
        base = common + least * np.eye(d)
        gradient = generator.normal(size=d)
        plain, one, two = (np.linalg.solve(base + m, gradient) for m in (0 * base, *changes))
        bound = np.linalg.norm(gradient) * clip / (least * (n * least + clip))
        public = Public(n=n, d=d)
        asked = direction(losses.squared, "hessian", np.zeros(d), gradient, damping=least, clip=clip)
        assert float(asked.sensitivity(public)) == pytest.approx(bound, rel=1e-6)
        for relation, moved in (("add-or-remove-one", plain - one), ("replace-one", one - two)):
            worst[relation] = max(worst[relation], np.linalg.norm(moved) / bound)
    assert max(worst.values()) <= 1.0 + 1e-9
    assert worst["add-or-remove-one"] >= 0.9


def _semidefinite(generator, d, rank):
    factor = generator.normal(size=(d, rank))
    return factor @ factor.T


@pytest.mark.later("records-loss1-hessian", "users-loss0-bound", "users-loss2-hessian")
@pytest.mark.parametrize(("loss", "model"), MODELS)
@pytest.mark.parametrize("layout", ["records", "users"])
def test_the_direction_solves_the_newton_equation(loss, model, layout):
    generator = np.random.default_rng(0)
    rows, at, gradient = (
        generator.normal(size=(40, 3)) / 4,
        generator.normal(size=3),
        generator.normal(size=3),
    )
    groups = np.arange(40) // 4 if layout == "users" else None
    targets = np.where(generator.random(40) < 0.5, 1.0, -1.0)
    units = Units.from_arrays(
        rows, targets, row_bound=1.5, groups=groups, max_records_per_user=4, storage="float64"
    )
    predictions = rows @ at
    weights = np.ones(40)
    if model == "bound":
        weights = np.tanh(predictions / 2) / (2 * predictions)
    elif loss is losses.logistic:
        weights = 1 / (2 + 2 * np.cosh(predictions))
    expected = np.linalg.solve((rows.T * weights) @ rows / 40 + np.diag([0.07, 0.07, 0.07]), gradient)
    asked = direction(loss, model, at, gradient, damping=0.05, ridge=0.02)
    ledger = Ledger(Budget(np.inf, 1e-5), "replace-one", composition="gaussian")
    found = LocalCurator(units, ledger, noise=NoiseSource(1)).release(asked, Gaussian(0.0))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    general = asked.finish(InProcessEngine(units).general_sum(asked) / units.public.n)
    np.testing.assert_allclose(general, expected, rtol=1e-12)


@pytest.mark.parametrize("n", [2, 5000, 10**8])
def test_the_rounding_that_is_allowed_for_covers_the_engines(n):
    asked = direction(losses.squared, "hessian", np.zeros(2), np.ones(2))
    assert float(asked.rounding(Public(n=n, d=2))) >= rounding_bound(float(asked.radius()), n) / n


def test_too_little_damping_has_no_finite_sensitivity():
    asked = direction(losses.squared, "hessian", np.zeros(2), np.ones(2), damping=1e-13)
    assert np.isinf(asked.sensitivity(Public(n=100, d=2)))
    still = direction(losses.squared, "hessian", np.zeros(2), np.zeros(2), damping=1e-13)
    assert float(still.sensitivity(Public(n=100, d=2))) == 0.0


@pytest.mark.parametrize("size", [1e-300, 1e-101, 1e-99, 1.0, 1e199, 1e249])
def test_gradients_of_any_size_move_the_direction_by_at_most_what_is_stated(size):
    """Squares of the gradient would vanish or overflow, and NumPy raise where it is asked to."""
    gradient, public = size * np.array([3.0, -4.0]), Public(n=2, d=2)
    asked = direction(losses.squared, "hessian", np.zeros(2), gradient, damping=0.5, clip=1.0)
    with np.errstate(all="raise"):
        stated = float(asked.sensitivity(public))
        ends = [np.asarray(asked.finish(np.array(mean))) for mean in ([0.0, 0.0, 0.0], [0.18, -0.24, 0.32])]
    moved = np.linalg.norm((ends[0] - ends[1]) / size)
    assert moved <= stated / size
    assert (stated == 0.0) == (size < 1e-100)
    assert stated == 0.0 or moved > 0.1


@pytest.mark.parametrize("gradient", [[np.nan, 1.0], [np.inf, 0.0], [1e260, 0.0]])
def test_a_gradient_whose_direction_may_leave_float64_has_no_finite_sensitivity(gradient):
    asked = direction(losses.squared, "hessian", np.zeros(2), np.array(gradient))
    with np.errstate(all="raise"):
        assert np.isinf(asked.sensitivity(Public(n=100, d=2)))


def test_what_it_cannot_do_is_refused():
    asked = direction(losses.squared, "hessian", np.zeros(2), np.ones(2))
    with pytest.raises(ValueError, match="cannot be sampled"):
        asked.sensitivity(Public(n=100, d=2), Poisson(0.1))
    with pytest.raises(ValueError, match="known for the logistic loss only, got squared"):
        direction(losses.squared, "bound", np.zeros(2), np.ones(2)).row_weights(np.ones(1), np.ones(1))
