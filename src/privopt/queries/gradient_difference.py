"""The clipped mean difference of two gradients, whose sensitivity shrinks with the distance between their points."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.problems.losses import GLMLoss, Loss
from privopt.public import Public
from privopt.queries.base import (
    SMALLEST_RADIUS,
    KernelCall,
    RecordSum,
    RowForm,
    Scalar,
    clip_to_ball,
    query,
    static,
)
from privopt.queries.gradient import glm_slopes, record_gradient


@query
class ClippedGradientDifference(RecordSum):
    """Mean over units of `grad f(at; unit) - grad f(anchor; unit)`, clipped to `slope_clip * ||at - anchor||_2`.

    Attributes:
        loss: a generalised-linear or user-written loss.
        at: public point.
        anchor: public point of the same shape.
        slope_clip: L1, gradient units per parameter unit.
        gradient_clip: C; if finite, each *record's* two gradients are clipped to C before the difference is taken,
            and the radius is at most 2 C. Infinite takes the plain difference.
    Privacy:
        The points are public, so the radius is; l2 sensitivity factor * radius / N, see `MeanQuery`. Equal points
        give radius 0 and the value 0 exactly.
    Source:
        Wang, Ye, Xu 2017, Algorithm 1 (the difference); Arora et al. 2023 (its clip by distance).
    """

    loss: Loss = static()
    at: Float[Array, " *shape"]
    anchor: Float[Array, " *shape"]
    slope_clip: Scalar
    gradient_clip: Scalar = float("inf")

    def radius(self) -> Scalar:
        """min(slope_clip * distance, 2 * gradient_clip)."""
        return jnp.minimum(by_distance(self.at, self.anchor, self.slope_clip), 2.0 * self.gradient_clip)

    def shape(self, public: Public) -> tuple[int, ...]:
        """The shape of the parameters."""
        del public
        return tuple(jnp.shape(self.at))

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The difference of one record's gradients, each clipped to `gradient_clip`."""
        private_at = record_gradient(self.loss, self.at, private_features, private_target)
        private_anchor = record_gradient(self.loss, self.anchor, private_features, private_target)
        return clip_to_ball(private_at, self.gradient_clip) - clip_to_ball(private_anchor, self.gradient_clip)

    def row_form(self, public: Public) -> RowForm | None:
        """The generalised-linear form: difference of clipped slopes times row."""
        loss = self.loss
        if not isinstance(loss, GLMLoss):
            return None
        width = (public.d, loss.outputs)
        points = jnp.concatenate([jnp.reshape(self.at, width), jnp.reshape(self.anchor, width)], axis=1)
        inner = self.gradient_clip

        def coefficients(private_predictions: Array, private_targets: Array, private_norms: Array) -> Array:
            private_at = glm_slopes(loss, private_predictions[:, : loss.outputs], private_targets)
            private_anchor = glm_slopes(loss, private_predictions[:, loss.outputs :], private_targets)
            return _clip_rows(private_at, private_norms, inner) - _clip_rows(
                private_anchor, private_norms, inner
            )

        kernel = None
        if loss.kernel_code is not None:
            kernel = KernelCall(
                kind="difference", code=int(loss.kernel_code), parameters=loss.kernel_parameters, inner=inner
            )
        return RowForm(
            points=points,
            coefficients=coefficients,
            outputs=loss.outputs,
            shape=tuple(jnp.shape(self.at)),
            radius=self.radius(),
            kernel=kernel,
        )


def distance_of(at: Array, anchor: Array) -> Array:
    """The l2 distance of two public points, and 0 where no coordinate differs by `SMALLEST_RADIUS`; pure JAX.

    Privacy:
        A sensitivity is computed on its own, the clip that it stands for within a compiled program, where the root of
        the square of one number is its size: a square that vanishes in one of them only would let contributions pass
        that the sensitivity says are zero. So no square vanishes here, and so small a distance is 0 in both.
    """
    apart = jnp.ravel(jnp.asarray(at, float) - jnp.asarray(anchor, float))
    largest = jnp.max(jnp.abs(apart), initial=0.0)
    is_apart = ~(largest < SMALLEST_RADIUS)  # a distance that is not a number stays none
    shares = apart / jnp.where(is_apart, largest, 1.0)
    return jnp.where(is_apart, largest * jnp.sqrt(jnp.sum(shares * shares)), 0.0)


def by_distance(at: Array, anchor: Array, slope: Scalar) -> Array:
    """`slope` times the distance; 0 at equal points, whatever the slope."""
    distance = distance_of(at, anchor)
    return jnp.where(distance > 0, slope * jnp.where(distance > 0, distance, 1.0), 0.0)


def _clip_rows(private_slopes: Array, private_norms: Array, clip: Scalar) -> Array:
    """Scale slopes (rows, outputs) so that slope norm times row norm is at most `clip`."""
    private_sizes = jnp.sqrt(jnp.sum(private_slopes * private_slopes, axis=1)) * private_norms
    private_scale = jnp.where(
        private_sizes > clip, clip / jnp.where(private_sizes > 0, private_sizes, 1.0), 1.0
    )
    return private_slopes * jnp.where(jnp.isfinite(private_scale), private_scale, 1.0)[:, None]
