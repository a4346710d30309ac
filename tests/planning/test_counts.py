"""The rule for counts: what it reads off noisy magnitudes, and what it does without a constant column."""

import math
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from privopt.ledger.amounts import Budget
from privopt.planning import counts
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.magnitudes import interval_ends
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.public import Public

D, LARGEST = 4, 20.0
PENALTY = Ridge(1e-4, (1.0, 1.0, 1.0, 0.0))
PROBLEM = Problem(losses.poisson(math.log(LARGEST), LARGEST), PENALTY, constant=D - 1)
INSTANCE = Instance(PROBLEM, Public(n=5_000, d=D, row_bound=2.0), Budget(1.0, 1e-8))


def test_the_constant_column_is_the_declared_one():
    assert counts.constant_column(PROBLEM) == 3
    assert counts.constant_column(replace(PROBLEM, constant=None)) is None
    assert counts.constant_column(replace(PROBLEM, loss=losses.squared)) is None


def test_the_share_follows_public_numbers():
    assert counts.level_share(INSTANCE, 0.1) == counts.LEAST_LEVEL_SHARE
    small = replace(INSTANCE, public=replace(INSTANCE.public, n=20))
    assert counts.level_share(small, 0.1) == pytest.approx(0.45)
    assert counts.level_share(replace(INSTANCE, budget=Budget(math.inf, 0.0)), 0.1) == 0.0
    users = replace(INSTANCE.public, unit="user", records_per_unit=3, typical_records=2.0)
    assert counts.level_share(replace(INSTANCE, public=users), 0.1) == counts.LEAST_LEVEL_SHARE


def test_the_level_without_noise_is_the_mean():
    found = counts.level(np.array([0.2, 0.1, 0.3, 0.05, 0.0, 0.0]), 0.0, LARGEST)
    assert found.mean == pytest.approx(0.2 + 0.2 + 1.2 + 0.4)
    assert found.large == pytest.approx((0.2 + 0.75 * (0.4 + 4.8 + 3.2)) / found.mean)


def test_what_may_be_noise_counts_little_and_the_level_stays_positive():
    values = np.array([0.3, -0.01, 0.02, 0.01, -0.015, 0.019])
    noisy = counts.level(values, 0.02, LARGEST)
    assert np.sum(np.maximum(values, 0.0) * interval_ends(LARGEST)) > 0.7
    assert 0.25 < noisy.mean < 0.5
    assert noisy.mean <= noisy.large < 2.0
    assert np.sum(noisy.parts) == pytest.approx(noisy.mean)
    for drowned in ([-0.1, -0.2, -0.3, -0.1, -0.1, -0.1], [math.nan] * 6, [0.01] * 6):
        found = counts.level(np.array(drowned), 0.5, LARGEST)
        assert 0.0 < found.mean <= 1.0
        assert found.mean <= found.large < LARGEST


def test_counts_that_noise_hides_entry_by_entry_still_show_together():
    # Entries of about two standard deviations each: the sum of what stands out alone is far below the mean.
    generator, stddev, ends = np.random.default_rng(0), 0.04, interval_ends(LARGEST)
    exact = np.array([0.08, 0.1, 0.12, 0.11, 0.08, 0.03])
    mean, found, alone = float(exact @ ends), [], []
    for _ in range(200):
        values = exact + stddev * generator.standard_normal(len(exact))
        found.append(counts.level(values, stddev, LARGEST).mean)
        alone.append(max(float(counts.significant(values, stddev, ends) @ ends), 1e-3))
    errors = [np.sqrt(np.mean(np.log(np.asarray(means) / mean) ** 2)) for means in (found, alone)]
    assert errors[0] < 0.8
    assert errors[0] < 0.3 * errors[1]


def test_the_clip_grows_without_bound_as_the_noise_falls():
    ends = interval_ends(5_000.0)
    found = counts.level(1.0 / ends**1.3, 1e-5, 5_000.0)
    slopes = [counts.balanced_slope(found, noise, 5_000.0) for noise in (0.1, 0.01, 1e-3, 1e-4, 1e-6, 1e-9)]
    assert slopes == sorted(slopes)
    assert slopes[0] < 5.0 * found.mean
    assert slopes[-1] == counts.MOST_SLOPE * 5_000.0
    assert np.all(np.diff(found.beyond(np.geomspace(1.0, 1e4, 20))) <= 0.0)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0, 1e3])
