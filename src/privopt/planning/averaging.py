"""How much each iterate counts in an average: public weights, as the ratios of a running mean."""

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Average = Literal["last", "tail", "weighted", "settled", "eased", "late"]


def mixing_ratios(
    average: Average, steps: int, precision: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """How far the running average moves to each new iterate: weight over the sum of weights so far.

    "last" keeps the last iterate, "tail" the mean of the last ceil(steps / 2); the others weigh all of them: "weighted"
    with (t + 1)^2, "settled" with min(t + 1, 8)^3 (for well-conditioned problems), "eased" with min(t + 1, k)^3, k an
    eighth of the steps and at least 8, "late" with (t + 1)^5.

    Args:
        average: which weights.
        steps: how many iterates there are.
        precision: one over the noise variance of each step, by which the weights are multiplied; None if all are equal.
    Returns:
        Shape (steps,); 1 where the average starts anew.
    """
    t = np.arange(steps)
    if average == "last":
        return np.ones(steps)
    if average == "tail":
        weights = (t >= steps - math.ceil(steps / 2)).astype(np.float64)
    elif average == "weighted":
        weights = (t + 1.0) ** 2
    elif average == "settled":
        weights = np.minimum(t + 1.0, 8.0) ** 3
    elif average == "eased":
        weights = np.minimum(t + 1.0, max(8.0, steps / 8.0)) ** 3
    elif average == "late":
        weights = (t + 1.0) ** 5
    else:
        raise ValueError(
            f"average must be 'last', 'tail', 'weighted', 'settled', 'eased' or 'late', got {average!r}."
        )
    if precision is not None:
        weights = weights * precision
    sums = np.cumsum(weights)
    return np.where(weights > 0, weights / np.where(sums > 0, sums, 1.0), 1.0)
