"""Snowball SGD: equal to a plain reference, its noise and its price, and the optimum without noise."""

import math

import numpy as np
import pytest
from tests.papers.test_phased_sgd import D, stored, table
from tests.support.ordered_noise import OrderedNoise, logistic_slope, plain_pass

from privopt.curator.local import LocalCurator
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.papers.snowball_sgd import SnowballSGD, growing_batches
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.public import Public


def test_the_batches_have_their_reference_values():
    """L = 1, d = 20, sigma = L / sqrt(d), rho = 0.1."""
    batches = growing_batches(105, 1.0 / math.sqrt(0.2), 1.0 / math.sqrt(20.0))
    assert batches.sizes.tolist() == [7, 7, 8, 8, 9, 9, 10, 12, 15, 20]


def test_it_equals_a_plain_reference_with_given_noise():
    rows, targets = table(40)
    units = stored(rows, targets)
    solver = SnowballSGD(clip=0.4, noise_ratio=0.5, step_size=1.5, noise_multiplier=1.2)
    ledger = Ledger(Budget(1e9, 1e-6), "replace-one", plan=solver.event(units.public))
    result = solver.solve(
        LocalCurator(units, ledger, noise=OrderedNoise()), Problem(losses.logistic, Ridge(0.1))
    )
    sizes = growing_batches(40, 1.2, 0.5).sizes
    assert len(sizes) > 3
    hidden = max(2.0 * 0.4 / (b * math.sqrt(len(sizes) - t)) for t, b in enumerate(sizes))
    noise = 1.2 * hidden * np.cos(1 + 0.7 * np.arange(len(sizes) * D)).reshape(-1, D)
    assert 1.2 * hidden <= 0.5 * 0.4
    visited = plain_pass(
        logistic_slope, rows, targets, np.zeros(D), clip=0.4, step=1.5, ridge=0.1, batches=sizes, noise=noise
    )
    np.testing.assert_allclose(result.params, visited[-1], rtol=1e-7)


def test_its_price_is_that_of_one_gaussian_release():
    public = Public(n=5000, d=D)
    solver = SnowballSGD().configure(Instance(Problem(losses.logistic), public, Budget(1.0, 1e-6)))
    assert 1.0 / solver.noise_multiplier == pytest.approx(gaussian_mu(1.0, 1e-6), rel=1e-3)


def test_noise_decides_how_far_it_comes():
    rows, targets = table(20_000)
    problem = Problem(losses.logistic, Ridge(0.01))
    units = stored(rows, targets)
    values = {}
    for epsilon in (math.inf, 4.0, 0.5):
        budget = Budget(epsilon, 1e-6)
        solver = SnowballSGD().configure(Instance(problem, units.public, budget))
        ledger = Ledger(budget, "replace-one", plan=solver.event(units.public))
        result = solver.solve(LocalCurator(units, ledger, noise=NoiseSource(3)), problem)
        with double_precision():
            values[epsilon] = float(problem.objective(result.params, rows, targets))
    optimum = min(values.values())
    assert optimum < 0.61  # log 2 at the start
    assert values[math.inf] < optimum + 0.01
    assert values[4.0] < optimum + 0.02
    assert values[0.5] < optimum + 0.05
