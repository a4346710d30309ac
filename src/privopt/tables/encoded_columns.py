"""The features of single columns that are more than one number: sets, parts of dates. PRIVATE."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.errors import ArgumentError
from privopt.tables.cells import lists
from privopt.tables.column_spec import ColumnSpec
from privopt.tables.dates import PARTS, part_codes

# Rules for missing cells, and what a report says of each.
MISSING_WORDS = {
    "midpoint": "Missing cells: a number became the middle of its bounds; a record without a readable target counted "
    "as zero.",
    "zero": "Missing cells: a record with a missing feature, or without a readable target, counted as zero.",
    "indicator": "Missing cells: a number became the middle of its bounds, and a further column of 0 and 1 says where; "
    "a record without a readable target counted as zero.",
}


def most_of(column: ColumnSpec) -> int:
    """How many of a column's features can be other than zero."""
    most = {"pixels": column.size, "set": column.max_active or column.size, "date": len(column.parts) or 1}
    return most.get(column.kind, 1)


def fill_parts(out: NDArray[np.float32], column: ColumnSpec, private_days: NDArray[np.float64]) -> None:
    """Write the parts of dates, one feature for each value that a part can have, into their place of zeros."""
    first = 0
    for part in column.parts:
        codes = part_codes(private_days, part)
        known = np.flatnonzero(codes >= 0)
        out[known, first + codes[known]] = 1.0
        first += PARTS[part]


def no_list(column: ColumnSpec, private_column: Any) -> NDArray[np.bool_]:
    """Which rows of a set have no list."""
    private_lengths = [lengths for lengths, _ in lists(private_column, column.name)]
    return np.concatenate([np.zeros(0, np.int64), *private_lengths]) < 0


def active_indices(column: ColumnSpec, private_column: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """How many active indices below `size` each row has, at most `max_active`, and all of them: each once, in order."""
    count = len(private_column)
    kind = np.int32 if count * column.size < 2**31 else np.int64  # of keys: the shorter are sorted sooner
    size, first = kind(column.size), 0
    rows, indices = [np.zeros(0, kind)], [np.zeros(0, kind)]
    for lengths, private_flat in lists(private_column, column.name):
        row = np.repeat(np.arange(first, first + len(lengths), dtype=kind), np.maximum(lengths, 0))
        first += len(lengths)
        usable = (private_flat >= 0) & (private_flat < column.size)
        if private_flat.dtype.kind == "f":
            usable &= private_flat == np.floor(private_flat)
        rows.append(row[usable])
        indices.append(private_flat[usable].astype(kind))
    row, index = np.concatenate(rows), np.concatenate(indices)
    key = row * size + index  # one number that orders the pairs by row, then by index
    if np.any(key[1:] <= key[:-1]):  # not sorted yet, or with repetitions
        key.sort()  # `np.unique` hashes, which takes ten times as long; the row at each place stays
        once = np.append(True, key[1:] != key[:-1])
        row, index = row[once], (key - row * size)[once]
    active = np.bincount(row, minlength=count)
    if column.max_active is not None and np.any(active > column.max_active):
        place = np.arange(len(row)) - np.repeat(np.cumsum(active) - active, active)
        index = index[place < column.max_active]
        active = np.minimum(active, column.max_active)
    return active, index


def check_missing(rule: Any) -> None:
    """Refuse a rule for missing cells that there is not.

    Raises:
        ArgumentError: there is none of this name.
    """
    if rule not in MISSING_WORDS:
        raise ArgumentError(f"missing must be 'midpoint', 'zero' or 'indicator', got {rule!r}.")
