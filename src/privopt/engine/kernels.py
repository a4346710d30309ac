"""The compiled pass over generalised-linear rows: predictions, slopes, scalar clips and the sum, fused.

`TILE` rows are read once from memory: their predictions, then slopes and clips, then their share of the sum are
computed while they lie in the cache. Rows are float32; every product and sum is float64.

Rows come as a tuple: `(matrix,)` for dense rows, `(values, columns, starts)` for CSR. An empty `index` means positions
are rows; otherwise position p is row (or user) `index[p]`.

Floating point: `FAST` lets the compiler reorder sums and fuse products, which the rounding bound covers (it holds for
any order). It never lets it assume that numbers are finite, since guards against NaN rest on that; and the exponential,
which rests on exact order, is compiled without reordering.
"""

# One file: numba's cache on disk looks at the time of the file that holds a kernel, not of those it calls.

import math
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from privopt.engine.rounding import BLOCK_ROWS
from privopt.problems.glm import KernelCode

Function = TypeVar("Function", bound=Callable[..., Any])

TILE = 32  # rows whose predictions are computed before their share of the sum; they stay in the first-level cache
FAST = {"reassoc", "contract", "arcp", "nsz"}
EXACT = {"contract"}

_SCALAR = [int(code) for code in KernelCode if code is not KernelCode.SOFTMAX]
_LOGISTIC, _SQUARED, _HUBER, _HINGE, _QUANTILE, _POISSON = _SCALAR
FORMULAS = frozenset(_SCALAR)  # the codes that `slopes` knows

_LARGEST = float(np.finfo(np.float64).max)
_SAFE_SQUARES = (1e-280, 1e280)  # a sum of squares in here neither overflowed nor lost digits


def _compiled(flags: set[str], *, inline: bool = False) -> Callable[[Function], Function]:
    """Compile by numba, without the lock of the interpreter; cached on disk where there is a place to write."""

    def compile_function(function: Function) -> Function:
        options: dict[str, Any] = {
            "nogil": True,
            "fastmath": flags,
            "error_model": "numpy",
            "forceinline": inline,
        }
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:  # no writable cache directory
            return njit(**options)(function)

    return compile_function


@intrinsic
def _bits(typingctx: Any, number: Any) -> Any:
    """The bits of a float64 as an int64."""
    del typingctx

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(number), generate


@intrinsic
def _from_bits(typingctx: Any, bits: Any) -> Any:
    """The float64 of given bits."""
    del typingctx

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(bits), generate


_LOG2_E = 1.4426950408889634
_LN2_HIGH = 6.93145751953125e-1  # few digits: an integer up to 1024 times it is exact
_LN2_LOW = 1.42860682030941723212e-6
_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to an integer, kept in the low bits
_ONE_BITS = 4607182418800017408  # the bits of 1.0


@_compiled(EXACT, inline=True)
def exponential(x: float) -> float:
    """exp(x) to a relative error of 1e-14, x moved into [-708, 708] first; vectorises, unlike the library's.

    Source:
        Cody and Waite 1980: exp(x) = 2^k exp(r), |r| <= log(2) / 2; here the Taylor polynomial of degree 11 for
        exp(r) (remainder 6e-15), evaluated in independent halves.
    """
    x = min(max(x, -708.0), 708.0)
    shifted = x * _LOG2_E + _ROUND
    k = shifted - _ROUND
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    r2 = r * r
    r4 = r2 * r2
    low = (1.0 + r) + r2 * (0.5 + r * (1 / 6))
    middle = (1 / 24 + r * (1 / 120)) + r2 * (1 / 720 + r * (1 / 5040))
    high = (1 / 40320 + r * (1 / 362880)) + r2 * (1 / 3628800 + r * (1 / 39916800))
    polynomial = low + r4 * (middle + r4 * high)
    return polynomial * _from_bits((_bits(shifted) << 52) + _ONE_BITS)


