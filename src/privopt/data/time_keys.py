"""Instants and spans as texts, the same for all that are equal, of whatever type, unit and zone. PRIVATE."""

import datetime
from typing import Any

import numpy as np
import pandas as pd

_SECOND = 10**18  # attoseconds, the finest unit of NumPy
_DAY = 86_400 * _SECOND
_ATTOSECONDS = {"W": 7 * _DAY, "D": _DAY, "h": 3_600 * _SECOND, "m": 60 * _SECOND, "s": _SECOND} | {
    unit: 10**digits for unit, digits in (("ms", 15), ("us", 12), ("ns", 9), ("ps", 6), ("fs", 3), ("as", 0))
}
_ARROW = ("timestamp", "date", "duration")  # how its types begin that have an instant or a span
_MONTHS = {"Y": 12, "M": 1}
_EPOCH = datetime.date(1970, 1, 1).toordinal()
_CYCLE_MONTHS, _CYCLE_DAYS = 4_800, 146_097  # after which the calendar repeats itself


def in_utc(private_column: Any) -> Any:
    """A column of pandas' or Arrow's times as NumPy's, of UTC; any other as it is.

    As Python's times, what lies at the ends of the calendar, or beyond them, cannot be had in every zone.
    """
    dtype = getattr(private_column, "dtype", None)
    if isinstance(dtype, pd.DatetimeTZDtype):
        return np.asarray(private_column, f"M8[{dtype.unit}]")
    if isinstance(dtype, pd.ArrowDtype) and str(dtype.pyarrow_dtype).startswith(_ARROW):
        return getattr(private_column, "array", private_column).__arrow_array__().to_numpy()
    return private_column


def instant(private_time: Any) -> str:
    """An instant in attoseconds of UTC; a date is its midnight.

    A clock without a zone counts as one of UTC: the same instants are often stored with their zone in one place and
    without it in the next. Of an hour that a zone has twice the two are told apart, though Python takes them for equal
    in one zone.

    Args:
        private_time: of Python, pandas or NumPy, and not missing.
    """
    match private_time:
        case np.datetime64():
            return _numpy_instant(private_time)
        case pd.Timestamp():
            return _numpy_instant(private_time.asm8)  # of UTC
        case datetime.datetime():
            private_clock = _of_day(private_time) + 3_600 * private_time.hour + 60 * private_time.minute
            private_clock = (private_clock + private_time.second) * 10**6 + private_time.microsecond
            private_offset = private_time.utcoffset() or datetime.timedelta()
            return str(private_clock * 10**12 - _attoseconds(private_offset))
        case _:
            return str(_of_day(private_time) * _SECOND)


def span(private_span: Any) -> str:
    """A span in attoseconds; one of years and months, which have no length, in months.

    Args:
        private_span: of Python, pandas or NumPy, and not missing.
    """
    match private_span:
        case np.timedelta64():
            return _numpy_span(private_span)
        case pd.Timedelta():
            return _numpy_span(private_span.asm8)
        case _:
            return str(_attoseconds(private_span))


def _of_day(private_date: datetime.date) -> int:
    """When a day begins, in seconds."""
    return 86_400 * (private_date.toordinal() - _EPOCH)


def _attoseconds(private_span: datetime.timedelta) -> int:
    private_seconds = private_span.days * 86_400 + private_span.seconds
    return (private_seconds * 10**6 + private_span.microseconds) * 10**12


def _numpy_instant(private_time: Any) -> str:
    unit, private_count = _counted(private_time)
    if unit in _MONTHS:
        private_cycles, private_month = divmod(private_count * _MONTHS[unit], _CYCLE_MONTHS)
        private_day = np.datetime64(private_month, "M").astype("M8[D]").astype(np.int64)
        unit, private_count = "D", private_cycles * _CYCLE_DAYS + int(private_day)
    return str(private_count * _ATTOSECONDS[unit])


def _numpy_span(private_span: Any) -> str:
    unit, private_count = _counted(private_span)
    if unit in _MONTHS:
        return f"{private_count * _MONTHS[unit]} months"
    return str(private_count * _ATTOSECONDS[unit]) if unit in _ATTOSECONDS else f"{private_count} of no unit"


def _counted(private_value: Any) -> tuple[str, int]:
    """The unit of a NumPy time or span, and how many of it."""
    unit, count = np.datetime_data(private_value.dtype)
    return unit, int(private_value.astype(np.int64)) * count
