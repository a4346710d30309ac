"""How long a verdict may take: a report from anywhere is priced, or given up, within a stated amount of work."""

import contextlib
import time
from collections.abc import Generator
from contextvars import ContextVar
from dataclasses import dataclass

MOST_POINTS = 2**24  # of all grids of one verdict; about 0.2 microseconds each
MOST_SECONDS = 5.0  # of processor time, on a machine that takes longer for them
IN_DIGITS = 1_000  # points, that one evaluation in 50 digits counts for


class TooLong(ValueError):
    """Pricing everything a second time would take too long."""

    def __init__(self) -> None:
        super().__init__("pricing everything a second time would take too long")


@dataclass
class _Left:
    points: int
    until: float


_left: ContextVar[_Left | None] = ContextVar("_left", default=None)


@contextlib.contextmanager
def limited_work() -> Generator[None]:
    """Where everything together may take so much work."""
    token = _left.set(_Left(MOST_POINTS, time.process_time() + MOST_SECONDS))
    try:
        yield
    finally:
        _left.reset(token)


def spend(points: int) -> None:
    """Count work, in points of a grid.

    Raises:
        TooLong: there has been too much, counted or in seconds.
    """
    left = _left.get()
    if left is None:
        return
    left.points -= points
    if left.points < 0 or time.process_time() > left.until:
        raise TooLong
