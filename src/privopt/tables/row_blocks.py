"""The rows of a table's files in one order, read from any row on, a few at a time. PRIVATE."""

import bisect
import itertools
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from privopt.errors import STAYS_CHARGED, DataUnavailable
from privopt.tables.errors import TableError
from privopt.tables.io import guarded, require_columns, require_no_lists, separator
from privopt.tables.keys import require_one_kind
from privopt.tables.places import Place, StoredFile
from privopt.tables.schema import Schema
from privopt.tables.text_blocks import TextBlock, read_text, text_blocks, text_header
from privopt.tables.text_stream import check_footer, is_text

_BUFFER_BYTES = 2**14  # of a Parquet column's pages, read at a time
_ASKED_SECONDS = 1.0  # between two questions to a store for the version of a file that is being read


@dataclass
class _Cursor:
    """Where a reader stands: the next row, what was read beyond the last one asked for, and what comes after."""

    row: int
    private_left: Any
    private_rest: Iterator[Any]


class RowBlocks:
    """Some columns of all files of a table, as rows in one order. Can be pickled; holds no rows but those at hand.

    Args:
        place: the files.
        schema: what is public about the columns.
        columns: those that are read, all in the schema.
        most: rows of a block of Parquet.
        counted: where the records of text files begin, by path: filled in where it is not known yet.
        as_texts: whether the cells of text files stay as they are written.
    Raises:
        TableError: a file is damaged or has other columns than the rest.
        DataUnavailable: a file has changed since the table was opened.

    Privacy:
        Of a Parquet file's footer the names and types of columns, the sizes and the numbers of rows are looked at; its
        statistics never are, neither for bounds nor to leave rows out: they are facts about records. A number of rows
        is used to find rows, and is private where a unit may come or go.
    """

    def __init__(
        self,
        place: Place,
        schema: Schema,
        columns: Sequence[str],
        *,
        most: int,
        counted: dict[str, list[TextBlock]],
        as_texts: bool = False,
    ) -> None:
        self._place, self._schema, self._columns, self._most = place, schema, list(columns), most
        self._cursor: _Cursor | None = None
        self._as_texts = as_texts
        self._types: dict[str, Any] = {}
        for file in place.files:
            place.require_unchanged(file)
        headers = self._headers = checked_headers(place, schema, columns)
        self._texts: list[list[TextBlock]] = []
        self._groups: list[list[int]] = []
        for file, header in zip(place.files, headers, strict=True):
            if place.delimiter is None:
                self._groups.append(guarded(file.shown, lambda file=file: self._row_groups(file)))
            else:
                if file.path not in counted:
                    counted[file.path] = text_blocks(place, file, header, schema.format)
                self._texts.append(counted[file.path])
                self._groups.append([block.rows for block in self._texts[-1]])
        self._starts = [0, *itertools.accumulate(sum(groups) for groups in self._groups)]

    @property
    def rows(self) -> int:
        """How many there are. Private under add-or-remove-one."""
        return self._starts[-1]

    def read(self, start: int, stop: int) -> Generator[Any]:
        """The rows start..stop-1 as Arrow tables of at least one row, in order.

        What follows is at hand where the next rows are asked for: read in order, nothing is decoded twice.

        Raises:
            DataUnavailable: a file is gone, has changed, or cannot be read any more.
        """
        cursor, self._cursor = self._cursor, None  # another thread's reading begins anew
        if cursor is None or cursor.row != start:
            cursor = _Cursor(start, None, self._from(start))
        while cursor.row < stop:
            private_table = cursor.private_left
            if private_table is None:
                private_table = next(cursor.private_rest, None)
            if private_table is None:
                raise DataUnavailable(
                    f"the files hold fewer records than when the table was opened. {STAYS_CHARGED}"
                )
            taken = min(stop - cursor.row, private_table.num_rows)
            cursor.private_left = private_table.slice(taken) if taken < private_table.num_rows else None
            cursor.row += taken
            if taken:
                yield private_table.slice(0, taken)
        if start < stop:
            self._place.require_unchanged(self._place.files[bisect.bisect_right(self._starts, stop - 1) - 1])
        self._cursor = cursor if cursor.row < self.rows else None

    def empty(self) -> Any:
        """No rows, in the types of the first file: an encoder that refuses a column's type refuses it here."""
        if self._place.delimiter is not None:
            described = {name: self._schema.column(name) for name in self._columns}
            kinds = {name: "text" if one.is_huge else one.kind for name, one in described.items()}
            types = {} if self._as_texts else {"num": pa.float64(), "flag": pa.bool_()}
            return pa.table(
                {name: pa.array([], types.get(kind, pa.string())) for name, kind in kinds.items()}
            )
        return self._stored_types(self._place.files[0]).empty_table()

    def _empties(self) -> Iterator[tuple[str, Any]]:
        """`empty` of every file whose types differ from those of the first, each with the name of its file."""
        yield self._place.files[0].shown, self.empty()
        if self._place.delimiter is None:
            first = self._stored_types(self._place.files[0])
            for file in self._place.files[1:]:
                types = self._stored_types(file)
                if not types.equals(first):
                    yield file.shown, types.empty_table()

    def require_keys(self, columns: Sequence[str]) -> None:
        """Refuse files that store keys of users in ways that do not agree, see `keys.require_one_kind`.

        Raises:
            TableError: as said there; or a column of keys holds lists.
        """
        if self._place.delimiter is not None:  # all texts, or all numbers as the schema has it
            return
        stored = [(file.shown, self._stored_types(file)) for file in self._place.files]
        for name in columns:
            require_one_kind(name, ((shown, types.field(name).type) for shown, types in stored))

    def require(self, read: Callable[[Any], Any]) -> None:
        """Refuse files that store a column as something that cannot be read, before any row is.

        Args:
            read: what is done with a table; it refuses what it cannot read.
        Raises:
            TableError: it refused, in the words of `read`, with the name of the file.
        """
        for shown, nothing in self._empties():
            try:
                read(nothing)
            except TableError as error:
                raise TableError(f"{shown!r}: {error}") from None

    def _from(self, row: int) -> Generator[Any]:
        """Tables from the one that holds a row on, without what stands before it."""
        first = max(0, bisect.bisect_right(self._starts, row) - 1)
        for place, file in enumerate(self._place.files[first:], first):
            groups, before = self._groups[place], 0
            skipped = max(0, row - self._starts[place])
            at = 0
            while at < len(groups) and before + groups[at] <= skipped:
                before += groups[at]
                at += 1
            skipped -= before
            for private_table in self._checked(file, self._tables(place, file, at)):
                if skipped >= private_table.num_rows:
                    skipped -= private_table.num_rows
                    continue
                yield private_table.slice(skipped)
                skipped = 0

    def _checked(self, file: StoredFile, private_tables: Iterator[Any]) -> Generator[Any]:
        """What is read of a file, none of it from another version than the one that was opened.

        One of this machine is looked at after every block, one of a store now and then; both at the end of a reading.
        """
        self._place.require_unchanged(file)
        asked = time.monotonic()
        while True:
            try:
                private_table = next(private_tables, None)
            except (TableError, MemoryError):
                raise
            except Exception:  # a text of the library below may quote a cell
                self._place.require_unchanged(file)
                raise DataUnavailable(
                    f"the file {file.shown!r} cannot be read any more. {STAYS_CHARGED}"
                ) from None
            now = time.monotonic()
            if self._place.is_local or private_table is None or now - asked >= _ASKED_SECONDS:
                self._place.require_unchanged(file)
                asked = now
            if private_table is None:
                return
            yield private_table

    def _tables(self, place: int, file: StoredFile, first: int) -> Iterator[Any]:
        """The tables of a file from a row group, or a block of text, on."""
        if self._place.delimiter is not None:
            blocks = self._texts[place][first:]
            header, as_texts = self._headers[place], self._as_texts
            return read_text(
                self._place, file, header, blocks, self._schema, self._columns, as_texts=as_texts
            )
        return self._batches(file, list(range(first, len(self._groups[place]))))

    def _batches(self, file: StoredFile, groups: list[int]) -> Generator[Any]:
        if not groups:
            return
        texts = [field.name for field in self._stored_types(file) if is_text(field.type)]
        with (
            self._place.system.open_input_file(file.path) as stream,
            pq.ParquetFile(
                stream, read_dictionary=texts, buffer_size=_BUFFER_BYTES, pre_buffer=False
            ) as parquet,
        ):
            private_batches = (  # of one row group at a time: the texts of several would all be in memory
                private_batch
                for group in groups
                for private_batch in parquet.iter_batches(
                    batch_size=self._most, row_groups=[group], columns=self._columns, use_threads=True
                )
            )
            for batch in private_batches:
                private_table = pa.Table.from_batches([batch]).select(self._columns)
                yield pa.table(
                    [_used(private_column) for private_column in private_table.columns], names=self._columns
                )

    def _stored_types(self, file: StoredFile) -> Any:
        if file.path not in self._types:
            stored = guarded(file.shown, lambda: _schema_of(self._place, file))
            self._types[file.path] = pa.schema([stored.field(name) for name in self._columns])
        return self._types[file.path]

    def _row_groups(self, file: StoredFile) -> list[int]:
        """How many rows each row group has; a file that would unpack to too much is refused."""
        with self._place.system.open_input_file(file.path) as stream, pq.ParquetFile(stream) as parquet:
            check_footer(parquet.metadata, file.shown, file.size, set(self._columns))
            return [
                int(parquet.metadata.row_group(group).num_rows)
                for group in range(parquet.metadata.num_row_groups)
            ]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_cursor": None}

    def __repr__(self) -> str:
        return f"RowBlocks({len(self._place.files)} files, <private>)"


