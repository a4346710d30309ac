"""Who takes part in a release: public descriptions. The units themselves are drawn by the curator."""

import math
from dataclasses import dataclass
from typing import ClassVar

from privopt.ledger.events import Event, SampledEvent


@dataclass(frozen=True)
class EveryUnit:
    """Every unit takes part."""

    kind: ClassVar[str] = "every"
    rate: ClassVar[float] = 1.0

    def event(self, event: Event) -> Event:
        """The event itself: nothing is amplified."""
        return event


@dataclass(frozen=True)
class Poisson:
    """Each unit takes part independently with probability `rate`; sums are divided by rate * n."""

    rate: float
    kind: ClassVar[str] = "poisson"

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"the sampling rate must be in (0, 1], got {self.rate!r}.")

    def event(self, event: Event) -> Event:
        """The sampled event; a rate of 1 is everybody."""
        return event if self.rate == 1 else SampledEvent(self, event)


@dataclass(frozen=True)
class FixedSize:
    """`batch` of the n units take part, drawn uniformly without replacement (replace-one only)."""

    batch: int
    n: int
    kind: ClassVar[str] = "fixed-size"

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= self.n:
            raise ValueError(f"the batch must be between 1 and n = {self.n} units, got {self.batch!r}.")

    @property
    def rate(self) -> float:
        """The fraction of units in a batch."""
        return self.batch / self.n

    def event(self, event: Event) -> Event:
        """The sampled event; a batch of n is everybody."""
        return event if self.batch == self.n else SampledEvent(self, event)


Sampling = EveryUnit | Poisson | FixedSize


def expected_units(sampling: Sampling, n: int) -> float:
    """The public number that a sampled sum is divided by.

    Args:
        sampling: who takes part.
        n: the public number of units.
    """
    return n * sampling.rate if math.isfinite(sampling.rate) else float(n)
