"""Read tables from CSV and Parquet, only the columns the schema names, and write predictions."""

import csv
import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.parquet as pq
from numpy.typing import ArrayLike

from privopt.atomic_files import replace_file
from privopt.tables.cells import StoredTable
from privopt.tables.errors import TableError, instead_of
from privopt.tables.file_format import PLAIN, FileFormat
from privopt.tables.schema import Schema
from privopt.tables.text_stream import PackedColumns, TextStream, header_lines, open_packed, read_parquet
from privopt.tables.values import loaded

PARQUET = (".parquet", ".pq")
DELIMITERS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}


def read_table(path: str | Path, schema: Schema, *, columns: Iterable[str] | None = None) -> Any:
    """Read the schema's columns of a CSV or Parquet file; no other column is read.

    In CSV every cell is text at first, written as the schema's `file` says: `num` and `flag` cells that cannot be read
    become missing, categories, dates and identifiers stay text; a cell that is not in the file's encoding is no level
    of any category. Lists (`pixels`, `set`) need Parquet.

    Args:
        path: a file ending in .parquet, .pq, .csv, .tsv, or one of the last two with .gz.
        schema: says which columns there are, and of which kind.
        columns: the columns wanted, all of them in the schema; None takes all of the schema's.

    Returns:
        A `pyarrow.Table` with those columns in that order.

    Raises:
        TableError: the file is missing, of another format, damaged, or lacks a column.
    """
    file, wanted = _columns_in(path, schema, columns)
    if delimiter(file) is None:
        return guarded(file, lambda: read_parquet(file, wanted))
    require_no_lists(schema, wanted)
    private_table = guarded(file, lambda: _read_csv(file, wanted, schema.format))
    private_arrays = [loaded(private_table.column(name), schema.column(name)) for name in wanted]
    return pa.table(private_arrays, names=wanted)


def open_table(path: str | Path, schema: Schema, *, columns: Iterable[str] | None = None) -> Any:
    """`read_table` for what looks at each column once: of Parquet a `StoredTable`, which holds no column.

    Raises:
        TableError: as `read_table`; of damage in a column, when it is read.
    """
    file, wanted = _columns_in(path, schema, columns)
    return ParquetTable(file, wanted) if delimiter(file) is None else read_table(path, schema, columns=wanted)


class ParquetTable(StoredTable):
    """Some columns of a Parquet file, which stays open; each is read when it is asked for.

    Args:
        file: of that format.
        names: the columns, all of which it has.
    Raises:
        TableError: it is damaged, or grows beyond the limit; also when a column is read.
    """

    def __init__(self, file: Path, names: list[str]) -> None:
        self.column_names = names
        self._path = file
        self._columns = guarded(file, lambda: PackedColumns(file, names))
        self.num_rows = self._columns.num_rows

    def column(self, name: str) -> Any:
        """See `StoredTable.column`."""
        return guarded(self._path, lambda: self._columns.column(name))


def table_columns(path: str | Path, written: FileFormat = PLAIN) -> list[str]:
    """The names of the columns in a file, from its header.

    Args:
        path: of the file.
        written: how text files are written.
    Raises:
        TableError: the file is missing, of another format, or damaged.
    """
    file = _existing(path)
    if delimiter(file) is None:
        return list(guarded(file, lambda: pq.read_schema(file).names))

    def header() -> list[str]:
        with _opened(file, written) as stream:
            return header_names(stream, str(file))

    return guarded(file, header)


def header_names(stream: TextStream, shown: str) -> list[str]:
    """The names of the columns of a text, from its first line; `shown` names the file."""
    text = io.TextIOWrapper(stream.stream, "utf-8", "surrogateescape", newline="")
    try:
        names = next(csv.reader(header_lines(text, shown), delimiter=stream.separator), [])
    finally:
        text.detach()  # its file is closed by who opened it
    for name in names:
        name.encode()  # raises where the header is no UTF-8 text; what stands in the rows does not
    return names


def row_count(path: str | Path, written: FileFormat = PLAIN) -> int:
    """How many rows a file has; Parquet says so in its footer, CSV is read through.

    Args:
        path: of the file.
        written: how text files are written.
    Privacy:
        The count is public under replace-one only; under add-or-remove-one it is private, and n must be given.
    """
    file = _existing(path)
    if delimiter(file) is None:
        return int(guarded(file, lambda: pq.ParquetFile(file).metadata.num_rows))
    names = table_columns(file, written)
    return int(guarded(file, lambda: _read_csv(file, names[:1], written).num_rows)) if names else 0


