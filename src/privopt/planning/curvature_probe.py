"""How a budget is split around the probe of the curvature, and the curvature that its release stands for.

    curvature = min(L1, max(phi'' (released + 2 sigma), 0.02 L1)),    sigma the noise of that release

with L1 = phi'' R^2 the largest curvature of one record's loss. Source: ours. Utility only.
"""

import math
from dataclasses import replace
from typing import Any

from privopt.ledger.amounts import Budget
from privopt.ledger.gaussian_dp import gaussian_budget
from privopt.planning import descent_defaults
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance

SHARE = 0.01
CONFIDENCE = 2.0  # standard deviations of noise that are added to the released eigenvalue
LEAST = 0.02  # of L1: steps get at most 50 times as long


def remainder(solver: Any, instance: Instance) -> float:
    """The noise multiplier of the release that pays for the rest, before both parts are calibrated together."""
    return 1.0 / (instance.mu * math.sqrt(1.0 - solver.share)) if instance.is_private else 0.0


DEFAULTS = {
    "delta": lambda solver, instance: instance.budget.delta,
    "remainder": remainder,
    # As if the probe found nothing.
    "planned": lambda solver, instance: solver.configured_inner(
        instance.problem, instance.public, descent_defaults.smoothness(instance)
    ),
}


def curvature(released: float, stddev: float, instance: Instance) -> float:
    """That of the mean loss, cautiously, from a released eigenvalue. Post-processing."""
    largest = descent_defaults.smoothness(instance)
    per_row = largest / instance.public.row_bound**2  # phi''
    cautious = per_row * (released + CONFIDENCE * stddev)
    return min(largest, max(cautious, LEAST * largest))


def rest(solver: Any) -> Budget:
    """The remainder as an (epsilon, delta); where epsilon would be 0 at this delta, at a smaller one."""
    if solver.remainder == 0.0:
        return Budget(math.inf, solver.delta)
    return gaussian_budget(1.0 / solver.remainder, solver.delta)


def forecast(solver: Any, instance: Instance) -> Forecast:
    """The inner solver's, as if the probe found nothing."""
    return replace(solver.planned.forecast(replace(instance, budget=rest(solver))), bound=None)
