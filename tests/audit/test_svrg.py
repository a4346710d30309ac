"""The excess of variance-reduced descent on a named problem, against the first-order optimum and gradient descent.

`pytest -s -m audit tests/audit/test_svrg.py` prints the mean excess of 16 runs as a multiple of 0.5 s^2 tr(H^-1).
"""

import sys

import numpy as np
import pytest

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.svrg import SVRG

pytestmark = pytest.mark.audit

N, RIDGE, RUNS = 20_000, 0.01, 16
BUDGET, RELATION = Budget(1.0, 1e-5), "add-or-remove-one"
PROBLEM = Problem(losses.logistic, Ridge(RIDGE))


@pytest.fixture(scope="module")
def named_problem():
    """Columns of scale 1 / j and a constant one, rows of norm 1, logistic labels: (rows, labels)."""
    rng = np.random.default_rng(0)
    rows = np.c_[rng.normal(size=(N, 19)) / np.arange(1, 20), np.full(N, 0.5)]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    weights = 6.0 * rng.normal(size=20)
    return rows, np.where(rng.random(N) < 1.0 / (1.0 + np.exp(-rows @ weights)), 1.0, -1.0)


@pytest.fixture(scope="module")
def excess(named_problem):
    """The mean excess of a solver's runs over 0.5 s^2 tr(H^-1), s the noise of one gradient of clip 1."""
    rows, labels = named_problem
    units = Units.from_arrays(rows, labels, row_bound=1.0, relation=RELATION, n=N)

    def objective(w):
        return np.mean(np.logaddexp(0.0, -labels * (rows @ w))) + 0.5 * RIDGE * w @ w

    optimum, hessian = np.zeros(20), np.eye(20)
    for _ in range(30):
        margin = labels * (rows @ optimum)
        gradient = -rows.T @ (labels / (1.0 + np.exp(margin))) / N + RIDGE * optimum
        weight = 1.0 / (2.0 + np.exp(margin) + np.exp(-margin))
        hessian = (rows * weight[:, None]).T @ rows / N + RIDGE * np.eye(20)
        optimum = optimum - np.linalg.solve(hessian, gradient)
    noise = 1.0 / (N * gaussian_mu(BUDGET.epsilon, BUDGET.delta))
    lead = 0.5 * noise**2 * np.trace(np.linalg.inv(hessian))

    def mean_excess(solver):
        solver = solver.configure(Instance(PROBLEM, units.public, BUDGET))
        found = []
        for seed in range(RUNS):
            ledger = Ledger(BUDGET, RELATION, plan=solver.event(units.public))
            curator = LocalCurator(units, ledger, noise=NoiseSource(seed))
            found.append(objective(np.asarray(solver.solve(curator, PROBLEM).params)) - objective(optimum))
        ratio = float(np.mean(found) / lead)
        sys.stdout.write(f"\n{solver.title}, clip {solver.clip}: {ratio:.2f} in {solver.passes():.0f} passes")
        return ratio

    return mean_excess


def test_at_equal_clip_it_reaches_the_first_order_optimum_and_beats_gradient_descent(excess):
    reduced = excess(SVRG(clip=1.0))
    descent = excess(GradientDescent(clip=1.0, steps=50, returns="tail"))
    assert 0.7 <= reduced <= 1.3
    assert reduced < descent


def test_its_defaults_beat_gradient_descents_in_a_third_of_the_passes(excess):
    assert excess(SVRG()) < excess(GradientDescent())


def test_the_papers_design_leaves_more_excess(excess):
    once = excess(SVRG(clip=1.0, epochs=3))
    assert excess(SVRG(clip=1.0, epochs=3, variant="paper")) > 1.25 * once
