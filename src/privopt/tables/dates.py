"""Dates as numbers: days since the first of January 1970, with the time of the day as a fraction, in UTC."""

import datetime
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
