"""How text files, and the texts in other tables, write cells: separator, decimal sign, encoding. Public."""

import codecs
import functools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

import numpy as np

from privopt.data import cells
from privopt.tables.errors import TableError

_OTHER_WORDS = {
    "sep": "separator",
    "delimiter": "separator",
    "na_values": "missing",
    "null_values": "missing",
}
_BLANKS = {" ": "\u00a0\u202f", "'": "\u2019"}  # signs that stand for another one between thousands


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """What a schema says of the files in its `file`.

    Attributes:
        separator: the sign between cells; None for what the file's name says: a comma, or a tab for .tsv.
        decimal: the sign before decimals.
        thousands: the sign between groups of three digits; None for none.
        encoding: of text files; None for UTF-8, and for UTF-16 where a file begins with its mark.
        missing: texts that stand for a missing cell, such as "NA", "." and "-999", in all columns of all tables; one
            that writes a number stands for that number too, however it is stored.
    """

    separator: str | None = None
    decimal: str = "."
    thousands: str | None = None
    encoding: str | None = None
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("separator", "decimal", "thousands"):
            sign: Any = getattr(self, name)
            if sign is None and name != "decimal":
                continue
            if not isinstance(sign, str) or len(sign) != 1 or sign.isalnum() or sign in '"\r\n+-':
                raise TableError(
                    f"The schema's file has {name}={sign!r}: give one sign, such as ';' or ',', that is no letter, "
                    "digit, quote or sign of a number."
                )
        if self.separator is not None and not self.separator.isascii():
            raise TableError(f"The schema's file has separator={self.separator!r}: give a sign of ASCII.")
        if self.thousands == self.decimal:
            raise TableError(
                f"The schema's file has {self.decimal!r} both as decimal and as thousands: numbers could not be read."
            )
        if self.encoding is not None:
            _check_encoding(self.encoding)
        texts: Any = self.missing
        if not isinstance(texts, tuple) or not all(isinstance(text, str) for text in cast("Any", texts)):
            raise TableError(
                f"The schema's file needs a list of texts or whole numbers as 'missing'; got {texts!r}."
            )

    @classmethod
    def from_json(cls, entry: Any) -> "FileFormat":
        """Read the JSON object.

        Raises:
            TableError: a key is unknown, or has a value that is not allowed.
        """
        known = [field.name for field in fields(cls)]
        if not isinstance(entry, Mapping):
            raise TableError(
                f'The schema\'s file must be an object such as {{"decimal": ","}}; got {entry!r}.'
            )
        given = dict(cast("Mapping[str, Any]", entry))
        unknown = [key for key in given if key not in known]
        if unknown:
            meant = _OTHER_WORDS.get(unknown[0])
            hint = f"it is called {meant!r} here" if meant else f"use {', '.join(map(repr, known))}"
            raise TableError(f"The schema's file has the unknown key {unknown[0]!r}: {hint}.")
        if isinstance(given.get("missing"), list | tuple):
            given["missing"] = tuple(
                str(one) if isinstance(one, int) and not isinstance(one, bool) else one
                for one in given["missing"]
            )
        return cls(**given)

    def to_json(self) -> dict[str, Any]:
        """The JSON object that `from_json` reads back to an equal format."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        entry = {name: value for name, value in values.items() if value not in (None, ())}
        return entry | ({"missing": list(self.missing)} if self.missing else {})

    @property
    def is_plain(self) -> bool:
        """Whether its numbers are written as Python writes them."""
        return self.decimal == "." and self.thousands is None

    @functools.cached_property
    def missing_numbers(self) -> frozenset[float]:
        """The numbers that stand for a missing cell; whole ones as integers."""
        found = [
            int(text) if cells.is_written_integer(text.strip()) else self.number(text)
            for text in self.missing
        ]
        return frozenset(value for value in found if value == value)

    def is_missing(self, private_cell: Any, *, as_number: bool) -> bool:
        """Whether a cell stands for a missing one.

        Args:
            private_cell: whatever it is.
            as_number: whether a text that writes one of the numbers does so too, such as "-999.0".
        """
        try:
            if isinstance(private_cell, str):
                if private_cell.strip() in self.missing:
                    return True
                if not as_number:
                    return False
                private_cell = self.number(private_cell)
            is_truth = isinstance(private_cell, bool | np.bool_)
            return (
                not is_truth and cells.can_be_looked_up(private_cell) and private_cell in self.missing_numbers
            )
        except Exception:  # it cannot be hashed or compared, so it equals no number
            return False

    def number(self, private_cell: Any) -> float:
        """One cell as a number; NaN for what is none."""
        if not isinstance(private_cell, str) or self.is_plain:
            return cells.number(private_cell)
        private_word = private_cell.strip()
        if self.thousands is not None:
            for sign in _BLANKS.get(self.thousands, ""):
                private_word = private_word.replace(sign, self.thousands)
            if self.thousands in private_word:
                if not _grouped(self.thousands, self.decimal).fullmatch(private_word):
                    return math.nan
                private_word = private_word.replace(self.thousands, "")
        if self.decimal != ".":
            if "." in private_word:
                return math.nan
            private_word = private_word.replace(self.decimal, ".")
        return cells.number(private_word)


PLAIN = FileFormat()


@functools.cache
def _grouped(thousands: str, decimal: str) -> re.Pattern[str]:
    """A number whose digits before the decimal sign stand in groups of three."""
    group, point = re.escape(thousands), re.escape(decimal)
    return re.compile(rf"[+-]?[0-9]{{1,3}}(?:{group}[0-9]{{3}})+(?:{point}[0-9]*)?(?:[eE][+-]?[0-9]+)?")


def _check_encoding(encoding: Any) -> None:
    """Refuse what is no encoding of texts."""
    try:
        is_text = "a,b\n1\n".encode(encoding).decode(encoding) == "a,b\n1\n"
    except (LookupError, TypeError, ValueError):
        is_text = False
    if not is_text or codecs.lookup(encoding).name in (
        "idna",
        "punycode",
        "raw-unicode-escape",
        "unicode-escape",
    ):
        raise TableError(
            f"The schema's file has encoding={encoding!r}, which Python does not know: give 'utf-8', 'cp1252' (texts "
            "of Western Windows), 'latin-1' or 'utf-16'."
        )
