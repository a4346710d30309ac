"""The gradient of a game along one player's vertices, or in their coordinates: means over units."""

from dataclasses import field
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.problems.saddle import Game, Who
from privopt.public import Public
from privopt.queries.base import RecordSum, Scalar, query, shrunk_radius, static


@query
class PlayerGradient(RecordSum):
    """The mean over units of one player's gradient along their vertices; both players descend, on f and on -f.

    Attributes:
        game: the payoff of a record, and both players' sets.
        who: whose gradient, "x" of f or "y" of -f.
        x, y: public strategies, in coordinates.
        half_range: L; infinite only when privacy is switched off.
        negated: whether the entries are turned, so that the best vertex has the largest: for a choice of one.
    Privacy:
        Sensitivity in the *range* (largest minus smallest entry). A number added to all entries changes no draw from
        their softmax, so of each unit's vector v the midrange m = max v / 2 + min v / 2 is subtracted (each half is
        taken before the sum: no overflow), then the vector is clipped to [-L, L] entry by entry, after it was scaled
        by min(1, L / max |v|) where the game says "scale". A vector that is not finite before or after this is zero.
        What is left has range at most 2 L, `radius`; the change of a mean by one unit has range at most factor 2 L / N,
        since the range is a seminorm.
    Source:
        Gonzalez, Guzman, Paquette 2024, Algorithm 1, whose bound on gradients is enforced here.
    """

    norm: ClassVar[str] = "range"

    game: Game = static()
    who: Who = static()
    x: Float[Array, " p"]
    y: Float[Array, " q"]
    half_range: Scalar
    negated: bool = field(default=False, metadata={"static": True})

    def radius(self) -> Scalar:
        """2 L, in range."""
        return 2.0 * jnp.asarray(self.half_range, float)

    def shape(self, public: Public) -> tuple[int, ...]:
        """One entry a vertex."""
        del public
        return (self.game.players[self.who].vertices.count,)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The gradient of one record's payoff along the vertices."""
        private_slope = self.game.vertex_slope(self.who, self.x, self.y, private_features, private_target)
        return -private_slope if self.negated else private_slope

    def clip_unit(self, private_vector: Array) -> Array:
        """Centre one unit's vector and clip it into [-L, L]."""
        return centred_clip(private_vector, self.half_range, scale=self.game.clip == "scale")


@query
class PlayerSlope(RecordSum):
    """The mean over units of one player's gradient, each scaled into the l2 ball of radius `clip`.

    Attributes:
        game: the payoff of a record, and both players' sets.
        who: whose gradient, "x" of f or "y" of -f.
        x, y: public strategies, in coordinates.
        clip: C, the largest l2 norm of one unit's gradient; infinite only when privacy is switched off.
        along_vertices: whether the gradient is that by the weights on the vertices, less its mean over them, which
            moves no softmax; else it is in coordinates.
    Privacy:
        As every clipped mean: l2 sensitivity factor C / N.
    """

    game: Game = static()
    who: Who = static()
    x: Float[Array, " p"]
    y: Float[Array, " q"]
    clip: Scalar
    along_vertices: bool = field(default=False, metadata={"static": True})

    def radius(self) -> Scalar:
        """The clip."""
        return self.clip

    def shape(self, public: Public) -> tuple[int, ...]:
        """One entry a vertex, or a coordinate."""
        del public
        vertices = self.game.players[self.who].vertices
        return (vertices.count if self.along_vertices else vertices.dimension,)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The gradient of one record's payoff."""
        if not self.along_vertices:
            return self.game.slope(self.who, self.x, self.y, private_features, private_target)
        private_slope = self.game.vertex_slope(self.who, self.x, self.y, private_features, private_target)
        return private_slope - jnp.mean(private_slope)


def centred_clip(
    private_vector: Float[Array, " m"], half_range: Scalar, *, scale: bool = False
) -> Float[Array, " m"]:
    """Subtract the midrange and clip into [-half_range, half_range]; send anything not finite to zero.

    Args:
        private_vector: one unit's contribution, in the units of the query.
        half_range: L, same units, at least 0; infinite only centres. Public.
        scale: whether the centred vector is shrunk as a whole, rather than entry by entry.
    Privacy:
        Every entry ends in [-L', L'], L' = L (1 - 1e-9): whatever rounding did to the midrange, the last step is a clip
        entry by entry. So the range is at most 2 L.
    Raises:
        Nothing: the input is private.
    """
    private_finite = jnp.all(jnp.isfinite(private_vector))
    private_safe = jnp.where(private_finite, private_vector, jnp.zeros_like(private_vector))
    private_middle = 0.5 * jnp.max(private_safe) + 0.5 * jnp.min(private_safe)
    private_centred = private_safe - private_middle
    aim = shrunk_radius(half_range)
    if scale:
        private_peak = jnp.max(jnp.abs(private_centred))
        private_factor = aim / jnp.where(private_peak > aim, private_peak, 1.0)
        private_centred = jnp.where(private_peak > aim, private_centred * private_factor, private_centred)
    return jnp.clip(private_centred, -aim, aim)
