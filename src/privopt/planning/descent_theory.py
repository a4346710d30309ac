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
from numpy.typing import ArrayLike, NDArray

from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.task import Forecast, Instance
from privopt.problems.growth import KL
from privopt.problems.losses import (
    GLMLoss,
    Logistic,
    Poisson,
    Quantile,
    SmoothedHinge,
    Softmax,
    Squared,
)
from privopt.problems.problem import Problem
from privopt.public import Public

Shares = Literal["equal", "geometric"]
LONGEST_SCHEDULE = 5_000


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
        return min(math.ceil(self.smoothness / constant * logarithm), LONGEST_SCHEDULE)

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
            return LONGEST_SCHEDULE
        return max(1, min(round(math.sqrt(2.0 * self.smoothness * self.gap / self.spread)), LONGEST_SCHEDULE))

    def stationarity_bound(self, steps: int) -> float:
        """Expected squared gradient norm at a uniformly random one of `steps` iterates."""
        return 2.0 * self.smoothness * self.gap / steps + self.spread * steps

    def _require_constant(self, constant: float) -> None:
        if not 0 < constant <= self.smoothness:
            raise ValueError(
                f"the Polyak-Lojasiewicz constant must be positive and at most the smoothness {self.smoothness:g}, got "
                f"{constant!r}: a ridge of strength lam makes a convex loss at least lam."
            )


# ---- Settings of gradient methods from public quantities, so that nobody tunes on private data -------------
# With n units, p parameters, rows of norm at most R, budget mu (Gaussian DP) and factor 2 (replace-one) or 1:
#
#     signal      omega = n mu / (factor sqrt(p)): the largest gradient over the noise of one gradient
#     clip        C = slope * R, slope a little under the largest slope of the loss
#     step size   eta = 1.25 / (L + l), L = curvature * R^2, l the largest curvature of the penalty; stable for every
#                 momentum up to (4/3) / (L + l). Steps that take the ridge by its proximal map leave l out
#     steps       T = sqrt(8 * travel * omega / (eta R^2)), between 3 and 150
#     momentum    b = (1 - q) / (1 + q), q = min(4 / T, 0.8), fixed
#     average     weights (t + 1)^2
#     prediction  0.414 (eta R^2 T^2 / 128)^-0.582 for logistic regression
#
# `slope`, `curvature` and `travel` (how far to go, in units of 1 / R, for each unit of signal) stand in `guess`. They
# and the constants above were chosen by the training excess of logistic regression on eight tables (adult, compas,
# covertype, fars, german, kdd99, randhie, w8a) at epsilon 0.1 to 3; the other losses' were tried on one or two tables,
# and those of user-written losses on seven problems (networks, a bilinear model, robust and logistic regressions, a
# leaky link; adult, california, compas, randhie, generated rows) at epsilon 0.25 to 4. All of it concerns utility only.


NOISELESS_STEPS = 5_000  # with the noise off every step helps
FEWEST_STEPS, MOST_STEPS = 3, 150
STEP_FACTOR = 1.25
OWN_SLOPE, OWN_CURVATURE = 0.6, 0.5  # of a user-written loss that does not state them, slopes below about 1


@dataclass(frozen=True, kw_only=True)
class Guess:
    """What is guessed of a loss before the data is read; see the module's table.

    Attributes:
        slope: clip over R.
        curvature: smoothness over R^2.
        travel: path length (in 1 / R) that one unit of signal is worth.
    """

    slope: float
    curvature: float
    travel: float


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Derived parameters of a gradient method; see the module's table."""

    steps: int
    clip: float
    step_size: float
    momentum: float


def guess(instance: Instance) -> Guess:
    """The table of guesses; numbers to predict are scaled to [-1, 1], counts are not."""
    loss = instance.problem.loss
    if not isinstance(loss, GLMLoss):
        slope, curvature = OWN_SLOPE, OWN_CURVATURE
        if math.isfinite(loss.lipschitz):
            slope = loss.lipschitz / instance.public.row_bound
            curvature *= slope
        if math.isfinite(loss.curvature):
            curvature = loss.curvature / instance.public.row_bound**2
        return Guess(slope=slope, curvature=curvature, travel=16.0)
    match loss:
        case Logistic():
            return Guess(slope=0.8, curvature=0.25, travel=16.0)
        case Softmax():
            return Guess(slope=0.8, curvature=0.5, travel=40.0)
        case Squared():
            return Guess(slope=0.5, curvature=1.0, travel=4.0)
        case SmoothedHinge():
            return Guess(slope=0.8, curvature=loss.curvature, travel=7.5)
        case Poisson():
            slope = math.sqrt(loss.max_count)
            curvature = min(4.0 * slope, loss.curvature)
            return Guess(slope=slope, curvature=curvature, travel=4.0 / slope)
        case Quantile():
            curvature = loss.curvature if math.isfinite(loss.curvature) else 5.0
            slope = loss.lipschitz
            return Guess(slope=slope, curvature=curvature, travel=2.0 / slope)
        case _:  # Huber, and losses of the user's own
            slope = loss.lipschitz if math.isfinite(loss.lipschitz) else 1.0
            curvature = loss.curvature if math.isfinite(loss.curvature) else slope
            return Guess(slope=slope, curvature=curvature, travel=4.0 / slope)


