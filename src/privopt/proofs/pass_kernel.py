"""The compiled walk through places of `one_pass`: clipped gradients, steps, proximal maps and projections in float64.

Numba caches compiled code on disk and does not notice a change of `engine.formulas`: see there.
"""

import math
from typing import Any

import numpy as np

from privopt.engine.formulas import FAST, LARGEST, compiled, slopes


@compiled(FAST)
def run_places(
    code: int,
    p0: float,
    p1: float,
    x: Any,
    y: Any,
    ends: Any,
    noise: Any,
    aim: float,
    step: float,
    ridge: Any,
    thresholds: Any,
    centre: Any,
    radius: float,
    w: Any,
    gradient: Any,
    total: Any,
) -> None:
    """Add each row's clipped gradient; where a batch of `ends[r]` places ends, take its step.

    Args:
        code: the formula, see `KernelCode`.
        p0: its first parameter.
        p1: its second.
        x: rows.
        y: targets.
        ends: places of the batch that ends here, 0 where none does.
        noise: one row a step, on the scale of the gradient; no rows for no noise.
        aim: the clip, a little inwards.
        step: eta.
        ridge: of each coordinate.
        thresholds: of each coordinate, by which one step's proximal map shortens it.
        centre: of the ball.
        radius: of the ball; infinite for none.
        w: the iterate; changed in place.
        gradient: the sum over the batch so far; changed in place.
        total: the sum of all iterates; changed in place.
    """
    d = x.shape[1]
    soft = False
    for j in range(d):
        soft = soft or thresholds[j] > 0.0
    prediction, target, slope = np.empty(1), np.empty(1), np.empty(1)
    steps = 0
    for r in range(x.shape[0]):
        t = squares = 0.0
        for j in range(d):
            a = np.float64(x[r, j])
            t += a * w[j]
            squares += a * a
        if squares > 0.0:
            prediction[0], target[0] = t, y[r]
            slopes(code, p0, p1, prediction, target, 1, slope)
            cap = aim / (math.sqrt(squares) * (1.0 + 1e-12))
            s = slope[0]
            s = min(max(s, -cap), cap) if abs(s) <= LARGEST else 0.0
            for j in range(d):
                gradient[j] += s * np.float64(x[r, j])
        if ends[r] == 0:
            continue
        share = 1.0 / ends[r]
        if noise.shape[0] > 0:
            for j in range(d):
                w[j] -= step * (share * gradient[j] + ridge[j] * w[j] + noise[steps, j])
                gradient[j] = 0.0
        else:
            for j in range(d):
                w[j] -= step * (share * gradient[j] + ridge[j] * w[j])
                gradient[j] = 0.0
        steps += 1
        if soft:
            for j in range(d):
                size = max(abs(w[j]) - thresholds[j], 0.0)
                w[j] = size if w[j] > 0.0 else -size
        if radius < math.inf:
            squares = 0.0
            for j in range(d):
                squares += (w[j] - centre[j]) * (w[j] - centre[j])
            if squares > radius * radius:
                factor = radius / math.sqrt(squares)
                for j in range(d):
                    w[j] = centre[j] + factor * (w[j] - centre[j])
        for j in range(d):
            total[j] += w[j]
