"""How curved the logistic loss is at a prediction."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

LARGEST_PREDICTION = 50.0


def logistic_curvature(predictions: ArrayLike) -> NDArray[np.float64]:
    """sigma'(t) = 1 / (4 cosh^2(t / 2)), of the predictions' shape; beyond +-50 as there."""
    held = np.clip(np.asarray(predictions, np.float64), -LARGEST_PREDICTION, LARGEST_PREDICTION)
    return np.asarray(0.25 / np.cosh(0.5 * held) ** 2, np.float64)
