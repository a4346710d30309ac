"""Cells of a table as numbers, level codes and lists, whatever they are stored as.

A column's stored type may be wrong, which is an error; a cell never is: what cannot be read counts as missing, so
that no exception depends on a private value. Each cell is read by itself: no other row changes what it becomes.
"""

import contextlib
import math
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from privopt.data import cells
from privopt.data.cells import unheard
from privopt.data.containers import as_frame
from privopt.tables.column_spec import ColumnSpec
from privopt.tables.errors import TableError, instead_of
from privopt.tables.file_format import PLAIN, FileFormat

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


def column_names(table: Any) -> list[str]:
    """The names of the columns of a pandas DataFrame or an Arrow table.

    Raises:
        TypeError: the table is neither.
        TableError: two columns have one name.
    """
    names = (
        [str(name) for name in as_table(table).columns] if _is_pandas(table) else as_table(table).column_names
    )
    if len(set(names)) < len(names):
        raise TableError("The table has two columns of one name.")
    return list(names)


def as_table(table: Any) -> Any:
    """A pandas DataFrame as it is; anything that speaks Arrow (a table, a batch, a Polars frame) as an Arrow table."""
    if _is_pandas(table) or isinstance(table, pa.Table):
        return table
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table])
    if hasattr(table, "__arrow_c_stream__"):
        try:
            return pa.table(table)
        except pa.ArrowException:  # one column, or types of 128 bits
            what = f"{type(table).__module__.split('.')[0]}.{type(table).__name__}"
        raise TableError(
            f"The table, a {what}, cannot be read by Arrow: give a frame of named columns, of types that Arrow has."
        )
    as_frame(table, "table")
    raise TypeError(
        f"A table with named columns is needed, a pandas DataFrame or an Arrow table; got {type(table).__name__}."
    )


def plain(private_column: Any) -> Any:
    """A column that Arrow can look up and filter: UUIDs as texts, and without views of texts, as Polars has them."""
    if isinstance(private_column, np.ndarray):
        return private_column
    kind = private_column.type
    if isinstance(kind, pa.UuidType):
        private_texts = [
            pa.array([cell and str(uuid.UUID(bytes=cell)) for cell in chunk.storage.to_pylist()], pa.string())
            for chunk in private_column.chunks
        ]
        return pa.chunked_array(private_texts, type=pa.string())
    viewed = kind.value_type if pa.types.is_dictionary(kind) else kind
    if str(viewed) not in ("string_view", "binary_view"):
        return private_column
    values = pa.large_string() if is_text(viewed) else pa.large_binary()
    if viewed is kind:
        return private_column.cast(values)
    private_chunks = [
        pa.DictionaryArray.from_arrays(chunk.indices, chunk.dictionary.cast(values))
        for chunk in private_column.chunks
    ]
    return pa.chunked_array(private_chunks, type=pa.dictionary(kind.index_type, values))


def unmarked(private_column: Any, spec: ColumnSpec) -> Any:
    """A column in which the cells that the schema's `file` calls missing are missing, however they are stored.

    Where levels, flags or numbers are described, a text that writes the same number as a mark stands for it too.
    """
    written, as_number = spec.format, spec.kind in ("num", "flag", "cat")
    if not written.missing or spec.kind in ("pixels", "set"):
        return private_column

    def marks(private_cells: Iterable[Any]) -> NDArray[np.bool_]:
        read = (written.is_missing(private_cell, as_number=as_number) for private_cell in private_cells)
        with unheard():
            return np.fromiter(read, np.bool_)

    if isinstance(private_column, np.ndarray):
        private_cells = private_column.copy()
        private_cells[marks(private_column)] = None
        return private_cells
    kind = private_column.type
    if pa.types.is_dictionary(kind):
        private_column, kind = private_column.cast(kind.value_type), kind.value_type
    if is_text(kind):
        private_gone = _by_distinct_value(
            _encoded(private_column), lambda values: marks(_scalars(values)), np.False_
        )
        private_column = private_column.cast(pa.large_string())
    elif pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        private_gone = _is_one_of(private_column, written.missing_numbers)
    else:
        return private_column
    nothing = pa.scalar(None, private_column.type)
    return pc.call_function("if_else", [pa.array(private_gone), nothing, private_column])


