"""Stages of a strongly convex problem: how many, on whom, and within which distance of the last answer.

From within R_s of the optimum a convex method ends with an error of about E_s = c L R_s alpha(n_s),

    alpha(n) = 1 / sqrt(n m) + sqrt(p) / (n sqrt(m) mu),

and strong convexity turns that into the distance R_{s+1} = sqrt(2 E_s / lam). The logarithm of E_s over the fixed point
E* = 2 c^2 L^2 alpha^2 / lam halves in every stage, so log2 log2 (E_0 / E*) of them are enough. Public constants only.

Source: Feldman, Koren, Talwar 2020, Section 5.1; Lowy, Liu, Asi 2024, Remark 3.6.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

from privopt.ledger.gaussian_dp import part_of
from privopt.planning import descent_defaults
from privopt.planning.indicators import DISTANCE
from privopt.planning.instance import Instance
from privopt.problems.constraints import CentredBall
from privopt.problems.problem import Problem


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage, from public numbers.

    Attributes:
        units: n_s, how many take part.
        radius: R_s, of the ball around the answer before it.
        error: E_s, what it is expected to leave.
    """

    units: int
    radius: float
    error: float


def default_distance(solver: Any, instance: Instance) -> float:
    """R: how far the optimum is guessed to be from the start."""
    del solver
    return DISTANCE / instance.public.row_bound


DEFAULTS = {"distance": default_distance}


def stages(solver: Any, instance: Instance) -> list[Stage]:
    """All of them: disjoint units of doubling numbers, or everybody each time."""
    n, lam = instance.public.n, instance.ridge
    count = stage_count(solver, instance)
    disjoint = solver.split == "blocks"
    sizes = [n * 2**s // (2**count - 1) for s in range(count)] if disjoint and count > 1 else [n] * count
    radius, found = solver.distance, list[Stage]()
    for size in sizes:
        part = 1.0 if disjoint else 1.0 / count
        error = solver.constant * _steepness(instance) * radius * _alpha(instance, size, part)
        found.append(Stage(units=size, radius=radius, error=error))
        radius = math.sqrt(2.0 * error / lam)
    return found


def stage_count(solver: Any, instance: Instance) -> int:
    """max(1, ceil(log2 log2 max(E_0 / E*, 4))), at most `most_stages`, and as many as leave the first enough units."""
    lam = instance.ridge
    fixed = (
        2.0 * (solver.constant * _steepness(instance) * _alpha(instance, instance.public.n, 1.0)) ** 2 / lam
    )
    first = 0.5 * lam * solver.distance**2
    ratio = first / fixed if fixed > 0.0 else math.inf
    wanted = math.ceil(math.log2(math.log2(max(min(ratio, 1e300), 4.0)))) if ratio > 0.0 else 1
    count = max(1, min(wanted, solver.most_stages))
    if solver.split == "blocks":
        while count > 1 and instance.public.n // (2**count - 1) < solver.fewest_units:
            count -= 1
    return count


def stage_instance(solver: Any, instance: Instance, stage: Stage, count: int) -> Instance:
    """What the inner solver of a stage plans for; the ball's centre is not known yet."""
    centre = (0.0,) * instance.parameters
    budget, public = instance.budget, instance.public
    if count > 1 and solver.split == "blocks":
        public = public.block(stage.units)
    elif count > 1 and instance.is_private:
        budget = part_of(budget, 1.0 / count)
    return Instance(within(instance.problem, centre, stage.radius), public, budget)


def within(problem: Problem, centre: tuple[float, ...], radius: float) -> Problem:
    """The problem in a ball around a public or released point."""
    return replace(problem, constraint=CentredBall(centre, radius))


def _alpha(instance: Instance, n: int, part: float) -> float:
    """alpha(n) for a part of the budget."""
    m = instance.public.typical_records
    noise = math.sqrt(instance.parameters) / (n * math.sqrt(m) * instance.mu * math.sqrt(part))
    return 1.0 / math.sqrt(n * m) + noise


def _steepness(instance: Instance) -> float:
    """L: what the formula of the loss says, or the clip that is used by default."""
    if math.isfinite(instance.gradient_bound):
        return instance.gradient_bound
    clip = descent_defaults.default_clip(instance)
    return clip if math.isfinite(clip) else instance.public.row_bound
