"""The public description of one column of a table: its kind, and its range, levels or spellings."""

import datetime
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from privopt.data import cells
from privopt.tables.errors import TableError
from privopt.tables.file_format import PLAIN, FileFormat

MOST_FEATURES = 2**24
# Every kind, and the keys that describe it: required, then optional.
KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "num": (("low", "high"), ("log1p", "integer", "required")),
    "flag": ((), ("true", "false", "required")),
    "cat": (("levels",), ("required",)),
    "date": (("low", "high"), ("parts", "required")),
    "pixels": (("size", "low", "high"), ("required",)),
    "set": (("size",), ("max_active", "required")),
    "id": ((), ()),
    "text": ((), ()),
}
FEATURE_KINDS = ("num", "flag", "cat", "date", "pixels", "set")
TARGET_KINDS = ("flag", "cat", "num")


@dataclass(frozen=True, kw_only=True)
class ColumnSpec:
    """The public description of one column.

    Attributes:
        name: the column's name in the table.
        kind: `num` (a number), `flag` (0 or 1), `cat` (one of `levels`), `date` (a day or a time), `pixels` (a list of
            `size` numbers), `set` (a list of the active indices below `size`), `id` or `text` (never a feature).
        low: smallest plausible value (`num`, `pixels`), in the column's own units; smaller ones are clipped. Of a
            `date` a text such as "1990-01-01".
        high: largest plausible value.
        log1p: whether the number and its bounds are mapped by log(1 + v) before scaling.
        integer: whether the number is a whole one, which synthetic rows then keep; None where nothing is said.
        levels: the categories, as text; a number is written as in "3" or "2.5". A cell is read as `Writings` says:
            blanks around it and capitals do not matter, and "1.0" is the level "1".
        true: the texts that stand for 1 (`flag`), as `levels`, given together with `false`. Without them these are 1,
            true, yes, y and t, with any capitals, and numbers from 0.5 to 1.
        false: the texts that stand for 0. Without them these are 0, false, no, n and f, and numbers from 0 to 0.5.
        parts: in place of one number, parts of the date that become one feature for each value: "quarter", "month",
            "day", "weekday", "hour".
        required: whether the column is never missing: it has no indicator, and synthetic rows always have a value.
        file: how texts write cells, as the schema says it; None where it says nothing.
        size: how many numbers (`pixels`) or possible indices (`set`) the lists have.
        max_active: a public cap on the active indices kept per row (`set`), the smallest first; None keeps all.
    """

    name: str
    kind: str
    low: Any = 0.0
    high: Any = 1.0
    log1p: bool = False
    integer: bool | None = None
    levels: tuple[str, ...] = ()
    size: int = 0
    max_active: int | None = None
    true: tuple[str, ...] = ()
    false: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    required: bool = False
    file: FileFormat | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not _is_text((self.name, *self.levels)):
            raise TableError(
                "A column's name or a level is no Unicode text, and could not be written to a file."
            )
        if self.kind not in KINDS:
            raise TableError(
                f"Column {self.name!r} has kind {self.kind!r}, which does not exist: use one of {listed(KINDS)}."
            )
        if self.kind in ("num", "pixels"):
            self._check_range()
        if self.kind == "cat":
            self._check_levels()
        if self.kind == "flag":
            self._check_spellings()
        if self.kind == "date":
            self._check_dates()
        self._check_truth("required")
        if self.kind in ("pixels", "set") and not (is_whole(self.size) and 1 <= self.size <= MOST_FEATURES):
            raise TableError(
                f"Column {self.name!r} needs a size from 1 to {MOST_FEATURES:,}, a whole number; got {self.size!r}."
            )
        if self.max_active is not None and (not is_whole(self.max_active) or self.max_active < 1):
            raise TableError(
                f"Column {self.name!r} needs a max_active of at least 1, a whole number; got {self.max_active!r}."
            )

    def _check_range(self) -> None:
        for key, bound in (("low", self.low), ("high", self.high)):
            if type(bound) not in (int, float) or not abs(bound) <= sys.float_info.max:
                raise TableError(f"Column {self.name!r} needs a finite number as its {key!r}; got {bound!r}.")
        self._check_order(self.low, self.high)
        self._check_truth("log1p")
        if self.integer is not None:
            self._check_truth("integer")
        if self.integer and math.floor(self.high) <= math.ceil(self.low):
            raise TableError(
                f"Column {self.name!r} is to hold whole numbers, and there are not two between {self.low!r} and "
                f"{self.high!r}."
            )
        if self.log1p and self.low <= -1:
            raise TableError(
                f"Column {self.name!r} has log1p, so its low must be above -1; got {self.low!r}."
            )

    def _check_order(self, low: float, high: float) -> None:
        if not low < high:
            raise TableError(
                f"Column {self.name!r} needs low < high; got low={self.low!r} and high={self.high!r}. "
                "They are public bounds: take them from documentation, not from the rows."
            )

    def _check_truth(self, key: str) -> None:
        value = getattr(self, key)
        if value not in (True, False):
            raise TableError(f"Column {self.name!r} has {key}={value!r}: it must be true or false.")

    def _check_dates(self) -> None:
        for key, bound in (("low", self.low), ("high", self.high)):
            if not isinstance(bound, str) or math.isnan(day_number(bound)):
                raise TableError(
                    f'Column {self.name!r} needs a date as its {key!r}, such as "1990-01-31"; got {bound!r}.'
                )
        self._check_order(*self.limits)
        unknown = [part for part in self.parts if part not in PARTS]
        if unknown or len(set(self.parts)) < len(self.parts):
            raise TableError(
                f"Column {self.name!r} has parts={list(self.parts)!r}: name each once, of {listed(PARTS)}."
            )

    def _check_spellings(self) -> None:
        if bool(self.true) != bool(self.false):
            raise TableError(
                f'Column {self.name!r} names the texts of one of "true" and "false" alone: give both.'
            )
        spelt: tuple[Any, ...] = (*self.true, *self.false)
        if not all(isinstance(text, str) and text.strip() for text in spelt):
            raise TableError(f'Column {self.name!r} needs texts or whole numbers as "true" and "false".')
        if len({text.strip() for text in spelt}) < len(spelt):
            raise TableError(f'Column {self.name!r} names one text twice among "true" and "false".')

    def _check_levels(self) -> None:
        if not self.levels:
            raise TableError(
                f"Column {self.name!r} needs a non-empty list of levels, the documented categories."
            )
        levels: tuple[Any, ...] = self.levels
        if not all(isinstance(level, str) and level for level in levels):
            raise TableError(
                f"Column {self.name!r} needs levels that are non-empty texts or whole numbers. "
                "A missing category needs no level: it becomes a block of zeros."
            )
        if len(set(self.levels)) < len(self.levels):
            twice = next(level for level, times in Counter(self.levels).items() if times > 1)
            raise TableError(f"Column {self.name!r} lists the level {twice!r} twice.")

    @property
    def width(self) -> int:
        """How many encoded features the column becomes; 0 for `id` and `text`."""
        widths = {"num": 1, "flag": 1, "cat": len(self.levels), "pixels": self.size, "set": self.size}
        widths["date"] = sum(PARTS[part] for part in self.parts) if self.parts else 1
        return widths.get(self.kind, 0)

    @property
    def limits(self) -> tuple[float, float]:
        """The bounds as numbers; of a date in days."""
        if self.kind == "date":
            return day_number(self.low), day_number(self.high)
        return float(self.low), float(self.high)

    @property
    def is_huge(self) -> bool:
        """Whether it holds whole numbers that are too large for floats to tell neighbours apart."""
        return self.kind == "num" and self.integer is True and max(abs(self.low), abs(self.high)) > 2**53

    @property
    def format(self) -> FileFormat:
        """How texts write its cells."""
        return PLAIN if self.file is None else self.file

    @cached_property
    def writings(self) -> cells.Writings | None:
        """Which level a cell writes, or 0 or 1 of a flag whose spellings are named; None where nothing is."""
        if self.kind == "flag" and self.true:
            codes = [0] * len(self.false) + [1] * len(self.true)
            return cells.Writings((*self.false, *self.true), codes)
        return cells.Writings(self.levels) if self.kind == "cat" else None

    @classmethod
    def from_json(cls, name: str, entry: object) -> "ColumnSpec":
        """Read one column's JSON object.

        Raises:
            TableError: a key is missing, misspelt or has a value that is not allowed.
        """
        if not isinstance(entry, Mapping):
            raise TableError(
                f'Column {name!r} must be described by an object such as {{"kind": "flag"}}; got {entry!r}.'
            )
        given = cast("Mapping[str, Any]", entry)
        if "kind" not in given:
            raise TableError(f"Column {name!r} has no 'kind': give one of {listed(KINDS)}.")
        kind: Any = given["kind"]
        if not isinstance(kind, str) or kind not in KINDS:
            return cls(name=name, kind=str(kind))  # raises the sentence about kinds
        required, optional = KINDS[kind]
        missing = [key for key in required if key not in given]
        if missing:
            raise TableError(
                f"Column {name!r} of kind {kind!r} lacks {listed(missing)}: a public value that you give, "
                "as reading it off the rows would cost privacy."
            )
        allowed = ("kind", *required, *optional, "description")
        unknown = [key for key in given if key not in allowed]
        if unknown:
            raise TableError(
                f"Column {name!r} of kind {kind!r} has the unknown key {unknown[0]!r}: use {listed(allowed)}."
            )
        arguments = {key: given[key] for key in (*required, *optional) if key in given}
        if "levels" in arguments:
            arguments["levels"] = _levels(name, arguments["levels"])
        for key in ("true", "false", "parts"):
            if key in arguments:
                arguments[key] = _texts(arguments[key])
        return cls(name=name, kind=kind, **arguments)

    def to_json(self) -> dict[str, Any]:
        """The JSON object that `from_json` reads back to an equal column."""
        required, optional = KINDS[self.kind]
        entry: dict[str, Any] = {"kind": self.kind}
        entry |= {key: getattr(self, key) for key in required}
        given = {key: getattr(self, key) for key in optional}
        entry |= {
            key: value for key, value in given.items() if value or (key == "integer" and value is False)
        }
        return {key: list(value) if isinstance(value, tuple) else value for key, value in entry.items()}


