"""The Gaussian curve: pinned values, inverses, extremes."""

import math

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from scipy.integrate import quad
from scipy.stats import norm

from privopt.ledger.amounts import Budget
from privopt.ledger.curves import (
    gaussian_budget,
    gaussian_delta,
    gaussian_deltas,
    gaussian_epsilon,
    gaussian_epsilons,
    gaussian_mu,
    part_of,
)


@pytest.mark.parametrize(
    ("epsilon", "delta", "mu"),
    [
        (0.1, 1e-6, 0.027544650244),
        (0.2, 1e-3, 0.101028446241),
        (0.5, 1e-3, 0.216913719248),
        (1, 1e-3, 0.388401248307),
        (1, 1e-6, 0.236704380663),
        (3, 1e-6, 0.647726530689),
    ],
)
def test_mu_has_its_reference_values(epsilon: float, delta: float, mu: float) -> None:
    assert gaussian_mu(epsilon, delta) == pytest.approx(mu, rel=1e-9)  # ERM reference RV11


def test_the_user_level_reference_values_hold() -> None:  # user-level reference R1
    assert gaussian_mu(1, 1e-6) == pytest.approx(0.2367043806634365, rel=1e-12)
    assert gaussian_mu(1, 1e-6) ** 2 / 2 == pytest.approx(0.028014481912630524, rel=1e-12)
    assert gaussian_mu(4, 1e-6) ** 2 / 2 == pytest.approx(0.35100364841619835, rel=1e-12)
    assert gaussian_delta(0.25, 1) == pytest.approx(2.9242721048563415e-06, rel=1e-12)


@given(st.floats(-6, 4), st.floats(-250, -0.5))
def test_the_three_functions_are_inverses(log_epsilon: float, log_delta: float) -> None:
    epsilon, delta = 10**log_epsilon, 10**log_delta
    mu = gaussian_mu(epsilon, delta)
    assert gaussian_delta(mu, epsilon) == pytest.approx(delta, rel=1e-5)
    assert gaussian_delta(mu, epsilon) <= delta * (1 + 1e-9)
    assert gaussian_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-8)


@pytest.mark.parametrize(("mu", "epsilon"), [(0.5, 0.3), (3.0, 1.0), (0.05, 0.1), (1.0, -0.7), (20.0, 5.0)])
def test_delta_is_the_hockey_stick_divergence(mu: float, epsilon: float) -> None:
    def excess(x: float) -> float:
        return max(0.0, norm.pdf(x, mu) - math.exp(epsilon) * norm.pdf(x))

    start = epsilon / mu + mu / 2  # where the densities balance
    value, _ = quad(excess, start, max(start, mu) + 12, limit=200)
    assert gaussian_delta(mu, epsilon) == pytest.approx(value, rel=1e-6)


def test_the_curve_is_monotone_to_the_last_grid_point() -> None:
    grid = np.linspace(-30, 33.5, 2001)
    deltas = gaussian_deltas(0.9, grid)
    assert np.all(np.diff(deltas) <= 0)
    assert deltas[0] == pytest.approx(1)
    assert 0 < deltas[-1] < 1e-290


def test_the_ends_of_the_curve_are_exact() -> None:
    assert gaussian_delta(0, 0) == 0
    assert gaussian_delta(math.inf, 3) == 1
    assert gaussian_delta(1, math.inf) == 0
    assert gaussian_epsilon(0, 0) == 0
    assert gaussian_epsilon(1, 0) == math.inf
    assert gaussian_epsilon(0.1, 0.5) == 0
    assert gaussian_mu(math.inf, 1e-6) == math.inf
    assert gaussian_mu(1, 0) == 0
    assert gaussian_mu(0, 1e-6) == pytest.approx(2 * norm.ppf(0.5 + 0.5e-6), rel=1e-9)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-9, 1e-4, 1.0])
@pytest.mark.parametrize("delta", [1e-20, 2.8e-6, 1e-3])
def test_the_parts_of_a_budget_however_small_compose_to_the_whole(epsilon: float, delta: float) -> None:
    whole = gaussian_mu(epsilon, delta)
    for fraction in (0.05, 0.5, 0.9999):
        part = part_of(Budget(epsilon, delta), fraction)
        assert part.epsilon > 0
        assert part.delta <= delta
        assert gaussian_mu(part.epsilon, part.delta) == pytest.approx(whole * math.sqrt(fraction), rel=1e-6)


def test_a_budget_is_found_for_any_mu_and_gives_it_back() -> None:
    for mu in np.geomspace(1e-9, 10, 500):
        budget = gaussian_budget(mu, 1e-6)
        assert 0 < budget.delta <= 1e-6
        assert gaussian_mu(budget.epsilon, budget.delta) == pytest.approx(mu, rel=1e-6)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="mu must be at least 0"):
        gaussian_delta(-1, 1)
    with pytest.raises(ValueError, match="delta must be at least 0 and below 1"):
        gaussian_epsilon(1, 1)
    with pytest.raises(ValueError, match="epsilon must be at least 0"):
        gaussian_mu(-1, 0.1)
    with pytest.raises(ValueError, match="epsilon must be a number"):
        gaussian_delta(1, math.nan)


@pytest.mark.parametrize("delta", [0.0, 1e-300, 1e-12, 1e-6, 0.3])
def test_many_epsilons_at_once_are_those_of_one_after_the_other(delta: float) -> None:
    mus = np.asarray([0.0, 1e-12, 1e-6, 0.01, 0.1, 0.5, 1.0, 1.7, 30.0, 1e3, 1e9, math.inf])
    together = gaussian_epsilons(mus, delta)
    assert together.tolist() == pytest.approx([gaussian_epsilon(mu, delta) for mu in mus], rel=1e-9)
    finite = np.isfinite(together) & (mus > 0)
    for mu, epsilon in zip(mus[finite], together[finite], strict=True):
        assert gaussian_delta(mu, epsilon) <= delta * (1 + 1e-9)
    assert gaussian_epsilons(np.zeros(0), delta).shape == (0,)
