"""Feature rows as they are stored: clipped, dense, CSR or on a grid, block by block so that no second copy exists."""

import abc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.data import cells
from privopt.data.containers import check_features
from privopt.data.places import DEALT, ORDER_BYTES
from privopt.data.room import MEMORY, Copies, Room
from privopt.data.rows import (
    GridRows,
    MappedRows,
    Positions,
    Rows,
    aligned_zeros,
    block_length,
    clip_sparse_rows,
    clip_stored,
    csr_of,
    grid_steps,
    on_grid,
    row_norms,
)
from privopt.data.targets import offsets
from privopt.public import Public

# Of a record: target, norm, presence, 1 / norm, the same in the l_inf norm, and its slopes at two points.
KEPT_BYTES = 8 + 8 + 1 + 8 + 2 * 8 + 2 * 8
# Where a user's records begin and what they weigh, or where the entries of a CSR row begin: in all, and in a part.
PARTED_BYTES = 2 * (8 + 8)
_GATHERED_ROWS = 2**14  # of a sparse matrix, at a time


class RowSource(abc.ABC):
    """Dense rows that are computed from others as they are asked for, so that they never exist all at once.

    Attributes:
        shape: (rows, d).
    """

    shape: tuple[int, int]

    @abc.abstractmethod
    def __getitem__(self, positions: Positions) -> NDArray[Any]:
        """The rows at some positions, each a function of the one record behind it."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """All of them at once."""
        del copy
        return np.asarray(self[slice(None)], dtype)


def checked_features(features: Any) -> Any:
    """A numeric matrix: an array, or a canonical CSR matrix. Looks at type, shape and sparse indices only."""
    if isinstance(features, RowSource):
        return features
    check_features(features, "features")
    features = cells.matrix(features)
    if sparse.issparse(features):
        return features
    if features.ndim != 2:
        raise ValueError(
            f"features must have shape (rows, d), got {features.ndim} dimensions: give one row for each record."
        )
    if features.shape[1] < 1:
        raise ValueError("features must have at least one column, got none: give one for each feature.")
    return features


def store_rows(
    features: Any,
    positions: Positions,
    row_bound: float,
    intercept: float | None,
    public: Public,
    private_usable: NDArray[np.bool_] | None,
    dtype: Any,
) -> tuple[Rows, NDArray[np.float64], NDArray[np.bool_]]:
    """Clip and store the rows at `positions`, or all of them (`slice(None)`), a block at a time.

    On a grid an entry is cut to `public.entry_bound`, where there is one, and to the row bound.

    Returns:
        (rows, norms of the rows rounded up, which of the rows at `positions` were finite).
    """
    if sparse.issparse(features):
        return _store_sparse(
            features, positions, row_bound, intercept, public.row_bound, private_usable, dtype
        )
    width = features.shape[1]
    rows = features.shape[0] if isinstance(positions, slice) else len(positions)
    steps = None
    if on_grid(dtype):
        steps = grid_steps(width, min(row_bound, public.largest_entry), intercept, dtype)
    private_rows = aligned_zeros(rows, width + (intercept is not None), dtype)
    private_norms, private_finite = np.zeros(rows), np.zeros(rows, np.bool_)
    step = block_length(width)
    for start in range(0, rows, step):
        here = slice(start, min(start + step, rows))
        part = here if isinstance(positions, slice) else positions[here]
        with np.errstate(all="ignore"):
            # Row by row in memory: NumPy adds up the squares of one row in another order where they lie apart.
            private_block = features[part].astype(np.float64, order="C")
        if private_usable is not None:
            private_block[~private_usable[part]] = 0.0
        private_rows[here, :width], private_norms[here], private_finite[here] = clip_stored(
            private_block, row_bound, dtype, None if steps is None else steps[:width]
        )
        if intercept is not None:
            private_counts = private_finite[here] & (True if private_usable is None else private_usable[part])
            constant = intercept if steps is None else intercept / steps[width]
            private_rows[here, width] = np.where(private_counts, constant, 0.0)
            private_norms[here] = _norms_with(
                private_norms[here], private_counts, intercept, public.row_bound
            )
    return private_rows if steps is None else GridRows(private_rows, steps), private_norms, private_finite


def _store_sparse(
    features: sparse.csr_array,
    positions: Positions,
    row_bound: float,
    intercept: float | None,
    total_bound: float,
    private_usable: NDArray[np.bool_] | None,
    dtype: Any,
) -> tuple[sparse.csr_array, NDArray[np.float64], NDArray[np.bool_]]:
    """`_store` for CSR: the structure is copied, the values are clipped a block of rows at a time."""
    private_source: Any = features if isinstance(positions, slice) else features[positions]
    rows, width = private_source.shape
    private_lengths = np.diff(private_source.indptr).astype(np.int64)
    private_values = np.empty(private_source.nnz, dtype)
    private_norms, private_finite = np.zeros(rows), np.zeros(rows, np.bool_)
    step = block_length(int(private_source.nnz / max(rows, 1)) + 1)
    for start in range(0, rows, step):
        here = slice(start, min(start + step, rows))
        entries = slice(private_source.indptr[here.start], private_source.indptr[here.stop])
        with np.errstate(all="ignore"):
            private_block = private_source.data[entries].astype(np.float64)
        if private_usable is not None:
            private_block[~np.repeat(private_usable[here], private_lengths[here])] = 0.0
        private_values[entries], private_norms[here], private_finite[here] = clip_sparse_rows(
            private_block, private_lengths[here], row_bound, width, dtype
        )
    private_columns = private_source.indices.astype(np.int32, copy=True)
    if intercept is not None:
        private_counts = private_finite & (True if private_usable is None else private_usable)
        private_norms = _norms_with(private_norms, private_counts, intercept, total_bound)
        ends = private_source.indptr[1:]
        private_values = np.insert(private_values, ends, np.where(private_counts, intercept, 0.0))
        private_columns = np.insert(private_columns, ends, np.int32(width))
        private_lengths, width = private_lengths + 1, width + 1
    private_rows = sparse.csr_array(
        (private_values, private_columns, offsets(private_lengths)), shape=(rows, width), copy=False
    )
    return private_rows, private_norms, private_finite


def _norms_with(
    private_norms: NDArray[np.float64],
    private_counts: NDArray[np.bool_],
    intercept: float,
    total_bound: float,
) -> NDArray[np.float64]:
    """Norms of rows with the constant appended, rounded up; absent rows stay zero."""
    private_longer = np.minimum(np.hypot(private_norms, intercept) * (1.0 + 2.0**-50), total_bound)
    return np.where(private_counts, private_longer, 0.0)


def finite_rows(features: Any) -> NDArray[np.bool_]:
    """Which rows hold finite numbers only."""
    rows = features.shape[0]
    if sparse.issparse(features):
        row = np.repeat(np.arange(rows), np.diff(features.indptr))
        return np.bincount(row, weights=~np.isfinite(features.data), minlength=rows) == 0
    private_finite = np.ones(rows, np.bool_)
    step = block_length(features.shape[1])
    for start in range(0, rows, step):
        private_finite[start : start + step] = np.isfinite(features[start : start + step]).all(axis=1)
    return private_finite


@dataclass(frozen=True, eq=False, repr=False)
class RowCopies:
    """Some rows, stored as the whole is, copied one after the other.

    Attributes:
        add: copies those at some positions.
        finish: gives all that were added: as many as was said.
    """

    add: Callable[[NDArray[np.int64]], None]
    finish: Callable[[], Rows]


def row_copies(
    private_rows: Rows, room: Room, positions: Iterable[NDArray[np.int64]], count: int
) -> RowCopies:
    """Copies of the rows at some positions, which are still to be added, one array of them after the other.

    Args:
        private_rows: the whole.
        room: where they go.
        positions: all of them, gone over once where the entries of rows are counted, and else not.
        count: how many they are.
    """
    if isinstance(private_rows, MappedRows):
        matrix, bound = private_rows.matrix, private_rows.bound
        private_source = row_copies(private_rows.private_source, room, positions, count)
        return RowCopies(private_source.add, lambda: MappedRows(private_source.finish(), matrix, bound))
    if isinstance(private_rows, sparse.csr_array):
        private_entries = _SparseCopies(private_rows, room, positions, count)
        return RowCopies(private_entries.add, private_entries.finish)
    if isinstance(private_rows, GridRows):
        steps, private_steps = private_rows.steps, Copies(room, private_rows.private_steps, count)
        return RowCopies(private_steps.add, lambda: GridRows(private_steps.private_copy, steps))
    private_copies = Copies(room, private_rows, count)
    return RowCopies(private_copies.add, lambda: private_copies.private_copy)


def gather_rows(private_rows: Rows, positions: NDArray[np.int64], room: Room = MEMORY) -> Rows:
    """Some rows, stored as the whole is."""
    private_copies = row_copies(private_rows, room, [positions], len(positions))
    private_copies.add(positions)
    return private_copies.finish()


class _SparseCopies:
    """Copies of rows of CSR; the entries of all are counted first."""

    def __init__(
        self, private_rows: sparse.csr_array, room: Room, positions: Iterable[NDArray[np.int64]], count: int
    ) -> None:
        shape: Any = private_rows.shape
        self._private_rows, self._row, self._width = private_rows, 0, int(shape[1])
        entries = sum(int(self._lengths(some).sum()) for some in positions)
        self._private_starts = room.zeros(count + 1, np.int64)
        self._private_values = room.zeros(entries, private_rows.dtype)
        self._private_columns = room.zeros(entries, private_rows.indices.dtype)

    def add(self, positions: NDArray[np.int64]) -> None:
        for start in range(0, len(positions), _GATHERED_ROWS):
            some = positions[start : start + _GATHERED_ROWS]
            first = self._private_starts[self._row]
            private_ends = first + np.cumsum(self._lengths(some))
            private_block = self._private_rows[some]
            here = slice(first, private_ends[-1])
            self._private_values[here], self._private_columns[here] = (
                private_block.data,
                private_block.indices,
            )
            self._private_starts[self._row + 1 : self._row + 1 + len(some)] = private_ends
            self._row += len(some)

    def finish(self) -> Rows:
        return csr_of(self._private_values, self._private_columns, self._private_starts, self._width)

    def _lengths(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        starts = np.asarray(self._private_rows.indptr)
        return np.asarray(starts[positions + 1] - starts[positions], np.int64)


# ---- Coded columns: one small integer a cell, the last one for what is missing or undeclared. PRIVATE ------
def check_codes(codes: Any, levels: tuple[int, ...]) -> NDArray[Any]:
    """The codes as a numeric matrix; a masked cell becomes NaN. Looks at type and shape only.

    Raises:
        TypeError, ValueError: they are no matrix of numbers with a column for each entry of `levels`.
    """
    if isinstance(codes, np.ma.MaskedArray) and codes.dtype.kind in "biuf":
        codes = np.ma.filled(codes.astype(np.float64), np.nan)
    if sparse.issparse(codes):
        raise TypeError(
            "codes must be a dense array, got a sparse matrix: every cell of a coded table has one."
        )
    private_codes = cells.matrix(codes)
    if private_codes.ndim != 2 or private_codes.shape[1] != len(levels):
        raise ValueError(
            f"codes must have shape (rows, {len(levels)}), one column for each entry of `levels`, got "
            f"{private_codes.ndim} dimensions and {private_codes.shape[-1] if private_codes.ndim else 0} columns."
        )
    return private_codes


def store_codes(
    codes: NDArray[Any], positions: Positions, levels: tuple[int, ...]
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """The codes at some positions, in the smallest integers that hold every cell of `levels`.

    Returns:
        (stored rows, their l2 norms rounded up).
    Privacy:
        A cell depends on its own value alone: a whole number from 0 to L - 2 is kept, and anything else (NaN, huge,
        negative, a fraction, the code of a missing value) becomes L - 1. So every record has one code in each column.
    Raises:
        Nothing, and warns of nothing: the input is private.
    """
    where = np.arange(len(codes))[positions]
    private_rows: Any = aligned_zeros(len(where), len(levels), np.min_scalar_type(max(levels) - 1))
    private_norms = np.zeros(len(where))
    step = block_length(len(levels))
    for start in range(0, len(where), step):
        here = slice(start, start + step)
        private_block = codes[where[here]]
        for column, level in enumerate(levels):
            private_rows[here, column] = _column_codes(private_block[:, column], level)
        private_norms[here] = row_norms(private_rows[here])
    return private_rows, private_norms


def _column_codes(private_column: NDArray[Any], level: int) -> NDArray[np.int64]:
    """One column's cells."""
    with np.errstate(all="ignore"):
        if private_column.dtype.kind == "f":  # in which a whole number may have no float of its own
            private_wide = private_column.astype(np.float64)
            private_known = (private_wide >= 0) & (private_wide <= level - 2)
            private_known &= private_wide == np.floor(private_wide)
        else:
            private_known = (private_column >= 0) & (private_column <= level - 2)
        private_codes = np.where(private_known, private_column, 0).astype(np.int64)
    return np.where(private_known, np.minimum(private_codes, level - 2), level - 1)