def listed(names: Iterable[str], most: int = 12) -> str:
    """The names in quotes, at most `most` of them."""
    quoted = [repr(name) for name in names]
    return ", ".join(quoted[:most]) + (f" and {len(quoted) - most} more" if len(quoted) > most else "")


def _is_text(names: Iterable[object]) -> bool:
    """Whether what is text among these can be written as UTF-8: halves of surrogate pairs cannot."""
    try:
        for name in names:
            if isinstance(name, str):
                name.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_whole(number: object) -> bool:
    """Whether it is an integer, which True is not."""
    return isinstance(number, int) and not isinstance(number, bool)


def _levels(name: str, levels: object) -> tuple[str, ...]:
    """The levels as texts: whole numbers are written out."""
    if not isinstance(levels, list | tuple):
        raise TableError(
            f"Column {name!r} needs a list of levels, the documented categories; got {levels!r}."
        )
    given = cast("list[Any]", levels)
    return tuple(str(level) if is_whole(level) else level for level in given)


def _texts(given: object) -> tuple[Any, ...]:
    """A text or several, as texts: whole numbers and truth values are written out."""
    several = cast("list[Any]", given) if isinstance(given, list | tuple) else [given]
    return tuple(str(one) if isinstance(one, bool | int) else one for one in several)


