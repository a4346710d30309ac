"""The flattest of the points of a run, picked by what was released."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Array

WINDOW = 10  # released gradients that are averaged before their norm is looked at


def flattest(points: Sequence[Array], slopes: Sequence[Array]) -> Array:
    """The middle point of the window over which the mean of the released slopes is smallest. Post-processing.

    Args:
        points: where the slopes were taken.
        slopes: released gradients, that of a smooth penalty included.
    """
    width = min(WINDOW, len(points))
    stacked = np.stack([np.asarray(slope, np.float64).ravel() for slope in slopes])
    sums = np.concatenate([np.zeros((1, stacked.shape[1])), np.cumsum(stacked, axis=0)])
    norms = np.linalg.norm(sums[width:] - sums[:-width], axis=1)
    start = int(np.argmin(np.where(np.isfinite(norms), norms, np.inf)))
    return points[start + width // 2]
