"""How fast an objective grows away from its minimum: the Kurdyka-Lojasiewicz (KL) condition and its relatives.

F satisfies the (gamma, kappa)-KL condition on a set if `F(w) - F* <= (gamma |grad F(w)|)^kappa` there. kappa = 2 is the
Polyak-Lojasiewicz condition with constant 1 / (2 gamma^2); convexity is not needed. A loss with kappa > 2 cannot be
smooth near its minimum.

Source:
    Menart, Ullah, Arora, Bassily, Guzman 2023, section 2 and Lemma 6.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class KL:
    """The (gamma, kappa)-KL condition on the region where a run stays. Utility only: no guarantee rests on it.

    Attributes:
        gamma: in units objective^(1/kappa) / gradient, positive.
        kappa: the exponent, at least 1.
        gap: a public bound on the excess of the start, `F(w_0) - F*`; infinite if not known.
    Raises:
        ValueError: a constant is out of its range.
    """

    gamma: float
    kappa: float
    gap: float = math.inf

    def __post_init__(self) -> None:
        if not (self.gamma > 0 and math.isfinite(self.gamma)):
            raise ValueError(
                f"gamma must be positive and finite, got {self.gamma!r}: excess <= (gamma |gradient|)^kappa."
            )
        if not (self.kappa >= 1 and math.isfinite(self.kappa)):
            raise ValueError(
                f"kappa must be at least 1 and finite, got {self.kappa!r}: 2 is Polyak-Lojasiewicz."
            )
        if not self.gap > 0:
            raise ValueError(f"gap must be positive, got {self.gap!r}: it bounds the excess of the start.")

    @classmethod
    def of_strong_convexity(cls, mu: float, gap: float = math.inf) -> "KL":
        """kappa = 2 from `|grad F|^2 >= 2 mu (F - F*)`, which mu-strong convexity implies."""
        if not mu > 0:
            raise ValueError(f"mu must be positive, got {mu!r}: |gradient|^2 >= 2 mu excess.")
        return cls(gamma=1.0 / math.sqrt(2.0 * mu), kappa=2.0, gap=gap)

    @classmethod
    def of_growth(cls, strength: float, tau: float, gap: float = math.inf) -> "KL":
        """From a convex objective with `F - F* >= strength^tau dist^tau`, tau > 1: kappa = tau / (tau - 1)."""
        if not (strength > 0 and tau > 1):
            raise ValueError(f"strength must be positive and tau above 1, got {strength!r} and {tau!r}.")
        return cls(gamma=1.0 / strength, kappa=tau / (tau - 1.0), gap=gap)

    def excess_at(self, gradient_norm: float) -> float:
        """The largest excess of a point whose gradient has this norm."""
        return (self.gamma * gradient_norm) ** self.kappa

    def gradient_at(self, excess: float) -> float:
        """The least gradient norm of a point with this excess."""
        return excess ** (1.0 / self.kappa) / self.gamma

    def gap_within(self, lipschitz: float) -> float:
        """The bound on the start's excess, or (gamma L_0)^kappa where gradients of norm L_0 prove a smaller one."""
        return min(self.gap, self.excess_at(lipschitz))

    def growth_within(self) -> tuple[float, float]:
        """(strength, tau) of the growth `F - F* >= (strength dist)^tau` that follows; kappa above 1.

        strength = (kappa - 1) / (kappa gamma) and tau = kappa / (kappa - 1): a point is no farther from a minimum than
        gradient flow goes.
        """
        if self.kappa == 1.0:
            raise ValueError(
                "kappa is 1: the minimum may be infinitely far away, so nothing grows with the distance."
            )
        return (self.kappa - 1.0) / (self.kappa * self.gamma), self.kappa / (self.kappa - 1.0)

    def least_smoothness(self, excess: float) -> float:
        """The least curvature bound that an objective of this growth can have where its excess is this.

        `|grad F|^2 <= 2 L excess` for an L-smooth objective, so 2 gamma^2 L >= excess^((2 - kappa) / kappa).
        """
        return excess ** ((2.0 - self.kappa) / self.kappa) / (2.0 * self.gamma**2)

    def path_length(self, excess: float) -> float:
        """The longest path of gradient flow from a point with this excess; infinite for kappa = 1."""
        if self.kappa == 1.0:
            return math.inf
        return self.kappa / (self.kappa - 1.0) * self.gamma * excess ** (1.0 - 1.0 / self.kappa)
