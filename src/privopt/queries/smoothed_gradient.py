"""The clipped mean gradient of the loss averaged over a ball around a public point: in closed form, or by chance.

Source:
    Kornowski, Liu, Talwar 2024, Algorithm 5 (line 7), with the ball in place of its equation (10)'s sphere. The closed
    form for generalised-linear losses is ours.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.problems.ball import ball_point
from privopt.problems.ball_average import smoothed_slope
from privopt.problems.losses import GLMLoss, Loss
from privopt.public import Public
from privopt.queries.base import RecordSum, RowForm, Scalar, query, static
from privopt.queries.gradient import record_gradient
from privopt.queries.lots import Lots, LotSum, no_lots


@query
class SmoothedGradient(RecordSum):
    """Mean over units of the gradient of the loss averaged over the ball of radius r around `at`, clipped.

    Of a generalised-linear loss with one output it is `E phi'(<a, at> + r |a| T) a`, T a coordinate of a uniform point
    of the unit ball: a formula where the slope is piecewise linear, else a quadrature.

    Attributes:
        loss: a generalised-linear loss with one output.
        at: public point, (d,).
        smoothing: r, parameter units.
        clip: C; infinite only when privacy is switched off.
    Privacy:
        l2 sensitivity factor * clip / N, see `MeanQuery`. It is a slope times the row, so the clip is a scalar.
    """

    loss: GLMLoss = static()
    at: Float[Array, " d"]
    smoothing: Scalar
    clip: Scalar

    def radius(self) -> Scalar:
        """The clip."""
        return self.clip

    def shape(self, public: Public) -> tuple[int, ...]:
        """The shape of the parameters."""
        del public
        return tuple(jnp.shape(self.at))

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The smoothed gradient of one record's loss."""
        private_length = jnp.sqrt(jnp.sum(private_features * private_features))
        private_slope = smoothed_slopes(
            self.loss,
            jnp.reshape(private_features @ self.at, (1, 1)),
            jnp.reshape(private_target, (1,)),
            self.smoothing * private_length[None],
            dimension=jnp.size(self.at),
        )[0, 0]
        return private_slope * private_features

    def row_form(self, public: Public) -> RowForm:
        """Smoothed slope times row."""

        def coefficients(private_predictions: Array, private_targets: Array, private_norms: Array) -> Array:
            reach = self.smoothing * private_norms
            return smoothed_slopes(
                self.loss, private_predictions, private_targets, reach, dimension=jnp.size(self.at)
            )

        return RowForm(
            points=jnp.reshape(self.at, (public.d, 1)),
            coefficients=coefficients,
            outputs=1,
            shape=tuple(jnp.shape(self.at)),
            radius=self.clip,
        )


@query
class JitteredGradient(LotSum):
    """Mean over units of `grad f(at + r u; unit)`, clipped, u uniform in the unit ball: one fresh u for each unit.

    Without the clip its mean over draws is the gradient of the loss averaged over the ball of radius r, at the price
    of one gradient. On losses that are flat in places it finds slopes where the gradient itself vanishes.

    Attributes:
        loss: a generalised-linear or user-written loss.
        at: public point.
        smoothing: r, parameter units.
        clip: C; infinite only when privacy is switched off.
    Privacy:
        l2 sensitivity factor * clip / N for any draws, see `MeanQuery` and `LotSum`.
    """

    loss: Loss = static()
    at: Float[Array, " *shape"]
    smoothing: Scalar
    clip: Scalar
    lots: Lots = no_lots()

    def radius(self) -> Scalar:
        """The clip."""
        return self.clip

    def shape(self, public: Public) -> tuple[int, ...]:
        """The shape of the parameters."""
        del public
        return tuple(jnp.shape(self.at))

    def record_contribution_of_lot(
        self, private_features: Float[Array, " d"], private_target: Scalar, lot: Array
    ) -> Array:
        """The gradient of one record's loss at the point that its unit drew."""
        at = jnp.asarray(self.at, float)
        shift = self.smoothing * jnp.reshape(ball_point(lot, at.size), at.shape)
        return record_gradient(self.loss, at + shift, private_features, private_target)


def smoothed_slopes(
    loss: GLMLoss,
    private_predictions: Float[Array, "rows K"],
    private_targets: Float[Array, " rows"],
    private_reach: Float[Array, " rows"],
    *,
    dimension: int,
) -> Float[Array, "rows K"]:
    """The smoothed slopes of records at K points each, from their predictions; `private_reach` is r |a|."""
    count = private_predictions.shape[1]
    columns = [
        smoothed_slope(loss, private_predictions[:, k], private_targets, private_reach, dimension=dimension)
        for k in range(count)
    ]
    return jnp.stack(columns, axis=1)
