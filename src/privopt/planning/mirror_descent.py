"""Defaults and forecast of mirror descent.

The error of T steps of size eta on a convex loss is at most `B_w / (eta T) + eta E h_B(b)^2 / 2`, B_w the body's
divergence and b the noise of one gradient; `mirror_geometry` has both. Utility only.
"""

import math
from typing import Any

from privopt.planning import descent_defaults, mirror_geometry
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance

FEWEST_STEPS, MOST_STEPS = 10, 100


def default_steps(solver: Any, instance: Instance) -> int:
    """T = L_B sqrt(2 B_w) / (s sqrt(E h_B^2)), from where on the error bound no longer falls, within limits."""
    body = mirror_geometry.geometry(instance, solver.entry_bound)
    noise = descent_defaults.noise_of_one(instance, solver.clip) * math.sqrt(body.width)
    if noise == 0:
        return mirror_geometry.NOISELESS_STEPS
    enough = body.smoothness * math.sqrt(2.0 * body.divergence) / noise
    return mirror_geometry.clipped_steps(enough, FEWEST_STEPS, MOST_STEPS)


def default_step_size(solver: Any, instance: Instance) -> float:
    """eta that minimises the error bound, at most 1 / L_B."""
    body = mirror_geometry.geometry(instance, solver.entry_bound)
    noise = mirror_geometry.noise_square(solver, instance, body)
    limit = math.inf if noise == 0 else math.sqrt(2.0 * body.divergence / (max(solver.steps, 1) * noise))
    return min(1.0 / body.smoothness, limit)


DEFAULTS = {
    "clip": lambda solver, instance: mirror_geometry.default_clip(instance),
    "steps": default_steps,
    "step_size": default_step_size,
}


def forecast(solver: Any, instance: Instance) -> Forecast:
    """The error bound; no more than the loss at zero."""
    body = mirror_geometry.geometry(instance, solver.entry_bound)
    noise = mirror_geometry.noise_square(solver, instance, body)
    excess = body.divergence / (solver.step_size * max(solver.steps, 1)) + solver.step_size * noise / 2.0
    return Forecast(excess=instance.capped(excess), meaning="a bound for convex losses; pessimistic")
