"""Gaussian releases together with a few objective perturbations, by direct summation: no Fourier transform, any delta.

Let the objective perturbations have dominating pairs (P_i, Q_i) with privacy losses L_i under P_i, and let the Gaussian
releases together have the pair (N(mu, 1), N(0, 1)). Under adaptive composition the products dominate the whole (Zhu,
Dong, Wang 2022), and integrating over the Gaussian part first gives

    delta(eps) = E GaussianDelta(mu, eps - L_1 - L_2 - ...) + P(some L_i is infinite).

For fixed eps the expectation is that of F(X) under Q_i, where X = dP_i / dQ_i and F(x) = integral (x p - e^eps q)_+
over everything else, convex in x. Moving the mass of an interval [x_j, x_j+1] to its two ends, with its P_i and its Q_i
mass kept, replaces F by its chord and therefore only raises delta: a discrete pair that dominates (P_i, Q_i). The same
holds for a second move onto a common grid, on which losses of several events are added by plain convolution, and for
moving mass to a larger loss, infinity included. Where the loss is mu t + constant with t normal, [z, z + w] gives

    to its upper end    integral phi(t) (1 - e^(-mu (t - z))) dt / (1 - e^(-mu w)),
    to its lower end    integral phi(t) (e^(mu (z + w - t)) - 1) dt / (e^(mu w) - 1),

positive smooth integrands, for which six Gauss-Legendre nodes are exact to the last digits. Every sum has positive
terms only, so the relative error of floating point stays far below the 1e-9 that is added.

Source:
    Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022, algorithm 1 (connecting the dots); direct summation is ours.
"""

import functools
import math
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import ndtr

from privopt.ledger.composition import Alternative
from privopt.ledger.events import ShiftedGaussianEvent
from privopt.ledger.gaussian_dp import gaussian_deltas, gaussian_epsilon
from privopt.ledger.shifted import ShiftedCurve

_brentq = cast(Any, brentq)  # its type information is incomplete
MOST_SHIFTED = 4
REACH = 37.5  # normal quantiles; what is beyond has mass 1e-307 and counts as an infinite loss
CELL, LARGEST_STEP, MOST_CELLS = 0.01, 0.05, 20_000
MOST_COMMON_POINTS = 3000  # on either side of 0
UNDERFLOW = 1e-300
ROUNDING = 1 + 1e-9
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(6)


class Losses(NamedTuple):
    """A discrete privacy loss under the first distribution of a pair."""

    values: NDArray[np.float64]
    masses: NDArray[np.float64]
    infinite: float


def shifted_events(way: Alternative) -> tuple[ShiftedGaussianEvent, ...] | None:
    """The objective perturbations of a tree, None if there are none, too many, or other leaves as well."""
    found: list[ShiftedGaussianEvent] = []
    for leaf, count in way.counted.items():
        if not isinstance(leaf, ShiftedGaussianEvent) or count > MOST_SHIFTED:
            return None
        found += [leaf] * count
    return tuple(found) if 0 < len(found) <= MOST_SHIFTED else None


def single_shifted(way: Alternative) -> ShiftedGaussianEvent | None:
    """The one objective perturbation of a tree that holds nothing else."""
    events = shifted_events(way) or ()
    return events[0] if len(events) == 1 and way.mu_squared == 0 else None


def direct_delta(events: tuple[ShiftedGaussianEvent, ...], mu: float, epsilon: float) -> float:
    """An upper bound of the delta of objective perturbations and Gaussian releases.

    Args:
        events: the objective perturbations.
        mu: privacy of all Gaussian releases together, at least 0.
        epsilon: at least 0.
    """
    losses = composed_losses(events)
    rest = gaussian_deltas(mu, epsilon - losses.values)
    return min(1.0, ROUNDING * (float(losses.masses @ rest) + losses.infinite))


