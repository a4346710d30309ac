"""Settings of gradient methods from public quantities, so that nobody tunes on private data.

With n units, p parameters, rows of norm at most R, budget mu (Gaussian DP) and factor 2 (replace-one) or 1:

    signal      omega = n mu / (factor sqrt(p)): the largest gradient over the noise of one gradient
    clip        C = slope * R, slope a little under the largest slope of the loss
    step size   eta = 1.25 / (L + l), L = curvature * R^2, l the largest curvature of the penalty; stable for every
                momentum up to (4/3) / (L + l). Steps that take the ridge by its proximal map leave l out
    steps       T = sqrt(8 * travel * omega / (eta R^2)), between 3 and 150
    momentum    b = (1 - q) / (1 + q), q = min(4 / T, 0.8), fixed
    average     weights (t + 1)^2
    prediction  0.414 (eta R^2 T^2 / 128)^-0.582 for logistic regression

`slope`, `curvature` and `travel` (how far to go, in units of 1 / R, for each unit of signal) stand in `guess`. They
and the constants above were chosen by the training excess of logistic regression on eight tables (adult, compas,
covertype, fars, german, kdd99, randhie, w8a) at epsilon 0.1 to 3; the other losses' were tried on one or two tables,
and those of user-written losses on seven problems (networks, a bilinear model, robust and logistic regressions, a leaky
link; adult, california, compas, randhie, generated rows) at epsilon 0.25 to 4. All of it concerns utility only.
"""

import math
from dataclasses import dataclass

from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.problems.losses import (
    GLMLoss,
    Logistic,
    Poisson,
    Quantile,
    SmoothedHinge,
    Softmax,
    Squared,
)

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
# What theory promises of private accelerated descent on a convex problem, and the steps that balance its
# two terms.
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


def balanced_steps(*, smoothness: float, distance: float, noise: float, parameters: int) -> float:
    """The T that about minimises `accelerated_bound`: `(24 L^2 W^2 / (s^2 p))^(1/4)`; infinite without noise."""
    spread = noise**2 * parameters
    return math.inf if spread == 0 else (24.0 * smoothness**2 * distance**2 / spread) ** 0.25
