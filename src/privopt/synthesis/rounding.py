"""Counts of a given total that are close to given weights: what a sample of rows is drawn by."""

import numpy as np
from numpy.typing import NDArray


def systematic_counts(
    weights: NDArray[np.float64], total: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Whole numbers that sum to `total` and have the expectations `total * weights / sum(weights)`.

    Every count is its expectation rounded up or down, and so is the sum of every run of neighbours.

    Args:
        weights: at least 0, with a positive sum.
        total: at least 0.
        rng: public randomness; one uniform is drawn.
    Source:
        Madow 1949 (systematic sampling); Carpenter, Clifford, Fearnhead 1999 (as a resampler of low variance).
    """
    ends = np.cumsum(weights)
    marks = np.floor(ends * (total / ends[-1]) + rng.random())
    marks[np.nonzero(weights)[0][-1] :] = total  # the last cell that has weight takes what rounding leaves
    return np.diff(np.minimum(marks, total), prepend=0.0).astype(np.int64)
