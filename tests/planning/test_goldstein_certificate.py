"""Certificates of Goldstein stationarity: the formulas, how often they hold, and what they say."""

import math

import numpy as np
import pytest
from scipy import stats

from privopt.planning.goldstein_certificate import (
    Certified,
    certificate_picture,
    free_certificate,
    free_findings,
    radius_of,
    released_certificate,
    released_findings,
)

RELEASED = np.array([0.01, -0.02, 0.015, 0.0, 0.005])


def test_the_reference_values_come_out():
    assert released_certificate(RELEASED, 0.004) == pytest.approx(0.0328975053, abs=5e-11)
    assert free_certificate(RELEASED, 0.02, steps=20) == pytest.approx(0.0422659785, abs=5e-11)
    assert free_certificate(RELEASED, np.full(20, 0.02)) == free_certificate(RELEASED, 0.02, steps=20)


def test_a_release_that_noise_alone_explains_bounds_nothing_from_below():
    assert released_certificate([0.0], 1.0) == 0.0
    assert released_certificate(np.full(3, 0.1), 1.0) == 0.0
    assert released_certificate(np.full(3, 0.1), 0.0) == pytest.approx(np.sqrt(0.03))
    assert free_certificate([0.3, 0.4], 0.0, steps=4) == pytest.approx(0.5)


@pytest.mark.parametrize("dimensions", [1, 7, 300])
def test_the_two_formulas_of_a_release_meet_where_one_hands_over_to_the_other(dimensions):
    direction = np.ones(dimensions) / np.sqrt(dimensions)
    hands_over = 1e4
    below, above = (released_certificate(direction * hands_over * k, 1.0) for k in (0.999999, 1.000001))
    assert below < above
    assert above - below == pytest.approx(2e-6 * hands_over, abs=1e-4 * dimensions)
    assert released_certificate(direction * 1e12, 1.0) == pytest.approx(1e12)
    assert released_certificate([np.inf], 1.0) == math.inf


def coverage(length, dimensions, noise):
    """How often the certificate of a noisy vector of this length holds, over 4000 draws of standard noise."""
    truth = np.eye(dimensions)[0]
    lengths = np.linspace(0.0, length + 8.0, 120)  # of what is seen, on which alone the bound depends
    bounds = [released_certificate(seen * truth, noise) for seen in lengths]
    drawn = length * truth + np.random.default_rng(7).normal(size=(4000, dimensions))
    return np.mean(np.interp(np.linalg.norm(drawn, axis=1), lengths, bounds) >= length)


@pytest.mark.parametrize(("length", "dimensions"), [(2.0, 1), (5.0, 6)])
def test_a_released_certificate_holds_as_often_as_it_says_and_no_more(length, dimensions):
    assert abs(coverage(length, dimensions, 1.0) - 0.95) < 3.0 * np.sqrt(0.05 * 0.95 / 4000)
    assert coverage(length, dimensions, 0.8) < 0.94


def stopped_sums(steps, threshold, draws, generator):
    """|N_1 + .. + N_M| / sqrt(M) where noise of scale 1 is switched off as soon as the sum is beyond the threshold."""
    total = np.zeros(draws)
    for _ in range(steps):
        total += np.where(np.abs(total) > threshold * np.sqrt(steps), 0.0, generator.normal(size=draws))
    return np.abs(total) / np.sqrt(steps)


def test_scales_that_follow_the_noise_need_the_correction_and_it_is_enough():
    steps, draws = 50, 40_000
    plain, corrected = (free_certificate([0.0], 1.0, steps=1, moving=moves) for moves in (False, True))
    generator = np.random.default_rng(3)
    assert np.mean(stopped_sums(steps, plain, draws, generator) > plain) > 0.065
    assert np.mean(stopped_sums(steps, corrected, draws, generator) > corrected) < 0.05


