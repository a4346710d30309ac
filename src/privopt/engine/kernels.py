"""The compiled pass over generalised-linear rows: predictions, slopes, scalar clips and the sum, fused.

`TILE` rows are read once from memory: their predictions, then slopes and clips, then their share of the sum are
computed while they lie in the cache. Rows are float32, float64 or integers (each is compiled when it is
first met); every product and sum is float64.

Rows come as a tuple: `(matrix, matrix.ravel())` for dense rows, `(values, columns, starts)` for CSR, and for users'
rows on a grid `(integers, integers.ravel(), steps, d)`, at points times the steps: a user's sum is decoded before it is
scaled. Records on a grid come as dense rows, see `fast_path`. An empty `index` means positions are rows; otherwise
position p is row (or user) `index[p]`.
"""

import math
from typing import Any

import numpy as np

from privopt.compilation import EXACT, FAST, compiled, instruction
from privopt.engine.rounding import BLOCK_ROWS
from privopt.problems.glm import KernelCode

# ------------------------------------------------------------------------------------------------------------
# The compiled building blocks of the kernels: how they are compiled, the exponential, the table of slopes.
# Floating point: `FAST` lets the compiler reorder sums and fuse products, which the rounding bound covers (it holds for
# any order). It never lets it assume that numbers are finite, since guards against NaN rest on that; and the
# exponential, which rests on exact order, is compiled without reordering.


_SCALAR = [int(code) for code in KernelCode if code is not KernelCode.SOFTMAX]
_LOGISTIC, _SQUARED, _HUBER, _HINGE, _QUANTILE, _POISSON, _RAMP, _CAPPED_ABSOLUTE, _CAPPED_SQUARED = _SCALAR
FORMULAS = frozenset(_SCALAR)  # the codes that `slopes` knows

LARGEST = float(np.finfo(np.float64).max)


@instruction
def _bits(typingctx: Any, number: Any) -> Any:
    """The bits of a float64 as an int64."""
    from llvmlite import ir
    from numba import types

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(number), generate


@instruction
def _from_bits(typingctx: Any, bits: Any) -> Any:
    """The float64 of given bits."""
    from llvmlite import ir
    from numba import types

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(bits), generate


_LOG2_E = 1.4426950408889634
_LN2_HIGH = 6.93145751953125e-1  # few digits: an integer up to 1024 times it is exact
_LN2_LOW = 1.42860682030941723212e-6
_ROUND = 6755399441055744.0  # 1.5 * 2^52: adding it rounds to an integer, kept in the low bits
_ONE_BITS = 4607182418800017408  # the bits of 1.0


@compiled(EXACT, inline=True)
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


@compiled(FAST, inline=True)
def step(x: float, halfwidth: float) -> float:
    """From 0 to 1 around 0, linear over +- halfwidth; 1/2 at a corner."""
    if halfwidth > 0.0:
        return min(max((x + halfwidth) / (2.0 * halfwidth), 0.0), 1.0)
    return 1.0 if x > 0.0 else (0.5 if x == 0.0 else 0.0)