def _is_one_of(private_column: Any, values: Iterable[float]) -> NDArray[np.bool_]:
    """Which cells of a column of numbers are one of a few; whole numbers are compared exactly."""
    if not pa.types.is_integer(private_column.type):
        return np.isin(numbers(private_column, ""), np.fromiter(values, np.float64))
    private_whole = private_column.fill_null(0).to_numpy()
    limits = np.iinfo(private_whole.dtype)
    whole = [int(value) for value in values if limits.min <= value <= limits.max and value == int(value)]
    return np.isin(private_whole, np.asarray(whole, private_whole.dtype))


def lacking(name: str, present: Sequence[str], wanted_by: str = "the schema") -> TableError:
    """The error for a column that a table with named columns lacks."""
    meant = instead_of(name, present, [])
    return TableError(f"The table has no column {name!r}, which {wanted_by} names{meant or '.'}")


def read_columns(
    table: Any, columns: Iterable[ColumnSpec], *, of_any_type: bool = False
) -> tuple[Mapping[str, Any], int]:
    """Those columns, as Arrow chunked arrays or as arrays of Python objects, and the number of rows.

    Those of a stored table are read when they are looked up.

    Args:
        table: with named columns.
        columns: those wanted.
        of_any_type: whether a type that its description rules out is taken as well, for a diagnosis.
    Raises:
        TableError: a column is not there, or is stored as something that its description rules out.
    """
    private_table = as_table(table)
    present = {name: place for place, name in enumerate(column_names(private_table))}
    private_columns: dict[str, Any] = {}
    for column in columns:
        if column.name not in present:
            raise lacking(column.name, list(present))
        if _is_pandas(private_table):
            as_lists = column.kind in ("pixels", "set")
            stored = private_table.dtypes.iloc[present[column.name]]
            private_series = private_table.iloc[:, present[column.name]]
            private_columns[column.name] = _from_pandas(private_series, as_lists=as_lists)
        else:
            private_columns[column.name] = private_table.column(column.name)
            stored = private_columns[column.name].type
        if not of_any_type:
            check_stored(column, stored)
        private_columns[column.name] = unmarked(plain(private_columns[column.name]), column)
    return private_columns, len(private_table) if _is_pandas(private_table) else private_table.num_rows


def numbers(private_column: Any, name: str, written: FileFormat = PLAIN) -> Floats:
    """Every cell as a float64; NaN where it is missing or is no number. Text is read as a number if it is one.

    Args:
        private_column: as it is stored.
        name: of the column.
        written: how texts write numbers.
    Raises:
        TableError: the column is stored as something that holds no numbers.
    """
    if isinstance(private_column, np.ndarray):
        return each(private_column, written.number)
    kind = private_column.type
    if pa.types.is_null(kind):
        return np.full(len(private_column), np.nan)
    if pa.types.is_dictionary(kind):
        return _by_distinct_value(
            private_column, lambda values: numbers(values, name, written), np.float64(np.nan)
        )
    if is_text(kind):
        if written.is_plain:
            with contextlib.suppress(pa.ArrowInvalid):  # some cell is no number, and becomes NaN below
                return numbers(pc.cast(private_column, pa.float64()), name)
        return by_text(private_column, written.number)
    if pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        private_column = pc.cast(private_column, pa.float64())
    elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        raise TableError(f"Column {name!r} is stored as {kind}: the schema says that it holds numbers.")
    return np.asarray(private_column.to_numpy(zero_copy_only=False), dtype=np.float64)


