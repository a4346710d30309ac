"""A private radius that holds a given fraction of held points."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.curator.handles import Held
from privopt.ledger.events import Event, repeat
from privopt.mechanisms.additive import Gaussian
from privopt.queries.held_count import HeldCount
from privopt.solvers.held_means import louder, require_length


@dataclass(frozen=True, kw_only=True)
class NormQuantile:
    """A radius around a centre that holds about a fraction of the points, by bisection on noisy counts.

    Attributes:
        quantile: the fraction, in (0, 1).
        smallest: below this no radius is tried; positive.
        largest: nor above this.
        steps: how many counts are released; the logarithm of the radius is halved by each.
        noise: of each count.
    """

    quantile: float
    smallest: float
    largest: float
    steps: int
    noise: Gaussian

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise ValueError(f"quantile must be between 0 and 1, got {self.quantile!r}.")
        require_length("smallest", self.smallest)
        require_length("largest", self.largest)
        if not self.smallest < self.largest:
            raise ValueError(f"smallest must be below largest, got {self.smallest!r} and {self.largest!r}.")
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps!r}: each releases a count.")

    def event(self) -> Event:
        """All the counts."""
        return repeat(self.noise.event(), self.steps)

    def scaled(self, factor: float) -> "NormQuantile":
        """The same with noise `factor` times as large."""
        return replace(self, noise=louder(self.noise, factor))

    def release(self, curator: Curator, held: Held, centre: Array) -> float:
        """The radius."""
        low, high = float(np.log(self.smallest)), float(np.log(self.largest))
        for _ in range(self.steps):
            middle = (low + high) / 2.0
            count = HeldCount(
                held=held, centre=jnp.asarray(centre, jnp.float64), radius=float(np.exp(middle))
            )
            inside = float(curator.release(count, self.noise))
            low, high = (low, middle) if inside >= self.quantile * held.points else (middle, high)
        return float(np.exp((low + high) / 2.0))
