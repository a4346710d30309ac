"""How much each vertex of the l1 ball promises, for a private choice among them."""

from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.problems.losses import GLMLoss, Loss
from privopt.problems.norms import scale_of
from privopt.public import Public
from privopt.queries.base import KernelCall, RecordSum, RowForm, Scalar, query, shrunk_radius, static
from privopt.queries.gradient import glm_slopes, record_gradient


@query
class VertexScores(RecordSum):
    """Half the decrease that each of the 2 p vertices of the unit l1 ball promises: (-g / 2, g / 2).

    g is the mean over units of `grad f(at; unit)`, each scaled into the l_inf ball of radius `clip`, plus `offset`.
    Score j < p belongs to the vertex +e_j, score p + j to -e_j; the largest score is the steepest descent. The radius
    of the ball would multiply the scores and their sensitivity alike, so it is left out.

    Attributes:
        loss: a generalised-linear or user-written loss.
        at: public point, (d,) or (d, K); flat for a user-written loss.
        clip: C, the largest entry of one unit's gradient; infinite only when privacy is switched off.
        offset: public gradient of a penalty at the point, shaped like it.
    Privacy:
        Sensitivity in the *range* (largest minus smallest entry of the change of the scores), which is what the
        exponential mechanism asks for. Let v be the change of the mean gradient. Each unit's gradient has entries of
        size at most C, so |v|_inf <= factor * C / N. The offset is public and cancels, so the scores change by
        (-v / 2, v / 2): its entries come in opposite pairs, so its largest one is max_j |v_j| / 2 and its smallest
        one the negative of that, and its range is exactly |v|_inf. Hence `finish` is 1-Lipschitz from the l_inf norm to
        the range, and the sensitivity is factor * C / N. Scaling by 1 / 2 is exact in floating point and keeps the
        scores opposite; adding the offset o rounds each of the two means by at most 2^-53 (|o|_inf + C), so
        2^-52 (|o|_inf + C) is added, doubled for the rounding of this formula itself.
    Source:
        Talwar, Thakurta, Zhang 2015 (private Frank-Wolfe); Dong, Durfee, Rogers 2020 (bounded range).
    """

    norm: ClassVar[str] = "range"
    radius_norm: ClassVar[str] = "linf"

    loss: Loss = static()
    at: Float[Array, " *shape"]
    clip: Scalar
    offset: Float[Array, " *shape"]

    def radius(self) -> Scalar:
        """The clip, in the l_inf norm."""
        return self.clip

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """factor * clip / N, and what adding the offset may round."""
        largest = jnp.max(jnp.abs(jnp.asarray(self.offset, float)), initial=0.0)
        return super().sensitivity(public, sampling) + 2.0**-51 * (largest + self.clip)

    def shape(self, public: Public) -> tuple[int, ...]:
        """Two scores a parameter."""
        del public
        return (2 * jnp.size(self.at),)

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The gradient of one record's loss."""
        return record_gradient(self.loss, self.at, private_features, private_target)

    def clip_unit(self, private_vector: Array) -> Array:
        """Scale one unit's gradient into the l_inf ball."""
        return clip_to_cube(private_vector, self.clip)

    def finish(self, private_mean: Array) -> Array:
        """The scores of the vertices +e_1, ..., +e_p, -e_1, ..., -e_p."""
        private_half = 0.5 * jnp.ravel(private_mean + self.offset)
        return jnp.concatenate([-private_half, private_half])

    def row_form(self, public: Public) -> RowForm | None:
        """The generalised-linear form: slope times row, clipped by the row's largest entry."""
        loss = self.loss
        if not isinstance(loss, GLMLoss):
            return None

        def coefficients(private_predictions: Array, private_targets: Array, private_norms: Array) -> Array:
            del private_norms
            return glm_slopes(loss, private_predictions, private_targets)

        kernel = None
        if loss.kernel_code is not None:
            kernel = KernelCall(
                kind="gradient", code=int(loss.kernel_code), parameters=loss.kernel_parameters
            )
        return RowForm(
            points=jnp.reshape(self.at, (public.d, loss.outputs)),
            coefficients=coefficients,
            outputs=loss.outputs,
            shape=tuple(jnp.shape(self.at)),
            radius=self.clip,
            norm="linf",
            kernel=kernel,
        )


def clip_to_cube(private_vector: Float[Array, " *shape"], radius: Scalar) -> Float[Array, " *shape"]:
    """Scale a contribution into the l_inf ball of `radius`; send anything not finite to zero.

    Args:
        private_vector: one unit's contribution, in the units of the query.
        radius: the largest entry allowed, same units, at least 0; infinite leaves finite vectors alone. Public.
    Privacy:
        Every entry is at most `radius` in size: the vector is divided by its largest entry (in two steps, see
        `scale_of`), then multiplied by a number 1e-9 inside the radius. Scaling, unlike clipping entry by entry, keeps
        the gradient of a generalised-linear loss a multiple of the row, which is what the fast path computes.
    Raises:
        Nothing: the input is private.
    """
    private_finite = jnp.all(jnp.isfinite(private_vector))
    private_safe = jnp.where(private_finite, private_vector, jnp.zeros_like(private_vector))
    private_scale = scale_of(private_safe)
    private_unit = private_safe / private_scale
    private_peak = jnp.max(jnp.abs(private_unit), initial=0.0)
    aim = shrunk_radius(radius)
    private_inside = (private_peak * private_scale <= aim) & (aim > 0)
    private_factor = aim / jnp.where(private_peak > 0, private_peak, 1.0)
    return jnp.where(
        private_inside,
        private_safe,
        private_unit * jnp.where(jnp.isfinite(private_factor), private_factor, 0.0),
    )
