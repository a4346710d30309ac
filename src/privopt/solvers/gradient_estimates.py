"""The queries of variance-reduced methods: a gradient at a point, and its change between two points."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.curator.base import Curator
from privopt.planning.gradient_changes import Estimate, directions
from privopt.problems.ball import haar_block
from privopt.queries.base import MeanQuery
from privopt.queries.gradient import ClippedGradient
from privopt.queries.gradient_difference import ClippedGradientDifference
from privopt.queries.placed_values import PlacedValueDifference, PlacedValueGradient
from privopt.queries.smoothed_difference import LuneDifference, SmoothedDifference, TranslatedDifference
from privopt.queries.smoothed_gradient import JitteredGradient, SmoothedGradient
from privopt.queries.value_difference import ValueDifference
from privopt.queries.value_gradient import ValueGradient

if TYPE_CHECKING:
    from privopt.papers.single_pass_o2nc import SinglePassO2NC
    from privopt.papers.variance_reduced_o2nc import VarianceReducedO2NC


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
        placed: whether estimates from values are released in parameters, not along the directions.
    """

    kind: Estimate
    loss: Any
    smoothing: float
    clip: float
    slope_clip: float
    draws: int
    key: Array | None = None
    placed: bool = False

    @classmethod
    def of(
        cls, solver: "SinglePassO2NC | VarianceReducedO2NC", loss: Any, curator: Curator, *, placed: bool
    ) -> "Estimates":
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
            placed=placed,
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
            case "values":
                return (PlacedValueGradient if self.placed else ValueGradient)(
                    loss=self.loss,
                    at=at,
                    directions=self._directions(at.size, turn),
                    smoothing=self.smoothing,
                    clip=self.clip,
                )

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
            case "values":
                distance = float(jnp.sqrt(jnp.sum((at - before) ** 2)))
                slope = min(self.slope_clip, 2.0 * self.clip / distance) if distance > 0 else self.slope_clip
                return (PlacedValueDifference if self.placed else ValueDifference)(
                    **places,
                    directions=self._directions(at.size, turn),
                    smoothing=self.smoothing,
                    slope_clip=slope,
                )

    def read(self, query: MeanQuery, released: Array) -> Float[Array, " *shape"]:
        """The gradient, or its change, from what was released."""
        if isinstance(query, ValueGradient | ValueDifference) and not self.placed:
            return query.gradient(released)
        return released

    def _directions(self, parameters: int, turn: int) -> Float[Array, "k p"]:
        """The public orthonormal rows of step `turn`, the same at both points of a change."""
        assert self.key is not None
        return haar_block(jax.random.fold_in(self.key, turn), directions(parameters), parameters)
