"""Runs the compiled kernels over fixed lanes of positions: on any number of threads with the same result."""

import atexit
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.compilation import FAST, compiled
from privopt.data.rows import GridRows, MappedRows, block_length, take_rows
from privopt.data.targets import offsets, row_counts
from privopt.data.units import Units
from privopt.engine import kernels
from privopt.engine.kernels import (
    FORMULAS,
    LARGEST,
    TILE,
    add,
    add_share,
    exponential,
    gather,
    padded,
    predictions,
)
from privopt.engine.mixed_kernel import CarriedSlopes, SlopeMemory, sum_mixed_records, sum_mixed_users
from privopt.engine.rounding import BLOCK_ROWS, BlockedSum
from privopt.problems.glm import KernelCode
from privopt.queries.base import KernelCall, RowForm, shrunk_radius

_LANE_WORK = 2**16  # stored entries: less is not worth a thread
_MOST_LANES = 16
_LANE_ENTRIES = 2**21  # of all lanes' totals together: 16 MB

_Owners = tuple[NDArray[Any], NDArray[Any]]  # of each user: first row, with the end of the last one; weight

_pools: dict[int, ThreadPoolExecutor] = {}


def thread_count() -> int:
    """How many threads a pass uses: NUMBA_NUM_THREADS, by default the cores of this process."""
    told = os.environ.get("NUMBA_NUM_THREADS", "")
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(int(told) if told.isdecimal() else available, _MOST_LANES))


def supports(units: Units, form: RowForm) -> bool:
    """Whether a compiled kernel computes this row form on these units."""
    if form.kernel is None:
        return False
    if form.kernel.kind == "mixed" and (form.norm != "l2" or not _mixture_within(form.kernel, form.radius)):
        return False
    if form.kernel.code == KernelCode.SOFTMAX:
        plain = units.private_offsets is None and not isinstance(units.private_features, MappedRows)
        return plain and form.norm == "l2" and form.kernel.kind != "mixed"
    return form.outputs == 1 and form.kernel.code in FORMULAS


def _mixture_within(kernel: KernelCall, radius: Any) -> bool:
    """Whether a mixture of the kernel's parts is within the radius: of a user only the parts are clipped."""
    gain = float(kernel.gain)
    parts = ((1.0 - gain, float(kernel.inner)), (gain, float(kernel.change)))
    return sum(weight * max(clip, 0.0) for weight, clip in parts if weight > 0.0) <= float(radius) * (
        1.0 + 1e-12
    )


class _Block(NamedTuple):
    """Stored rows with what the kernels ask of them."""

    rows: tuple[NDArray[Any], ...]
    private_targets: NDArray[np.float64]
    private_inverse_norms: NDArray[np.float64]
    owners: _Owners | None  # None where a unit is a record
    memory: SlopeMemory  # of a mixed pass


class _Pass(NamedTuple):
    """A row form in the numbers that the kernels take; limits on norms are moved inwards already.

    Attributes:
        code: of the loss.
        kind: `KernelCall.kind`.
        points: (points times outputs, d).
        outputs: K of a softmax, else 1.
        formula: (code, p0, p1, C of a balanced logistic gradient or infinity).
        radius: the largest norm of a contribution.
        inner: clip of each gradient of a difference, or of the gradient of a mixture.
        change: clip of the change of a mixture.
        gain: the share of the change in a mixture.
    """

    code: int
    kind: str
    points: NDArray[np.float64]
    outputs: int
    formula: tuple[int, float, float, float]
    radius: float
    inner: float
    change: float
    gain: float

    def run(
        self, block: _Block, index: NDArray[np.int64], lanes: Any, first: int, last: int, totals: NDArray[Any]
    ) -> None:
        """Sum the positions of each of the lanes first..last-1 into totals (lanes, outputs, d)."""
        rows, private_targets, private_inverses, owners, memory = block
        where = (lanes, first, last, totals if self.code == KernelCode.SOFTMAX else totals[:, 0])
        if self.kind == "mixed":
            limits = (self.inner, self.change, self.radius)
            rest = (index, self.points, self.formula[:3], tuple(memory), limits, self.gain, *where)
            if owners is None:
                sum_mixed_records(rows, private_targets, private_inverses, *rest)
            else:
                sum_mixed_users(rows, private_targets, *owners, *rest)
            return
        common, limits = (rows, private_targets, private_inverses), (self.radius, self.inner)
        if self.code == KernelCode.SOFTMAX:
            sum_softmax(*common, index, self.points, self.outputs, *limits, *where)
        elif owners is None:
            kernels.sum_records(*common, index, self.points, self.formula, *limits, *where)
        else:
            kernels.sum_users(*common, *owners, index, self.points, self.formula, *limits, *where)


