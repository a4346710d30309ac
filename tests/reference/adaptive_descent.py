"""Adaptive noisy gradient descent: each step's noise follows the gradient norm that the noisy gradients show.

Gradients are released with standard deviation s_t = max(a_0 N_t, s_full), D = factor L_0 / n their sensitivity, rho the
whole budget, s_full = D / sqrt(2 rho). With b_t = 1 - 1 / min(t + 1, W),

    m <- b m + (1 - b) g,   v <- b^2 v + (1 - b)^2 s^2,   N^2 <- |m|^2 - d v, within a factor 1 -+ 1 / W of N

so N estimates the norm of the averaged gradient for free. The last step takes exactly what is left.

Source:
    Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 3, whose separate norm releases this replaces; the filter is
    Smith, Thakurta 2022.
"""

import math
from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array

from privopt.door import Door
from privopt.mechanisms.gaussian import Gaussian
from privopt.problems.glm import GLMLoss
from privopt.queries.gradient import ClippedGradient
from privopt.result import Result, Status


@dataclass(frozen=True, kw_only=True)
class AdaptiveDescent:
    """The solver of this file; it runs under a Gaussian filter, whose cap is its budget.

    Attributes:
        loss: a generalised-linear loss.
        clip: L_0.
        step_size: eta.
        most_steps: T_max.
        ratio: a_0.
        window: W.
        probe: share of the budget for the first gradient.
    Guarantee:
        That of the filter, for any data: how much noise the next release gets is chosen from releases, and a release
        that does not fit is refused.
    """

    loss: GLMLoss
    clip: float
    step_size: float
    most_steps: int
    ratio: float
    window: int
    probe: float = 0.02

    def solve(self, door: Door, start: Array) -> Result:
        w, d = start, start.size
        sensitivity = door.public.relation.factor * self.clip / door.public.n
        budget = door.ledger.remaining
        full = sensitivity / math.sqrt(2.0 * budget)

        def gradient(at: Array, scale: float) -> Array:
            mechanism = Gaussian(scale / sensitivity)
            return door.release(ClippedGradient(loss=self.loss, at=at, clip=self.clip), mechanism)

        scale = full / math.sqrt(self.probe)
        mean = gradient(w, scale)
        variance = scale**2
        norm = min(self.clip, math.sqrt(max(float(mean @ mean) - d * variance, d * variance / 4.0)))
        w = w - self.step_size * mean
        for t in range(1, self.most_steps):
            scale = max(self.ratio * norm, full)
            last = not door.affords(Gaussian(scale / sensitivity))
            if last:
                left = door.ledger.remaining
                if left <= 0.0 or sensitivity / math.sqrt(2.0 * left) > 2.0 * scale:
                    return Result(w, Status.BUDGET_SPENT, door.transcript)
                scale = sensitivity / math.sqrt(2.0 * left)  # the remainder, in one noisier step
            released = gradient(w, scale)
            keep = 1.0 - 1.0 / min(t + 1, self.window)
            mean = keep * mean + (1.0 - keep) * released
            variance = keep**2 * variance + (1.0 - keep) ** 2 * scale**2
            slowest, fastest = norm * (1.0 - 1.0 / self.window), norm * (1.0 + 1.0 / self.window)
            square = float(mean @ mean) - d * variance
            norm = math.sqrt(min(max(square, slowest**2), fastest**2))
            norm = min(max(norm, 0.3 * full), self.clip)
            w = w - self.step_size * released
            if last:
                return Result(w, Status.BUDGET_SPENT, door.transcript)
        return Result(jnp.asarray(w), Status.FINISHED, door.transcript)
