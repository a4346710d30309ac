"""How much of the public n the units weigh: 1, unless the counts say otherwise."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

CLEARLY = 4.0  # standard deviations
SMALLEST = 1e-3


def total_weight(marginals: Sequence[NDArray[np.float64]], noises: Sequence[float]) -> float:
    """The total weight of the units over n, from released marginals.

    Fewer units than the public n, and users whose averages weigh less than 1, make every marginal sum to less than 1.
    The sums' mean by precision is used where it is clearly not 1, since it is noisy and 1 is mostly right.

    Args:
        marginals: released marginals, as shares of n.
        noises: the standard deviation of a cell of each.
    """
    variances = [len(one) * noise**2 for one, noise in zip(marginals, noises, strict=True)]
    if not variances:
        return 1.0
    if min(variances) == 0.0:
        return max(float(np.sum(marginals[int(np.argmin(variances))])), SMALLEST)
    precision = math.fsum(1.0 / one for one in variances)
    mean = (
        math.fsum(float(np.sum(one)) / var for one, var in zip(marginals, variances, strict=True)) / precision
    )
    if abs(mean - 1.0) <= CLEARLY / math.sqrt(precision):
        return 1.0
    return min(max(mean, SMALLEST), 1.0)
