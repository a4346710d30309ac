"""How much each vertex of a polytope promises, for a private choice among them."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.problems.losses import Loss
from privopt.public import Public
from privopt.queries.base import RecordSum, Scalar, query, static
from privopt.queries.gradient import record_gradient
from privopt.queries.vertex_scores import clip_to_cube


@query
class PolytopeScores(RecordSum):
    """Half the decrease that each vertex v_i of a polytope promises: -<v_i, g> / 2, up to a constant for all of them.

    g is the mean over units of `grad f(at; unit)` plus `offset`. What a unit says about the vertices, (<v_i, grad>)_i,
    is first centred between its smallest and its largest entry, since a choice does not change where all scores move
    alike, and then scaled into the l_inf ball of radius `clip`, which so bounds half of its range. The largest score is
    the steepest descent.

    Attributes:
        loss: a generalised-linear or user-written loss.
        at: public point, (d,) or (d, K); flat for a user-written loss.
        vertices: (m, p), public; p entries of the point a row.
        clip: C, half of the largest range of one unit's <v_i, grad> over the vertices; infinite only when privacy is
            switched off.
        offset: public gradient of a penalty at the point, shaped like it.
    Privacy:
        Sensitivity in the *range* of the change of the scores, which is what the exponential mechanism asks for. A
        unit's centred and scaled vector has entries of size at most C, whatever the rounding of the products before:
        the scaling comes last. So the mean moves by v with |v|_inf <= factor * C / N, and the scores -mean / 2 by
        -v / 2, whose range is at most |v|_inf. The offset is public: the same numbers <v_i, offset> are added for both
        data sets, which rounds each of the two means by at most 2^-53 (max_i |<v_i, offset>| + C); that is added four
        times, for both of them and for the rounding of this formula. The half is exact.
    Source:
        Gonzalez, Guzman, Paquette 2024 (polytopes by their vertices); Talwar, Thakurta, Zhang 2015 (the scores). The
        centring is ours: it halves the clip of one-sided scores.
    """

    norm: ClassVar[str] = "range"
    radius_norm: ClassVar[str] = "linf"

    loss: Loss = static()
    at: Float[Array, " *shape"]
    vertices: Float[Array, "m p"]
    clip: Scalar
    offset: Float[Array, " *shape"]

    def radius(self) -> Scalar:
        """The clip, in the l_inf norm."""
        return self.clip

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """factor * clip / N, and what adding the offset may round."""
        largest = jnp.max(jnp.abs(self._along(self.offset)), initial=0.0)
        return super().sensitivity(public, sampling) + 2.0**-51 * (largest + self.clip)

    def shape(self, public: Public) -> tuple[int, ...]:
        """A score a vertex."""
        del public
        return (int(jnp.shape(self.vertices)[0]),)

    def record_contribution(
        self, private_features: Float[Array, " d"], private_target: Scalar
    ) -> Float[Array, " m"]:
        """The gradient of one record's loss along every vertex."""
        return self._along(record_gradient(self.loss, self.at, private_features, private_target))

    def clip_unit(self, private_vector: Float[Array, " m"]) -> Float[Array, " m"]:
        """Centre one unit's vector between its ends, and scale it into the l_inf ball."""
        private_middle = 0.5 * jnp.max(private_vector) + 0.5 * jnp.min(private_vector)  # no overflow
        return clip_to_cube(private_vector - private_middle, self.clip)

    def finish(self, private_mean: Float[Array, " m"]) -> Float[Array, " m"]:
        """The scores of the vertices."""
        return -0.5 * (private_mean + self._along(self.offset))

    def _along(self, vector: Float[Array, " *shape"]) -> Float[Array, " m"]:
        return jnp.asarray(self.vertices, float) @ jnp.ravel(jnp.asarray(vector, float))
