"""The clipped mean gradient, and its norm."""

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, ClassVar, Literal

import numpy as np

from privopt.later import Array, Float, is_jax, is_traced, jax, jnp, namespace
from privopt.ledger.events import EveryUnit, Sampling, expected_units
from privopt.precision import arrays_of
from privopt.problems.losses import GLMLoss, Loss
from privopt.proofs.gradient_spread import diameter_bound, is_bounded, norm_bound
from privopt.public import Public, Relation
from privopt.queries.base import (
    SMALLEST_RADIUS,
    AtPoint,
    Clipped,
    KernelCall,
    Norm,
    Number,
    RecordSum,
    RowForm,
    Scalar,
    clip_rows_to_ball,
    clip_to_ball,
    query,
    shrunk_radius,
    static,
)

ROUNDING = 1.0 + 1e-9  # more than the rounding of a prediction and of a slope can add to a gradient


@query
class ClippedGradient(AtPoint, Clipped, RecordSum):
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

    def sensitivity(self, public: Public, sampling: Sampling = EveryUnit()) -> Scalar:
        """factor * clip / N, or what the loss allows at this point where that is less."""
        by_clip = super().sensitivity(public, sampling)
        loss = self.loss
        if not (isinstance(loss, GLMLoss) and is_bounded(loss) and isinstance(sampling, EveryUnit)):
            return by_clip
        # A float on the host: this runs at every eager step.
        xp: Any = jnp if is_traced(self.at) else np
        at = xp.asarray(self.at, float)
        with np.errstate(over="ignore"):
            prediction_bound = public.row_bound * xp.sqrt((at * at).sum())
        if public.relation is Relation.REPLACE_ONE and not self.balanced:
            bound = diameter_bound(loss, prediction_bound)
        else:
            bound = public.relation.factor * norm_bound(loss, prediction_bound)
        return xp.minimum(by_clip, bound * (ROUNDING * public.row_bound / public.n))

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The gradient of one record's loss, shortened if `balanced`."""
        return maybe_balanced(self, private_features, private_target, "l2")

    def row_form(self, public: Public) -> RowForm | None:
        """The generalised-linear form: slope times row."""
        return gradient_form(self.loss, self.at, self.clip, public, balanced=self.balanced)


@query
class GradientNorm(Number, ClippedGradient):
    """The l2 norm of the clipped mean gradient.

    Privacy:
        The norm is 1-Lipschitz in the mean, so its sensitivity is that of the clipped gradient.
    Source:
        Menart et al. 2023, Algorithm 3 (the norm test), with the sensitivity of its clipped form.
    """

    sensitivity_argument: ClassVar[str] = (
        "A norm moves by at most as much as its vector, here the clipped mean gradient."
    )

    def finish(self, private_mean: Array) -> Array:
        """The norm of the mean."""
        return jnp.sqrt(jnp.sum(private_mean * private_mean))


def balance(loss: GLMLoss, private_predictions: Array, private_norms: Array, clip: Scalar) -> Array:
    """The factors (rows,) of balanced contributions: `min(1, clip / (|a| steepest slope at the prediction))`."""
    private_flat = private_predictions[:, 0] if loss.outputs == 1 else private_predictions
    private_longest = loss.steepest_slope(private_flat) * private_norms
    aim = shrunk_radius(clip)
    private_over = private_longest > aim
    xp = arrays_of(private_longest)
    return xp.where(private_over, aim / xp.where(private_over, private_longest, 1.0), 1.0)


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


def two_slopes(loss: GLMLoss, private_predictions: Array, private_targets: Array) -> tuple[Array, Array]:
    """`glm_slopes` at two points, from the predictions (rows, 2 outputs) of a `slope_form`."""
    private_first = glm_slopes(loss, private_predictions[:, : loss.outputs], private_targets)
    return private_first, glm_slopes(loss, private_predictions[:, loss.outputs :], private_targets)


def maybe_balanced(
    query: Any, private_features: Float[Array, " d"], private_target: Scalar, norm: Norm
) -> Array:
    """The gradient of one record's loss at `query.at`; times its factor of `balance` if `query.balanced`.

    Args:
        query: of fields `loss`, `at`, `clip` and `balanced`.
        private_features: the row.
        private_target: of the record.
        norm: of the clip.
    """
    loss = query.loss
    private_gradient = record_gradient(loss, query.at, private_features, private_target)
    if not (query.balanced and isinstance(loss, GLMLoss)):
        return private_gradient
    points = jnp.reshape(query.at, (private_features.shape[0], loss.outputs))
    if norm == "l2":
        private_length = jnp.sqrt(jnp.sum(private_features * private_features))
    else:
        private_length = jnp.max(jnp.abs(private_features))
    private_predictions = (private_features @ points)[None, :]
    return private_gradient * balance(loss, private_predictions, private_length[None], query.clip)[0]


