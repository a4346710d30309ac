"""How the error of user-level descent falls with records a user and with users, on the generated users of the spec."""

import functools
import math

import numpy as np
import pytest

import privopt
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.planning.task import Instance
from privopt.planning.user_whitening import default_user_ridge
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.group_privacy import GroupPrivacy

pytestmark = pytest.mark.audit

D, SEEDS = 20, 4
ROW_BOUND = 1.3 * math.sqrt(D)
SCALES = np.sqrt(1.0 / np.arange(1, D + 1))
SCALES *= math.sqrt(D) / np.linalg.norm(SCALES)


def draw(rng, users, records):
    """Rows of variance proportional to 1 / i that sum to d, labels of a logistic model of norm 2."""
    truth = rng.normal(size=D)
    truth *= 2.0 / np.linalg.norm(truth)
    rows = rng.normal(size=(users * records, D)) * SCALES
    rows *= np.minimum(1.0, ROW_BOUND / np.linalg.norm(rows, axis=1))[:, None]
    labels = (rng.random(len(rows)) < 1.0 / (1.0 + np.exp(-rows @ truth))).astype(int)
    return rows, labels, truth


def excess(params, truth):
    """The expected loss above that of the truth, on rows of its own with expected labels."""
    rows = np.random.default_rng(99).normal(size=(20_000, D)) * SCALES
    odds = 1.0 / (1.0 + np.exp(-rows @ truth))
    found, best = rows @ params, rows @ truth
    return float(np.mean(np.logaddexp(0.0, found) - np.logaddexp(0.0, best) - odds * (found - best)))


@functools.cache
def mean_excess(users, records, solver="auto", strength=None):
    found = []
    for seed in range(SEEDS):
        rows, labels, truth = draw(np.random.default_rng(seed), users, records)
        units = Units.from_arrays(
            rows, labels, classes=[0, 1], row_bound=ROW_BOUND, groups=np.arange(len(rows)) // records,
            max_records_per_user=records, typical_records=records,
        )  # fmt: skip
        budget = Budget(1.0, 1e-6)
        ridge = default_user_ridge(Instance(Problem(losses.logistic), units.public, budget))
        problem = Problem(losses.logistic, Ridge(ridge if strength is None else strength))
        if solver == "group":
            chosen = GroupPrivacy(inner=GradientDescent(steps=10))
        else:
            chosen = "user-whitening"
        result = privopt.minimize(problem, units, budget=budget, solver=chosen, random_state=seed)
        found.append(excess(np.asarray(result.params), truth))
    return float(np.mean(found))


def test_ten_times_the_records_a_user_cut_the_error_several_times_and_that_of_group_privacy_hardly() -> None:
    assert 4.0 <= mean_excess(1000, 10) / mean_excess(1000, 100) <= 15.0
    assert 0.7 <= mean_excess(1000, 10, "group") / mean_excess(1000, 100, "group") <= 1.5


def test_it_leaves_less_than_a_twentieth_of_group_privacys_error() -> None:
    assert mean_excess(1000, 100) < 0.05 * mean_excess(1000, 100, "group")


def test_twice_the_users_leave_about_a_quarter_of_what_the_noise_costs() -> None:
    noisy = [mean_excess(users, 10, strength=1e-3) for users in (500, 1000)]
    floor = mean_excess(20_000, 10, strength=1e-3)
    assert 3.0 <= (noisy[0] - floor) / (noisy[1] - floor) <= 4.5
