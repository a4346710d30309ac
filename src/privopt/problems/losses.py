"""The registry of losses: `losses.logistic`, `losses.squared`, `losses.huber(c)`, `losses.softmax(K)`, ...

Each formula is elementwise over any leading shape, pure, stable for huge predictions, and convex in the
prediction but for those of `bounded_losses`. Its constants (`facts`) hold for every prediction and every
target of the declared domain.
"""

import math
from dataclasses import dataclass

import numpy as np

from privopt.later import jax, jnp
from privopt.named_arguments import refuses_unknown
from privopt.precision import arrays_of
from privopt.problems.bounded_losses import (
    Absolute,
    Capped,
    Hinge,
    Ramp,
    as_label,
    capped,
    sigmoid,
    smoothed_ramp,
    smoothed_step,
    smoothed_step_slope,
    where_margin_at_least,
)
from privopt.problems.glm import GLMLoss, KernelCode, Loss, LossFacts, RecordLoss, ScalarLoss, Values
from privopt.problems.pieces import Pieces, step
from privopt.problems.smoothing import smoothed

__all__ = [
    "Absolute",
    "Capped",
    "GLMLoss",
    "Hinge",
    "Huber",
    "KernelCode",
    "Logistic",
    "Loss",
    "LossFacts",
    "Poisson",
    "Quantile",
    "Ramp",
    "RecordLoss",
    "ScalarLoss",
    "SmoothedHinge",
    "Softmax",
    "Squared",
    "absolute",
    "capped",
    "hinge",
    "huber",
    "logistic",
    "poisson",
    "quantile",
    "ramp",
    "smoothed",
    "smoothed_hinge",
    "softmax",
    "squared",
]


@dataclass(frozen=True)
class Logistic(ScalarLoss):
    """`log(1 + exp(-y t))`, targets y in {-1, +1}; `predict_mean` is the probability of +1.

    Other targets are moved into [-1, 1], so that the constants hold for whatever is stored.
    """

    @property
    def facts(self) -> LossFacts:
        return LossFacts(
            name="logistic",
            lipschitz=1.0,
            curvature=0.25,
            monotone=True,
            value_at_zero=math.log(2.0),
            kernel_code=KernelCode.LOGISTIC,
        )

    def value(self, prediction: Values, target: Values) -> Values:
        return jax.nn.softplus(-as_label(target) * prediction)

    def slope(self, prediction: Values, target: Values) -> Values:
        label = as_label(target)
        return -label * sigmoid(-label * prediction)

    def second_derivative(self, prediction: Values, target: Values) -> Values:
        label = as_label(target)
        margin = label * prediction
        return label * label * jax.nn.sigmoid(margin) * jax.nn.sigmoid(-margin)

    def gentle_interval(self, target: Values, slope_cap: Values) -> tuple[Values, Values]:
        # |phi'| = sigmoid(-margin) <= cap  iff  margin >= log((1 - cap) / cap).
        binding = slope_cap < 1.0
        cap = jnp.where(binding, slope_cap, 0.5)
        least_margin = jnp.where(binding, jnp.log1p(-cap) - jnp.log(cap), -jnp.inf)
        return where_margin_at_least(least_margin, target)

    @property
    def balances(self) -> bool:
        return True

    def steepest_slope(self, prediction: Values) -> Values:
        """`1 / (1 + exp(-|t|))`, of the less likely label."""
        return sigmoid(abs(prediction))

    def predict_mean(self, prediction: Values) -> Values:
        return jax.nn.sigmoid(prediction)


@dataclass(frozen=True)
class Squared(ScalarLoss):
    """`(t - y)^2 / 2`."""

    @property
    def facts(self) -> LossFacts:
        return LossFacts(name="squared", curvature=1.0, kernel_code=KernelCode.SQUARED)

    def value(self, prediction: Values, target: Values) -> Values:
        return 0.5 * (prediction - target) ** 2

    def slope(self, prediction: Values, target: Values) -> Values:
        return prediction - target

    def second_derivative(self, prediction: Values, target: Values) -> Values:
        return jnp.ones_like(prediction - target)

    def gentle_interval(self, target: Values, slope_cap: Values) -> tuple[Values, Values]:
        return target - slope_cap, target + slope_cap

    def predict_mean(self, prediction: Values) -> Values:
        return prediction


