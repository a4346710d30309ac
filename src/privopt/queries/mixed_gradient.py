"""The gradient mixed with its change since an earlier point: what a recursive gradient estimator asks for."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from privopt.ledger.sampling import EveryUnit, Sampling, expected_units
from privopt.problems.losses import GLMLoss, Loss
from privopt.public import Public
from privopt.queries.base import (
    KernelCall,
    RecordSum,
    RowForm,
    Scalar,
    clip_rows_to_ball,
    clip_to_ball,
    query,
    static,
)
from privopt.queries.gradient import ClippedGradient, glm_slopes, record_gradient

_LEAST_GAIN = 1e-100


@query
class MixedGradient(RecordSum):
    """Mean over units of `(1 - u) clip(g, C) + u clip(g - h, C')`, u the gain.

    g is the unit's average of `grad f(at; record)` and h that of `grad f(previous; record)`, neither of them clipped
    before the difference is taken. With a previous estimate v of the gradient at `previous`, the estimate
    `(1 - u) g + u (v + g - h)` of the gradient at `at` is this query plus `u v`: released in one piece.

    Attributes:
        loss: a generalised-linear or user-written loss.
        at: public point.
        previous: public point of the same shape.
        clip: C, gradient units.
        change_clip: C', gradient units; 0 makes the change exactly zero.
        gain: u in [0, 1]; a number beyond an end counts as that end, and one that is not a number as 0. Public.
    Privacy:
        Points, clips and gain are public. A unit's contribution is the sum of (1 - u) times what it contributes to
        `ClippedGradient` and u times a vector of norm at most C' (one that is not finite counts as zero, each
        for itself). By the triangle inequality one unit moves the mean by at most (1 - u) times the sensitivity of
        `ClippedGradient` at this point, which for the library's own losses may be less than the clip says, plus
        u * factor * C' / N. Both terms are attained together: by two units whose gradients and changes are opposite
        vectors of one direction. What is computed and what is stated take the same u, within [0, 1], and a negative
        clip as 0.
    Source:
        Menart, Ullah, Arora, Bassily, Guzman 2023 (the recursive estimator whose terms these are); the release in one
        piece is ours.
    """

    sensitivity_argument: ClassVar[str] = (
        "The gradient's part moves by no more than a clipped gradient does. At a public point the losses of the "
        "library bound that move, which may be less than twice the clip."
    )

    loss: Loss = static()
    at: Float[Array, " *shape"]
    previous: Float[Array, " *shape"]
    clip: Scalar
    change_clip: Scalar
    gain: Scalar

    def radius(self) -> Scalar:
        """(1 - gain) * clip + gain * change_clip."""
        return self._mixed(self.clip, self.change_clip)

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """(1 - gain) times that of the clipped gradient, plus gain * factor * change_clip / N."""
        gradient = ClippedGradient(loss=self.loss, at=self.at, clip=self.clip)
        units = expected_units(sampling, public.n)
        return self._mixed(
            gradient.sensitivity(public, sampling), public.relation.factor * self.change_clip / units
        )

    def shape(self, public: Public) -> tuple[int, ...]:
        """The shape of the parameters."""
        del public
        return tuple(jnp.shape(self.at))

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """One record's gradient, and its change since `previous`."""
        private_at = record_gradient(self.loss, self.at, private_features, private_target)
        private_before = record_gradient(self.loss, self.previous, private_features, private_target)
        return jnp.stack([private_at, private_at - private_before])

    def without_bad(self, private_vector: Array) -> Array:
        """Each of the two parts that is not finite as zero."""
        return jax.vmap(super().without_bad)(private_vector)

    def clip_unit(self, private_vector: Array) -> Array:
        """The two parts, each in its ball, mixed."""
        gain = self.weight()
        private_gradient = clip_to_ball(private_vector[0], self.clip)
        private_change = clip_to_ball(private_vector[1], self.change_clip)
        return (1.0 - gain) * private_gradient + gain * private_change

    def weight(self) -> Scalar:
        """The gain as it is used, in [0, 1]; 0 where it is so small that its product with a clip could vanish."""
        if not isinstance(self.gain, jax.Array):
            gain = float(self.gain)
            return (
                min(gain, 1.0) if gain >= _LEAST_GAIN else 0.0
            )  # a gain that is not a number is not above it
        return jnp.where(self.gain >= _LEAST_GAIN, jnp.minimum(jnp.asarray(self.gain, jnp.float64), 1.0), 0.0)

    def row_form(self, public: Public) -> RowForm | None:
        """The generalised-linear form: the mixed slopes, each part clipped, times the row."""
        loss = self.loss
        if not isinstance(loss, GLMLoss):
            return None
        numbers = _array_module(self.at, self.previous)
        width = (public.d, loss.outputs)
        ends = [numbers.reshape(end, width) for end in (self.at, self.previous)]
        gain = self.weight()

        def coefficients(private_predictions: Array, private_targets: Array, private_norms: Array) -> Array:
            private_at = glm_slopes(loss, private_predictions[:, : loss.outputs], private_targets)
            private_before = glm_slopes(loss, private_predictions[:, loss.outputs :], private_targets)
            private_gradient = clip_rows_to_ball(private_at, private_norms, self.clip)
            private_change = clip_rows_to_ball(private_at - private_before, private_norms, self.change_clip)
            return (1.0 - gain) * private_gradient + gain * private_change

        kernel = None
        if loss.kernel_code is not None and loss.outputs == 1:
            kernel = KernelCall(
                kind="mixed",
                code=int(loss.kernel_code),
                parameters=loss.kernel_parameters,
                inner=self.clip,
                change=self.change_clip,
                gain=gain,
            )
        return RowForm(
            points=numbers.concatenate(ends, axis=1),
            coefficients=coefficients,
            outputs=loss.outputs,
            shape=tuple(jnp.shape(self.at)),
            radius=self.radius(),
            averages=False,
            kernel=kernel,
        )

    def _mixed(self, gradient: Scalar, change: Scalar) -> Scalar:
        """(1 - gain) * gradient + gain * change of non-negative numbers; one of weight 0 may be infinite."""
        gain = self.weight()
        return _weighted(1.0 - gain, gradient) + _weighted(gain, change)


def _weighted(weight: Scalar, bound: Scalar) -> Scalar:
    """weight * bound, and 0 where the weight is, or where the bound is below 0."""
    if not isinstance(weight, jax.Array) and not isinstance(bound, jax.Array):
        if not weight > 0.0:
            return 0.0
        return float(weight) * max(float(bound), 0.0)  # a bound that is not a number stays so: it comes first
    stated = jnp.maximum(jnp.asarray(bound, jnp.float64), 0.0)
    return jnp.where(weight > 0.0, weight * jnp.where(weight > 0.0, stated, 0.0), 0.0)


def _array_module(*arrays: Any) -> Any:
    """NumPy, which is cheaper to call, unless one of them is an array of JAX."""
    return jnp if any(isinstance(array, jax.Array) for array in arrays) else np