def descent_setting(
    instance: Instance,
    *,
    clip: float | None = None,
    steps: int | None = None,
    curvature: float | None = None,
    shrinks: bool = False,
) -> Setting:
    """The setting of full-batch gradient descent.

    Args:
        instance: the problem and the budget.
        clip: C, where it is given.
        steps: T, where it is given.
        curvature: L + l, where it is given.
        shrinks: whether steps take the ridge by its proximal map.
    """
    strong = instance.ridge
    if curvature is None:
        curvature = smoothness(instance) + (0.0 if shrinks else instance.penalty_smoothness)
    step_size = STEP_FACTOR / curvature
    if steps is None:
        steps = default_steps(instance, step_size)
    slowness = max(math.sqrt(min(1.0, step_size * strong)), min(4.0 / max(steps, 1), 0.8))
    return Setting(
        steps=steps,
        clip=default_clip(instance) if clip is None else clip,
        step_size=step_size,
        momentum=(1.0 - slowness) / (1.0 + slowness),
    )


def default_clip(instance: Instance) -> float:
    """C; infinite with the noise off."""
    return guess(instance).slope * instance.public.row_bound if instance.is_private else math.inf


def noise_of_one(instance: Instance, clip: float) -> float:
    """s = factor C / (n mu): the noise of one mean gradient bought with the whole budget; 0 with the noise off."""
    if not instance.is_private:
        return 0.0
    return instance.public.relation.factor * clip / (instance.public.n * instance.mu)


def objective_facts(
    instance: Instance, *, clip: float, smoothness: float | None = None, gap: float | None = None
) -> SmoothObjective:
    """The constants of the bounds above, from public quantities.

    Args:
        instance: the problem and the budget.
        clip: C.
        smoothness: L, the ridge included; default that of the problem.
        gap: a bound on the excess of the start; default the bound on the loss at 0.
    Raises:
        ValueError: a constant is neither given nor known.
    """
    if smoothness is None:
        smoothness = instance.problem.smoothness(instance.public)
    if gap is None:
        gap = instance.loss_at_zero
    if gap is None or not math.isfinite(smoothness):
        raise ValueError(
            f"the {instance.problem.loss.name} loss has no known bound on its curvature or on its value at 0: give "
            "`smoothness` and `gap`."
        )
    noise = noise_of_one(instance, clip)
    return SmoothObjective(smoothness=smoothness, gap=gap, noise=noise, parameters=instance.parameters)


def relative_noise(instance: Instance) -> float:
    """x = factor sqrt(p) / (n mu): the noise of one gradient that the whole budget buys, over its clip."""
    return math.sqrt(instance.parameters) * noise_of_one(instance, 1.0)


def smoothness(instance: Instance) -> float:
    """L, a guess of the largest curvature of one record's loss."""
    guessed = guess(instance).curvature * instance.public.row_bound**2
    return min(instance.problem.loss_smoothness(instance.public), guessed)


def signal_to_noise(instance: Instance) -> float:
    """omega: the largest gradient norm over the noise norm of one gradient bought with the whole budget."""
    public = instance.public
    return public.n * instance.mu / (public.relation.factor * math.sqrt(instance.parameters))


def default_steps(instance: Instance, step_size: float) -> int:
    """T: accelerated steps for a path as long as the signal is worth; few where a ridge makes the problem easy."""
    signal = signal_to_noise(instance)
    strong = instance.ridge
    condition = 1.0 + smoothness(instance) / strong if strong > 0 else math.inf
    if math.isinf(signal):
        return math.ceil(min(40.0 * math.sqrt(condition), NOISELESS_STEPS))
    travel = guess(instance).travel * signal
    steps = math.ceil(min(math.sqrt(8.0 * travel / (step_size * instance.public.row_bound**2)), MOST_STEPS))
    return max(FEWEST_STEPS, math.ceil(min(steps, 10.0 * math.sqrt(condition))))


