"""The compiled pass for a gradient mixed with its change: as `kernels.sum_records`, with slopes at two points.

The slopes at the earlier point are one number a row, which the pass before may have kept: then a row costs one product
with a point and one addition to the sum, like a plain gradient's.
"""

from typing import Any

import numpy as np

from privopt.engine.formulas import FAST, compiled, slopes
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
