"""The clipped mean gradient, and its norm."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.problems.losses import GLMLoss, RecordLoss
from privopt.public import Public
from privopt.queries.base import KernelCall, RecordSum, RowForm, Scalar, query, static


@query
class ClippedGradient(RecordSum):
    """Mean over units of `grad f(at; unit)`, each clipped to the l2 norm `clip`.

    Attributes:
        loss: a generalised-linear or user-written loss.
        at: public point, (d,) or (d, K); flat for a user-written loss.
        clip: C, gradient units; infinite only when privacy is switched off (epsilon = inf).
    Privacy:
        l2 sensitivity factor * clip / N; see `MeanQuery`. For a generalised-linear loss the gradient is the outer
        product of the row and the slope, whose norm is the product of their norms, so the clip is a scalar.
    Source:
        Abadi et al. 2016, Algorithm 1; `clip(grad)` of a convex generalised-linear loss is the gradient of its
        Huberised version (Song, Steinke, Thakurta, Thakurta 2021).
    """

    loss: GLMLoss | RecordLoss = static()
    at: Float[Array, " *shape"]
    clip: Scalar

    def radius(self) -> Scalar:
        """The clip."""
        return self.clip

    def shape(self, public: Public) -> tuple[int, ...]:
        """The shape of the parameters."""
        del public
        return tuple(jnp.shape(self.at))

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The gradient of one record's loss."""
        return record_gradient(self.loss, self.at, private_features, private_target)

    def row_form(self, public: Public) -> RowForm | None:
        """The generalised-linear form: slope times row."""
        loss = self.loss
        if not isinstance(loss, GLMLoss):
            return None
        points = jnp.reshape(self.at, (public.d, loss.outputs))

        def coefficients(private_predictions: Array, private_targets: Array, private_norms: Array) -> Array:
            del private_norms
            return glm_slopes(loss, private_predictions, private_targets)

        kernel = None
        if loss.kernel_code is not None:
            kernel = KernelCall(
                kind="gradient", code=int(loss.kernel_code), parameters=loss.kernel_parameters
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

    def shape(self, public: Public) -> tuple[int, ...]:
        """A scalar."""
        del public
        return ()

    def finish(self, private_mean: Array) -> Array:
        """The norm of the mean."""
        return jnp.sqrt(jnp.sum(private_mean * private_mean))


def record_gradient(
    loss: GLMLoss | RecordLoss, at: Array, private_features: Float[Array, " d"], private_target: Scalar
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