def level_codes(private_column: Any, spec: ColumnSpec) -> Codes:
    """Every cell's position among the levels; -1 where it is missing or not among them.

    Raises:
        TableError: the column is stored as lists or other nested values.
    """
    writings = spec.writings
    assert writings is not None

    def codes_of(private_cells: Iterable[Any]) -> Codes:
        with unheard():
            return np.asarray([_or(-1, writings.position, cell) for cell in private_cells], dtype=np.int64)

    if isinstance(private_column, np.ndarray):
        return codes_of(private_column)
    kind = private_column.type
    if pa.types.is_null(kind):
        return np.full(len(private_column), -1, dtype=np.int64)
    if cannot_be_looked_up(kind):
        raise TableError(
            f"Column {spec.name!r} is stored as {kind}: the schema says that it holds categories."
        )
    return _by_distinct_value(
        _encoded(private_column), lambda values: codes_of(_scalars(values)), np.int64(-1)
    )


def lists(private_column: Any, name: str) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
    """Chunk by chunk, how many numbers each row's list holds (-1 for a missing list), and the numbers of all of them.

    Raises:
        TableError: the column is not stored as lists of numbers.
    """
    kind = private_column.type
    if pa.types.is_null(kind):
        yield np.full(len(private_column), -1, dtype=np.int64), np.zeros(0)
        return
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)):
        raise TableError(
            f"Column {name!r} is stored as {kind}: the schema says that it holds lists of numbers."
        )
    for private_chunk in private_column.chunks:
        counts = pc.call_function("list_value_length", [private_chunk])
        lengths = counts.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
        flat = private_chunk.flatten()  # without the rows that are null
        if pa.types.is_integer(flat.type) and flat.null_count == 0:
            yield lengths, flat.to_numpy(zero_copy_only=False)
        else:
            yield lengths, numbers(flat, name)


def _is_pandas(table: Any) -> bool:
    return isinstance(table, pd.DataFrame)


