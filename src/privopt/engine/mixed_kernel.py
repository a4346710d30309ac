"""The compiled pass for a gradient mixed with its change: as `kernels.sum_records`, with slopes at two points.

The slopes at the earlier point are one number a row, which the pass before may have kept: then a row costs one product
with a point and one addition to the sum, like a plain gradient's.
"""

from typing import Any, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from privopt.compilation import FAST, compiled
from privopt.data.room import MEMORY, Room
from privopt.engine.kernels import (
    TILE,
    add,
    add_share,
    clip_scalars,
    decode,
    gather,
    padded,
    predictions,
    rows_of_user,
    scale_into_ball,
    slopes,
    touch,
)
from privopt.engine.rounding import BLOCK_ROWS

# Where the slopes at the earlier point come from.
BOTH = 0  # computed in this pass, like those at the point itself
CARRIED = 1  # kept from the pass before
SAME = 2  # they are the slopes at the point itself


@compiled(FAST, inline=True)
def _slopes_and_changes(
    rows: Any,
    index: Any,
    start: int,
    m: int,
    points: Any,
    formula: Any,
    memory: Any,
    y: Any,
    t: Any,
    both: Any,
) -> None:
    """both[1][:m] = slopes at the first point, both[0][:m] = how much they differ from those at the second.

    One piece of code computes the slopes at either point, so that a slope is the same number whichever it belongs to:
    a kept one and a fresh one agree to the last bit. `t` is room for predictions.
    """
    source, carried, kept = memory
    code, p0, p1 = formula
    whole = index.shape[0] == 0
    for which in range(0 if source == BOTH else 1, 2):
        predictions(rows, index, start, m, points[1 - which], t)
        slopes(code, p0, p1, t, y, m, both[which])
    if kept.shape[0] > 0:
        for r in range(m):
            kept[start + r if whole else index[start + r]] = both[1, r]
    if source == CARRIED:
        gather(carried, index, start, m, both[0])
    elif source == SAME:
        for r in range(m):
            both[0, r] = both[1, r]
    for r in range(m):
        both[0, r] = both[1, r] - both[0, r]


@compiled(FAST)
def sum_mixed_records(
    rows: Any,
    targets: Any,
    inverse_norms: Any,
    index: Any,
    points: Any,
    formula: Any,
    memory: Any,
    limits: Any,
    gain: float,
    lanes: Any,
    first: int,
    last: int,
    totals: Any,
) -> None:
    """Sum ((1 - u) s_i + u c_i) a_i, s_i the clipped slope and c_i its clipped change, over each of the lanes.

    Args:
        rows: as in `kernels.sum_records`.
        targets: of all rows.
        inverse_norms: 1 / |a_i| of all rows, rounded down; any positive number for zero rows.
        index: rows by position, or empty.
        points: (2, d), at and previous.
        formula: (code, p0, p1).
        memory: (BOTH, CARRIED or SAME; the slopes at previous that were kept; room to keep those at `at`). The arrays
            have one entry a row; the first is empty unless CARRIED, the second where nothing is to be kept.
        limits: largest norm of s_i a_i, of c_i a_i and of the mixed contribution, moved inwards; may be infinite.
        gain: u in [0, 1].
        lanes: lane l holds the positions lanes[l]..lanes[l + 1] - 1.
        first: first lane.
        last: behind the last lane.
        totals: (lanes, d); row l is set to the sum of lane l.
    Privacy:
        Each of |s_i| and |c_i| is at most its limit times inverse_norms[i]; a slope or a change that is not finite
        becomes 0, each for itself. The mixed contribution is a sum of the two with weights that sum to 1.
    """
    t, both = np.empty(TILE), np.empty((2, TILE))
    y, inverse = np.empty(TILE), np.empty(TILE)
    clip, change_clip, radius = limits
    s, change = both[1], both[0]
    d = totals.shape[1]
    share = np.empty(padded(d))
    for lane in range(first, last):
        totals[lane, :] = 0.0
        for block in range(lanes[lane], lanes[lane + 1], BLOCK_ROWS):
            share[:] = 0.0
            stop = min(block + BLOCK_ROWS, lanes[lane + 1])
            for start in range(block, stop, TILE):
                m = min(TILE, stop - start)
                gather(targets, index, start, m, y)
                gather(inverse_norms, index, start, m, inverse)
                _slopes_and_changes(rows, index, start, m, points, formula, memory, y, t, both)
                clip_scalars(s, inverse, clip, m)
                clip_scalars(change, inverse, change_clip, m)
                for r in range(m):
                    s[r] = (1.0 - gain) * s[r] + gain * change[r]
                clip_scalars(s, inverse, radius, m)
                add(rows, index, start, m, s, share)
            add_share(share, totals[lane])