# ------------------------------------------------------------------------------------------------------------
# Dates as numbers: days since the first of January 1970, with the time of the day as a fraction, in UTC.


Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

EPOCH, DAY = datetime.datetime(1970, 1, 1), datetime.timedelta(days=1)
FARTHEST = 10**7  # days; a calendar is not asked beyond
# Parts of a date: how many values each has.
PARTS: dict[str, int] = {"quarter": 4, "month": 12, "day": 31, "weekday": 7, "hour": 24}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def day_number(private_cell: Any) -> float:
    """One cell as days; NaN for what is no date. A text is a date if it is written as ISO 8601 asks for."""
    try:
        if isinstance(private_cell, str):
            private_cell = datetime.datetime.fromisoformat(private_cell.strip())
        if isinstance(private_cell, np.datetime64):
            return _of_numpy(private_cell)
        if isinstance(private_cell, datetime.datetime):
            if private_cell.tzinfo is not None:
                private_cell = private_cell.astimezone(datetime.UTC).replace(tzinfo=None)
            return (private_cell - EPOCH) / DAY
        if isinstance(private_cell, datetime.date):
            return float(private_cell.toordinal() - EPOCH.toordinal())
    except Exception:  # a text that is no date, a time that Python's calendar does not reach
        return math.nan
    return math.nan


def _of_numpy(private_time: Any) -> float:
    """A time of NumPy, whatever its unit."""
    if np.isnat(private_time):
        return math.nan
    private_day = private_time.astype("datetime64[D]")
    private_whole = float(private_day.astype(np.int64))
    if np.datetime_data(private_time.dtype)[0] in ("Y", "M", "W", "D"):
        return private_whole
    return private_whole + float(
        (private_time - private_day.astype(private_time.dtype)) / np.timedelta64(1, "D")
    )


def part_codes(private_days: Floats, part: str) -> Codes:
    """Which value of a part each date has, from 0 on; -1 where there is no date."""
    private_known = np.isfinite(private_days)
    private_kept = np.clip(np.where(private_known, private_days, 0.0), -FARTHEST, FARTHEST)
    private_whole = np.floor(private_kept).astype(np.int64)
    private_dates = private_whole.astype("datetime64[D]")
    private_months = private_dates.astype("datetime64[M]")
    of: dict[str, Callable[[], Codes]] = {
        "quarter": lambda: private_months.astype(np.int64) % 12 // 3,
        "month": lambda: private_months.astype(np.int64) % 12,
        "day": lambda: (private_dates - private_months.astype("datetime64[D]")).astype(np.int64),
        "weekday": lambda: (private_whole + 3) % 7,  # the first of January 1970 was a Thursday
        "hour": lambda: np.minimum((private_kept - private_whole) * 24 + 1e-9, 23).astype(np.int64),
    }
    return np.where(private_known, of[part](), -1)


def part_names(part: str) -> list[str]:
    """What the values of a part are called."""
    if part == "weekday":
        return list(_WEEKDAYS)
    first = 0 if part == "hour" else 1
    return [str(value) for value in range(first, first + PARTS[part])]


def dates_of(days: Floats, missing: NDArray[np.bool_]) -> NDArray[np.datetime64]:
    """Whole days as dates, with no date where one is missing."""
    dates = np.floor(days).astype(np.int64).astype("datetime64[D]")
    dates[missing] = np.datetime64("NaT")
    return dates.astype("datetime64[s]")
