"""Losses that level off, so that records which are plainly wrong stop counting: the ramp and the capped losses.

They are *not convex*: no proof, bound or prediction for convex losses holds for them (`convex` is False), and there
may be minima that are not the best. Corners are rounded over `width` on either side, so that gradients do not jump:
each is the average of the loss with corners over `x +- width`, x the margin or the residual.

Source:
    Collobert, Sinz, Weston, Bottou 2006, Trading convexity for scalability (ramp); Hinich, Talwar 1975, A simple method
    for robust regression (capped squares).
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from privopt.later import jax, jnp
from privopt.named_arguments import refuses_unknown
from privopt.precision import arrays_of
from privopt.problems.glm import GLMLoss, KernelCode, LossFacts, ScalarLoss, Values
from privopt.problems.pieces import Knot, Pieces, step

RAMP_WIDTH = 0.5
WIDTH_OF_CAP = 0.25  # the default width of a capped loss, over its cap

Of = Literal["absolute", "squared", "quantile"]


@dataclass(frozen=True)
class Ramp(GLMLoss):
    """The ramp `min(1, max(0, (1 - m) / 2))`, `m = y t`: from 0 for margins above 1 to 1 below -1, not convex.

    About the share of wrong signs; a record with a wrong label costs at most 1 however sure the model is. Corners are
    rounded over margins `width` on either side. Targets y in {-1, +1}, others are moved into [-1, 1]; `predict_mean` is
    the score itself, the model has no probabilities.

    Attributes:
        width: half the length of margins over which a corner is rounded, at most 1; 0 for corners.
    """

    width: float = RAMP_WIDTH

    def __post_init__(self) -> None:
        if not 0.0 <= self.width <= 1.0:
            raise ValueError(
                f"width must lie in [0, 1], got {self.width!r}: a corner of the ramp is rounded over so much on either "
                "side, and its corners are 2 apart."
            )

    @property
    def facts(self) -> LossFacts:
        return LossFacts(
            name="ramp",
            lipschitz=0.5,
            curvature=0.25 / self.width if self.width > 0 else math.inf,
            convex=False,
            monotone=True,
            value_at_zero=0.5,
            kernel_code=KernelCode.RAMP,
            kernel_parameters=(self.width, 0.0),
        )

    @property
    def pieces(self) -> Pieces:
        fall, rise = step(-1.0, -0.5, self.width), step(1.0, 0.5, self.width)
        return Pieces.of_steps("margin", fall, rise, first=0.0, at_zero=0.5)

    def value(self, prediction: Values, target: Values) -> Values:
        level = 1.0 + self.width  # beyond it nothing changes
        margin = jnp.clip(as_label(target) * prediction, -level, level)
        return 0.5 * (smoothed_ramp(1.0 - margin, self.width) - smoothed_ramp(-1.0 - margin, self.width))

    def slope(self, prediction: Values, target: Values) -> Values:
        label = as_label(target)
        margin = label * prediction
        below = smoothed_step(1.0 - margin, self.width) - smoothed_step(-1.0 - margin, self.width)
        return -0.5 * label * below

    def predict_mean(self, prediction: Values) -> Values:
        return prediction


@dataclass(frozen=True)
class Capped(GLMLoss):
    """A loss of the residual `r = t - y` that stays what it is at `|r| = cap` beyond it: not convex.

    `phi(min(max(r, -cap), cap))`, phi(r) being `|r|`, `r^2 / 2` or the pinball loss of `losses.quantile`, `(1 - level)
    max(r, 0) + level max(-r, 0)`. A record further off than the cap pulls no more. Corners, also the one at 0, are
    rounded over residuals `width` on either side.

    Attributes:
        cap: the largest residual that counts, in the target's unit.
        of: which loss is capped.
        level: of the quantile loss.
        width: half the length of residuals over which a corner is rounded, at most half the cap; 0 for corners.
    """

    cap: float
    of: Of = "absolute"
    level: float = 0.5
    width: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 < self.cap < math.inf:
            raise ValueError(
                f"cap must be positive and finite, got {self.cap!r}: it is the largest residual that counts."
            )
        if self.of not in get_args(Of):
            raise ValueError(
                f"of must be one of {list(get_args(Of))}, got {self.of!r}: it is what is capped."
            )
        if not 0.0 < self.level < 1.0:
            raise ValueError(
                f"quantile must lie strictly between 0 and 1, got {self.level!r}: 0.5 is the median."
            )
        if not 0.0 <= self.width <= 0.5 * self.cap:
            raise ValueError(
                f"width must lie in [0, cap / 2 = {0.5 * self.cap:g}], got {self.width!r}: a corner is rounded over "
                "residuals of so much on either side."
            )

    @property
    def facts(self) -> LossFacts:
        code = {"absolute": KernelCode.CAPPED_ABSOLUTE, "squared": KernelCode.CAPPED_SQUARED}.get(self.of)
        top = 0.5 * self.cap**2 if self.of == "squared" else max(self.sides) * self.cap
        return LossFacts(
            name=f"capped {self.of}",
            lipschitz=self._steepest,
            curvature=self._curvature,
            convex=False,
            value_at_zero=top,
            kernel_code=code,
            kernel_parameters=(self.cap, self.width),
        )

    @property
    def pieces(self) -> Pieces | None:
        cap, width = self.cap, self.width
        if self.of == "squared":
            if width > 0.0:
                return None  # its slope is bent
            knots = Knot(-cap, -cap, 1.0), Knot(cap, -cap, -1.0)
            return Pieces.of_steps("residual", knots, first=0.0, at_zero=0.0)
        below, above = self.sides
        steps = step(-cap, -below, width), step(0.0, below + above, width), step(cap, -above, width)
        return Pieces.of_steps("residual", *steps, first=0.0, at_zero=0.25 * (below + above) * width)

    @property
    def _steepest(self) -> float:
        if self.of == "squared":
            return self.cap - self.width
        return max(self.sides)

    @property
    def _curvature(self) -> float:
        if self.width == 0.0:
            return math.inf
        if self.of == "squared":
            return max(1.0, 0.5 * self.cap / self.width)
        return 0.5 * sum(self.sides) / self.width

    @property
    def sides(self) -> tuple[float, float]:
        """The slopes below and above 0, without their sign."""
        return (1.0, 1.0) if self.of == "absolute" else (self.level, 1.0 - self.level)

    def value(self, prediction: Values, target: Values) -> Values:
        end = self.cap + self.width  # beyond it nothing changes
        residual = jnp.clip(prediction - target, -end, end)
        if self.of == "squared":
            return self._squared_value(jnp.abs(residual))
        below, above = self.sides
        return (
            (below + above) * smoothed_ramp(residual, self.width)
            - below * (smoothed_ramp(residual + self.cap, self.width) - self.cap)
            - above * smoothed_ramp(residual - self.cap, self.width)
        )

    def _squared_value(self, far: Values) -> Values:
        # A square averaged over +- width is width^2 / 6 higher; the slope near the cap is (cap^2 - (r - w)^2) / (4 w).
        if self.width == 0.0:
            return 0.5 * jnp.minimum(far, self.cap) ** 2
        inner = self.cap - self.width
        near, above = jnp.minimum(far, inner), jnp.maximum(far, inner) - self.width
        first = inner - self.width
        rise = (self.cap**2 * (above - first) - (above**3 - first**3) / 3.0) / (4.0 * self.width)
        return 0.5 * near * near + self.width**2 / 6.0 + rise

    def slope(self, prediction: Values, target: Values) -> Values:
        residual = prediction - target
        steepest = self._steepest
        if self.of == "squared":
            return arrays_of(residual).clip(self._squared_slope(residual), -steepest, steepest)
        below, above = self.sides
        slope = (
            (below + above) * smoothed_step(residual, self.width)
            - below * smoothed_step(residual + self.cap, self.width)
            - above * smoothed_step(residual - self.cap, self.width)
        )
        return arrays_of(residual).clip(slope, -below, above)

    def _squared_slope(self, residual: Values) -> Values:
        if self.width == 0.0:
            inside = smoothed_step(residual + self.cap, 0.0) - smoothed_step(residual - self.cap, 0.0)
            return residual * inside
        ahead = jnp.clip(residual + self.width, -self.cap, self.cap)
        behind = jnp.clip(residual - self.width, -self.cap, self.cap)
        return (ahead - behind) * ((ahead + behind) / (4.0 * self.width))

    def predict_mean(self, prediction: Values) -> Values:
        return prediction


@refuses_unknown
def capped(cap: float, of: Of = "absolute", *, quantile: float = 0.5, width: float | None = None) -> Capped:
    """A capped loss, its corners rounded over a quarter of the cap unless `width` says otherwise.

    Args:
        cap: the largest residual that counts, in the target's unit.
        of: which loss is capped: "absolute", "squared" or "quantile".
        quantile: level of the quantile loss.
        width: see `Capped`.
    """
    return Capped(cap, of, quantile, WIDTH_OF_CAP * cap if width is None else width)


# ------------------------------------------------------------------------------------------------------------
# Losses with a corner, the hinge and the absolute loss, and the ramp that rounds corners, also for
# `losses`.


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
    xp = arrays_of(position)
    if halfwidth == 0.0:
        return 0.5 * (1.0 + xp.sign(position))
    return xp.clip((position + halfwidth) / (2.0 * halfwidth), 0.0, 1.0)


def smoothed_step_slope(position: Values, halfwidth: float) -> Values:
    """The derivative of `smoothed_step`; zero at a corner."""
    if halfwidth == 0.0:
        return jnp.zeros_like(position)
    return (jnp.abs(position) <= halfwidth).astype(position.dtype) / (2.0 * halfwidth)


def sigmoid(position: Values) -> Values:
    """`1 / (1 + exp(-x))`."""
    xp: Any = arrays_of(position)
    if xp is jnp:
        return jax.nn.sigmoid(position)
    exponents = xp.minimum(xp.maximum(-position, -708.0), 708.0)  # subnormal numbers would take longer
    return 1.0 / (1.0 + xp.exp(exponents))


def as_label(target: Values) -> Values:
    """The target as a label that the constants hold for: the compiled formulas do the same."""
    return arrays_of(target).clip(target, -1.0, 1.0)


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
