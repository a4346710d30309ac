"""Cells of numbers, flags and dates as float64, by the public description of their column. PRIVATE."""

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from privopt.data import cells
from privopt.errors import ArgumentError
from privopt.tables.cells import by_text, each, is_text, level_codes, lists, numbers, read_columns, unmarked
from privopt.tables.column_spec import PARTS, ColumnSpec, day_number, part_codes
from privopt.tables.errors import TableError
from privopt.tables.schema import Schema

Floats = NDArray[np.float64]

_TICKS = {"s": 86400, "ms": 86400 * 10**3, "us": 86400 * 10**6, "ns": 86400 * 10**9}  # of a day

_FARTHEST = 2**1000  # below the largest float


def read_values(private_column: Any, spec: ColumnSpec) -> Floats:
    """Every cell of a number, a flag or a date as a float64; NaN where it is missing or cannot be read.

    Raises:
        TableError: the column is stored as something that holds no such cells.
    """
    if spec.kind == "flag":
        return _flags(private_column, spec)
    if spec.kind == "date":
        return _days(private_column, spec)
    return numbers(private_column, spec.name, spec.format)


def whole_offsets(private_column: Any, spec: ColumnSpec, origin: int) -> Floats:
    """How far every cell of a number is from a whole number, exact where it is whole; NaN where it cannot be read.

    Raises:
        TableError: the column is stored as something that holds no numbers.
    """
    kind = getattr(private_column, "type", None)

    def read(private_cell: Any) -> float:
        private_whole = private_cell
        if isinstance(private_cell, str) and cells.is_written_integer(private_cell.strip()):
            private_whole = int(private_cell)
        if isinstance(private_whole, int | np.integer) and not isinstance(private_whole, bool):
            private_offset = int(private_whole) - origin
            return float(private_offset) if abs(private_offset) < _FARTHEST else math.nan
        return spec.format.number(private_cell) - origin

    if kind is None:
        return each(private_column, read)
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_integer(value) or is_text(value):
        return by_text(private_column, read)
    return numbers(private_column, spec.name, spec.format) - origin


def is_stored_as_truth(private_column: Any) -> bool:
    """Whether a column declares that its cells are truth values."""
    return not isinstance(private_column, np.ndarray) and pa.types.is_boolean(private_column.type)


def loaded(private_column: Any, spec: ColumnSpec) -> Any:
    """A column of texts as it is kept in memory: numbers and flags as such, where a cell that is none is null."""
    private_column = unmarked(private_column, spec)
    if spec.kind not in ("num", "flag") or spec.is_huge:
        return private_column
    private_values = read_values(private_column, spec)
    if spec.kind == "num":
        return pa.chunked_array([private_values])
    return pa.chunked_array([pa.array(private_values == 1.0, pa.bool_(), mask=~np.isfinite(private_values))])


def _flags(private_column: Any, spec: ColumnSpec) -> Floats:
    """Every cell of a flag as 0 or 1."""
    kind = getattr(private_column, "type", None)

    def read(private_cell: Any) -> float:
        return cells.flag(private_cell, spec.writings)

    if kind is None:
        return each(private_column, read)
    if pa.types.is_null(kind):
        return np.full(len(private_column), np.nan)
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    is_number = pa.types.is_integer(value) or pa.types.is_floating(value) or pa.types.is_decimal(value)
    if pa.types.is_boolean(kind) or (is_number and value is kind and spec.writings is None):
        return cells.rounded_flags(numbers(private_column, spec.name))
    if not (is_number or pa.types.is_boolean(value) or is_text(value)):
        raise TableError(f"Column {spec.name!r} is stored as {kind}: the schema says that it is a flag.")
    return by_text(private_column, read)


def _days(private_column: Any, spec: ColumnSpec) -> Floats:
    """Every cell of a date in days, see `day_number`."""
    kind = getattr(private_column, "type", None)
    if kind is None:
        return each(private_column, day_number)
    if pa.types.is_null(kind):
        return np.full(len(private_column), np.nan)
    if pa.types.is_dictionary(kind):
        return _days(private_column.cast(kind.value_type), spec)
    if is_text(kind):
        return by_text(private_column, day_number)
    if not (pa.types.is_date(kind) or pa.types.is_timestamp(kind)):
        raise TableError(
            f"Column {spec.name!r} is stored as {kind}: the schema says that it holds dates. Store it as dates, "
            'times or text such as "1990-01-31".'
        )
    per_day = 1 if pa.types.is_date32(kind) else _TICKS[getattr(kind, "unit", "ms")]
    whole = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    return numbers(private_column.cast(whole), spec.name) / per_day


# ---- The features of single columns that are more than one number: sets, parts of dates --------------------


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


# ---- The column to predict, as the labels or numbers a model takes -----------------------------------------


class TargetReading(Protocol):
    """What is read of a row as its target where that is more than one column says. PRIVATE.

    A value that can be pickled, and that is told apart from others by how it prints.
    """

    @property
    def columns(self) -> Sequence[str]:
        """The columns that it reads."""
        ...

    def __call__(self, private_table: Any) -> NDArray[Any]:
        """The target of every row, NaN for a record that is to count as zero.

        Raises:
            TableError: a column is stored as something else.
        """
        ...


def read_target(table: Any, schema: Schema, target: str | None = None) -> NDArray[Any]:
    """The target of every row, in the terms of `schema.target_encoding(target)`.

    Returns:
        For a flag 0.0 and 1.0; for a category its level as text; for a number the number itself,
        neither clipped nor scaled. What is missing or unknown is NaN, or an empty text, which is no class: a private
        model counts such a record as zero.

    Raises:
        TableError: the schema or the table has no such column, or it is stored as something else.
    """
    encoding = schema.target_encoding(target)
    column = schema.column(encoding.column)
    private_column = read_columns(table, [column])[0][column.name]
    if column.kind == "cat":
        labels = np.asarray([*column.levels, ""])
        return labels[level_codes(private_column, column)]
    private_values = read_values(private_column, column)
    return np.where(np.isfinite(private_values), private_values, np.nan)
