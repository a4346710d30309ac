"""How long the clipped mean gradient is at each of several points, for a private choice of a stationary one."""

from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.problems.losses import GLMLoss, Loss
from privopt.public import Public
from privopt.queries.base import RecordSum, RowForm, Scalar, query, static
from privopt.queries.gradient import ClippedGradient
from privopt.queries.several_points import (
    clip_each,
    clipped_slopes,
    columns_of,
    gradients_at,
    points_in_groups,
    side_by_side,
    slopes_at,
)

_UNIT_ROUNDOFF = 2.0**-53


@query
class GradientNorms(RecordSum):
    """Minus the norm |g_t + o_t| at each of T points, g_t the mean over units of `grad f(w_t; unit)`, each clipped.

    Minus, since the exponential mechanism takes the largest score: the smallest gradient. All points share one pass
    over the rows for a generalised-linear loss; for a user-written one they are met in groups of bounded size.

    Attributes:
        loss: a generalised-linear or user-written loss.
        points: w_t, (T, d) or (T, d, K), public or released; (T, p) for a user-written loss.
        clip: C, the largest norm of one unit's gradient at one point; infinite only when privacy is switched off.
        offsets: o_t, public gradients of a penalty at the points, shaped like them; 0 for none.
    Privacy:
        Sensitivity in the *range* (largest minus smallest entry of the change of the scores), which is what the
        exponential mechanism asks for. At point t the mean moves by at most D_t, the sensitivity of `ClippedGradient`
        there, and its distance from -o_t by no more, in either direction. So the largest entry of the change is at
        most D_s for some point s, the smallest at least -D_t for some t, and unless s = t (then the range is 0) the
        range is at most the sum of the two largest D_t: 2 D where they are alike, 0 where there is one point. This is
        attained, by a unit that lengthens one mean and shortens another.
        The radius, from which the curator takes the rounding of sums, is therefore twice the clip. A norm of p entries
        is rounded by at most (p + 4) 2^-53 of its size, C and |o_t| at most, at two points and on two data sets; four
        times that is added.
    Source:
        Menart, Ullah, Arora, Bassily, Guzman 2023, Theorem 5 (choice of a stationary point); Dong, Durfee, Rogers 2020
        (bounded range).
    """

    norm: ClassVar[str] = "range"
    radius_norm: ClassVar[str] = "columns"
    sensitivity_argument: ClassVar[str] = (
        "No norm moves by more than the mean gradient at its point, and the range of the moves is at most the sum of "
        "the two largest."
    )

    loss: Loss = static()
    points: Float[Array, "T ..."]
    clip: Scalar
    offsets: Any = field(default=0.0)

    def radius(self) -> Scalar:
        """Twice the clip: a contribution may lengthen one mean and shorten another."""
        return 2.0 * self.clip

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """The sum of the two largest sensitivities of a clipped gradient at the points, and rounding."""
        points = jnp.asarray(self.points, float)
        count = points.shape[0]

        def moves(at: Array) -> Array:
            gradient = ClippedGradient(loss=self.loss, at=at, clip=self.clip)
            return jnp.asarray(gradient.sensitivity(public, sampling), float)

        if count == 1:
            return jnp.zeros(())
        largest = jnp.sum(jax.lax.top_k(jax.vmap(moves)(points), 2)[0])
        size = points.size // count
        offsets = jnp.reshape(jnp.broadcast_to(jnp.asarray(self.offsets, float), points.shape), (count, -1))
        longest = self.clip + jnp.max(jnp.sqrt(jnp.sum(offsets * offsets, axis=1)))
        return largest + 4.0 * (size + 4.0) * _UNIT_ROUNDOFF * longest

    def shape(self, public: Public) -> tuple[int, ...]:
        """One score a point."""
        del public
        return (int(jnp.shape(self.points)[0]),)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The gradients of one record's loss, (p, T)."""
        return gradients_at(self.loss, self.points, private_features, private_target)

    def without_bad(self, private_vector: Float[Array, "p T"]) -> Float[Array, "p T"]:
        """Each gradient that is not finite as zero."""
        return jax.vmap(super().without_bad, in_axes=1, out_axes=1)(private_vector)

    def clip_unit(self, private_vector: Float[Array, "p T"]) -> Float[Array, "p T"]:
        """Each gradient in its ball."""
        return clip_each(private_vector, self.clip)

    def finish(self, private_mean: Float[Array, "p T"]) -> Float[Array, " T"]:
        """Minus the norms."""
        count = private_mean.shape[1]
        shape = jnp.shape(self.points)
        offsets = jnp.reshape(jnp.broadcast_to(jnp.asarray(self.offsets, float), shape), (count, -1))
        private_whole = private_mean + offsets.T
        return -jnp.sqrt(jnp.sum(private_whole * private_whole, axis=0))

    def row_form(self, public: Public) -> RowForm | None:
        """The generalised-linear form, the points side by side: K T columns, those of one output together.

        A record's gradients are clipped here, each for itself; a user's are averaged first, and clipped by
        `clip_unit`.
        """
        loss = self.loss
        if not isinstance(loss, GLMLoss):
            return None
        count, outputs = int(jnp.shape(self.points)[0]), loss.outputs

        def coefficients(private_predictions: Array, private_targets: Array, private_norms: Array) -> Array:
            private_slopes = slopes_at(loss, count, private_predictions, private_targets)
            if public.unit == "record":
                private_slopes = clipped_slopes(private_slopes, private_norms, self.clip)
            return side_by_side(private_slopes)

        return RowForm(
            points=columns_of(self.points, loss, public),
            coefficients=coefficients,
            outputs=outputs * count,
            shape=(public.d * outputs, count),
            radius=2.0 * self.clip * count**0.5,  # never reached by clipped gradients
        )

    def groups(self, public: Public) -> Sequence["GradientNorms"]:
        """The same points in groups, see `points_in_groups`."""
        if len(parts := points_in_groups(self.points, self.loss, public)) == 1:
            return (self,)
        return [GradientNorms(loss=self.loss, points=part, clip=self.clip) for part in parts]
