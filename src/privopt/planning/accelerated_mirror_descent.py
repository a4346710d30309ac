"""Defaults and forecast of accelerated mirror descent.

With Lt at least 2 L_B, B_w the body's divergence and b the noise of one of T gradients, the error is at most

    4 Lt B_w / (T + 1)^2 + (T + 3) E h_B(b)^2 / (3 Lt).

The best Lt balances the two terms. Utility only.
Source: Wang, Ye, Xu 2017, Theorems 5.3 and 5.4; see docs/algorithms/accelerated-mirror-descent.md for the proof.
"""

import math
from typing import Any

from privopt.planning import descent_defaults, mirror_geometry
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.problems.constraints import Constraint, L1Ball, Simplex

MOST_STEPS = 1_000
FEWEST_ENTROPIC_STEPS, MOST_ENTROPIC_STEPS = 20, 150
# In the l1 norm both terms of the theorem are far above what data show; the shares were chosen on four problems.
CURVATURE_SHARE, NOISE_SHARE = 0.04, 0.5


def least_steps(solver: Any, instance: Instance) -> float:
    """T_0 = (48 L_B^2 B_w / (s^2 E h^2))^(1/4): from here on the error bound no longer falls with T."""
    body = mirror_geometry.geometry(instance, solver.entry_bound)
    stddev = descent_defaults.noise_of_one(instance, solver.clip)
    if stddev == 0:
        return math.inf
    return (48.0 * body.smoothness**2 * body.divergence / (stddev**2 * body.width)) ** 0.25


def default_steps(solver: Any, instance: Instance) -> int:
    """T_0 for the shares of curvature and noise that the steps assume, within limits."""
    if not instance.is_private:
        return mirror_geometry.NOISELESS_STEPS
    curvature_share, noise_share = _shares(instance.problem.constraint)
    steps = math.sqrt(curvature_share / noise_share) * least_steps(solver, instance)
    if _is_entropic(instance.problem.constraint):
        return mirror_geometry.clipped_steps(steps, FEWEST_ENTROPIC_STEPS, MOST_ENTROPIC_STEPS)
    return mirror_geometry.clipped_steps(steps, 1, MOST_STEPS)


def default_smoothness(solver: Any, instance: Instance) -> float:
    """Lt: the best one for the shares; L_B itself with the noise off."""
    shares = _shares(instance.problem.constraint) if instance.is_private else (0.5, 0.0)
    return _balanced_smoothness(solver, instance, *shares)


DEFAULTS = {
    "clip": lambda solver, instance: mirror_geometry.default_clip(instance),
    "steps": default_steps,
    "step_smoothness": default_smoothness,
}


def forecast(solver: Any, instance: Instance) -> Forecast:
    """The theorem's bound at the theorem's own step length; no more than the loss at zero."""
    body = mirror_geometry.geometry(instance, solver.entry_bound)
    smoothness = _balanced_smoothness(solver, instance)
    optimisation = 4.0 * smoothness * body.divergence / (solver.steps + 1) ** 2
    noise = (solver.steps + 3) * mirror_geometry.noise_square(solver, instance, body) / (3.0 * smoothness)
    return Forecast(
        excess=instance.capped(optimisation + noise),
        meaning="the theorem's bound for convex losses, if few gradients are clipped; pessimistic",
    )


def _balanced_smoothness(
    solver: Any, instance: Instance, curvature_share: float = 1.0, noise_share: float = 1.0
) -> float:
    """Lt that balances the two terms of the error bound, at least 2 L_B; of each a share."""
    body = mirror_geometry.geometry(instance, solver.entry_bound)
    noise = (solver.steps + 3) * mirror_geometry.noise_square(solver, instance, body)
    balanced = (solver.steps + 1) * math.sqrt(noise / (12.0 * body.divergence))
    return max(curvature_share * 2.0 * body.smoothness, noise_share * balanced)


def _is_entropic(body: Constraint) -> bool:
    return isinstance(body, L1Ball | Simplex)


def _shares(body: Constraint) -> tuple[float, float]:
    return (CURVATURE_SHARE, NOISE_SHARE) if _is_entropic(body) else (1.0, 1.0)
