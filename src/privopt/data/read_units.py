"""Privacy units from a source of records: each block is clipped into its place as it is read. PRIVATE."""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.data.places import Ranges
from privopt.data.record_source import Description, RecordBlock, RecordSource
from privopt.data.room import MEMORY, Growing, Room, scatter
from privopt.data.rows import GridRows, csr_of
from privopt.data.storage import KEPT_BYTES, PARTED_BYTES, finite_rows, gather_rows
from privopt.data.targets import check_targets, check_units, map_targets, user_weights, within
from privopt.data.units import Units
from privopt.data.user_keys import UnitsNoise, UserSecret, is_secret
from privopt.data.user_parts import (
    AT_ONCE,
    NOBODY,
    UserRecords,
    UserRuns,
    joined_records,
    laid_out_by,
    lay_out_part,
    part_count,
    require_few,
    require_own,
    user_digests,
)
from privopt.errors import DataUnavailable
from privopt.public import COLUMN_BYTES, Public, Relation, Weighting, of_users

# ---- Which records of a source each user keeps, from its keys, read once in blocks. PRIVATE ----------------
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


def stored_bytes(source: RecordSource, description: Description, most: int | None = None) -> int:
    """About how many bytes the units of a source take in a room; of CSR, without the entries as they are read.

    Args:
        source: the records.
        description: what is public about the units.
        most: entries of all CSR rows together; default: `most_entries`.
    """
    width = 0 if source.is_sparse else source.width + (description.intercept is not None)
    rest = KEPT_BYTES + PARTED_BYTES * (source.is_sparse or source.by_user)
    most = most_entries(source, description) if most is None else most
    chosen = (most or 0) if source.by_user else 0  # copied to those that are kept
    return source.rows * (width * np.dtype(description.storage).itemsize + rest) + entry_bytes(
        chosen, description
    )


def most_entries(source: RecordSource, description: Description) -> int | None:
    """The most entries that all CSR rows of a source have together; None where that is not known beforehand."""
    entries = row_entries(source, description)
    return None if entries is None else source.rows * entries


def row_entries(source: RecordSource, description: Description) -> int | None:
    """The most entries of a CSR row that are stored, a public number; None where none is known."""
    if not source.is_sparse or source.row_entries is None:
        return None
    return source.row_entries + (description.intercept is not None)


def entry_bytes(entries: int, description: Description) -> int:
    """How many bytes so many entries of CSR rows take."""
    return entries * (np.dtype(description.storage).itemsize + COLUMN_BYTES)


def read_units(
    source: RecordSource,
    description: Description,
    *,
    noise: UnitsNoise | None = None,
    room: Room = MEMORY,
    private_most: int | None = None,
) -> Units:
    """Group the records of a source into privacy units, as `Units.from_arrays` does with all of them at once.

    No second copy of dense rows exists. A source whose records have keys of users is read twice: which records a user
    keeps follows from all keys, and only these are stored.

    Args:
        source: the records.
        description: what is public about the units.
        noise: source of the secret choice of a user's records; default: fresh, from the operating system.
        room: where the arrays lie.
        private_most: the most entries of all CSR rows together, if that is known; default: `most_entries`.
    Privacy:
        A stored row depends on its own record alone, whatever block it is read in. More units than the public n are
        refused before any record is read, or any but the keys where a unit is a user, without saying how many there
        are.
    Raises:
        ValueError: as `Units.from_arrays`.
        DataUnavailable: the source cannot be read, or does not hold as many records as it says.
    """
    relation = Relation.parse(description.relation)
    most = most_entries(source, description) if private_most is None else private_most
    if not source.by_user:
        n = check_units(description.n, source.rows, relation, by_user=False)
        units = _read(source, description, None, room, most).units(n, relation)
        public = dataclasses.replace(units.public, row_entries=row_entries(source, description))
        return dataclasses.replace(units, public=public, origin=description.origin(source))
    by_user = _of_users(description)  # refused before anything is read, as is n
    if description.n is not None or relation is Relation.ADD_OR_REMOVE_ONE:
        check_units(description.n, 0, relation, by_user=True)
    users = user_rows(source, description, noise, room)
    n = check_units(users.n, len(users.private_weights), relation, by_user=True)
    units = _read(source, description, users, room, most).units(n, relation)
    return dataclasses.replace(
        units,
        public=dataclasses.replace(units.public, row_entries=row_entries(source, description), **by_user),
        private_offsets=users.private_offsets,
        private_weights=users.private_weights,
        private_ranges=users.private_ranges,
        seeded=users.seeded,
        origin=description.origin(source),
        laid_out="" if users.private_ranges is None else laid_out_by(users.secret),
    )


