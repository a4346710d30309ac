"""The mean square length of rows with a constant column, read off the second moment of the divided rows.

Rows a = (x, 1) enter the second moment as a / |a|, so that it needs no bound on |a|. What is wanted is the moment of
rows as they are, about k times that, k = 1 + L^2 with L the length of a typical x. The entry of the constant column,
E[1 / |a|^2], tells k at no further price. With d columns that are even over [-1, 1], S = |a|^2 has a relative variance
v = 0.8 Q^2 / (d S^2), Q = S - 1. To second order

    E[1 / |a|^2] = (1 + v) / S,    L = (sqrt(S) (1 - v / 8) - (1 + 3 v / 8) / sqrt(S)) / (1 - (1 + v) / S).

L weighs the features by least squares: it is the L for which `w.a / |a|` is closest to `w.a / L`. The noise is public:
L is the exponential of the posterior mean of log L, under a prior flat in log S between the shortest row and the
longest. Utility only.

Source:
    Ours.
"""

import math

import numpy as np
from numpy.typing import NDArray

EVEN = 0.8  # variance of the square of a number that is even over [-1, 1], over its squared mean
GRID = 4_000  # values of S that are weighed, evenly spaced by their logarithms
FARTHEST, LEAST_NOISE = 1e6, 1e-12  # of the entry and its noise, so that no square overflows
SPREAD = 0.3  # how far the share of usable units may be below 1
LEAST_SHARE, SURE = (
    0.95,
    2.0,
)  # a share that is not below this by so many standard deviations is 1, as is expected


def square_length(moment: NDArray[np.float64], noise: float, constant: int, *, all_expected: bool) -> float:
    """k, at least 1: what turns the second moment of divided rows into that of rows as they are.

    Args:
        moment: of the divided rows, released, (d, d).
        noise: standard deviation of its entries.
        constant: the number of the column of ones.
        all_expected: see `usable_share`.
    """
    share = usable_share(moment, noise, all_expected=all_expected)
    columns = max(len(moment) - 1, 1)
    return 1.0 + length_shown(float(moment[constant, constant]) / share, noise / share, columns=columns) ** 2


def usable_share(moment: NDArray[np.float64], noise: float, *, all_expected: bool) -> float:
    """The share of usable units, between 0.1 and 1: each adds 1 to the trace of the moment of divided rows.

    Args:
        moment: of the divided rows, released, (d, d).
        noise: standard deviation of its entries.
        all_expected: whether n is the number of units that there are, so that all are usable unless the trace says
            surely that they are not; else n may be above it.
    """
    trace, variance = float(np.trace(moment)), len(moment) * noise**2
    if not math.isfinite(trace) or (all_expected and trace + SURE * math.sqrt(variance) >= LEAST_SHARE):
        return 1.0
    share = 1.0 + SPREAD**2 / (SPREAD**2 + variance) * (trace - 1.0)
    return min(max(share, 1.0 - 3.0 * SPREAD), 1.0)


def length_shown(square: float, noise: float, *, columns: int) -> float:
    """L.

    Args:
        square: E[1 / |a|^2], noise included.
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
    square, noise = min(max(square, -FARTHEST), FARTHEST), max(noise, LEAST_NOISE) if noise > 0.0 else 0.0
    if noise == 0.0:
        return math.exp(float(np.interp(-square, -squares, logarithms)))
    misfit = 0.5 * ((squares - square) / noise) ** 2
    weights = np.exp(np.min(misfit) - misfit)
    return math.exp(float(np.sum(weights * logarithms) / np.sum(weights)))
