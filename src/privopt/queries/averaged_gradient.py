"""The clipped mean gradient, averaged over several points: what certifies a point that is the mean of iterates."""

from collections.abc import Sequence
from typing import ClassVar

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


@query
class AveragedGradient(RecordSum):
    """Mean over M points of the mean over units of `grad f(z_m; unit)`, each clipped to the l2 norm `clip`.

    Every unit is clipped at every point by itself, as `ClippedGradient` does it there, so that the value is the average
    of what M such queries would answer; but it is one release. All points share one pass over the rows for a
    generalised-linear loss; for a user-written one they are met in groups of bounded size.

    Attributes:
        loss: a generalised-linear or user-written loss.
        points: z_m, (M, d) or (M, d, K), public or released; (M, p) for a user-written loss. At most a million.
        clip: C, the largest norm of one unit's gradient at one point; infinite only when privacy is switched off.
    Privacy:
        A unit's contribution is the average of M vectors of norm at most C (an average of M float64 vectors is longer
        by at most M 2^-53 of C, which the margin of the clip covers for a million), so its norm is at most C whatever
        M is: l2 sensitivity factor * C / N, see `MeanQuery`. And an average of M means moves by at most the average of
        their moves: where the loss bounds the sensitivity of `ClippedGradient` at a point below that, the average of
        these sensitivities.
    Source:
        The certificate of Kornowski, Liu, Talwar 2024, Algorithm 2 (Goldstein stationarity of the mean of a block);
        its private release is ours.
    """

    sensitivity_argument: ClassVar[str] = (
        "An average of clipped mean gradients moves by at most the average of their moves, each at most the "
        "sensitivity of the clipped gradient at its point."
    )

    loss: Loss = static()
    points: Float[Array, "M ..."]
    clip: Scalar

    def radius(self) -> Scalar:
        """The clip."""
        return self.clip

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """The average over the points of the sensitivity of `ClippedGradient`."""

        def moves(at: Array) -> Array:
            gradient = ClippedGradient(loss=self.loss, at=at, clip=self.clip)
            return jnp.asarray(gradient.sensitivity(public, sampling), float)

        return jnp.mean(jax.vmap(moves)(jnp.asarray(self.points, float)))

    def shape(self, public: Public) -> tuple[int, ...]:
        """The shape of the parameters."""
        del public
        return tuple(jnp.shape(self.points)[1:])

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The gradients of one record's loss, (p, M)."""
        return gradients_at(self.loss, self.points, private_features, private_target)

    def without_bad(self, private_vector: Float[Array, "p M"]) -> Float[Array, "p M"]:
        """Each gradient that is not finite as zero."""
        return jax.vmap(super().without_bad, in_axes=1, out_axes=1)(private_vector)

    def clip_unit(self, private_vector: Float[Array, "p M"]) -> Array:
        """The average of the gradients, each in its ball."""
        private_clipped = clip_each(private_vector, self.clip)
        return jnp.reshape(jnp.mean(private_clipped, axis=1), jnp.shape(self.points)[1:])

    def row_form(self, public: Public) -> RowForm | None:
        """The generalised-linear form, the points side by side.

        A record's gradients are clipped and averaged here, so that its row is met once; a user's are averaged over
        their records first, and clipped by `clip_unit`.
        """
        loss = self.loss
        if not isinstance(loss, GLMLoss):
            return None
        count, outputs = int(jnp.shape(self.points)[0]), loss.outputs
        of_records = public.unit == "record"

        def coefficients(private_predictions: Array, private_targets: Array, private_norms: Array) -> Array:
            private_slopes = slopes_at(loss, count, private_predictions, private_targets)
            if not of_records:
                return side_by_side(private_slopes)
            return jnp.mean(clipped_slopes(private_slopes, private_norms, self.clip), axis=1)

        points = columns_of(self.points, loss, public)
        if of_records:
            shape = tuple(jnp.shape(self.points)[1:])
            return RowForm(
                points=points,
                coefficients=coefficients,
                outputs=outputs,
                shape=shape,
                radius=self.clip,
                averages=False,
            )
        return RowForm(
            points=points,
            coefficients=coefficients,
            outputs=outputs * count,
            shape=(public.d * outputs, count),
            radius=2.0 * self.clip * count**0.5,  # never reached by clipped gradients
        )

    def groups(self, public: Public) -> Sequence[tuple[float, "AveragedGradient"]]:
        """The same average in shares: groups of points so few that one unit's gradients are held without harm.

        Where there is a generalised-linear form and a unit is a record no gradient is ever held.
        """
        parts = points_in_groups(self.points, self.loss, public)
        if len(parts) == 1:
            return ((1.0, self),)
        count = int(jnp.shape(self.points)[0])
        return [
            (len(part) / count, AveragedGradient(loss=self.loss, points=part, clip=self.clip))
            for part in parts
        ]