def stated_public(source: RecordSource, description: Description) -> Public:
    """What `read_units` will state to be public, found without reading a record.

    Raises:
        ValueError: as `Units.from_arrays`, by what is described alone.
    """
    return dataclasses.replace(
        clipped(no_records(source, description), description).public,
        n=source.rows if description.n is None else description.n,
        relation=Relation.parse(description.relation),
        row_entries=row_entries(source, description),
        **(_of_users(description) if source.by_user else {}),
    )


class _Stored:
    """Stored rows that are filled in block by block.

    Args:
        rows: how many records are read.
        users: those that users keep; None for all.
        room: where they lie.
        most: entries of all CSR rows that are read; None where that is not known.
    """

    def __init__(self, rows: int, users: UserRows | None, room: Room, most: int | None) -> None:
        self._users, self._room = users, room
        self._rows, self._most = rows, most
        kept = rows if users is None else int(users.private_offsets[-1])
        self._private_columns: list[NDArray[Any]] = [  # targets, norms, who is present
            room.zeros(kept, dtype) for dtype in (np.float64, np.float64, np.bool_)
        ]
        self._private_dense: Any = None
        self._private_scattered: ScatteredRows | None = None
        self._steps: NDArray[np.float64] | None = None  # of rows on a grid; they follow from what is public
        self._private_sparse: _Sparse | None = None
        self._public: Public | None = None

    def put(self, first: int, private_units: Units, private_keys: Any = None) -> None:
        """Keep what is kept of a block that begins at record `first`."""
        private_rows: Any = private_units.private_features
        if self._public is None:
            self._begin(private_rows)
            self._public = private_units.public
            if self._users is not None:
                private_dense = [] if self._private_dense is None else [self._private_dense]
                self._private_scattered = ScatteredRows(self._room, [*self._private_columns, *private_dense])
        if isinstance(private_rows, GridRows):
            private_rows = private_rows.private_steps
        if self._private_sparse is not None:
            self._private_sparse.append(private_rows)
        here = slice(first, first + private_rows.shape[0])
        private_values: list[Any] = [
            private_units.private_targets,
            private_units.private_norms,
            private_units.private_present,
        ]
        if self._users is None:
            for private_column, private_part in zip(self._private_columns, private_values, strict=True):
                private_column[here] = private_part
            if self._private_dense is not None:
                self._room.write(self._private_dense, first, private_rows)
            return
        private_place = self._users.private_where[here] - 1
        self._users.require_own(private_keys, private_place)
        private_kept = private_place >= 0
        if self._private_dense is not None:
            private_values.append(private_rows)
        assert self._private_scattered is not None
        self._private_scattered.put(
            private_place[private_kept], [private_part[private_kept] for private_part in private_values]
        )

    def units(self, n: int, relation: Relation) -> Units:
        """All of them."""
        assert self._public is not None
        if self._private_scattered is not None:
            self._private_scattered.finish()
        private_rows = self._private_dense
        if self._steps is not None:
            private_rows = GridRows(private_rows, self._steps)
        if self._private_sparse is not None:
            private_rows = self._private_sparse.finish()
            if self._users is not None:
                private_rows = gather_rows(private_rows, self._users.private_order(), self._room)
        return Units(
            public=dataclasses.replace(self._public, n=n, relation=relation),
            private_features=private_rows,
            private_targets=self._private_columns[0],
            private_norms=self._private_columns[1],
            private_present=self._private_columns[2],
            room=self._room,
        )

    def _begin(self, private_rows: Any) -> None:
        """Make room for rows like these."""
        width = private_rows.shape[1]
        if isinstance(private_rows, GridRows):
            self._steps, private_rows = private_rows.steps, private_rows.private_steps
        if not sparse.issparse(private_rows):
            kept = len(self._private_columns[0])
            self._private_dense = self._room.zeros((kept, width), private_rows.dtype)
            return
        # What users do not keep is given back with this room.
        room = self._room if self._users is None else self._room.another(0)
        self._private_sparse = _Sparse(self._rows, width, room, private_rows.dtype, self._most)


