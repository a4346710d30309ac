"""Where a descent ends if its releases are read once more: a shrunk Newton step from the mean of all its points.

The gradients of T steps were released with independent noise, so their plain mean has the noise s of one gradient that
had the whole budget, whatever T is; an average of the last iterates has forgotten most of them. For a nearly quadratic
loss of known curvature A the mean gradient at the mean point shows the optimum, through noise s / A. A descent of few
steps is early, a Newton step is noisy: half of each was better than either. Where one class is rare the logistic loss
is flatter than at 0, and the share of the Newton step falls with its curvature. Utility only.

Source:
    Ours.
"""

import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from privopt.planning.coordinates import RowSpectrum
from privopt.planning.logistic_curvature import logistic_curvature

LEAST_SIGNAL = 0.05  # of h / (h + f)
SHARE = 0.5  # of the Newton step in the result, where the loss is as curved as it can be


def newton_share(rows: RowSpectrum, point: Float[Array, " d"] | NDArray[np.float64], *, fades: bool) -> float:
    """`2 sigma'(m)`, m the mean prediction at the point by the column of ones; 1/2 if the curvature does not fade."""
    if not fades:
        return SHARE
    mean = float(rows.mean_prediction(rows.constant) @ (rows.axes.T @ np.asarray(point)))
    return 4.0 * SHARE * float(logistic_curvature(mean))


def newton_end(
    rows: RowSpectrum,
    point: Float[Array, " d"] | NDArray[np.float64],
    gradient: Float[Array, " d"] | NDArray[np.float64],
    *,
    start: Float[Array, " d"] | NDArray[np.float64],
    curvature: float,
    ridge: float,
    noise: float,
) -> NDArray[np.float64]:
    """`x0 + U (A + s)^-1 (A U^T (u - x0) - U^T y)`, `A_j = (c h_j + lam u_j) / (h_j + f)`.

    Args:
        rows: the spectrum that the coordinates follow from.
        point: u, the plain mean of the points.
        gradient: y, the plain mean of the released gradients, the penalty's included.
        start: x0, which the step is shrunk towards.
        curvature: c, of the loss by its prediction.
        ridge: lam, the strength of the ridge in the data's own coordinates; u_j of it meets axis j.
        noise: s, standard deviation of every entry of the mean gradient.
    """
    bend = curvature * np.maximum(rows.damping, LEAST_SIGNAL) + rows.ridge(ridge)
    first = np.asarray(start)
    shown = bend * (rows.axes.T @ (np.asarray(point) - first)) - rows.axes.T @ np.asarray(gradient)
    return first + rows.axes @ (shown / (bend + noise))
