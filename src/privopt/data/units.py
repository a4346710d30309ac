"""Raw data, grouped into privacy units: stage 1 of the data's way through the house. PRIVATE.

A `Units` holds rows clipped to a public norm, targets mapped to a public domain and, for user-level privacy, which rows
a user owns. Whatever is wrong with one record's *values* makes that record count as zero; nothing raises, warns or
changes shape because of them. Only a sparse matrix whose arrays describe none is refused, see `data.sparse_format`.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.data import cells, user_keys
from privopt.data.rows import (
    LEAST_PEAK,
    MAPPED_NORM_SLACK,
    PRODUCT_ROWS,
    MappedRows,
    Rows,
    Storage,
    Stored,
    aligned_zeros,
    block_length,
    clip_rows,
    map_rows,
    whole_tiles,
)
from privopt.data.storage import RowSource, finite_rows, gather_rows, store_rows
from privopt.data.users import choose_records, offsets, user_weights, within
from privopt.errors import ArgumentError
from privopt.mechanisms.noise import NoiseSource, RepeatedChoice
from privopt.public import (
    DEFAULT_RECORDS,
    DEFAULT_WEIGHTING,
    Public,
    Relation,
    Weighting,
    of_users,
)

_LARGEST_BOUND = 1e30  # float32 ends at 3e38
MOST_ABSENT = 2  # under replace-one, n is at most this many times the number of rows
_MAPPED_AT_ONCE = 1024  # rows of one product: a product of few rows leaves most of a core's speed unused
_SMALLEST_BOUND = 1e-18  # a row of this norm has entries of `LEAST_PEAK`, however many columns there are
_DENSE_VIEW_BYTES = 2**29  # a mapped sparse matrix up to this size is stored dense


class UnitsNoise(Protocol):
    """The part of a noise source that decides which records of a user are kept."""

    @property
    def units_generator(self) -> np.random.Generator:
        """A secret generator."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Units:
    """Data grouped into privacy units; everything but `public` is private.

    Attributes:
        public: what everybody may know.
        private_features: (rows, d) stored rows of norm at most `public.row_bound`: an array, CSR, or mapped CSR.
        private_targets: (rows,) float64; 0 for an absent record.
        private_norms: (rows,) l2 norms of the stored rows, rounded up.
        private_present: (rows,) whether the record counts; an absent one has a zero row.
        private_offsets: (units + 1,) user j owns rows offsets[j] to offsets[j + 1]; None when a unit is a record.
        private_weights: (units,) weight u_j in [0, 1] of a user's average; None when a unit is a record.
        seeded: whether the choice of users' records came from a seed, or from a source that is not known to be secret.
            It makes every run on them not private: whoever can repeat the choice knows whose records were kept.

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
    seeded: bool = False

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
            entry_bound: public bound on a row's entries, with the intercept, if known to be smaller. Utility only.
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
            storage: the format of the stored rows. "float64" takes twice the memory, and is for comparisons to
                more than seven digits; the privacy is the same.
        Privacy:
            A row depends on its own record alone: clipped to `row_bound` as it is stored, or zero and absent
            if a feature or the target is NaN or infinite or the label is not among `classes`; one without an entry of
            size `LEAST_PEAK` is a zero row that is present (see `clip_rows`). A user owns their rows, their number and
            the weight computed from it; a row without a key is nobody's and is dropped, so that it moves nothing. That
            equal keys mean one user, and with replace-one the number of units (of different keys), are the caller's
            declarations.
        Raises:
            TypeError, ValueError: shapes, types, bounds or keys are wrong, or a sparse matrix is none (see
                `checked_csr`); checked before any feature or target is looked at.
        """
        relation = Relation.parse(relation)
        features = _check_features(features)
        rows, width = features.shape
        row_bound = _check_row_bound(row_bound)
        dtype = _check_storage(storage)
        intercept = _check_intercept(intercept, dtype)
        _check_target_domain(classes, target_bounds)
        targets = _check_targets(targets, rows, classes)
        users = of_users(max_records_per_user, user_weighting, typical_records)
        codes = None if groups is None else user_keys.user_codes(groups, rows)
        units = rows if codes is None else int(codes.max(initial=-1)) + 1
        public = Public(
            n=_check_units(n, units, relation, by_user=codes is not None),
            d=width + (intercept is not None),
            relation=relation,
            row_bound=row_bound if intercept is None else bound_with(row_bound, intercept),
            entry_bound=entry_bound,
            sparse=sparse.issparse(features),
            outputs=len(classes) if classes is not None and len(classes) > 2 else 1,
            **({} if codes is None else users),
        )
        private_targets, private_usable = _map_targets(targets, rows, classes, target_bounds)
        if codes is None:
            return _records(features, private_targets, private_usable, public, row_bound, intercept, dtype)
        generator = (NoiseSource() if noise is None else noise).units_generator
        private_usable &= finite_rows(features) & (codes >= 0)
        private_order, private_offsets = choose_records(
            codes, private_usable, units, max_records_per_user, generator
        )
        private_rows, private_norms, _ = store_rows(
            features, private_order, row_bound, intercept, public.row_bound, None, dtype
        )
        return cls(
            public=public,
            private_features=private_rows,
            private_targets=private_targets[private_order],
            private_norms=private_norms,
            private_present=np.ones(len(private_order), np.bool_),
            private_offsets=private_offsets,
            private_weights=user_weights(np.diff(private_offsets), max_records_per_user, user_weighting),
            seeded=noise is not None and not _is_secret(noise),
        )

    @property
    def private_count(self) -> int:
        """How many units are there: at positions 0, 1, ...; a unit at a later position is absent."""
        return len(self.private_targets) if self.private_offsets is None else len(self.private_offsets) - 1

    def private_held(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Those of some positions at which there is a unit."""
        return positions[positions < self.private_count]

    def private_rows_of(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of the units at some positions, one unit after the other."""
        if self.private_offsets is None:
            return positions
        private_counts = np.diff(self.private_offsets)[positions]
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

    def subset(self, positions: NDArray[np.int64], size: int) -> "Units":
        """The units at some positions, chosen without looking at them; `size` is their public number n."""
        positions = self.private_held(positions)
        private_rows = self.private_rows_of(positions)
        private_part = dataclasses.replace(
            self,
            public=self.public.block(size),
            private_features=gather_rows(self.private_features, private_rows),
            private_targets=self.private_targets[private_rows],
            private_norms=self.private_norms[private_rows],
            private_present=self.private_present[private_rows],
        )
        if self.private_offsets is None or self.private_weights is None:
            return private_part
        return dataclasses.replace(
            private_part,
            private_offsets=offsets(np.diff(self.private_offsets)[positions]),
            private_weights=self.private_weights[positions],
        )

    def mapped(self, matrix: NDArray[np.float64], row_bound: float) -> "Units":
        """The same units with rows `B^T a`, clipped to `row_bound`.

        Args:
            matrix: B (d, k), public or released.
            row_bound: largest l2 norm of a mapped row.
        Raises:
            ValueError: the matrix does not have d rows, or the bound is no bound.
        """
        matrix = np.ascontiguousarray(matrix, np.float64)
        if matrix.ndim != 2 or matrix.shape[0] != self.public.d or matrix.shape[1] < 1:
            raise ValueError(
                f"a row map must have shape (d, k) with d = {self.public.d}, got {matrix.shape}."
            )
        row_bound = _check_row_bound(row_bound)
        rows, width = len(self.private_targets), matrix.shape[1]
        private_source, dtype = self.private_features, self.private_features.dtype
        size = dtype.itemsize * self.public.n * width
        dense = isinstance(private_source, np.ndarray) or size <= _DENSE_VIEW_BYTES
        private_rows = aligned_zeros(rows if dense else 0, width, dtype)
        private_norms = np.zeros(rows)
        step, whole = block_length(width + self.public.d, lines=PRODUCT_ROWS), whole_tiles(matrix)
        # One product of many rows, clipped in parts that stay in the cache.
        product = max(step, _MAPPED_AT_ONCE // step * step)
        for first in range(0, rows, product):
            private_products = map_rows(private_source, slice(first, first + product), whole)[:, :width]
            for start in range(0, len(private_products), step):
                part = slice(first + start, min(first + start + step, rows))
                private_block, private_norms[part], _ = clip_rows(
                    private_products[start : start + step], row_bound, dtype
                )
                if dense:
                    private_rows[part] = private_block
        if not dense:
            private_norms = np.minimum(np.maximum(private_norms, LEAST_PEAK) * MAPPED_NORM_SLACK, row_bound)
        public = dataclasses.replace(
            self.public, d=width, row_bound=row_bound, entry_bound=None, sparse=False
        )
        return dataclasses.replace(
            self,
            public=public,
            private_features=private_rows if dense else MappedRows(private_source, matrix, row_bound),
            private_norms=private_norms,
        )

    def __repr__(self) -> str:
        return f"Units(<private>, {self.public!r})"


def _is_secret(noise: UnitsNoise) -> bool:
    """Whether a source is known to be one that nobody can repeat."""
    return isinstance(noise, NoiseSource | RepeatedChoice) and not noise.seeded


def _check_features(features: Any) -> Any:
    """A numeric matrix: an array, or a canonical CSR matrix. Looks at type, shape and sparse indices only."""
    if isinstance(features, RowSource):
        return features
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


def _check_row_bound(row_bound: Any) -> float:
    if row_bound is None:
        raise ValueError(
            "row_bound is missing: give the largest l2 norm that a row of features may have. It must be public; longer "
            "rows are scaled down to it. Features scaled to [-1, 1] by public bounds have norm at most sqrt(d)."
        )
    if isinstance(row_bound, bool) or not isinstance(row_bound, int | float | np.floating | np.integer):
        raise TypeError(f"row_bound must be a number, got {type(row_bound).__name__}.")
    if not _SMALLEST_BOUND <= row_bound <= _LARGEST_BOUND:
        raise ValueError(
            f"row_bound must be positive, between {_SMALLEST_BOUND:g} and {_LARGEST_BOUND:g}, got {row_bound!r}: give "
            "the features in another unit."
        )
    return float(row_bound)


def _check_storage(storage: str) -> np.dtype[Stored]:
    if storage not in ("float32", "float64"):
        raise ValueError(f"storage must be 'float32' or 'float64', got {storage!r}.")
    return np.dtype(storage)


def _check_intercept(intercept: float | None, dtype: np.dtype[Stored]) -> float | None:
    """The constant as it will be stored."""
    if intercept is None:
        return None
    if isinstance(intercept, bool) or not _SMALLEST_BOUND <= abs(intercept) <= _LARGEST_BOUND:
        raise ValueError(
            f"intercept must be a finite number other than 0, between {_SMALLEST_BOUND:g} and {_LARGEST_BOUND:g} in "
            f"size, got {intercept!r}: it is the value of the constant column."
        )
    return float(dtype.type(intercept))


def _check_target_domain(classes: Any, target_bounds: tuple[float, float] | None) -> None:
    if classes is not None and target_bounds is not None:
        raise ValueError("give `classes` for labels or `target_bounds` for numbers, not both.")
    if classes is not None:
        labels = list(classes)
        if len(labels) < 2 or len(set(labels)) != len(labels) or any(label != label for label in labels):
            raise ValueError(f"classes must be at least two different labels, got {labels!r}.")
    if target_bounds is not None:
        low, high = target_bounds
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(
                f"target_bounds must be two finite numbers (low, high), low < high, got {target_bounds!r}."
            )


def _check_targets(targets: Any, rows: int, classes: Any) -> NDArray[Any] | None:
    if targets is None:
        if classes is not None:
            raise ValueError(
                "classes were given without targets: give the targets too, or leave `classes` out."
            )
        return None
    array = cells.targets(targets, labels=classes is not None)
    if array.shape != (rows,):
        raise ValueError(
            "targets must have shape (rows,), one for each row of features: give as many targets as rows."
        )
    if classes is not None and array.dtype.kind != "O":
        kind = np.asarray(list(classes)).dtype.kind
        if kind != array.dtype.kind and (kind in "US" or array.dtype.kind in "US"):
            raise TypeError(
                f"targets have dtype {array.dtype}, but classes are {list(classes)!r}: give the labels as stored."
            )
    return array


def _check_units(n: Any, units: int, relation: Relation, *, by_user: bool) -> int:
    # Only the number of rows under replace-one is public: a user may be replaced by one who has none.
    what = "users" if by_user else "rows"
    if n is None:
        if relation is Relation.ADD_OR_REMOVE_ONE:
            raise ValueError(
                f"n is missing: under add-or-remove-one the number of {what} is private. Give a public "
                "number that no data set exceeds, or use relation='replace-one', which takes it as public."
            )
        return user_keys.user_count(units) if by_user else units
    if isinstance(n, bool) or not isinstance(n, int | np.integer):
        raise TypeError(f"n must be an integer, got {type(n).__name__}.")
    if relation is Relation.REPLACE_ONE and not by_user and not n / MOST_ABSENT <= units <= n:
        raise ArgumentError(
            f"n = {n} was given with {units} rows: under replace-one it lies between {units} and twice that; leave it "
            "out, or give relation='add-or-remove-one' if the number of rows is private."
        )
    if units > n:
        raise ArgumentError(
            f"there are more {what} than n = {n}: n must be a public number that no data set exceeds."
        )
    return int(n)


def bound_with(row_bound: float, intercept: float) -> float:
    """sqrt(row_bound^2 + intercept^2), rounded up: the bound of rows with the constant `intercept` appended."""
    return math.nextafter(math.nextafter(math.hypot(row_bound, intercept), math.inf), math.inf)


def _map_targets(
    targets: NDArray[Any] | None, rows: int, classes: Any, target_bounds: tuple[float, float] | None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Map each target to its public domain; say which were usable."""
    if targets is None:
        return np.zeros(rows), np.ones(rows, np.bool_)
    with np.errstate(all="ignore"):
        if classes is not None:
            private_codes = cells.label_codes(targets, list(classes))
            private_usable = private_codes >= 0
            private_values = private_codes.astype(np.float64)
            if len(classes) == 2:
                private_values = 2.0 * private_values - 1.0
        else:
            private_values = targets.astype(np.float64)
            private_usable = np.isfinite(private_values)
            if target_bounds is not None:
                private_values = np.clip(private_values, *target_bounds)
    return np.where(private_usable, private_values, 0.0), private_usable


def _records(
    features: Any,
    private_targets: NDArray[np.float64],
    private_usable: NDArray[np.bool_],
    public: Public,
    row_bound: float,
    intercept: float | None,
    dtype: np.dtype[Stored],
) -> Units:
    """Units that are records."""
    private_rows, private_norms, private_finite = store_rows(
        features, slice(None), row_bound, intercept, public.row_bound, private_usable, dtype
    )
    private_present = private_usable & private_finite
    return Units(
        public=public,
        private_features=private_rows,
        private_targets=np.where(private_present, private_targets, 0.0),
        private_norms=private_norms,
        private_present=private_present,
    )
