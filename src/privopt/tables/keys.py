"""Keys of users in a table or a block of one, such that equal keys of any blocks are one user. PRIVATE."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from privopt.data.user_keys import as_keys, joined, user_codes
from privopt.errors import ArgumentError
from privopt.tables.cells import column_names, lacking, plain, read_columns, unmarked
from privopt.tables.column_spec import ColumnSpec
from privopt.tables.errors import TableError
from privopt.tables.file_format import FileFormat

Floats = NDArray[np.float64]


def columns_of(groups: Any) -> tuple[str, ...]:
    """The columns that name users.

    Raises:
        ArgumentError: they are no names of columns.
    """
    if groups is None:
        return ()
    names = (groups,) if isinstance(groups, str) else tuple(groups)
    if not names or not all(isinstance(name, str) for name in names):
        raise ArgumentError(
            "groups of a table must be the name of a column, or several: those that say whose record a row is."
        )
    if len(set(names)) < len(names):
        raise ArgumentError("groups names one column twice: give each of the columns that name a user once.")
    return names


def require_one_kind(name: str, stored: Iterable[tuple[str, Any]]) -> None:
    """Refuse files that store keys of users in ways in which one person may have two keys. Needs their headers alone.

    A key is what stands in the file (`data.user_keys`): 2^60 + 1 as a double is another number, 7 as the text "7.0" or
    as bytes another key. Whole numbers of any widths, decimal numbers among them, are the same everywhere, and so are
    texts of every type, and dates beside instants.

    Args:
        name: of the column.
        stored: each file's name, and the type that it stores the column as.
    Raises:
        TableError: which names two files, and what to cast.
    """
    first: tuple[str, Any] | None = None
    for file, kind in stored:
        if pa.types.is_null(kind):  # without a key
            continue
        if first is None:
            first = file, kind
        elif _same(kind) != _same(first[1]):
            (kept, wanted), (other, given) = sorted(
                [first, (file, kind)], key=lambda each: _RANK.index(_family(each[1]))
            )
            raise TableError(
                f"Column {name!r}, which says whose a row is, is stored as {wanted} in {kept!r} and as {given} in "
                f"{other!r}: one person may have two keys then, and would count as two users, with twice the epsilon. "
                f"Write {other!r} with the column cast to {wanted}, or all files with one type."
            )


_RANK = ("whole", "time", "span", "truth", "floating", "text", "bytes", "other")


def _family(kind: Any) -> str:
    """What a column holds, whatever the width."""
    if pa.types.is_dictionary(kind):
        return _family(kind.value_type)
    if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
        return "whole"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return "time"
    if pa.types.is_duration(kind):
        return "span"
    if pa.types.is_boolean(kind):
        return "truth"
    if pa.types.is_floating(kind):
        return "floating"
    name = str(kind).removeprefix("large_").removesuffix("_view")
    if name == "string":
        return "text"
    return "bytes" if name == "binary" or pa.types.is_fixed_size_binary(kind) else "other"


def _same(kind: Any) -> str:
    """What two columns must agree in, so that equal keys are equal in both.

    Floats of two widths do not: 0.1 in 32 bits is another number than in 64.
    """
    family = _family(kind)
    if family in ("floating", "other"):
        return str(kind.value_type if pa.types.is_dictionary(kind) else kind)
    return family


def user_keys(table: Any, columns: str | Sequence[str], written: FileFormat | None = None) -> Floats:
    """One number for each user, from the column or columns that say whose record a row is, as `groups` of a fit.

    Several columns name a user together. NaN where a value is missing or an empty text: such a record belongs to
    nobody, and a fit counts it as nothing. Which values are equal: `data.user_keys`.

    Args:
        table: with named columns.
        columns: those that name a user.
        written: what stands for a missing cell, as the schema says it.
    Raises:
        TableError: no column is named, or one is stored as lists or other nested values.
    """
    names = [columns] if isinstance(columns, str) else list(columns)
    if not names:
        raise TableError("No column was named that says whose record a row is.")
    present = column_names(table)
    for name in names:
        if name not in present:
            raise lacking(name, present, "groups")
    specs = [ColumnSpec(name=name, kind="id", file=written) for name in names]
    private_columns, rows = read_columns(table, specs)
    private_keys = (_cells(private_columns[name], name) for name in names)
    return as_keys(joined([user_codes(private_column, rows) for private_column in private_keys]))


def block_keys(table: Any, columns: Sequence[ColumnSpec]) -> NDArray[Any]:
    """The keys of users in some columns, see `data.user_keys`: the cells themselves, not numbers of one block.

    Returns:
        (rows,) of one column, (rows, k) of several, which name a user together. Missing are NaN and empty texts.
    Raises:
        TableError: a column is stored as lists or other nested values.
    """
    private_columns = [_cells(unmarked(plain(table.column(one.name)), one), one.name) for one in columns]
    if len(private_columns) == 1:
        return private_columns[0]
    private_keys = np.empty((table.num_rows, len(columns)), dtype=object)
    for place, private_column in enumerate(private_columns):
        private_keys[:, place] = private_column
    return private_keys


def _cells(private_column: Any, name: str) -> NDArray[Any]:
    """One column's cells as they are."""
    if isinstance(private_column, np.ndarray):
        return private_column
    kind = private_column.type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_nested(kind):
        raise TableError(f"Column {name!r} is stored as {kind}: it cannot tell users apart.")
    as_array = pa.types.is_floating(kind) or (pa.types.is_integer(kind) and private_column.null_count == 0)
    if as_array and not pa.types.is_dictionary(private_column.type):
        return private_column.to_numpy(zero_copy_only=False)
    private_cells = np.empty(len(private_column), dtype=object)
    start = 0
    for private_chunk in private_column.chunks:
        if not pa.types.is_dictionary(private_chunk.type):
            private_chunk = pc.call_function("dictionary_encode", [_encodable(private_chunk)])
        private_known = np.append(_distinct(private_chunk.dictionary), np.asarray([""], dtype=object))
        places = private_chunk.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        private_cells[start : start + len(places)] = private_known[places]  # the last one is where -1 points
        start += len(places)
    return private_cells


