"""The variance of a running estimate, the gain that makes it smallest, and the bound on its error."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privopt.planning.gradient_certificate import SCALES, EstimateError, certificate, mixed
from privopt.problems.growth import KL

SIZES = st.floats(min_value=1e-6, max_value=1e6)


def estimated(gains, stddevs):
    error = EstimateError()
    for gain, stddev in zip(gains, stddevs, strict=True):
        error = error.after(gain, stddev)
    return error


@given(st.lists(st.tuples(st.floats(min_value=0.0, max_value=1.0), SIZES), min_size=1, max_size=20))
def test_the_variance_is_the_sum_of_all_noises_times_the_squares_of_the_later_gains(steps):
    gains, stddevs = (np.array(column) for column in zip(*steps, strict=True))
    gains[0] = 0.0
    later = np.append(np.cumprod(gains[:0:-1])[::-1], 1.0)
    np.testing.assert_allclose(
        estimated(gains.tolist(), stddevs.tolist()).variance, np.sum((later * stddevs) ** 2), rtol=1e-9
    )


@given(SIZES, SIZES, st.floats(min_value=0.0, max_value=2.0))
def test_no_gain_makes_the_next_variance_smaller_than_the_optimal_one(variance, fresh, part):
    change = part * fresh
    error = EstimateError().after(0.0, math.sqrt(variance))
    best = error.optimal_gain(fresh, change)
    assert 0.0 <= best <= 1.0
    assert best == 0.0 or change < fresh
    least = error.after(best, mixed(best, fresh, change)).variance
    others = [error.after(gain, mixed(gain, fresh, change)).variance for gain in np.linspace(0.0, 1.0, 21)]
    assert least <= min(others) * (1.0 + 1e-9)


def test_equal_gradients_average_to_one_gradient_bought_with_the_whole_budget():
    """No distance, no change: V after T releases of noise s sqrt(T) is s^2."""
    error = EstimateError()
    for _ in range(50):
        gain = error.optimal_gain(math.sqrt(50.0), 0.0)
        error = error.after(gain, mixed(gain, math.sqrt(50.0), 0.0))
    np.testing.assert_allclose(error.variance, 1.0, rtol=1e-12)


def test_the_first_release_and_every_restart_count_from_anew():
    error = estimated([0.0, 0.5, 0.0, 0.25, 0.5], [1.0, 2.0, 3.0, 1.0, 1.0])
    assert error.restarts == 1
    assert error.start_variance == 9.0
    np.testing.assert_allclose(error.log_gains, math.log(0.125))


@pytest.mark.parametrize("parameters", [1, 7])
def test_the_bound_is_the_least_over_the_scales_of_the_mixture(parameters):
    error = estimated([0.0, 0.5, 0.0, 0.25, 0.5], [1.0, 2.0, 3.0, 1.0, 1.0])
    scales = 2.0**SCALES * 0.125**2 * 9.0
    unions = (SCALES + 1) * (SCALES + 2) * 2 * 3
    v = error.variance
    squares = (v + scales) * (parameters * np.log(1.0 + v / scales) + 2.0 * np.log(unions / 0.05))
    np.testing.assert_allclose(error.proved_bound(parameters, 0.05), math.sqrt(np.min(squares)), rtol=1e-12)
    assert error.approximate_bound(parameters, 0.05) < error.proved_bound(parameters, 0.05)


def test_without_noise_the_error_is_zero_and_extreme_gains_give_a_number():
    silent = estimated([0.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    assert silent.proved_bound(3, 0.1) == silent.approximate_bound(3, 0.1) == 0.0
    assert silent.optimal_gain(0.0, 0.0) == 0.0
    faint = estimated([0.0] + [1e-200] * 5, [1.0] * 6)
    assert math.isfinite(faint.proved_bound(3, 0.1))
    assert EstimateError().proved_bound(3, 0.1) == math.inf


def gains_that_follow_the_noise(run, d, steps, rng):
    """Gains and scales chosen to keep a large error and to hide it behind a small variance; 0 now and then."""
    error, drift, worst = EstimateError(), np.zeros(d), 0.0
    for t in range(steps):
        large = float(drift @ drift) > d * error.variance if t else False
        gain = 0.0 if t == 0 or (run % 3 == 0 and not large and t % 7 == 0) else (0.999 if large else 0.6)
        stddev = 0.02 if large else 1.0
        error = error.after(gain, stddev)
        drift = gain * drift + stddev * rng.normal(size=d)
        worst = max(worst, math.sqrt(float(drift @ drift)) / error.proved_bound(d, 0.1))
    return worst


@pytest.mark.parametrize("d", [1, 4])
def test_the_proved_bound_covers_all_steps_even_if_the_gains_look_at_the_noise(d):
    rng = np.random.default_rng(5)
    worst = [gains_that_follow_the_noise(run, d, 40, rng) for run in range(150)]
    assert np.mean(np.array(worst) > 1.0) <= 0.1
    assert max(worst) > 0.5  # and it is not idle


def found(clips_changes=False, never_clipped=False, growth=None):
    return certificate(
        point=np.zeros(3), estimate=np.array([3.0, 0.0, 4.0]), slope=5.0, error=estimated([0.0], [0.1]), failure=0.1,
        clips_changes=clips_changes, never_clipped=never_clipped, growth=growth, of="gradient of the objective",
    )  # fmt: skip


def test_clipped_changes_prove_nothing():
    assert set(found(clips_changes=True)) == {
        "gradient_estimate", "estimate_variance", "estimated_point", "gradient_norm_estimate"
    }  # fmt: skip


def test_the_certificate_adds_the_error_and_a_known_growth_turns_it_into_an_excess():
    growth = KL(gamma=2.0, kappa=1.5)
    with_growth = found(growth=growth)
    bound = 5.0 + estimated([0.0], [0.1]).proved_bound(3, 0.1)
    assert with_growth["gradient_norm_bound"].value == bound
    assert with_growth["excess_bound"].value == growth.excess_at(bound)
    assert "excess_bound" not in found()
    assert "if no gradient" in found()["gradient_norm_bound"].meaning
    assert "as by the loss's formula" in found(never_clipped=True)["gradient_norm_bound"].meaning
