"""How well a schema fits a table, counted exactly. For the holder of the data alone: no guarantee covers it. PRIVATE.

A fit never calls this: which cells cannot be read is a fact about records.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from privopt.data import cells
from privopt.tables.cells import column_names, level_codes, lists, read_columns
from privopt.tables.column_spec import ColumnSpec, day_number
from privopt.tables.errors import TableError, instead_of
from privopt.tables.file_format import FileFormat
from privopt.tables.values import read_values

OUTSIDE = (
    "Exact counts, for the holder of the data alone. No guarantee covers them: they are no part of a private result, "
    "and publishing them tells of single records."
)
MOST_TEXTS = 10_000  # different ones of a column that are kept
MOST_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class ColumnDiagnosis:
    """How many cells of a column are what. PRIVATE.

    Attributes:
        column: its name.
        kind: as the schema says.
        cells: how many there are.
        missing: cells without a value, or with a text that stands for none.
        unreadable: cells that are no number, flag, date or list.
        out_of_range: readable cells beyond the bounds, which are moved to the nearer end; of a set, those with an index
            beyond its size.
        unknown: cells that are none of the levels.
        cause: what is likely to be wrong, and the remedy; empty where nothing is.
        values: the most frequent cells that are unreadable, unknown or out of range, each with its count.
    """

    column: str
    kind: str
    cells: int
    missing: int = 0
    unreadable: int = 0
    out_of_range: int = 0
    unknown: int = 0
    cause: str = ""
    values: tuple[tuple[str, int], ...] = ()

    @property
    def wrong(self) -> int:
        """How many cells have a value that is not used as it stands."""
        return self.unreadable + self.out_of_range + self.unknown


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """How well a schema fits a table. PRIVATE: exact, and outside of any guarantee.

    Attributes:
        rows: how many there are.
        columns: one entry for each column that the schema describes and that was looked at.
    """

    rows: int
    columns: tuple[ColumnDiagnosis, ...]

    def text(self, *, show_values: bool = False) -> str:
        """In words, one line for each column, and one for each likely cause.

        Args:
            show_values: whether cells are quoted.
        """
        lines = [OUTSIDE, f"{self.rows:,} rows."]
        width = max([len(one.column) for one in self.columns], default=0)
        for one in self.columns:
            counts = {
                "missing": one.missing,
                "unreadable": one.unreadable,
                "out of range": one.out_of_range,
                "unknown": one.unknown,
            }
            told = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
            lines.append(f"{one.column:<{width}}  {one.kind:<6}  {told or 'every cell is read'}")
            if one.cause:
                lines.append(f"{'':<{width}}  -> {one.cause}")
            if show_values and one.values:
                quoted = ", ".join(f"{value!r} ({count:,})" for value, count in one.values)
                lines.append(f"{'':<{width}}  values: {quoted}")
        return "\n".join(lines)

    def to_dict(self, *, show_values: bool = False) -> dict[str, Any]:
        """As plain JSON values; cells are quoted only with `show_values`."""
        columns = [asdict(one) for one in self.columns]
        if not show_values:
            for one in columns:
                del one["values"]
        return {"outside_the_guarantee": OUTSIDE, "rows": self.rows, "columns": columns}

    def __str__(self) -> str:
        return self.text()


@dataclass
class _Counted:
    """What was seen of a column so far."""

    spec: ColumnSpec
    cells: int = 0
    missing: int = 0
    unreadable: int = 0
    out_of_range: int = 0
    unknown: int = 0
    unread: Counter[str] = field(default_factory=Counter[str])
    beyond: Counter[str] = field(default_factory=Counter[str])

    def add(self, private_column: Any) -> None:
        """Count the cells of a block."""
        spec, count = self.spec, len(private_column)
        self.cells += count
        if spec.kind in ("pixels", "set"):
            self._add_lists(private_column)
            return
        if spec.kind == "cat":
            private_unread = level_codes(private_column, spec) < 0
        elif spec.kind in ("num", "flag", "date"):
            private_values = read_values(private_column, spec)
            private_unread = ~np.isfinite(private_values)
            if spec.kind != "flag":
                low, high = spec.limits
                private_beyond = ~private_unread & ((private_values < low) | (private_values > high))
                self.out_of_range += int(private_beyond.sum())
                _note(self.beyond, _cells(private_column, private_beyond))
        else:
            private_unread = np.ones(count, np.bool_)
        private_texts = _cells(private_column, private_unread)
        present = [text for text in private_texts if text is not None and not self._is_missing(text)]
        self.missing += len(private_texts) - len(present)
        if spec.kind in ("id", "text"):
            return
        if spec.kind == "cat":
            self.unknown += len(present)
        else:
            self.unreadable += len(present)
        _note(self.unread, present)

    def _is_missing(self, text: str) -> bool:
        return not text.strip() or text in ("nan", "NaN")

    def _add_lists(self, private_column: Any) -> None:
        for lengths, private_flat in lists(private_column, self.spec.name):
            self.missing += int((lengths < 0).sum())
            if self.spec.kind == "pixels":
                self.unreadable += int(((lengths >= 0) & (lengths != self.spec.size)).sum())
                continue
            row = np.repeat(np.arange(len(lengths)), np.maximum(lengths, 0))
            beyond = ~((private_flat >= 0) & (private_flat < self.spec.size))
            self.out_of_range += len(np.unique(row[beyond]))

    def found(self) -> ColumnDiagnosis:
        """The counts, and what is likely to be wrong."""
        most = (self.unread + self.beyond).most_common(MOST_SHOWN)
        return ColumnDiagnosis(
            column=self.spec.name,
            kind=self.spec.kind,
            cells=self.cells,
            missing=self.missing,
            unreadable=self.unreadable,
            out_of_range=self.out_of_range,
            unknown=self.unknown,
            cause=likely_cause(self.spec, self.unread, self.beyond, self.cells),
            values=tuple(most),
        )


def diagnose(tables: Iterable[Any], specs: Sequence[ColumnSpec]) -> Diagnosis:
    """Count what cannot be read of a table.

    Args:
        tables: its rows, as one frame or several blocks.
        specs: its columns.
    Raises:
        TypeError, TableError: a table has no named columns, lacks one, or stores it as something else.
    """
    counted, rows = [_Counted(spec) for spec in specs], 0
    for table in tables:
        present = column_names(table)
        for spec in specs:
            if spec.name not in present:
                meant = instead_of(spec.name, present, [one.name for one in specs])
                raise TableError(
                    f"The table has no column {spec.name!r}, which the schema names{meant or '.'}"
                )
        private_columns, count = read_columns(table, specs, of_any_type=True)
        rows += count
        for one in counted:
            one.add(private_columns[one.spec.name])
    return Diagnosis(rows=rows, columns=tuple(one.found() for one in counted))


def _cells(private_column: Any, private_chosen: NDArray[np.bool_]) -> list[str | None]:
    """Some cells as texts, None for a missing one; U+FFFD for a text in another encoding."""
    if isinstance(private_column, np.ndarray):
        return [_text(private_cell) for private_cell in private_column[private_chosen]]
    private_kept = private_column.filter(pa.array(private_chosen))
    return [_text(private_scalar, is_scalar=True) for private_scalar in private_kept]


def _text(private_cell: Any, *, is_scalar: bool = False) -> str | None:
    try:
        if is_scalar:
            if not private_cell.is_valid:
                return None
            private_cell = private_cell.as_py()
        if private_cell is None or (np.ndim(private_cell) == 0 and pd.isna(private_cell)):
            return None
        return str(private_cell)
    except Exception:  # bytes that are no text, an object that fails when it is read
        return "\ufffd"


def _note(texts: Counter[str], more: Iterable[str | None]) -> None:
    """Count texts, of which not too many different ones are kept."""
    for text in more:
        if text is not None and (text in texts or len(texts) < MOST_TEXTS):
            texts[text] += 1


# ---- Why cells of a column cannot be read, guessed from them, and the remedy. PRIVATE ----------------------
# For the holder of the data alone. A sentence quotes a cell only where it is a word that stands here; any other is
# shown on request alone.

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
    of = {"num": _of_numbers, "date": _of_dates, "cat": _of_levels}
    if unread and spec.kind == "flag":
        return _of_flags(spec, unread, cells_in_all)
    if unread and spec.kind in of:
        return _of_any(unread, cells_in_all) or of[spec.kind](spec, unread, cells_in_all)
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
    if general := _of_any(texts, cells_in_all):
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
    count = _explains(texts, lambda text: bool(_OTHER_DATE.fullmatch(text.strip())))
    if count:
        return f"{_told(count, cells_in_all)} are dates in another order: write year, month, day, such as 1990-01-31."
    return f"{_told(texts.total(), cells_in_all)} are no dates: write them as 1990-01-31."


def _of_levels(spec: ColumnSpec, texts: Counter[str], cells_in_all: int) -> str:
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
