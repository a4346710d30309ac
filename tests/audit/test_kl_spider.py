"""KL Spider over many runs: how often its bound holds, and how the excess falls with the number of units."""

import numpy as np
import pytest
from tests.support.exact_curator import exact_run, public_of

from privopt import zoo
from privopt.ledger.amounts import Budget
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.solvers.kl_spider import KLSpider

pytestmark = pytest.mark.audit
BUDGET = Budget(1.0, 1e-6)
RUNS = 60


def excesses(problem, n, runs):
    solver = KLSpider().configure(Instance(problem.problem, public_of(problem, n), BUDGET))
    with double_precision():
        ends = [exact_run(solver, problem, n, noise=seed) for seed in range(runs)]
    return (
        np.array([excess for _, excess in ends]),
        np.array([result.findings["risk_bound"].value for result, _ in ends]),
    )


@pytest.mark.parametrize(("p", "low", "high"), [(2.0, 0.08, 0.3), (4.0, 0.4, 0.9)])
def test_the_bound_holds_in_nine_of_ten_runs(p, low, high):
    risks, bounds = excesses(zoo.power(p=p, d=10), 20_000, RUNS)
    assert np.mean(risks <= bounds) >= 0.9
    assert low <= np.median(risks / bounds) <= high


def test_the_excess_and_the_bound_fall_with_the_power_of_the_condition():
    problem, sizes = zoo.power(p=4.0, d=10), [10**4, 10**5, 10**6]
    found = [excesses(problem, n, 8) for n in sizes]
    slopes = [
        -np.polyfit(np.log(sizes), np.log([values[i].mean() for values in found]), 1)[0] for i in (0, 1)
    ]
    assert slopes[0] == pytest.approx(1.4, abs=0.1)
    plans = [
        KLSpider().plan(Instance(problem.problem, public_of(problem, n), BUDGET)).bound.value for n in sizes
    ]
    assert -np.polyfit(np.log(sizes), np.log(plans), 1)[0] == pytest.approx(1.39, abs=0.05)
