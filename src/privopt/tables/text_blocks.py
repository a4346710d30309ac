"""A text table in blocks of whole records: where each begins in the file, and how many records it has. PRIVATE."""

import re
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv as arrow_csv

from privopt.tables.errors import TableError
from privopt.tables.file_format import FileFormat
from privopt.tables.io import convert_options, extension, guarded, header_names
from privopt.tables.places import Place, StoredFile
from privopt.tables.schema import Schema
from privopt.tables.text_stream import MOST_HEADER, Counted, TextStream
from privopt.tables.values import loaded

BLOCK_BYTES = 2**22  # of text that is parsed at a time
MOST_RECORD = 2**26  # bytes of one record


class TextBlock(NamedTuple):
    """Whole records in a file.

    Attributes:
        start, stop: where their text is, in bytes of UTF-8 from the header on. The first block begins with the header.
        rows: how many they are.
    """

    start: int
    stop: int
    rows: int


def text_header(place: Place, file: StoredFile, written: FileFormat) -> list[str]:
    """The names of the columns.

    Raises:
        TableError: it cannot be read.
    """

    def read() -> list[str]:
        with _opened(place, file, written) as stream:
            return header_names(stream, file.shown)

    return guarded(file.shown, read)


def text_blocks(place: Place, file: StoredFile, names: Sequence[str], written: FileFormat) -> list[TextBlock]:
    """Read a file once, to find where its records begin and how many there are.

    Raises:
        TableError: it is not well-formed: every record is parsed.
    """
    found: list[TextBlock] = []

    def read() -> None:
        start = 0
        with _opened(place, file, written) as stream:
            for private_text in _whole_records(stream, file):
                parsed = _parsed(private_text, stream.separator, names, names[:1], first=start == 0)
                found.append(TextBlock(start, start + len(private_text), parsed.num_rows))
                start += len(private_text)

    guarded(file.shown, read)
    return found


def read_text(
    place: Place,
    file: StoredFile,
    names: Sequence[str],
    blocks: Sequence[TextBlock],
    schema: Schema,
    wanted: Sequence[str],
    *,
    as_texts: bool = False,
) -> Generator[Any]:
    """Some columns of consecutive blocks of a file, each block as an Arrow table; numbers read, unless `as_texts`."""
    if not blocks:
        return
    written = schema.format
    left = {block.start: block for block in blocks}
    with _opened(place, file, written) as stream:
        stream.skip(blocks[0].start)
        for block in left.values():
            private_text = stream.read(block.stop - block.start)
            private_table = _parsed(
                private_text,
                stream.separator,
                names,
                wanted,
                first=block.start == 0,
            )
            private_columns = [
                private_table.column(name)
                if as_texts
                else loaded(private_table.column(name), schema.column(name))
                for name in wanted
            ]
            yield pa.table(private_columns, names=list(wanted))


def _opened(place: Place, file: StoredFile, written: FileFormat) -> TextStream:
    """What is in a file, from its header on."""
    if extension(file.name).endswith(".gz"):
        packed = place.system.open_input_stream(file.path, compression="gzip")
        raw: Any = Counted(packed, file.shown, file.size)
    else:
        raw = place.system.open_input_file(file.path)
    return TextStream(raw, written, place.delimiter or ",")


def _whole_records(stream: TextStream, file: StoredFile) -> Generator[bytes]:
    """The text of a file in pieces that end where a record does."""
    mark = re.escape(stream.separator.encode())
    # A quote opens a field only where the field begins; within it, a doubled quote stands for one.
    quoted = re.compile(rb"(?:\A|(?<=[" + mark + rb'\r\n]))"[^"]*(?:""[^"]*)*(?:"|\Z)')
    private_left = b""
    while private_read := stream.read(BLOCK_BYTES):
        private_left += private_read
        end = _last_end(private_left, quoted)
        if end:
            yield private_left[:end]
            private_left = private_left[end:]
        elif len(private_left) > MOST_RECORD:
            raise TableError(
                f"The table {file.shown!r} has a record of more than {MOST_RECORD / 2**20:,.0f} MiB, the most "
                "that is read."
            )
    if private_left:
        yield private_left


def _last_end(private_text: bytes, quoted: re.Pattern[bytes]) -> int:
    """Where the last whole record ends; 0 where none does."""
    end = len(private_text)
    if b'"' in private_text:
        for span in reversed([match.span() for match in quoted.finditer(private_text)]):
            at = _line_end(private_text, span[1], end)
            if at:
                return at
            end = span[0]
    return _line_end(private_text, 0, end)


def _line_end(private_text: bytes, start: int, stop: int) -> int:
    """Just behind the last end of a line in a piece of text outside of quotes; 0 for none."""
    at = private_text.rfind(b"\n", start, stop)
    if at < 0:  # the last byte may be the first of two that end one line
        at = private_text.rfind(b"\r", start, min(stop, len(private_text) - 1))
    return at + 1


def _parsed(
    private_text: bytes,
    separator: str,
    names: Sequence[str],
    wanted: Sequence[str],
    *,
    first: bool,
) -> Any:
    """Some columns of a piece of text, as texts."""
    if not first and not private_text.strip(b"\r\n"):
        return pa.table({name: pa.array([], pa.string()) for name in wanted})
    return arrow_csv.read_csv(
        pa.BufferReader(private_text),
        read_options=arrow_csv.ReadOptions(
            column_names=None if first else list(names), block_size=max(len(private_text), MOST_HEADER)
        ),
        parse_options=arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
        convert_options=convert_options(wanted),
    )
