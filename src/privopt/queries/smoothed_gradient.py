"""The clipped mean gradient of the loss averaged over a ball around a public point, by one random point a unit.

Source:
    Kornowski, Liu, Talwar 2024, Algorithm 5 (line 7), with the ball in place of its equation (10)'s sphere.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.problems.ball import ball_point
from privopt.problems.losses import GLMLoss, RecordLoss
from privopt.public import Public
from privopt.queries.base import Scalar, query, static
from privopt.queries.gradient import record_gradient
from privopt.queries.lots import Lots, LotSum, no_lots


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

    loss: GLMLoss | RecordLoss = static()
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
