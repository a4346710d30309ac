"""The zCDP conversion: pinned values, inverses, and agreement with dp_accounting given dense orders."""

import dp_accounting
import hypothesis.strategies as st
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given

from privopt.ledger.curves import gaussian_epsilon, zcdp_delta, zcdp_epsilon, zcdp_rho_budget

ORDERS = 1 + np.geomspace(1e-2, 1e5, 4000)


@pytest.mark.parametrize(
    ("epsilon", "delta", "rho"), [(1, 1e-6, 0.0243559704), (0.5, 1e-5, 0.0085055306), (3, 1e-6, 0.1850698407)]
)
def test_rho_has_its_reference_values(epsilon: float, delta: float, rho: float) -> None:
    assert zcdp_rho_budget(epsilon, delta) == pytest.approx(rho, abs=1e-10)  # saddle-point reference 2.3


@pytest.mark.parametrize("rho", [1e-5, 1e-3, 0.03, 0.5, 20.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
def test_the_conversion_agrees_with_dp_accounting(rho: float, delta: float) -> None:
    accountant = RdpAccountant(ORDERS)
    accountant.compose(dp_accounting.ZCDpEvent(rho))
    theirs = accountant.get_epsilon(delta)
    assert zcdp_epsilon(rho, delta) <= theirs * (1 + 1e-12)
    assert zcdp_epsilon(rho, delta) == pytest.approx(theirs, rel=1e-4)


@given(st.floats(-4, 4), st.floats(-200, -1))
def test_the_conversions_are_inverses(log_epsilon: float, log_delta: float) -> None:
    epsilon, delta = 10**log_epsilon, 10**log_delta
    rho = zcdp_rho_budget(epsilon, delta)
    assert zcdp_epsilon(rho, delta) <= epsilon
    if zcdp_epsilon(rho, delta) > 0.999 * epsilon:  # below that total variation alone is enough
        assert zcdp_delta(rho, epsilon) == pytest.approx(delta, rel=1e-6)


@given(st.floats(-4, 1), st.floats(-12, -2))
def test_zcdp_never_says_less_than_the_gaussian_that_has_the_same_rho(
    log_rho: float, log_delta: float
) -> None:
    rho, delta = 10**log_rho, 10**log_delta
    assert zcdp_epsilon(rho, delta) >= gaussian_epsilon((2 * rho) ** 0.5, delta)


def test_the_ends_are_exact() -> None:
    assert zcdp_epsilon(0, 0) == 0
    assert zcdp_epsilon(1, 0) == np.inf
    assert zcdp_epsilon(1e-9, 0.1) == 0
    assert zcdp_delta(0, 1) == 0
    assert zcdp_delta(np.inf, 1) == 1
    assert zcdp_delta(1, np.inf) == 0
    assert zcdp_rho_budget(np.inf, 0.1) == np.inf
    assert zcdp_rho_budget(1, 0) == 0


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="rho must be at least 0"):
        zcdp_epsilon(-1, 0.1)
    with pytest.raises(ValueError, match="delta must be at least 0 and below 1"):
        zcdp_epsilon(1, 1.0)
    with pytest.raises(ValueError, match="epsilon must be at least 0"):
        zcdp_delta(1, -1)
    with pytest.raises(ValueError, match="epsilon must be positive"):
        zcdp_rho_budget(0, 0.1)
