"""How steep and how curved a loss typically is where predictions are normally distributed; no data are read.

The residuals of numbers to predict, scaled to [-1, 1], are not known: they are taken as normal with standard deviation
0.3, around the quantile that is asked for. Utility only.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr, ndtri

from privopt.planning.logistic_curvature import logistic_curvature
from privopt.problems.losses import GLMLoss, Logistic, Quantile, Squared

RESIDUAL = 0.3  # standard deviation of what a number to predict is missed by
NORMAL, _WEIGHTS = np.polynomial.hermite_e.hermegauss(31)
WEIGHTS = _WEIGHTS / np.sum(_WEIGHTS)


class Local(NamedTuple):
    """At each of the predictions `shift + scale * NORMAL`, whose weights are `WEIGHTS`.

    Attributes:
        slopes: sizes of the slope.
        curvature: the second derivative.
    """

    slopes: NDArray[np.float64]
    curvature: NDArray[np.float64]


def local(loss: GLMLoss, shift: float, scale: float) -> Local | None:
    """Slopes and curvatures; None for losses that nothing is known of."""
    residuals = np.abs(RESIDUAL * NORMAL)
    match loss:
        case Logistic():
            predictions = shift + scale * NORMAL
            return Local(expit(np.abs(predictions)), logistic_curvature(predictions))
        case Squared():
            return Local(residuals, np.ones_like(residuals))
        case Quantile():
            middle, half = float(ndtri(loss.level)), max(loss.smoothing, 1e-3)
            density = (ndtr(middle + half / RESIDUAL) - ndtr(middle - half / RESIDUAL)) / (2.0 * half)
            return Local(np.full_like(residuals, 0.5), np.full_like(residuals, float(density)))
        case _:
            return None


def clipped_curvature(loss: GLMLoss, shift: float, scale: float, reach: float) -> float | None:
    """The mean curvature of the loss whose slopes are cut at `reach`; None for losses that nothing is known of."""
    found = local(loss, shift, scale)
    if found is None or not math.isfinite(reach):
        return None if found is None else float(found.curvature @ WEIGHTS)
    return float((found.curvature * np.minimum(1.0, reach / np.maximum(found.slopes, 1e-9))) @ WEIGHTS)


def two_column_curvature(loss: GLMLoss, shift: float, scale: float) -> NDArray[np.float64]:
    """H: `E phi''(shift + scale x) (1, x) (1, x)^T` for x standard normal, (2, 2)."""
    found = local(loss, shift, scale)
    weights = WEIGHTS if found is None else found.curvature * WEIGHTS
    first, second, third = (float(np.sum(weights * NORMAL**k)) for k in range(3))
    return np.asarray([[first, second], [second, third]])