def kernel_sum(
    units: Units,
    form: RowForm,
    private_inverse_norms: NDArray[np.float64],
    private_positions: NDArray[np.int64] | None,
    threads: int,
    carried: CarriedSlopes | None = None,
) -> NDArray[np.float64]:
    """The sum of clipped contributions of a row form that `supports` accepts.

    Args:
        units: the data.
        form: what to compute.
        private_inverse_norms: 1 / row norm, in the norm of the clip of a record, rounded down.
        private_positions: which units take part; None for all.
        threads: how many threads share the lanes; the result does not depend on it.
        carried: the slopes of the last mixed pass over all of these units; the result does not depend on them.
    """
    work = _pass(form)
    index = np.empty(0, np.int64) if private_positions is None else private_positions
    count = units.private_count if private_positions is None else len(private_positions)
    if work.kind != "mixed" or private_positions is not None:
        carried = None  # slopes are kept from pass to pass over all units
    memory = SlopeMemory()
    if carried is not None:
        still = work.gain == 0.0 or work.change == 0.0
        memory = carried.open(work.points, work.formula, len(units.private_targets), still=still)
    if isinstance(units.private_features, MappedRows):
        private_sum = _mapped_sum(units, private_inverse_norms, index, count, work, memory)
    else:
        private_sum = _stored_sum(units, private_inverse_norms, index, count, work, memory, threads)
    if carried is not None:
        carried.close(work.points, work.formula, memory)
    return private_sum.T.reshape(form.shape)


def _pass(form: RowForm) -> _Pass:
    kernel = form.kernel
    assert kernel is not None
    first, second = map(float, kernel.parameters)
    return _Pass(
        code=int(kernel.code),
        kind=kernel.kind,
        points=np.ascontiguousarray(np.asarray(form.points, np.float64).T),
        outputs=form.outputs,
        formula=(int(kernel.code), first, second, shrunk(kernel.balanced)),
        radius=shrunk(form.radius),
        inner=shrunk(kernel.inner),
        change=shrunk(kernel.change),
        gain=float(kernel.gain),
    )


def _stored_sum(
    units: Units,
    private_inverse_norms: NDArray[np.float64],
    index: NDArray[np.int64],
    count: int,
    work: _Pass,
    memory: SlopeMemory,
    threads: int,
) -> NDArray[np.float64]:
    """`kernel_sum` over rows in memory, as (outputs, d).

    Records on a grid are summed as integers: their steps are folded into the points before the pass, since k . (s w) is
    (k s) . w, and into the sum after it. A coefficient is clipped by the norm of the decoded row, whatever the
    prediction; the sum is rounded once more, and `rounding_bound` has some to spare. No number leaves float64: steps
    lie between 1e-23 and 1e28, and what is summed is a contribution, at most `LARGEST_RADIUS` long, over a step.
    Users' sums are decoded one by one, as each is brought into a ball.
    """
    width = work.points.shape[1]
    rows, steps = kernel_rows(units.private_features), steps_of(units.private_features)
    work = work._replace(points=work.points * steps)
    owners = None
    if units.private_offsets is not None and units.private_weights is not None:
        owners = (units.private_offsets, units.private_weights)
    elif len(rows) == 4:
        rows = rows[:2]
    private_block = _Block(rows, units.private_targets, private_inverse_norms, owners, memory)
    # CSR: a nominal 64 stored entries a row. The number of lanes never depends on private values.
    entries = work.outputs * (64 if sparse.issparse(units.private_features) else width)
    lanes = lane_ends(count, work.outputs * width, entries)
    totals = np.empty((len(lanes) - 1, work.outputs, width))

    room = units.room
    step = 1 if room.limited else len(lanes)

    def run(first: int, last: int) -> None:
        for lane in range(first, last, step):
            work.run(private_block, index, lanes, lane, min(lane + step, last), totals)
            room.trim()

    run_lanes(run, len(lanes) - 1, threads)
    return in_order(totals) * (steps if owners is None else 1.0)


