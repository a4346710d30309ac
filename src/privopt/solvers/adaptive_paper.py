"""Adaptive noisy gradient descent as it was published, with its price corrected: for comparisons.

With n units, p parameters, rho the whole budget, D = factor L0 / n and failure probability beta:

    l = ln(max(n sqrt(rho) / beta, e)),   sigma_N = L0 / (sqrt(n) rho^(1/4)),   c_N = D^2 / (2 sigma_N^2)
    repeat: stop if less than 2 c_N is left
        N = |grad F(w)| + noise of standard deviation sigma_N                       costs c_N
        s = max(N, 0) / sqrt(p l), at least D / sqrt(2 rho_left): then it is the last step
        w <- w - eta (grad F(w) + noise of standard deviation s)                    costs D^2 / (2 s^2)

Differs from the paper:
    Each gradient is charged by the noise it gets; the paper charges by N^2 where the noise was raised to a floor, so
    that a negative N is nearly free. Both releases of a step are paid for before they are made, and the paper's last
    release of the norm not at all. D has the factor of the relation. The noise of the scalar N is one number.
Source:
    Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 3.
"""

import math
from dataclasses import dataclass

from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.mechanisms.additive import Gaussian
from privopt.queries.gradient import ClippedGradient, GradientNorm


@dataclass(frozen=True, kw_only=True)
class PaperNoise:
    """The noise multipliers of the published method.

    Attributes:
        rho: the whole budget.
        norm_multiplier: of each release of the norm, sigma_N / D.
        per_norm: the noise multiplier of a gradient for each unit of N, 1 / (D sqrt(p l)).
    """

    rho: float
    norm_multiplier: float
    per_norm: float

    @classmethod
    def of(
        cls, *, n: int, rho: float, clip: float, sensitivity: float, parameters: int, failure: float
    ) -> "PaperNoise":
        """From public numbers; `sensitivity` is D and `failure` beta."""
        log = math.log(max(n * math.sqrt(rho) / failure, math.e))
        spread = clip / (math.sqrt(n) * rho**0.25)
        return cls(
            rho=rho,
            norm_multiplier=spread / sensitivity,
            per_norm=1.0 / (sensitivity * math.sqrt(parameters * log)),
        )

    @property
    def norm_cost(self) -> float:
        """c_N."""
        return 0.5 / self.norm_multiplier**2

    def stops(self, left: float) -> bool:
        """Whether what is left pays for no more than a norm and a gradient as noisy as that."""
        return left < 2.0 * self.norm_cost

    def gradient(
        self, curator: Curator, at_point: ClippedGradient, left: float
    ) -> tuple[Array, float, float, bool]:
        """One step's two releases.

        Returns:
            The noisy gradient, the noisy norm, what is left, and whether this was the last step.
        """
        at_norm = GradientNorm(
            loss=at_point.loss, at=at_point.at, clip=at_point.clip, balanced=at_point.balanced
        )
        norm = float(curator.release(at_norm, Gaussian(self.norm_multiplier)))
        left -= self.norm_cost
        least = 1.0 / math.sqrt(2.0 * left)
        multiplier = max(norm, 0.0) * self.per_norm
        last = multiplier <= least
        multiplier = least if last else multiplier
        gradient = curator.release(at_point, Gaussian(multiplier))
        return gradient, norm, (0.0 if last else left - 0.5 / multiplier**2), last
