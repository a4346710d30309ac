"""The clipped mean gradient, and its norm."""

from dataclasses import field
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from privopt.ledger.sampling import EveryUnit, Sampling
from privopt.problems.losses import GLMLoss, Loss
from privopt.proofs.gradient_spread import diameter_bound, is_bounded, norm_bound
from privopt.public import Public, Relation
from privopt.queries.base import KernelCall, RecordSum, RowForm, Scalar, query, shrunk_radius, static

ROUNDING = 1.0 + 1e-9  # more than the rounding of a prediction and of a slope can add to a gradient


@query
class ClippedGradient(RecordSum):
    """Mean over units of `grad f(at; unit)`, each clipped to the l2 norm `clip`.

    Attributes:
        loss: a generalised-linear or user-written loss.
        at: public point, (d,) or (d, K); flat for a user-written loss.
        clip: C, gradient units; infinite only when privacy is switched off (epsilon = inf).
        balanced: shorten a record's gradient by a factor that does not depend on its target: `min(1, C / longest)`,
            `longest` the longest gradient that any target would give these features. The clipped mean then still
            vanishes at the true parameters of a well-specified model; a clip of the gradient itself shortens only
            surprising records, and the parameters come out too long. Needs a loss with `steepest_slope`.
    Privacy:
        l2 sensitivity factor * clip / N, see `MeanQuery`; for a loss in `gradient_spread.OF_BOUNDED_SLOPE`, and not for
        a sample, at most `norm_bound` R / n (add or remove) and `diameter_bound` R / n (replace), R the row
        bound. That is so because a unit's contribution lies in the convex hull of 0 and the records' gradients at the
        public point: it is a weighted sum of gradients with weights that sum to at most 1, then shortened. For a sample
        under replace-one the price is worked out for two opposite vectors of norm clip, so it stays.
        A balanced contribution is no longer than C either, but its factor moves with the features: the bound on a
        diameter does not carry over to it, so that of the norms is used, twice where a unit is replaced.
        For a generalised-linear loss the gradient is the outer product of the row and the slope, whose norm is the
        product of their norms, so the clip is a scalar.
    Source:
        Abadi et al. 2016, Algorithm 1; `clip(grad)` of a convex generalised-linear loss is the gradient of its
        Huberised version (Song, Steinke, Thakurta, Thakurta 2021). Balanced: Kuensch, Stefanski, Carroll 1989.
    """

    sensitivity_argument: ClassVar[str] = (
        "Every contribution lies in the convex hull of 0 and the records' gradients. At a public point the losses of "
        "the library bound the diameter of that hull, which may be less than twice the clip."
    )

    loss: Loss = static()
    at: Float[Array, " *shape"]
    clip: Scalar
    balanced: bool = field(default=False, metadata={"static": True})

    def radius(self) -> Scalar:
        """The clip."""
        return self.clip

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """factor * clip / N, or what the loss allows at this point where that is less."""
        by_clip = super().sensitivity(public, sampling)
        loss = self.loss
        if not (isinstance(loss, GLMLoss) and is_bounded(loss) and isinstance(sampling, EveryUnit)):
            return by_clip
        # A float on the host: this runs at every eager step.
        xp: Any = jnp if isinstance(self.at, Tracer) else np
        at = xp.asarray(self.at, float)
        with np.errstate(over="ignore"):
            prediction_bound = public.row_bound * xp.sqrt((at * at).sum())
        if public.relation is Relation.REPLACE_ONE and not self.balanced:
            bound = diameter_bound(loss, prediction_bound)
        else:
            bound = public.relation.factor * norm_bound(loss, prediction_bound)
        return xp.minimum(by_clip, bound * (ROUNDING * public.row_bound / public.n))

    def shape(self, public: Public) -> tuple[int, ...]:
        """The shape of the parameters."""
        del public
        return tuple(jnp.shape(self.at))

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The gradient of one record's loss, shortened if `balanced`."""
        private_gradient = record_gradient(self.loss, self.at, private_features, private_target)
        if not (self.balanced and isinstance(self.loss, GLMLoss)):
            return private_gradient
        points = jnp.reshape(self.at, (private_features.shape[0], self.loss.outputs))
        private_length = jnp.sqrt(jnp.sum(private_features * private_features))
        return (
            private_gradient
            * balance(self.loss, (private_features @ points)[None, :], private_length[None], self.clip)[0]
        )

    def row_form(self, public: Public) -> RowForm | None:
        """The generalised-linear form: slope times row."""
        loss = self.loss
        if not isinstance(loss, GLMLoss):
            return None
        if self.balanced and not loss.balances:
            raise ValueError(f"the {loss.name} loss has no balanced clip: use balanced=False.")
        points = jnp.reshape(self.at, (public.d, loss.outputs))

        def coefficients(private_predictions: Array, private_targets: Array, private_norms: Array) -> Array:
            private_slopes = glm_slopes(loss, private_predictions, private_targets)
            if not self.balanced:
                return private_slopes
            return private_slopes * balance(loss, private_predictions, private_norms, self.clip)[:, None]

        kernel = None
        if loss.kernel_code is not None:
            kernel = KernelCall(
                kind="gradient",
                code=int(loss.kernel_code),
                parameters=loss.kernel_parameters,
                balanced=self.clip if self.balanced else float("inf"),
            )
        return RowForm(
            points=points,
            coefficients=coefficients,
            outputs=loss.outputs,
            shape=tuple(jnp.shape(self.at)),
            radius=self.clip,
            kernel=kernel,
        )


