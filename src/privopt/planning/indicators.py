"""What can be hoped for at a budget, whichever solver runs: public numbers that every plan prints.

Source: see `kl_theory`, where the formulas are.
"""

import math
from collections.abc import Mapping

from privopt.planning import descent_defaults
from privopt.planning.instance import Instance
from privopt.planning.kl_theory import horizon, lower_bound_indicators
from privopt.planning.plan import Finding
from privopt.problems.growth import KL

DISTANCE = 10.0  # guess of the distance from the start to the optimum, in units of 1 / R


def common_indicators(instance: Instance) -> Mapping[str, Finding]:
    """The noise of one gradient, the horizon, what that noise leaves at least, and lower bounds; without noise nothing.

    Lower bounds need a loss whose formula bounds its gradient.
    """
    if not instance.is_private or instance.budget.delta == 0.0:
        return {}
    parameters = instance.parameters
    noise = descent_defaults.noise_of_one(instance, descent_defaults.default_clip(instance))
    distance = DISTANCE / instance.public.row_bound
    found = {
        "gradient_noise": Finding(
            noise, "noise of each coordinate of one gradient that the whole budget bought"
        ),
        "horizon": Finding(
            horizon(distance, parameters, noise), "sum of step sizes beyond which more steps mostly fit noise"
        ),
    }
    growth, ridge = instance.growth, instance.ridge
    if growth is None and ridge > 0 and instance.problem.loss.convex is not False:
        growth = KL.of_strong_convexity(ridge)
    if growth is not None:
        left = growth.excess_at(math.sqrt(parameters) * noise)
        meaning = "largest excess of a point whose gradient is no longer than that noise"
        found["one_query_floor"] = Finding(left, meaning)
    bounds = lower_bound_indicators(
        instance.growth, instance.public, instance.budget, instance.gradient_bound, parameters, distance
    )
    return {**found, **bounds}
