"""The compiled pass for softmax: as `kernels.sum_records`, with K predictions and K coefficients a record."""

import math
from typing import Any

import numpy as np

from privopt.engine.formulas import FAST, LARGEST, compiled, exponential
from privopt.engine.kernels import TILE, add, add_share, gather, padded, predictions
from privopt.engine.rounding import BLOCK_ROWS


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
