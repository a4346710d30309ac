"""The clipped mean gradient of the loss averaged over a ball around a public point: in closed form, or by chance.

Source:
    Kornowski, Liu, Talwar 2024, Algorithm 5 (line 7), with the ball in place of its equation (10)'s sphere. The closed
    form for generalised-linear losses is ours.
"""

from dataclasses import field

from privopt.later import Array, Float, jax, jnp
from privopt.problems.ball import ball_point, lune_points, smoothed_slope
from privopt.problems.losses import GLMLoss, Loss
from privopt.public import Public
from privopt.queries.base import (
    SMALLEST_RADIUS,
    AtPoint,
    Clipped,
    RecordSum,
    RowForm,
    Scalar,
    clip_to_ball,
    query,
    static,
)
from privopt.queries.lots import Lots, LotSum, no_lots, split_lot
from privopt.queries.slopes import by_distance, distance_of, record_gradient


@query
class SmoothedGradient(AtPoint, Clipped, RecordSum):
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
class JitteredGradient(AtPoint, Clipped, LotSum):
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


# ---- Clipped mean differences of gradients of the loss averaged over a ball, at two public points ----------
# With h the loss of one record and h_r its average over the ball of radius r, `grad h_r(at) - grad h_r(anchor)` is no
# longer than `2 L p`, p the share of one ball that lies outside of the other: the sensitivity shrinks with the
# distance. One query has it in closed form, two estimate it from points that each unit draws for itself, for all its
# records.
#
# Source:
#     Kornowski, Liu, Talwar 2024, Algorithm 5, where the difference at one common random shift is bounded in
#     expectation and with high probability only. Clips and the sampling of lunes are ours.


@query
class SmoothedDifference(AtPoint, RecordSum):
    """Mean over units of `grad f_r(at) - grad f_r(anchor)`, f_r the loss averaged over a ball, clipped by distance.

    Attributes:
        loss: a generalised-linear loss with one output, see `SmoothedGradient`.
        at: public point, (d,).
        anchor: public point, (d,).
        smoothing: radius of the ball, parameter units.
        clip: C, of each record's gradients; infinite only when privacy is switched off.
        slope_clip: H, gradient units per parameter unit; infinite for none.
    Privacy:
        The clip of a unit's difference is `min(2 C p, H |at - anchor|)`, a public number; l2 sensitivity
        factor * radius / N, see `MeanQuery`. Equal points give radius 0 and the value 0 exactly. The difference is a
        number times the row, so the clip is a scalar.
    """

    loss: GLMLoss = static()
    at: Float[Array, " d"]
    anchor: Float[Array, " d"]
    smoothing: Scalar
    clip: Scalar
    slope_clip: Scalar = float("inf")

    def radius(self) -> Scalar:
        """min(2 C p, H * distance)."""
        by_share = smoothed_move(self.at, self.anchor, self.smoothing, self.clip)
        return jnp.minimum(by_share, by_distance(self.at, self.anchor, self.slope_clip))

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The difference of one record's smoothed gradients, each clipped."""
        private_length = jnp.sqrt(jnp.sum(private_features * private_features))
        points = jnp.stack([jnp.asarray(self.at, float), jnp.asarray(self.anchor, float)], axis=1)
        private_number = self._coefficients(
            (private_features @ points)[None, :], jnp.reshape(private_target, (1,)), private_length[None]
        )[0, 0]
        return private_number * private_features

    def row_form(self, public: Public) -> RowForm:
        """Difference of clipped smoothed slopes times row."""
        del public
        points = jnp.stack([jnp.asarray(self.at, float), jnp.asarray(self.anchor, float)], axis=1)
        return RowForm(
            points=points,
            coefficients=self._coefficients,
            outputs=1,
            shape=tuple(jnp.shape(self.at)),
            radius=self.radius(),
        )

    def _coefficients(
        self, private_predictions: Array, private_targets: Array, private_norms: Array
    ) -> Float[Array, "rows 1"]:
        private_slopes = smoothed_slopes(
            self.loss,
            private_predictions,
            private_targets,
            self.smoothing * private_norms,
            dimension=jnp.size(self.at),
        )
        private_caps = self.clip / jnp.where(private_norms > 0, private_norms, 1.0)
        private_clipped = jnp.clip(private_slopes, -private_caps[:, None], private_caps[:, None])
        return private_clipped[:, :1] - private_clipped[:, 1:]


