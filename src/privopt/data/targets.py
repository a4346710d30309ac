"""Targets mapped to a public domain: labels among the classes, or numbers within bounds. PRIVATE."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.data import cells, user_keys
from privopt.data.containers import check_column
from privopt.data.rows import on_grid
from privopt.errors import ArgumentError
from privopt.public import INTEGER_STORAGES, STORAGES, Relation, Weighting, real


def check_target_domain(classes: Any, target_bounds: tuple[float, float] | None) -> None:
    """Refuse classes or bounds that are none.

    Raises:
        ValueError: they are no classes, no bounds, or both are given.
    """
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


def check_targets(targets: Any, rows: int, classes: Any) -> NDArray[Any] | None:
    """The targets as an array, one for each row; None where there are none.

    Raises:
        TypeError, ValueError: their shape or type does not fit.
    """
    if targets is None:
        if classes is not None:
            raise ValueError(
                "classes were given without targets: give the targets too, or leave `classes` out."
            )
        return None
    check_column(targets, "targets", "one target")
    array = cells.targets(targets, labels=classes is not None)
    if array.shape != (rows,):
        raise ValueError(
            "targets must have shape (rows,), one for each row of features: give as many targets as rows."
        )
    if classes is not None and (
        (array.dtype.kind in "biuf" and not any(map(_writes_number, classes)))
        or (array.dtype.kind == "S" and not all(isinstance(label, bytes) for label in classes))
    ):
        raise TypeError(
            f"targets have dtype {array.dtype}, but classes are {list(classes)!r}: give the labels as stored."
        )
    return array


def map_targets(
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


def _writes_number(label: Any) -> bool:
    """Whether a label is a number, or a text that writes one."""
    return not math.isnan(cells.number(label))


# ---- What is declared of rows of numbers: their bound, their format, their constant column. Public ---------


_LARGEST_BOUND = 1e30  # float32 ends at 3e38
_SMALLEST_BOUND = 1e-18  # a row of this norm has entries of `LEAST_PEAK`, however many columns there are


def check_row_bound(row_bound: Any) -> float:
    """The bound on a row's l2 norm.

    Raises:
        TypeError, ValueError: it is missing, or no such bound.
    """
    if row_bound is None:
        raise ValueError(
            "row_bound is missing: give the largest l2 norm that a row of features may have. It must be public; longer "
            "rows are scaled down to it. Features scaled to [-1, 1] by public bounds have norm at most sqrt(d)."
        )
    row_bound = real("row_bound", row_bound)
    if not _SMALLEST_BOUND <= row_bound <= _LARGEST_BOUND:
        raise ValueError(
            f"row_bound must be positive, between {_SMALLEST_BOUND:g} and {_LARGEST_BOUND:g}, got {row_bound!r}: give "
            "the features in another unit."
        )
    return row_bound


def check_storage(storage: Any, *, is_sparse: bool = False) -> np.dtype[Any]:
    """The format that rows are stored in.

    Raises:
        ValueError: there is no such format, or sparse rows have none such.
    """
    if storage not in STORAGES:
        raise ValueError(
            f"storage must be {', '.join(map(repr, STORAGES[:-1]))} or {STORAGES[-1]!r}, got {storage!r}."
        )
    if is_sparse and storage in INTEGER_STORAGES:
        raise ValueError(
            f"storage={storage!r} is for dense rows: the column numbers of sparse ones would take as much memory as "
            "before. Give storage='float32', or dense features."
        )
    return np.dtype(storage)


def check_intercept(intercept: float | None, dtype: np.dtype[Any]) -> float | None:
    """The constant as it will be stored.

    Raises:
        ValueError: it is no constant.
    """
    if intercept is None:
        return None
    if isinstance(intercept, bool) or not _SMALLEST_BOUND <= abs(intercept) <= _LARGEST_BOUND:
        raise ValueError(
            f"intercept must be a finite number other than 0, between {_SMALLEST_BOUND:g} and {_LARGEST_BOUND:g} in "
            f"size, got {intercept!r}: it is the value of the constant column."
        )
    return float(np.float32(intercept) if on_grid(dtype) else dtype.type(intercept))


def bound_with(row_bound: float, intercept: float) -> float:
    """sqrt(row_bound^2 + intercept^2), rounded up: the bound of rows with the constant `intercept` appended."""
    return math.nextafter(math.nextafter(math.hypot(row_bound, intercept), math.inf), math.inf)


# ---- The public number of units, and whether so many can be there ------------------------------------------


MOST_ABSENT = 2  # under replace-one, n is at most this many times the number of rows


def check_units(n: Any, units: int, relation: Relation, *, by_user: bool) -> int:
    """The public number of units, where so many are there; see `Units.from_arrays` for what is refused."""
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
    if relation is Relation.REPLACE_ONE and not by_user and not units <= n <= MOST_ABSENT * units:
        raise ArgumentError(
            f"n = {n} was given with {units} rows: under replace-one it lies between {units} and twice that; leave it "
            "out, or give relation='add-or-remove-one' if the number of rows is private."
        )
    if units > n:
        raise ArgumentError(
            f"there are more {what} than n = {n}: n must be a public number that no data set exceeds."
        )
    return int(n)


# ---- Which records a user keeps, how they are laid out, and what a user's average weighs -------------------


def choose_records(
    codes: NDArray[np.int64],
    private_usable: NDArray[np.bool_],
    users: int,
    cap: int,
    lottery: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Choose at most `cap` usable records of each user: those with the smallest lottery numbers.

    Args:
        codes: whose each record is; any number where it is not usable.
        private_usable: which records may be chosen.
        users: how many there are.
        cap: the most of one user.
        lottery: a number of each record, drawn from [0, 1) without looking at it, so that the choice is uniform.
    Returns:
        (chosen rows sorted by user, in their given order within a user; offsets of the users).
    """
    private_rows = np.flatnonzero(private_usable)
    private_rows = private_rows[np.argsort(codes[private_rows], kind="stable")]
    private_counts = np.bincount(codes[private_rows], minlength=users)
    private_crowded = np.repeat(private_counts > cap, private_counts)
    private_kept = np.ones(len(private_rows), np.bool_)
    private_drawn = np.flatnonzero(private_crowded)
    private_among = private_rows[private_drawn]
    private_drawn = private_drawn[np.lexsort((lottery[private_among], codes[private_among]))]
    private_kept[private_drawn] = within(private_counts[private_counts > cap]) < cap
    return private_rows[private_kept], offsets(np.minimum(private_counts, cap))


def user_weights(private_counts: NDArray[np.int64], cap: int, weighting: Weighting) -> NDArray[np.float64]:
    """The weight of each user's average; 0 for a user without records."""
    if weighting == "user":
        return (private_counts > 0).astype(np.float64)
    share = private_counts / cap
    return np.sqrt(share) if weighting == "sqrt" else share


def within(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, 1, ..., c - 1 for each count c, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)


def offsets(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each of the consecutive runs starts, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def row_counts(private_offsets: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many rows the units at some positions have."""
    return private_offsets[positions + 1] - private_offsets[positions]
