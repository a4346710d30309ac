"""Random groups of units: drawn without looking at them, each then treated as one large unit. PRIVATE."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.data.room import MEMORY
from privopt.data.storage import gather_rows
from privopt.data.units import Units
from privopt.data.users import offsets, within
from privopt.public import Public, Relation

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class GroupDraw:
    """Who is in which group, and in which order a group's records come. Secret.

    Attributes:
        count: C, how many groups there are. Public.
        private_groups: (positions,) the group of the unit at each position.
        private_seeds: (positions,) what the order of that unit's records is derived from.
    """

    count: int
    private_groups: NDArray[np.int64]
    private_seeds: NDArray[np.uint64]

    def __repr__(self) -> str:
        return "<private>"


def check_groups(public: Public, groups: Any) -> int:
    """Refuse a number of groups that cannot be drawn.

    Raises:
        TypeError, ValueError: it is no integer between 2 and n.
    """
    if isinstance(groups, bool) or not isinstance(groups, int | np.integer):
        raise TypeError(f"groups must be an integer, got {groups!r}.")
    if not 2 <= groups <= public.n:
        raise ValueError(
            f"groups must be between 2 and n = {public.n:,}, got {groups}: a group needs a unit, and a mean of one "
            "group hides nobody."
        )
    return int(groups)


def group_records(public: Public, groups: int) -> int:
    """The public number of records that a group is padded to, ceil(n / C) units of M records each."""
    return -(-public.n // groups) * public.records_per_unit


def draw_groups(
    public: Public, groups: int, generator: np.random.Generator, *, private_count: int
) -> GroupDraw:
    """Draw the groups, without looking at the units.

    Args:
        public: the public side of the data.
        groups: C, between 2 and n.
        generator: the secret stream for units.
        private_count: how many units are there; asked under add-or-remove-one only.
    Privacy:
        Under replace-one the groups are slices of a random permutation of the n positions, their sizes equal or, for
        C not dividing n, one larger for a random choice of them: the replaced unit stays in its group. Under
        add-or-remove-one each unit joins a group by a draw of its own: adding one moves no other. Either way one unit
        changes the records of one group only, and what the group computes by any amount: it *replaces* one point.
    """
    if public.relation is Relation.ADD_OR_REMOVE_ONE:
        private_groups = generator.integers(0, groups, private_count)
    else:
        sizes = np.full(groups, public.n // groups)
        sizes[generator.permutation(groups)[: public.n % groups]] += 1
        private_groups = np.empty(public.n, np.int64)
        private_groups[generator.permutation(public.n)] = np.repeat(np.arange(groups), sizes)
    private_seeds = generator.integers(0, 2**64, len(private_groups), np.uint64)
    return GroupDraw(count=groups, private_groups=private_groups, private_seeds=private_seeds)


class GroupedUnits:
    """Groups of units as the units of another data set, built for some groups at a time.

    A group owns the records of its units in a secret random order, those that count before the padding; what exceeds
    `group_records` is cut, which can happen under add-or-remove-one only. It weighs 1.

    Args:
        units: the data.
        draw: made for as many positions as there are units, or more.
    """

    def __init__(self, units: Units, draw: GroupDraw) -> None:
        self._units = units
        cap = group_records(units.public, draw.count)
        self.public = dataclasses.replace(
            units.public,
            n=draw.count,
            unit="user",
            records_per_unit=cap,
            weighting="user",
            typical_records=min(float(cap), max(1.0, units.public.typical_records * cap / _cap_of(units))),
            relation=Relation.REPLACE_ONE,
            drawn=False,
        )
        positions = np.arange(units.private_count)
        private_rows = units.private_rows_of(positions)
        private_counts = (
            np.ones(len(positions), np.int64)
            if units.private_offsets is None
            else np.diff(units.private_offsets)
        )
        private_owner = np.repeat(positions, private_counts)
        private_keys = _keys(draw.private_seeds[private_owner], within(private_counts))
        private_kept = units.private_present[private_rows]
        private_rows, private_keys = private_rows[private_kept], private_keys[private_kept]
        private_labels = draw.private_groups[private_owner][private_kept]
        private_order = np.lexsort((private_keys, private_labels))
        private_rank = within(np.bincount(private_labels, minlength=draw.count))
        private_order = private_order[private_rank < cap]
        self._private_rows = private_rows[private_order]
        self._private_offsets = offsets(np.bincount(private_labels[private_order], minlength=draw.count))

    def part(self, start: int, stop: int) -> Units:
        """The groups `start` to `stop`."""
        private_edges = self._private_offsets[start : stop + 1]
        private_rows = self._private_rows[private_edges[0] : private_edges[-1]]
        units = self._units
        return dataclasses.replace(
            units,
            public=self.public,
            private_features=gather_rows(units.private_features, private_rows),
            private_targets=units.private_targets[private_rows],
            private_norms=units.private_norms[private_rows],
            private_present=np.ones(len(private_rows), np.bool_),
            private_offsets=private_edges - private_edges[0],
            private_weights=np.ones(stop - start),
            room=MEMORY,
        )


def _cap_of(units: Units) -> int:
    return units.public.records_per_unit


def _keys(private_seeds: NDArray[np.uint64], index: NDArray[np.int64]) -> NDArray[np.uint64]:
    """A key for each record of each unit: splitmix64 of the unit's seed and the record's index.

    The order of a group's records is no secret that privacy rests on: whatever it is, one unit replaces one point.

    Source:
        Steele, Lea, Flood 2014 (SplitMix).
    """
    with np.errstate(over="ignore"):
        mixed = private_seeds + (index.astype(np.uint64) + np.uint64(1)) * _GOLDEN
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))
