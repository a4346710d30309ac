"""The length of a typical row, read off the second moment that a fit has released anyway.

A classifier is fitted on rows a / s, a = (x, c) the scaled features with the constant c, and s = |a|. It finds w such
that w.a / s is about beta.a, the score of rows as they are: least squares over the weights of the features gives

    beta = w / L,    L = E[|x|^2 / s] / E[|x|^2 / s^2].

The last entry of the released second moment is E[c^2 / s^2], plus noise. With d columns that are even over [-1, 1],
s^2 / c^2 has mean S = 1 + Q and variance v S^2 with v = 0.8 Q^2 / (d S^2). To second order

    E[c^2 / s^2] = (1 + v) / S,    L / c = (sqrt(S) (1 - v / 8) - (1 + 3 v / 8) / sqrt(S)) / (1 - (1 + v) / S).

For many columns v vanishes, and L is one over the root of that entry. The noise is public: L is the exponential of the
posterior mean of log L, under a prior flat in log S between the shortest row, c, and the longest.
"""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from privopt.curator.transcript import Release
from privopt.public import Public, Relation
from privopt.queries.second_moment import SecondMoment, packed_length

EVEN = 0.8  # variance of the square of a number that is even over [-1, 1], over its squared mean
GRID = 4_000  # values of S that are weighed, evenly spaced by their logarithms
SPREAD = 0.3  # how far the share of units with a record may be below 1, where it is not public


def typical_length(releases: Iterable[Release], public: Public, constant: float) -> float | None:
    """L, in units of scaled rows; None where no second moment of all columns was released. Post-processing.

    Args:
        releases: of the fit; the latest second moment counts.
        public: what was public about the rows a / s, their last entry that of the constant.
        constant: c.
    """
    released, noise = None, 0.0
    for release in releases:
        values = release.released
        if release.name != SecondMoment.__name__ or values is None or release.scale is None:
            continue
        if values.shape[-1] == packed_length(public.d):
            released, noise = np.asarray(values[-1], np.float64), float(release.scale[-1])
    if released is None:
        return None
    square = float(released[-1]) / _presence(released, noise, public)
    return constant * length_shown(square, noise, columns=public.d - 1)


def length_shown(square: float, noise: float, *, columns: int) -> float:
    """L / c.

    Args:
        square: E[c^2 / s^2], noise included.
        noise: its standard deviation.
        columns: d, at least 1, the constant left out.
    """
    size = np.geomspace(1.0 + 1e-6, 1.0 + columns, GRID)  # S
    spread = EVEN * (size - 1.0) ** 2 / (columns * size**2)  # v
    squares = (1.0 + spread) / size
    root = np.sqrt(size)
    lengths = (root * (1.0 - spread / 8.0) - (1.0 + 3.0 * spread / 8.0) / root) / (1.0 - squares)
    logarithms = np.log(np.maximum(lengths, 1.0))
    if not (math.isfinite(square) and math.isfinite(noise)):
        return math.exp(float(np.mean(logarithms)))
    if noise <= 0.0:
        return math.exp(float(np.interp(-square, -squares, logarithms)))
    misfit = 0.5 * ((squares - square) / noise) ** 2
    weights = np.exp(np.min(misfit) - misfit)
    return math.exp(float(np.sum(weights * logarithms) / np.sum(weights)))


def _presence(released: NDArray[np.float64], noise: float, public: Public) -> float:
    """The share of units that have a row at all, as the trace shows it: rows of length 1 add 1 each."""
    if public.relation is Relation.REPLACE_ONE and not public.by_user:
        return 1.0
    diagonal = np.cumsum([0, *range(public.d, 1, -1)])  # its places in the packed triangle
    weight = SPREAD**2 / (SPREAD**2 + public.d * noise**2)
    share = 1.0 + weight * (float(np.sum(released[diagonal])) - 1.0)
    return min(max(share, 1.0 - 3.0 * SPREAD), 1.0) if math.isfinite(share) else 1.0
