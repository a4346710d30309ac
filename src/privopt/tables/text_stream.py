"""The text of a file as UTF-8 from its header on: the marks and lines that stand before it are left out. PRIVATE."""

import codecs
import io
import os
import re
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from privopt.errors import ArgumentError
from privopt.tables.errors import TableError
from privopt.tables.file_format import FileFormat

_WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_SEPARATOR_LINE = re.compile(rb'"?sep=([\x09\x20-\x7e])"?\r?\n', re.IGNORECASE)  # of spreadsheets
_SEEN = 64  # bytes at the beginning that are looked at
_AT_ONCE = 2**16  # bytes that are decoded at a time
_UTF_8 = ("ascii", "utf-8", "utf-8-sig")


class TextStream:
    """What is in a text file from its header on, as UTF-8.

    Left out are a byte-order mark and a first line `sep=;`, which names the separator. A file in another encoding than
    UTF-8 is decoded as it is read; what the encoding does not allow becomes U+FFFD, which no level holds.

    Args:
        raw: the bytes of the file, unpacked; closed with this stream.
        written: how the schema says that files are written.
        usual: the separator, where nothing else says it.

    Attributes:
        separator: between cells: of the schema, or of the first line, or the usual one.
    """

    def __init__(self, raw: io.RawIOBase, written: FileFormat, usual: str) -> None:
        self._stream: Any = io.BufferedReader(raw)
        encoding = "utf-8" if written.encoding is None else codecs.lookup(written.encoding).name
        if written.encoding is None and self._stream.peek(_SEEN)[:2] in _WIDE_MARKS:
            encoding = "utf-16"
        if encoding not in _UTF_8:
            self._stream = io.BufferedReader(_Recoded(self._stream, encoding))
        beginning = self._stream.peek(_SEEN)
        mark = len(codecs.BOM_UTF8) if beginning.startswith(codecs.BOM_UTF8) else 0
        line = _SEPARATOR_LINE.match(beginning, mark)
        self._base = mark if line is None else line.end()
        self._stream.read(self._base)
        named = usual if line is None else line.group(1).decode("ascii")
        self.separator = named if written.separator is None else written.separator
        self.is_plain = self._base == 0 and encoding in _UTF_8

    @property
    def stream(self) -> Any:
        """The rest, to be read once."""
        return self._stream

    def read(self, size: int) -> bytes:
        """The next bytes."""
        return self._stream.read(size)

    def skip(self, size: int) -> None:
        """Leave out bytes; at the beginning only."""
        if self._stream.seekable():
            self._stream.seek(self._base + size)
            return
        while size > 0:
            content = self._stream.read(min(size, _AT_ONCE))
            if not content:
                return
            size -= len(content)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


