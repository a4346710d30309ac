"""Units in parts of at most `PART_UNITS`: the unit of summation, so that a sum's rounding does not grow with n."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from privopt.data.units import Units
from privopt.engine.exact_sum import ExactSum
from privopt.engine.progress import told
from privopt.engine.rounding import PART_UNITS
from privopt.public import Public
from privopt.queries.base import MeanQuery

Range = tuple[int, int]  # positions of the first unit of a part, and of the first that is not in it


class PartEngine(Protocol):
    """What sums over one part."""

    def part_sum(
        self, query: MeanQuery, private_draw: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """The sum over the part's units, or over those at some positions, counted from the part's first."""
        ...


def parts_of(units: Units) -> list[Units]:
    """The units as parts, in order."""
    ranges = ranges_of(units)
    return [units] if len(ranges) == 1 else [units.part(start, stop) for start, stop in ranges]


def ranges_of(units: Units) -> Sequence[Range]:
    """Where each part begins and ends: as users were put there, or from the number of units alone."""
    private_ranges = units.private_ranges
    return part_ranges(units.private_count) if private_ranges is None else private_ranges


def part_ranges(count: int) -> list[Range]:
    """Where each part of so many units begins and ends; one of nobody, where there are none."""
    return list(itertools.pairwise([*range(0, max(count, 1), PART_UNITS), count]))


def sum_over_parts(
    parts: Sequence[PartEngine],
    query: MeanQuery,
    private_draw: NDArray[np.int64] | None,
    ranges: Sequence[Range] = (),
    public: Public | None = None,
) -> NDArray[np.float64]:
    """The sum over all units, or over some: of one part as it is, of several by an `ExactSum`.

    Args:
        parts: engines of the parts.
        query: what to compute.
        private_draw: positions of the units that take part, in any order; None for all.
        ranges: where each part begins and ends, for a draw from several.
        public: what is public about the units, to tell how far it is; None to tell nothing.
    Privacy:
        How a unit's contribution is rounded follows from its part, and adding the parts forgets their order. A part of
        which no unit is drawn is not asked, which shows in running time only.
    """
    if len(parts) == 1:
        return parts[0].part_sum(query, private_draw)
    if private_draw is None:
        asked = parts if public is None else told(parts, public)
        return total_of_parts((part.part_sum(query) for part in asked), query.radius())
    private_shares = shares_of_parts(private_draw, ranges)
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


def shares_of_parts(private_draw: NDArray[np.int64], ranges: Sequence[Range]) -> list[NDArray[np.int64]]:
    """The positions within each part of those drawn, in the order in which they are drawn."""
    starts, ends = (np.array(column, np.int64) for column in zip(*ranges, strict=True))
    private_owners = np.searchsorted(ends, private_draw, side="right")
    if np.any(np.diff(private_owners) < 0):
        private_order = np.argsort(private_owners, kind="stable")
        private_draw, private_owners = private_draw[private_order], private_owners[private_order]
    edges = np.searchsorted(private_owners, np.arange(len(ranges) + 1))
    return [private_draw[edges[k] : edges[k + 1]] - starts[k] for k in range(len(ranges))]
