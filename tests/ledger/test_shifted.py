"""The curve of objective perturbation: its closed formulas, its dominating pair, and the two-dimensional worst case."""

import itertools
import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray
from scipy.stats import norm

from privopt.ledger.curves import gaussian_delta
from privopt.ledger.privacy_losses import ShiftedCurve

CURVES = [
    ShiftedCurve(mu, shift, two_signed)
    for mu in (0.05, 0.3, 2.0)
    for shift in (0.0, 0.01, 0.5)
    for two_signed in (False, True)
]


def folded_delta(mu: float, epsilon: float) -> float:
    """E (1 - e^(epsilon - mu |Z| - mu^2 / 2))_+ as the paper has it, unshifted."""
    reduced = epsilon - mu**2 / 2
    if reduced < 0:
        return 1 - 2 * math.exp(epsilon) * norm.sf(mu)
    return 2 * (norm.sf(reduced / mu) - math.exp(epsilon) * norm.sf(reduced / mu + mu))


def test_the_folded_curve_has_its_reference_values() -> None:  # ERM reference RV12b
    shift = math.log(1 + 0.25 / 10)
    curve = ShiftedCurve(1 / 5, shift, two_signed=True)
    assert folded_delta(1 / 5, 0.5 - shift) == pytest.approx(1.474791096e-3, rel=1e-9)
    assert folded_delta(1 / 5, 0.01 - shift) == pytest.approx(1.707925838e-1, rel=1e-9)
    assert curve.delta(0.5) == pytest.approx(1.474791096e-3, rel=1e-9)
    assert curve.delta(0.01) <= 1.707925838e-1


@pytest.mark.parametrize(("factor", "bound"), [(1, 3.892e-2), (2, 0.2713)])
def test_the_one_signed_curve_has_its_reference_values(
    factor: int, bound: float
) -> None:  # ERM reference 6.1
    curve = ShiftedCurve(factor / 1.5, math.log(1 + 0.25 / 3))
    assert curve.delta(1) == pytest.approx(bound, rel=2e-4)


@pytest.mark.parametrize("curve", CURVES)
def test_the_curve_is_its_bound_beyond_the_joint_and_convex_throughout(curve: ShiftedCurve) -> None:
    at = np.linspace(-3, 3, 3001)
    deltas = curve.deltas(at)
    bound = folded_delta if curve.two_signed else gaussian_delta
    for epsilon in (0.0, 0.01, 0.3, 1.0, 3.0):
        limit = bound(curve.mu, epsilon - curve.shift)
        if epsilon >= curve.joint:
            assert curve.delta(epsilon) == pytest.approx(limit, rel=1e-9, abs=1e-15)
        elif epsilon >= curve.shift:
            assert curve.delta(epsilon) <= limit * (1 + 1e-12)
    assert np.all(np.diff(np.diff(deltas) / np.diff(np.exp(at))) >= -1e-9)
    assert np.all(deltas >= np.maximum(0, -np.expm1(at)) - 1e-15)
    assert np.allclose(deltas, -np.expm1(at) + np.exp(at) * deltas[::-1], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("curve", CURVES)
def test_the_pair_has_mass_one_and_gives_the_curve(curve: ShiftedCurve) -> None:
    z = np.linspace(curve.start, curve.start + 14, 200_001)
    losses = curve.shift + curve.mu * (z + curve.mu / 2)
    density = curve.weight * norm.pdf(z)
    joint = curve.joint_mass
    masses = np.trapezoid(density * (1 + np.exp(-losses)), z) + joint * (1 + math.exp(-curve.joint))
    assert masses == pytest.approx(1, abs=1e-8)
    for epsilon in (0.0, curve.joint / 2, curve.joint + curve.mu):
        gained = np.trapezoid(density * np.maximum(0, 1 - np.exp(epsilon - losses)), z)
        gained += joint * max(0.0, 1 - math.exp(epsilon - curve.joint))
        assert gained == pytest.approx(curve.delta(epsilon), rel=1e-6, abs=1e-12)
    for order in (1.5, 2.0, 7.0):
        moment = np.trapezoid(density * (np.exp((order - 1) * losses) + np.exp(-order * losses)), z)
        moment += joint * (math.exp((order - 1) * curve.joint) + math.exp(-order * curve.joint))
        if order * curve.mu < 5:
            found = curve.renyi(np.asarray([order]))[0]
            assert found == pytest.approx(math.log(moment) / (order - 1), rel=1e-6, abs=1e-7)


@given(st.floats(1e-4, 1e4), st.floats(0, 3), st.booleans(), st.floats(-250, -0.001), st.floats(0.0, 1.0))
def test_epsilon_inverts_delta(
    mu: float, shift: float, two_signed: bool, log_delta: float, fraction: float
) -> None:
    curve, delta = ShiftedCurve(mu, shift, two_signed), 10**log_delta
    epsilon = curve.epsilon(delta)
    assert math.isfinite(epsilon)
    assert curve.delta(epsilon) <= delta * (1 + 1e-7) + 1e-15
    if epsilon > 0:
        assert curve.delta(epsilon * (1 - 1e-6)) >= delta * (1 - 1e-7) - 1e-15
    assert curve.epsilon(delta * fraction) >= epsilon


@given(st.floats(1e-3, 30), st.floats(0, 2), st.floats(0, 30))
def test_two_signs_cost_at_least_as_much_as_one_and_at_most_twice(
    mu: float, shift: float, above: float
) -> None:
    one, two = (
        ShiftedCurve(mu, shift).delta(shift + above),
        ShiftedCurve(mu, shift, True).delta(shift + above),
    )
    assert one * (1 - 1e-9) - 1e-15 <= two <= 2 * one * (1 + 1e-9) + 1e-15


def least_density_mass(centres: list[tuple[float, NDArray[np.float64]]]) -> float:
    """The integral of the least of the densities factor * N(centre, I) over the plane, on a fine grid."""
    reach = max(float(np.abs(centre).max()) for _, centre in centres)
    axis = np.linspace(-reach - 8.5, reach + 8.5, 501)
    x, y = np.meshgrid(axis, axis)
    logs = [log_factor - ((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / 2 for log_factor, centre in centres]
    return float(np.exp(np.min(logs, axis=0)).sum() * (axis[1] - axis[0]) ** 2 / (2 * math.pi))


@pytest.mark.at_once("0.05-2.0", "0.5-0.3", "1.5-8.0", "4.0-0.0")
@pytest.mark.parametrize(("k", "excess"), [*itertools.product([0.05, 0.5, 1.5, 4.0], [0.0, 0.3, 2.0, 8.0])])
def test_aligned_rows_are_the_worst_case_of_replacing_one(k: float, excess: float) -> None:
    aligned = gaussian_delta(2 * k, excess)
    tilted = []
    for half_angle in np.linspace(0, math.pi / 2, 13):
        first = k * np.asarray([math.cos(half_angle), math.sin(half_angle)])
        second = k * np.asarray([math.cos(half_angle), -math.sin(half_angle)])
        centres = [(0.0, np.zeros(2)), *((excess, v) for v in (first, second, first + second))]
        tilted.append(1 - least_density_mass(centres))
    assert max(tilted) <= aligned + 2e-4
    assert tilted[0] == pytest.approx(aligned, abs=2e-4)
    assert tilted[-1] == pytest.approx(folded_delta(k, excess), abs=1e-3)