def slope_form(
    loss: GLMLoss,
    public: Public,
    points: Sequence[Array],
    coefficients: Callable[[Array, Array, Array], Array],
    radius: Scalar,
    *,
    norm: Norm = "l2",
    averages: bool = True,
    kind: Literal["gradient", "difference", "mixed"] | None = None,
    **limits: Scalar,
) -> RowForm:
    """The row form of a combination of slopes at some points.

    The points are public, each shaped like the parameters; the columns of predictions are those of the first, then
    those of the next. `limits` are fields of the `KernelCall` of this kind, if the loss has a compiled kernel; the rest
    is that of `RowForm`.
    """
    numbers, width = namespace(*points), (public.d, loss.outputs)
    columns = [numbers.reshape(point, width) for point in points]
    kernel = None
    if kind is not None and loss.kernel_code is not None:
        code, parameters = int(loss.kernel_code), loss.kernel_parameters
        kernel = KernelCall(kind=kind, code=code, parameters=parameters, **limits)
    return RowForm(
        points=columns[0] if len(columns) == 1 else numbers.concatenate(columns, axis=1),
        coefficients=coefficients,
        outputs=loss.outputs,
        shape=tuple(np.shape(points[0])),
        radius=radius,
        norm=norm,
        averages=averages,
        kernel=kernel,
    )


def gradient_form(
    loss: Loss,
    at: Array,
    clip: Scalar,
    public: Public,
    *,
    balanced: bool = False,
    norm: Norm = "l2",
) -> RowForm | None:
    """The row form of a gradient, slope times row, if the loss has one.

    Raises:
        ValueError: it is to be balanced, and the loss has no balanced clip.
    """
    if not isinstance(loss, GLMLoss):
        return None
    if balanced and not loss.balances:
        raise ValueError(f"the {loss.name} loss has no balanced clip: use balanced=False.")

    def coefficients(private_predictions: Array, private_targets: Array, private_norms: Array) -> Array:
        private_slopes = glm_slopes(loss, private_predictions, private_targets)
        if not balanced:
            return private_slopes
        return private_slopes * balance(loss, private_predictions, private_norms, clip)[:, None]

    limit = clip if balanced else float("inf")
    return slope_form(loss, public, (at,), coefficients, clip, norm=norm, kind="gradient", balanced=limit)


class GradientSum(RecordSum):
    """A mean whose records contribute the gradients of the field `loss` at the public point `at`."""

    loss: Loss
    at: Any

    def record_contribution(self, private_features: Float[Array, " d"], private_target: Scalar) -> Array:
        """The gradient of one record's loss."""
        return record_gradient(self.loss, self.at, private_features, private_target)


# ------------------------------------------------------------------------------------------------------------
# The clipped mean difference of two gradients, whose sensitivity shrinks with the distance between their
# points.


@query
class ClippedGradientDifference(AtPoint, RecordSum):
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
        inner = self.gradient_clip

        def coefficients(private_predictions: Array, private_targets: Array, private_norms: Array) -> Array:
            private_at, private_anchor = two_slopes(loss, private_predictions, private_targets)
            return _clip_rows(private_at, private_norms, inner) - _clip_rows(
                private_anchor, private_norms, inner
            )

        points, radius = (self.at, self.anchor), self.radius()
        return slope_form(loss, public, points, coefficients, radius, kind="difference", inner=inner)


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


# ------------------------------------------------------------------------------------------------------------
# The gradient mixed with its change since an earlier point: what a recursive gradient estimator asks for.


_LEAST_GAIN = 1e-100


@query
class MixedGradient(AtPoint, RecordSum):
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
        if not is_jax(self.gain):
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
        gain = self.weight()

        def coefficients(private_predictions: Array, private_targets: Array, private_norms: Array) -> Array:
            private_at, private_before = two_slopes(loss, private_predictions, private_targets)
            private_gradient = clip_rows_to_ball(private_at, private_norms, self.clip)
            private_change = clip_rows_to_ball(private_at - private_before, private_norms, self.change_clip)
            return (1.0 - gain) * private_gradient + gain * private_change

        return slope_form(
            loss,
            public,
            (self.at, self.previous),
            coefficients,
            self.radius(),
            averages=False,
            kind="mixed" if loss.outputs == 1 else None,
            inner=self.clip,
            change=self.change_clip,
            gain=gain,
        )

    def _mixed(self, gradient: Scalar, change: Scalar) -> Scalar:
        """(1 - gain) * gradient + gain * change of non-negative numbers; one of weight 0 may be infinite."""
        gain = self.weight()
        return _weighted(1.0 - gain, gradient) + _weighted(gain, change)


