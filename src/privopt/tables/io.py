"""Read tables from CSV and Parquet, only the columns the schema names; write them, and Feather."""

import csv
import io
import os
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv as arrow_csv
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from privopt.atomic_files import new_file
from privopt.tables.errors import TableError, instead_of
from privopt.tables.file_format import PLAIN, FileFormat
from privopt.tables.schema import Schema
from privopt.tables.text_stream import TextStream, header_lines, open_packed, read_parquet
from privopt.tables.values import loaded

PARQUET = (".parquet", ".pq")
DELIMITERS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
GROUP_ROWS = 2**17  # that are written at a time
_PARQUET = partial(pq.ParquetWriter, compression="zstd")
_FEATHER = partial(ipc.new_file, options=ipc.IpcWriteOptions(compression="zstd"))
WRITERS: dict[str, Callable[[Any, Any], Any]] = {  # of a stream and the columns, by the end of a file's name
    **dict.fromkeys(PARQUET, _PARQUET),
    ".csv": arrow_csv.CSVWriter,
    ".tsv": partial(arrow_csv.CSVWriter, write_options=arrow_csv.WriteOptions(delimiter="\t")),
    **dict.fromkeys((".feather", ".arrow"), _FEATHER),
}


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
    file = _existing(path)
    wanted = [schema.column(name).name for name in (schema.names if columns is None else columns)]
    require_columns(str(file), table_columns(file, schema.format), wanted, separator(file, schema.format))
    if delimiter(file) is None:
        return guarded(file, lambda: read_parquet(file, wanted))
    require_no_lists(schema, wanted)
    private_table = guarded(file, lambda: _read_csv(file, wanted, schema.format))
    private_arrays = [loaded(private_table.column(name), schema.column(name)) for name in wanted]
    return pa.table(private_arrays, names=wanted)


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


def check_written(path: Path, like: Any = None) -> None:
    """Refuse a table that cannot be written, before it is made.

    Args:
        path: where to.
        like: columns of the table, without rows.
    Raises:
        TableError: the name ends in nothing that says a format, or the format has no form for a column.
    """
    if path.suffix.lower() not in WRITERS:
        *most, last = WRITERS
        raise TableError(
            f"{str(path)!r} must end in {', '.join(most)} or {last}, which says how it is written."
        )
    for field in [] if like is None else like.schema:
        try:
            WRITERS[path.suffix.lower()](io.BytesIO(), pa.schema([field])).close()
        except pa.ArrowException:
            raise TableError(
                f"Column {field.name!r} holds {field.type}, which {path.suffix} has no form for: write .parquet."
            ) from None


@contextmanager
def new_table(path: Path) -> Generator[Callable[[Any], None]]:
    """Around the writing of a table: gives the function that takes its next rows as an Arrow table.

    Args:
        path: where to, in the format that its name says; an existing file is replaced at the end, in one step.
    Raises:
        TableError: there is no room, or the folder cannot be written to.
    """
    kept, writers = list[Any](), list[Any]()

    def flush(stream: BinaryIO) -> None:
        if kept:
            table = pa.concat_tables(kept)
            kept.clear()
            if not writers:
                writers.append(WRITERS[path.suffix.lower()](stream, table.schema))
            writers[0].write_table(table)

    try:
        with new_file(path) as stream:

            def write(table: Any) -> None:
                kept.append(table)
                if sum(each.num_rows for each in kept) >= GROUP_ROWS:
                    flush(stream)

            try:
                yield write
                flush(stream)
            finally:
                for writer in writers:
                    writer.close()
    except OSError as error:
        reason = error.strerror or "the system refused"
        raise TableError(f"{str(path)!r} cannot be written: {reason}.") from None


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