@dataclass(frozen=True)
class Huber(ScalarLoss):
    """`r^2 / 2` for `|r| <= threshold`, `threshold |r| - threshold^2 / 2` beyond; `r = t - y`."""

    threshold: float

    def __post_init__(self) -> None:
        _require_positive(
            "threshold", self.threshold, "the residual at which the loss turns from square to linear"
        )

    @property
    def facts(self) -> LossFacts:
        return LossFacts(
            name="huber",
            lipschitz=self.threshold,
            curvature=1.0,
            kernel_code=KernelCode.HUBER,
            kernel_parameters=(self.threshold, 0.0),
        )

    @property
    def pieces(self) -> Pieces:
        rise = step(0.0, 2.0 * self.threshold, self.threshold)
        return Pieces.of_steps("residual", rise, first=-self.threshold, at_zero=0.0)

    def value(self, prediction: Values, target: Values) -> Values:
        residual = prediction - target
        near = jnp.clip(residual, -self.threshold, self.threshold)
        return near * (residual - 0.5 * near)

    def slope(self, prediction: Values, target: Values) -> Values:
        residual = prediction - target
        return arrays_of(residual).clip(residual, -self.threshold, self.threshold)

    def second_derivative(self, prediction: Values, target: Values) -> Values:
        residual = prediction - target
        return (jnp.abs(residual) <= self.threshold).astype(residual.dtype)

    def gentle_interval(self, target: Values, slope_cap: Values) -> tuple[Values, Values]:
        half_width = jnp.where(slope_cap < self.threshold, slope_cap, jnp.inf)
        return target - half_width, target + half_width

    def predict_mean(self, prediction: Values) -> Values:
        return prediction


@dataclass(frozen=True)
class SmoothedHinge(ScalarLoss):
    """The hinge `max(0, 1 - m)`, `m = y t`, made smooth around its corner: the Huber support vector machine.

    `(1 + width - m)^2 / (4 width)` for `|1 - m| <= width`, the hinge itself outside; curvature `1 / (2
    width)`. Targets y in {-1, +1}, others are moved into [-1, 1]; `predict_mean` is the score itself, the model has no
    probabilities.

    Source:
        Chapelle 2007, Training a support vector machine in the primal, section 2.
    """

    width: float = 0.5

    def __post_init__(self) -> None:
        _require_positive("width", self.width, "half the length of margins over which the corner is rounded")

    @property
    def facts(self) -> LossFacts:
        return LossFacts(
            name="smoothed hinge",
            lipschitz=1.0,
            curvature=1.0 / (2.0 * self.width),
            monotone=True,
            value_at_zero=1.0 if self.width <= 1.0 else (1.0 + self.width) ** 2 / (4.0 * self.width),
            kernel_code=KernelCode.SMOOTHED_HINGE,
            kernel_parameters=(self.width, 0.0),
        )

    @property
    def pieces(self) -> Pieces:
        at_zero = self._constants.value_at_zero
        assert at_zero is not None
        return Pieces.of_steps("margin", step(1.0, 1.0, self.width), first=-1.0, at_zero=at_zero)

    def value(self, prediction: Values, target: Values) -> Values:
        return smoothed_ramp(1.0 - as_label(target) * prediction, self.width)

    def slope(self, prediction: Values, target: Values) -> Values:
        return -as_label(target) * smoothed_step(1.0 - as_label(target) * prediction, self.width)

    def second_derivative(self, prediction: Values, target: Values) -> Values:
        return as_label(target) ** 2 * smoothed_step_slope(1.0 - as_label(target) * prediction, self.width)

    def gentle_interval(self, target: Values, slope_cap: Values) -> tuple[Values, Values]:
        least_margin = jnp.where(slope_cap < 1.0, 1.0 + self.width - 2.0 * self.width * slope_cap, -jnp.inf)
        return where_margin_at_least(least_margin, target)

    def predict_mean(self, prediction: Values) -> Values:
        return prediction


