"""Reference values of Wang, Ye, Xu 2017's Algorithm 4 in its practical form, and what the solver's file promises."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from privopt.curator import Curator
from privopt.data import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import L1, Ridge
from privopt.result import Status
from privopt.solve import minimize
from privopt.solvers.averaging import mixing_ratios
from privopt.solvers.gradient_descent import GradientDescent

# The rows are stored in float32, the reference was computed on float64 rows: they agree to 1e-7.
CLOSE = {"rtol": 0, "atol": 3e-7}


@dataclass
class FormulaNoise:
    """The k-th release gets cos(1 + k + 0.7 j) in place of its normals."""

    seeded: bool = True
    count: int = 0
    units_generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def normal(self, shape):
        self.count += 1
        return np.cos(self.count + 0.7 * np.arange(np.prod(shape))).reshape(shape)


def reference_units():
    i, j = np.arange(8)[:, None], np.arange(3)[None, :]
    rows = np.sin(0.5 + 1.3 * i + 0.7 * j)
    rows /= np.maximum(1.0, np.linalg.norm(rows, axis=1, keepdims=True))
    return Units.from_arrays(rows, np.where(np.cos(2 * np.arange(8)) > 0, 1.0, -1.0), row_bound=1.0)


def solve(problem, **settings):
    """Five steps of size 2 with noise of standard deviation 0.1: 0.4 times the sensitivity 2 / 8."""
    units = reference_units()
    solver = GradientDescent(steps=5, step_size=2.0, clip=1.0, noise_multiplier=0.4, **settings)
    ledger = Ledger(Budget(1000.0, 1e-6), "replace-one", plan=solver.event(units.public))
    return solver.solve(Curator(units, ledger, noise=FormulaNoise()), problem)


def test_the_last_iterate_with_ridge():
    result = solve(Problem(losses.logistic, Ridge(0.1)), momentum=0.0, average="last")
    np.testing.assert_allclose(result.params, [0.0044201432, -0.3333645686, -0.5143627149], **CLOSE)


def test_momentum_and_the_mean_of_the_last_three():
    result = solve(Problem(losses.logistic, Ridge(0.1)), momentum=0.5, average="tail")
    np.testing.assert_allclose(result.params, [0.1265191730, -0.1228649468, -0.3144637623], **CLOSE)


def test_proximal_steps_for_l1():
    result = solve(Problem(losses.logistic, L1(0.05)), momentum=0.0, average="last")
    np.testing.assert_allclose(result.params, [0.0, -0.1949809442, -0.3745501352], **CLOSE)
    assert float(result.params[0]) == 0.0


def test_the_average_of_sparse_iterates_gets_one_more_proximal_step():
    result = solve(Problem(losses.logistic, L1(0.4)), momentum=0.0, average="tail")
    assert np.count_nonzero(result.params) < 3


@pytest.mark.parametrize(
    ("average", "expected"),
    [("last", [0, 0, 0, 0, 1]), ("tail", [0, 0, 1, 1, 1]), ("weighted", [1, 4, 9, 16, 25])],
)
def test_mixing_ratios_give_the_weighted_mean(average, expected):
    points = np.array([3.0, -1.0, 4.0, 1.0, -5.0])
    mean = 17.0  # where a running mean starts does not matter
    for ratio, point in zip(mixing_ratios(average, 5), points, strict=True):
        mean += ratio * (point - mean)
    assert mean == pytest.approx(np.average(points, weights=expected))


def test_an_unknown_average_is_refused():
    with pytest.raises(ValueError, match="'last', 'tail' or 'weighted', got 'mean'"):
        mixing_ratios("mean", 3)


def test_infinite_epsilon_reaches_the_optimum():
    from sklearn.linear_model import LogisticRegression

    units = reference_units()
    rows, targets = np.asarray(units.private_features, np.float64), units.private_targets
    result = minimize(
        Problem(losses.logistic, Ridge(0.1)), units, budget=Budget(np.inf, 1e-6), random_state=1
    )
    direct = LogisticRegression(C=1 / (0.1 * 8), fit_intercept=False, tol=1e-12).fit(rows, targets)
    np.testing.assert_allclose(result.params, direct.coef_[0], atol=1e-4)


def test_a_diverging_run_gives_finite_parameters_and_says_so():
    result = solve(Problem(losses.squared, Ridge(1e200)), momentum=0.5)
    assert result.status is Status.DIVERGED
    assert np.all(np.isfinite(result.params))


def test_a_solver_that_was_not_configured_says_what_to_do():
    units = reference_units()
    ledger = Ledger(Budget(1.0, 1e-6), "replace-one")
    with pytest.raises(ValueError, match="call `configure"):
        GradientDescent().solve(Curator(units, ledger), Problem(losses.logistic))


def test_a_start_of_the_wrong_shape_is_refused():
    units = reference_units()
    with pytest.raises(ValueError, match=r"start must have shape \(3,\)"):
        minimize(losses.logistic, units, budget=Budget(1.0, 1e-6), start=np.zeros(4))


def test_what_is_given_is_kept_and_the_rest_is_derived():
    units = reference_units()
    given = GradientDescent(steps=9, clip=0.3)
    derived = given.configure(Problem(losses.logistic), units.public, Budget(1.0, 1e-6))
    assert (derived.steps, derived.clip) == (9, 0.3)
    assert None not in (derived.step_size, derived.momentum, derived.noise_multiplier)
    assert (
        replace(derived, noise_multiplier=None).configure(
            Problem(losses.logistic), units.public, Budget(1.0, 1e-6)
        )
        == derived
    )