def _weighted(weight: Scalar, bound: Scalar) -> Scalar:
    """weight * bound, and 0 where the weight is, or where the bound is below 0."""
    if not is_jax(weight) and not is_jax(bound):
        if not weight > 0.0:
            return 0.0
        return float(weight) * max(float(bound), 0.0)  # a bound that is not a number stays so: it comes first
    stated = jnp.maximum(jnp.asarray(bound, jnp.float64), 0.0)
    return jnp.where(weight > 0.0, weight * jnp.where(weight > 0.0, stated, 0.0), 0.0)


# ------------------------------------------------------------------------------------------------------------
# Gradients of one loss at several points: what queries have in common that ask for all of them in one pass.


_GROUP_ENTRIES = 2**19  # of one unit's contributions at the points of a group: a few megabytes


def gradients_at(
    loss: Loss, points: Float[Array, "T ..."], private_features: Float[Array, " d"], private_target: Scalar
) -> Float[Array, "p T"]:
    """The gradients of one record's loss at the points, a column each."""

    def gradient(at: Array) -> Array:
        return jnp.ravel(record_gradient(loss, at, private_features, private_target))

    return jax.vmap(gradient, out_axes=1)(jnp.asarray(points, float))


def clip_each(private_vector: Float[Array, "p T"], clip: Scalar) -> Float[Array, "p T"]:
    """Each gradient in its ball."""
    return jax.vmap(lambda one: clip_to_ball(one, clip), in_axes=1, out_axes=1)(private_vector)


def columns_of(points: Float[Array, "T ..."], loss: GLMLoss, public: Public) -> Float[Array, "d KT"]:
    """The points side by side as a row form has them: those of one output together."""
    count, outputs = int(jnp.shape(points)[0]), loss.outputs
    columns = jnp.reshape(jnp.asarray(points, float), (count, public.d, outputs))
    return jnp.reshape(jnp.transpose(columns, (1, 2, 0)), (public.d, outputs * count))


def slopes_at(
    loss: GLMLoss, count: int, private_predictions: Array, private_targets: Array
) -> Float[Array, "rows T K"]:
    """The slopes of rows at the points, from predictions at `columns_of`."""
    rows, outputs = private_predictions.shape[0], loss.outputs
    private_wide = jnp.broadcast_to(private_targets[:, None], (rows, count))
    private_at = jnp.moveaxis(jnp.reshape(private_predictions, (rows, outputs, count)), 1, 2)
    if outputs == 1:
        return loss.slope(private_at[:, :, 0], private_wide)[:, :, None]
    return loss.slope(private_at, private_wide)


def clipped_slopes(
    private_slopes: Float[Array, "rows T K"], private_norms: Float[Array, " rows"], clip: Scalar
) -> Float[Array, "rows T K"]:
    """The slopes of records whose gradients are each in the ball."""
    rows, count, outputs = private_slopes.shape
    private_flat = jnp.reshape(private_slopes, (rows * count, outputs))
    private_clipped = clip_rows_to_ball(private_flat, jnp.repeat(private_norms, count), clip)
    return jnp.reshape(private_clipped, (rows, count, outputs))


def side_by_side(private_slopes: Float[Array, "rows T K"]) -> Float[Array, "rows KT"]:
    """The slopes as coefficients of a row form, in the order of `columns_of`."""
    return jnp.reshape(jnp.moveaxis(private_slopes, 2, 1), (private_slopes.shape[0], -1))


def points_in_groups(
    points: Float[Array, "T ..."], loss: Loss, public: Public
) -> list[Float[Array, "t ..."]]:
    """The same points in groups: so few that one unit's contributions are held at a time without harm.

    Where there is a generalised-linear form and a unit is a record no contribution is ever held, so all make one.
    """
    whole = jnp.asarray(points, float)
    count = len(whole)
    if isinstance(loss, GLMLoss) and public.unit == "record":
        return [whole]
    step = max(1, _GROUP_ENTRIES * count // (whole.size * public.records_per_unit))
    return [whole[k : k + step] for k in range(0, count, step)]
