"""Units in parts of at most `PART_UNITS`: the unit of summation, so that a sum's rounding does not grow with n."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from privopt.data.units import Units
from privopt.engine.exact_sum import ExactSum
from privopt.engine.rounding import PART_UNITS
from privopt.queries.base import MeanQuery


class PartEngine(Protocol):
    """What sums over one part."""

    def part_sum(
        self, query: MeanQuery, private_draw: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """The sum over the part's units, or over those at some positions, counted from the part's first."""
        ...


def parts_of(units: Units) -> list[Units]:
    """The units as parts, in order: ranges of positions that follow from the number of units alone."""
    count = units.private_count
    if count <= PART_UNITS:
        return [units]
    ends = [*range(0, count, PART_UNITS), count]
    return [units.part(start, stop) for start, stop in itertools.pairwise(ends)]


def sum_over_parts(
    parts: Sequence[PartEngine], query: MeanQuery, private_draw: NDArray[np.int64] | None
) -> NDArray[np.float64]:
    """The sum over all units, or over some: of one part as it is, of several by an `ExactSum`.

    Args:
        parts: engines of `parts_of` the units.
        query: what to compute.
        private_draw: positions of the units that take part, in any order; None for all.
    Privacy:
        How a unit's contribution is rounded follows from its part, and adding the parts forgets their order. A part of
        which no unit is drawn is not asked, which shows in running time only.
    """
    if len(parts) == 1:
        return parts[0].part_sum(query, private_draw)
    if private_draw is None:
        return total_of_parts((part.part_sum(query) for part in parts), query.radius())
    private_shares = _shares(private_draw, len(parts))
    private_asked = [k for k, private_share in enumerate(private_shares) if len(private_share)] or [0]
    return total_of_parts(
        (parts[k].part_sum(query, private_shares[k]) for k in private_asked), query.radius()
    )


def total_of_parts(private_sums: Iterable[NDArray[np.float64]], radius: Any) -> NDArray[np.float64]:
    """Add the sums of parts, at least one, whose contributions are within the radius; their order does not show."""
    radius = float(radius)
    total: ExactSum | None = None
    for private_sum in private_sums:
        private_part = ExactSum.of_part(private_sum, radius)
        total = private_part if total is None else total.plus(private_part)
    assert total is not None
    return np.asarray(total.value(radius))


def _shares(private_draw: NDArray[np.int64], parts: int) -> list[NDArray[np.int64]]:
    """The positions within each part of those drawn, in the order in which they are drawn."""
    private_owners = private_draw // PART_UNITS
    if np.any(np.diff(private_owners) < 0):
        private_order = np.argsort(private_owners, kind="stable")
        private_draw, private_owners = private_draw[private_order], private_owners[private_order]
    ends = np.searchsorted(private_owners, np.arange(parts + 1))
    return [private_draw[ends[k] : ends[k + 1]] - k * PART_UNITS for k in range(parts)]