# ---- How much room the units take that a run makes of its units: from public numbers alone -----------------
# A run may map the rows, as whitening does, and cut the units into blocks, both as deep as it likes. What that takes is
# told a record of the whole, since a map has as many records as what it is made of, and blocks have no more together.


DENSE_VIEW_BYTES = 2**29  # a mapped sparse matrix up to this size is stored dense
_CONSTANT_BYTES = 8 + 4  # of one more entry of a CSR row
_ARRAYS = 8  # of a set of units, at most
_BOUNDARY, _PAGE = 64, 4096  # where an array begins, and where room of its own does


class Extra(NamedTuple):
    """What a run takes besides its units. Public.

    Attributes:
        record: bytes for each record of the whole.
        copies: how often the entries of all CSR rows are copied.
        sets: how many sets of units are made: each has arrays of its own, in every part.
        anew: bytes for each record of the whole, by which units that are stored in the place of those at hand take more
            than these while they are read.
        anew_copies: likewise, how often the entries of all CSR rows.
    """

    record: int = 0
    copies: int = 0
    sets: int = 0
    anew: int = 0
    anew_copies: int = 0

    def bytes(self, records: int, entry_bytes: int, parts: int) -> int:
        """All of it.

        Args:
            records: of the whole.
            entry_bytes: of all entries of its CSR rows; 0 of others.
            parts: of the whole.
        """
        return records * self.record + self.copies * entry_bytes + self.sets * _around(parts)

    def anew_bytes(self, records: int, entry_bytes: int, parts: int) -> int:
        """By how much the reading of units takes more that are stored in the place of those at hand, see `bytes`."""
        return records * self.anew + self.anew_copies * entry_bytes + _around(parts)