@query
class LuneDifference(AtPoint, LotSum):
    """Mean over units of `p (grad f(u) - grad f(v))`, u and v in the balls' differences, each gradient clipped.

    One pair (u, v) a unit: u uniform in the ball around `at` outside of the one around `anchor`, v its mirror image,
    see `problems.ball.lune_points`. The mean over draws is the difference of the smoothed gradients, but for the clip.

    Attributes:
        loss: a generalised-linear or user-written loss.
        at: public point.
        anchor: public point of the same shape.
        smoothing: radius of the balls, parameter units.
        clip: C, of each record's gradient; infinite only when privacy is switched off.
    Privacy:
        Points and radius of the balls are public, so p is. Each record contributes p times a difference of two vectors
        of norm at most C: at most `2 C p` for any lots, and the same holds for a user's average. The radius is enforced
        all the same; l2 sensitivity factor * radius / N, see `MeanQuery` and `LotSum`. Equal points give radius 0 and
        the value 0 exactly.
    """

    loss: Loss = static()
    at: Float[Array, " *shape"]
    anchor: Float[Array, " *shape"]
    smoothing: Scalar
    clip: Scalar
    lots: Lots = no_lots()

    def radius(self) -> Scalar:
        """2 C p."""
        return smoothed_move(self.at, self.anchor, self.smoothing, self.clip)

    def record_contribution_of_lot(
        self, private_features: Float[Array, " d"], private_target: Scalar, lot: Array
    ) -> Array:
        """p times the difference of one record's clipped gradients at the pair that its unit drew."""
        at, anchor = jnp.ravel(jnp.asarray(self.at, float)), jnp.ravel(jnp.asarray(self.anchor, float))
        pair = lune_points(lot, at, anchor, self.smoothing)
        private_slopes = [
            clip_to_ball(
                _gradient_at(self.loss, point, jnp.shape(self.at), private_features, private_target),
                self.clip,
            )
            for point in pair
        ]
        share = moved_ball_share(self.at, self.anchor, self.smoothing)
        return share * (private_slopes[0] - private_slopes[1])


@query
class TranslatedDifference(AtPoint, LotSum):
    """Mean over units of `grad f(at + b) - grad f(anchor + b)`, averaged over the unit's draws b, clipped by distance.

    The same random shifts serve both points, so that a nearly smooth loss gives a small difference. Where gradients
    jump, few draws that do meet the jump carry the whole difference, and the clip makes the mean too short.

    Attributes:
        loss: a generalised-linear or user-written loss.
        at: public point.
        anchor: public point of the same shape.
        smoothing: radius of the ball of shifts, parameter units.
        clip: C, of each record's gradient.
        slope_clip: H, gradient units per parameter unit.
        draws: m, shifts of one unit.
    Privacy:
        A unit's average is clipped to `min(H |at - anchor|, 2 C)`, a public number, for any lots; l2 sensitivity
        factor * radius / N, see `MeanQuery` and `LotSum`. Equal points give radius 0 and the value 0 exactly.
    """

    loss: Loss = static()
    at: Float[Array, " *shape"]
    anchor: Float[Array, " *shape"]
    smoothing: Scalar
    clip: Scalar
    slope_clip: Scalar
    draws: int = field(default=4, metadata={"static": True})
    lots: Lots = no_lots()

    def radius(self) -> Scalar:
        """min(H * distance, 2 C)."""
        return jnp.minimum(by_distance(self.at, self.anchor, self.slope_clip), 2.0 * self.clip)

    def record_contribution_of_lot(
        self, private_features: Float[Array, " d"], private_target: Scalar, lot: Array
    ) -> Array:
        """The mean over its unit's shifts of the difference of one record's clipped gradients."""
        shape = jnp.shape(self.at)
        at, anchor = jnp.ravel(jnp.asarray(self.at, float)), jnp.ravel(jnp.asarray(self.anchor, float))

        def private_difference(key: Array) -> Array:
            shift = self.smoothing * ball_point(key, at.shape[0])
            private_slopes = [
                clip_to_ball(
                    _gradient_at(self.loss, centre + shift, shape, private_features, private_target),
                    self.clip,
                )
                for centre in (at, anchor)
            ]
            return private_slopes[0] - private_slopes[1]

        return jnp.mean(jax.vmap(private_difference)(split_lot(lot, self.draws)), axis=0)


def moved_ball_share(at: Array, anchor: Array, radius: Scalar) -> Array:
    """p: the share of the ball around one point outside of that around the other, as `ball.moved_share`; pure JAX."""
    half = jnp.minimum(1.0, distance_of(at, anchor) / (2.0 * radius))
    half = jnp.where(
        half < SMALLEST_RADIUS, 0.0, half
    )  # its square is a number in every program, see `distance_of`
    return jax.scipy.special.betainc(0.5, (jnp.size(at) + 1) / 2, half * half)


def smoothed_move(at: Array, anchor: Array, radius: Scalar, clip: Scalar) -> Array:
    """2 C p, how far a smoothed gradient can move where gradients are no longer than C; 0 at equal points."""
    share = moved_ball_share(at, anchor, radius)
    return jnp.where(share > 0, 2.0 * clip * jnp.where(share > 0, share, 1.0), 0.0)


def _gradient_at(
    loss: Loss,
    point: Float[Array, " p"],
    shape: tuple[int, ...],
    private_features: Float[Array, " d"],
    private_target: Scalar,
) -> Array:
    return record_gradient(loss, jnp.reshape(point, shape), private_features, private_target)
