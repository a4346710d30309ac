"""Each record's slope at the last point of a mixed pass, kept by the curator for the next pass."""

from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from privopt.data.room import MEMORY, Room
from privopt.engine.mixed_kernel import BOTH, CARRIED, SAME

_NOTHING = np.empty(0)
T = TypeVar("T")


class SlopeMemory(NamedTuple):
    """What a mixed pass gets from the pass before and leaves to the next, as `mixed_kernel.sum_mixed_records` takes it.

    Attributes:
        source: BOTH, CARRIED or SAME.
        private_carried: the slope of each row at the earlier point; empty unless CARRIED.
        private_kept: room for the slope of each row at the point itself; empty where nothing is to be kept.
    """

    source: int = BOTH
    private_carried: NDArray[np.float64] = _NOTHING
    private_kept: NDArray[np.float64] = _NOTHING

    def of_rows(self, private_rows: NDArray[np.int64]) -> Self:
        """That of some of the rows, in an order of its own."""
        private_carried = self.private_carried[private_rows] if len(self.private_carried) else _NOTHING
        return self._replace(
            private_carried=private_carried,
            private_kept=np.empty(len(private_rows) if len(self.private_kept) else 0),
        )

    def keep(self, private_rows: NDArray[np.int64], private_part: Self) -> None:
        """Keep what a pass over some of the rows, with `of_rows`, has computed."""
        if len(self.private_kept):
            self.private_kept[private_rows] = private_part.private_kept


class CarriedSlopes:
    """One number a row in place of half a pass, where a recursive estimator goes from point to point.

    It meets each point twice: the slopes that a pass computes at its own point are those at the earlier point of the
    next pass. They are used if that point and the formula are the same to the last bit, and the result is the same with
    and without them. A pass takes what it uses away and puts back what it made, each by one atomic step on a list: of
    two passes at a time, one finds nothing and computes both slopes.

    Privacy:
        No sensitivity rests on this. A row's kept slope is a function of that row and public points, whichever they
        are, and the change of a gradient is clipped after it is formed.
    """

    def __init__(self, room: Room = MEMORY) -> None:
        self._room = room
        self._private_last: list[
            tuple[tuple[Any, ...], NDArray[np.float64]]
        ] = []  # at most one, with its key
        self._private_spare: list[NDArray[np.float64]] = []

    def open(
        self, points: NDArray[np.float64], formula: tuple[Any, ...], rows: int, *, still: bool
    ) -> SlopeMemory:
        """What a pass over all rows needs; `close` says that it went through.

        Args:
            points: (2, d), at and previous.
            formula: the numbers that say which loss it is.
            rows: number of stored rows.
            still: whether the change counts for nothing: then the slopes at the point itself do for the earlier one.
        """
        key, private_slopes = _taken(self._private_last) or (None, _NOTHING)
        same = still or points[0].tobytes() == points[1].tobytes()
        carried = key == (formula, points[1].tobytes()) and len(private_slopes) == rows and not same
        private_room = _taken(self._private_spare)
        if private_room is None and not carried:
            private_room = private_slopes  # of no more use than their room
        if private_room is None or len(private_room) != rows:
            private_room = self._room.zeros(rows, np.float64)
        if carried:
            return SlopeMemory(CARRIED, private_slopes, private_room)
        return SlopeMemory(SAME if same else BOTH, _NOTHING, private_room)

    def close(self, points: NDArray[np.float64], formula: tuple[Any, ...], memory: SlopeMemory) -> None:
        """The pass is through: what it kept are the slopes at its first point."""
        if len(memory.private_carried):
            self._private_spare[:] = [memory.private_carried]
        self._private_last[:] = [((formula, points[0].tobytes()), memory.private_kept)]

    def __repr__(self) -> str:
        return "CarriedSlopes(<private>)"


def _taken(slot: list[T]) -> T | None:
    """What is in a slot, which is empty from then on: for one taker only."""
    try:
        return slot.pop()
    except IndexError:
        return None
