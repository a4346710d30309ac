"""Typed amounts: an epsilon is not a rho, and neither is a noise multiplier.

Each is a float that was checked when it was made. A `Budget` is the pair the user states.
"""

import math
from dataclasses import dataclass

from privopt.public import real


class Epsilon(float):
    """A privacy loss bound, positive; infinity means that privacy is switched off."""

    def __new__(cls, value: float) -> "Epsilon":
        value = real("epsilon", value)
        if not value > 0:
            raise ValueError(
                f"epsilon must be positive, got {value!r}: 1 is a common choice, smaller is more private, "
                "math.inf switches privacy off."
            )
        return super().__new__(cls, value)


class Delta(float):
    """A probability that the epsilon bound fails, at least 0 and below 1."""

    def __new__(cls, value: float) -> "Delta":
        value = real("delta", value)
        if not 0 <= value < 1:
            raise ValueError(
                f"delta must be at least 0 and below 1, got {value!r}: choose it well below 1 / n, such as 1 / n**2."
            )
        return super().__new__(cls, value)


class Rho(float):
    """An amount of zero-concentrated differential privacy, positive."""

    def __new__(cls, value: float) -> "Rho":
        value = float(value)
        if not value > 0:
            raise ValueError(
                f"rho must be positive, got {value!r}: a release that is free costs no rho at all."
            )
        return super().__new__(cls, value)


class NoiseMultiplier(float):
    """Noise scale over the sensitivity under the declared relation, positive and finite."""

    def __new__(cls, value: float) -> "NoiseMultiplier":
        value = float(value)
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(
                f"noise_multiplier must be positive and finite, got {value!r}: it is the noise's standard deviation "
                "(or scale) divided by the sensitivity."
            )
        return super().__new__(cls, value)


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
        object.__setattr__(self, "epsilon", float(Epsilon(self.epsilon)))
        object.__setattr__(self, "delta", float(Delta(self.delta)))

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
