"""The clipped mean gradient, and in the same release how many units were not shortened by the clip."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from privopt.problems.losses import GLMLoss, Loss
from privopt.public import Public
from privopt.queries.base import (
    RecordSum,
    RowForm,
    Scalar,
    clip_to_ball,
    query,
    shrunk_radius,
    static,
)
from privopt.queries.gradient import glm_slopes, record_gradient


@query
class GradientAndCount(RecordSum):
    """Mean over units of `(clip_c(B^T g_j - v0), s_j)`, g_j a unit's gradient, s_j = h where the clip changed nothing.

    Where the clip shortened the unit's vector s_j is -h; a unit without records contributes zeros. A mean of s_j / h is
    the share of units within the clip minus the share outside: what an adaptive clip follows. v0 is not added back: the
    caller does so, once, after the release. Added for each unit it would leak through the number of units.

    Attributes:
        loss: a generalised-linear or user-written loss.
        at: public point, (d,) or (d, K); flat for a user-written loss.
        clip: c, gradient units (those of `B^T g` with a map); infinite only when privacy is switched off.
        height: h, at least 0, in the same units: what the count weighs against the gradient.
        row_map: B (d, k), public or released: gradients in the coordinates v of w = B v, without mapped rows. None for
            the identity; of a user-written loss it maps the flat parameters.
        centre: v0, flat, public or released; None for 0.
    Privacy:
        A unit contributes (a, s) with |a| <= c and |s| <= h, whatever its records, their number and its weight. So it
        is within sqrt(c^2 + h^2), see `MeanQuery`, and the l2 sensitivity is sqrt(D_g^2 + D_h^2) with D_g that of the
        clipped gradient and D_h = factor h / n. One Gaussian of multiplier z gives what two would, of variances in the
        ratio c^2 : h^2, on a sample too.
    Source:
        Andrew, Thakkar, McMahan, Ramaswamy 2021 (the count that the clip follows); one vector for both is ours.
    """

    loss: Loss = static()
    at: Float[Array, " *shape"]
    clip: Scalar
    height: Scalar
    row_map: Any = None
    centre: Any = None

    def radius(self) -> Scalar:
        """sqrt(c^2 + h^2)."""
        if isinstance(self.clip, Tracer) or isinstance(self.height, Tracer):
            return jnp.sqrt(self.clip * self.clip + self.height * self.height)
        return math.hypot(float(self.clip), float(self.height))

    def shape(self, public: Public) -> tuple[int, ...]:
        """The gradient as a flat vector, and one number."""
        del public
        return (self._width() + 1,)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The gradient of one record's loss."""
        return record_gradient(self.loss, self.at, private_features, private_target)

    def clip_unit(self, private_vector: Float[Array, " *shape"]) -> Float[Array, " k"]:
        """The unit's gradient in other coordinates, around the centre and in its ball, and whether it was inside."""
        private_moved = jnp.ravel(
            private_vector
            if self.row_map is None
            else jnp.asarray(self.row_map, jnp.float64).T @ private_vector
        )
        if self.centre is not None:
            private_moved = private_moved - jnp.asarray(self.centre)
        private_clipped = clip_to_ball(private_moved, self.clip)
        private_length = jnp.sqrt(jnp.sum(private_moved * private_moved))
        private_inside = private_length <= shrunk_radius(self.clip)
        height = jnp.where(shrunk_radius(self.clip) > 0, shrunk_radius(self.height), 0.0)
        return jnp.append(private_clipped, jnp.where(private_inside, height, -height))

    def row_form(self, public: Public) -> RowForm | None:
        """Of users, the generalised-linear form of their averages: slope times row."""
        loss = self.loss
        if not isinstance(loss, GLMLoss) or not public.by_user:
            return None

        def coefficients(private_predictions: Array, private_targets: Array, private_norms: Array) -> Array:
            del private_norms
            return glm_slopes(loss, private_predictions, private_targets)

        return RowForm(
            points=jnp.reshape(self.at, (public.d, loss.outputs)),
            coefficients=coefficients,
            outputs=loss.outputs,
            shape=tuple(jnp.shape(self.at)),
            radius=self.radius(),
        )

    def _width(self) -> int:
        """Entries of the gradient."""
        shape = jnp.shape(self.at)
        if self.row_map is None:
            return int(np.prod(shape, dtype=int))
        return int(jnp.shape(self.row_map)[1] * np.prod(shape[1:], dtype=int))


def share_inside(released_count: Float[Array, ""], height: Scalar) -> Array:
    """The share of units within the clip, in [0, 1], from the released mean of s_j. Post-processing."""
    return jnp.clip(0.5 * (1.0 + released_count / height), 0.0, 1.0)
