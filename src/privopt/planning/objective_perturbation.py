"""Defaults and forecast of objective perturbation: the ridge, the two noises, and what they cost. Utility only.

What the guarantee rests on, the shift c and the sign of the slopes, is read off the query that will be released.
"""

import math
from typing import Any

from privopt.mechanisms.objective_perturbation import LARGEST_NORMAL
from privopt.planning import descent_defaults, huberised
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.notices import NOISE_IS_OFF, large_delta

LEAST_SHARE, LARGEST_SHARE = 1e-3, 0.3
ROUNDING_LIMITS = (
    "the ridge is so small for this many units that rounding limits the accuracy of the minimiser, and much of the "
    "noise hides that: a larger `ridge_total` may be more accurate."
)


def shift(solver: Any, instance: Instance) -> float:
    """c = ln(1 + beta / (n lam)).

    Raises:
        ValueError: the ridge is too small, for the proof or for the budget.
    """
    public, epsilon = instance.public, instance.budget.epsilon
    objective = solver.query(instance.problem).objective(public)
    if not objective.modulus > 0.0:
        raise ValueError(
            f"ridge_total must be positive where the penalty leaves coordinates without a ridge, got "
            f"{solver.ridge_total!r}: the proof needs strong convexity in every direction."
        )
    if objective.volume_shift >= epsilon:
        least = objective.curvature / (public.n * math.expm1(epsilon))
        raise ValueError(
            f"ridge_total {solver.ridge_total:.3g} is too small for epsilon {epsilon:g}: it must exceed {least:.3g}, "
            "and ten times that leaves most of the budget to the noise. Leave it out to have it chosen."
        )
    return objective.volume_shift


def two_signed(solver: Any, instance: Instance) -> bool:
    """Whether a record's slope can have either sign."""
    return not solver.query(instance.problem).objective(instance.public).loss.monotone


def default_share(solver: Any, instance: Instance) -> float:
    """f: mu of the second noise over mu of the first.

    The second noise has standard deviation 2 tau / (Lam f mu) and costs `tr(H) / 2` times its square, the first costs
    at least `s^2 d^2 / (2 tr(H))`; with a^2 the ratio of the two at f = 1, the excess is `1 + f^2 + a^2 / f^2` times
    the first's alone, least at f = sqrt(a).
    """
    if not instance.is_private:
        return LEAST_SHARE
    public, query = instance.public, solver.query(instance.problem)
    objective, sensitivity = query.objective(public), query.sensitivity(public)
    multiplier = 1.0 / instance.mu
    tilt = LARGEST_NORMAL * multiplier * sensitivity * math.sqrt(public.d)
    trace = objective.curvature + public.d * objective.strength
    ratio = 2.0 * objective.tolerance(tilt) * trace / (objective.strength * sensitivity * public.d)
    return min(LARGEST_SHARE, max(LEAST_SHARE, math.sqrt(ratio)))


DEFAULTS = {
    "clip": lambda solver, instance: huberised.default_clip(instance),
    "ridge_total": lambda solver, instance: huberised.default_ridge(instance, solver.clip),
    "shift": shift,
    "two_signed": two_signed,
    "output_share": default_share,
}


def forecast(solver: Any, instance: Instance) -> Forecast:
    """The leading term at the least curvature, what the added ridge costs a far optimum, the second noise's part."""
    notices = huberised.added_ridge(instance, solver.ridge_total, needed_by="objective perturbation")
    if not instance.is_private:
        return Forecast(excess=0.0, meaning="the noise is off", notices=(*notices, NOISE_IS_OFF))
    excess = _predicted_excess(solver, instance)
    notices += large_delta(instance)
    if solver.output_share >= LARGEST_SHARE:
        notices += (ROUNDING_LIMITS,)
    return Forecast(
        excess=excess, meaning=huberised.meaning(instance), notices=(*notices, huberised.RUNNING_TIME)
    )


def _predicted_excess(solver: Any, instance: Instance) -> float:
    own = huberised.least_ridge(instance)
    strength = max(solver.ridge_total, own)
    noise = descent_defaults.noise_of_one(instance, solver.clip)
    excess = 0.5 * noise**2 * instance.public.d / strength
    excess += 0.5 * max(0.0, strength - own) * huberised.distance(instance) ** 2
    second = solver.query(instance.problem).mechanism(
        1.0 / instance.mu, instance.public, output_share=solver.output_share
    )
    return excess + 0.5 * second.output_stddev**2 * huberised.hessian_trace(instance, strength)
