"""The table that synthetic data is made of: a data frame, an Arrow table, a dictionary of columns, or files."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privopt.data import cells, user_keys
from privopt.data.containers import arrow_arrays
from privopt.errors import ArgumentError
from privopt.problems.workload import MOST_CELLS, Workload
from privopt.tables.cells import as_table, column_names
from privopt.tables.coding import TableCoding
from privopt.tables.errors import TableError, instead_of
from privopt.tables.file_format import PLAIN, FileFormat
from privopt.tables.io import delimiter, read_table, row_count, separator, table_columns
from privopt.tables.keys import columns_of
from privopt.tables.keys import user_keys as keys_in_a_table
from privopt.tables.schema import Schema
from privopt.tables.table import Table


def opened(table: Any, schema: Schema) -> Any:
    """A table with named columns; of a file, those that the schema describes and that are there.

    A `Table` stays in its files: `codes_of` reads it a few rows at a time, `keys_of_users` the columns of users alone.

    Raises:
        ArgumentError: rows of a `Table` are to be kept elsewhere than in this process, which holds the codes.
    """
    if isinstance(table, Table):
        if table.placement.engine not in ("auto", "memory"):
            raise ArgumentError(
                f"SyntheticData keeps the codes of a table in the memory of this process, not by engine="
                f"{table.placement.engine!r}: open it with engine='memory'."
            )
        return table
    if isinstance(table, str | Path):
        present = set(table_columns(table, schema.format))
        return read_table(table, schema, columns=[name for name in schema.names if name in present])
    if isinstance(table, Mapping):
        _check_lengths(table)
        return pd.DataFrame({str(name): _column(values) for name, values in table.items()})
    return as_table(table)


def check_columns(table: Any, coding: TableCoding, written: FileFormat) -> None:
    """Refuse a table without one of the columns, by its header alone.

    Args:
        table: to be opened.
        coding: of its columns.
        written: how text files are written.
    Raises:
        TypeError, TableError: it has no named columns, or lacks one.
    """
    if isinstance(table, Table):
        table.require(coding.names)
        return
    is_file = isinstance(table, str | Path)
    present = table_columns(table, written) if is_file else _names(table)
    for name in coding.names:
        if name not in present:
            meant = instead_of(
                name, present, coding.names, text=separator(table, written) if is_file else None
            )
            raise TableError(f"The table has no column {name!r}, which the schema names{meant or '.'}")


def codes_of(table: Any, coding: TableCoding, rows: int) -> NDArray[np.int64]:
    """(rows, columns) codes of a table.

    Raises:
        TableError: a column is not there, or is stored as something that its kind cannot be.
        DataUnavailable: a file has changed since the table was opened.
    """
    if not isinstance(table, Table):
        return coding.encode(table)
    private_codes, start = np.empty((rows, len(coding.columns)), np.int64), 0
    blocks = table.columns(coding.names)
    blocks.require(coding.encode)
    for private_block in blocks.read(0, rows):
        private_coded = coding.encode(private_block)
        private_codes[start : start + len(private_coded)] = private_coded
        start += len(private_coded)
    return private_codes


def stored_as(table: Any, private_table: Any, coding: TableCoding) -> TableCoding:
    """The coding for the types that the columns of a table declare; those of a text file declare none.

    Args:
        table: as it was given.
        private_table: the same, opened.
        coding: of its columns.
    """
    if isinstance(table, Table):
        return coding if table.is_text else coding.stored_as(table.columns(coding.names).empty())
    if isinstance(table, str | Path) and delimiter(table) is not None:
        return coding
    return coding.stored_as(private_table)


def rows_of(table: Any, written: FileFormat = PLAIN) -> int:
    """How many rows there are: public under replace-one, where a record is a unit; `written` says how files are."""
    if isinstance(table, Table):
        return table.row_count()
    if isinstance(table, str | Path):
        return row_count(table, written)
    if isinstance(table, Mapping):
        _check_lengths(table)
        return len(next(iter(table.values()))) if table else 0
    plain = as_table(table)
    return len(plain) if isinstance(plain, pd.DataFrame) else int(plain.num_rows)


def keys_of_users(groups: Any, table: Any, rows: int, written: FileFormat) -> Any:
    """A number for the user of every row, NaN for nobody; None where a record is a unit.

    Args:
        groups: a name or a tuple of names of the columns that say whose record a row is; anything else are user keys,
            one for each row. What it is follows from its type, never from what stands in it.
        table: opened.
        rows: of the table.
        written: what stands for a missing cell.
    """
    if groups is None:
        return None
    if isinstance(groups, str | tuple):
        private_table = table.read(columns_of(groups)) if isinstance(table, Table) else table
        return keys_in_a_table(private_table, groups, written)
    return user_keys.as_keys(user_keys.user_codes(groups, rows))


def user_count(private_keys: Any) -> int:
    """How many different users there are: public under replace-one."""
    return user_keys.user_count(int(np.nanmax(private_keys, initial=-1.0)) + 1)


def _check_lengths(table: Mapping[Any, Any]) -> None:
    """Refuse a dictionary that is no table."""
    if any(isinstance(column, str | bytes) or not hasattr(column, "__len__") for column in table.values()):
        raise TableError("A column of the dictionary is no list: give a list or an array for each column.")
    if len({len(column) for column in table.values()}) > 1:
        raise TableError("The columns of the dictionary have different lengths: give one value for each row.")


def _names(table: Any) -> list[str]:
    return [str(name) for name in table] if isinstance(table, Mapping) else column_names(table)


def _column(values: Any) -> Any:
    """A column of a dictionary; a list declares no type, and its cells are read one by one."""
    private_arrays = arrow_arrays(values)
    if private_arrays is not None and len(private_arrays) == 1:
        return pd.Series(pd.arrays.ArrowExtensionArray(private_arrays[0]))
    values = cells.unmasked(values, labels=True)
    if hasattr(values, "dtype"):
        return values
    # Not by assignment, which asks cells whether they are arrays, and a cell may answer with an error.
    return pd.Series(np.fromiter(values, dtype=object, count=len(values)), dtype=object)


# ------------------------------------------------------------------------------------------------------------
# What synthetic data is asked to answer well: names of marginals, column sets or queries, as a public
# workload.


WAYS = {"1-way": 1, "2-way": 2, "3-way": 3}
FORMS = (
    "'1-way', '2-way', '3-way', a list of column sets such as [('age', 'sex')], or a list of queries such as "
    "[{'sex': 'f', 'age': (20, 30)}]"
)


def asked_workload(asked: Any, coding: TableCoding) -> Workload:
    """The workload on coded columns.

    Args:
        asked: "1-way" to "3-way" for all marginals of so many columns; column sets, each a name or a tuple of names;
            queries, each a mapping of columns to conditions (see `ColumnCoding.overlap`) that a record must meet, or
            all of them as an array of values in [0, 1], (m, N), on the cells of the joint table.
        coding: the columns.
    Raises:
        ValueError, TypeError, TableError: it is none of these, names an unknown column, or is too large.
    """
    levels = coding.levels
    if isinstance(asked, Workload):
        if asked.levels != levels:
            raise ValueError(
                f"the workload is about columns of {asked.levels} cells, and these have {levels}: make it of the same "
                "columns and bins."
            )
        return asked
    if isinstance(asked, str):
        if asked not in WAYS:
            raise ValueError(f"workload must be {FORMS}; got {asked!r}.")
        return Workload.ways(levels, min(WAYS[asked], len(levels)))
    if isinstance(asked, np.ndarray):
        return Workload(levels, queries=cast("Any", asked))
    if not isinstance(asked, Sequence) or not asked:
        raise TypeError(f"workload must be {FORMS}; got {asked!r}.")
    given: Sequence[Any] = cast("Sequence[Any]", asked)
    if all(isinstance(one, Mapping) for one in given):
        return Workload(levels, queries=_values([cast("Mapping[str, Any]", one) for one in given], coding))
    if any(isinstance(one, Mapping) for one in given):
        raise TypeError("workload must hold column sets or queries, not both.")
    return Workload(levels, sets=tuple(_places(one, coding) for one in given))


def _places(asked: Any, coding: TableCoding) -> tuple[int, ...]:
    """A column set by the columns' names."""
    names: list[Any] = (
        [asked] if isinstance(asked, str) else list(asked) if isinstance(asked, Sequence) else []
    )
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"a column set must be a name or a tuple of names, got {asked!r}.")
    places = tuple(coding.place(name) for name in names)
    if len(set(places)) < len(places):
        raise TableError(f"The column set {tuple(names)!r} names a column twice.")
    return places


def _values(queries: list[Mapping[str, Any]], coding: TableCoding) -> NDArray[np.float64]:
    """The values of conjunctions on the cells of the joint table: products of what each condition covers."""
    cells = int(np.prod([float(level) for level in coding.levels]))
    if cells > MOST_CELLS:
        raise ValueError(
            f"queries need every cell of the joint table, and there are {cells:,}, more than {MOST_CELLS:,}: ask for "
            "marginals, or give fewer columns or coarser bins."
        )
    return np.stack([_value(query, coding) for query in queries])


def _value(query: Mapping[str, Any], coding: TableCoding) -> NDArray[np.float64]:
    if not query:
        raise ValueError("a query must name at least one column, such as {'sex': 'f'}; got an empty one.")
    conditions = {coding.place(name): wanted for name, wanted in query.items()}
    value = np.ones(1)
    for place, column in enumerate(coding.columns):  # the first column runs fastest
        covered = column.overlap(conditions[place]) if place in conditions else np.ones(coding.levels[place])
        value = np.ravel(covered[:, None] * value[None, :])
    return value
