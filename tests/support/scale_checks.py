"""One statistical judgement for every mechanism: the right scale is accepted, 2/3 and 3/2 of it are rejected."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import stats

WRONG_SCALES = (2 / 3, 3 / 2)
LEVEL = 1e-4  # a fixed seed is judged once; 1e-4 leaves no luck in choosing it


def coordinate_p_values(
    draws: NDArray[np.float64], cdf: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Kolmogorov-Smirnov p-values, one a coordinate, of draws of shape (times, ...)."""
    columns = draws.reshape(len(draws), -1).T
    return np.array([stats.kstest(column, cdf).pvalue for column in columns])


def frequency_p_value(counts: NDArray[np.int64], probabilities: NDArray[np.float64]) -> float:
    """A chi-square p-value; cells that expect fewer than 8 draws are merged."""
    expected = probabilities * counts.sum()
    rare = expected < 8
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] < 8:
        observed = np.append(observed[:-2], observed[-2:].sum())
        expected = np.append(expected[:-2], expected[-2:].sum())
    return float(stats.chisquare(observed, expected).pvalue)


def softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """Probabilities proportional to exp(logits)."""
    masses = np.exp(logits - logits.max())
    return masses / masses.sum()
