"""Targets mapped to a public domain: labels among the classes, or numbers within bounds. PRIVATE."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.data import cells
from privopt.data.containers import check_column


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
