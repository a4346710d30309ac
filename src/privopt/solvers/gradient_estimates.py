"""The queries of variance-reduced methods: a gradient at a point, and its change between two points."""

from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Array, Float

from privopt.curator.base import Curator
from privopt.planning.gradient_changes import Estimate
from privopt.queries.base import MeanQuery
from privopt.queries.gradient import ClippedGradient
from privopt.queries.gradient_difference import ClippedGradientDifference
from privopt.queries.smoothed_difference import LuneDifference, SmoothedDifference, TranslatedDifference
from privopt.queries.smoothed_gradient import JitteredGradient, SmoothedGradient


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

    @classmethod
    def of(cls, solver: Any, loss: Any, curator: Curator) -> "Estimates":
        """Those of a configured solver; the curator draws what is random and public."""
        key = None
        if solver.estimate == "values":
            key = jax.random.key(curator.public_seed("directions"))
        return cls(
            kind=solver.estimate,
            loss=loss,
            smoothing=solver.smoothing,
            clip=solver.clip,
            slope_clip=solver.slope_clip,
            draws=solver.draws,
            key=key,
        )

    def gradient(self, at: Float[Array, " *shape"], turn: int) -> MeanQuery:
        """The query of step `turn` for the gradient."""
        match self.kind:
            case "plain":
                return ClippedGradient(loss=self.loss, at=at, clip=self.clip)
            case "exact":
                return SmoothedGradient(loss=self.loss, at=at, smoothing=self.smoothing, clip=self.clip)
            case "lune" | "translate":
                return JitteredGradient(loss=self.loss, at=at, smoothing=self.smoothing, clip=self.clip)
            case _:
                raise NotImplementedError(turn)

    def change(self, at: Float[Array, " *shape"], before: Float[Array, " *shape"], turn: int) -> MeanQuery:
        """The query of step `turn` for how the gradient changes from `before` to `at`."""
        places: dict[str, Any] = {"loss": self.loss, "at": at, "anchor": before}
        match self.kind:
            case "plain":
                return ClippedGradientDifference(
                    **places, slope_clip=self.slope_clip, gradient_clip=self.clip
                )
            case "exact":
                return SmoothedDifference(
                    **places, smoothing=self.smoothing, clip=self.clip, slope_clip=self.slope_clip
                )
            case "lune":
                return LuneDifference(**places, smoothing=self.smoothing, clip=self.clip)
            case "translate":
                return TranslatedDifference(
                    **places,
                    smoothing=self.smoothing,
                    clip=self.clip,
                    slope_clip=self.slope_clip,
                    draws=self.draws,
                )
            case _:
                raise NotImplementedError(turn)

    def read(self, query: MeanQuery, released: Array) -> Float[Array, " *shape"]:
        """The gradient, or its change, that was released."""
        del query
        return released