def checked_headers(place: Place, schema: Schema, columns: Sequence[str]) -> list[list[str]]:
    """The names of the columns of every file.

    Raises:
        TableError: a file is damaged, lacks one of these columns, or has other columns of the schema than the rest.
    """
    if place.delimiter is not None:
        require_no_lists(schema, columns)
    headers = [_header(place, file, schema) for file in place.files]
    first, known = place.files[0], set(schema.names)  # other columns are not read, nor are their names told
    text = separator(place.files[0].name, schema.format)
    for file, header in zip(place.files, headers, strict=True):
        _require_in_files(place, file, header, columns)
        require_columns(file.shown, header, columns, text)
        lacking = [
            *(f"{file.shown!r} lacks {name!r}" for name in headers[0] if name in known - {*header}),
            *(f"{first.shown!r} lacks {name!r}" for name in header if name in known - {*headers[0]}),
        ]
        if lacking:
            which = f"{', '.join(lacking[:3])}{' ...' if len(lacking) > 3 else ''}"
            raise TableError(
                f"The table {file.shown!r} has other columns than {first.shown!r} ({which}): all must have the same of "
                "those that the schema names, in any order."
            )
    return headers


def _header(place: Place, file: StoredFile, schema: Schema) -> list[str]:
    if place.delimiter is not None:
        return text_header(place, file, schema.format)
    return guarded(file.shown, lambda: list(_schema_of(place, file).names))