def _mapped_sum(
    units: Units,
    private_inverse_norms: NDArray[np.float64],
    index: NDArray[np.int64],
    count: int,
    work: _Pass,
    memory: SlopeMemory,
) -> NDArray[np.float64]:
    """`kernel_sum` over rows that are computed a block at a time, as (1, d); a block holds whole units."""
    width = work.points.shape[1]
    total, share = BlockedSum((1, width)), np.empty((1, 1, width))
    no_index = np.empty(0, np.int64)
    step = min(BLOCK_ROWS, block_length(width * units.public.records_per_unit))
    for start in range(0, count, step):
        stop = min(start + step, count)
        positions = index[start:stop] if len(index) else np.arange(start, stop)
        private_where = units.private_rows_of(positions)
        owners = None
        if units.private_offsets is not None and units.private_weights is not None:
            owners = (offsets(row_counts(units.private_offsets, positions)), units.private_weights[positions])
        part = memory.of_rows(private_where)
        private_block = _Block(
            kernel_rows(take_rows(units.private_features, private_where)),
            units.private_targets[private_where],
            private_inverse_norms[private_where],
            owners,
            part,
        )
        work.run(private_block, no_index, np.array([0, stop - start]), 0, 1, share)
        memory.keep(private_where, part)
        total.add(share[0], stop - start)
    return total.total()


def shrunk(radius: Any) -> float:
    """`queries.base.shrunk_radius` as a number."""
    return float(shrunk_radius(float(radius)))


def kernel_rows(private_features: Any) -> tuple[Any, ...]:
    """Rows as the kernels take them; those on a grid at points times their steps, see `steps_of`."""
    if isinstance(private_features, GridRows):
        private_steps, steps = private_features.private_steps, private_features.steps
        return (private_steps, private_steps.reshape(-1), steps, len(steps))
    if isinstance(private_features, np.ndarray):
        return (private_features, private_features.reshape(-1))
    return (private_features.data, private_features.indices, private_features.indptr)


def steps_of(private_features: Any) -> NDArray[np.float64] | float:
    """What points are multiplied by before a pass: the steps of rows on a grid, else 1."""
    return private_features.steps if isinstance(private_features, GridRows) else 1.0