@compiled(FAST)
def slopes(code: int, p0: float, p1: float, t: Any, y: Any, m: int, s: Any) -> None:
    """The formula table: s[:m] = phi'(t, y) of the loss with this `KernelCode`."""
    if code == _LOGISTIC:
        for r in range(m):
            label = min(max(y[r], -1.0), 1.0)
            s[r] = -label / (1.0 + exponential(label * t[r]))
    elif code == _SQUARED:
        for r in range(m):
            s[r] = t[r] - y[r]
    elif code == _HUBER:
        for r in range(m):
            s[r] = min(max(t[r] - y[r], -p0), p0)
    elif code == _HINGE:
        for r in range(m):
            label = min(max(y[r], -1.0), 1.0)
            s[r] = -label * min(max((1.0 + p0 - label * t[r]) / (2.0 * p0), 0.0), 1.0)
    elif code == _QUANTILE:
        for r in range(m):
            s[r] = step(t[r] - y[r], p1) - p0
    elif code == _POISSON:
        for r in range(m):
            s[r] = exponential(min(t[r], p0)) - min(max(y[r], 0.0), p1)
    elif code == _RAMP:
        for r in range(m):
            label = min(max(y[r], -1.0), 1.0)
            margin = label * t[r]
            s[r] = -0.5 * label * (step(1.0 - margin, p0) - step(-1.0 - margin, p0))
    elif code == _CAPPED_ABSOLUTE:
        for r in range(m):
            x = t[r] - y[r]
            s[r] = min(max(2.0 * step(x, p1) - step(x + p0, p1) - step(x - p0, p1), -1.0), 1.0)
    elif code == _CAPPED_SQUARED:
        for r in range(m):
            x = t[r] - y[r]
            ahead, behind = min(max(x + p1, -p0), p0), min(max(x - p1, -p0), p0)
            if p1 > 0.0:
                s[r] = (ahead - behind) * ((ahead + behind) / (4.0 * p1))
            else:
                s[r] = x * (step(x + p0, 0.0) - step(x - p0, 0.0))
            s[r] = min(max(s[r], p1 - p0), p0 - p1)
    else:
        for r in range(m):
            s[r] = math.nan
    for r in range(m):
        if not abs(t[r]) <= LARGEST:  # min and max above may have swallowed a NaN
            s[r] = math.nan


@compiled(FAST, inline=True)
def balance_logistic(t: Any, inverse_norms: Any, radius: float, m: int, s: Any) -> None:
    """Multiply s[r] by min(1, cap (1 + exp(-|t[r]|))), cap = radius / |a_r|: the factor of a balanced gradient."""
    for r in range(m):
        s[r] *= min(1.0, radius * inverse_norms[r] * (1.0 + exponential(-abs(t[r]))))


# ------------------------------------------------------------------------------------------------------------
# The compiled pass over generalised-linear rows: predictions, slopes, scalar clips and the sum, fused.


TILE = 32  # rows whose predictions are computed before their share of the sum; they stay in the first-level cache
_SAFE_SQUARES = (1e-280, 1e280)  # a sum of squares in here neither overflowed nor lost digits
_SCALES = (1e-290, 1e290)  # numbers whose reciprocals are normal, by which the compiler may multiply


@compiled(FAST)
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


@compiled(FAST, inline=True)
def padded(width: int) -> int:
    """The length of an array that `add` adds to: a multiple of 8. What it leaves behind `width` means nothing."""
    return (width + 7) // 8 * 8


@compiled(FAST)
def _dense_add(x: Any, flat: Any, index: Any, start: int, m: int, s: Any, total: Any) -> None:
    d = np.uint64(x.shape[1])
    size = np.uint64(flat.shape[0])
    length = padded(x.shape[1])
    whole = index.shape[0] == 0
    r = 0
    while r + 8 <= m:  # eight rows share each read and write of the total
        p = start + r
        o0, o1, o2, o3 = np.uint64(p), np.uint64(p + 1), np.uint64(p + 2), np.uint64(p + 3)
        o4, o5, o6, o7 = np.uint64(p + 4), np.uint64(p + 5), np.uint64(p + 6), np.uint64(p + 7)
        if not whole:
            o0, o1, o2, o3 = (
                np.uint64(index[p]),
                np.uint64(index[o1]),
                np.uint64(index[o2]),
                np.uint64(index[o3]),
            )
            o4, o5, o6, o7 = (
                np.uint64(index[o4]),
                np.uint64(index[o5]),
                np.uint64(index[o6]),
                np.uint64(index[o7]),
            )
        if (max(max(max(o0, o1), max(o2, o3)), max(max(o4, o5), max(o6, o7))) * d) + np.uint64(length) > size:
            break
        o0, o1, o2, o3, o4, o5, o6, o7 = o0 * d, o1 * d, o2 * d, o3 * d, o4 * d, o5 * d, o6 * d, o7 * d
        s0, s1, s2, s3 = s[r], s[r + 1], s[r + 2], s[r + 3]
        s4, s5, s6, s7 = s[r + 4], s[r + 5], s[r + 6], s[r + 7]
        # Whole vectors: beyond its end a row runs into the next one, which is finite and lands in the padding.
        for k in range(length):
            j = np.uint64(k)
            first = (s0 * flat[o0 + j] + s1 * flat[o1 + j]) + (s2 * flat[o2 + j] + s3 * flat[o3 + j])
            second = (s4 * flat[o4 + j] + s5 * flat[o5 + j]) + (s6 * flat[o6 + j] + s7 * flat[o7 + j])
            total[j] += first + second
        r += 8
    while r < m:  # the rest, and rows so near the end of the matrix that a whole vector would not fit
        i = start + r if whole else index[start + r]
        s0 = s[r]
        for k in range(x.shape[1]):
            total[k] += s0 * x[i, k]
        r += 1


