"""Zero-concentrated differential privacy: the conversion to (epsilon, delta) and back, in closed formulas.

Source:
    Bun, Steinke 2016 (definition, composition); Canonne, Kamath, Steinke 2020, proposition 12 (the conversion).
"""

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

_brentq = cast(Any, brentq)  # its type information is incomplete


def zcdp_epsilon(rho: float, delta: float) -> float:
    """The smallest epsilon that rho-zCDP is known to guarantee at `delta`.

    It is min over alpha > 1 of rho alpha + log(1 - 1/alpha) - log(delta alpha) / (alpha - 1). The derivative in alpha
    is rho + log(delta alpha) / (alpha - 1)^2, which changes its sign once.

    Args:
        rho: at least 0.
        delta: at least 0 and below 1; 0 gives infinity unless rho is 0.
    """
    _check_rho(rho)
    _check_delta(delta)
    if rho == 0:
        return 0.0
    if delta == 0 or math.isinf(rho):
        return math.inf
    if math.sqrt(-math.expm1(-rho)) <= delta:  # the total variation distance (Bretagnolle, Huber 1979)
        return 0.0
    log_delta = math.log(delta)
    # alpha = 1 + e^u: the root of rho e^2u + log(1 + e^u) = -log(delta), increasing in u.
    high = 1.0 + max(0.0, math.log(-log_delta / rho) / 2)
    u = _increasing_root(lambda u: rho * math.exp(2 * u) + math.log1p(math.exp(u)) + log_delta, high)
    excess = math.exp(u)
    alpha = 1 + excess
    epsilon = rho * alpha + math.log(excess) - math.log(alpha) - (log_delta + math.log(alpha)) / excess
    return max(0.0, epsilon)


def zcdp_delta(rho: float, epsilon: float) -> float:
    """The smallest delta that rho-zCDP is known to guarantee at `epsilon` >= 0."""
    _check_rho(rho)
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be at least 0, got {epsilon!r}.")
    return float(zcdp_deltas(rho, np.asarray([epsilon], dtype=np.float64))[0])


def zcdp_deltas(rho: float, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """`zcdp_delta` for many epsilons >= 0: any order alpha gives a bound; here it is solved for by bisection."""
    if rho == 0:
        return np.zeros_like(epsilons)
    if math.isinf(rho):
        return np.where(np.isposinf(epsilons), 0.0, 1.0)
    finite = np.minimum(epsilons, 1e300)
    # d/d alpha of the exponent is rho (2 alpha - 1) - epsilon + log(1 - 1/alpha), increasing in alpha = 1 + e^u.
    low, high = np.full_like(finite, -700.0), np.log(2 + 2 / rho + finite / rho)
    for _ in range(60):
        middle = (low + high) / 2
        excess = np.exp(middle)
        rising = rho * (1 + 2 * excess) - finite + middle - np.log1p(excess) > 0
        low, high = np.where(rising, low, middle), np.where(rising, middle, high)
    excess = np.exp(high)
    with np.errstate(over="ignore"):
        exponent = excess * (rho * (1 + excess) - finite + high - np.log1p(excess)) - np.log1p(excess)
    deltas = np.minimum(np.exp(np.minimum(exponent, 0.0)), math.sqrt(-math.expm1(-rho)))
    return np.where(np.isposinf(epsilons), 0.0, deltas)


def zcdp_rho_budget(epsilon: float, delta: float) -> float:
    """The largest rho whose `zcdp_epsilon` at `delta` is at most `epsilon` (the lower end of a bisection).

    Args:
        epsilon: positive; infinity gives infinity.
        delta: at least 0 and below 1; 0 gives 0.
    """
    if not epsilon > 0:
        raise ValueError(f"epsilon must be positive, got {epsilon!r}.")
    _check_delta(delta)
    if math.isinf(epsilon):
        return math.inf
    if delta == 0:
        return 0.0
    low = high = min(epsilon, epsilon**2 / (-4 * math.log(delta)))
    while zcdp_epsilon(low, delta) > epsilon:
        low /= 2
    while zcdp_epsilon(high, delta) <= epsilon:
        high *= 2
    rho = float(
        _brentq(lambda r: zcdp_epsilon(r, delta) - epsilon, low, high, xtol=1e-300, rtol=8.9e-16, maxiter=500)
    )
    while zcdp_epsilon(rho, delta) > epsilon:
        rho *= 1 - 1e-15
    return rho


def _increasing_root(function: Callable[[float], float], high: float) -> float:
    low = high - 1
    while function(low) > 0:
        low -= 1 + abs(low)
    while function(high) < 0:
        high += 1 + abs(high)
    return float(_brentq(function, low, high, xtol=1e-14, rtol=8.9e-16, maxiter=500))


def _check_rho(rho: float) -> None:
    if not rho >= 0:
        raise ValueError(f"rho must be at least 0, got {rho!r}.")


def _check_delta(delta: float) -> None:
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be at least 0 and below 1, got {delta!r}.")
