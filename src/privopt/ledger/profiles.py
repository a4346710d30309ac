"""Upper bounds of privacy curves on a grid, ready for connecting the dots.

A curve delta(eps) is a convex function of e^eps, eps running over the whole line, with delta(-eps) = 1 - e^-eps +
e^-eps delta(eps) for a relation that is symmetric. Any convex upper bound is the curve of a pair of distributions that
dominates the mechanism (Zhu, Dong, Wang 2022), and the piecewise linear function through its grid points is another.

Source:
    Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022, algorithm 1.
"""

import math

import numpy as np
from numpy.typing import NDArray

from privopt.ledger.shifted import ShiftedCurve
from privopt.ledger.zcdp import zcdp_deltas, zcdp_epsilon

SMALLEST_MASS = 1e-15


def shifted_gaussian_profile(
    mu: float, shift: float, interval: float, *, two_signed: bool = False
) -> NDArray[np.float64]:
    """The convex curve of an objective perturbation, see `privopt.ledger.shifted`.

    Args:
        mu: sensitivity over standard deviation.
        shift: at least 0.
        interval: distance of the grid points, the middle one being 0.
        two_signed: whether the derivative of the loss may have either sign.
    """
    half_width = math.ceil((shift + mu * (mu / 2 + 8.5)) / interval)
    return _tidy(ShiftedCurve(mu, shift, two_signed).deltas(_grid(half_width, interval)))


def zcdp_profile(rho: float, interval: float) -> NDArray[np.float64]:
    """The greatest convex function of e^eps below the delta(eps) of rho-zCDP and its mirror, on a symmetric grid."""
    half_width = math.ceil(zcdp_epsilon(rho, SMALLEST_MASS) / interval)
    at = _grid(half_width, interval)
    above = zcdp_deltas(rho, at[half_width:])
    below = at[:half_width]
    deltas = np.concatenate((-np.expm1(below) + np.exp(below) * above[:0:-1], above))
    return _tidy(_convex_minorant(np.exp(at), deltas))


def pure_profile(epsilon: float, interval: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The curve of randomized response, which dominates every pure mechanism, at the grid points beside its two bends.

    Args:
        epsilon: the pure privacy parameter.
        interval: distance of the grid points.

    Returns:
        The points in multiples of `interval`, increasing, and the curve there.

    Source:
        Kairouz, Oh, Viswanath 2015.
    """
    lowest, highest = math.floor(epsilon / interval), math.ceil(epsilon / interval)
    points = np.unique(np.asarray([-highest, -lowest, lowest, highest], dtype=np.int64))
    at = points * interval
    # (e^epsilon - e^at) / (1 + e^epsilon), written so that nothing overflows.
    chord = (1 - np.exp(at - epsilon)) / (1 + math.exp(-epsilon))
    return points, _tidy(np.maximum(chord, -np.expm1(np.minimum(at, 0.0))))


def _grid(half_width: int, interval: float) -> NDArray[np.float64]:
    return np.arange(-half_width, half_width + 1).astype(np.float64) * interval


def _convex_minorant(points: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The lower convex hull of a function on increasing points, evaluated at the same points."""
    hull: list[int] = []
    x, y = points.tolist(), values.tolist()
    for i in range(len(x)):
        while len(hull) > 1:
            a, b = hull[-2], hull[-1]
            if (y[b] - y[a]) * (x[i] - x[b]) < (y[i] - y[b]) * (x[b] - x[a]):
                break
            hull.pop()
        hull.append(i)
    return np.interp(points, points[hull], values[hull]).astype(np.float64)


def _tidy(deltas: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.minimum.accumulate(np.clip(deltas, 0.0, 1.0))
