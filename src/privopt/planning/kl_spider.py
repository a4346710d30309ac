"""Defaults, bound and notices of KL Spider; `kl_phases` plans its phases.

Source:
    Menart, Ullah, Arora, Bassily, Guzman 2023, Theorem 1.
"""

import math
from typing import Any

from privopt.planning import descent_defaults, kl_paper_phases
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.kl_phases import PhasePlanner
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.plan import Bound, Finding
from privopt.problems.constraints import Unconstrained
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.public import Public

MOST_STEPS = 100_000


def clip(solver: Any, instance: Instance) -> float:
    """The loss's bound on gradients, or a guess; infinite without noise."""
    del solver
    if not instance.is_private:
        return math.inf
    exact = instance.gradient_bound
    guessed = descent_defaults.guess(instance).slope * instance.public.row_bound
    return exact if math.isfinite(exact) else guessed


DEFAULTS = {
    "growth": lambda solver, instance: instance.growth,
    "clip": clip,
    "curvature": lambda solver, instance: instance.problem.loss_smoothness(instance.public),
    "smoothness": lambda solver, instance: solver.curvature + instance.penalty_smoothness,
    "most_steps": lambda solver, instance: (
        MOST_STEPS if instance.is_private else descent_defaults.NOISELESS_STEPS
    ),
}


def start_gap(growth: KL, clip: float, problem: Problem) -> float:
    """The bound on the start's excess; gradients of norm C prove one if the loss is the whole objective."""
    return growth.gap_within(clip if problem.regulariser.smoothness == 0.0 else math.inf)


def has_start_gap(solver: Any, growth: KL, problem: Problem) -> bool:
    """Whether the start's excess is bounded; the clip that is derived is finite wherever there is noise."""
    return math.isfinite(start_gap(growth, solver.clip if solver.is_set("clip") else 1.0, problem))


def planner(solver: Any, problem: Problem, public: Public) -> tuple[PhasePlanner, float]:
    """The planner of a configured solver, and the bound on the start's excess."""
    made = PhasePlanner(
        growth=solver.growth,
        clip=solver.clip,
        curvature=solver.curvature,
        smoothness=solver.smoothness,
        parameters=math.prod(problem.parameter_shape(public)),
        units=public.n,
        factor=public.relation.factor if solver.noise_multiplier else 0,
        relative_error=solver.relative_error,
        failure=solver.failure,
        difference_clip=solver.difference_clip,
        most_steps=solver.most_steps,
    )
    return made, start_gap(solver.growth, solver.clip, problem)


def most_releases(solver: Any, problem: Problem, public: Public) -> int:
    """How many releases there can be at the noise of a configured solver."""
    made, gap = planner(solver, problem, public)
    if solver.variant == "paper":
        return kl_paper_phases.releases(made, gap, solver.rho)
    return made.first_plan(gap, solver.rho)[1]


def condition(growth: KL, problem: Problem) -> str:
    """What the bound rests on."""
    inside = (
        ""
        if isinstance(problem.constraint, Unconstrained)
        else ", no step is cut short by the constraint set"
    )
    return (
        f"if the objective is L-smooth and ({growth.gamma:.4g}, {growth.kappa:.4g})-KL along the path{inside} and no "
        "gradient and no change of a gradient is clipped"
    )


def forecast(solver: Any, instance: Instance) -> Forecast:
    """The goal of the last planned phase as a bound, or that nothing can be proved and how many units it would take."""
    made, gap = planner(solver, instance.problem, instance.public)
    start = {"gap": Finding(gap, "bound on the excess of the start")}
    if solver.variant == "paper":
        return Forecast(indicators=start, notices=_paper_notices(solver, instance, made, gap))
    phases, _ = made.first_plan(gap, solver.rho)
    goal = phases[-1].goal if phases else None
    bound = None
    if goal is not None and solver.difference_clip >= 1.0:
        probability = 1.0 - solver.failure if made.factor else 1.0
        bound = Bound(goal, probability, condition(solver.growth, instance.problem))
    notices = _notices(solver, instance, made, gap, goal)
    return Forecast(bound=bound, indicators=start, notices=notices, for_convex=False)


def _paper_notices(solver: Any, instance: Instance, made: PhasePlanner, gap: float) -> tuple[str, ...]:
    """What the published phases are good for."""
    if not instance.is_private:
        return (NOISE_IS_OFF,)
    found = large_delta(instance)
    if kl_paper_phases.releases(made, gap, solver.rho) == 0:
        found += ("the published plan has no phase at this budget: nothing is spent.",)
    return (*found, "the published phases are for comparisons: planned ones prove far more.")


def _notices(
    solver: Any, instance: Instance, made: PhasePlanner, gap: float, goal: float | None
) -> tuple[str, ...]:
    """That nothing can be proved or gained, and how many units it would take."""
    if not instance.is_private:
        return (NOISE_IS_OFF,)
    found = large_delta(instance)
    if solver.difference_clip < 1.0:
        found += ("difference_clip is below 1: differences may be clipped, so there is no bound.",)
    if goal is not None:
        near = (
            f"the bound {goal:.3g} is near {gap:.3g}, that of the start: more units or a larger epsilon would help.",
        )
        return (*found, *(near if goal > 0.5 * gap else ()))
    needed = made.units_needed(gap, solver.rho)
    remedy = f"it would take more than most_steps = {made.most_steps} steps."
    if math.isfinite(needed):
        remedy = f"it would take about {needed:.2g} units (n is {instance.public.n}), or a larger epsilon."
    nothing = "no progress can be proved at this budget, so the start is returned and nothing is spent"
    return (*found, f"{nothing}: {remedy}")