def test_a_larger_budget_never_clips_sooner(epsilon):
    found = counts.Level(mean=3.0, large=9.0)
    slopes = []
    for factor in (1.0, 3.0):
        instance = replace(INSTANCE, budget=Budget(factor * epsilon, 1e-8))
        rule = counts.CountsRule.of(instance, 0.1, counts.level_share(instance, 0.1))
        slopes.append(rule.slope(found, 1.5))
    assert slopes[0] <= slopes[1] * (1.0 + 1e-9)


def test_the_magnitudes_leave_half_of_the_rest_to_the_descent():
    small = replace(INSTANCE, public=replace(INSTANCE.public, n=60))
    assert counts.level_share(small, 0.6) == pytest.approx(0.2)


@pytest.mark.at_once("20000-5000.0")
@pytest.mark.parametrize(("n", "largest"), [(4_000, 5_000.0), (20_000, 5_000.0), (100_000, 1e6)])
def test_a_bound_far_above_the_counts_seldom_moves_their_level(n, largest):
    generator, stddev = np.random.default_rng(0), 8.0 * math.sqrt(2.0) / n
    exact = np.zeros(len(interval_ends(largest)))
    exact[:4] = [0.2, 0.2, 0.3, 0.15]
    means = [
        counts.level(exact + stddev * generator.standard_normal(len(exact)), stddev, largest).mean
        for _ in range(2_000)
    ]
    assert np.mean(np.asarray(means) > 2.0 * (exact @ interval_ends(largest))) < 0.01


def test_a_bound_near_the_largest_number_still_has_a_level():
    found = counts.level(np.full(len(interval_ends(1e200)), 1e-3), 0.0, 1e200)
    assert math.isfinite(found.mean)
    assert math.isfinite(found.large)


def test_descent_begins_at_the_released_mean_unless_told_otherwise():
    rule = counts.CountsRule.of(INSTANCE, 0.1, 0.05)
    found = counts.Level(mean=3.0, large=6.0)
    with double_precision():
        np.testing.assert_allclose(rule.begin(jnp.zeros(D), found), [0.0, 0.0, 0.0, math.log(3.0)])
        given = jnp.asarray([0.0, 1.0, 0.0, 0.0])
        assert rule.begin(given, found) is given


def test_clip_step_and_anchor_are_relative_to_the_mean():
    rule, moment = counts.CountsRule.of(INSTANCE, 0.1, 0.05), np.eye(D)
    one, ten = (
        rule.coordinates(moment, counts.Level(mean=m, large=2.0 * m), jnp.zeros(D)) for m in (1.0, 10.0)
    )
    assert ten.clip == pytest.approx(10.0 * one.clip)
    assert ten.pull == pytest.approx(10.0 * one.pull)
    assert ten.smoothness == pytest.approx(10.0 * one.smoothness)
    assert one.smoothness == pytest.approx((1.0 + one.pull) / counts.HURRY)


def test_weak_data_are_held_near_the_start():
    weak = replace(INSTANCE, budget=Budget(0.05, 1e-8))
    found, pulls = counts.Level(mean=1.0, large=2.0), []
    for instance in (INSTANCE, weak):
        rule = counts.CountsRule.of(instance, 0.1, counts.level_share(instance, 0.1))
        pulls.append(rule.coordinates(np.eye(D), found, jnp.zeros(D)).pull)
    assert 0.0 < pulls[0] < 0.1 < pulls[1]


def test_a_level_that_the_clip_has_cut_is_that_of_the_released_counts():
    rule = counts.CountsRule.of(INSTANCE, 0.1, 0.05)
    moment = np.diag([0.1, 0.1, 0.1, 0.5])  # of divided rows
    found = counts.Level(mean=0.2, large=1.0)
    with double_precision():
        for start, moved in ((-2.5, math.log(0.2) + 2.5), (-1.0, 0.0)):
            params = jnp.asarray([0.0, 0.0, 0.0, start])
            now = rule.levelled(params, moment, found, 0.0)
            assert float(now[3]) - start == pytest.approx(
                moved, abs=0.1
            )  # no spread is taken for less than a part
            drowned = rule.levelled(params, moment, found, 10.0)
            assert float(drowned[3]) - start <= 0.01 * moved
            np.testing.assert_array_equal(now[:3], 0.0)


def test_without_noise_in_the_descent_no_level_is_moved():
    quiet = counts.CountsRule.of(replace(INSTANCE, budget=Budget(1e5, 1e-8)), 0.1, 0.05)
    params = jnp.asarray([0.0, 0.0, 0.0, -2.5])
    moved = quiet.levelled(params, np.diag([0.1, 0.1, 0.1, 0.5]), counts.Level(0.2, 1.0), 0.0)
    assert float(moved[3]) == pytest.approx(-2.5, abs=2e-3)
