"""Public arithmetic of online-to-nonconvex conversion: whole blocks, lengths of steps, places of the gradients.

Source: Kornowski, Liu, Talwar 2024, section 2.2 and Algorithm 2; Cutkosky, Mehta, Orabona 2023.
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Places = Literal["middle", "uniform"]
Vector = NDArray[np.float64]


def whole_blocks(steps: int, window: int) -> tuple[int, int]:
    """(T, M): the window cut to the steps, and the steps cut to a multiple of the window."""
    window = max(1, min(window, steps))
    return window * (steps // window), window


def step_length(reach: float, window: int) -> float:
    """D = 2 reach / (M + 1): with no longer steps the points of a block of M lie within `reach` of their mean."""
    return 2.0 * reach / (window + 1)


def block_reach(radius: float, window: int, places: Places = "uniform") -> float:
    """How far the points of a block of M lie from their mean, at most, with steps no longer than D.

    Points k steps apart are at most k D apart in the middle of steps, (k + 1) D anywhere on them; averaged over the
    block that is D (M - 1) / 2 or less than D (M + 1) / 2.
    """
    return radius * (window - 1 if places == "middle" else window + 1) / 2.0


def places_of(places: Places, steps: int, seed: int | None = None) -> Vector:
    """s_t, where on its step each gradient is taken: in the middle, or uniformly on it by a public seed.

    Raises:
        ValueError: uniform places without a seed.
    """
    if places == "middle":
        return np.full(steps, 0.5)
    if seed is None:
        raise ValueError("uniform places on the steps are drawn by a public seed: give one.")
    return np.random.default_rng(seed).uniform(size=steps)


def longest_move(radii: ArrayLike, places: Places = "uniform") -> float:
    """The furthest that two points in a row can be apart, whatever the places: D (middle) or 2 D, for D the longest."""
    longest = float(np.max(np.asarray(radii, np.float64), initial=0.0))
    return longest if places == "middle" else 2.0 * longest
