"""Raw data, grouped into privacy units: stage 1 of the data's way through the house. PRIVATE.

A `Units` holds rows clipped to a public norm, targets mapped to a public domain and, for user-level privacy, which rows
a user owns. Whatever is wrong with one record's *values* makes that record count as zero; nothing raises, warns or
changes shape because of them. Only a sparse matrix whose arrays describe none is refused, see `data.cells`.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, SupportsIndex

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.data import user_keys
from privopt.data.places import DEALT, Places, Ranges, pieces, ranges_among
from privopt.data.room import MEMORY, Copies, Room
from privopt.data.rows import (
    LEAST_PEAK,
    MAPPED_NORM_SLACK,
    PRODUCT_ROWS,
    GridRows,
    MappedRows,
    Rows,
    Storage,
    block_length,
    clip_stored,
    grid_steps,
    is_computed,
    map_rows,
    on_grid,
    row_range,
    whole_tiles,
)
from privopt.data.storage import (
    check_codes,
    checked_features,
    finite_rows,
    record_bytes,
    row_copies,
    store_codes,
    store_rows,
    stored_dense,
)
from privopt.data.targets import (
    bound_with,
    check_intercept,
    check_row_bound,
    check_storage,
    check_target_domain,
    check_targets,
    check_units,
    choose_records,
    map_targets,
    offsets,
    row_counts,
    user_weights,
    within,
)
from privopt.data.user_keys import UnitsNoise, UserSecret, is_secret
from privopt.data.user_parts import (
    NOBODY,
    UserRecords,
    laid_out_by,
    lay_out_part,
    part_count,
    parts_of_digests,
    user_digests,
)
from privopt.problems.workload import checked_levels
from privopt.public import DEFAULT_RECORDS, DEFAULT_WEIGHTING, Public, Relation, Weighting, of_users

_MAPPED_AT_ONCE = 1024  # rows of one product: a product of few rows leaves most of a core's speed unused


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Units:
    """Data grouped into privacy units; everything but `public` is private.

    Attributes:
        public: what everybody may know.
        private_features: (rows, d) stored rows of norm at most `public.row_bound`: an array, rows on a grid, CSR, or
            mapped CSR; an array of integers where `public.levels` says that the columns are coded.
        private_targets: (rows,) float64; 0 for an absent record.
        private_norms: (rows,) l2 norms of the stored rows, rounded up.
        private_present: (rows,) whether the record counts; an absent one has a zero row.
        private_offsets: (units + 1,) user j owns rows offsets[j] to offsets[j + 1]; None when a unit is a record.
        private_weights: (units,) weight u_j in [0, 1] of a user's average; None when a unit is a record.
        private_ranges: of users in several parts, where each begins and ends, see `user_parts`; None where there is one
            part, or where parts follow from the number of units.
        seeded: whether the choice of users' records came from a seed, or from a source that is not known to be secret.
            It makes every run on them not private: whoever can repeat the choice knows whose records were kept.
        origin: what the records were read from, and as what, as a digest of files' names, sizes and times and of the
            public description; empty for arrays.
        laid_out: by which secret users are divided into parts, as a digest of it, see `user_digests.laid_out_by`; empty
            where they are not, or where no other process could find them at the same places.
        first: of a part, see `part`: the position of its first unit among all.
        room: where the arrays lie, and those that are made of them.

    Memory is taken for the units that are there, never for n: a unit beyond them is absent and adds nothing. How many
    rows are there is public where a unit is a record and may be replaced only. Elsewhere it is private, as is how many
    users have any: it stays with the curator and shows in memory and running time only.
    """

    public: Public
    private_features: Rows
    private_targets: NDArray[np.float64]
    private_norms: NDArray[np.float64]
    private_present: NDArray[np.bool_]
    private_offsets: NDArray[np.int64] | None = None
    private_weights: NDArray[np.float64] | None = None
    private_ranges: Ranges | None = None
    seeded: bool = False
    origin: str = ""
    laid_out: str = ""
    first: int = 0
    room: Room = MEMORY

    @classmethod
    def from_arrays(
        cls,
        features: Any,
        targets: Any = None,
        *,
        relation: Relation | str = Relation.REPLACE_ONE,
        row_bound: float | None = None,
        entry_bound: float | None = None,
        n: int | None = None,
        groups: Any = None,
        max_records_per_user: int = DEFAULT_RECORDS,
        user_weighting: Weighting = DEFAULT_WEIGHTING,
        typical_records: float | None = None,
        classes: Sequence[Any] | NDArray[Any] | None = None,
        target_bounds: tuple[float, float] | None = None,
        intercept: float | None = None,
        noise: UnitsNoise | None = None,
        storage: Storage = "float32",
    ) -> "Units":
        """Group arrays into privacy units.

        Args:
            features: (rows, d) numbers: dense, SciPy sparse (kept as CSR, never made dense), or a `RowSource`. Copied
                as `storage`.
            targets: (rows,) numbers, or labels when `classes` is given; None for no targets. Python objects are read
                one by one, and one that is no number counts as NaN.
            relation: the neighbouring relation.
            row_bound: public bound on a row's l2 norm, without the intercept column; longer rows are scaled to it.
            entry_bound: public bound on a row's entries, with the intercept, if known to be smaller. Utility only:
                floats are not cut to it; where `storage` is of integers, features beyond it become it.
            n: public number of units; those beyond the rows (or users) given are absent. Under replace-one it defaults
                to the number of rows or of distinct users; the rows' number is public there, and n at most twice that.
                Under add-or-remove-one it is required: a nominal number that means divide by, chosen without looking.
                Nothing shows how many fewer units there are; more are refused, so let no data set exceed it.
            groups: (rows,) user keys, or (rows, k) where k columns together name a user; then the privacy unit is a
                user, all of whose records change together. Any value that can be hashed is a key, see
                `data.user_keys`. A record whose key is missing (None, NaN, NaT, an empty text, in any of the columns)
                belongs to nobody and counts as nothing.
            max_records_per_user: public cap M; a user keeps a uniformly random choice of at most M usable records.
            user_weighting: weight of a user's average of k records: "user" 1, "sqrt" sqrt(k / M), "record" k / M.
            typical_records: public guess of the records that a typical user keeps; default sqrt(M). Utility only.
            classes: the public labels. Two are mapped to -1 and +1, more to 0, 1, 2, ...
            target_bounds: public (low, high); numbers outside are moved to the nearer end.
            intercept: public value of a constant last column to append; None for no such column.
            noise: source of the secret choice of a user's records; default: fresh, from the operating system.
            storage: the format of the stored rows; the privacy is the same. "float64" takes twice the memory, for
                comparisons to more than seven digits. "int16" takes half and "int8" a quarter, for dense rows: an entry
                is rounded to a multiple of a public step, `entry_bound` (or `row_bound`) over 32767 or 127, so that no
                row gets longer. Give the `entry_bound` that you know of: the grid is as fine as that is small.
        Privacy:
            A row depends on its own record alone: clipped to `row_bound` as it is stored, or zero and absent
            if a feature or the target is NaN or infinite or the label is not among `classes`; one without an entry of
            size `LEAST_PEAK` is a zero row that is present (see `clip_rows`). A user owns their rows, their number and
            the weight computed from it; a row without a key is nobody's and is dropped, so that it moves nothing. Each
            user lies whole in one part of the sums: of many users, in that of a secret hash, see `user_parts`. That
            equal keys mean one user, and with replace-one the number of units (of different keys), are the caller's
            declarations.
        Raises:
            TypeError, ValueError: shapes, types, bounds or keys are wrong, or a sparse matrix is none (see
                `checked_csr`); checked before any feature or target is looked at.
        """
        relation = Relation.parse(relation)
        features = checked_features(features)
        rows, width = features.shape
        row_bound = check_row_bound(row_bound)
        dtype = check_storage(storage, is_sparse=sparse.issparse(features))
        intercept = check_intercept(intercept, dtype)
        check_target_domain(classes, target_bounds)
        targets = check_targets(targets, rows, classes)
        users = of_users(max_records_per_user, user_weighting, typical_records)
        codes = None if groups is None else user_keys.user_codes(groups, rows)
        units = rows if codes is None else int(codes.max(initial=-1)) + 1
        public = Public(
            n=check_units(n, units, relation, by_user=codes is not None),
            d=width + (intercept is not None),
            relation=relation,
            row_bound=row_bound if intercept is None else bound_with(row_bound, intercept),
            entry_bound=entry_bound,
            sparse=sparse.issparse(features),
            outputs=len(classes) if classes is not None and len(classes) > 2 else 1,
            storage=storage,
            **({} if codes is None else users),
        )
        private_targets, private_usable = map_targets(targets, rows, classes, target_bounds)
        if codes is None:
            return _records(features, private_targets, private_usable, public, row_bound, intercept, dtype)
        private_usable &= finite_rows(features)
        private_users = lay_out_users(
            groups, codes, private_usable, n=public.n, cap=max_records_per_user, noise=noise
        )
        private_order, private_offsets, private_ranges, laid_out = private_users
        private_rows, private_norms, _ = store_rows(
            features, private_order, row_bound, intercept, public, None, dtype
        )
        return cls(
            public=public,
            private_features=private_rows,
            private_targets=private_targets[private_order],
            private_norms=private_norms,
            private_present=np.ones(len(private_order), np.bool_),
            private_offsets=private_offsets,
            private_weights=user_weights(np.diff(private_offsets), max_records_per_user, user_weighting),
            private_ranges=private_ranges,
            seeded=noise is not None and not is_secret(noise),
            laid_out=laid_out,
        )

    @classmethod
    def from_codes(
        cls,
        codes: Any,
        *,
        levels: Sequence[int] | NDArray[np.integer[Any]],
        relation: Relation | str = Relation.REPLACE_ONE,
        n: int | None = None,
        groups: Any = None,
        max_records_per_user: int = DEFAULT_RECORDS,
        user_weighting: Weighting = DEFAULT_WEIGHTING,
        typical_records: float | None = None,
        noise: UnitsNoise | None = None,
    ) -> "Units":
        """Group a table of coded columns into privacy units: for marginals and synthetic data.

        Args:
            codes: (rows, d) whole numbers. One outside of 0, ..., L - 2, or a missing one, counts as the cell L - 1.
            levels: L of each column: its cells, that of a missing or undeclared value included as the last one.
            relation: see `from_arrays`, as for all that follow.
            n: the public number of units.
            groups: user keys.
            max_records_per_user: public cap M.
            user_weighting: weight of a user's average.
            typical_records: public guess of the records of a user.
            noise: source of the secret choice of a user's records.
        Privacy:
            A row depends on its own record alone and has one code in each column, see `store_codes`; no record is
            absent because of its values. Users are as in `from_arrays`. Queries that compute with the numbers in a row
            are refused by such units: a code is the name of a cell.
        Raises:
            TypeError, ValueError: shapes, types or keys are wrong; checked before any code is looked at.
        """
        relation, checked = Relation.parse(relation), checked_levels(levels)
        codes = check_codes(codes, checked)
        users = of_users(max_records_per_user, user_weighting, typical_records)
        keys = None if groups is None else user_keys.user_codes(groups, len(codes))
        units = len(codes) if keys is None else int(keys.max(initial=-1)) + 1
        count = check_units(n, units, relation, by_user=keys is not None)
        public = Public.of_codes(count, checked, relation, **({} if keys is None else users))
        private_order: slice | NDArray[np.int64] = slice(None)
        private_offsets, private_weights, private_ranges, laid_out = None, None, None, ""
        if keys is not None:
            private_users = lay_out_users(
                groups, keys, keys >= 0, n=count, cap=max_records_per_user, noise=noise
            )
            private_order, private_offsets, private_ranges, laid_out = private_users
            private_weights = user_weights(np.diff(private_offsets), max_records_per_user, user_weighting)
        private_rows, private_norms = store_codes(codes, private_order, checked)
        return cls(
            public=public,
            private_features=private_rows,
            private_targets=np.zeros(len(private_rows)),
            private_norms=private_norms,
            private_present=np.ones(len(private_rows), np.bool_),
            private_offsets=private_offsets,
            private_weights=private_weights,
            private_ranges=private_ranges,
            seeded=keys is not None and noise is not None and not is_secret(noise),
            laid_out=laid_out,
        )

    @property
    def private_count(self) -> int:
        """How many units are there: at positions 0, 1, ...; a unit at a later position is absent."""
        return len(self.private_targets) if self.private_offsets is None else len(self.private_offsets) - 1

    def private_rows_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of the units at some positions, one unit after the other."""
        if self.private_offsets is None:
            return positions
        private_counts = row_counts(self.private_offsets, positions)
        return np.repeat(self.private_offsets[positions], private_counts) + within(private_counts)

    def weighted_as(self, weighting: Weighting | None) -> "Units":
        """The same units with users' averages weighted in another way; None for the weighting of the data."""
        if self.private_offsets is None or weighting in (None, self.public.weighting):
            return self
        private_counts = np.diff(self.private_offsets)
        private_weights = user_weights(private_counts, self.public.records_per_unit, weighting)
        return dataclasses.replace(
            self,
            public=dataclasses.replace(self.public, weighting=weighting),
            private_weights=private_weights,
        )

    def subset(self, places: Places, size: int) -> "Units":
        """The units at some places, chosen without looking at them; `size` is their public number n.

        They are copied some at a time: beside the copy it takes memory for the positions of `DEALT` units.
        """
        private_count = int(places.before([self.private_count])[0])
        private_rows = private_count
        if self.private_offsets is not None:
            private_rows = sum(len(rows) for _, rows in self._private_pieces(places))
        room = self.room.another(
            private_rows * record_bytes(self.public, computed=is_computed(self.private_features))
        )
        private_features = row_copies(
            self.private_features, room, (rows for _, rows in self._private_pieces(places)), private_rows
        )
        private_columns = [
            Copies(room, private_column, private_rows)
            for private_column in (self.private_targets, self.private_norms, self.private_present)
        ]
        private_offsets = private_weights = None
        if self.private_offsets is not None and self.private_weights is not None:
            private_offsets = room.zeros(private_count + 1, np.int64)
            private_weights = Copies(room, self.private_weights, private_count)
        done = 0
        for private_positions, private_piece in self._private_pieces(places):
            private_features.add(private_piece)
            for private_column in private_columns:
                private_column.add(private_piece)
            if (
                self.private_offsets is not None
                and private_offsets is not None
                and private_weights is not None
            ):
                private_weights.add(private_positions)
                stop = done + len(private_positions)
                private_counts = row_counts(self.private_offsets, private_positions)
                private_offsets[done + 1 : stop + 1] = private_offsets[done] + np.cumsum(private_counts)
                done = stop
        private_targets, private_norms, private_present = (column.private_copy for column in private_columns)
        return dataclasses.replace(
            self,
            public=self.public.block(size),
            private_features=private_features.finish(),
            private_targets=private_targets,
            private_norms=private_norms,
            private_present=private_present,
            private_offsets=private_offsets,
            private_weights=private_weights and private_weights.private_copy,
            private_ranges=self.private_ranges and ranges_among(self.private_ranges, places),
            room=room,
        )

    def _private_pieces(self, places: Places) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """The positions at some places at which there is a unit, and their rows, some at a time."""
        for private_positions in pieces(places, self.private_count):
            if self.private_offsets is None:
                yield private_positions, private_positions
                continue
            # One user's rows are at most as many as the cap: some users' at a time, from public numbers.
            step = max(1, DEALT // self.public.records_per_unit)
            for start in range(0, len(private_positions), step):
                private_some = private_positions[start : start + step]
                yield private_some, self.private_rows_of(private_some)

    def part(self, start: int, stop: int) -> "Units":
        """The units at the positions start..stop-1, not copied; `public` still describes all."""
        low, high = start, stop
        private_offsets = private_weights = None
        if self.private_offsets is not None and self.private_weights is not None:
            low, high = int(self.private_offsets[start]), int(self.private_offsets[stop])
            private_offsets = self.room.keep(self.private_offsets[start : stop + 1] - low)
            private_weights = self.private_weights[start:stop]
        return dataclasses.replace(
            self,
            private_features=row_range(self.private_features, low, high, self.room),
            private_targets=self.private_targets[low:high],
            private_norms=self.private_norms[low:high],
            private_present=self.private_present[low:high],
            private_offsets=private_offsets,
            private_weights=private_weights,
            private_ranges=None,
            first=self.first + start,
        )

    def mapped(self, matrix: NDArray[np.float64], row_bound: float) -> "Units":
        """The same units with rows `B^T a`, clipped to `row_bound`.

        Args:
            matrix: B (d, k), public or released.
            row_bound: largest l2 norm of a mapped row.
        Raises:
            ValueError: the rows are coded, the matrix does not have d rows, or the bound is no bound.
        """
        self.public.require_numbers("a linear map of the rows")
        matrix = np.ascontiguousarray(matrix, np.float64)
        if matrix.ndim != 2 or matrix.shape[0] != self.public.d or matrix.shape[1] < 1:
            raise ValueError(
                f"a row map must have shape (d, k) with d = {self.public.d}, got {matrix.shape}."
            )
        row_bound = check_row_bound(row_bound)
        rows, width = len(self.private_targets), matrix.shape[1]
        private_source, public = self.private_features, self.public.mapped(width, row_bound)
        dtype = np.dtype(public.storage)
        dense = stored_dense(public, computed=is_computed(private_source))
        steps = grid_steps(width, row_bound, None, dtype) if on_grid(dtype) else None
        room = self.room.another(rows * record_bytes(public, computed=not dense))
        private_rows = room.zeros((rows if dense else 0, width), dtype)
        private_norms = room.zeros(rows, np.float64)
        step, whole = block_length(width + self.public.d, lines=PRODUCT_ROWS), whole_tiles(matrix)
        # One product of many rows, clipped in parts that stay in the cache.
        product = max(step, _MAPPED_AT_ONCE // step * step)
        for first in range(0, rows, product):
            private_products = map_rows(private_source, slice(first, first + product), whole)[:, :width]
            for start in range(0, len(private_products), step):
                part = slice(first + start, min(first + start + step, rows))
                private_block, private_norms[part], _ = clip_stored(
                    private_products[start : start + step], row_bound, dtype, steps
                )
                if dense:
                    room.write(private_rows, part.start, private_block)
        if not dense:
            private_longer = np.maximum(private_norms, LEAST_PEAK) * MAPPED_NORM_SLACK
            np.minimum(private_longer, row_bound, out=private_norms)
        private_view = private_rows if steps is None else GridRows(private_rows, steps)
        return dataclasses.replace(
            self,
            public=public,
            private_features=private_view if dense else MappedRows(private_source, matrix, row_bound),
            private_norms=private_norms,
            room=room,
        )

    def __repr__(self) -> str:
        return f"Units(<private>, {self.public!r})"

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise TypeError(
            "Units cannot be pickled or copied: the copy would hold every private record. Give another "
            "process the arrays, and make the Units there."
        )


def _records(
    features: Any,
    private_targets: NDArray[np.float64],
    private_usable: NDArray[np.bool_],
    public: Public,
    row_bound: float,
    intercept: float | None,
    dtype: np.dtype[Any],
) -> Units:
    """Units that are records."""
    private_rows, private_norms, private_finite = store_rows(
        features, slice(None), row_bound, intercept, public, private_usable, dtype
    )
    private_present = private_usable & private_finite
    return Units(
        public=public,
        private_features=private_rows,
        private_targets=np.where(private_present, private_targets, 0.0),
        private_norms=private_norms,
        private_present=private_present,
    )


# ---- Where the records of users in memory go: whole users, part by part. PRIVATE ---------------------------
class UsersInMemory(NamedTuple):
    """Which records users keep.

    Attributes:
        private_order: rows, user after user.
        private_offsets: (users + 1,) where each user's begin.
        private_ranges: where each part begins and ends; None where there is one.
        laid_out: see `Units.laid_out`.
    """

    private_order: NDArray[np.int64]
    private_offsets: NDArray[np.int64]
    private_ranges: Ranges | None
    laid_out: str = ""


def lay_out_users(
    private_keys: Any,
    codes: NDArray[np.int64],
    private_usable: NDArray[np.bool_],
    *,
    n: int,
    cap: int,
    noise: UnitsNoise | None,
) -> UsersInMemory:
    """Choose each user's records, and put users into the parts that `user_parts` says.

    Args:
        private_keys: of the records.
        codes: the same keys as numbers, see `user_keys.user_codes`.
        private_usable: which records may be kept.
        n: the public number of users.
        cap: M, the most records of a user.
        noise: source of the secret choice; default: fresh, from the operating system.
    """
    rows, parts = len(codes), part_count(n, cap)
    secret = UserSecret.drawn(noise, rows)
    lottery = secret.lottery(0, rows)
    if parts == 1:
        users = int(codes.max(initial=-1)) + 1
        return UsersInMemory(*choose_records(codes, private_usable & (codes >= 0), users, cap, lottery), None)
    private_digests, private_rest = user_digests(private_keys, rows, secret)
    private_rows = np.flatnonzero(private_digests != NOBODY)
    private_owners = parts_of_digests(private_digests[private_rows], parts)
    private_rows = private_rows[np.argsort(private_owners, kind="stable")]
    private_ends = np.cumsum(np.bincount(private_owners, minlength=parts))
    private_chosen, private_counts = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    private_stops = [0]
    for part, private_own in enumerate(np.split(private_rows, private_ends[:-1])):
        private_records = UserRecords(
            private_digests[private_own],
            private_rest[private_own],
            private_own,
            lottery[private_own],
            private_usable[private_own],
        )
        private_layout = lay_out_part(private_records, cap, part, parts)
        private_chosen.append(private_own[private_layout.private_chosen])
        private_counts.append(np.diff(private_layout.private_offsets))
        private_stops.append(private_stops[-1] + len(private_counts[-1]))
    return UsersInMemory(
        np.concatenate(private_chosen),
        offsets(np.concatenate(private_counts)),
        tuple(itertools.pairwise(private_stops)),
        laid_out_by(secret),
    )
