"""Defaults and forecast of Newton's method with double noise. Utility only."""

import math
from typing import Any

from privopt.planning import descent_defaults
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.problems.losses import Logistic

PRIVATE_STEPS, NOISELESS_STEPS = 20, 100
DAMPING = 0.04  # of the largest curvature; the best of a few on one table
EXPERIMENTAL = "this method is experimental: whitened gradient descent was far more accurate in our tests."


def default_damping(solver: Any, instance: Instance) -> float:
    """lambda0: the noise of a direction, z sqrt(d) |g| b / (n l^2), is at most half of the longest, |g| / l.

    A ridge's part of g is at most its curvature times the parameters, and the noise for it at most half of these.
    """
    public = instance.public
    largest = instance.problem.loss.curvature * public.row_bound**2
    if not instance.is_private:
        return 0.0 if instance.ridge > 0 else 1e-6 * largest
    noise = math.sqrt(2.0 * solver.steps * public.d) / instance.mu * largest / public.n
    return max(DAMPING * largest, 2.0 * noise, math.sqrt(2.0 * noise * instance.penalty_smoothness))


DEFAULTS = {
    "steps": lambda solver, instance: PRIVATE_STEPS if instance.is_private else NOISELESS_STEPS,
    "clip": lambda solver, instance: descent_defaults.default_clip(instance),
    "damping": default_damping,
    "model": lambda solver, instance: "bound" if isinstance(instance.problem.loss, Logistic) else "hessian",
    # Without noise an average only lags.
    "returns": lambda solver, instance: "tail" if instance.is_private else "last",
}


def forecast(solver: Any, instance: Instance) -> Forecast:
    """No prediction; the notices of gradient descent, and that this method is an experiment."""
    common = descent_defaults.forecast(instance, steps=solver.steps, clip=solver.clip)
    return Forecast(notices=(*common.notices, EXPERIMENTAL))