def test_scales_that_differ_count_as_moving_unless_they_were_fixed_beforehand():
    scales = np.array([0.01, 0.03])
    quantile = stats.chi2.ppf
    norm = np.linalg.norm(RELEASED)
    assert free_certificate(RELEASED, scales) == pytest.approx(norm + 0.03 * np.sqrt(quantile(0.975, 5) / 2))
    fixed = free_certificate(RELEASED, scales, moving=False)
    assert fixed == pytest.approx(norm + np.sqrt(5e-4 * quantile(0.95, 5) / 2))
    equal = free_certificate(RELEASED, [0.03, 0.03], moving=True)
    assert equal == pytest.approx(free_certificate(RELEASED, scales))


def test_the_radius_reaches_the_farthest_point_and_the_smoothing_beyond():
    points = np.array([[1.0, 1.0], [4.0, 5.0], [0.0, 1.0]])
    assert radius_of([1.0, 1.0], points, 0.25) == pytest.approx(5.25)
    assert radius_of([1.0, 1.0], points) >= 5.0
    assert radius_of(np.zeros((1, 2)), np.ones((3, 1, 2))) == pytest.approx(np.sqrt(2.0))


def test_findings_say_what_was_bounded_and_what_was_not():
    points, released = np.array([[0.0, 0.1], [0.2, 0.1]]), np.array([[0.3, 0.0], [0.1, 0.0]])
    about = Certified(point=np.array([0.1, 0.1]), points=points, clip=0.5, oracle="smoothed", smoothing=0.05)
    found = free_findings(about, released, 0.01)
    assert list(found) == ["certificate_radius", "certificate_estimate", "certificate"]
    assert found["certificate_radius"].value == pytest.approx(0.15)
    assert found["certificate_estimate"].value == pytest.approx(0.2)
    assert found["certificate"].value == free_certificate([0.2, 0.0], 0.01, steps=2)
    said = found["certificate"].meaning
    for part in ("within 0.15 of", "shortened to 0.5", "smoothed over balls of radius 0.05", "0.95"):
        assert part in said
    sure = Certified(point=np.zeros(2), points=points, clip=0.5, never_clipped=True, unit="user")
    said = released_findings(sure, [0.2, 0.0], 0.01)["certificate"].meaning
    assert "clip" not in said
    assert "users' gradients" in said
    penalised = Certified(point=np.zeros(2), points=points, clip=0.5, penalised=True)
    assert "improves the objective faster" in penalised.meaning
    assert penalised.what.endswith("where it is longer, plus the penalty's")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"oracle": "values"}, "random directions"),
        ({"oracle": "jitter"}, "random point of its ball"),
        ({"every_unit": False}, "sample of the units"),
    ],
)
def test_what_is_an_estimate_is_called_one(changes, why):
    about = Certified(point=np.zeros(2), points=np.ones((2, 2)), clip=1.0, **changes)
    found = free_findings(about, np.ones((2, 2)), 0.1)
    assert "certificate" not in found
    assert why in found["certificate_approximate"].meaning


def test_the_picture_has_a_bound_above_every_block():
    released = np.cos(np.arange(14.0)).reshape(7, 2)
    picture = certificate_picture(released, 0.1, window=2)
    seen, bound = picture.series
    assert seen.xs == (2.0, 4.0, 6.0)
    assert seen.ys[1] == pytest.approx(np.linalg.norm(released[2:4].mean(axis=0)))
    assert bound.ys[1] == free_certificate(released[2:4].mean(axis=0), 0.1, steps=2, confidence=1 - 0.05 / 3)
    assert certificate_picture(list(released), np.full(7, 0.1), window=2) == picture


@pytest.mark.parametrize("confidence", [0.3, 1.0, math.nan])
def test_a_confidence_that_is_none_is_refused(confidence):
    with pytest.raises(ValueError, match=r"confidence must lie in \[0.5, 1\)"):
        released_certificate(RELEASED, 0.1, confidence=confidence)
    with pytest.raises(ValueError, match=r"confidence must lie in \[0.5, 1\)"):
        free_certificate(RELEASED, 0.1, steps=2, confidence=confidence)


def test_noise_of_another_number_of_steps_is_refused():
    with pytest.raises(ValueError, match="one for each of 3 steps, got 2"):
        free_certificate(RELEASED, [0.1, 0.2], steps=3)
