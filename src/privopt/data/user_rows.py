"""Which records of a source each user keeps, from its keys, read once in blocks; few of them are in memory. PRIVATE."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.data.places import Ranges
from privopt.data.record_source import Description, RecordSource
from privopt.data.room import Room, scatter
from privopt.data.scattered import ScatteredRows
from privopt.data.storage import finite_rows
from privopt.data.targets import check_targets, map_targets
from privopt.data.unit_count import check_units
from privopt.data.user_digests import NOBODY, user_digests
from privopt.data.user_parts import (
    UserRecords,
    joined_records,
    lay_out_part,
    part_count,
    require_few,
    require_own,
)
from privopt.data.user_runs import AT_ONCE, UserRuns
from privopt.data.user_secret import UnitsNoise, UserSecret, is_secret
from privopt.data.users import user_weights, within
from privopt.errors import DataUnavailable
from privopt.public import Relation, Weighting

CHANGED = (
    "the records that were read are not as many as there were when the table was opened: it has changed."
)


@dataclass(frozen=True, eq=False, repr=False)
class UserRows:
    """The records that users keep.

    Attributes:
        n: the public number of users, given or counted.
        private_where: (source.rows,) of each record 1 + its place among those that are kept; 0 if it is not.
        private_offsets: (users + 1,) where each user's begin among them.
        private_weights: (users,) of each user's average.
        private_ranges: where each part of users begins and ends; None where there is one.
        secret: by which they were laid out.
        seeded: see `Units.seeded`.
        room: where the arrays lie.
    """

    n: int
    private_where: NDArray[np.int64]
    private_offsets: NDArray[np.int64]
    private_weights: NDArray[np.float64]
    private_ranges: Ranges | None
    secret: UserSecret
    seeded: bool
    room: Room

    def private_order(self) -> NDArray[np.int64]:
        """The places in the source of the records that are kept, in their order."""
        kept = int(self.private_offsets[-1])
        private_order = self.room.another(8 * kept).zeros(kept, np.int64)
        for start in range(0, len(self.private_where), AT_ONCE):
            private_some = self.private_where[start : start + AT_ONCE]
            private_kept = np.flatnonzero(private_some)
            scatter(self.room, private_order, private_some[private_kept] - 1, start + private_kept)
        return private_order

    def require_own(self, private_keys: Any, private_places: NDArray[np.int64]) -> None:
        """Refuse records that were put into a part to which their users do not belong; see `user_parts.require_own`.

        Args:
            private_keys: of some records.
            private_places: where each of them was put among those that are kept; negative if it was not.
        Raises:
            DataUnavailable: there is one.
        """
        if self.private_ranges is None:  # all users are in one part
            return
        private_digests, _ = user_digests(private_keys, len(private_places), self.secret)
        private_ends = self.private_offsets[[stop for _, stop in self.private_ranges]]
        private_parts = np.searchsorted(private_ends, private_places, side="right")
        private_kept = private_places >= 0
        require_own(private_digests[private_kept], private_parts[private_kept], len(self.private_ranges))


def user_rows(
    source: RecordSource, description: Description, noise: UnitsNoise | None, room: Room
) -> UserRows:
    """Choose each user's records, as `Units.from_arrays` does: the same parts and order of users, the same choice.

    Args:
        source: the records, with keys.
        description: what is public about the units.
        noise: source of the secret choice; default: fresh, from the operating system.
        room: where what grows with the records lies. In memory are about `AT_ONCE` records at a time, and two numbers
            of each user of a part.
    Privacy:
        Equal keys are one user wherever their records stand: all keys are looked at, and nothing is taken from how the
        records are divided into files.
    Raises:
        ArgumentError: there are more users than n, and a part has no room for its own.
        DataUnavailable: the source cannot be read, or does not hold as many records as it says.
        RuntimeError: see `user_parts.require_few`.
    """
    secret = UserSecret.lasting(noise, source.rows, source.fingerprint())
    # Room is taken before the first record is read.
    private_runs = UserRuns(source.rows, description.max_records_per_user, room)
    private_filled = _Filled(source.rows, description, room)
    for private_batch in _batches(source, description, secret):
        private_runs.append(private_batch)
    n = private_runs.count() if description.n is None else int(description.n)
    parts = part_count(n, description.max_records_per_user)
    private_stops = [0]
    for part in range(parts):
        try:
            private_filled.put(private_runs, part, parts)
        except RuntimeError:  # a part is too small for its users only if n is for all of them
            check_units(n, private_runs.count(), Relation.parse(description.relation), by_user=True)
            raise
        private_stops.append(private_filled.private_users)
    return UserRows(
        n,
        private_filled.private_where,
        private_filled.private_offsets[: private_stops[-1] + 1],
        private_filled.private_weights[: private_stops[-1]],
        None if parts == 1 else tuple(itertools.pairwise(private_stops)),
        secret,
        seeded=noise is not None and not is_secret(noise),
        room=room,
    )


def _batches(source: RecordSource, description: Description, secret: UserSecret) -> Iterator[UserRecords]:
    """The records whose users are known, about `AT_ONCE` at a time."""
    private_pieces = list[UserRecords]()
    start = held = 0
    for block in source.blocks(0, source.rows):
        rows = int(block.private_features.shape[0])
        if start + rows > source.rows:
            raise DataUnavailable(CHANGED)
        private_targets = check_targets(block.private_targets, rows, description.classes)
        _, private_mapped = map_targets(private_targets, rows, description.classes, description.target_bounds)
        private_digests, private_rest = user_digests(block.private_keys, rows, secret)
        private_records = UserRecords(
            private_digests,
            private_rest,
            np.arange(start, start + rows),
            secret.lottery(start, start + rows),
            private_mapped & finite_rows(block.private_features),
        )
        private_pieces.append(private_records.taken(private_records.private_digests != NOBODY))
        start, held = start + rows, held + rows
        if held >= AT_ONCE:
            yield joined_records(private_pieces)
            private_pieces, held = [], 0
    if start != source.rows:
        raise DataUnavailable(CHANGED)
    yield joined_records(private_pieces)


class _Filled:
    """Where the records that are kept go, filled in part by part.

    Args:
        rows: how many records there are.
        description: what is public about the units.
        room: where it lies.
    """

    def __init__(self, rows: int, description: Description, room: Room) -> None:
        self._cap = description.max_records_per_user
        self._weighting: Weighting = description.user_weighting
        # There are at most as many users as records; what is beyond them is never touched.
        self.private_offsets = room.zeros(rows + 1, np.int64)
        self.private_weights = room.zeros(rows, np.float64)
        room = room.another(2 * 8 * rows)
        self.private_where = room.zeros(rows, np.int64)
        self._private_scattered = ScatteredRows(room, [self.private_where])
        self._private_chosen = room.zeros(rows, np.int64)
        self.private_users = 0

    def put(self, private_runs: UserRuns, part: int, parts: int) -> None:
        """Lay out a part's users behind those of the parts before it."""
        private_counts, private_first = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        chosen = users = 0
        for private_records in private_runs.buckets(part, parts):
            private_layout = lay_out_part(private_records, self._cap, part, parts)
            private_places = private_records.private_places[private_layout.private_chosen]
            self._private_chosen[chosen : chosen + len(private_places)] = private_places
            private_counts.append(np.diff(private_layout.private_offsets))
            private_first.append(private_layout.private_first)
            chosen, users = chosen + len(private_places), users + len(private_layout.private_first)
            require_few(users)
        self._put_in_order(np.concatenate(private_counts), np.argsort(np.concatenate(private_first)))

    def _put_in_order(self, private_counts: NDArray[np.int64], private_order: NDArray[np.int64]) -> None:
        """Put a part's users, who keep so many records each, into their order, that of first appearance."""
        first, last = self.private_users, self.private_users + len(private_counts)
        private_ordered = private_counts[private_order]
        self.private_offsets[first + 1 : last + 1] = self.private_offsets[first] + np.cumsum(private_ordered)
        self.private_weights[first:last] = user_weights(private_ordered, self._cap, self._weighting)
        private_begins = np.empty(len(private_counts), np.int64)
        private_begins[private_order] = self.private_offsets[first:last]
        chosen, step = 0, max(1, AT_ONCE // self._cap)
        for start in range(0, len(private_counts), step):
            private_some = private_counts[start : start + step]
            private_places = self._private_chosen[chosen : chosen + int(private_some.sum())]
            private_starts = np.repeat(private_begins[start : start + step], private_some)
            self._private_scattered.put(private_places, [private_starts + within(private_some) + 1])
            chosen += len(private_places)
        self._private_scattered.finish()
        self.private_users = last