@query
class GradientNorm(ClippedGradient):
    """The l2 norm of the clipped mean gradient.

    Privacy:
        The norm is 1-Lipschitz in the mean, so its sensitivity is that of the clipped gradient.
    Source:
        Menart et al. 2023, Algorithm 3 (the norm test), with the sensitivity of its clipped form.
    """

    sensitivity_argument: ClassVar[str] = (
        "A norm moves by at most as much as its vector, here the clipped mean gradient."
    )

    def shape(self, public: Public) -> tuple[int, ...]:
        """A scalar."""
        del public
        return ()

    def finish(self, private_mean: Array) -> Array:
        """The norm of the mean."""
        return jnp.sqrt(jnp.sum(private_mean * private_mean))


def balance(loss: GLMLoss, private_predictions: Array, private_norms: Array, clip: Scalar) -> Array:
    """The factors (rows,) of balanced contributions: `min(1, clip / (|a| steepest slope at the prediction))`."""
    private_flat = private_predictions[:, 0] if loss.outputs == 1 else private_predictions
    private_longest = loss.steepest_slope(private_flat) * private_norms
    aim = shrunk_radius(clip)
    private_over = private_longest > aim
    return jnp.where(private_over, aim / jnp.where(private_over, private_longest, 1.0), 1.0)


def record_gradient(
    loss: Loss, at: Array, private_features: Float[Array, " d"], private_target: Scalar
) -> Array:
    """The gradient of one record's loss, shaped like `at`."""
    if not isinstance(loss, GLMLoss):
        return loss.gradient(at, private_features, private_target)
    points = jnp.reshape(at, (private_features.shape[0], loss.outputs))
    private_slope = glm_slopes(loss, (private_features @ points)[None, :], jnp.reshape(private_target, (1,)))[
        0
    ]
    return jnp.reshape(private_features[:, None] * private_slope[None, :], jnp.shape(at))


def glm_slopes(loss: GLMLoss, private_predictions: Array, private_targets: Array) -> Array:
    """The slopes (rows, outputs) of a generalised-linear loss at the predictions (rows, outputs)."""
    if loss.outputs == 1:
        return loss.slope(private_predictions[:, 0], private_targets)[:, None]
    return loss.slope(private_predictions, private_targets)
