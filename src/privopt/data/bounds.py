"""What is declared of rows of numbers: their bound, their format, their constant column. Public."""

import math
from typing import Any

import numpy as np

from privopt.data.grid import on_grid
from privopt.public import INTEGER_STORAGES, STORAGES, real

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
