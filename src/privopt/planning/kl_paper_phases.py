"""The phases of KL Spider as they were published, at their corrected price: for comparisons.

The excess falls by the factor 1 + 1 / A a phase, A = 64 gamma^2 L F_0^(1 - 2/kappa), down to a floor of 32 times the
noise of one gradient, to the power kappa; every phase gets an equal share of the budget.

Source:
    Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 1 and Theorem 1.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from privopt.planning.kl_phases import ROUNDING, Phase, PhasePlanner

NARROWEST = 64.0  # the factor in A
ACCURACY = 32.0  # of the floor, over the noise of one gradient


class PaperConstants(NamedTuple):
    """The constants of the published plan: number of phases, ratio, lowest goal, failure probability of one event."""

    phases: float
    ratio: float
    floor: float
    failure: float


def constants(planner: PhasePlanner, gap: float, rho: float) -> PaperConstants | None:
    """The published plan's constants; None where it has no phase.

    Without noise the number of phases is `most_steps` and the floor 0.
    """
    gamma, kappa = planner.growth.gamma, planner.growth.kappa
    narrow = NARROWEST * gap ** (-(2.0 - kappa) / kappa) * gamma**2 * planner.smoothness
    ratio = 1.0 + 1.0 / narrow
    if planner.factor == 0:
        return PaperConstants(planner.most_steps, ratio, 0.0, planner.failure)
    scale = gamma * planner.clip * math.sqrt(planner.parameters) / (planner.units * math.sqrt(rho))
    depth = math.log(gap) - kappa * math.log(scale)
    if depth <= 0:
        return None
    number = math.ceil((1.0 + narrow) * depth)
    steepness = (scale * math.sqrt(number) / gap ** (1.0 / kappa)) ** (2.0 - kappa)
    failure = planner.failure / number * min(1.0, steepness)
    floor = (ACCURACY * scale * math.sqrt(number * math.log(1.0 / failure))) ** kappa
    return PaperConstants(number, ratio, min(floor, gap), failure)


def releases(planner: PhasePlanner, gap: float, rho: float) -> int:
    """The most releases of the published plan, whose total of steps is looked at where a phase ends."""
    found = constants(planner, gap, rho)
    if found is None or planner.most_steps == 0:
        return 0
    lowest = max(found.floor, gap * math.exp(-found.phases * math.log(found.ratio)), 1e-300)
    longest = _steps(planner, gap, lowest)
    return int(min(found.phases * longest, found.phases + planner.most_steps + longest))


def phases(planner: PhasePlanner, gap: float, rho: float) -> Iterator[Phase]:
    """The published plan, one phase after the other, each at the price rho / K."""
    found = constants(planner, gap, rho)
    if found is None or planner.most_steps == 0:
        return
    goal, number = gap, 0
    share = rho / found.phases if planner.factor else 0.0
    while number < found.phases:
        goal, number = max(goal / found.ratio, found.floor), number + 1
        gradient = planner.growth.gradient_at(goal)
        if not gradient > 0:
            return
        steps = _steps(planner, gap, goal)
        length = gradient / (4.0 * planner.smoothness)
        yield Phase(
            goal=goal,
            steps=steps,
            threshold=0.875 * gradient,
            length=length,
            radius=min(2.0 * planner.clip, planner.difference_clip * planner.curvature * length),
            anchor_cost=share if steps == 1 else 0.5 * share,
            difference_cost=0.0 if steps == 1 else 0.5 * share / (steps - 1),
        )


def _steps(planner: PhasePlanner, gap: float, goal: float) -> int:
    """T_k of the published plan, as a whole number."""
    kappa = planner.growth.kappa
    return max(1, math.ceil((gap / goal) ** ((2.0 - kappa) / kappa) - ROUNDING))
