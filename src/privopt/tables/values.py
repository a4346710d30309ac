"""Cells of numbers, flags and dates as float64, by the public description of their column. PRIVATE."""

import math
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from privopt.data import cells
from privopt.tables.cells import by_text, each, is_text, numbers, unmarked
from privopt.tables.column_spec import ColumnSpec
from privopt.tables.dates import day_number
from privopt.tables.errors import TableError

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
