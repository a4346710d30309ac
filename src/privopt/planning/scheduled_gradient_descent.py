"""Steps, schedule and prediction of gradient descent whose noise falls geometrically.

With R_w a guess of how far the solution is, p parameters, and s the noise of one gradient that the whole budget bought,

    step size   eta = 1 / (L1 + lambda)
    horizon     h = R_w / (2 sqrt(p) s): a longer path mostly fits noise
    steps       T = h / eta, between 10 and `most_steps`
    budget      step t gets the share q^t / sum_s q^s of rho, q = ratio^(1 / (T - 1))

For a mode of curvature c the final variance is least for shares proportional to (1 - eta c)^(T-1-t): an early step's
noise has shrunk by the end. Equal shares pay about ln(F_0 / F_T) / 4 times as much, F_0 / F_T the mode's contraction.
Utility only.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from privopt.planning import descent_defaults
from privopt.planning.descent_theory import budget_shares, predicted_path, trace_ratio
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.kl_theory import horizon
from privopt.planning.notices import long_steps

FEWEST_STEPS = 10
DISTANCE = 10.0  # R_w times the row bound R, for features of about the row bound's size
FLAT = 1.05  # fewer passes are taken where they are predicted to cost at most this factor of the excess


def smoothness(solver: Any, instance: Instance) -> float:
    """L1 + lambda, of the objective."""
    return solver.curvature + instance.penalty_smoothness


def steps(solver: Any, instance: Instance) -> int:
    """T of the horizon rule, or the fewest steps with nearly the best prediction."""
    if not instance.is_private:
        return solver.most_steps
    noise = descent_defaults.noise_of_one(instance, solver.clip)
    longest = horizon(solver.distance, instance.parameters, noise)
    by_horizon = math.ceil(min(longest / solver.step_size, solver.most_steps))
    candidates = sorted(
        {round(1.15**k) for k in range(200) if 1.15**k < solver.most_steps} | {solver.most_steps}
    )
    predicted = {t: predicted_excess(solver, instance, t) for t in candidates}
    known = {t: excess for t, excess in predicted.items() if excess is not None}
    if not known:
        return min(max(by_horizon, FEWEST_STEPS), solver.most_steps)
    best = min(known.values())
    return next(t for t, excess in known.items() if excess <= FLAT * best)


DEFAULTS = {
    "clip": lambda solver, instance: descent_defaults.default_clip(instance),
    "curvature": lambda solver, instance: descent_defaults.smoothness(instance),
    "step_size": lambda solver, instance: 1.0 / smoothness(solver, instance),
    "distance": lambda solver, instance: DISTANCE / instance.public.row_bound,
    "growth": lambda solver, instance: instance.growth,
    "steps": steps,
}


def contraction(ratio: float, steps: int) -> float:
    """a of `budget_shares`, whose shares grow by 1 / sqrt(a) a step."""
    return 1.0 if steps < 2 else ratio ** (-2.0 / (steps - 1))


def predicted_excess(solver: Any, instance: Instance, steps: int) -> float | None:
    """The recursion of `predicted_path` for T steps; None without a KL condition and a finite gap."""
    growth, clip = solver.growth, solver.clip
    if growth is None or growth.kappa > 2.0 or not math.isfinite(growth.gap_within(clip)):
        return None  # above 2 no objective is smooth, which the recursion takes it to be
    noise = descent_defaults.noise_of_one(instance, clip)
    shares = budget_shares("geometric", steps, contraction(solver.ratio, steps))
    curved = smoothness(solver, instance)
    return predicted_path(
        growth,
        gap=growth.gap_within(clip),
        step_size=solver.step_size,
        smoothness=curved,
        trace=curved * trace_ratio(instance.problem, instance.public),
        noises=noise / np.sqrt(shares),
    )


def forecast(solver: Any, instance: Instance) -> Forecast:
    """The recursion of `predicted_path`, where the growth is known."""
    plain = descent_defaults.forecast(instance, steps=solver.steps, clip=solver.clip)
    plain = plain.noting(*long_steps(solver.step_size, smoothness(solver, instance)))
    excess = predicted_excess(solver, instance, solver.steps) if solver.steps else None
    if excess is None:
        meaning = "no formula without a KL condition of kappa up to 2 and a bound on the excess of the start"
    else:
        meaning = "expected under the KL condition, while no gradient is clipped and eta <= 2 / L"
    return replace(plain, excess=excess, meaning=meaning, for_convex=False)
