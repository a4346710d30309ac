"""Steps, budget shares and error bounds of private gradient descent on smooth objectives, from public constants.

With p parameters, an L-smooth objective, `gap` its excess at the start, and s a coordinate's noise of one gradient had
the whole budget bought that one (T equal releases have s sqrt(T) each), plain descent with step size 1 / L gives

    Polyak-Lojasiewicz with constant c, a = 1 - c / L, last iterate:
        equal shares      a^T gap + p s^2 T (1 - a^T) / (2 L (1 - a))
        geometric shares  a^T gap + p s^2 / (2 L) ((1 - a^(T/2)) / (1 - sqrt(a)))^2  <=  a^T gap + 2 p s^2 L / c^2
        steps             T = ceil((L / c) ln(max(e, 2 c gap / (p s^2))))
    any smooth objective, a random iterate:
        mean squared gradient norm at most 2 L gap / T + p s^2 T, least at T = sqrt(2 L gap / (p s^2))

Geometric shares, rho_t proportional to a^((T-1-t)/2), minimise `sum_t a^(T-1-t) sigma_t^2`: an early step's noise has
shrunk by the end. They rid the bound of a factor log, and the last iterate gains 1.7 times at T = 6 L / c.

Under the (gamma, kappa)-KL condition, `predicted_path` follows the expected excess of plain descent step by step.

Differs from the paper:
    The paper's theorem for such objectives adds up the noise of all steps as if none of it shrank.
Source:
    Wang, Ye, Xu 2017, Theorems 6.2 and 6.3, with constants worked out; the geometric shares are ours.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from privopt.problems.growth import KL
from privopt.problems.losses import GLMLoss
from privopt.problems.problem import Problem
from privopt.public import Public

Shares = Literal["equal", "geometric"]
MOST_STEPS = 5_000


def budget_shares(shares: Shares, steps: int, contraction: float) -> NDArray[np.float64]:
    """The fraction of rho (or of mu^2) that each step spends; they sum to 1.

    Args:
        shares: "equal", or "geometric": proportional to contraction^((steps - 1 - t) / 2).
        steps: how many there are.
        contraction: a in (0, 1], the factor by which a step shrinks the excess.
    """
    if shares not in ("equal", "geometric"):
        raise ValueError(f"shares must be 'equal' or 'geometric', got {shares!r}.")
    if not 0.0 < contraction <= 1.0:
        raise ValueError(
            f"contraction must be in (0, 1], got {contraction!r}: it is 1 - step_size * strong convexity."
        )
    if shares == "equal" or steps == 0:
        return np.full(steps, 1.0 / max(steps, 1))
    logs = 0.5 * math.log(contraction) * (steps - 1.0 - np.arange(steps))
    weights = np.exp(np.maximum(logs, -100.0))  # a step that buys nothing would have no noise multiplier
    return weights / weights.sum()


def trace_ratio(problem: Problem, public: Public) -> float:
    """A bound on the trace of one record's Hessian over its largest eigenvalue, for losses within their formula.

    1 for a generalised-linear loss, whose Hessians have rank one; 2 for softmax, whose Hessian by the predictions has
    trace at most 1 and norm at most 1/2; else the number of parameters.
    """
    if isinstance(problem.loss, GLMLoss):
        return float(min(problem.loss.outputs, 2))
    return float(math.prod(problem.parameter_shape(public)))


def predicted_path(
    growth: KL, *, gap: float, step_size: float, smoothness: float, trace: float, noises: NDArray[np.float64]
) -> float:
    """The excess of the last iterate of plain descent, as in expectation but for the order of mean and power.

        F <- F - eta (1 - L eta / 2) (F^(1/kappa) / gamma)^2 + (eta^2 / 2) trace sigma_t^2

    Args:
        growth: the KL condition.
        gap: the excess of the start.
        step_size: eta.
        smoothness: L of the objective, the penalty included.
        trace: of the Hessian, at most.
        noises: sigma_t, the noise of each coordinate of each step's gradient.
    """
    excess, gain = gap, step_size * (1.0 - smoothness * step_size / 2.0)
    for noise in noises.tolist():
        descended = excess - gain * growth.gradient_at(excess) ** 2
        excess = max(descended, 0.0) + 0.5 * step_size**2 * trace * noise**2
    return excess


@dataclass(frozen=True, kw_only=True)
class SmoothObjective:
    """What the bounds of this module need.

    Attributes:
        smoothness: L, the penalty included.
        gap: a public bound on the excess of the start.
        noise: s; 0 without privacy.
        parameters: p.
    """

    smoothness: float
    gap: float
    noise: float
    parameters: int

    def __post_init__(self) -> None:
        if not (0 < self.smoothness < math.inf and 0 < self.gap < math.inf):
            raise ValueError(
                f"smoothness and gap must be positive and finite, got {self.smoothness!r} and {self.gap!r}: give "
                "bounds on the curvature of the objective and on the excess of the start."
            )

    @property
    def spread(self) -> float:
        """p s^2."""
        return self.parameters * self.noise**2

    def steps_to_contract(self, constant: float) -> int:
        """T of the Polyak-Lojasiewicz setting.

        Args:
            constant: c.
        """
        self._require_constant(constant)
        signal = 2.0 * constant * self.gap / self.spread if self.spread > 0 else math.inf
        logarithm = math.log(min(max(math.e, signal), 1e16))
        return min(math.ceil(self.smoothness / constant * logarithm), MOST_STEPS)

    def last_iterate_bound(self, constant: float, steps: int, shares: Shares) -> float:
        """Expected excess of the last of `steps` iterates."""
        self._require_constant(constant)
        a = 1.0 - constant / self.smoothness
        if shares == "equal":
            geometric = (1.0 - a**steps) / (1.0 - a)
            return a**steps * self.gap + self.spread * steps * geometric / (2.0 * self.smoothness)
        root = (1.0 - a ** (steps / 2.0)) / (1.0 - math.sqrt(a))
        return a**steps * self.gap + self.spread * root**2 / (2.0 * self.smoothness)

    def steps_to_flatten(self) -> int:
        """T of the stationarity setting."""
        if self.spread == 0:
            return MOST_STEPS
        return max(1, min(round(math.sqrt(2.0 * self.smoothness * self.gap / self.spread)), MOST_STEPS))

    def stationarity_bound(self, steps: int) -> float:
        """Expected squared gradient norm at a uniformly random one of `steps` iterates."""
        return 2.0 * self.smoothness * self.gap / steps + self.spread * steps

    def _require_constant(self, constant: float) -> None:
        if not 0 < constant <= self.smoothness:
            raise ValueError(
                f"the Polyak-Lojasiewicz constant must be positive and at most the smoothness {self.smoothness:g}, got "
                f"{constant!r}: a ridge of strength lam makes a convex loss at least lam."
            )