def _encodable(private_chunk: Any) -> Any:
    """The same cells as a type that Arrow can tell apart, and Python can hold.

    UUIDs are their bytes, narrow decimals wide ones, and clocks of nanoseconds, which Python lacks, integers.
    """
    if isinstance(private_chunk.type, pa.BaseExtensionType):
        return private_chunk.storage
    if private_chunk.type == pa.time64("ns"):
        return private_chunk.cast(pa.int64())
    if str(private_chunk.type).startswith(("decimal32", "decimal64")):
        return private_chunk.cast(pa.decimal128(38, private_chunk.type.scale))
    return private_chunk


def _distinct(private_values: Any) -> NDArray[Any]:
    """Each different value as a Python object; a text that is no UTF-8 has its bytes written out."""
    kind = private_values.type
    private_found = np.empty(len(private_values), dtype=object)
    if str(kind) in ("string", "large_string", "string_view"):
        private_bytes = private_values.cast(pa.large_string()).view(pa.large_binary()).to_pylist()
        private_found[:] = [
            "" if private_cell is None else private_cell.decode("utf-8", "backslashreplace")
            for private_cell in private_bytes
        ]
        return private_found
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_duration(kind):
        private_found[:] = list(
            private_values.to_numpy(zero_copy_only=False)
        )  # of UTC, without asking for its zone
        return private_found
    private_found[:] = [_scalar(private_value) for private_value in private_values]
    return private_found


def _scalar(private_value: Any) -> Any:
    """A value as Python knows it; an empty text for a missing one, or one that it cannot hold."""
    try:
        private_cell = private_value.as_py()
    except Exception:  # a date that Python's calendar does not reach
        return ""
    return "" if private_cell is None else private_cell
