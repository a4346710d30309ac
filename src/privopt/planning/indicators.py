"""What can be hoped for at a budget, whichever solver runs: public numbers that every plan prints.

Source: see `kl_theory`, where the formulas are.
"""

import math
from collections.abc import Mapping

from privopt.ledger.amounts import Budget
from privopt.planning import descent_defaults
from privopt.planning.kl_theory import horizon, lower_bound_indicators
from privopt.planning.plan import Finding
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.public import Public

REACH = 10.0  # guess of the distance from the start to the optimum, in units of 1 / R


def common_indicators(problem: Problem, public: Public, budget: Budget) -> Mapping[str, Finding]:
    """The noise of one gradient, the horizon, what that noise leaves at least, and lower bounds; without noise nothing.

    Lower bounds need a loss whose formula bounds its gradient.
    """
    if not budget.is_private or budget.delta == 0.0:
        return {}
    parameters = math.prod(problem.parameter_shape(public))
    noise = descent_defaults.noise_of_one(
        public, budget, descent_defaults.default_clip(problem, public, budget)
    )
    reach = REACH / public.row_bound
    found = {
        "gradient_noise": Finding(
            noise, "noise of each coordinate of one gradient that the whole budget bought"
        ),
        "horizon": Finding(
            horizon(reach, parameters, noise), "sum of step sizes beyond which more steps mostly fit noise"
        ),
    }
    growth, ridge = problem.growth, problem.regulariser.strong_convexity
    if growth is None and ridge > 0:
        growth = KL.of_strong_convexity(ridge)
    if growth is not None:
        left = growth.excess_at(math.sqrt(parameters) * noise)
        meaning = "largest excess of a point whose gradient is no longer than that noise"
        found["one_query_floor"] = Finding(left, meaning)
    bounds = lower_bound_indicators(
        problem.growth, public, budget, problem.gradient_bound(public), parameters, reach
    )
    return {**found, **bounds}