class _Over(io.RawIOBase):
    """Bytes made of those of another stream, which is closed with this one."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()


class _Recoded(_Over):
    """Bytes of another encoding as UTF-8."""

    def __init__(self, stream: Any, encoding: str) -> None:
        super().__init__(stream)
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")
        self._private_left, self._ended = b"", False

    def readinto(self, buffer: Any) -> int:
        while not self._private_left and not self._ended:
            private_read = self._stream.read(_AT_ONCE)
            self._ended = not private_read
            private_text = self._decoder.decode(private_read, self._ended)
            self._private_left = private_text.encode("utf-8", "replace")
        private_given = self._private_left[: len(buffer)]
        self._private_left = self._private_left[len(buffer) :]
        buffer[: len(private_given)] = private_given
        return len(private_given)


# ---- How much a table may grow when it is unpacked: a small file must not fill the memory ------------------
# A table may be as large as its file is. What a packed file unpacks to, a CSV with .gz or Parquet, may be at most
# `MOST_GROWTH` times the file, or `MOST_FREE` bytes where that is more. Compressed texts grow to some tenfold; a
# thousandfold and more is the size of a bomb. Rare flags, which Parquet packs as tightly, are no bomb as long as they
# fit: a cell counts with the width of its type, and each row with a number besides. Who knows better raises the limit
# by the variable of the environment that `ALLOWED` names.


MOST_GROWTH = 100
MOST_FREE = 2**30  # bytes
MOST_HEADER = 2**24  # bytes of the line with the columns' names
ALLOWED = "PRIVOPT_MOST_UNPACKED"  # such as 8GB
NUMBER = 8  # bytes of a cell whose type says nothing of its width, and of each row's target
_BUFFER_BYTES = 2**20  # of a Parquet column's pages, read at a time
_TEXTS = ("string", "binary", "string_view", "binary_view")


def open_packed(file: Path) -> "Counted":
    """A .gz file as a stream of what is in it.

    Raises:
        TableError: while it is read, once it has grown beyond the limit.
    """
    return Counted(pa.input_stream(str(file), compression="gzip"), str(file), file.stat().st_size)


def header_lines(text: io.TextIOBase, file: str) -> Generator[str]:
    """The lines of a CSV, as long as they are those of its header: a quoted name may go on in the next.

    Raises:
        TableError: together they are longer than the limit.
    """
    left = MOST_HEADER
    while line := text.readline(left + 1):
        left -= len(line)
        if left < 0:
            raise TableError(
                f"The table {file!r} has a header of more than {MOST_HEADER / 2**20:,.0f} MiB, the most that is "
                "read."
            )
        yield line


def read_parquet(file: Path, wanted: Sequence[str]) -> Any:
    """Some columns of a Parquet file, as an Arrow table.

    Texts are read as a dictionary of the different ones, which is small however often they are repeated, and written
    out only within the limit. A column is read one row group after the other, and what came out is counted: a footer
    may say that there is less than there is.

    Args:
        file: of that format.
        wanted: the columns, all of which it has.
    Raises:
        TableError: they are larger than the limit.
        ArrowException: the file is not well-formed.
    """
    with pq.ParquetFile(file) as parquet:
        check_footer(parquet.metadata, str(file), file.stat().st_size, set(wanted))
        fields = [field for field in parquet.schema_arrow if field.name in wanted]
    plain = {field.name: field.type for field in fields if is_text(field.type)}
    # Without a buffer in between, a column's pages are all read before the first of them is decoded.
    with pq.ParquetFile(file, read_dictionary=list(plain), buffer_size=_BUFFER_BYTES) as parquet:
        private_columns = [_column(parquet, file, name, plain.get(name)) for name in wanted]
    return pa.table(private_columns, names=list(wanted))


def _column(parquet: Any, file: Path, name: str, plain: Any) -> Any:
    """One column, as an Arrow chunked array; of a text `plain` is its type."""
    private_chunks, size = list[Any](), 0
    for group in range(parquet.num_row_groups):
        private_part = parquet.read_row_group(group, columns=[name]).select([name]).column(0)
        kind = private_part.type
        is_coded_text = pa.types.is_dictionary(kind) and is_text(kind.value_type)
        size += sum(map(_written_out, private_part.chunks)) if is_coded_text else private_part.nbytes
        _require(size, str(file), file.stat().st_size)
        private_chunks += private_part.chunks
    if not private_chunks:
        return parquet.read(columns=[name]).select([name]).column(0)
    private_column = pa.chunked_array(private_chunks)
    if plain is None or not pa.types.is_dictionary(private_column.type):
        return private_column
    return private_column.cast(plain if str(plain).startswith("large_") else private_column.type.value_type)


class Counted(_Over):
    """A stream that stops once more has come out of it than the limit.

    Args:
        stream: what is in the file.
        name: of the file.
        packed: its own size in bytes.
    """

    def __init__(self, stream: Any, name: str, packed: int) -> None:
        super().__init__(stream)
        self._name, self._packed, self._seen = name, packed, 0

    def readinto(self, buffer: Any) -> int:
        """The next bytes."""
        content = self._stream.read(len(buffer))
        self._seen += len(content)
        _require(self._seen, self._name, self._packed)
        buffer[: len(content)] = content
        return len(content)


def check_footer(metadata: Any, file: str, packed: int, wanted: set[str]) -> None:
    """Refuse a file by what its footer says of the columns that are wanted, before any of it is unpacked.

    Args:
        metadata: of the Parquet file. Of a column's chunks only their sizes are looked at, never their statistics.
        file: its name.
        packed: its own size in bytes.
        wanted: the columns.
    Raises:
        TableError: they would be larger than the limit, or hold lists of texts.
    """
    groups = (metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
    size = NUMBER * max(metadata.num_rows, sum(groups))
    stored = metadata.schema.to_arrow_schema()
    for place in range(metadata.num_columns):
        leaf = metadata.schema.column(place)
        name = _column_of(leaf, wanted)
        if name is None:
            continue
        if leaf.physical_type == "BYTE_ARRAY" and leaf.name != leaf.path:
            raise TableError(f"Column {name!r} is stored as lists of texts, which no kind of column is.")
        cell = _width(stored, name, leaf)
        for group in range(metadata.num_row_groups):
            chunk = metadata.row_group(group).column(place)
            size += max(chunk.total_uncompressed_size, cell * chunk.num_values)
    _require(size, file, packed)


def _width(stored: Any, name: str, leaf: Any) -> int:
    """Bytes of a cell of a leaf of this column in memory."""
    if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY":
        return max(NUMBER, leaf.length)
    places = stored.get_all_field_indices(name)
    kind = stored.field(places[0]).type if len(places) == 1 else None
    while kind is not None and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        kind = kind.value_type
    if kind is None or not (pa.types.is_primitive(kind) or pa.types.is_boolean(kind)):
        return NUMBER
    return -(-kind.bit_width // 8)


def _column_of(leaf: Any, wanted: set[str]) -> str | None:
    """Which of the wanted columns a leaf of the file's schema belongs to; None for none of them."""
    if leaf.name == leaf.path:  # not nested, whatever dots are in its name
        return leaf.name if leaf.name in wanted else None
    parts = leaf.path.split(".")
    return next((name for end in range(1, len(parts)) if (name := ".".join(parts[:end])) in wanted), None)


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is one of texts, or of bytes."""
    return str(kind).removeprefix("large_") in _TEXTS


def _written_out(private_chunk: Any) -> int:
    """How many bytes the texts of a dictionary-encoded chunk have together."""
    lengths = pc.call_function("binary_length", [private_chunk.dictionary]).cast(pa.int64())
    return pc.call_function("sum", [lengths.take(private_chunk.indices)]).as_py() or 0


def _require(size: int, file: str, packed: int) -> None:
    try:
        allowed = bytes_of(os.environ.get(ALLOWED) or None, ALLOWED) or 0
    except ArgumentError as error:
        raise TableError(str(error)) from None
    most = max(MOST_FREE, MOST_GROWTH * packed, allowed)
    if size > most:
        raise TableError(
            f"The table {file!r} unpacks to more than {most / 2**30:,.0f} GiB, more than {MOST_GROWTH} times its own "
            f"size: if that is right, allow for it in the environment, such as {ALLOWED}=8GB, or give it unpacked, as "
            "plain CSV."
        )


# ---- Amounts of memory as they are typed: 8GB, 500 MiB, 1e9 ------------------------------------------------


_UNITS = {
    "": 1,
    "k": 10**3,
    "m": 10**6,
    "g": 10**9,
    "t": 10**12,
    "ki": 2**10,
    "mi": 2**20,
    "gi": 2**30,
    "ti": 2**40,
}
_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?(?:e[0-9]{1,2})?)\s*([kmgt]i?|)b?\s*", re.IGNORECASE)


def bytes_of(amount: Any, name: str = "memory") -> int | None:
    """A number of bytes, or a text such as "8GB"; None for None.

    Args:
        amount: as it was given.
        name: of what was given.
    Raises:
        ArgumentError: it is neither, or less than 1.
    """
    if amount is None or (isinstance(amount, int) and not isinstance(amount, bool) and amount >= 1):
        return amount
    found = _AMOUNT.fullmatch(amount) if isinstance(amount, str) else None
    size = 0.0 if found is None else float(found.group(1)) * _UNITS[found.group(2).lower()]
    if not 1 <= size < 2**62:
        raise ArgumentError(
            f"{name} must be an amount such as 8GB, 500MiB or a number of bytes, got {amount!r}."
        )
    return int(size)
