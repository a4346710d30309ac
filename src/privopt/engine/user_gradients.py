"""The sum of users' clipped average gradients with the count of those inside the clip, in one pass over the rows.

Averages commute with a linear map of the rows: a user's gradient in other coordinates is `B^T` times the average that
is formed from the stored rows, so that no mapped copy of the rows is needed.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.data.rows import MappedRows
from privopt.data.units import Units
from privopt.engine.fast_path import (
    in_order,
    kernel_rows,
    lane_ends,
    run_lanes,
    shrunk,
    steps_of,
)
from privopt.engine.formulas import FAST, FORMULAS, compiled, slopes
from privopt.engine.kernels import (
    TILE,
    add,
    add_share,
    decode,
    gather,
    padded,
    predictions,
    rows_of_user,
    scale_into_ball,
    touch,
)
from privopt.engine.rounding import BLOCK_ROWS
from privopt.problems.losses import GLMLoss
from privopt.queries.gradient_and_count import GradientAndCount

_USERS = 16  # users whose averages are mapped together
_MOST_COLUMNS = 4096  # of a map; the averages of `_USERS` users then take half a megabyte


def supports_gradient_and_count(units: Units, query: GradientAndCount) -> bool:
    """Whether `gradient_and_count_sum` computes the query: the library's own class, a loss with a compiled slope."""
    loss = query.loss
    return (
        type(query) is GradientAndCount
        and isinstance(loss, GLMLoss)
        and loss.outputs == 1
        and loss.kernel_code is not None
        and int(loss.kernel_code) in FORMULAS
        and not isinstance(units.private_features, MappedRows)
        and (query.row_map is None or units.public.d <= _MOST_COLUMNS)
    )


class _Task(NamedTuple):
    """The query in the numbers that the kernel takes.

    Attributes:
        point: (d,).
        formula: (code, p0, p1).
        matrix: B (d, k), or empty.
        centre: v0 (k,); zeros where there is none.
        centred: whether there is one.
        limits: clip, moved inwards already, and height.
    """

    point: NDArray[np.float64]
    formula: tuple[int, float, float]
    matrix: NDArray[np.float64]
    centre: NDArray[np.float64]
    centred: bool
    limits: tuple[float, float]


def gradient_and_count_sum(
    units: Units,
    query: GradientAndCount,
    private_positions: NDArray[np.int64] | None,
    threads: int,
) -> NDArray[np.float64]:
    """The sum over units of a query that `supports_gradient_and_count` accepts, (k + 1,).

    Args:
        units: the data; a record that is a unit counts as a user of one record.
        query: what to compute.
        private_positions: which units take part; None for all.
        threads: how many threads share the lanes; the result does not depend on it.
    """
    task, width = _task(query, units.public.d), units.public.d
    rows = kernel_rows(units.private_features)
    task = task._replace(point=task.point * steps_of(units.private_features))
    index = np.empty(0, np.int64) if private_positions is None else private_positions
    count = units.private_count if private_positions is None else len(private_positions)
    if units.private_offsets is not None and units.private_weights is not None:
        owners = (units.private_offsets, units.private_weights)
    else:
        owners = (np.arange(len(units.private_targets) + 1), units.private_present.astype(np.float64))
    entries = 64 if sparse.issparse(units.private_features) else width
    lanes = lane_ends(count, len(task.centre) + 1, entries)
    totals = np.empty((len(lanes) - 1, len(task.centre) + 1))

    def run(first: int, last: int) -> None:
        sum_gradients_and_counts(
            rows, units.private_targets, *owners, index, *task, lanes, first, last, totals
        )

    run_lanes(run, len(lanes) - 1, threads)
    return in_order(totals)


def _task(query: GradientAndCount, width: int) -> _Task:
    loss = query.loss
    assert isinstance(loss, GLMLoss)
    assert loss.kernel_code is not None
    first, second = map(float, loss.kernel_parameters)
    matrix = np.empty((0, 0)) if query.row_map is None else np.asarray(query.row_map, np.float64)
    size = width if query.row_map is None else matrix.shape[1]
    centred = query.centre is not None
    return _Task(
        point=np.ascontiguousarray(np.ravel(np.asarray(query.at, np.float64))),
        formula=(int(loss.kernel_code), first, second),
        matrix=np.ascontiguousarray(matrix),
        centre=np.ravel(np.asarray(query.centre, np.float64)) if centred else np.zeros(size),
        centred=centred,
        limits=(shrunk(query.clip), shrunk(query.height) if shrunk(query.clip) > 0 else 0.0),
    )


