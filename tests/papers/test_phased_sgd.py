"""Phased SGD: its reference values, equal to a plain reference, and the optimum without noise."""

import math

import numpy as np
import pytest
from tests.support.ordered_noise import OrderedNoise, logistic_slope, plain_pass

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.events import GaussianEvent, NoEvent, Parallel
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.papers.phased_sgd import PhasedSGD, phase_sizes
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.public import Public

D = 3


def table(n, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, D)) / math.sqrt(D)
    rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1.0) * (1 + 1e-12)
    return rows, np.where(rows @ [2.0, -1.0, 0.5] + rng.logistic(size=n) > 0, 1.0, -1.0)


def stored(rows, targets):
    return Units.from_arrays(rows, targets, row_bound=1.0, n=len(rows), storage="float64")


def test_the_noise_of_the_phases_has_its_reference_values():
    """L = 1, rho = 0.1, eta = 0.1: sigma_i = 2 eta_i L / sqrt(2 rho)."""
    solver = PhasedSGD(phases=3, clip=1.0, step_size=0.1, noise_multiplier=1.0 / math.sqrt(0.2))
    units = stored(*table(800))
    curator = LocalCurator(units, Ledger(Budget(9.0, 1e-6), "replace-one", plan=solver.event(units.public)))
    result = solver.solve(curator, Problem(losses.logistic))
    scales = [one.sensitivity[0] * solver.noise_multiplier for one in result.transcript]
    expected = [0.447213595499958, 0.1118033988749895, 0.027950849718747374]
    np.testing.assert_allclose(scales, expected, rtol=1e-8)
    assert all(
        scale > value for scale, value in zip(scales, expected, strict=True)
    )  # the rounding is paid for


@pytest.mark.parametrize("n", [40, 801, 5000])
def test_the_phases_share_all_records(n):
    for phases in (1, 2, 3):
        sizes = phase_sizes(n, phases)
        assert sum(sizes) == n
        assert sizes[:-1] == [n // 2**i for i in range(1, phases)]
    assert phase_sizes(n, 0) == []


@pytest.mark.parametrize(("n", "phases"), [(100, 1), (400, 2), (800, 3), (1600, 4), (10**6, 5)])
def test_as_many_phases_as_leave_a_hundred_records_to_the_last(n, phases):
    instance = Instance(Problem(losses.logistic), Public(n=n, d=D), Budget(1.0, 1e-6))
    assert PhasedSGD().configure(instance).phases == phases


def test_it_equals_a_plain_reference_with_given_noise():
    rows, targets = table(40)
    units = stored(rows, targets)
    solver = PhasedSGD(phases=3, clip=0.4, step_size=1.5, noise_multiplier=0.3)
    ledger = Ledger(Budget(1e9, 1e-6), "replace-one", plan=solver.event(units.public))
    result = solver.solve(
        LocalCurator(units, ledger, noise=OrderedNoise()), Problem(losses.logistic, Ridge(0.1))
    )
    w, first = np.zeros(D), 0
    for i, size in enumerate((20, 10, 10)):
        part, eta = slice(first, first + size), 1.5 * 4.0**-i
        w = plain_pass(logistic_slope, rows[part], targets[part], w, clip=0.4, step=eta, ridge=0.1).mean(
            axis=0
        )
        w = w + 0.3 * 2.0 * eta * 0.4 * np.cos(1 + i + 0.7 * np.arange(D))
        first += size
    np.testing.assert_allclose(result.params, w, rtol=1e-7)


def test_disjoint_phases_cost_one_release():
    public = Public(n=5000, d=D)
    solver = PhasedSGD().configure(Instance(Problem(losses.logistic), public, Budget(1.0, 1e-6)))
    one = GaussianEvent(solver.noise_multiplier)
    assert solver.event(public) == Parallel((one,) * 5)
    ledger = Ledger(Budget(1.0, 1e-6), "replace-one", plan=one)
    assert 0.999 <= ledger.epsilon() <= 1.0
    assert PhasedSGD(phases=0, noise_multiplier=1.0).event(public) == NoEvent()


def test_without_noise_it_comes_near_the_optimum_and_says_so_before():
    rows, targets = table(20_000)
    problem = Problem(losses.logistic, Ridge(0.01))
    units = stored(rows, targets)
    values = {}
    for epsilon in (math.inf, 4.0, 0.5):
        budget = Budget(epsilon, 1e-6)
        solver = PhasedSGD().configure(Instance(problem, units.public, budget))
        ledger = Ledger(budget, "replace-one", plan=solver.event(units.public))
        result = solver.solve(LocalCurator(units, ledger, noise=NoiseSource(3)), problem)
        with double_precision():
            values[epsilon] = float(problem.objective(result.params, rows, targets))
            predicted = solver.forecast(Instance(problem, units.public, budget)).excess
        assert predicted >= 0.0
    optimum = min(values.values())
    assert optimum < 0.61  # log 2 at the start
    assert values[math.inf] < optimum + 0.01
    assert values[4.0] < optimum + 0.02
    assert values[0.5] < optimum + 0.05


def test_the_data_in_a_bad_order_do_as_well():
    rows, targets = table(4000)
    order = np.argsort(targets, kind="stable")
    problem = Problem(losses.logistic)
    found = []
    for x, y in ((rows, targets), (rows[order], targets[order])):
        units = stored(x, y)
        solver = PhasedSGD(clip=1.0, step_size=0.5, phases=1, noise_multiplier=0.0)
        ledger = Ledger(Budget(math.inf, 1e-6), "replace-one", plan=solver.event(units.public))
        result = solver.solve(LocalCurator(units, ledger, noise=NoiseSource(3)), problem)
        with double_precision():
            found.append(float(problem.objective(result.params, rows, targets)))
    assert abs(found[0] - found[1]) < 2e-3