@_compiled(FAST)
def slopes(code: int, p0: float, p1: float, t: Any, y: Any, m: int, s: Any) -> None:
    """The formula table: s[:m] = phi'(t, y) of the loss with this `KernelCode`."""
    if code == _LOGISTIC:
        for r in range(m):
            s[r] = -y[r] / (1.0 + exponential(y[r] * t[r]))
    elif code == _SQUARED:
        for r in range(m):
            s[r] = t[r] - y[r]
    elif code == _HUBER:
        for r in range(m):
            s[r] = min(max(t[r] - y[r], -p0), p0)
    elif code == _HINGE:
        for r in range(m):
            s[r] = -y[r] * min(max((1.0 + p0 - y[r] * t[r]) / (2.0 * p0), 0.0), 1.0)
    elif code == _QUANTILE:
        for r in range(m):
            excess = t[r] - y[r]
            if p1 > 0.0:
                s[r] = min(max((excess + p1) / (2.0 * p1), 0.0), 1.0) - p0
            else:
                s[r] = (1.0 if excess > 0.0 else (0.5 if excess == 0.0 else 0.0)) - p0
    elif code == _POISSON:
        for r in range(m):
            s[r] = exponential(min(t[r], p0)) - min(max(y[r], 0.0), p1)
    else:
        for r in range(m):
            s[r] = math.nan
    for r in range(m):
        if not abs(t[r]) <= _LARGEST:  # min and max above may have swallowed a NaN
            s[r] = math.nan


@_compiled(FAST)
def _dense_predictions(x: Any, index: Any, start: int, m: int, point: Any, t: Any) -> None:
    d = x.shape[1]
    whole = index.shape[0] == 0
    even = m - m % 4
    for r in range(0, even, 4):  # four rows share each entry of the point
        i0 = start + r
        i1, i2, i3 = i0 + 1, i0 + 2, i0 + 3
        if not whole:
            i0, i1, i2, i3 = index[i0], index[i1], index[i2], index[i3]
        t0 = t1 = t2 = t3 = 0.0
        for j in range(d):
            w = point[j]
            t0 += x[i0, j] * w
            t1 += x[i1, j] * w
            t2 += x[i2, j] * w
            t3 += x[i3, j] * w
        t[r], t[r + 1], t[r + 2], t[r + 3] = t0, t1, t2, t3
    for r in range(even, m):
        i = start + r if whole else index[start + r]
        t0 = 0.0
        for j in range(d):
            t0 += x[i, j] * point[j]
        t[r] = t0


@_compiled(FAST)
def _dense_add(x: Any, index: Any, start: int, m: int, s: Any, total: Any) -> None:
    d = x.shape[1]
    whole = index.shape[0] == 0
    even = m - m % 8
    for r in range(0, even, 8):  # eight rows share each read and write of the total
        i0 = start + r
        i1, i2, i3, i4, i5, i6, i7 = i0 + 1, i0 + 2, i0 + 3, i0 + 4, i0 + 5, i0 + 6, i0 + 7
        if not whole:
            i0, i1, i2, i3 = index[i0], index[i1], index[i2], index[i3]
            i4, i5, i6, i7 = index[i4], index[i5], index[i6], index[i7]
        s0, s1, s2, s3 = s[r], s[r + 1], s[r + 2], s[r + 3]
        s4, s5, s6, s7 = s[r + 4], s[r + 5], s[r + 6], s[r + 7]
        for j in range(d):
            first = (s0 * x[i0, j] + s1 * x[i1, j]) + (s2 * x[i2, j] + s3 * x[i3, j])
            second = (s4 * x[i4, j] + s5 * x[i5, j]) + (s6 * x[i6, j] + s7 * x[i7, j])
            total[j] += first + second
    for r in range(even, m):
        i = start + r if whole else index[start + r]
        s0 = s[r]
        for j in range(d):
            total[j] += s0 * x[i, j]


@_compiled(FAST)
def _sparse_predictions(
    values: Any, columns: Any, starts: Any, index: Any, start: int, m: int, point: Any, t: Any
) -> None:
    whole = index.shape[0] == 0
    for r in range(m):
        i = start + r if whole else index[start + r]
        t0 = 0.0
        for k in range(starts[i], starts[i + 1]):
            t0 += values[k] * point[columns[k]]
        t[r] = t0


@_compiled(FAST)
def _sparse_add(
    values: Any, columns: Any, starts: Any, index: Any, start: int, m: int, s: Any, total: Any
) -> None:
    whole = index.shape[0] == 0
    for r in range(m):
        i = start + r if whole else index[start + r]
        s0 = s[r]
        for k in range(starts[i], starts[i + 1]):
            total[columns[k]] += s0 * values[k]


