"""Settings of gradient methods from public quantities, so that nobody tunes on private data.

With n units, budget mu (Gaussian DP), L = curvature * R^2 the smoothness of one record's loss, C the clip and
s = factor * C / (n mu) the noise of one gradient bought with the whole budget:

    step size   1 / (L + lam)
    steps       (24 L^2 W^2 / (s^2 p))^(1/4), p parameters, W = 10 / R the guessed distance to the optimum
    momentum    (1 - q) / (1 + q), q = sqrt(eta max(lam, 16 L / T^2)), fixed
    prediction  4 L W^2 / (T + 1)^2 + T (T + 3) s^2 p / (6 L)

Source: the corrected accelerated bound for noise in every gradient; the number of steps minimises it.
"""

import math
from dataclasses import dataclass
from typing import Literal

from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Repeated
from privopt.ledger.gaussian_dp import gaussian_mu
from privopt.mechanisms.gaussian import Gaussian
from privopt.problems.losses import GLMLoss
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.sampling import FixedSize, Poisson

NOISELESS_STEPS = 20_000  # with the noise off every step helps
MOST_STEPS = 1_000


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Derived parameters of a gradient method; see the module's table."""

    steps: int
    clip: float
    step_size: float
    momentum: float
    rate: float = 1.0


def descent_setting(
    problem: Problem, public: Public, budget: Budget, *, clip: float | None = None, steps: int | None = None
) -> Setting:
    """The setting of full-batch gradient descent."""
    clip = default_clip(problem, public, budget) if clip is None else clip
    smoothness = default_smoothness(problem, public)
    strong = problem.regulariser.strong_convexity
    step_size = 1.0 / (smoothness + strong)
    if steps is None:
        steps = default_steps(problem, public, budget, clip)
    curve = max(strong, 16.0 * smoothness / max(steps, 4) ** 2)
    root = math.sqrt(min(1.0, step_size * curve))
    return Setting(steps=steps, clip=clip, step_size=step_size, momentum=(1.0 - root) / (1.0 + root))


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
    clip = default_clip(problem, public, budget) if clip is None else clip
    setting = descent_setting(problem, public, budget, clip=clip, steps=steps)
    steps = setting.steps if steps is not None else max(setting.steps, 200)
    if rate is None:
        rate = _smallest_rate(public, budget, steps, sampler)
    return Setting(steps=steps, clip=clip, step_size=setting.step_size, momentum=setting.momentum, rate=rate)


def default_clip(problem: Problem, public: Public, budget: Budget) -> float:
    """C: the largest gradient norm the formula allows, or the row bound; infinite with the noise off."""
    if math.isinf(budget.epsilon):
        return math.inf
    loss = problem.loss
    if isinstance(loss, GLMLoss) and math.isfinite(loss.lipschitz):
        return public.row_bound * loss.lipschitz
    return public.row_bound


def default_smoothness(problem: Problem, public: Public) -> float:
    """L: curvature * R^2 of a generalised-linear loss, else clip / distance."""
    loss = problem.loss
    if isinstance(loss, GLMLoss) and math.isfinite(loss.curvature):
        return loss.curvature * public.row_bound**2
    return public.row_bound / guessed_distance(public)


def guessed_distance(public: Public) -> float:
    """W: a public guess of the distance from the start to the optimum. Utility only."""
    return 10.0 / public.row_bound


def one_shot_noise(public: Public, budget: Budget, clip: float) -> float:
    """s: noise standard deviation of one mean gradient bought with the whole budget."""
    if math.isinf(budget.epsilon):
        return 0.0
    return public.relation.factor * clip / (public.n * gaussian_mu(budget.epsilon, budget.delta))


def default_steps(problem: Problem, public: Public, budget: Budget, clip: float) -> int:
    """T: minimises the predicted excess; at most 10 sqrt(1 + L / lam) where the regulariser is strongly convex."""
    smoothness = default_smoothness(problem, public)
    strong = problem.regulariser.strong_convexity
    noise = one_shot_noise(public, budget, clip)
    if noise == 0.0:
        steps = NOISELESS_STEPS
    else:
        distance = guessed_distance(public)
        parameters = public.d * problem.loss.outputs
        balance = 24.0 * smoothness**2 * distance**2 / (noise**2 * parameters)
        steps = math.floor(min(balance**0.25, MOST_STEPS))
    if strong > 0 and noise > 0:
        steps = min(steps, math.ceil(10.0 * math.sqrt(1.0 + smoothness / strong)))
    return max(5, steps)


def predicted_excess(
    problem: Problem, public: Public, budget: Budget, *, steps: int, clip: float | None
) -> tuple[float | None, str]:
    """Predicted excess of the objective over its optimum, before the data is read."""
    if not isinstance(problem.loss, GLMLoss):
        return None, "no formula for a user-written loss"
    smoothness = default_smoothness(problem, public)
    noise = one_shot_noise(public, budget, default_clip(problem, public, budget) if clip is None else clip)
    distance = guessed_distance(public)
    optimisation = 4.0 * smoothness * distance**2 / (steps + 1) ** 2
    privacy = steps * (steps + 3) * noise**2 * public.d * problem.loss.outputs / (6.0 * smoothness)
    return optimisation + privacy, "upper estimate for an optimum within 10 / row_bound"


def notices(
    problem: Problem, public: Public, budget: Budget, *, steps: int | None, clip: float | None
) -> tuple[str, ...]:
    """What a user should be told, from public quantities."""
    found: list[str] = []
    if math.isinf(budget.epsilon):
        return ("epsilon is infinite: nothing is clipped or noised, and the result is not private.",)
    if budget.delta > 1.0 / public.n:
        found.append(f"delta {budget.delta:.2g} exceeds 1 / n = {1 / public.n:.2g}: it should be well below.")
    at_zero = problem.loss.value_at_zero if isinstance(problem.loss, GLMLoss) else None
    excess, _ = predicted_excess(problem, public, budget, steps=steps or 1, clip=clip)
    if excess is not None and at_zero is not None and excess > at_zero:
        found.append(
            f"the predicted excess {excess:.2g} exceeds {at_zero:.2g}, a bound on the loss of the zero model: "
            "the noise may drown the signal. More units or a larger epsilon would help."
        )
    if not isinstance(problem.loss, GLMLoss):
        found.append(
            "step size and clip of a user-written loss are guesses from the row bound; set them if you know better."
        )
    return tuple(found)


def _smallest_rate(public: Public, budget: Budget, steps: int, sampler: str) -> float:
    """The smallest of a few rates with a noise multiplier of at least 1.5: below it, amplification is lost."""
    if math.isinf(budget.epsilon):
        return 1.0
    least = min(1.0, 256.0 / public.n)
    rate = least
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
