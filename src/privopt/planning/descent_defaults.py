"""Settings of gradient methods from public quantities, so that nobody tunes on private data.

With n units, p parameters, rows of norm at most R, budget mu (Gaussian DP) and factor 2 (replace-one) or 1:

    signal      omega = n mu / (factor sqrt(p)): the largest gradient over the noise of one gradient
    clip        C = slope * R, slope a little under the largest slope of the loss
    step size   eta = 1.25 / (L + lam), L = curvature * R^2; stable for every momentum up to (4/3) / L
    steps       T = sqrt(8 * reach * omega / (eta R^2)), between 3 and 150
    momentum    b = (1 - q) / (1 + q), q = min(4 / T, 0.8), fixed
    average     weights (t + 1)^2
    prediction  0.414 (eta R^2 T^2 / 128)^-0.582 for logistic regression

`slope`, `curvature` and `reach` (how far to travel, in units of 1 / R, for each unit of signal) stand in `guess`. They
and the constants above were chosen by the training excess of logistic regression on eight tables (adult, compas,
covertype, fars, german, kdd99, randhie, w8a) at epsilon 0.1 to 3; the other losses' were tried on one or two tables,
and those of user-written losses on seven problems (networks, a bilinear model, robust and logistic regressions, a leaky
link; adult, california, compas, randhie, generated rows) at epsilon 0.25 to 4. All of it concerns utility only.
"""

import math
from dataclasses import dataclass
from typing import Literal

from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Repeated
from privopt.ledger.gaussian_dp import gaussian_mu
from privopt.ledger.sampling import FixedSize, Poisson
from privopt.mechanisms.additive import Gaussian
from privopt.planning.bounds import accelerated_bound
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.problems.losses import (
    GLMLoss,
    Logistic,
    Quantile,
    SmoothedHinge,
    Softmax,
    Squared,
)
from privopt.problems.losses import (
    Poisson as PoissonLoss,
)
from privopt.problems.problem import Problem
from privopt.public import Public

NOISELESS_STEPS = 5_000  # with the noise off every step helps
FEWEST_STEPS, MOST_STEPS = 3, 150
STEP_FACTOR = 1.25
OWN_SLOPE, OWN_CURVATURE = 0.6, 0.5  # of a user-written loss that does not state them, slopes below about 1
SAMPLED_STEPS = 200  # sampled steps are cheap: take at least so many


@dataclass(frozen=True, kw_only=True)
class Guess:
    """What is guessed of a loss before the data is read; see the module's table.

    Attributes:
        slope: clip over R.
        curvature: smoothness over R^2.
        reach: path length (in 1 / R) that one unit of signal is worth.
    """

    slope: float
    curvature: float
    reach: float


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Derived parameters of a gradient method; see the module's table."""

    steps: int
    clip: float
    step_size: float
    momentum: float
    rate: float = 1.0


def guess(problem: Problem, public: Public) -> Guess:
    """The table of guesses; numbers to predict are scaled to [-1, 1], counts are not."""
    loss = problem.loss
    if not isinstance(loss, GLMLoss):
        slope, curvature = OWN_SLOPE, OWN_CURVATURE
        if math.isfinite(loss.lipschitz):
            slope = loss.lipschitz / public.row_bound
            curvature *= slope
        if math.isfinite(loss.curvature):
            curvature = loss.curvature / public.row_bound**2
        return Guess(slope=slope, curvature=curvature, reach=16.0)
    match loss:
        case Logistic():
            return Guess(slope=0.8, curvature=0.25, reach=16.0)
        case Softmax():
            return Guess(slope=0.8, curvature=0.5, reach=40.0)
        case Squared():
            return Guess(slope=0.5, curvature=1.0, reach=4.0)
        case SmoothedHinge():
            return Guess(slope=0.8, curvature=loss.curvature, reach=7.5)
        case PoissonLoss():
            slope = math.sqrt(loss.max_count)
            curvature = min(4.0 * slope, loss.curvature)
            return Guess(slope=slope, curvature=curvature, reach=4.0 / slope)
        case Quantile():
            curvature = loss.curvature if math.isfinite(loss.curvature) else 5.0
            slope = loss.lipschitz
            return Guess(slope=slope, curvature=curvature, reach=2.0 / slope)
        case _:  # Huber, and losses of the user's own
            slope = loss.lipschitz if math.isfinite(loss.lipschitz) else 1.0
            curvature = loss.curvature if math.isfinite(loss.curvature) else slope
            return Guess(slope=slope, curvature=curvature, reach=4.0 / slope)


def descent_setting(
    problem: Problem,
    public: Public,
    budget: Budget,
    *,
    clip: float | None = None,
    steps: int | None = None,
    curvature: float | None = None,
) -> Setting:
    """The setting of full-batch gradient descent; L + lam is `curvature` where that is given."""
    strong = problem.regulariser.strong_convexity
    step_size = STEP_FACTOR / (smoothness(problem, public) + strong if curvature is None else curvature)
    if steps is None:
        steps = default_steps(problem, public, budget, step_size)
    slowness = max(math.sqrt(min(1.0, step_size * strong)), min(4.0 / max(steps, 1), 0.8))
    return Setting(
        steps=steps,
        clip=default_clip(problem, public, budget) if clip is None else clip,
        step_size=step_size,
        momentum=(1.0 - slowness) / (1.0 + slowness),
    )


