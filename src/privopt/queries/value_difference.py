"""The change of a smoothed loss's gradient between two points, from values alone, with a sensitivity by distance."""

import math
from dataclasses import field

import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.problems.losses import Loss
from privopt.public import Public
from privopt.queries.base import Scalar, query, static
from privopt.queries.gradient_difference import by_distance
from privopt.queries.value_gradient import along, around, clip_blocks, differences
from privopt.queries.values import ValueSum


@query
class ValueDifference(ValueSum):
    """Mean over units of the difference of two value gradients along the same directions, clipped by distance.

    Attributes:
        loss: any loss; its values are all that is asked for.
        at: public point.
        anchor: public point of the same shape.
        directions: (J k, p), public: J blocks of k orthonormal rows, the same at both points. With others the
            difference would be as long as a gradient, however near the points are.
        smoothing: r, see `ValueGradient`.
        slope_clip: H; one unit's difference from one block is at most H |at - anchor| long.
        blocks: J.
    Privacy:
        As for `ValueGradient` with the clip H |at - anchor|, a public number: l2 sensitivity
        factor * H |at - anchor| / (sqrt(J) N). Equal points give radius 0 and the value 0 exactly.
        Of an L-Lipschitz loss |c_j(at) - c_j(anchor)| <= L |at - anchor| / r along each direction, so that
        H = (p / sqrt(k)) L / r changes nothing: utility only.
    Source:
        Kornowski, Liu, Talwar 2024, Algorithm 3 (lines 10 to 13) and Lemma 3.4; the clip makes the bound hold always.
    """

    loss: Loss = static()
    at: Float[Array, " *shape"]
    anchor: Float[Array, " *shape"]
    directions: Float[Array, "rows p"]
    smoothing: Scalar
    slope_clip: Scalar
    blocks: int = field(default=1, metadata={"static": True})

    def block_clip(self) -> Scalar:
        """H times the distance; 0 for equal points, also where H is infinite."""
        return by_distance(self.at, self.anchor, self.slope_clip)

    def radius(self) -> Scalar:
        """H |at - anchor| / sqrt(J)."""
        return self.block_clip() / math.sqrt(self.blocks)

    def shape(self, public: Public) -> tuple[int, ...]:
        """A number a direction."""
        del public
        return (int(jnp.shape(self.directions)[0]),)

    def points(self) -> Float[Array, "m p"]:
        """Those of the two-point differences around `at`, then those around `anchor`."""
        here = around(self.at, self.directions, self.smoothing)
        return jnp.concatenate([here, around(self.anchor, self.directions, self.smoothing)])

    def of_values(self, private_values: Float[Array, " m"]) -> Array:
        """The differences at the one point minus those at the other, times p / k over the number of blocks."""
        rows, size = jnp.shape(self.directions)
        half = private_values.shape[0] // 2
        private_here = differences(private_values[:half], self.smoothing)
        private_there = differences(private_values[half:], self.smoothing)
        return (private_here - private_there) * (size / rows)

    def clip_unit(self, private_vector: Array) -> Array:
        """Every block in its ball."""
        return clip_blocks(private_vector, self.block_clip(), self.blocks)

    def gradient(self, released: Float[Array, " rows"]) -> Float[Array, " *shape"]:
        """The change in parameters, from what was released. Post-processing."""
        return along(self.directions, released, jnp.shape(self.at))
