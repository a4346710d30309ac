"""Intervals of sizes by powers of two, up to a public bound."""

import math

import numpy as np
from numpy.typing import NDArray


def interval_ends(largest: float) -> NDArray[np.float64]:
    """The upper ends 1, 2, 4, ... of the intervals that reach to `largest`, the last one being `largest` itself."""
    count = max(1, math.ceil(math.log2(largest)) + 1)
    return np.minimum(2.0 ** np.arange(count), largest)