@dataclass(frozen=True)
class Quantile(ScalarLoss):
    """The pinball loss `level max(r, 0) + (1 - level) max(-r, 0)` of the residual `r = y - t`.

    With `smoothing` h > 0 it is averaged over `r + u`, u uniform on [-h, h]: `level r + (h - r)^2 / (4 h)`
    for `|r| <= h`, the pinball loss itself outside; curvature `1 / (2 h)`. With h = 0 the slope is a
    subgradient, at the corner the limit of the smoothed ones, `1/2 - level`.

    Source:
        Fernandes, Guerre, Horta 2021, Smoothing quantile regressions (uniform kernel).
    """

    level: float
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 < self.level < 1.0:
            raise ValueError(
                f"quantile must lie strictly between 0 and 1, got {self.level!r}: 0.5 is the median."
            )
        if not (0.0 <= self.smoothing < math.inf):
            raise ValueError(
                f"smoothing must be at least 0 and finite, got {self.smoothing!r}: it has the target's unit."
            )

    @property
    def facts(self) -> LossFacts:
        return LossFacts(
            name="quantile",
            lipschitz=max(self.level, 1.0 - self.level),
            curvature=1.0 / (2.0 * self.smoothing) if self.smoothing > 0 else math.inf,
            kernel_code=KernelCode.QUANTILE,
            kernel_parameters=(self.level, self.smoothing),
        )

    @property
    def pieces(self) -> Pieces:
        rise = step(0.0, 1.0, self.smoothing)
        return Pieces.of_steps("residual", rise, first=-self.level, at_zero=0.25 * self.smoothing)

    def value(self, prediction: Values, target: Values) -> Values:
        excess = prediction - target
        return smoothed_ramp(excess, self.smoothing) - self.level * excess

    def slope(self, prediction: Values, target: Values) -> Values:
        return smoothed_step(prediction - target, self.smoothing) - self.level

    def second_derivative(self, prediction: Values, target: Values) -> Values:
        return smoothed_step_slope(prediction - target, self.smoothing)

    def gentle_interval(self, target: Values, slope_cap: Values) -> tuple[Values, Values]:
        # The slope passes -cap and +cap where the smoothed step passes level - cap and level + cap.
        low = target + self.smoothing * (2.0 * (self.level - slope_cap) - 1.0)
        high = target + self.smoothing * (2.0 * (self.level + slope_cap) - 1.0)
        low = jnp.where(slope_cap < self.level, low, -jnp.inf)
        return low, jnp.where(slope_cap < 1.0 - self.level, high, jnp.inf)

    def predict_mean(self, prediction: Values) -> Values:
        return prediction


@dataclass(frozen=True)
class Poisson(ScalarLoss):
    """`exp(t) - y t`, continued linearly beyond log-rates `max_log_rate`; y clipped to `[0, max_count]`.

    The continuation keeps the loss convex with curvature at most `exp(max_log_rate)`; the slope lies in
    `[-max_count, exp(max_log_rate)]`. The constant `log y!` is left out.
    """

    max_log_rate: float
    max_count: float

    def __post_init__(self) -> None:
        if not -700.0 <= self.max_log_rate <= 700.0:
            raise ValueError(
                f"max_log_rate must lie in [-700, 700], got {self.max_log_rate!r}: exp of it bounds the rate."
            )
        _require_positive("max_count", self.max_count, "the public cap on a record's count")

    @property
    def facts(self) -> LossFacts:
        top_rate = math.exp(self.max_log_rate)
        return LossFacts(
            name="poisson",
            lipschitz=max(top_rate, self.max_count),
            curvature=top_rate,
            value_at_zero=math.exp(min(0.0, self.max_log_rate)) + top_rate * max(-self.max_log_rate, 0.0),
            kernel_code=KernelCode.POISSON,
            kernel_parameters=(self.max_log_rate, self.max_count),
        )

    def value(self, prediction: Values, target: Values) -> Values:
        count = jnp.clip(target, 0.0, self.max_count)
        top_rate = math.exp(self.max_log_rate)
        return (
            self.predict_mean(prediction)
            + top_rate * jnp.maximum(prediction - self.max_log_rate, 0.0)
            - count * prediction
        )

    def slope(self, prediction: Values, target: Values) -> Values:
        return self.predict_mean(prediction) - arrays_of(target).clip(target, 0.0, self.max_count)

    def second_derivative(self, prediction: Values, target: Values) -> Values:
        rate = self.predict_mean(prediction)
        return jnp.where(prediction <= self.max_log_rate, rate, jnp.zeros_like(rate))

    def gentle_interval(self, target: Values, slope_cap: Values) -> tuple[Values, Values]:
        top_rate = math.exp(self.max_log_rate)
        count = jnp.clip(target, 0.0, self.max_count)
        low = _log_or_minus_infinity(count - slope_cap)
        high = jnp.where(count + slope_cap < top_rate, jnp.log(count + slope_cap), jnp.inf)
        never_gentle = count - slope_cap >= top_rate
        return (
            jnp.where(never_gentle, self.max_log_rate, low),
            jnp.where(never_gentle, self.max_log_rate, high),
        )

    def predict_mean(self, prediction: Values) -> Values:
        xp = arrays_of(prediction)
        return xp.exp(xp.minimum(prediction, self.max_log_rate))


