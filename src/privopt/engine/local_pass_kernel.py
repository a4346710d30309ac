"""The compiled local pass: for each user, one proximal gradient step a record, from one public point.

Rows, positions and lanes are those of `kernels`; a user's parameters are (K, d), K predictions a record.
"""

import math
from typing import Any

import numpy as np

from privopt.engine.formulas import FAST, LARGEST, compiled, exponential, slopes
from privopt.engine.kernels import scale_into_ball, touch
from privopt.engine.rounding import BLOCK_ROWS


@compiled(FAST, inline=True)
def _prediction(rows: Any, i: int, params: Any) -> float:
    """The row i times one column of parameters."""
    t = 0.0
    if len(rows) == 2:
        x = rows[0]
        for j in range(x.shape[1]):
            t += x[i, j] * params[j]
    elif len(rows) == 4:
        x, _, steps, width = rows
        for j in range(width):
            t += x[i, j] * (steps[j] * params[j])
    else:
        values, columns, starts = rows
        for e in range(starts[i], starts[i + 1]):
            t += values[e] * params[columns[e]]
    return t


@compiled(FAST, inline=True)
def _add_row(rows: Any, i: int, factor: float, params: Any) -> None:
    """Add `factor` times the row i."""
    if len(rows) == 2:
        x = rows[0]
        for j in range(x.shape[1]):
            params[j] += factor * x[i, j]
    elif len(rows) == 4:
        x, _, steps, width = rows
        for j in range(width):
            params[j] += factor * (steps[j] * x[i, j])
    else:
        values, columns, starts = rows
        for e in range(starts[i], starts[i + 1]):
            params[columns[e]] += factor * values[e]


@compiled(FAST)
def _softmax_slope(target: float, t: Any, s: Any) -> None:
    """s = softmax(t) minus the indicator of the class; NaN if a prediction is not finite."""
    top, total = -np.inf, 0.0
    for k in range(t.shape[0]):
        top = max(top, t[k])
        if not abs(t[k]) <= LARGEST:
            total = math.nan
    for k in range(t.shape[0]):
        s[k] = exponential(t[k] - top)
        total += s[k]
    for k in range(t.shape[0]):
        s[k] = s[k] / total - (1.0 if target == k else 0.0)


@compiled(FAST)
def _slope(formula: Any, target: float, t: Any, y: Any, s: Any) -> None:
    """The loss's slopes s at the predictions t of one record."""
    code, p0, p1 = formula
    if t.shape[0] > 1:
        _softmax_slope(target, t, s)
    else:
        y[0] = target
        slopes(code, p0, p1, t, y, 1, s)


@compiled(FAST)
def _shrink(penalty: Any, step_size: float, before: Any, params: Any) -> None:
    """Take the step of the smooth penalty, whose gradient is at `before`, then the soft threshold."""
    soft, ridge = penalty
    for k in range(params.shape[0]):
        for j in range(params.shape[1]):
            moved = params[k, j] - step_size * ridge[j] * before[k, j]
            size = abs(moved) - step_size * soft[j]
            kept = math.copysign(max(size, 0.0), moved)
            params[k, j] = kept if size == size else math.nan  # max may swallow a NaN


@compiled(FAST)
def _into_ball(params: Any, radius: float, everything: Any) -> None:
    """Scale down into a ball; what is not finite becomes NaN."""
    flat = params.reshape(-1)
    scale = scale_into_ball(flat, everything, flat.shape[0], radius)
    if scale != 1.0:
        factor = scale if scale > 0.0 or radius == 0.0 else math.nan
        for e in range(flat.shape[0]):
            flat[e] *= factor


@compiled(FAST)
def _walk(
    rows: Any,
    targets: Any,
    low: int,
    high: int,
    order: Any,
    at: Any,
    formula: Any,
    steps: Any,
    penalty: Any,
    limits: Any,
    scratch: Any,
    params: Any,
    move: Any,
) -> None:
    """Set `move` to where the pass over the rows low..high-1 ends, seen from `at`; `params` starts at `at`."""
    step_size, average = steps
    penalised, radius, reach = limits
    t, y, s, before, everything = scratch
    outputs, count = at.shape[0], high - low
    total = np.zeros_like(at) if average else at
    for e in range(order.shape[0]):
        place = order[e]
        if place >= count:
            continue
        i = low + place
        for k in range(outputs):
            t[k] = _prediction(rows, i, params[k])
        _slope(formula, targets[i], t, y, s)
        if penalised:
            before[:, :] = params
        for k in range(outputs):
            _add_row(rows, i, -step_size * s[k], params[k])
        if penalised:
            _shrink(penalty, step_size, before, params)
        if radius < np.inf:
            _into_ball(params, radius, everything)
        if reach < np.inf:
            params -= at
            _into_ball(params, reach, everything)
            params += at
        if average:
            total += params - at
    if average:
        move[:, :] = total / count
    else:
        move[:, :] = params - at


