"""The exact privacy curve of Gaussian noise.

Gaussian releases with noise multipliers z_1, z_2, ... cost together exactly what one release with
mu = sqrt(sum 1 / z_i^2) costs:

    delta(epsilon) = Phi(mu / 2 - epsilon / mu) - e^epsilon Phi(-mu / 2 - epsilon / mu).

Source:
    Balle, Wang 2018, theorem 8; Dong, Roth, Su 2022, corollary 2.13 and section 3.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr

from privopt.ledger.amounts import Budget

_brentq: Any = brentq  # its type information is incomplete
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
    check_delta(delta)
    if mu == 0 or (delta > 0 and gaussian_delta(mu, 0.0) <= delta):
        return 0.0
    if delta == 0 or math.isinf(mu):
        return math.inf
    # delta(epsilon) <= Q(epsilon / mu - mu / 2) <= delta at this epsilon.
    high = mu * (mu / 2 + math.sqrt(-2 * math.log(delta)))
    epsilon = root(lambda e: _log_delta(mu, e) - math.log(delta), 0.0, high)
    while _log_delta(mu, epsilon) > math.log(delta):
        epsilon = max(math.nextafter(epsilon, math.inf), epsilon * (1 + _TIGHT))
    return epsilon


def gaussian_epsilons(mus: NDArray[np.float64], delta: float) -> NDArray[np.float64]:
    """`gaussian_epsilon` of many mus at one delta, within the last few digits and nowhere too small."""
    _check_mu(float(np.min(mus, initial=0.0)))
    check_delta(delta)
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


@functools.lru_cache(maxsize=256)
def gaussian_mu(epsilon: float, delta: float) -> float:
    """The largest mu for which Gaussian noise is (epsilon, delta)-private; rho = mu^2 / 2.

    Args:
        epsilon: at least 0; infinity gives infinity.
        delta: at least 0 and below 1; 0 gives 0.
    """
    check_epsilon(epsilon)
    check_delta(delta)
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
    mu = math.exp(root(excess, math.log(low), math.log(high)))
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


def root(
    function: Callable[[float], float], low: float, high: float, *, xtol: float = 1e-300, rtol: float = _TIGHT
) -> float:
    """Where a function between two signs is 0, by Brent's method to an absolute and a relative tolerance."""
    return float(_brentq(function, low, high, xtol=xtol, rtol=rtol, maxiter=500))


def check_delta(delta: float) -> None:
    """Refuse what is no delta."""
    if not 0 <= delta < 1:
        raise ValueError(f"delta must be at least 0 and below 1, got {delta!r}.")


def check_epsilon(epsilon: float) -> None:
    """Refuse what is no epsilon of a curve."""
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be at least 0, got {epsilon!r}.")


def _check_mu(mu: float) -> None:
    if not mu >= 0:
        raise ValueError(
            f"mu must be at least 0, got {mu!r}: it is the sensitivity over the standard deviation."
        )


# ------------------------------------------------------------------------------------------------------------
# Zero-concentrated differential privacy: the conversion to (epsilon, delta) and back, in closed formulas.
# Source:
#     Bun, Steinke 2016 (definition, composition); Canonne, Kamath, Steinke 2020, proposition 12 (the conversion).


def zcdp_epsilon(rho: float, delta: float) -> float:
    """The smallest epsilon that rho-zCDP is known to guarantee at `delta`.

    It is min over alpha > 1 of rho alpha + log(1 - 1/alpha) - log(delta alpha) / (alpha - 1). The derivative in alpha
    is rho + log(delta alpha) / (alpha - 1)^2, which changes its sign once.

    Args:
        rho: at least 0.
        delta: at least 0 and below 1; 0 gives infinity unless rho is 0.
    """
    _check_rho(rho)
    check_delta(delta)
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
    check_epsilon(epsilon)
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
    check_delta(delta)
    if math.isinf(epsilon):
        return math.inf
    if delta == 0:
        return 0.0
    low = high = min(epsilon, epsilon**2 / (-4 * math.log(delta)))
    while zcdp_epsilon(low, delta) > epsilon:
        low /= 2
    while zcdp_epsilon(high, delta) <= epsilon:
        high *= 2
    rho = root(lambda r: zcdp_epsilon(r, delta) - epsilon, low, high)
    while zcdp_epsilon(rho, delta) > epsilon:
        rho *= 1 - 1e-15
    return rho