@_compiled(FAST, inline=True)
def _predictions(rows: Any, index: Any, start: int, m: int, point: Any, t: Any) -> None:
    # numba compiles only the branch that fits the length of the tuple.
    if len(rows) == 1:
        _dense_predictions(rows[0], index, start, m, point, t)
    else:
        _sparse_predictions(rows[0], rows[1], rows[2], index, start, m, point, t)


@_compiled(FAST, inline=True)
def _add(rows: Any, index: Any, start: int, m: int, s: Any, total: Any) -> None:
    if len(rows) == 1:
        _dense_add(rows[0], index, start, m, s, total)
    else:
        _sparse_add(rows[0], rows[1], rows[2], index, start, m, s, total)


@_compiled(FAST, inline=True)
def _clip_scalars(s: Any, inverse_norms: Any, radius: float, m: int) -> None:
    """Clip |s[r]| to radius / |a_r|; what is not finite becomes 0."""
    for r in range(m):
        finite = abs(s[r]) <= _LARGEST
        cap = radius * inverse_norms[r]
        clipped = min(max(s[r], -cap), cap)
        s[r] = clipped if finite else 0.0


@_compiled(FAST, inline=True)
def _coefficients(
    rows: Any,
    index: Any,
    start: int,
    m: int,
    points: Any,
    task: Any,
    y: Any,
    inverse: Any,
    scratch: Any,
    s: Any,
) -> None:
    """s[:m] = slopes at points[0]; with two points, minus those at points[1], each clipped to `inner` first."""
    (code, p0, p1), inner = task
    t, other = scratch
    _predictions(rows, index, start, m, points[0], t)
    slopes(code, p0, p1, t, y, m, s)
    if points.shape[0] == 2:
        _predictions(rows, index, start, m, points[1], t)
        slopes(code, p0, p1, t, y, m, other)
        _clip_scalars(s, inverse, inner, m)
        _clip_scalars(other, inverse, inner, m)
        for r in range(m):
            s[r] -= other[r]


@_compiled(FAST)
def sum_records(
    rows: Any,
    targets: Any,
    inverse_norms: Any,
    index: Any,
    points: Any,
    formula: Any,
    radius: float,
    inner: float,
    lanes: Any,
    first: int,
    last: int,
    totals: Any,
) -> None:
    """Sum the clipped contributions s_i a_i of the positions of each of the lanes first..last-1.

    Args:
        rows: dense `(matrix,)` or CSR `(values, columns, starts)`.
        targets: of all rows.
        inverse_norms: 1 / |a_i| of all rows in the norm of the clip, rounded down; any positive number for zero rows.
        index: rows by position, or empty.
        points: (1, d), or (2, d) for a difference.
        formula: (code, p0, p1).
        radius: largest norm of s_i a_i, moved inwards already; may be infinite.
        inner: clip of each gradient of a difference, likewise.
        lanes: lane l holds the positions lanes[l]..lanes[l + 1] - 1.
        first: first lane.
        last: behind the last lane.
        totals: (lanes, d); row l is set to the sum of lane l.
    Privacy:
        |s_i| <= radius * inverse_norms[i] up to one rounding, so the real vector s_i a_i has norm at most the radius;
        a coefficient that is not finite becomes 0. Rows are finite, so nothing else can carry a NaN into the sum.
    """
    t, s, other = np.empty(TILE), np.empty(TILE), np.empty(TILE)
    y, inverse = np.empty(TILE), np.empty(TILE)
    d = totals.shape[1]
    share = np.empty(d)
    whole = index.shape[0] == 0
    for lane in range(first, last):
        totals[lane, :] = 0.0
        for block in range(lanes[lane], lanes[lane + 1], BLOCK_ROWS):
            share[:] = 0.0
            stop = min(block + BLOCK_ROWS, lanes[lane + 1])
            for start in range(block, stop, TILE):
                m = min(TILE, stop - start)
                for r in range(m):
                    i = start + r if whole else index[start + r]
                    y[r], inverse[r] = targets[i], inverse_norms[i]
                _coefficients(rows, index, start, m, points, (formula, inner), y, inverse, (t, other), s)
                _clip_scalars(s, inverse, radius, m)
                _add(rows, index, start, m, s, share)
            for j in range(d):
                totals[lane, j] += share[j]