@compiled(FAST)
def _walk_rows(
    rows: Any,
    targets: Any,
    low: int,
    high: int,
    order: Any,
    formula: Any,
    steps: Any,
    scratch: Any,
    params: Any,
    move: Any,
) -> None:
    """`_walk` where a step moves only along its row, which leaves the other columns of a sparse user alone.

    The average of iterates is the sum of the steps, each times the share of iterates that it is part of.
    """
    step_size, average = steps
    t, y, s = scratch[:3]
    outputs, count, visited = params.shape[0], high - low, 0
    for e in range(order.shape[0]):
        place = order[e]
        if place >= count:
            continue
        i = low + place
        for k in range(outputs):
            t[k] = _prediction(rows, i, params[k])
        _slope(formula, targets[i], t, y, s)
        share = (count - visited) / count if average else 1.0
        visited += 1
        for k in range(outputs):
            _add_row(rows, i, -step_size * s[k], params[k])
            _add_row(rows, i, -step_size * s[k] * share, move[k])


@compiled(FAST)
def local_moves(
    rows: Any,
    targets: Any,
    offsets: Any,
    index: Any,
    order: Any,
    at: Any,
    formula: Any,
    steps: Any,
    penalty: Any,
    limits: Any,
    clip: float,
    lanes: Any,
    first: int,
    last: int,
    totals: Any,
    moves: Any,
) -> None:
    """Each user's clipped move, and the sum of each of the lanes first..last-1.

    Args:
        rows: as in `kernels.sum_records`, sorted by user.
        targets: of all rows.
        offsets: user j owns the rows offsets[j]..offsets[j + 1] - 1.
        index: users by position, or empty.
        order: the places within a user in the order in which they are visited, at least as many as any user has.
        at: (K, d), where every pass starts.
        formula: (code, p0, p1).
        steps: (step size, whether the iterates are averaged).
        penalty: (l1, l2), each (d,): the strengths of the absolute value and of the square at each coordinate.
        limits: (whether there is a penalty, radius of the ball around 0, radius of the ball around `at`).
        clip: largest l2 norm of a user's move, moved inwards already; may be infinite.
        lanes: lane l holds the positions lanes[l]..lanes[l + 1] - 1.
        first: first lane.
        last: behind the last lane.
        totals: (lanes, K, d); entry l is set to the sum of lane l.
        moves: (positions, d, K), set to each position's move; empty if they are not asked for.
    Privacy:
        A user's move that is not finite counts as zero, any other is scaled into the ball, whatever the user's rows and
        their number.
    """
    outputs, d = at.shape
    size = outputs * d
    params, move, share = at.copy(), np.zeros_like(at), np.zeros_like(at)
    seen, touched = np.full(d, -1), np.empty(d, np.int64)
    everything, listed, unused = np.arange(size), np.empty(size, np.int64), np.zeros(d)
    scratch = (np.empty(outputs), np.empty(1), np.empty(outputs), at.copy(), everything)
    plain = not limits[0] and limits[1] == np.inf and limits[2] == np.inf
    for lane in range(first, last):
        totals[lane, :, :] = 0.0
        for block in range(lanes[lane], lanes[lane + 1], BLOCK_ROWS):
            share[:, :] = 0.0
            for position in range(block, min(block + BLOCK_ROWS, lanes[lane + 1])):
                user = position if index.shape[0] == 0 else index[position]
                low, high = offsets[user], offsets[user + 1]
                if high == low:
                    continue
                count = size
                if plain:
                    columns = touch(rows, low, high, position, seen, touched, unused)
                    count = 0
                    for k in range(outputs):
                        for c in range(columns):
                            j = touched[c]
                            params[k, j] = at[k, j]
                            move[k, j] = 0.0
                            listed[count] = k * d + j
                            count += 1
                    _walk_rows(rows, targets, low, high, order, formula, steps, scratch, params, move)
                else:
                    params[:, :] = at
                    for e in range(size):
                        listed[e] = e
                    _walk(
                        rows,
                        targets,
                        low,
                        high,
                        order,
                        at,
                        formula,
                        steps,
                        penalty,
                        limits,
                        scratch,
                        params,
                        move,
                    )
                flat = move.reshape(-1)
                scale = scale_into_ball(flat, listed, count, clip)
                if scale > 0.0:
                    for e in range(count):
                        k, j = listed[e] // d, listed[e] % d
                        moved = scale * flat[listed[e]]
                        share[k, j] += moved
                        if moves.shape[0] > 0:
                            moves[position, j, k] = moved
            totals[lane] += share
