"""Instants and spans as texts, the same for all that are equal, of whatever type and zone. PRIVATE."""

import datetime
from typing import Any

import numpy as np
import pandas as pd

_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
_EPOCH = datetime.datetime(1970, 1, 1)


def instant(private_time: datetime.datetime) -> str:
    """An instant in nanoseconds of UTC, or of a clock without a zone.

    Of an hour that a zone has twice the two are told apart, though Python takes them for equal in one zone.
    """
    private_offset = private_time.utcoffset()
    if isinstance(private_time, pd.Timestamp):
        private_clock = _ticks(private_time.asm8)  # of UTC
    else:
        private_clock = _nanoseconds(private_time.replace(tzinfo=None) - _EPOCH)
        private_clock -= 0 if private_offset is None else _nanoseconds(private_offset)
    return f"{private_clock} {'of a clock' if private_offset is None else 'UTC'}"


def span(private_span: datetime.timedelta) -> str:
    """A span in nanoseconds."""
    return str(_nanoseconds(private_span))


def _nanoseconds(private_span: datetime.timedelta) -> int:
    if isinstance(private_span, pd.Timedelta):
        return _ticks(private_span.asm8)
    return ((private_span.days * 86_400 + private_span.seconds) * 10**6 + private_span.microseconds) * 1000


def _ticks(private_value: Any) -> int:
    """A NumPy time or span in nanoseconds."""
    unit, count = np.datetime_data(private_value.dtype)
    return int(private_value.astype(np.int64)) * count * _NANOSECONDS[unit]