@compiled(FAST)
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


@compiled(FAST)
def _sparse_add(
    values: Any, columns: Any, starts: Any, index: Any, start: int, m: int, s: Any, total: Any
) -> None:
    whole = index.shape[0] == 0
    for r in range(m):
        i = start + r if whole else index[start + r]
        s0 = s[r]
        for k in range(starts[i], starts[i + 1]):
            total[columns[k]] += s0 * values[k]


@compiled(FAST, inline=True)
def predictions(rows: Any, index: Any, start: int, m: int, point: Any, t: Any) -> None:
    """t[:m] = rows @ point. Numba compiles only the branch that fits the length of the tuple."""
    if len(rows) == 3:
        _sparse_predictions(rows[0], rows[1], rows[2], index, start, m, point, t)
    else:
        _dense_predictions(rows[0], index, start, m, point, t)


@compiled(FAST, inline=True)
def add(rows: Any, index: Any, start: int, m: int, s: Any, total: Any) -> None:
    """Add s[:m] @ rows to the total, whose length is `padded`."""
    if len(rows) == 3:
        _sparse_add(rows[0], rows[1], rows[2], index, start, m, s, total)
    else:
        _dense_add(rows[0], rows[1], index, start, m, s, total)


@compiled(FAST, inline=True)
def decode(rows: Any, vector: Any) -> None:
    """Turn a sum of a user's integer rows into that of the decoded ones; of other rows it is that already."""
    if len(rows) == 4:
        steps = rows[2]
        for j in range(steps.shape[0]):
            vector[j] *= steps[j]


@compiled(FAST, inline=True)
def gather(source: Any, index: Any, start: int, m: int, found: Any) -> None:
    """found[:m] = the entries of the source for the rows at the positions start..start+m-1."""
    whole = index.shape[0] == 0
    for r in range(m):
        found[r] = source[start + r if whole else index[start + r]]


@compiled(FAST, inline=True)
def add_share(share: Any, total: Any) -> None:
    """Add what a block of rows sums to, whose length may be `padded`, to the total of its lane."""
    for j in range(total.shape[0]):
        total[j] += share[j]


@compiled(FAST, inline=True)
def rows_of_user(position: int, index: Any, offsets: Any, weights: Any) -> Any:
    """First row and behind the last row of the user at a position, and what one row counts in the user's average."""
    user = position if index.shape[0] == 0 else index[position]
    low, high = offsets[user], offsets[user + 1]
    return low, high, weights[user] / max(high - low, 1)


@compiled(FAST, inline=True)
def clip_scalars(s: Any, inverse_norms: Any, radius: float, m: int) -> None:
    """Clip |s[r]| to radius / |a_r|; what is not finite becomes 0."""
    for r in range(m):
        finite = abs(s[r]) <= LARGEST
        cap = radius * inverse_norms[r]
        clipped = min(max(s[r], -cap), cap)
        s[r] = clipped if finite else 0.0