@compiled(FAST, inline=True)
def _add_average(
    rows: Any,
    targets: Any,
    low: int,
    high: int,
    weight: float,
    point: Any,
    formula: Any,
    scratch: Any,
    g: Any,
) -> None:
    """g += weight times the sum of the gradients of the rows low..high-1."""
    code, p0, p1 = formula
    t, s, y, no_index = scratch
    for start in range(low, high, TILE):
        m = min(TILE, high - start)
        gather(targets, no_index, start, m, y)
        predictions(rows, no_index, start, m, point, t)
        slopes(code, p0, p1, t, y, m, s)
        for r in range(m):
            s[r] *= weight
        add(rows, no_index, start, m, s, g)
    decode(rows, g)


@compiled(FAST, inline=True)
def _add_clipped(vector: Any, columns: Any, count: int, limits: Any, share: Any) -> None:
    """Add a unit's vector, brought into the ball, and its mark to the share; one that is not finite counts as zero."""
    radius, height = limits
    finite = True
    for k in range(count):
        if not abs(vector[columns[k]]) <= 1.7976931348623157e308:
            finite = False
    scale = scale_into_ball(vector, columns, count, radius) if finite else 1.0
    share[share.shape[0] - 1] += height if scale >= 1.0 else -height
    if finite and scale > 0.0:
        for k in range(count):
            j = columns[k]
            share[j] += scale * vector[j]


@compiled(FAST)
def sum_gradients_and_counts(
    rows: Any,
    targets: Any,
    offsets: Any,
    weights: Any,
    index: Any,
    point: Any,
    formula: Any,
    matrix: Any,
    centre: Any,
    centred: bool,
    limits: Any,
    lanes: Any,
    first: int,
    last: int,
    totals: Any,
) -> None:
    """Sum (clip(B^T g_j - v0), +-h) over the users at the positions of each of the lanes first..last-1.

    Args:
        rows: as in `kernels.sum_records`, sorted by user.
        targets: of all rows.
        offsets: user j owns the rows offsets[j]..offsets[j + 1] - 1.
        weights: u_j; a user of weight 0 or without rows contributes zeros.
        index: users by position, or empty.
        point: (d,).
        formula: (code, p0, p1).
        matrix: B (d, k), or empty for the identity.
        centre: v0 (k,).
        centred: whether v0 is subtracted.
        limits: (clip, moved inwards already and perhaps infinite; h).
        lanes: lane l holds the positions lanes[l]..lanes[l + 1] - 1.
        first: first lane.
        last: behind the last lane.
        totals: (lanes, k + 1); row l is set to the sum of lane l.
    Privacy:
        A user's vector that is not finite counts as one inside the clip that is zero, any other is scaled into the
        ball, whatever the user's rows and their number.
    """
    d, width = point.shape[0], centre.shape[0]
    mapped = matrix.shape[0] > 0
    scratch = (np.empty(TILE), np.empty(TILE), np.empty(TILE), np.empty(0, np.int64))
    share = np.empty(width + 1)
    averages = np.zeros((_USERS, padded(d)))
    vectors = np.empty((_USERS, width))
    there = np.empty(_USERS, np.bool_)
    every = np.arange(width)
    seen, touched = np.full(d, -1), np.empty(d, np.int64)
    for lane in range(first, last):
        totals[lane, :] = 0.0
        for block in range(lanes[lane], lanes[lane + 1], BLOCK_ROWS):
            share[:] = 0.0
            stop = min(block + BLOCK_ROWS, lanes[lane + 1])
            if not (mapped or centred):
                average = averages[0]
                for position in range(block, stop):
                    low, high, weight = rows_of_user(position, index, offsets, weights)
                    if high == low or weight == 0.0:
                        continue
                    count = touch(rows, low, high, position, seen, touched, average)
                    _add_average(rows, targets, low, high, weight, point, formula, scratch, average)
                    _add_clipped(average, touched, count, limits, share)
                add_share(share, totals[lane])
                continue
            for start in range(block, stop, _USERS):
                m = min(_USERS, stop - start)
                for u in range(m):
                    low, high, weight = rows_of_user(start + u, index, offsets, weights)
                    there[u] = high > low and weight > 0.0
                    averages[u, :] = 0.0
                    if there[u]:
                        _add_average(rows, targets, low, high, weight, point, formula, scratch, averages[u])
                for u in range(m):
                    for k in range(width):
                        vectors[u, k] = 0.0
                if mapped:
                    for j in range(d):
                        for u in range(m):
                            entry = averages[u, j]
                            for k in range(width):
                                vectors[u, k] += entry * matrix[j, k]
                else:
                    for u in range(m):
                        for k in range(width):
                            vectors[u, k] = averages[u, k]
                for u in range(m):
                    if not there[u]:
                        continue
                    finite = True
                    for k in range(width):
                        if not abs(vectors[u, k]) <= 1.7976931348623157e308:
                            finite = False
                    for k in range(width):
                        vectors[u, k] = (vectors[u, k] if finite else 0.0) - centre[k]
                    _add_clipped(vectors[u], every, width, limits, share)
            add_share(share, totals[lane])
