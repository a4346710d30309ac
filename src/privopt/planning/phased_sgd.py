"""Phases, defaults and forecast of phased stochastic gradient descent.

With steps eta 4^-(i-1) and sizes n 2^-i the bounds of the phases add up to

    W^2 / (n eta) + eta C^2 (2/3 + 64 d z^2 / n),

W the distance from the start to the optimum and z the noise multiplier: each phase starts z 2 eta_{i-1} C sqrt(d) away
from the average that it is compared with. The bound takes every gradient and every noise for as harmful as it can be;
on four tables four times its best eta was better than that itself in most cells (docs/algorithms/phased-sgd.md), so
that is the default, or the largest step that is private. The prediction is the bound at a quarter of eta.
"""

import math
from typing import Any

from privopt.planning import huberised
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.proofs.contraction import largest_step

MOST_PHASES = 5
STEP_FACTOR = 4.0  # see above
FEWEST_RECORDS = 100  # of the last phase


def phase_sizes(n: int, phases: int) -> list[int]:
    """floor(n 2^-i) records in phase i = 1, 2, ..., and in the last one all that are left."""
    sizes = [n >> i for i in range(1, phases)]
    return [*sizes, n - sum(sizes)] if phases else []


def default_phases(solver: Any, instance: Instance) -> int:
    """The most phases, five at most, that leave 100 records to the last one; one where none do."""
    del solver
    fitting = [k for k in range(2, MOST_PHASES + 1) if instance.public.n >> k >= FEWEST_RECORDS]
    return max(fitting, default=1)


def default_step_size(solver: Any, instance: Instance) -> float:
    """eta."""
    balanced = huberised.distance(instance) / (_steepness(instance) * math.sqrt(_variance(instance)))
    return min(largest_step(instance.problem, instance.public), STEP_FACTOR * balanced)


DEFAULTS = {
    "clip": lambda solver, instance: huberised.default_clip(instance),
    "phases": default_phases,
    "step_size": default_step_size,
}


def forecast(solver: Any, instance: Instance) -> Forecast:
    """The sum of the phases' bounds, and what the last noise adds."""
    if not instance.is_private:
        return Forecast(excess=0.0, meaning="the noise is off", notices=(NOISE_IS_OFF,))
    far, eta, n = huberised.distance(instance), solver.step_size / STEP_FACTOR, instance.public.n
    excess = far**2 / (n * eta) + eta * solver.clip**2 * _variance(instance) / n
    last = 2.0 * solver.step_size * 4.0 ** (1 - solver.phases) * solver.clip / instance.mu
    excess += 0.5 * huberised.hessian_trace(instance, huberised.least_ridge(instance)) * last**2
    return Forecast(
        excess=instance.capped(excess), meaning=huberised.meaning(instance), notices=large_delta(instance)
    )


def _steepness(instance: Instance) -> float:
    """A gradient's length: the clip, or without noise what the formula says."""
    clip = huberised.default_clip(instance)
    bound = instance.gradient_bound
    return clip if math.isfinite(clip) else bound if math.isfinite(bound) else instance.public.row_bound


def _variance(instance: Instance) -> float:
    """n times the weight of eta C^2 in the bound."""
    inverse = 1.0 / instance.mu**2 if instance.is_private else 0.0
    return 2.0 * instance.public.n / 3.0 + 64.0 * instance.public.d * inverse
