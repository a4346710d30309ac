"""Renyi divergences of mixtures of two Gaussians, by a quadrature whose error is proved.

With P and Q mixtures of N(m, s^2) on the line, the integral of f = P^a Q^(1-a) is approximated by the trapezoidal rule
h sum f(x_k). For f analytic in the strip |Im x| <= b its relative error is at most 2 K / (e^(2 pi b / h) - 1), where
the integral of |f(x +- ib)| is at most K times that of f (Trefethen, Weideman 2014, theorem 5.1). Here

    |P(x + ib)| <= e^(b^2 / 2 s^2) P(x),
    |Q(x + ib)| >= e^(b^2 / 2 s^2) Q(x) cos(b r / (2 s^2)),    r = distance between the two means of Q,

(the second since |u + v e^(i t)| >= (u + v) cos(t / 2) for u, v >= 0), so K = e^(b^2 / 2 s^2) cos(b r / (2 s^2))^(1-a).

Tails: left of the leftmost mean p of P, P <= N(p, s^2), and Q >= w N(q, s^2) with q the leftmost mean of Q and w its
weight, so f <= w^(1-a) e^(a (a-1) (p-q)^2 / 2 s^2) times the density of N(a p + (1-a) q, s^2); likewise on the right.
The sum stops where the mass of these bounds is 1e-20, which is added, and the integral is at least 1.

A pair that dominates a mechanism in every hockey-stick divergence dominates it in every Renyi divergence too: those are
mixtures of hockey-stick divergences (Zhu, Dong, Wang 2022).
"""

import functools
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from privopt.ledger.events import MixtureEvent

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


def mixture_add_or_remove(event: MixtureEvent, orders: tuple[float, ...]) -> NDArray[np.float64]:
    """Renyi bounds of one noise on a sum over everybody plus one over a Poisson sample: the larger of two directions.

    Args:
        event: the release.
        orders: each above 1.
    """
    absent = Mixture(0.0, 0.0, 0.0)
    present = Mixture(1.0, 1.0 + event.sampled_ratio, event.rate)
    return np.maximum(
        _divergences(absent, present, event.noise_multiplier, orders),
        _divergences(present, absent, event.noise_multiplier, orders),
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