def write_predictions(
    path: str | Path, prediction: ArrayLike, *, probabilities: Mapping[Any, ArrayLike] | None = None
) -> None:
    """Write a Parquet file with a column `prediction` and, for classifiers, one `probability_<class>` per class.

    Args:
        path: where to, ending in .parquet or .pq; an existing file is replaced in one step.
        prediction: one value per row.
        probabilities: for each class one probability per row, in the order of the columns.

    Raises:
        TableError: the name ends otherwise, the folder does not exist or is not writable.
        ValueError: the columns differ in length.
    """
    file = Path(path)
    if extension(file) not in PARQUET:
        raise TableError(f"Predictions are written as Parquet: let {str(file)!r} end in .parquet.")
    columns = {"prediction": np.asarray(prediction)}
    columns |= {f"probability_{label}": np.asarray(each) for label, each in (probabilities or {}).items()}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"Every column needs one value per row; got lengths {lengths}.")
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer, compression="zstd")
    try:
        replace_file(file, buffer.getvalue())
    except OSError as error:
        raise TableError(f"{str(file)!r} cannot be written: {error.strerror}.") from None


def _columns_in(path: str | Path, schema: Schema, columns: Iterable[str] | None) -> tuple[Path, list[str]]:
    """The file, and the columns wanted of it, all of which are in the schema and in its header."""
    file = _existing(path)
    wanted = [schema.column(name).name for name in (schema.names if columns is None else columns)]
    present = table_columns(file, schema.format)
    require_columns(str(file), present, wanted, separator(file, schema.format))
    return file, wanted


def require_columns(shown: str, present: Sequence[str], wanted: Sequence[str], text: str | None) -> None:
    """Refuse a file that lacks one of the columns wanted of it, or has two of one name.

    Args:
        shown: the name of the file.
        present: its columns.
        wanted: those that the schema names.
        text: see `separator`.
    Raises:
        TableError: it does.
    """
    for name in wanted:
        if name not in present:
            raise TableError(
                f"The table {shown!r} has no column {name!r}, which the schema names"
                f"{instead_of(name, present, wanted, text=text)}."
            )
    if len(set(present)) < len(present):
        raise TableError(f"The table {shown!r} has two columns of one name.")


def require_no_lists(schema: Schema, columns: Iterable[str]) -> None:
    """Refuse columns of lists in a text file.

    Raises:
        TableError: one of these columns holds lists.
    """
    for name in columns:
        if schema.column(name).kind in ("pixels", "set"):
            raise TableError(
                f"Column {name!r} holds lists, which CSV has no form for: give the table as Parquet."
            )


def _existing(path: str | Path) -> Path:
    """The path, of a known format and an existing file."""
    file = Path(path)
    if extension(file) not in (*PARQUET, *DELIMITERS):
        known = ", ".join((*PARQUET, *DELIMITERS))
        raise TableError(
            f"The table {str(file)!r} is of no known format: its name must end in one of {known}."
        )
    if not file.is_file():
        raise TableError(f"There is no table {str(file)!r}.")
    return file


def extension(file: str | Path) -> str:
    """The end of a file's name that says its format; empty for none that is known."""
    name = str(file).lower()
    return next((end for end in (*PARQUET, *DELIMITERS) if name.endswith(end)), "")


def delimiter(file: str | Path) -> str | None:
    """What stands between the cells of a text; None for Parquet."""
    return DELIMITERS.get(extension(file))


def separator(file: str | Path, written: FileFormat) -> str | None:
    """What stands between the cells of a text, as the schema or else the file's name says; None for Parquet."""
    usual = delimiter(file)
    return usual and (written.separator or usual)


def _read_csv(file: Path, names: list[str], written: FileFormat) -> Any:
    """Those columns as text."""
    with _opened(file, written) as stream:
        is_file = stream.is_plain and not extension(file).endswith(".gz")
        return arrow_csv.read_csv(
            str(file) if is_file else pa.PythonFile(stream.stream, mode="r"),
            parse_options=arrow_csv.ParseOptions(delimiter=stream.separator, newlines_in_values=True),
            convert_options=convert_options(names),
        )


def convert_options(names: Sequence[str]) -> Any:
    """What Arrow's reader is told: these columns as texts."""
    return arrow_csv.ConvertOptions(
        check_utf8=False,  # a cell that is no UTF-8 text is read as a missing one
        include_columns=list(names),
        column_types={name: pa.string() for name in names},
        strings_can_be_null=False,
    )


def _opened(file: Path, written: FileFormat) -> TextStream:
    """What is in a text file on this machine, from its header on."""
    raw = open_packed(file) if extension(file).endswith(".gz") else io.FileIO(file)
    return TextStream(raw, written, delimiter(file) or ",")


def guarded(file: str | Path, read: Any) -> Any:
    """Read, and turn whatever the reader says, which may quote cells, into a sentence of ours."""
    try:
        return read()
    except TableError:
        raise
    except UnicodeError:
        reason = (
            "it is not UTF-8 text; say in the schema which encoding it has, such as "
            '"file": {"encoding": "cp1252"}'
        )
    except MemoryError:
        reason = "it needs more memory than there is"
    except (pa.ArrowException, csv.Error, EOFError, ValueError):
        kind = "Parquet" if delimiter(file) is None else "CSV (one header, as many cells in every row)"
        reason = f"it is not well-formed {kind}"
    except OSError as error:
        # what pyarrow says of a number names the file again, and in small letters that is another
        reason = os.strerror(error.errno).lower() if error.errno else "its content is damaged"
    raise TableError(f"The table {str(file)!r} cannot be read: {reason}.")