def forecast(instance: Instance, *, steps: int, clip: float) -> Forecast:
    """Predicted excess and notices of gradient descent, before the data is read."""
    if not instance.is_private:
        return Forecast(
            excess=None if instance.has_own_loss else 0.0,
            meaning="no formula for a user-written loss" if instance.has_own_loss else "the noise is off",
            notices=(NOISE_IS_OFF,),
        )
    excess, meaning = _predicted_excess(instance, steps=max(steps, 1), clip=clip)
    found = large_delta(instance)
    if instance.has_own_loss:
        found += (
            "step size and clip of a user-written loss, where not given, are guesses from the row bound.",
        )
    return Forecast(excess=excess, meaning=meaning, notices=found)


def _predicted_excess(instance: Instance, *, steps: int, clip: float) -> tuple[float | None, str]:
    """Predicted excess of the objective over its optimum, and what the number is."""
    loss, row_bound = instance.problem.loss, instance.public.row_bound
    if not isinstance(loss, GLMLoss):
        return None, "no formula for losses other than generalised-linear ones"
    curvature = smoothness(instance)
    if isinstance(loss, Logistic):
        work = STEP_FACTOR / (curvature + instance.ridge) * row_bound**2 * steps**2 / 128.0
        return min(
            math.log(2.0), 0.414 * work**-0.582
        ), "fitted on eight tables; often off by a factor of 2 to 4"
    distance = guess(instance).travel * guess(instance).slope / row_bound
    excess = accelerated_bound(
        smoothness=curvature,
        distance=distance,
        steps=steps,
        noise=noise_of_one(instance, clip),
        parameters=instance.parameters,
    )
    return instance.capped(excess), f"an upper estimate for an optimum within {distance:.3g} of zero"


# ------------------------------------------------------------------------------------------------------------
# What theory promises of private accelerated descent on a convex problem.
# Source:
#     Wang, Ye, Xu 2017, Theorem 5.4, with noise in both of its steps and its constants worked out.
def accelerated_bound(
    *, smoothness: float, distance: float, steps: int, noise: float, parameters: int
) -> float:
    """Expected excess after T steps: `4 L W^2 / (T + 1)^2 + T (T + 3) s^2 p / (6 L)`.

    Args:
        smoothness: L of the mean loss.
        distance: W, from the start to the optimum.
        steps: T.
        noise: s, standard deviation of one gradient's noise a coordinate, had the whole budget bought that one.
        parameters: p.
    """
    optimisation = 4.0 * smoothness * distance**2 / (steps + 1) ** 2
    privacy = steps * (steps + 3) * noise**2 * parameters / (6.0 * smoothness)
    return optimisation + privacy


# ---- The curvature that a run's own releases show ----------------------------------------------------------
RARE = 10.0  # minus the logarithm of the probability with which noise alone shows a curvature


@dataclass(frozen=True)
class ShownCurvature:
    """The largest curvature L that successive released gradients have shown, corrected for their noise.

    Two gradients at points a distance s apart that differ by y, with independent noise of standard deviation d in each
    of p entries, show the curvature `sqrt(|y|^2 - 2 d^2 (p + 2 sqrt(10 p) + 20)) / s`, or 0 where that is no number.
    Noise alone shows a positive one with probability at most e^-10. Post-processing.

    Attributes:
        largest: L, in objective units / params^2; 0 before two gradients.
        point: where the last gradient was taken, (p,); None before the first.
        gradient: the last gradient, penalty included, (p,).
    Source:
        Laurent, Massart 2000, Lemma 1, for the tail of a sum of squares; the rest is ours.
    """

    largest: float = 0.0
    point: NDArray[np.float64] | None = None
    gradient: NDArray[np.float64] | None = None

    def after(self, point: ArrayLike, gradient: ArrayLike, deviation: float) -> "ShownCurvature":
        """The curvature shown with one more gradient; a gradient that is not finite is left out.

        Args:
            point: where it was taken, p entries in any shape.
            gradient: the released gradient, penalty included, p entries.
            deviation: d, of one entry of this gradient.
        """
        at, slope = (np.ravel(np.asarray(entries, np.float64)) for entries in (point, gradient))
        if not (np.all(np.isfinite(at)) and np.all(np.isfinite(slope))):
            return self
        if self.point is None or self.gradient is None:
            return ShownCurvature(self.largest, at, slope)
        distance = float(np.linalg.norm(at - self.point))
        noise = 2.0 * deviation**2 * (at.size + 2.0 * math.sqrt(RARE * at.size) + 2.0 * RARE)
        change = math.sqrt(max(float(np.sum((slope - self.gradient) ** 2)) - noise, 0.0))
        shown = change / distance if distance > 0.0 else 0.0
        return ShownCurvature(max(self.largest, shown) if math.isfinite(shown) else self.largest, at, slope)

    def step_size(self, longest: float) -> float:
        """The step size 1 / L, but at most `longest`."""
        return min(longest, 1.0 / self.largest) if self.largest > 0.0 else longest
