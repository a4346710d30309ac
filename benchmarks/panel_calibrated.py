"""A candidate for the default with two classes, which became it: what the descent found is scaled and shifted.

With every seed's best scale and shift in hindsight, the landed rule would leave 0.4 to 0.97 of its excess and be above
the constant model almost nowhere. So a tenth of the budget is spent on these two numbers, after the descent of
`panel_halfway`: three clipped gradients, read as `privopt.planning.rescaling` says. The simulator releases, the library
does the rest.
"""

import math

import numpy as np
from numpy.typing import NDArray

from benchmarks.panel_cells import Cell
from benchmarks.panel_halfway import halfway
from privopt.planning.rescaling import SHARE, STEPS, Estimate, clip_for, two_columns
from privopt.planning.whitening import SHARE as MOMENT_SHARE
from privopt.planning.whitening import WhiteningRule

Floats = NDArray[np.float64]


def calibrated(cell: Cell, *, share: float = SHARE) -> Floats:
    """Halfway, then scale and shift of its predictions, learnt for a tenth of the budget, (seeds, d)."""
    params = halfway(cell, beside=share)
    rule = WhiteningRule.of(cell.instance, MOMENT_SHARE)
    if rule.constant is None:
        return params
    clip = clip_for(cell.instance, share)
    deviation = float(cell.noise_of_one(clip, share)[0]) * math.sqrt(STEPS)
    drawn = deviation * cell.generator("calibration").standard_normal((STEPS, cell.seeds, 2))
    ones = np.asarray(cell.arrays.targets == 1, float)
    found = np.zeros_like(params)
    for s, moment in enumerate(cell.moment(MOMENT_SHARE)):
        columns = two_columns(rule.rows(moment), params[s])
        rows = np.asarray(cell.rows @ np.asarray(columns.basis, np.float32), np.float64)
        estimate = Estimate.before(columns.start)
        for t in range(STEPS):
            gradient = _clipped_gradient(rows, ones, estimate.theta, clip)
            estimate = estimate.after(gradient + drawn[t, s], deviation)
        found[s] = columns.basis @ estimate.theta
    return found


def _clipped_gradient(rows: Floats, ones: Floats, theta: Floats, clip: float) -> Floats:
    """Of the mean logistic loss by (shift, scale), shortened without regard to the target, exact: add noise."""
    share_of_ones = 0.5 * (1.0 + np.tanh(0.5 * (rows @ theta)))
    steepest = np.maximum(share_of_ones, 1.0 - share_of_ones) * np.linalg.norm(rows, axis=1)
    slopes = (share_of_ones - ones) * np.minimum(1.0, clip / np.maximum(steepest, 1e-12))
    return rows.T @ slopes / len(rows)