def lane_ends(count: int, width: int, entries_per_unit: int) -> NDArray[np.int64]:
    """Ends of the fixed lanes that positions are split into; they depend on public sizes and the draw only."""
    by_work = count * entries_per_unit // _LANE_WORK
    lanes = max(1, min(_MOST_LANES, by_work, _LANE_ENTRIES // width))
    return np.arange(lanes + 1) * count // lanes


def run_lanes(run: Callable[[int, int], None], lanes: int, threads: int) -> None:
    """Run the lanes, on several threads if that is worth it."""
    threads = min(threads, lanes)
    if threads <= 1:
        run(0, lanes)
        return
    ends = [round(lanes * k / threads) for k in range(threads + 1)]
    waiting = [_pool(threads).submit(run, ends[k], ends[k + 1]) for k in range(1, threads)]
    try:
        run(ends[0], ends[1])
        for future in waiting:
            future.result()
    finally:  # a pass that was stopped leaves no thread behind that still reads the data
        wait(waiting)


def in_order(totals: NDArray[np.float64]) -> NDArray[np.float64]:
    """Add the lanes one after the other."""
    total = totals[0].copy()
    for lane in totals[1:]:
        total += lane
    return total


def _pool(threads: int) -> ThreadPoolExecutor:
    """Threads that are kept between passes."""
    if threads not in _pools:
        _pools[threads] = ThreadPoolExecutor(threads - 1, thread_name_prefix="privopt")
    return _pools[threads]


def _forget_pools() -> None:
    """A forked child has none of its parent's threads."""
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pools)
atexit.register(_forget_pools)


# ---- The compiled pass for softmax: as `kernels.sum_records`, with K predictions and slopes a record -------
@compiled(FAST)
def softmax_slopes(y: Any, m: int, s: Any) -> None:
    """Replace the predictions s[:, :m], one column a record, by softmax minus the indicator of the class y."""
    outputs = s.shape[0]
    top, total = np.full(TILE, -np.inf), np.zeros(TILE)
    for k in range(outputs):
        for r in range(m):
            top[r] = max(top[r], s[k, r])
            if not abs(s[k, r]) <= LARGEST:
                total[r] = math.nan  # max may swallow a NaN, the exponential does
    for k in range(outputs):
        for r in range(m):
            s[k, r] = exponential(s[k, r] - top[r])
            total[r] += s[k, r]
    for k in range(outputs):
        for r in range(m):
            s[k, r] = s[k, r] / total[r] - (1.0 if y[r] == k else 0.0)


@compiled(FAST)
def _clip_columns(s: Any, inverse_norms: Any, radius: float, m: int) -> None:
    """Scale column r to the length radius / |a_r| at most; one that is not finite becomes 0."""
    outputs = s.shape[0]
    squares = np.zeros(TILE)
    for k in range(outputs):
        for r in range(m):
            squares[r] += s[k, r] * s[k, r]
    for r in range(m):
        length, cap = math.sqrt(squares[r]), radius * inverse_norms[r]
        finite = length <= LARGEST
        squares[r] = (cap / length if length > cap else 1.0) if finite else 0.0
    for k in range(outputs):
        for r in range(m):
            s[k, r] = s[k, r] * squares[r] if squares[r] > 0.0 else 0.0


@compiled(FAST)
def sum_softmax(
    rows: Any,
    targets: Any,
    inverse_norms: Any,
    index: Any,
    points: Any,
    outputs: int,
    radius: float,
    inner: float,
    lanes: Any,
    first: int,
    last: int,
    totals: Any,
) -> None:
    """Sum the clipped contributions outer(s_i, a_i) of the positions of each of the lanes first..last-1.

    Args:
        rows: dense or CSR, as in `kernels.sum_records`.
        targets: class codes of all rows.
        inverse_norms: 1 / |a_i|, rounded down; any positive number for zero rows.
        index: rows by position, or empty.
        points: (K, d), or (2 K, d) for a difference.
        outputs: K.
        radius: largest Frobenius norm of a contribution, moved inwards already; may be infinite.
        inner: clip of each gradient of a difference, likewise.
        lanes: lane l holds the positions lanes[l]..lanes[l + 1] - 1.
        first: first lane.
        last: behind the last lane.
        totals: (lanes, K, d); entry l is set to the sum of lane l.
    Privacy:
        The Frobenius norm of outer(s_i, a_i) is |s_i| |a_i|, and |s_i| is scaled to radius / |a_i|; the radius is
        1e-9 inwards, more than the rounding of a length of K numbers.
    """
    d = totals.shape[2]
    s, other = np.empty((outputs, TILE)), np.empty((outputs, TILE))
    y, inverse = np.empty(TILE), np.empty(TILE)
    share = np.empty((outputs, padded(d)))
    for lane in range(first, last):
        totals[lane, :, :] = 0.0
        for block in range(lanes[lane], lanes[lane + 1], BLOCK_ROWS):
            share[:, :] = 0.0
            stop = min(block + BLOCK_ROWS, lanes[lane + 1])
            for start in range(block, stop, TILE):
                m = min(TILE, stop - start)
                gather(targets, index, start, m, y)
                gather(inverse_norms, index, start, m, inverse)
                for k in range(outputs):
                    predictions(rows, index, start, m, points[k], s[k])
                softmax_slopes(y, m, s)
                if points.shape[0] > outputs:
                    for k in range(outputs):
                        predictions(rows, index, start, m, points[outputs + k], other[k])
                    softmax_slopes(y, m, other)
                    _clip_columns(s, inverse, inner, m)
                    _clip_columns(other, inverse, inner, m)
                    for k in range(outputs):
                        for r in range(m):
                            s[k, r] -= other[k, r]
                _clip_columns(s, inverse, radius, m)
                for k in range(outputs):
                    add(rows, index, start, m, s[k], share[k])
            for k in range(outputs):
                add_share(share[k], totals[lane, k])
