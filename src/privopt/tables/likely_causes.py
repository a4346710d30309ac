"""Why cells of a column cannot be read, guessed from them, and the remedy. For the holder of the data alone. PRIVATE.

A sentence quotes a cell only where it is a word that stands here; any other is shown on request alone.
"""

import math
import re
from collections import Counter
from collections.abc import Callable

from privopt.data import cells
from privopt.tables.column_spec import ColumnSpec
from privopt.tables.dates import day_number
from privopt.tables.file_format import FileFormat

# What stands for true and false in tables, in small letters.
_PAIRS = (
    ("yes", "no"),
    ("y", "n"),
    ("true", "false"),
    ("t", "f"),
    ("1", "0"),
    ("1", "2"),
    ("2", "1"),
    ("ja", "nein"),
    ("j", "n"),
    ("oui", "non"),
    ("si", "no"),
    ("s\u00ed", "no"),
    ("sim", "n\u00e3o"),
    ("on", "off"),
    ("positive", "negative"),
    ("pos", "neg"),
    ("+", "-"),
    ("male", "female"),
    ("m", "f"),
)
_MARKERS = frozenset(
    (
        "na",
        "n/a",
        "#n/a",
        "null",
        "none",
        "nil",
        ".",
        "-",
        "--",
        "?",
        "missing",
        "unknown",
        "n.a.",
        "(null)",
        "nd",
    )
)
_FORMATS = (
    FileFormat(decimal=","),
    FileFormat(thousands=","),
    FileFormat(decimal=",", thousands="."),
    FileFormat(thousands=" "),
    FileFormat(decimal=",", thousands=" "),
    FileFormat(thousands="'"),
)
_NUMBER_WITH_SIGN = re.compile(r"[^\d+.,-]{0,4}\s*[+-]?\d[\d.,' ]*\s*[^\d]{0,4}")
_OTHER_DATE = re.compile(r"\d{1,2}[./-]\d{1,2}[./-]\d{2,4}.*")
_MOST = 0.5  # share of the cells in question that a cause has to explain


def likely_cause(spec: ColumnSpec, unread: Counter[str], beyond: Counter[str], cells_in_all: int) -> str:
    """The likely cause and its remedy, as a sentence; empty where every cell is read.

    Args:
        spec: the column.
        unread: its cells that are no number, flag, date or level, with their counts.
        beyond: its cells beyond the bounds.
        cells_in_all: how many the column has.
    """
    of = {"flag": _of_flags, "num": _of_numbers, "date": _of_dates, "cat": _of_levels}
    if unread and spec.kind in of:
        return of[spec.kind](spec, unread, cells_in_all)
    return _of_range(spec, beyond, cells_in_all) if beyond else ""


def _told(count: int, cells_in_all: int) -> str:
    return f"{count:,} of {cells_in_all:,} cells"


def _explains(texts: Counter[str], accepts: Callable[[str], bool]) -> int:
    """How many cells are accepted, 0 where they are not the most."""
    count = sum(times for text, times in texts.items() if accepts(text))
    return count if count > _MOST * texts.total() else 0


def _of_any(texts: Counter[str], cells_in_all: int) -> str:
    """What may be wrong with cells of any kind."""
    count = _explains(texts, lambda text: "\ufffd" in text)
    if count:
        return (
            f"{_told(count, cells_in_all)} are in another encoding: say so in the schema, such as "
            '"file": {"encoding": "cp1252"}.'
        )
    count = _explains(texts, lambda text: text.strip().lower() in _MARKERS)
    if count:
        found = sorted({text.strip() for text in texts if text.strip().lower() in _MARKERS})
        listed = ", ".join(f'"{text}"' for text in found)
        return f'{_told(count, cells_in_all)} stand for a missing value: name them, "file": {{"missing": [{listed}]}}.'
    count = _explains(texts, lambda text: text.startswith("#"))
    return f"{_told(count, cells_in_all)} are errors of a spreadsheet." if count else ""


