"""Defaults and forecast of output perturbation. Utility only.

More steps bring the optimum nearer, and the end of a neighbour's descent farther away.
"""

import math
from typing import Any

from privopt.planning import descent_defaults, huberised
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.proofs.contraction import geometric_sum, largest_step

MOST_STEPS, NOISELESS_STEPS = 1_000, 5_000


def default_steps(solver: Any, instance: Instance) -> int:
    """T: least sum of `W^2 / (2 eta T)` and the noise's `tr(H) (s eta T)^2 / 2`, or where a ridge has settled it."""
    own = huberised.least_ridge(instance)
    settled = 5.0 / (solver.step_size * own) if own > 0.0 else math.inf
    if not instance.is_private:
        return math.ceil(min(6.0 * settled, NOISELESS_STEPS))
    noise = descent_defaults.noise_of_one(instance, solver.clip)
    trace, distance = huberised.hessian_trace(instance, own), huberised.distance(instance)
    balanced = (distance**2 / (2.0 * solver.step_size**3 * trace * noise**2)) ** (1.0 / 3.0)
    return max(1, math.ceil(min(balanced, settled, MOST_STEPS)))


DEFAULTS = {
    "clip": lambda solver, instance: huberised.default_clip(instance),
    "step_size": lambda solver, instance: largest_step(instance.problem, instance.public),
    "steps": default_steps,
    "ridge_total": lambda solver, instance: huberised.default_ridge(instance, solver.clip),
}


def forecast(solver: Any, instance: Instance) -> Forecast:
    """The noise times a bound on the trace of the Hessian, plus what the steps or the ridge leave."""
    minimiser = solver.form == "minimiser"
    notices: tuple[str, ...] = ()
    if minimiser:
        notices = huberised.added_ridge(instance, solver.ridge_total, needed_by="the minimiser")
    if not instance.is_private:
        return Forecast(excess=0.0, meaning="the noise is off", notices=(*notices, NOISE_IS_OFF))
    if minimiser:
        notices += (huberised.RUNNING_TIME,)
    return Forecast(
        excess=_predicted_excess(solver, instance),
        meaning=huberised.meaning(instance),
        notices=notices + large_delta(instance),
    )


def _predicted_excess(solver: Any, instance: Instance) -> float:
    own, public = huberised.least_ridge(instance), instance.public
    far = huberised.distance(instance) ** 2
    pull = public.relation.factor * solver.clip / public.n
    if solver.form == "minimiser":
        strength = max(own, solver.ridge_total)
        left, moved = 0.5 * (strength - own) * far, pull / strength
    else:
        strength, eta, steps = own, solver.step_size, solver.steps
        left = 0.5 * far / (eta * max(steps, 1)) * math.exp(-eta * own * steps)
        moved = pull * eta * geometric_sum(eta * own, steps)
    return left + 0.5 * huberised.hessian_trace(instance, strength) * (1.0 / instance.mu * moved) ** 2
