"""What adaptive gradient descent can be expected to reach, from public constants.

With exact norms, noise of a / sqrt(d_eff) times the norm in each coordinate and step size 1 / (L (1 + a^2)), a step
gains |grad F|^2 / (2 L (1 + a^2)) and costs rho = factor^2 L0^2 d_eff / (2 n^2 a^2 |grad F|^2). Integrating one over
the other, with q = factor^2 (1 + 1 / a^2) L0^2 L d_eff / (n^2 rho):

    (gamma, kappa)-KL, kappa < 4:   excess about [q gamma^4 kappa / (4 - kappa)]^(kappa / (4 - kappa))
    any smooth objective:           least |grad F| at most [q gap]^(1/4),
                                    or sqrt(2 L (1 + a^2) gap / T) where the steps run out first

Differs from the paper:
    Its theorem adds the noise of separate norm releases, which dominates for almost all n; here there is none, and the
    trace ratio d_eff of a record's Hessian stands in place of the dimension.
Source:
    Menart, Ullah, Arora, Bassily, Guzman 2023, Theorems 4 and 5, with constants worked out.
"""

import math
from dataclasses import dataclass

from privopt.problems.growth import KL


@dataclass(frozen=True, kw_only=True)
class AdaptiveDescentFacts:
    """What the formulas of this module need.

    Attributes:
        factor: 2 for replace-one, 1 for add-or-remove-one.
        n: units.
        rho: the whole budget.
        clip: L0.
        curvature: L, the penalty included.
        trace_ratio: d_eff.
        noise_to_norm: a, the norm of the noise over that of the gradient, directions of no curvature left out.
    """

    factor: int
    n: int
    rho: float
    clip: float
    curvature: float
    trace_ratio: float
    noise_to_norm: float

    def excess(self, growth: KL) -> float:
        """The excess of the last iterate under the KL condition; at most that of the start."""
        kappa = growth.kappa
        if kappa >= 4.0:
            raise ValueError(f"kappa must be below 4, got {kappa!r}: otherwise the budget never runs out.")
        square = self.noise_to_norm**2
        reached = self.factor**2 * kappa / (4.0 - kappa) * (1.0 + square) / square * growth.gamma**4
        reached *= self._per_budget
        return min(reached ** (kappa / (4.0 - kappa)), growth.gap_within(self.clip))

    def stationarity(self, gap: float, steps: int) -> float:
        """The least gradient norm of an iterate, from a bound on the excess of the start."""
        square = self.noise_to_norm**2
        by_budget = (self.factor**2 * (1.0 + 1.0 / square) * gap * self._per_budget) ** 0.25
        return max(by_budget, math.sqrt(2.0 * self.curvature * (1.0 + square) * gap / steps))

    @property
    def _per_budget(self) -> float:
        """L0^2 L d_eff / (n^2 rho)."""
        return self.clip**2 * self.curvature * self.trace_ratio / (self.n**2 * self.rho)
