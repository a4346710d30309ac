"""Sizes of disjoint batches, by what a unit of each would be charged: the fewer later draws, the fewer units."""

import math
from collections.abc import Sequence

FEWEST = 2  # units of a batch: a mean over fewer hides nobody


def balanced_sizes(needs: Sequence[float], n: int) -> tuple[int, ...]:
    """B_r = ceil(factor * needs_r) for the largest factor with which all batches fit into n units.

    Args:
        needs: of each batch, at least 0; the price of a unit is proportional to needs_r / B_r.
        n: the public number of units.
    Raises:
        ValueError: there are more batches than pairs of units.
    """
    if FEWEST * len(needs) > n:
        raise ValueError(
            f"{len(needs)} batches of at least {FEWEST} units need more than n = {n} units: take fewer steps, or full "
            "batches."
        )

    def sizes(factor: float) -> tuple[int, ...]:
        return tuple(max(FEWEST, math.ceil(factor * need)) for need in needs)

    low, high = 0.0, n / max(max(needs, default=1.0), 1e-300)
    if sum(sizes(high)) <= n:
        return sizes(high)
    for _ in range(200):
        middle = (low + high) / 2.0
        low, high = (middle, high) if sum(sizes(middle)) <= n else (low, middle)
    return sizes(low)
