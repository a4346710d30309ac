"""Excess of descent on a named problem, 16 runs each: its size, its law in n, and what many steps cost.

The problem has 20 features: normal ones with standard deviation 1 / j and a constant 1/2, rows of length 1; logistic
labels of w ~ 6 N(0, I); ridge 0.01; delta = 1e-5; add-or-remove-one.
"""

import functools
import math

import numpy as np
import pytest
from scipy.optimize import minimize as scipy_minimize
from scipy.special import expit

from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.solve import minimize
from privopt.solvers.gradient_descent import GradientDescent

RIDGE, DELTA, REPEATS = 0.01, 1e-5, 16
PROBLEM = Problem(losses.logistic, Ridge(RIDGE))


@functools.cache
def named_problem(n):
    generator = np.random.default_rng(0)
    columns = [generator.normal(size=n) / j for j in range(1, 20)]
    rows = np.stack([*columns, np.full(n, 0.5)], axis=1)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    w = 6.0 * generator.normal(size=20)
    targets = np.where(generator.random(n) < expit(rows @ w), 1.0, -1.0)
    units = Units.from_arrays(rows, targets, row_bound=1.0, relation="add-or-remove-one", n=n)

    def objective(w):
        return np.mean(np.logaddexp(0.0, -targets * (rows @ w))) + 0.5 * RIDGE * w @ w

    def gradient(w):
        return rows.T @ (-targets * expit(-targets * (rows @ w))) / n + RIDGE * w

    found = scipy_minimize(objective, np.zeros(20), jac=gradient, method="BFGS", options={"gtol": 1e-10})
    margins = rows @ found.x
    curvature = (rows.T * (expit(margins) * expit(-margins))) @ rows / n + RIDGE * np.eye(20)
    return units, objective, found.fun, float(np.trace(np.linalg.inv(curvature)))


def practical_descent(steps):
    """Fixed momentum for `steps` steps, and the mean of the last half."""
    step_size = 1.0 / (0.25 + RIDGE)
    slowness = math.sqrt(step_size * max(RIDGE, 16.0 * 0.25 / steps**2))
    momentum = (1.0 - slowness) / (1.0 + slowness)
    return GradientDescent(steps=steps, step_size=step_size, clip=1.0, momentum=momentum, returns="tail")


@functools.cache
def mean_excess(n, epsilon, solver):
    units, objective, best, _ = named_problem(n)
    budget = Budget(epsilon, DELTA)
    runs = [minimize(PROBLEM, units, budget=budget, solver=solver, random_state=k) for k in range(REPEATS)]
    return float(np.mean([objective(np.asarray(run.params)) - best for run in runs]))


def least_excess(n, epsilon):
    """0.5 s^2 tr(H^-1), what isotropic noise costs to first order."""
    noise = 1.0 / (n * gaussian_mu(epsilon, DELTA))
    return 0.5 * noise**2 * named_problem(n)[3]


@pytest.mark.audit
@pytest.mark.parametrize(
    ("n", "epsilon"), [(5_000, 1.0), (20_000, 1.0), (80_000, 1.0), (20_000, 0.3), (20_000, 3.0)]
)
def test_descent_is_within_twice_the_least_excess(n, epsilon):
    ratio = mean_excess(n, epsilon, practical_descent(50)) / least_excess(n, epsilon)
    assert 0.8 < ratio < 2.2  # 1.5 to 1.6 where this was first measured


@pytest.mark.audit
def test_the_excess_falls_with_the_square_of_n():
    excess = [mean_excess(n, 1.0, practical_descent(50)) for n in (5_000, 20_000, 80_000)]
    exponent = math.log(excess[2] / excess[0]) / math.log(16.0)
    assert -2.15 < exponent < -1.85


@pytest.mark.audit
@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_many_steps_and_the_last_iterate_are_ten_times_worse(epsilon):
    many = GradientDescent(steps=1500, step_size=1.0 / 0.26, clip=1.0, momentum=0.0, returns="last")
    assert mean_excess(20_000, epsilon, many) > 10.0 * mean_excess(20_000, epsilon, practical_descent(50))


@pytest.mark.audit
def test_geometric_shares_and_the_last_iterate_keep_their_bound():
    units, _, best, _ = named_problem(20_000)
    budget = Budget(0.3, DELTA)
    equal, split = (
        GradientDescent.for_pl(
            Instance(PROBLEM, units.public, budget), clip=1.0, gap=math.log(2.0) - best, shares=shares
        )
        for shares in ("equal", "geometric")
    )
    assert mean_excess(20_000, 0.3, split) < mean_excess(20_000, 0.3, equal)