@compiled(FAST)
def _scaled(vector: Any, columns: Any, count: int, weight: float, radius: float) -> float:
    """weight times the factor that brings the vector into the ball; where that is 0, so is the vector afterwards."""
    scale = weight * scale_into_ball(vector, columns, count, radius)
    if scale > 0.0:
        return scale
    for k in range(count):
        vector[columns[k]] = 0.0  # it may hold numbers that are not finite
    return 0.0


@compiled(FAST)
def sum_mixed_users(
    rows: Any,
    targets: Any,
    offsets: Any,
    weights: Any,
    index: Any,
    points: Any,
    formula: Any,
    memory: Any,
    limits: Any,
    gain: float,
    lanes: Any,
    first: int,
    last: int,
    totals: Any,
) -> None:
    """Sum (1 - u) g_j + u c_j over the users at the positions of each of the lanes.

    g_j is a user's average gradient and c_j the average change, each scaled into its l2 ball; see `kernels.sum_users`.

    Args:
        rows: as in `kernels.sum_records`, sorted by user.
        targets: of all rows.
        offsets: user j owns the rows offsets[j]..offsets[j + 1] - 1.
        weights: u_j.
        index: users by position, or empty.
        points: as in `sum_mixed_records`.
        formula: (code, p0, p1).
        memory: as in `sum_mixed_records`.
        limits: largest norm of g_j, of c_j and of the mixed contribution, moved inwards already; may be infinite.
        gain: u in [0, 1].
        lanes: as in `sum_mixed_records`.
        first: first lane.
        last: behind the last lane.
        totals: (lanes, d); row l is set to the sum of lane l.
    Privacy:
        An average that is not finite counts as zero, each of the two for itself; any other is scaled into its ball.
    """
    d = totals.shape[1]
    t, both = np.empty(TILE), np.empty((2, TILE))
    y, s, change = np.empty(TILE), both[1], both[0]
    share, average, moved = np.empty(d), np.zeros(padded(d)), np.zeros(padded(d))
    seen, touched = np.full(d, -1), np.empty(d, np.int64)
    no_index = np.empty(0, np.int64)
    for lane in range(first, last):
        totals[lane, :] = 0.0
        for block in range(lanes[lane], lanes[lane + 1], BLOCK_ROWS):
            share[:] = 0.0
            for position in range(block, min(block + BLOCK_ROWS, lanes[lane + 1])):
                low, high, weight = rows_of_user(position, index, offsets, weights)
                if high == low:
                    continue
                count = touch(rows, low, high, position, seen, touched, average)
                for k in range(count):
                    moved[touched[k]] = 0.0
                for start in range(low, high, TILE):
                    m = min(TILE, high - start)
                    gather(targets, no_index, start, m, y)
                    _slopes_and_changes(rows, no_index, start, m, points, formula, memory, y, t, both)
                    for r in range(m):
                        s[r] *= weight
                        change[r] *= weight
                    add(rows, no_index, start, m, s, average)
                    add(rows, no_index, start, m, change, moved)
                decode(rows, average)
                decode(rows, moved)
                scale = _scaled(average, touched, count, 1.0 - gain, limits[0])
                scale_moved = _scaled(moved, touched, count, gain, limits[1])
                for k in range(count):
                    j = touched[k]
                    share[j] += scale * average[j] + scale_moved * moved[j]
            add_share(share, totals[lane])


# ---- Each record's slope at the last point of a mixed pass, kept by the curator for the next pass ----------


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
