"""Maurey's sparsification: unbiased, sparse, and as close as is stated."""

import itertools
import math

import numpy as np
import pytest

from privopt.problems.sparsification import maurey, maurey_bound

POINT = np.array([0.5, 0.3, 0.15, 0.05])
TILT = np.array([[2.0, -1.0, 0.5, 0.0], [0.5, 1.0, -2.0, 1.0], [-1.0, 0.3, 0.2, 2.0]])


def value(w):
    return float(np.mean(np.logaddexp(0.0, TILT @ w)))


def gradient(w):
    return TILT.T @ (1.0 / (1.0 + np.exp(-TILT @ w))) / len(TILT)


# Of a logistic mean along vertices with entries of at most 2: |phi''| <= 1/4, |phi'''| <= 1 / (6 sqrt 3).
CURVATURE, THIRD, SLOPE = 4.0 / 4.0, 8.0 / (6.0 * math.sqrt(3.0)), 2.0


def test_draws_are_few_and_sum_up():
    indices, counts = maurey(POINT, 7, np.random.default_rng(0))
    assert counts.sum() == 7
    assert len(indices) <= 4
    assert np.all(np.diff(indices) > 0)
    assert np.all(counts > 0)


def test_draws_have_the_point_as_their_mean():
    rng, total = np.random.default_rng(1), np.zeros(4)
    for _ in range(2000):
        indices, counts = maurey(3.0 * POINT, 4, rng)
        total[indices] += counts / 4
    np.testing.assert_allclose(total / 2000, POINT, atol=0.02)


@pytest.mark.parametrize("draws", [1, 2, 4])
def test_bounds_hold_by_enumeration(draws):
    bias = moment = 0.0
    mean_gradient = np.zeros(4)
    for drawn in itertools.product(range(4), repeat=draws):
        chance = float(np.prod(POINT[list(drawn)]))
        average = np.bincount(drawn, minlength=4) / draws
        bias += chance * (value(average) - value(POINT))
        mean_gradient += chance * (gradient(average) - gradient(POINT))
        moment += chance * np.max(np.abs(gradient(average) - gradient(POINT))) ** 2
    for third, slope in ((THIRD, math.inf), (math.inf, SLOPE), (math.inf, math.inf)):
        bound = maurey_bound(draws, 4, curvature=CURVATURE, third=third, slope=slope)
        assert abs(bias) <= bound.value
        assert np.max(np.abs(mean_gradient)) <= bound.gradient
        assert moment <= bound.gradient_moment


def test_squared_weights_take_the_place_of_one_over_the_draws():
    assert maurey_bound([0.25] * 4, 10, curvature=1.0) == maurey_bound(4, 10, curvature=1.0)
    assert maurey_bound([0.7, 0.3], 10, curvature=1.0).value == pytest.approx(2.0 * 0.58)


def test_the_second_moment_is_twice_what_is_printed():
    """Both terms of Corollary 2.12: 8 L2^2 / T^2 and 8 L1^2 (4 + log d) / T."""
    bound = maurey_bound(1000, 50, curvature=1.0, third=30.0)
    printed = 8.0 * 30.0**2 / 1000**2 + 8.0 * (4.0 + math.log(50)) / 1000
    assert bound.gradient_moment == pytest.approx(2.0 * printed)


@pytest.mark.parametrize(
    ("weights", "draws", "words"),
    [([0.0, 0.0], 1, "not all 0"), ([1.0, -1.0], 1, "at least 0"), ([1.0], 0, "draws must")],
)
def test_what_cannot_be_drawn_from_is_refused(weights, draws, words):
    with pytest.raises(ValueError, match=words):
        maurey(weights, draws, np.random.default_rng(0))
