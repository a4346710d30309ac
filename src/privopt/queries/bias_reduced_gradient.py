"""A player's gradient at one drawn vertex, corrected by a scaled difference of gradients at averages of more."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.problems.saddle import Game, Who
from privopt.public import Public
from privopt.queries.base import RecordSum, Scalar, query, static
from privopt.queries.player_gradient import centred_clip


@query
class BiasReducedGradient(RecordSum):
    """Mean over units of `gain clip(g(plus) - mean g(minus), C) + clip(g(one), L)`, g a player's vertex gradient.

    Attributes:
        game: the payoff of a record, and both players' sets.
        who: whose gradient, "x" of f or "y" of -f.
        x: public strategies of x in coordinates, a point a row: plus, one, and one or more that are minus.
        y: those of y, likewise.
        gain: C_M 2^N, at least 0.
        difference_clip: C, the largest half-range of a difference.
        half_range: L, that of the gradient at one.
    Privacy:
        Sensitivity in the range. Points, gain and clips are public. A unit's difference and its gradient are each
        centred and clipped entry by entry, see `centred_clip`; one that is not finite counts as zero, for itself. A
        sum of a vector in [-C, C] times the gain and of one in [-L, L] has range at most 2 (gain C + L), `radius`, and
        the mean moves by a vector of range at most factor 2 (gain C + L) / N. No smoothness enters. The paper's bound
        4 + 2^-N for gain 2^N, C = 2 and L = 1 leaves out a factor of the last term and C_M: up to 8.5 for M = 3 occurs.
    Source:
        Gonzalez, Guzman, Paquette 2024, Algorithm 2 (one minus: the average of the first half); Blanchet, Glynn 2015
        (both halves).
    """

    norm: ClassVar[str] = "range"

    game: Game = static()
    who: Who = static()
    x: Float[Array, "points p"]
    y: Float[Array, "points q"]
    gain: Scalar
    difference_clip: Scalar
    half_range: Scalar

    def radius(self) -> Scalar:
        """2 (gain C + L), in range."""
        gain, clip = jnp.asarray(self.gain, float), jnp.asarray(self.difference_clip, float)
        return 2.0 * (gain * clip + jnp.asarray(self.half_range, float))

    def shape(self, public: Public) -> tuple[int, ...]:
        """One entry a vertex."""
        del public
        return (self.game.players[self.who].vertices.count,)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """One record's difference, and its gradient at one, along the vertices."""

        def slope(x: Array, y: Array) -> Array:
            return self.game.vertex_slope(self.who, x, y, private_features, private_target)

        private_slopes = jax.vmap(slope)(jnp.asarray(self.x), jnp.asarray(self.y))
        return jnp.stack([private_slopes[0] - jnp.mean(private_slopes[2:], axis=0), private_slopes[1]])

    def without_bad(self, private_vector: Array) -> Array:
        """Each of the two that is not finite as zero."""
        return jax.vmap(super().without_bad)(private_vector)

    def clip_unit(self, private_vector: Array) -> Array:
        """Both parts centred and clipped, and added."""
        scale = self.game.clip == "scale"
        private_difference = centred_clip(private_vector[0], self.difference_clip, scale=scale)
        return self.gain * private_difference + centred_clip(private_vector[1], self.half_range, scale=scale)
