"""The exact privacy curve of Gaussian noise.

Gaussian releases with noise multipliers z_1, z_2, ... cost together exactly what one release with
mu = sqrt(sum 1 / z_i^2) costs:

    delta(epsilon) = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu).

Source:
    Balle, Wang 2018, theorem 8; Dong, Roth, Su 2022, corollary 2.13 and section 3.
"""

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr

from privopt.ledger.amounts import Budget

_brentq = cast(Any, brentq)  # its type information is incomplete
_HALVINGS = 60
_TIGHT = 8.9e-16  # brentq's smallest allowed relative tolerance is 4 machine epsilons


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The smallest delta for which Gaussian noise of privacy `mu` is (epsilon, delta)-private.

    Args:
        mu: sensitivity over standard deviation, at least 0.
        epsilon: any real number (negative ones are the other end of the same curve).
    """
    _check_mu(mu)
    if math.isnan(epsilon):
        raise ValueError(f"epsilon must be a number, got {epsilon!r}.")
    return float(gaussian_deltas(mu, np.asarray([epsilon], dtype=np.float64))[0])


def gaussian_deltas(mu: float, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """`gaussian_delta` for many epsilons."""
    if mu == 0:
        return np.maximum(0.0, -np.expm1(np.minimum(epsilons, 0.0)))
    if math.isinf(mu):
        return np.where(np.isposinf(epsilons), 0.0, 1.0)
    # delta(-e) = 1 - e^-e + e^-e delta(e): the hockey-stick divergence of a symmetric pair.
    deltas = np.exp(_log_deltas(mu, np.abs(epsilons)))
    mirrored = -np.expm1(np.minimum(epsilons, 0.0)) + np.exp(np.minimum(epsilons, 0.0)) * deltas
    return np.where(epsilons >= 0, deltas, mirrored)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon >= 0 for which Gaussian noise of privacy `mu` is (epsilon, delta)-private.

    Args:
        mu: sensitivity over standard deviation, at least 0.
        delta: at least 0 and below 1; 0 gives infinity unless mu is 0.
    """
    _check_mu(mu)
    _check_delta(delta)
    if mu == 0 or (delta > 0 and gaussian_delta(mu, 0.0) <= delta):
        return 0.0
    if delta == 0 or math.isinf(mu):
        return math.inf
    # delta(epsilon) <= Q(epsilon / mu - mu / 2) <= delta at this epsilon.
    high = mu * (mu / 2 + math.sqrt(-2 * math.log(delta)))
    epsilon = _root(lambda e: _log_delta(mu, e) - math.log(delta), 0.0, high)
    while _log_delta(mu, epsilon) > math.log(delta):
        epsilon = max(math.nextafter(epsilon, math.inf), epsilon * (1 + _TIGHT))
    return epsilon


def gaussian_epsilons(mus: NDArray[np.float64], delta: float) -> NDArray[np.float64]:
    """`gaussian_epsilon` of many mus at one delta, within the last few digits and nowhere too small."""
    _check_mu(float(np.min(mus, initial=0.0)))
    _check_delta(delta)
    found = np.where(np.isposinf(mus) | (delta == 0), np.inf, 0.0)
    found[mus == 0] = 0.0
    if delta == 0:
        return found
    wanted = np.flatnonzero((mus > 0) & np.isfinite(mus))
    mu, aim = mus[wanted], math.log(delta)
    high = mu * (mu / 2 + math.sqrt(-2 * aim))  # as in `gaussian_epsilon`
    low = np.zeros_like(high)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = _log_deltas(mu, middle) > aim
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    found[wanted] = np.where(_log_deltas(mu, np.zeros_like(mu)) <= aim, 0.0, high)
    return found


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu for which Gaussian noise is (epsilon, delta)-private; rho = mu^2 / 2.

    Args:
        epsilon: at least 0; infinity gives infinity.
        delta: at least 0 and below 1; 0 gives 0.
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be at least 0, got {epsilon!r}.")
    _check_delta(delta)
    if math.isinf(epsilon):
        return math.inf
    if delta == 0:
        return 0.0
    log_delta = math.log(delta)

    def excess(log_mu: float) -> float:
        return _log_delta(math.exp(log_mu), epsilon) - log_delta

    low = high = max(delta, math.sqrt(epsilon) if epsilon > 1 else epsilon)
    while excess(math.log(low)) > 0:
        low /= 2
    while excess(math.log(high)) <= 0:
        high *= 2
    mu = math.exp(_root(excess, math.log(low), math.log(high)))
    while _log_delta(mu, epsilon) > log_delta:
        mu *= 1 - _TIGHT
    return mu


def part_of(budget: Budget, fraction: float) -> Budget:
    """The budget of a part that gets a fraction of the whole one's mu^2, at the same delta.

    Gaussian releases calibrated to the parts of a whole compose to exactly the whole. A part so small that no epsilon
    is needed at that delta has a smaller delta, see `gaussian_budget`.
    """
    if not budget.is_private:
        return budget
    mu = gaussian_mu(budget.epsilon, budget.delta) * math.sqrt(fraction)
    return gaussian_budget(mu, budget.delta)


def gaussian_budget(mu: float, delta: float) -> Budget:
    """The (epsilon, delta) of Gaussian noise of privacy `mu`; where epsilon would be 0, at a smaller delta."""
    delta = min(delta, gaussian_delta(mu, mu))
    return Budget(gaussian_epsilon(mu, delta), delta)


def _log_delta(mu: float, epsilon: float) -> float:
    return float(_log_deltas(mu, np.asarray([epsilon], dtype=np.float64))[0])


def _log_deltas(mu: float | NDArray[np.float64], epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """log delta(epsilon) for epsilon >= 0 and 0 < mu < infinity, without cancellation down to 1e-300 and beyond.

    `mu` is one for all epsilons, or one for each.

    With x = epsilon / mu - mu / 2 and y = x + mu, e^epsilon phi(y) = phi(x), so delta = phi(x) (M(x) - M(y)), where
    M is Mills' ratio. Where x is far below 0 that overflows and the difference of the two probabilities is harmless.
    """
    x = epsilons / mu - mu / 2
    y = epsilons / mu + mu / 2
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        gap = math.sqrt(math.pi / 2) * (erfcx(x / math.sqrt(2)) - erfcx(y / math.sqrt(2)))
        by_mills = -(x**2) / 2 - math.log(2 * math.pi) / 2 + np.log(gap)
        upper = log_ndtr(-x)
        by_difference = upper + np.log(-np.expm1(np.minimum(epsilons + log_ndtr(-y) - upper, 0.0)))
        logs = np.where(x > -5, by_mills, by_difference)
    return np.where(np.isposinf(epsilons), -np.inf, np.minimum(logs, 0.0))


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    return float(_brentq(function, low, high, xtol=1e-300, rtol=_TIGHT, maxiter=500))


def _check_mu(mu: float) -> None:
    if not mu >= 0:
        raise ValueError(
            f"mu must be at least 0, got {mu!r}: it is the sensitivity over the standard deviation."
        )


def _check_delta(delta: float) -> None:
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be at least 0 and below 1, got {delta!r}.")