@dataclass(frozen=True)
class Softmax(GLMLoss):
    """`log sum_k exp(t_k) - t_y`, targets the class codes 0..K-1 stored as floats.

    A target that is no code has no `t_y` term. The slope's norm is at most sqrt 2, the Hessian's largest
    eigenvalue at most 1/2 and its trace at most 1. Clipping this gradient is *not* the gradient of a convex
    loss.
    """

    classes: int

    def __post_init__(self) -> None:
        if self.classes < 2:
            raise ValueError(f"classes must be at least 2, got {self.classes!r}.")

    @property
    def facts(self) -> LossFacts:
        return LossFacts(
            name="softmax",
            lipschitz=math.sqrt(2.0),
            curvature=0.5,
            value_at_zero=math.log(self.classes),
            outputs=self.classes,
            kernel_code=KernelCode.SOFTMAX,
        )

    def value(self, prediction: Values, target: Values) -> Values:
        at_target = jnp.sum(prediction * self._one_hot(prediction, target), axis=-1)
        return jax.nn.logsumexp(prediction, axis=-1) - at_target

    def slope(self, prediction: Values, target: Values) -> Values:
        if arrays_of(prediction) is np:
            # As the kernel: exponents are kept from subnormal numbers, which take longer.
            shares = np.exp(np.maximum(prediction - np.max(prediction, axis=-1, keepdims=True), -708.0))
            shares /= np.sum(shares, axis=-1, keepdims=True)
            shares -= np.arange(self.outputs) == target[..., None]
            return shares
        return jax.nn.softmax(prediction, axis=-1) - self._one_hot(prediction, target)

    def predict_mean(self, prediction: Values) -> Values:
        return jax.nn.softmax(prediction, axis=-1)

    def _one_hot(self, prediction: Values, target: Values) -> Values:
        codes = jax.lax.broadcasted_iota(prediction.dtype, prediction.shape, prediction.ndim - 1)
        return (codes == jnp.expand_dims(target, -1)).astype(prediction.dtype)


logistic = Logistic()
squared = Squared()
huber = Huber
hinge = Hinge()
smoothed_hinge = SmoothedHinge
absolute = Absolute


@refuses_unknown
def quantile(quantile: float, smoothing: float = 0.0) -> Quantile:
    """The pinball loss of a quantile, see `Quantile`.

    Args:
        quantile: its level, strictly between 0 and 1; 0.5 is the median.
        smoothing: half the length over which the corner is made smooth; 0 for none.
    """
    return Quantile(quantile, smoothing)


poisson = Poisson
softmax = Softmax
ramp = Ramp


def _require_positive(name: str, number: float, meaning: str) -> None:
    if not (0.0 < number < math.inf):
        raise ValueError(f"{name} must be positive and finite, got {number!r}: it is {meaning}.")


def _log_or_minus_infinity(number: Values) -> Values:
    positive = number > 0.0
    return jnp.where(positive, jnp.log(jnp.where(positive, number, 1.0)), -jnp.inf)
