"""Defaults and forecast of Frank-Wolfe on the l1 ball.

The gap after T steps is about `8 L_B / (T + 2) + R (S C / n) z log(2 p)`: see `FrankWolfe`. Utility only.
"""

import math
from typing import Any

from privopt.ledger.zcdp import zcdp_rho_budget
from privopt.planning import mirror_geometry
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.problems.constraints import L1Ball
from privopt.problems.problem import Problem

FEW_STEPS = 10
FEWEST_STEPS, MOST_STEPS = 20, 150
STEPS_SHARE = 0.05  # of the steps that minimise the bound, whose curvature is far above what data show


def default_clip(solver: Any, instance: Instance) -> float:
    """C_inf: the slope that is clipped at times the largest entry of a row; infinite with the noise off."""
    if not instance.is_private:
        return math.inf
    bound = instance.public.row_bound
    entries = bound if solver.entry_bound is None else min(solver.entry_bound, bound)
    return mirror_geometry.default_slope(instance) * entries


def default_steps(solver: Any, instance: Instance) -> int:
    """A share of the T = (16 L_B / (k log 2p))^(2/3) that minimises 8 L_B / T + k sqrt(T) log 2p, within limits."""
    if not instance.is_private:
        return mirror_geometry.NOISELESS_STEPS
    rho = zcdp_rho_budget(instance.budget.epsilon, instance.budget.delta)
    public = instance.public
    scale = radius(instance.problem) * public.relation.factor * solver.clip
    noise = scale / (public.n * math.sqrt(2.0 * rho))
    curvature = mirror_geometry.smoothness(instance, solver.entry_bound)
    best = (16.0 * curvature / (noise * math.log(2 * instance.parameters))) ** (2.0 / 3.0)
    return mirror_geometry.clipped_steps(STEPS_SHARE * best, FEWEST_STEPS, MOST_STEPS)


DEFAULTS = {"clip": default_clip, "steps": default_steps}


def forecast(solver: Any, instance: Instance) -> Forecast:
    """The gap of the module, no more than the loss at zero; notices of few steps and of a missing entry bound."""
    public = instance.public
    excess = 8.0 * mirror_geometry.smoothness(instance, solver.entry_bound) / (solver.steps + 2)
    if solver.noise_multiplier > 0:
        score = radius(instance.problem) * public.relation.factor * solver.clip / public.n
        excess += solver.noise_multiplier * score * math.log(2 * instance.parameters)
    notices: list[str] = []
    if 0 < solver.steps < FEW_STEPS:
        notices.append(
            f"{solver.steps} steps are few: the first goes all the way to a vertex, and {FEW_STEPS} or more are needed "
            "to come back."
        )
    if solver.entry_bound is None and public.d > 1:
        notices.append(
            f"the entries of a row are bounded by the row bound {public.row_bound:.3g} only: state `entry_bound` if "
            "they are known to be smaller, since the noise is proportional to it."
        )
    return Forecast(
        excess=instance.capped(excess),
        meaning="a bound for convex losses, if few gradients are clipped; pessimistic",
        notices=tuple(notices),
    )


def radius(problem: Problem) -> float:
    """R.

    Raises:
        ValueError: the set is not an l1 ball.
    """
    if isinstance(problem.constraint, L1Ball):
        return problem.constraint.radius
    raise ValueError(
        f"Frank-Wolfe moves between the vertices of an l1 ball, and the set is {problem.constraint!r}: use "
        "L1Ball(radius)."
    )
