"""Noisy exponentiated gradient for games: dual averaging whose gradients are released with Gaussian noise."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from privopt.games.dual_averaging import DualAveraging
from privopt.games.moves import Move, Noised
from privopt.problems.saddle import Who


@dataclass(frozen=True, kw_only=True)
class NoisyExponentiatedGradient(DualAveraging):
    """`SampledDualAveraging` with both players noised: they play the dense softmax of noisy average gradients.

    A baseline, and the better choice for few vertices: the noise in a gradient is proportional to the l2 norm of a
    unit's, which grows with the root of the number of vertices.

    Attributes:
        x, y: how each player moves; a clip below the longest possible gradient reads the records in each round.
    Guarantee:
        Gaussian releases, for any records and payoffs; exactly priced.
    Source:
        Kivinen, Warmuth 1997 (exponentiated gradient); Bassily, Guzman, Menart 2023 (with noise, for saddle points).
    """

    name: ClassVar[str] = "noisy-exponentiated-gradient"

    x: Noised = field(default_factory=Noised)
    y: Noised = field(default_factory=Noised)

    def moves(self) -> Mapping[Who, Move]:
        """See `x` and `y`."""
        return {"x": self.x, "y": self.y}
