"""The queries of variance-reduced methods: a gradient at a point, and its change between two points."""

from dataclasses import dataclass
from typing import Any

from jaxtyping import Array, Float

from privopt.planning.gradient_changes import Estimate
from privopt.queries.base import MeanQuery


@dataclass(frozen=True, kw_only=True)
class Estimates:
    """What to ask for; see `planning.gradient_changes`.

    Attributes:
        kind: of the estimate.
        loss: of one record.
        smoothing: radius of the ball over which it is averaged.
        clip: C.
        slope_clip: H.
        draws: m, shifts of one unit.
        key: public randomness of the directions; None where there are none.
    """

    kind: Estimate
    loss: Any
    smoothing: float
    clip: float
    slope_clip: float
    draws: int
    key: Array | None = None

    def gradient(self, at: Float[Array, " *shape"], turn: int) -> MeanQuery:
        """The query of step `turn` for a gradient."""

    def change(self, at: Float[Array, " *shape"], before: Float[Array, " *shape"], turn: int) -> MeanQuery:
        """The query of step `turn` for the change of the gradient."""