def cannot_be_looked_up(kind: Any) -> bool:
    """Whether an Arrow type is one of lists and other nested values, or one that Arrow stores as another."""
    return pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType)


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is one of texts."""
    return str(kind) in ("string", "large_string", "string_view")


def _from_pandas(private_series: Any, *, as_lists: bool) -> Any:
    """A pandas column as an Arrow chunked array, or as an array of Python objects, which are then read one by one.

    Privacy:
        Arrow would settle on one type for all objects of a column, so that one record's cell could change how another's
        is read. Only where all are text does that make no difference.
    """
    if private_series.dtype != object:
        try:
            return _chunked(pa.array(private_series, from_pandas=True))
        except Exception:  # categories of mixed types or of huge numbers, text that is no Unicode
            private_series = private_series.astype(object)
    if as_lists:
        with unheard():
            lists_of_numbers = [_number_list(cell) for cell in private_series]
        return _chunked(pa.array(lists_of_numbers, type=pa.large_list(pa.float64())))
    if pd.api.types.infer_dtype(private_series, skipna=True) == "string":
        # Text that is no Unicode, a NaN of a type that Arrow does not know.
        with contextlib.suppress(Exception):
            return _chunked(pa.array(private_series, type=pa.large_string(), from_pandas=True))
    return private_series.to_numpy(dtype=object)


def _chunked(private_array: Any) -> Any:
    return private_array if isinstance(private_array, pa.ChunkedArray) else pa.chunked_array([private_array])


def _number_list(private_cell: Any) -> Floats | None:
    """One cell as a list of numbers, or None."""
    try:
        if not isinstance(private_cell, list | tuple | np.ndarray):
            return None
        if isinstance(private_cell, np.ndarray) and private_cell.dtype.kind not in "biufO":
            return None
        return np.asarray(private_cell, dtype=np.float64).ravel()
    except Exception:  # texts, lists of several lengths, an integer beyond all floats, an object that fails
        return None


def _encoded(private_column: Any) -> Any:
    """The column as codes into its distinct values, chunk by chunk."""
    return (
        private_column if pa.types.is_dictionary(private_column.type) else private_column.dictionary_encode()
    )


def _by_distinct_value(private_column: Any, mapped: Any, missing: Any) -> NDArray[Any]:
    """Map the distinct values of a dictionary-encoded column and spread the outcome over its rows."""
    chunks = private_column.chunks if isinstance(private_column, pa.ChunkedArray) else [private_column]
    spread: list[NDArray[Any]] = [np.zeros(0, dtype=missing.dtype)]
    for chunk in chunks:
        # The last entry is where a missing cell (-1) points.
        table = np.append(mapped(chunk.dictionary), missing)
        spread.append(table[chunk.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)])
    return np.concatenate(spread)


def _scalars(values: Any) -> list[Any]:
    """Distinct values as Python or NumPy scalars; a float32 keeps its type, so that 0.1 is written as "0.1"."""
    if pa.types.is_floating(values.type):
        return list(values.to_numpy(zero_copy_only=False))
    try:
        return values.to_pylist()
    except Exception:  # bytes that are no Unicode, a date that Python's calendar does not reach
        return [_scalar(value) for value in values]


def _scalar(private_value: Any) -> Any:
    """One value as a Python scalar; None for what has none."""
    try:
        return private_value.as_py()
    except Exception:
        return None


def each(private_cells: Iterable[Any], read: Callable[[Any], float]) -> Floats:
    """Cells read one by one; NaN for one that fails when it is read."""
    with unheard():
        return np.fromiter((_or(math.nan, read, private_cell) for private_cell in private_cells), np.float64)


def _or(missing: Any, read: Callable[[Any], Any], private_cell: Any) -> Any:
    """What a cell is read as; what a missing one is where reading fails, as of an object that fails."""
    try:
        return read(private_cell)
    except Exception:
        return missing


def by_text(private_column: Any, read: Callable[[Any], float]) -> Floats:
    """A column of texts, numbers or a dictionary of them, each different one read once."""
    return _by_distinct_value(
        _encoded(private_column), lambda values: each(_scalars(values), read), np.float64(np.nan)
    )


# ---- The types that columns declare, which are public, against what the schema says of them ----------------
Declared = Literal["text", "numbers", "truth values"]


def check_stored(spec: ColumnSpec, kind: Any) -> None:
    """Refuse a column whose declared type holds no cell that its description can read, or needs it said how.

    Args:
        spec: the column.
        kind: its type, of Arrow or of pandas. One of pandas' objects declares nothing.
    Raises:
        TableError: numbers stand where no level is one, or text stands where a number is described and the schema does
            not say how texts write numbers.
    """
    declared = _declared(kind)
    if getattr(kind, "kind", None) == "c":  # of NumPy
        raise TableError(
            f"Column {spec.name!r} is stored as {kind}: store real and imaginary parts as two columns."
        )
    if spec.kind == "num" and declared == "text" and spec.file is None and not spec.is_huge:
        raise TableError(
            f"Column {spec.name!r} is stored as text: the schema says that it holds numbers. Store it as numbers, or "
            'say in the schema how texts write them, such as "file": {"decimal": "."}.'
        )
    if spec.kind != "cat" or declared in (None, "text"):
        return
    read = [cells.flag(level) if declared == "truth values" else cells.number(level) for level in spec.levels]
    if not any(value == value for value in read):
        raise TableError(
            f"Column {spec.name!r} is stored as {declared}, and none of its levels is one, such as {spec.levels[0]!r}: "
            "give the levels as the table writes them, or store the column as text."
        )


def _declared(kind: Any) -> Declared | None:
    """What a type says of its cells; None where it says nothing, or that they are something else."""
    if isinstance(kind, pd.ArrowDtype):
        kind = kind.pyarrow_dtype
    if not isinstance(kind, pa.DataType):
        if isinstance(kind, pd.StringDtype):
            return "text"
        if isinstance(kind, pd.CategoricalDtype):
            return _declared(getattr(kind.categories, "dtype", None))
        if pd.api.types.is_bool_dtype(kind):
            return "truth values"
        return "numbers" if pd.api.types.is_numeric_dtype(kind) else None
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if str(kind) in ("string", "large_string", "string_view"):
        return "text"
    if pa.types.is_boolean(kind):
        return "truth values"
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return "numbers" if is_number else None
