"""A candidate for the default with two classes, which became it: what the descent found is scaled and shifted.

With every seed's best scale and shift in hindsight, the landed rule would leave 0.4 to 0.97 of its excess and be above
the constant model almost nowhere. So a tenth of the budget is spent on these two numbers, after the descent of
`panel_halfway`: three clipped gradients, read as `privopt.planning.shrinkage` says. The simulator releases, the library
does the rest.
"""

import math

import numpy as np
from numpy.typing import NDArray

from benchmarks.panel_cells import Cell
from benchmarks.panel_halfway import halfway
from benchmarks.panel_rules import outward
from privopt.planning.shrinkage import STEPS, TWO_CLASSES, Estimate, clip_for, two_columns
from privopt.planning.whitening import SHARE as MOMENT_SHARE
from privopt.planning.whitening import WhiteningRule

Floats = NDArray[np.float64]


def calibrated(cell: Cell, *, share: float = TWO_CLASSES.share) -> Floats:
    """Halfway, then scale and shift of its predictions for a tenth of the budget, nothing shrunk, (seeds, d)."""
    params = halfway(cell, beside=share)
    rule = WhiteningRule.of(cell.instance, MOMENT_SHARE)
    if rule.constant is None:
        return params
    clip = clip_for(cell.instance, share)
    deviation = float(cell.noise_of_one(clip, share)[0]) * math.sqrt(STEPS)
    drawn = deviation * cell.generator("calibration").standard_normal((STEPS, cell.seeds, 2))
    columns = [
        two_columns(rule.rows(moment), w) for moment, w in zip(cell.moment(MOMENT_SHARE), params, strict=True)
    ]
    mapped = cell.onto(np.stack([one.basis for one in columns]))
    estimates = [Estimate.before(one.found, 1.0, cell.loss) for one in columns]
    for noise in drawn:
        points = np.stack([one.theta for one in estimates])
        released = cell.gradients(mapped, points, clip, balanced=True) + noise
        estimates = [one.after(seen, deviation) for one, seen in zip(estimates, released, strict=True)]
    return outward(mapped, np.stack([one.theta for one in estimates]))