def _of_flags(spec: ColumnSpec, texts: Counter[str], cells_in_all: int) -> str:
    small = {text.strip().casefold() for text in texts}
    for true, false in _PAIRS:
        if small == {true, false} or (len(small) == 1 and small <= {true, false} and not spec.true):
            written = " or ".join(repr(text) for text in sorted({text.strip() for text in texts}))
            return (
                f"{_told(texts.total(), cells_in_all)} are {written}: declare "
                f'"true": "{true}", "false": "{false}".'
            )
    general = _of_any(texts, cells_in_all)
    if general:
        return general
    if not spec.true and _explains(texts, lambda text: not math.isnan(cells.number(text))):
        return (
            f"{_told(texts.total(), cells_in_all)} are numbers other than 0 and 1: name those that mean true and "
            'false, as texts in "true" and "false", or describe the column as a num.'
        )
    if len(small) == 2:
        return f'{_told(texts.total(), cells_in_all)} are two other texts: name them in "true" and "false".'
    return f"{_told(texts.total(), cells_in_all)} are no flags: name the texts in use, or describe a cat."


def _of_numbers(spec: ColumnSpec, texts: Counter[str], cells_in_all: int) -> str:
    general = _of_any(texts, cells_in_all)
    if general:
        return general
    for written in _FORMATS:
        count = _explains(texts, lambda text, written=written: not math.isnan(written.number(text)))
        if count:
            said = {
                name: sign for name, sign in written.to_json().items() if (name, sign) != ("decimal", ".")
            }
            entry = ", ".join(f'"{name}": "{sign}"' for name, sign in said.items())
            what = (
                "a decimal comma"
                if written.decimal == "," and written.thousands is None
                else "thousands apart"
            )
            return f'{_told(count, cells_in_all)} write {what}: say so in the schema, "file": {{{entry}}}.'
    if _explains(texts, lambda text: not math.isnan(day_number(text))):
        return f'{_told(texts.total(), cells_in_all)} are dates: describe the column as a "date".'
    count = _explains(texts, lambda text: bool(_NUMBER_WITH_SIGN.fullmatch(text.strip())))
    if count:
        return f"{_told(count, cells_in_all)} have a sign or a unit beside the number, such as %: remove it."
    count = _explains(texts, lambda text: text.strip().casefold() in cells.FLAG_WORDS)
    if count:
        return f'{_told(count, cells_in_all)} are words such as yes and no: describe the column as a "flag".'
    return f'{_told(texts.total(), cells_in_all)} are texts: describe the column as a "cat", or correct them.'


def _of_dates(spec: ColumnSpec, texts: Counter[str], cells_in_all: int) -> str:
    general = _of_any(texts, cells_in_all)
    if general:
        return general
    count = _explains(texts, lambda text: bool(_OTHER_DATE.fullmatch(text.strip())))
    if count:
        return f"{_told(count, cells_in_all)} are dates in another order: write year, month, day, such as 1990-01-31."
    return f"{_told(texts.total(), cells_in_all)} are no dates: write them as 1990-01-31."


def _of_levels(spec: ColumnSpec, texts: Counter[str], cells_in_all: int) -> str:
    general = _of_any(texts, cells_in_all)
    if general:
        return general
    if _explains(texts, lambda text: not math.isnan(cells.number(text))) and all(
        math.isnan(cells.number(level)) for level in spec.levels
    ):
        return (
            f"{_told(texts.total(), cells_in_all)} are numbers, and the levels are words: give the codes as levels, or "
            "write the words into the table."
        )
    known = {_letters(level) for level in spec.levels}
    count = _explains(texts, lambda text: _letters(text) in known)
    if count:
        return (
            f"{_told(count, cells_in_all)} differ from a level in signs or blanks alone: correct the levels."
        )
    which = f"{len(texts):,} texts" if len(texts) > 1 else "one text"
    return (
        f"{_told(texts.total(), cells_in_all)} are {which} that the levels lack: add to the levels, or accept that "
        "they count as missing."
    )


def _of_range(spec: ColumnSpec, beyond: Counter[str], cells_in_all: int) -> str:
    (_, times), total = beyond.most_common(1)[0], beyond.total()
    told = f"{_told(total, cells_in_all)} are beyond the bounds"
    if times > 0.8 * total and total > 20:
        return (
            f"{told}, most of them one value: it may stand for a missing one; name it in the schema, "
            '"file": {"missing": [...]}.'
        )
    if total > _MOST * cells_in_all:
        return f"{told}: the schema may count in another unit, such as thousands or per cent."
    return f"{told}, and are moved to the nearer end."


def _letters(text: str) -> str:
    return "".join(sign for sign in text.casefold() if sign.isalnum()) or text
