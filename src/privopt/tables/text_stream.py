"""The text of a file as UTF-8 from its header on: the marks and lines that stand before it are left out. PRIVATE."""

import codecs
import io
import re
from typing import Any, Self

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


class _Recoded(io.RawIOBase):
    """Bytes of another encoding as UTF-8."""

    def __init__(self, stream: Any, encoding: str) -> None:
        super().__init__()
        self._stream, self._decoder = stream, codecs.getincrementaldecoder(encoding)("replace")
        self._private_left, self._ended = b"", False

    def readable(self) -> bool:
        return True

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

    def close(self) -> None:
        if not self.closed:
            self._stream.close()
        super().close()