def _increasing_root(function: Callable[[float], float], high: float) -> float:
    low = high - 1
    while function(low) > 0:
        low -= 1 + abs(low)
    while function(high) < 0:
        high += 1 + abs(high)
    return root(function, low, high, xtol=1e-14)


def _check_rho(rho: float) -> None:
    if not rho >= 0:
        raise ValueError(f"rho must be at least 0, got {rho!r}.")


# ---- Renyi divergences of mixtures of two Gaussians, by a quadrature whose error is proved -----------------
# With P and Q mixtures of N(m, s^2) on the line, the integral of f = P^a Q^(1-a) is approximated by the trapezoidal
# rule h sum f(x_k). For f analytic in the strip |Im x| <= b its relative error is at most 2 K / (e^(2 pi b / h) - 1),
# where the integral of |f(x +- ib)| is at most K times that of f (Trefethen, Weideman 2014, theorem 5.1). Here
#
#     |P(x + ib)| <= e^(b^2 / 2 s^2) P(x),
#     |Q(x + ib)| >= e^(b^2 / 2 s^2) Q(x) cos(b r / (2 s^2)),    r = distance between the two means of Q,
#
# (the second since |u + v e^(i t)| >= (u + v) cos(t / 2) for u, v >= 0), so K = e^(b^2 / 2 s^2) cos(b r / (2
# s^2))^(1-a).
#
# Tails: left of the leftmost mean p of P, P <= N(p, s^2), and Q >= w N(q, s^2) with q the leftmost mean of Q and w its
# weight, so f <= w^(1-a) e^(a (a-1) (p-q)^2 / 2 s^2) times the density of N(a p + (1-a) q, s^2); likewise on the right.
# The sum stops where the mass of these bounds is 1e-20, which is added, and the integral is at least 1.
#
# A pair that dominates a mechanism in every hockey-stick divergence dominates it in every Renyi divergence too: those
# are mixtures of hockey-stick divergences (Zhu, Dong, Wang 2022).


MOST_POINTS = 60_000
LOG_TAIL = math.log(1e-20)
LOG_ALIAS = 45.0  # the step is chosen so that e^(2 pi b / h) = e^45
ROUNDING = 1e-15


class Mixture(NamedTuple):
    """(1 - weight) N(first, s^2) + weight N(second, s^2), the first mean being the one nearer to the other mixture."""

    first: float
    second: float
    weight: float

    def log_ratio(self, points: NDArray[np.float64], stddev: float) -> NDArray[np.float64]:
        """log of the density over that of N(0, stddev^2)."""
        parts = [
            math.log(weight) + mean * (points - mean / 2) / stddev**2
            for mean, weight in ((self.first, 1 - self.weight), (self.second, self.weight))
            if weight > 0
        ]
        return parts[0] if len(parts) == 1 else np.logaddexp(parts[0], parts[1])

    def outermost(self, side: int) -> tuple[float, float]:
        """The leftmost (side -1) or rightmost (side 1) mean, and its weight."""
        means = [(self.first, 1 - self.weight), (self.second, self.weight)]
        return max((pair for pair in means if pair[1] > 0), key=lambda pair: side * pair[0])


