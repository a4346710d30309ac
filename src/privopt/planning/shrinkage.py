"""How much of the spread of a model's predictions is noise of the descent that found it, and what is kept of it.

With s the standard deviation of the predictions and nu that of what the noise of all releases adds to them, the scale
of the predictions is multiplied by the shrinkage

    kappa = 1 - min(1, nu^2 / s^2) / 2

half of what James and Stein would take off: a descent of few steps from 0 ends with predictions too small already, and
on small tables of the choosing half the whole was too much. nu follows from a linear model of the descent, in the
eigenbasis of the second moment M = U diag(h) U^T with floor f, where gradients are `a_j v_j`:

    a_j     = (c h_j + lam u_j) / (h_j + f),  u_j = 1 - U_cj^2
    c       = E phi''(t) min(1, C / (|phi'| r)),  t normal with mean m and standard deviation min(s, 5)
    nu^2    = sum_j (1 - q_j^2) h_j / (h_j + f) var_j,   q = sqrt(h) U_c / norm

r is the length of a typical row in v, C the clip, U_c the row of U of the column of ones: the shift of all predictions
is no part of their spread. phi' and phi'' are typical ones, see `prediction_curvature`. var_j is the variance of the
result in direction j: the recursion is run on a unit of noise at each step, and the squares are added. Everything in it
is released or public, so it costs nothing. Utility only.

Source:
    James, Stein 1961 for the rule; the noise of a descent that it goes by is ours.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.planning.coordinates import RowSpectrum
from privopt.planning.newton_end import LEAST_SIGNAL
from privopt.planning.prediction_curvature import clipped_curvature
from privopt.problems.losses import GLMLoss

WIDEST = 5.0  # of predictions, in the curvature
TAKEN = 0.5  # of what James and Stein take off


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisePath:
    """The steps of a descent with fixed momentum, as far as noise is concerned.

    Attributes:
        step_size: eta.
        momentum: b.
        clip: C.
        deviations: standard deviation of the noise in an entry of each step's gradient, (T,).
        mixing: how far the average moves to each iterate, (T,).
        newton: share of the Newton step at the end, see `newton_end`; 0 for none.
        curvature: of the loss by its prediction, as the Newton step supposes.
        ridge: lam.
        rows: the second moment along the axes of the run.
    """

    step_size: float
    momentum: float
    clip: float
    deviations: NDArray[np.float64]
    mixing: NDArray[np.float64]
    newton: float
    curvature: float
    ridge: float
    rows: RowSpectrum

    def variance(self, curvature: float) -> NDArray[np.float64]:
        """var_j, (d,), where the clipped loss is curved like c."""
        ridge = self.rows.ridge(self.ridge)
        slopes = curvature * self.rows.damping + ridge
        steps, width = len(self.deviations), len(slopes)
        last, point, average, points, gradients = (np.zeros((steps, width)) for _ in range(5))
        for step in range(steps):  # row i: what a unit of noise at step i has made of each direction
            gradient = slopes * point
            gradient[step] += 1.0
            points += point / steps
            gradients += gradient / steps
            moved = point - self.step_size * gradient
            point, last = moved + self.momentum * (moved - last), moved
            average += self.mixing[step] * (moved - average)
        if self.newton:
            bend = self.curvature * np.maximum(self.rows.damping, LEAST_SIGNAL) + ridge
            noise = math.sqrt(float(np.sum(self.deviations**2))) / steps
            average = (1.0 - self.newton) * average + self.newton * (bend * points - gradients) / (
                bend + noise
            )
        return np.sum((self.deviations[:, None] * average) ** 2, axis=0)


def shrinkage(path: NoisePath, found: ArrayLike, loss: GLMLoss) -> float:
    """kappa, between 1/2 and 1; 1 for losses that nothing is known of. Post-processing.

    Args:
        path: of the descent that found the model.
        found: (m, s), mean and standard deviation of the predictions.
        loss: it minimised.
    """
    rows, (mean, spread) = path.rows, (float(entry) for entry in np.asarray(found))
    reach = path.clip / max(rows.signal, 1e-9)
    curvature = clipped_curvature(loss, mean, min(spread, WIDEST), reach)
    if curvature is None or rows.constant is None or spread <= 0.0:
        return 1.0
    along = rows.eigenvalues * rows.axes[rows.constant] ** 2
    spreads = 1.0 - along / max(float(np.sum(along)), 1e-12)
    noise = float(np.sum(spreads * rows.damping * path.variance(curvature)))
    return 1.0 - TAKEN * min(1.0, noise / spread**2) if math.isfinite(noise) else 1.0 - TAKEN