def _schema_of(place: Place, file: StoredFile) -> Any:
    with place.system.open_input_file(file.path) as stream:
        return pq.read_schema(stream)


def _used(private_column: Any) -> Any:
    """A column of dictionaries, without the values that its own rows do not have: a batch has those of the group."""
    if not pa.types.is_dictionary(private_column.type):
        return private_column
    return pa.chunked_array([_shortened(private_chunk) for private_chunk in private_column.chunks])


def _shortened(private_chunk: Any) -> Any:
    if len(private_chunk.dictionary) <= len(private_chunk):
        return private_chunk
    places = private_chunk.indices.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False)
    used, inverse = np.unique(places, return_inverse=True)
    shift = int(len(used) > 0 and used[0] < 0)
    indices = pa.array(inverse - shift, type=private_chunk.type.index_type, mask=places < 0)
    values = pc.call_function("take", [private_chunk.dictionary, pa.array(used[shift:])])
    return pa.DictionaryArray.from_arrays(indices, values)


def _require_in_files(place: Place, file: StoredFile, present: Sequence[str], wanted: Sequence[str]) -> None:
    """Refuse columns that stand in the names of folders alone."""
    for name in wanted:
        if name in place.partitions:
            raise TableError(
                f"The Delta table keeps {name!r} in the names of its folders, not in its files: leave it out of the "
                "schema, or write a copy that is not partitioned by it."
            )
        if name not in present and f"/{name}=" in file.shown:
            raise TableError(
                f"The column {name!r} stands only in the names of the folders (such as {_folder_of(file, name)!r}), "
                "not in the files: leave it out of the schema, or write it into the files first, such as with "
                "pyarrow.dataset.dataset(FOLDER, partitioning='hive').to_table()."
            )


def _folder_of(file: StoredFile, name: str) -> str:
    """The folder whose name holds a column."""
    return next(part for part in file.shown.split("/") if part.startswith(f"{name}="))
