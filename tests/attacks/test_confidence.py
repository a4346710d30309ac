import math

import numpy as np
import pytest

from privopt.attacks.confidence import (
    chance_of_guesses,
    deviation_bounds,
    mean_is_above_one,
    one_run_epsilon,
)


def test_the_chance_of_guesses_is_binomial_without_delta_and_grows_with_it():
    # Three right of three, each with probability e / (1 + e).
    assert chance_of_guesses(10, 3, 3, 1.0, 0.0) == pytest.approx((math.e / (1 + math.e)) ** 3)
    assert chance_of_guesses(10, 3, 0, 1.0, 0.0) == 1.0
    chances = [chance_of_guesses(100, 50, 45, 1.0, delta) for delta in (0.0, 1e-6, 1e-3, 0.5)]
    assert chances == sorted(chances)
    assert chances[-1] > chances[0]


def test_guesses_refute_an_epsilon_only_where_they_are_better_than_it_allows():
    assert one_run_epsilon(200, 200, 100, 1e-6) == 0.0
    assert one_run_epsilon(200, 200, 200, 0.0) == pytest.approx(-math.log(1e-3 ** (-1 / 200) - 1), rel=1e-6)
    found = [one_run_epsilon(200, 200, right, 1e-6) for right in (130, 150, 170, 200)]
    assert found == sorted(found)


def test_guesses_of_randomised_response_stay_below_its_epsilon():
    generator = np.random.default_rng(0)
    epsilon, coins = 1.0, 400
    right = generator.binomial(coins, math.e / (1 + math.e), 2000)
    refuted = {
        int(count): one_run_epsilon(coins, coins, int(count), 0.0, confidence=0.95) > epsilon
        for count in np.unique(right)
    }
    assert np.mean([refuted[count] for count in right.tolist()]) <= 0.06


def test_the_deviation_of_normal_draws_is_between_its_bounds():
    draws = 1.3 * np.random.default_rng(1).standard_normal(2000)
    low, high = deviation_bounds(float(draws @ draws), draws.size)
    assert 1.15 < low < 1.3 < high < 1.45


def test_a_mean_is_told_from_one_only_where_it_is_above():
    assert mean_is_above_one(np.full(20, 1.6))
    assert not mean_is_above_one(np.full(20, 1.0))
    assert not mean_is_above_one(np.full(5, 1.6))
    generator = np.random.default_rng(2)
    alarms = [mean_is_above_one(generator.exponential(size=30), 0.95) for _ in range(2000)]
    assert np.mean(alarms) <= 0.05
