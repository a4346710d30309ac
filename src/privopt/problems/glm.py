"""What a loss of one record is: generalised linear losses, and losses of the user's own, known whole or by values.

A *generalised linear* loss is `phi(prediction, target)` with `prediction = features @ params`. Its record
gradient is `phi' * features`, so clipping it is a scalar operation. Most are convex in the prediction (`convex`
says which); then the clipped gradient is the gradient of the *Huberised* loss: `phi` where `|phi'| <= cap`,
continued linearly outside, still convex and with no larger curvature. Proofs that need a bounded gradient of
a convex loss rest on that, hence on the formulas of `losses.py` only, never on data.

Source:
    Convexity of the Huberised loss: `phi'` is non-decreasing and clipping keeps it so; the interval where
    it is not clipped is known in closed form for every loss.
"""

import abc
import enum
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

from privopt.later import Array, Float, jax, jnp
from privopt.problems.black_box import BlackBox
from privopt.problems.pieces import Pieces, Values

__all__ = ["GLMLoss", "KernelCode", "Loss", "LossFacts", "RecordLoss", "ScalarLoss", "Values"]


class KernelCode(enum.IntEnum):
    """Which compiled formula of `phi'(t, y)` the engine's kernel uses; `(p0, p1)` are the kernel parameters.

    LOGISTIC: `-y / (1 + exp(y t))`, y moved into [-1, 1].
    SQUARED: `t - y`.
    HUBER: `clip(t - y, -p0, p0)`, p0 the threshold.
    SMOOTHED_HINGE: `-y * clip((1 + p0 - y t) / (2 p0), 0, 1)`, y likewise, p0 the width.
    QUANTILE: `step(t - y) - p0`, p0 the level, p1 the smoothing; `step(x) = clip((x + p1) / (2 p1), 0, 1)` if
        p1 > 0, else `1 if x > 0 else 0.5 if x == 0 else 0`.
    POISSON: `exp(min(t, p0)) - clip(y, 0, p1)`, p0 the largest log-rate, p1 the largest count.
    SOFTMAX: K outputs, `softmax(t) - onehot(y)`, y the class's code 0..K-1 as a float (any other: no class).
    RAMP: `-y (step(1 - y t) - step(-1 - y t)) / 2`, y moved into [-1, 1], step as for QUANTILE with p0 for p1.
    CAPPED_ABSOLUTE: `2 step(r) - step(r + p0) - step(r - p0)`, r = t - y, p0 the cap, p1 the width of the steps.
    CAPPED_SQUARED: `(c(r + p1)^2 - c(r - p1)^2) / (4 p1)`, `c(x) = clip(x, -p0, p0)`; for p1 = 0, `r (step(r + p0) -
        step(r - p0))`.
    """

    LOGISTIC = 0
    SQUARED = 1
    HUBER = 2
    SMOOTHED_HINGE = 3
    QUANTILE = 4
    POISSON = 5
    SOFTMAX = 6
    RAMP = 7
    CAPPED_ABSOLUTE = 8
    CAPPED_SQUARED = 9


@dataclass(frozen=True, kw_only=True)
class LossFacts:
    """The constants of a loss formula; they hold for every prediction and every target of its domain.

    Attributes:
        name: the loss's name in reports.
        lipschitz: supremum of `|phi'|` (l2 norm for softmax); infinite if unbounded.
        curvature: supremum of `|phi''|` (largest eigenvalue for softmax); infinite for a loss that is not
        smooth.
        convex: whether phi is convex in the prediction; what rests on convexity refuses a loss that is not.
        monotone: whether the target alone fixes the sign of `phi'` (objective perturbation is then cheaper).
        value_at_zero: an upper bound on the loss at prediction 0 over all targets; None if there is none.
        outputs: predictions per record.
        kernel_code: the compiled formula; None if the engine has to differentiate.
        kernel_parameters: the formula's `(p0, p1)`.
    """

    name: str
    lipschitz: float = math.inf
    curvature: float = math.inf
    convex: bool = True
    monotone: bool = False
    value_at_zero: float | None = None
    outputs: int = 1
    kernel_code: int | None = None
    kernel_parameters: tuple[float, float] = (0.0, 0.0)