def sampled_setting(
    problem: Problem,
    public: Public,
    budget: Budget,
    *,
    clip: float | None = None,
    steps: int | None = None,
    rate: float | None = None,
    sampler: Literal["poisson", "fixed-size"] = "poisson",
) -> Setting:
    """The setting of sampled gradient descent: the smallest rate that keeps the noise multiplier at 1.5 or more."""
    setting = descent_setting(problem, public, budget, clip=clip, steps=steps)
    steps = setting.steps if steps is not None else max(setting.steps, SAMPLED_STEPS)
    return Setting(
        steps=steps,
        clip=setting.clip,
        step_size=setting.step_size / STEP_FACTOR,
        momentum=0.9,
        rate=_smallest_rate(public, budget, steps, sampler) if rate is None else rate,
    )


def default_clip(problem: Problem, public: Public, budget: Budget) -> float:
    """C; infinite with the noise off."""
    return math.inf if math.isinf(budget.epsilon) else guess(problem, public).slope * public.row_bound


def noise_of_one(public: Public, budget: Budget, clip: float) -> float:
    """s = factor C / (n mu): the noise of one mean gradient bought with the whole budget; 0 with the noise off."""
    if not budget.is_private:
        return 0.0
    return public.relation.factor * clip / (public.n * gaussian_mu(budget.epsilon, budget.delta))


def smoothness(problem: Problem, public: Public) -> float:
    """L, a guess of the largest curvature of one record's loss."""
    if math.isfinite(problem.loss.curvature):
        exact = problem.loss.curvature * (public.row_bound**2 if isinstance(problem.loss, GLMLoss) else 1.0)
        return min(exact, guess(problem, public).curvature * public.row_bound**2)
    return guess(problem, public).curvature * public.row_bound**2


def signal_to_noise(problem: Problem, public: Public, budget: Budget) -> float:
    """omega: the largest gradient norm over the noise norm of one gradient bought with the whole budget."""
    if math.isinf(budget.epsilon):
        return math.inf
    parameters = math.prod(problem.parameter_shape(public))
    mu = gaussian_mu(budget.epsilon, budget.delta)
    return public.n * mu / (public.relation.factor * math.sqrt(parameters))


def default_steps(problem: Problem, public: Public, budget: Budget, step_size: float) -> int:
    """T: accelerated steps for a path as long as the signal is worth; few where a ridge makes the problem easy."""
    signal = signal_to_noise(problem, public, budget)
    strong = problem.regulariser.strong_convexity
    condition = 1.0 + smoothness(problem, public) / strong if strong > 0 else math.inf
    if math.isinf(signal):
        return math.ceil(min(40.0 * math.sqrt(condition), NOISELESS_STEPS))
    travel = guess(problem, public).reach * signal
    steps = math.ceil(min(math.sqrt(8.0 * travel / (step_size * public.row_bound**2)), MOST_STEPS))
    return max(FEWEST_STEPS, math.ceil(min(steps, 10.0 * math.sqrt(condition))))


def predicted_excess(
    problem: Problem, public: Public, budget: Budget, *, steps: int, clip: float | None
) -> tuple[float | None, str]:
    """Predicted excess of the objective over its optimum, before the data is read."""
    loss = problem.loss
    if not isinstance(loss, GLMLoss):
        return None, "no formula for a user-written loss"
    if math.isinf(budget.epsilon):
        return 0.0, "the noise is off"
    if isinstance(loss, Logistic):
        step_size = STEP_FACTOR / (smoothness(problem, public) + problem.regulariser.strong_convexity)
        work = step_size * public.row_bound**2 * max(steps, 1) ** 2 / 128.0
        return min(
            math.log(2.0), 0.414 * work**-0.582
        ), "fitted on eight tables; often off by a factor of 2 to 4"
    curve = smoothness(problem, public)
    clip = default_clip(problem, public, budget) if clip is None else clip
    noise = noise_of_one(public, budget, clip)
    distance = guess(problem, public).reach * guess(problem, public).slope / public.row_bound
    excess = accelerated_bound(
        smoothness=curve,
        distance=distance,
        steps=steps,
        noise=noise,
        parameters=math.prod(problem.parameter_shape(public)),
    )
    if loss.value_at_zero is not None:
        excess = min(excess, loss.value_at_zero)
    return excess, f"an upper estimate for an optimum within {distance:.3g} of zero"


def notices(problem: Problem, public: Public, budget: Budget) -> tuple[str, ...]:
    """What a user should be told, from public quantities."""
    if math.isinf(budget.epsilon):
        return (NOISE_IS_OFF,)
    found = large_delta(public, budget)
    if not isinstance(problem.loss, GLMLoss):
        found += (
            "step size and clip of a user-written loss, where not given, are guesses from the row bound.",
        )
    return found


def _smallest_rate(public: Public, budget: Budget, steps: int, sampler: str) -> float:
    """The smallest of a few rates with a noise multiplier of at least 1.5: below it, amplification is lost."""
    rate = min(1.0, 256.0 / public.n)
    if math.isinf(budget.epsilon):
        return 1.0
    while rate < 1.0:
        sampling = (
            Poisson(rate) if sampler == "poisson" else FixedSize(max(1, round(rate * public.n)), public.n)
        )
        needed = calibrate(
            lambda z, s=sampling: Repeated(s.event(Gaussian(z).event()), steps), budget, public.relation
        )
        if needed * public.relation.factor >= 1.5:
            return rate
        rate = min(1.0, 2.0 * rate)
    return rate