def _around(parts: int) -> int:
    """What the boundaries of a set of units take."""
    return spare_bytes() + parts * _ARRAYS * _PAGE


def spare_bytes() -> int:
    """What the boundaries take on which the arrays of a set of units begin, of so many parts as is usual."""
    return 128 * _ARRAYS * _BOUNDARY


class Derived:
    """Units, and what is made of them.

    Args:
        public: what is public about the units.
        computed: whether rows are CSR, or computed from CSR as they are asked for; default: as is public.
    """

    def __init__(self, public: Public, *, computed: bool | None = None) -> None:
        self.public = public
        self._computed = public.sparse if computed is None else computed
        self._views: list[Derived] = []
        self._cuts: list[list[Derived]] = []

    def view(self, public: Public) -> "Derived":
        """The same units with mapped rows."""
        self._views.append(Derived(public, computed=not stored_dense(public, computed=self._computed)))
        return self._views[-1]

    def cut(self, publics: Sequence[Public]) -> "list[Derived]":
        """Disjoint blocks of the units."""
        self._cuts.append([Derived(public, computed=self._computed) for public in publics])
        return self._cuts[-1]

    def anything(self, blocks: int, maps: int) -> None:
        """What is made where it cannot be known, in any order: sets of blocks, and maps no wider than the rows.

        Args:
            blocks: how often all units are cut into blocks.
            maps: how often the rows of all are mapped.
        """
        whole = self
        for _ in range(blocks):
            (whole,) = whole.cut([self.public])
        for _ in range(maps):
            whole.view(self.public.mapped(self.public.d, self.public.row_bound))

    def beyond(self, at_hand: Public) -> Extra:
        """What these units and all that is made of them take, beyond other units of the same records, at hand before.

        Args:
            at_hand: what is public about those; they are given back before these are stored.
        """
        extra, computed = self.extra(), self.public.sparse
        more = self.record_bytes - record_bytes(at_hand, computed=at_hand.sparse)
        constant, longer = (
            _CONSTANT_BYTES * computed,
            computed and _itemsize(self.public) > _itemsize(at_hand),
        )
        return Extra(
            record=max(0, more + extra.record + constant),
            copies=2 * extra.copies + 1 if longer else extra.copies,  # an entry takes 12 bytes in place of 8
            sets=extra.sets + 1,
            anew=max(0, more + 2 * constant),  # CSR rows of users are read, and copied to those that are kept
            anew_copies=2 * longer,
        )

    @property
    def record_bytes(self) -> int:
        """About how many bytes a record of these units takes; of CSR, without its entries."""
        return record_bytes(self.public, computed=self._computed)

    def extra(self) -> Extra:
        """What all that is made of them takes, were all of it there at once."""
        record = copies = sets = 0
        for view in self._views:
            more = view.extra()
            record += view.record_bytes + more.record
            copies += more.copies
            sets += 1 + more.sets
        for cut in self._cuts:
            mores = [block.extra() for block in cut]
            # A drawn block may have more units than its size, but never twice as many, where so many are cut.
            kept = ORDER_BYTES if self.public.n * (1 + self.public.drawn) > DEALT else 0
            record += self.record_bytes + kept + max(more.record for more in mores)
            copies += self._computed + max(more.copies for more in mores)
            sets += bool(kept) + sum(1 + more.sets for more in mores)
        return Extra(record, copies, sets)


def stored_dense(public: Public, *, computed: bool) -> bool:
    """Whether mapped rows, of which this is public, are stored, and not computed as they are asked for."""
    most_rows = public.n * public.records_per_unit
    return not computed or _itemsize(public) * most_rows * public.d <= DENSE_VIEW_BYTES


def record_bytes(public: Public, *, computed: bool) -> int:
    """About how many bytes a record takes with what is kept of it; of CSR, or computed from it, without entries."""
    stored = 0 if computed else _itemsize(public) * public.d
    return stored + KEPT_BYTES + PARTED_BYTES * (computed or public.by_user)


def greater(one: Extra, other: Extra) -> Extra:
    """Enough for either."""
    return Extra(*map(max, one, other))


def _itemsize(public: Public) -> int:
    return np.dtype(public.storage).itemsize
