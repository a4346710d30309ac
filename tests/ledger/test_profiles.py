"""Curves on a grid: convex in e^eps, above what they bound, mirrored."""

import numpy as np
import pytest

from privopt.ledger.accounting import pure_profile, shifted_gaussian_profile, zcdp_profile
from privopt.ledger.curves import gaussian_deltas, zcdp_deltas
from privopt.ledger.privacy_losses import ShiftedCurve

INTERVAL = 1e-3


def grid_of(deltas: np.ndarray) -> np.ndarray:
    reach = len(deltas) // 2
    return np.arange(-reach, reach + 1) * INTERVAL


def assert_is_a_symmetric_convex_curve(deltas: np.ndarray) -> None:
    at = grid_of(deltas)
    slopes = np.diff(deltas) / np.diff(np.exp(at))
    # A grid point beside a joint may lie on the next piece: the hull then moves by less than one interval's slope.
    assert np.all(np.diff(slopes) >= -2e-3)
    assert np.all(np.diff(deltas) <= 0)
    mirrored = -np.expm1(at) + np.exp(at) * deltas[::-1]
    assert np.allclose(deltas, mirrored, atol=1e-9)


@pytest.mark.parametrize(("mu", "shift"), [(0.3, 0.0), (0.3, 0.02), (1.5, 0.7), (0.05, 0.5)])
def test_the_shifted_curve_is_above_the_gaussian_and_meets_its_bound(mu: float, shift: float) -> None:
    deltas = shifted_gaussian_profile(ShiftedCurve(mu, shift), INTERVAL)
    at = grid_of(deltas)
    assert_is_a_symmetric_convex_curve(deltas)
    assert np.all(deltas >= gaussian_deltas(mu, at) - 1e-15)
    outside = at >= shift
    assert np.allclose(deltas[outside], gaussian_deltas(mu, at[outside] - shift), rtol=1e-9, atol=0)


@pytest.mark.parametrize(("mu", "shift"), [(0.3, 0.0), (0.3, 0.02), (1.5, 0.7), (0.05, 0.5)])
def test_the_folded_curve_is_above_the_one_signed_one(mu: float, shift: float) -> None:
    folded = shifted_gaussian_profile(ShiftedCurve(mu, shift, True), INTERVAL)
    assert_is_a_symmetric_convex_curve(folded)
    assert np.all(folded >= shifted_gaussian_profile(ShiftedCurve(mu, shift), INTERVAL) * (1 - 1e-12))


@pytest.mark.parametrize("rho", [1e-4, 0.02, 1.0])
def test_the_zcdp_curve_is_above_the_gaussian_and_below_the_conversion(rho: float) -> None:
    deltas = zcdp_profile(rho, INTERVAL)
    at = grid_of(deltas)
    assert_is_a_symmetric_convex_curve(deltas)
    assert np.all(deltas >= gaussian_deltas((2 * rho) ** 0.5, at) - 1e-15)
    above = at >= 0
    assert np.all(deltas[above] <= zcdp_deltas(rho, at[above]) * (1 + 1e-9) + 1e-15)


@pytest.mark.parametrize("epsilon", [1e-4, 0.2, 0.20037, 5.0, 90.0])
def test_the_pure_curve_is_that_of_randomized_response(epsilon: float) -> None:
    points, deltas = pure_profile(epsilon, INTERVAL)
    assert 2 <= len(points) <= 4
    assert abs(points[-1] * INTERVAL - epsilon) <= INTERVAL
    assert deltas[-1] == 0
    expected = [
        max(0.0, -np.expm1(at), -np.expm1(at - epsilon) / (1 + np.exp(-epsilon))) for at in points * INTERVAL
    ]
    assert np.allclose(deltas, expected, rtol=1e-12, atol=1e-15)
