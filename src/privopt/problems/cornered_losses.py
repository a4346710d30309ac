"""Losses with a corner, the hinge and the absolute loss, and the ramp that rounds corners, also for `losses`."""

import math
from dataclasses import dataclass

import jax.numpy as jnp

from privopt.problems.glm import LossFacts, ScalarLoss, Values
from privopt.problems.pieces import Pieces, step


def smoothed_ramp(position: Values, halfwidth: float) -> Values:
    """`max(x, 0)`, averaged over `x +- halfwidth`."""
    if halfwidth == 0.0:
        return jnp.maximum(position, 0.0)
    near = jnp.clip(position, -halfwidth, halfwidth)
    return (near + halfwidth) * ((near + halfwidth) / (4.0 * halfwidth)) + jnp.maximum(
        position - halfwidth, 0.0
    )


def smoothed_step(position: Values, halfwidth: float) -> Values:
    """The derivative of `smoothed_ramp`, from 0 to 1; 1/2 at a corner."""
    if halfwidth == 0.0:
        return 0.5 * (1.0 + jnp.sign(position))
    return jnp.clip((position + halfwidth) / (2.0 * halfwidth), 0.0, 1.0)


def smoothed_step_slope(position: Values, halfwidth: float) -> Values:
    """The derivative of `smoothed_step`; zero at a corner."""
    if halfwidth == 0.0:
        return jnp.zeros_like(position)
    return (jnp.abs(position) <= halfwidth).astype(position.dtype) / (2.0 * halfwidth)


def as_label(target: Values) -> Values:
    """The target as a label that the constants hold for: the compiled formulas do the same."""
    return jnp.clip(target, -1.0, 1.0)


def where_margin_at_least(least_margin: Values, target: Values) -> tuple[Values, Values]:
    """The predictions t with `y t >= least_margin`, y = +-1, as an interval."""
    positive = target > 0.0
    return jnp.where(positive, least_margin, -jnp.inf), jnp.where(positive, jnp.inf, -least_margin)


@dataclass(frozen=True)
class Hinge(ScalarLoss):
    """The hinge `max(0, 1 - m)`, `m = y t`: the support vector machine, with a subgradient of 1/2 at the corner.

    Targets y in {-1, +1}, others are moved into [-1, 1]; `predict_mean` is the score itself. `losses.SmoothedHinge` is
    the same with a rounded corner, at most `width / 4` above it.
    """

    @property
    def facts(self) -> LossFacts:
        return LossFacts(name="hinge", lipschitz=1.0, monotone=True, value_at_zero=1.0)

    @property
    def pieces(self) -> Pieces:
        return Pieces.of_steps("margin", step(1.0, 1.0, 0.0), first=-1.0, at_zero=1.0)

    def value(self, prediction: Values, target: Values) -> Values:
        return smoothed_ramp(1.0 - as_label(target) * prediction, 0.0)

    def slope(self, prediction: Values, target: Values) -> Values:
        return -as_label(target) * smoothed_step(1.0 - as_label(target) * prediction, 0.0)

    def second_derivative(self, prediction: Values, target: Values) -> Values:
        return jnp.zeros_like(prediction * target)

    def gentle_interval(self, target: Values, slope_cap: Values) -> tuple[Values, Values]:
        least_margin = jnp.where(slope_cap < 1.0, 1.0, -jnp.inf)
        return where_margin_at_least(least_margin, target)

    def predict_mean(self, prediction: Values) -> Values:
        return prediction


@dataclass(frozen=True)
class Absolute(ScalarLoss):
    """`|t - y|`: the median regression; twice the quantile loss of level 1/2.

    With `smoothing` h > 0 it is averaged over `t - y + u`, u uniform on [-h, h]: `(r^2 + h^2) / (2 h)` for `|r| <= h`,
    `|r|` outside; curvature `1 / h`, at most `h / 2` above the absolute loss.
    """

    smoothing: float = 0.0

    def __post_init__(self) -> None:
        if not (0.0 <= self.smoothing < math.inf):
            raise ValueError(
                f"smoothing must be at least 0 and finite, got {self.smoothing!r}: it has the target's unit."
            )

    @property
    def facts(self) -> LossFacts:
        return LossFacts(
            name="absolute",
            lipschitz=1.0,
            curvature=1.0 / self.smoothing if self.smoothing > 0 else math.inf,
        )

    @property
    def pieces(self) -> Pieces:
        rise = step(0.0, 2.0, self.smoothing)
        return Pieces.of_steps("residual", rise, first=-1.0, at_zero=0.5 * self.smoothing)

    def value(self, prediction: Values, target: Values) -> Values:
        excess = prediction - target
        return 2.0 * smoothed_ramp(excess, self.smoothing) - excess

    def slope(self, prediction: Values, target: Values) -> Values:
        return 2.0 * smoothed_step(prediction - target, self.smoothing) - 1.0

    def second_derivative(self, prediction: Values, target: Values) -> Values:
        return 2.0 * smoothed_step_slope(prediction - target, self.smoothing)

    def gentle_interval(self, target: Values, slope_cap: Values) -> tuple[Values, Values]:
        half_width = jnp.where(slope_cap < 1.0, self.smoothing * slope_cap, jnp.inf)
        return target - half_width, target + half_width

    def predict_mean(self, prediction: Values) -> Values:
        return prediction
