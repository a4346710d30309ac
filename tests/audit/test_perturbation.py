"""Excess of objective and output perturbation over the optimum, against the theory's leading term."""

import math

import numpy as np
import pytest

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.papers.output_perturbation import OutputPerturbation
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.objective_perturbation import ObjectivePerturbation

pytestmark = pytest.mark.audit
RIDGE, DELTA, D = 0.01, 1e-5, 20
PROBLEM = Problem(losses.logistic, Ridge(RIDGE))
REPEATS = 48  # the mean of 48 has a standard error of about 5 %


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def named_problem(n):
    """Nineteen normal columns of standard deviation 1 / j and a constant, rows of norm 1, logistic labels."""
    draw = np.random.default_rng(0)
    rows = np.concatenate([draw.normal(size=(n, 19)) / np.arange(1, 20), np.full((n, 1), 0.5)], axis=1)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    w = 6 * draw.normal(size=D)
    labels = np.where(draw.random(n) < 1 / (1 + np.exp(-rows @ w)), 1.0, -1.0)
    return Units.from_arrays(rows, labels, row_bound=1.0, n=n, relation="add-or-remove-one")


def run(units, solver, epsilon, seed):
    budget = Budget(epsilon, DELTA)
    solver = solver.configure(Instance(PROBLEM, units.public, budget))
    ledger = Ledger(budget, units.public.relation, plan=solver.event(units.public))
    result = solver.solve(LocalCurator(units, ledger, noise=NoiseSource(seed)), PROBLEM)
    return np.asarray(result.params)


def excess(units, solver, epsilon):
    """Mean gap over the optimum, and the leading term `s^2 tr(H^-1) / 2`."""
    rows, labels = np.asarray(units.private_features, np.float64), units.private_targets

    def value(w):
        return np.mean(np.logaddexp(0.0, -labels * (rows @ w))) + 0.5 * RIDGE * w @ w

    best = run(units, ObjectivePerturbation(), math.inf, 0)
    rate = 1 / (1 + np.exp(-rows @ best))
    hessian = (rows * (rate * (1 - rate))[:, None]).T @ rows / len(rows) + RIDGE * np.eye(D)
    lead = 0.5 * np.trace(np.linalg.inv(hessian)) / (len(rows) * gaussian_mu(epsilon, DELTA)) ** 2
    gaps = [value(run(units, solver, epsilon, seed)) - value(best) for seed in range(REPEATS)]
    return float(np.mean(gaps)), lead


@pytest.mark.parametrize(("n", "epsilon"), [(5_000, 1.0), (20_000, 1.0), (20_000, 0.3), (20_000, 3.0)])
def test_objective_perturbation_has_the_leading_term_and_output_perturbation_does_worse(n, epsilon):
    units = named_problem(n)
    inside, lead = excess(units, ObjectivePerturbation(), epsilon)
    descent, _ = excess(units, GradientDescent(clip=1.0, steps=50), epsilon)
    after, _ = excess(units, OutputPerturbation(form="minimiser"), epsilon)
    assert 0.9 <= inside / lead <= 1.1
    assert inside < descent
    assert 1.3 * inside < after


def test_the_excess_falls_with_the_square_of_n():
    gaps = [excess(named_problem(n), ObjectivePerturbation(), 1.0)[0] for n in (5_000, 20_000, 80_000)]
    exponent = math.log(gaps[2] / gaps[0]) / math.log(16.0)
    assert -2.15 <= exponent <= -1.85