@_compiled(FAST)
def _scale_into_ball(vector: Any, columns: Any, count: int, radius: float) -> float:
    """The factor that brings the vector's entries at columns[:count] into the ball; 0 if one is not finite."""
    squares = 0.0
    for k in range(count):
        g = vector[columns[k]]
        squares += g * g
    if _SAFE_SQUARES[0] <= squares <= _SAFE_SQUARES[1]:
        norm = math.sqrt(squares)
        return 1.0 if norm <= radius else radius / norm
    peak = 0.0
    for k in range(count):
        g = abs(vector[columns[k]])
        if not g <= _LARGEST:
            return 0.0
        peak = max(peak, g)
    if peak == 0.0:
        return 0.0
    squares = 0.0
    for k in range(count):
        g = vector[columns[k]] / peak
        squares += g * g
    length = math.sqrt(squares)
    return 1.0 if length <= radius / peak else (radius / peak) / length


@_compiled(FAST)
def _touch(rows: Any, low: int, high: int, mark: int, seen: Any, touched: Any, average: Any) -> int:
    """List the columns that the rows low..high-1 use in `touched`, and set the average to zero there."""
    if len(rows) == 1:
        for j in range(average.shape[0]):
            average[j] = 0.0
            touched[j] = j
        return average.shape[0]
    columns, starts = rows[1], rows[2]
    count = 0
    for k in range(starts[low], starts[high]):
        j = columns[k]
        if seen[j] != mark:
            seen[j] = mark
            touched[count] = j
            average[j] = 0.0
            count += 1
    return count


@_compiled(FAST)
def sum_users(
    rows: Any,
    targets: Any,
    inverse_norms: Any,
    offsets: Any,
    weights: Any,
    index: Any,
    points: Any,
    formula: Any,
    radius: float,
    inner: float,
    lanes: Any,
    first: int,
    last: int,
    totals: Any,
) -> None:
    """Sum the clipped averages of the users at the positions of each of the lanes first..last-1.

    A user's vector is g_j = u_j (1 / k_j) sum over their k_j rows of s_r a_r, then scaled into the l2 ball.

    Args:
        rows: as in `sum_records`, sorted by user.
        targets: of all rows.
        inverse_norms: as in `sum_records`; used by `inner` only.
        offsets: user j owns the rows offsets[j]..offsets[j + 1] - 1.
        weights: u_j.
        index: users by position, or empty.
        points: as in `sum_records`.
        formula: (code, p0, p1).
        radius: largest l2 norm of a user's vector, moved inwards already; may be infinite.
        inner: as in `sum_records`, for each record.
        lanes: as in `sum_records`.
        first: first lane.
        last: behind the last lane.
        totals: (lanes, d); row l is set to the sum of lane l.
    Privacy:
        A user's vector that is not finite counts as zero, any other is scaled into the ball, whatever the user's rows
        and their number.
    """
    d = totals.shape[1]
    t, s, other = np.empty(TILE), np.empty(TILE), np.empty(TILE)
    y, inverse = np.empty(TILE), np.empty(TILE)
    share, average = np.empty(d), np.zeros(d)
    seen, touched = np.full(d, -1), np.empty(d, np.int64)
    no_index = np.empty(0, np.int64)
    for lane in range(first, last):
        totals[lane, :] = 0.0
        for block in range(lanes[lane], lanes[lane + 1], BLOCK_ROWS):
            share[:] = 0.0
            for position in range(block, min(block + BLOCK_ROWS, lanes[lane + 1])):
                user = position if index.shape[0] == 0 else index[position]
                low, high = offsets[user], offsets[user + 1]
                if high == low:
                    continue
                weight = weights[user] / (high - low)
                count = _touch(rows, low, high, position, seen, touched, average)
                for start in range(low, high, TILE):
                    m = min(TILE, high - start)
                    for r in range(m):
                        y[r], inverse[r] = targets[start + r], inverse_norms[start + r]
                    _coefficients(
                        rows, no_index, start, m, points, (formula, inner), y, inverse, (t, other), s
                    )
                    for r in range(m):
                        s[r] *= weight
                    _add(rows, no_index, start, m, s, average)
                scale = _scale_into_ball(average, touched, count, radius)
                if scale > 0.0:
                    for k in range(count):
                        j = touched[k]
                        share[j] += scale * average[j]
            for j in range(d):
                totals[lane, j] += share[j]
