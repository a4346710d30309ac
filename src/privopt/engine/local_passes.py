"""Local passes of users by the compiled kernel, over fixed lanes: on any number of threads with the same result."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.compilation import FAST, compiled
from privopt.data.rows import MappedRows
from privopt.data.units import Units
from privopt.engine.fast_path import in_order, kernel_rows, lane_ends, run_lanes, shrunk
from privopt.engine.kernels import FORMULAS, LARGEST, exponential, scale_into_ball, slopes, touch
from privopt.engine.rounding import BLOCK_ROWS
from privopt.problems.constraints import L2Ball, Unconstrained
from privopt.problems.glm import GLMLoss, KernelCode
from privopt.problems.regularisers import SeparableRegulariser
from privopt.queries.base import MeanQuery
from privopt.queries.lots import LocalPass, visiting_order


def supports(units: Units, query: MeanQuery) -> bool:
    """Whether the kernel computes this query of users: no subclass, which may compute something else."""
    return units.private_offsets is not None and supports_groups(units, query)


def supports_groups(units: Units, query: MeanQuery) -> bool:
    """Whether the kernel computes this query of groups of these units."""
    return (
        type(query) is LocalPass
        and isinstance(query.loss, GLMLoss)
        and query.loss.kernel_code in {*FORMULAS, int(KernelCode.SOFTMAX)}
        and isinstance(query.regulariser, SeparableRegulariser)
        and isinstance(query.constraint, Unconstrained | L2Ball)
        and not isinstance(units.private_features, MappedRows)
    )


def pass_sum(
    units: Units, query: LocalPass, private_positions: NDArray[np.int64] | None, threads: int
) -> NDArray[np.float64]:
    """The sum of clipped moves of a query that `supports` accepts, of the query's shape.

    Args:
        units: the data.
        query: what to compute.
        private_positions: which users take part; None for all.
        threads: how many threads share the lanes; the result does not depend on it.
    """
    count = units.private_count if private_positions is None else len(private_positions)
    index = np.empty(0, np.int64) if private_positions is None else private_positions
    totals = _run(units, query, index, count, threads, np.empty((0, 1, 1)))
    return in_order(totals).T.reshape(np.shape(query.at))


def pass_moves(units: Units, query: LocalPass, threads: int) -> NDArray[np.float64]:
    """Every user's clipped move as a flat vector, one a user who is there."""
    count = units.private_count
    at = _columns(units, query)
    private_moves = np.zeros((count, at.shape[1], at.shape[0]))
    _run(units, query, np.empty(0, np.int64), count, threads, private_moves)
    return private_moves.reshape(count, at.size)


def _columns(units: Units, query: LocalPass) -> NDArray[np.float64]:
    """The point that passes start at, one row an output."""
    points = np.reshape(np.asarray(query.at, np.float64), (units.public.d, query.loss.outputs))
    return np.array(points.T, order="C")  # a copy: what JAX hands out is read-only


def _run(
    units: Units,
    query: LocalPass,
    index: NDArray[np.int64],
    count: int,
    threads: int,
    private_moves: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Fill the moves, if there is room for them; the lanes' sums (lanes, K, d)."""
    public, loss, at = units.public, query.loss, _columns(units, query)
    assert isinstance(loss, GLMLoss)
    assert loss.kernel_code is not None
    assert isinstance(query.regulariser, SeparableRegulariser)
    step_size, records = float(query.step_size), public.records_per_unit
    l1, l2, weights = query.regulariser.terms
    ones = np.ones(public.d) if weights is None else np.asarray(weights, np.float64)
    radius = query.constraint.radius if isinstance(query.constraint, L2Ball) else math.inf
    reach = math.inf if query.reach is None else shrunk(query.reach)
    order = (
        np.arange(records) if query.shuffle is None else np.asarray(visiting_order(query.shuffle, records))
    )
    first, second = map(float, loss.kernel_parameters)
    work: tuple[Any, ...] = (
        kernel_rows(units.private_features),
        units.private_targets,
        units.private_offsets,
        index,
        order.astype(np.int64),
        at,
        (int(loss.kernel_code), first, second),
        (step_size, query.returns == "average"),
        (l1 * ones, l2 * ones),
        (l1 > 0.0 or l2 > 0.0, float(radius), float(reach)),
        shrunk(query.clip),
    )
    # Public sizes only: a nominal 64 stored entries a CSR row, and as many rows a user as there may be.
    entries = loss.outputs * records * (64 if public.sparse else public.d)
    lanes = lane_ends(count, at.size, entries)
    totals = np.empty((len(lanes) - 1, *at.shape))

    def run(first_lane: int, last_lane: int) -> None:
        local_moves(*work, lanes, first_lane, last_lane, totals, private_moves)

    run_lanes(run, len(lanes) - 1, threads)
    return totals


# ---- The compiled local pass: for each user, one proximal gradient step a record, from one public point ----
# Rows, positions and lanes are those of `kernels`; a user's parameters are (K, d), K predictions a record.
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
