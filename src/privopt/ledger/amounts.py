"""The guarantee that a user asks for, and amounts in words."""

import math
from dataclasses import dataclass

from privopt.public import real


@dataclass(frozen=True)
class Budget:
    """The guarantee a user asks for: (epsilon, delta)-differential privacy.

    Attributes:
        epsilon: positive; infinity switches privacy off.
        delta: at least 0 and below 1; 0 only where every release has pure differential privacy.
    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        epsilon, delta = real("epsilon", self.epsilon), real("delta", self.delta)
        if not epsilon > 0:
            raise ValueError(
                f"epsilon must be positive, got {epsilon!r}: 1 is a common choice, smaller is more private, "
                "math.inf switches privacy off."
            )
        if not 0 <= delta < 1:
            raise ValueError(
                f"delta must be at least 0 and below 1, got {delta!r}: choose it well below 1 / n, such as 1 / n**2."
            )
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", delta)

    @property
    def is_private(self) -> bool:
        """Whether epsilon is finite."""
        return math.isfinite(self.epsilon)

    def __str__(self) -> str:
        if not self.is_private:
            return "epsilon = infinity (not private)"
        return f"epsilon = {self.epsilon:g}" + (f", delta = {self.delta:g}" if self.delta else ", delta = 0")


def rounded_down(value: float, digits: int = 3) -> float:
    """A positive number with so many significant digits, never more than it; what a ledger tolerates is not lost."""
    if not 0 < value < math.inf:
        return value
    scale = 10.0 ** (digits - 1 - math.floor(math.log10(value)))
    return math.floor(value * scale * (1 + 1e-10)) / scale


def or_nan(rho: float | None) -> float:
    """A cost in rho as a number: NaN where there is none."""
    return math.nan if rho is None else rho