def direct_epsilon(events: tuple[ShiftedGaussianEvent, ...], mu: float, delta: float) -> float:
    """The smallest epsilon >= 0 whose `direct_delta` is at most `delta`.

    Args:
        events: the objective perturbations.
        mu: privacy of all Gaussian releases together, at least 0.
        delta: at least 0 and below 1; below 1e-299 it gives infinity.
    """
    if direct_delta(events, mu, 0.0) <= delta:
        return 0.0
    if delta <= 10 * UNDERFLOW:
        return math.inf

    @functools.cache
    def excess(epsilon: float) -> float:
        return math.log(direct_delta(events, mu, epsilon) / delta)

    squares = math.fsum([mu**2, *(event.mu**2 for event in events)])
    low = high = math.fsum(event.shift for event in events) + gaussian_epsilon(math.sqrt(squares), delta)
    step = 1e-3 * high
    while excess(high) > 0:
        low, high, step = high, high + step, 4 * step
    while excess(low) <= 0:
        low, high, step = max(0.0, low - step), low, 4 * step
    found = float(_brentq(excess, low, high, xtol=1e-300, rtol=1e-12, maxiter=200))
    while excess(found) > 0:
        found *= 1 + 1e-13
    return found


@functools.lru_cache(maxsize=64)
def composed_losses(events: tuple[ShiftedGaussianEvent, ...]) -> Losses:
    """A discrete loss that dominates the composition of objective perturbations."""
    single = [_losses(ShiftedCurve.of(event)) for event in events]
    if len(single) == 1:
        return single[0]
    furthest = max(float(losses.values.max()) for losses in single)
    interval = max(furthest / MOST_COMMON_POINTS, min(CELL * event.mu for event in events))
    masses = np.ones(1)
    for losses in single:
        masses = np.convolve(masses, _on_grid(losses, interval))
    half_width = len(masses) // 2
    values = np.arange(-half_width, half_width + 1, dtype=np.float64) * interval
    return Losses(values, masses, UNDERFLOW + math.fsum(losses.infinite for losses in single))


def _losses(curve: ShiftedCurve) -> Losses:
    """The loss of one dominating pair, moved to the ends of small cells."""
    low = max(curve.start, -REACH)
    width = min(CELL, LARGEST_STEP / curve.mu)
    cells = min(math.ceil((REACH - low) / width), MOST_CELLS)
    edges = np.linspace(low, REACH, cells + 1)
    to_lower, to_upper = _split_cells(curve, edges)
    masses = np.zeros(cells + 1)
    masses[:-1] += to_lower
    masses[1:] += to_upper
    above = curve.shift + curve.mu * (edges + curve.mu / 2)
    above[0] = curve.joint if low == curve.start else above[0]
    masses[0] += curve.joint_mass
    with np.errstate(under="ignore"):
        mirrored = masses * np.exp(-above)
    return Losses(
        values=np.concatenate((-above[::-1], above)),
        masses=np.concatenate((mirrored[::-1], masses)),
        infinite=4 * curve.weight * float(ndtr(-REACH)),
    )


def _split_cells(
    curve: ShiftedCurve, edges: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The mass that each cell gives to its lower and to its upper edge."""
    width = float(edges[1] - edges[0])
    inside = width * (_NODES + 1) / 2
    with np.errstate(under="ignore"):
        density = np.exp(-((edges[:-1, None] + inside) ** 2) / 2) / math.sqrt(2 * math.pi)
    parts = curve.weight * density * (_WEIGHTS * width / 2)
    step = curve.mu * width
    if step > 1:  # six nodes would not do: all of it goes to the larger loss
        return np.zeros(len(parts)), parts.sum(axis=1)
    upper = (parts * (np.expm1(-curve.mu * inside) / math.expm1(-step))).sum(axis=1)
    lower = (parts * (np.expm1(curve.mu * (width - inside)) / math.expm1(step))).sum(axis=1)
    return lower, upper


def _on_grid(losses: Losses, interval: float) -> NDArray[np.float64]:
    """The same loss moved to the multiples of `interval`, the middle entry being 0."""
    index = np.floor(losses.values / interval).astype(np.int64)
    offset = np.clip(losses.values - index * interval, 0.0, interval)
    share = np.expm1(-offset) / math.expm1(-interval)
    half_width = int(np.max(np.abs(index))) + 1
    masses = np.zeros(2 * half_width + 1)
    np.add.at(masses, index + half_width, losses.masses * (1 - share))
    np.add.at(masses, index + half_width + 1, losses.masses * share)
    return masses
