"""The norm of the gradient, followed from noisy gradients that are released anyway: it costs nothing more.

With g_t = grad F(w_t) + noise of standard deviation s_t a coordinate, p coordinates and a window W,

    m <- b m + (1 - b) g_t,   v <- b^2 v + (1 - b)^2 s_t^2,   b = 1 - 1 / min(t + 1, W)
    N^2 <- |m|^2 - p v, at most a factor 1 -+ 1/W from the N before, within [floor, cap]

`|m|^2 - p v` is an unbiased estimate of the squared norm of the averaged gradient. Averaging vectors before squaring
divides its error by W, squaring first only by sqrt(W). The slow change makes N, and so the noise, a smooth schedule.

Source:
    Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 3, whose separate releases of the norm this replaces.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


class NormTracker(NamedTuple):
    """Where the estimate stands; all of it is a function of released values."""

    mean: Vector  # m, an average of released gradients
    variance: float  # v, of the noise of one coordinate of m
    norm: float  # N
    gradients: int  # how many gradients were averaged

    @classmethod
    def of_first(cls, gradient: Vector, scale: float, cap: float) -> "NormTracker":
        """From the first gradient; at least half the norm of its noise, since below that nothing can be told."""
        square, noise = float(np.vdot(gradient, gradient)), gradient.size * scale**2
        return cls(gradient, scale**2, min(cap, math.sqrt(max(square - noise, 0.25 * noise))), 1)

    def updated(
        self,
        gradient: Vector,
        scale: float,
        *,
        window: int,
        floor: float,
        cap: float,
        flow: Callable[[Vector], Vector] | None = None,
    ) -> "NormTracker":
        """After one more gradient.

        Args:
            gradient: the released gradient, that of a smooth penalty included.
            scale: the standard deviation of its noise.
            window: W.
            floor: least N.
            cap: largest N; it wins over the floor.
            flow: from a gradient to the step that a penalty or a constraint set lets through, over the step size; None
                if that is the gradient. Its coordinates that are exactly 0 carry no noise.
        """
        gradients = self.gradients + 1
        keep = 1.0 - 1.0 / min(gradients, window)
        mean = keep * self.mean + (1.0 - keep) * gradient
        variance = keep**2 * self.variance + (1.0 - keep) ** 2 * scale**2
        moved = mean if flow is None else flow(mean)
        free = mean.size if flow is None else int(np.count_nonzero(moved))
        square = float(np.vdot(moved, moved)) - free * variance
        slowest, fastest = self.norm * (1.0 - 1.0 / window), self.norm * (1.0 + 1.0 / window)
        norm = math.sqrt(min(max(square, slowest**2), fastest**2))
        return NormTracker(mean, variance, min(max(norm, floor), cap), gradients)