@compiled(FAST, inline=True)
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
    """s[:m] = slopes at the first point; with two, minus those at the second, each clipped to `inner` first."""
    (code, p0, p1, balanced), inner, two = task
    at, anchor = points
    t, other = scratch
    predictions(rows, index, start, m, at, t)
    slopes(code, p0, p1, t, y, m, s)
    if balanced <= LARGEST:
        balance_logistic(t, inverse, balanced, m, s)
    if two:
        predictions(rows, index, start, m, anchor, t)
        slopes(code, p0, p1, t, y, m, other)
        clip_scalars(s, inverse, inner, m)
        clip_scalars(other, inverse, inner, m)
        for r in range(m):
            s[r] -= other[r]


@compiled(FAST)
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
        rows: dense `(matrix, matrix.ravel())` or CSR `(values, columns, starts)`.
        targets: of all rows.
        inverse_norms: 1 / |a_i| of all rows in the norm of the clip, rounded down; any positive number for zero rows.
        index: rows by position, or empty.
        points: (1, d), or (2, d) for a difference.
        formula: (code, p0, p1, C of a balanced logistic gradient or infinity).
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
    ends, task = (points[0], points[-1]), (formula, inner, points.shape[0] == 2)
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
                _coefficients(rows, index, start, m, ends, task, y, inverse, (t, other), s)
                clip_scalars(s, inverse, radius, m)
                add(rows, index, start, m, s, share)
            add_share(share, totals[lane])


@compiled(FAST)
def scale_into_ball(vector: Any, columns: Any, count: int, radius: float) -> float:
    """The factor that brings the vector's entries at columns[:count] into the ball; 0 if one is not finite.

    A vector whose square is no ordinary number is divided by its largest entry, in place, if it is too long: as one
    number, the factor could be subnormal, which is rounded too coarsely, or vanish.
    """
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
        if not g <= LARGEST:
            return 0.0
        peak = max(peak, g)
    scale = min(max(peak, _SCALES[0]), _SCALES[1])
    squares = 0.0
    for k in range(count):
        g = vector[columns[k]] / scale
        squares += g * g
    length = math.sqrt(squares)
    if length * scale <= radius:
        return 1.0
    for k in range(count):
        vector[columns[k]] /= scale
    return radius / length


@compiled(FAST)
def touch(rows: Any, low: int, high: int, mark: int, seen: Any, touched: Any, average: Any) -> int:
    """List the columns that the rows low..high-1 use in `touched`, and set the average to zero there."""
    if len(rows) != 3:
        average[:] = 0.0
        for j in range(rows[0].shape[1]):
            touched[j] = j
        return rows[0].shape[1]
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


@compiled(FAST)
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
        formula: (code, p0, p1, C of a balanced logistic gradient or infinity).
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
    ends, task = (points[0], points[-1]), (formula, inner, points.shape[0] == 2)
    t, s, other = np.empty(TILE), np.empty(TILE), np.empty(TILE)
    y, inverse = np.empty(TILE), np.empty(TILE)
    share, average = np.empty(d), np.zeros(padded(d))
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
                for start in range(low, high, TILE):
                    m = min(TILE, high - start)
                    gather(targets, no_index, start, m, y)
                    gather(inverse_norms, no_index, start, m, inverse)
                    _coefficients(rows, no_index, start, m, ends, task, y, inverse, (t, other), s)
                    for r in range(m):
                        s[r] *= weight
                    add(rows, no_index, start, m, s, average)
                decode(rows, average)
                scale = scale_into_ball(average, touched, count, radius)
                if scale > 0.0:
                    for k in range(count):
                        j = touched[k]
                        share[j] += scale * average[j]
            add_share(share, totals[lane])