class GLMLoss(abc.ABC):
    """A function `phi(prediction, target)` of a linear prediction, convex in it unless `convex` says otherwise.

    Predictions have the targets' shape, with one last axis of length `outputs` more when `outputs > 1`.
    The constants of `LossFacts` are attributes of the loss.
    """

    @property
    @abc.abstractmethod
    def facts(self) -> LossFacts:
        """All constants of this loss at once."""

    @cached_property
    def _constants(self) -> LossFacts:
        """`facts`, made once: some are asked for at every step of a run."""
        return self.facts

    @property
    def name(self) -> str:
        """See `LossFacts`."""
        return self._constants.name

    @property
    def outputs(self) -> int:
        """See `LossFacts`."""
        return self._constants.outputs

    @property
    def lipschitz(self) -> float:
        """See `LossFacts`."""
        return self._constants.lipschitz

    @property
    def curvature(self) -> float:
        """See `LossFacts`."""
        return self._constants.curvature

    @property
    def convex(self) -> bool:
        """See `LossFacts`."""
        return self._constants.convex

    @property
    def monotone(self) -> bool:
        """See `LossFacts`."""
        return self._constants.monotone

    @property
    def value_at_zero(self) -> float | None:
        """See `LossFacts`."""
        return self._constants.value_at_zero

    @property
    def kernel_code(self) -> int | None:
        """See `LossFacts`; a plain integer, as the compiled kernels want it."""
        code = self._constants.kernel_code
        return None if code is None else int(code)

    @property
    def kernel_parameters(self) -> tuple[float, float]:
        """See `LossFacts`."""
        return self._constants.kernel_parameters

    @property
    def pieces(self) -> Pieces | None:
        """The loss as pieces of straight or bent slope, where its slope is piecewise linear and that is known."""
        return None

    @property
    def balances(self) -> bool:
        """Whether `steepest_slope` is known, so that gradients can be clipped without regard to the target."""
        return False

    def steepest_slope(self, prediction: Values) -> Values:
        """The largest `|phi'|` (l2 norm for softmax) that any target of the domain gives at a prediction.

        Raises:
            ValueError: the loss has no such formula, see `balances`.
        """
        del prediction
        raise ValueError(f"the {self.name} loss has no balanced clip: its slope does not say enough.")

    @abc.abstractmethod
    def value(self, prediction: Values, target: Values) -> Values:
        """`phi`, of the targets' shape."""

    @abc.abstractmethod
    def slope(self, prediction: Values, target: Values) -> Values:
        """`phi'`, the derivative by the prediction, of the predictions' shape."""

    @abc.abstractmethod
    def predict_mean(self, prediction: Values) -> Values:
        """What the model expects of the target: the inverse link of the prediction."""


class ScalarLoss(GLMLoss):
    """A convex generalised linear loss with one output, and its Huberised version."""

    @abc.abstractmethod
    def second_derivative(self, prediction: Values, target: Values) -> Values:
        """`phi''` where it exists, one of its one-sided values elsewhere."""

    @abc.abstractmethod
    def gentle_interval(self, target: Values, slope_cap: Values) -> tuple[Values, Values]:
        """The interval `low <= high` of predictions outside of which the Huberised loss is linear.

        It is the set where `|phi'| <= slope_cap`, with infinite ends where `phi'` stays below the cap; a
        single point where `phi'` jumps over the whole of `[-slope_cap, slope_cap]` or never enters it.
        """

    def huberised_value(self, prediction: Values, target: Values, slope_cap: Values) -> Values:
        """`phi` where `|phi'| <= slope_cap`, continued linearly with slope `+-slope_cap` outside: convex.

        Args:
            prediction: predictions, of the targets' shape.
            target: targets.
            slope_cap: positive, of the targets' shape: one record's gradient clip over its features' norm.
        """
        low, high = self.gentle_interval(target, slope_cap)
        inside = jnp.clip(prediction, low, high)
        rise = self.huberised_slope(prediction, target, slope_cap) * (prediction - inside)
        return self.value(inside, target) + rise

    def huberised_slope(self, prediction: Values, target: Values, slope_cap: Values) -> Values:
        """`phi'` clipped to `[-slope_cap, slope_cap]`, the derivative of `huberised_value`."""
        return jnp.clip(self.slope(prediction, target), -slope_cap, slope_cap)

    def huberised_second_derivative(self, prediction: Values, target: Values, slope_cap: Values) -> Values:
        """`phi''` where `|phi'| < slope_cap`, zero outside."""
        gentle = jnp.abs(self.slope(prediction, target)) < slope_cap
        bend = self.second_derivative(prediction, target)
        return jnp.where(gentle, bend, jnp.zeros_like(bend))


@dataclass(frozen=True)
class RecordLoss:
    """A loss of the user's own: `value(params, features, target)`, a scalar that JAX can differentiate.

    Two of them are equal when their functions and constants are, so a compiled step is found again.
    Privacy never rests on the constants, gradients are clipped: they are for planning, utility only.

    Attributes:
        value: the loss of one record, of a flat vector of parameters; `Problem.from_pytree` takes a pytree.
        name: the loss's name in reports.
        lipschitz: a bound on the gradient's norm, infinite if not known.
        curvature: a bound on the Hessian's norm, infinite if not known.
        convex: whether the loss is convex in the parameters; None if that is not known, which no solver refuses.
        monotone, value_at_zero, outputs, kernel_code, kernel_parameters: as in `LossFacts`.
    """

    value: Callable[[Float[Array, " p"], Float[Array, " d"], Float[Array, ""]], Float[Array, ""]]
    name: str = "custom"
    lipschitz: float = math.inf
    curvature: float = math.inf
    convex: bool | None = None
    monotone: bool = False
    value_at_zero: float | None = None
    outputs: int = 1
    kernel_code: int | None = None
    kernel_parameters: tuple[float, float] = (0.0, 0.0)

    def gradient(
        self, params: Float[Array, " p"], features: Float[Array, " d"], target: Float[Array, ""]
    ) -> Float[Array, " p"]:
        """The gradient of one record's loss by the flat parameters."""
        return jax.grad(self.value)(params, features, target)


Loss: TypeAlias = GLMLoss | RecordLoss | BlackBox