class _Sparse:
    """CSR rows that are appended."""

    def __init__(self, rows: int, width: int, room: Room, dtype: Any, most: int | None) -> None:
        self._width = width
        self._private_values: Growing = room.growing(dtype, most)
        self._private_columns: Growing = room.growing(np.int32, most)
        self._private_starts: Growing = room.growing(np.int64, rows + 1)
        self._private_starts.append(np.zeros(1, np.int64))
        self._private_end = 0

    def append(self, private_rows: sparse.csr_array) -> None:
        """Put a block behind the others."""
        self._private_values.append(private_rows.data)
        self._private_columns.append(private_rows.indices)
        self._private_starts.append(private_rows.indptr[1:].astype(np.int64) + self._private_end)
        self._private_end += int(private_rows.indptr[-1])

    def finish(self) -> sparse.csr_array:
        """All rows."""
        return csr_of(
            self._private_values.finish(),
            self._private_columns.finish(),
            self._private_starts.finish(),
            self._width,
        )


def _read(
    source: RecordSource, description: Description, users: UserRows | None, room: Room, most: int | None
) -> _Stored:
    """Clip every block as records are clipped, and put it into its place."""
    private_stored = _Stored(source.rows, users, room, most)
    first = 0
    for block in source.blocks(0, source.rows):
        rows = int(block.private_features.shape[0])
        if first + rows > source.rows:
            raise DataUnavailable(CHANGED)
        private_stored.put(first, clipped(block, description), block.private_keys)
        first += rows
    if first != source.rows:
        raise DataUnavailable(CHANGED)
    if first == 0:
        private_stored.put(0, clipped(no_records(source, description), description))
    return private_stored


def no_records(source: RecordSource, description: Description) -> RecordBlock:
    """A block of none of the records of a source: what is public follows from the width alone."""
    nothing: Any = np.zeros((0, source.width), np.float32)
    if source.is_sparse:
        nothing = sparse.csr_array(nothing)
    no_targets = None if description.classes is None else np.asarray(list(description.classes))[:0]
    return RecordBlock(nothing, no_targets, np.zeros(0))


def clipped(block: RecordBlock, description: Description) -> Units:
    """One block as units that are records; of no meaning but for its rows and what is public of them."""
    arguments = of_records(description, int(block.private_features.shape[0]))
    return Units.from_arrays(block.private_features, block.private_targets, **arguments)


def of_records(description: Description, rows: int) -> dict[str, Any]:
    """The arguments that make units of so many records, whatever the number of all is; any of them may be missing."""
    return {**description.arguments(), "relation": Relation.ADD_OR_REMOVE_ONE, "n": max(rows, 2)}


def _of_users(description: Description) -> dict[str, Any]:
    """What is public of units that are users."""
    return of_users(description.max_records_per_user, description.user_weighting, description.typical_records)


# ---- Rows that come in one order and lie in another, written to a room page by page. PRIVATE ---------------
_HELD_BYTES = 2**24  # that are sorted by place together: the more, the fewer times a page is asked for


class ScatteredRows:
    """Puts rows of some columns at their places in a room; they are there when `finish` was called.

    Args:
        room: where the columns lie.
        private_columns: arrays from `room.zeros`, of one length.
    """

    def __init__(self, room: Room, private_columns: Sequence[NDArray[Any]]) -> None:
        self._room, self._private_columns = room, private_columns
        self._private_held = list[tuple[NDArray[np.int64], Sequence[NDArray[Any]]]]()
        self._bytes = 0

    def put(self, private_places: NDArray[np.int64], private_values: Sequence[NDArray[Any]]) -> None:
        """Put rows at places that nothing else is put at.

        Args:
            private_places: of the rows.
            private_values: theirs of each column; not changed afterwards.
        """
        self._private_held.append((private_places, private_values))
        self._bytes += private_places.nbytes + sum(values.nbytes for values in private_values)
        if self._bytes >= _HELD_BYTES:
            self.finish()

    def finish(self) -> None:
        """Write what is held, in the order of the places."""
        if not self._private_held:
            return
        private_places = np.concatenate([places for places, _ in self._private_held])
        private_order = np.argsort(private_places, kind="stable")
        for k, private_column in enumerate(self._private_columns):
            private_values = np.concatenate([values[k] for _, values in self._private_held])
            scatter(self._room, private_column, private_places[private_order], private_values[private_order])
        self._private_held.clear()
        self._bytes = 0