def poisson_replace_one(rate: float, stddev: float, orders: tuple[float, ...]) -> NDArray[np.float64]:
    """Renyi bounds of a Gaussian on a Poisson sample under replace-one.

    The worst pair replaces a record by its negative: (1 - q) N(0, s^2) + q N(-1, s^2) against its mirror image. With x
    along the new vector and the old one leaning to y < 0, the best rejection region is {y <= Y(x)}, so turning the new
    vector away from the old one makes the two outputs more distinguishable; once opposite, the region is a half-line
    and longer vectors only help.

    Args:
        rate: q, above 0 and below 1.
        stddev: s, the noise over the norm of one record (half the sensitivity under replace-one).
        orders: each above 1.
    """
    return _divergences(Mixture(0.0, -1.0, rate), Mixture(0.0, 1.0, rate), stddev, orders)


def mixture_add_or_remove(
    stddev: float, rate: float, sampled_ratio: float, orders: tuple[float, ...]
) -> NDArray[np.float64]:
    """Renyi bounds of one noise on a sum over everybody plus one over a Poisson sample: the larger of two directions.

    Args:
        stddev: s, the noise over the sensitivity of the sum over everybody.
        rate: q, above 0 and at most 1.
        sampled_ratio: the sensitivity of the sampled sum over that of the sum over everybody.
        orders: each above 1.
    """
    absent = Mixture(0.0, 0.0, 0.0)
    present = Mixture(1.0, 1.0 + sampled_ratio, rate)
    return np.maximum(
        _divergences(absent, present, stddev, orders), _divergences(present, absent, stddev, orders)
    )


@functools.lru_cache(maxsize=256)
def _divergences(p: Mixture, q: Mixture, stddev: float, orders: tuple[float, ...]) -> NDArray[np.float64]:
    return np.asarray([_divergence(p, q, stddev, order) for order in orders])


def _divergence(p: Mixture, q: Mixture, stddev: float, order: float) -> float:
    """An upper bound of the Renyi divergence of one order, infinity where it would take too many points."""
    turn = 2 * min(1.0, 1 / math.sqrt(order))  # b r / s^2
    apart = abs(q.second - q.first) if q.weight > 0 else 0.0
    strip = min(4 * stddev, turn * stddev**2 / apart if apart > 0 else math.inf)
    step = 2 * math.pi * strip / LOG_ALIAS
    low, high = (_tail(p, q, stddev, order, side) for side in (-1, 1))
    if (high - low) / step > MOST_POINTS:
        return math.inf
    points = np.arange(math.floor(low / step), math.ceil(high / step) + 1, dtype=np.float64) * step
    above, below = p.log_ratio(points, stddev), q.log_ratio(points, stddev)
    logs = order * above - (order - 1) * below - points**2 / (2 * stddev**2)
    largest = float(np.max(logs))
    total = (
        largest
        + math.log(float(np.sum(np.exp(logs - largest))))
        + math.log(step / (stddev * math.sqrt(2 * math.pi)))
    )
    alias = strip**2 / (2 * stddev**2) - (order - 1) * math.log(math.cos(strip * apart / (2 * stddev**2)))
    error = 2 * math.exp(alias - LOG_ALIAS) / -math.expm1(-LOG_ALIAS)
    counts = logs > largest - 60
    size = float(np.max((order * np.abs(above) + (order - 1) * np.abs(below))[counts]))
    upper = np.logaddexp(total, LOG_TAIL + math.log(2)) - math.log1p(-error) + ROUNDING * (10 + size)
    return max(0.0, float(upper)) / (order - 1)


def _tail(p: Mixture, q: Mixture, stddev: float, order: float, side: int) -> float:
    """The point from which on the bound of the integrand has a mass of at most 1e-20."""
    mean_p, _ = p.outermost(side)
    mean_q, weight = q.outermost(side)
    centre = order * mean_p + (1 - order) * mean_q
    log_factor = order * (order - 1) * (mean_p - mean_q) ** 2 / (2 * stddev**2) - (order - 1) * math.log(
        weight
    )
    end = centre + side * stddev * math.sqrt(2 * (log_factor - LOG_TAIL))
    return side * max(side * end, side * mean_p)
