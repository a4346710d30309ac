"""KL Spider: phases of recursive gradient estimates, planned so that a bound on the excess is known before the run.

Minimises F(w) + r(w) over a constraint set, F = (1/n) sum_i f(w, xi_i), r smooth, for objectives whose gradient is
large where their excess is; convexity is not needed.
Source: Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 1.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Self

from privopt.curator.base import Curator
from privopt.later import Array, Bool, Float, jax, jnp
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_theory
from privopt.planning.kl_phases import ROUNDING, Phase, PhasePlanner
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.plan import Bound, Finding
from privopt.planning.task import Forecast, Instance
from privopt.problems.constraints import Unconstrained
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.slopes import ClippedGradient, ClippedGradientDifference
from privopt.result import Outcome, Status
from privopt.solvers.base import FilteredSolver
from privopt.solvers.fields import choice, derived, guarded, number, optional

# ---- Defaults, bound and notices of KL Spider; `kl_phases` plans its phases --------------------------------
# Source:
#     Menart, Ullah, Arora, Bassily, Guzman 2023, Theorem 1.
MOST_STEPS = 100_000


class SpiderState(NamedTuple):
    """Where the descent stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]  # w
    previous: Float[Array, " *shape"]  # the point before
    estimate: Float[Array, " *shape"]  # v, of the gradient of the mean loss there
    steepness: Float[Array, ""]  # |v + grad r|; below the threshold w stays where it was
    finite: Bool[Array, ""]


@dataclass
class Course:
    """A run so far; every value is a function of releases."""

    state: SpiderState
    spent: float = 0.0  # rho
    events: int = 0  # errors that share the failure probability, at least as many as releases
    steps: int = 0  # taken in all


@dataclass(frozen=True, kw_only=True)
class KLSpider(FilteredSolver):
    """Normalised descent in phases, each on one released gradient and released differences, with a bound beforehand.

    Attributes:
        variant: "planned" (the lowest bound that the budget pays for, see `kl_phases`) or "paper" (the published phases
            at their corrected price, for comparisons).
        growth: the (gamma, kappa)-KL condition, 1 <= kappa <= 2, and the gap of the start; default the problem's.
        clip: C, the largest norm of one unit's gradient; default the loss's bound on it.
        curvature: L1 of one record's loss; utility only.
        smoothness: L of the objective, the penalty included; default `curvature` plus that of the penalty.
        relative_error: e, the error of a gradient estimate over the gradient; 1/4 is usual, and with half the gradient
            wrong a step proves nothing.
        failure: beta, the probability with which the bound may fail.
        recycle: whether every phase plans anew with what earlier phases that ended early have left.
        difference_clip: c, the clip of a difference as a fraction of L1 |w' - w|, which the curvature allows; below 1
            there is no bound.
        most_steps: of all phases together; default 100 000. 0 returns the start and spends nothing.
        most_releases: how many there can be; set by `configure`, for the plan.
    Guarantee:
        (epsilon, delta)-DP by a filter: the costs 1 / (2 z^2) of all releases add up to at most that of one Gaussian
        release of multiplier `noise_multiplier`, under the curator's relation, for any data, loss and parameters. What
        is not spent is paid for all the same.
    Differs from the paper:
        Sensitivities are factor * C / n and factor * L1 |w' - w| / n; the paper's lack the factor 2 of replacement and,
        for differences, the constants: as printed it spends more than twice its budget. Every difference that is
        paid for is used, and a phase starts from the point at which the phase before ended. Where no progress can be
        proved nothing is spent. The phases, their number and the split of the budget are planned from the exact noise,
        which lowers the bound by orders of magnitude; budget that early stops leave over is planned again.
    Source:
        Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 1 and Theorem 1.
    """

    name: ClassVar[str] = "kl-spider"

    variant: Literal["planned", "paper"] = choice("planned")
    growth: KL | None = None
    clip: float = derived(above=0)
    curvature: float = derived(above=0)
    smoothness: float = derived(above=0)
    relative_error: float = number(0.25, above=0, below=0.5)
    failure: float = number(0.1, above=0, below=1)
    recycle: bool = True
    difference_clip: float = number(1.0, above=0)
    most_steps: int = derived(at_least=0)
    most_releases: int | None = optional(at_least=0)

    def default_growth(self, instance: Instance) -> KL | None:
        return instance.growth

    def default_clip(self, instance: Instance) -> float:
        """The loss's bound on gradients, or a guess; infinite without noise."""
        if not instance.is_private:
            return math.inf
        exact = instance.gradient_bound
        guessed = descent_theory.guess(instance).slope * instance.public.row_bound
        return exact if math.isfinite(exact) else guessed

    def default_curvature(self, instance: Instance) -> float:
        return instance.problem.loss_smoothness(instance.public)

    def default_smoothness(self, instance: Instance) -> float:
        return self.curvature + instance.penalty_smoothness

    def default_most_steps(self, instance: Instance) -> int:
        return MOST_STEPS if instance.is_private else descent_theory.NOISELESS_STEPS

    def configure(self, instance: Instance) -> Self:
        """See `Solver.configure`; the number of releases is that of the phases that the noise pays for."""
        solver = super().configure(instance)
        return solver.with_(most_releases=solver._releases_at_most(instance.problem, instance.public))

    def scaled(self, factor: float) -> Self:
        """The same solver with all its noise times `factor`, which plans other phases."""
        return super().scaled(factor).with_(most_releases=None)

    def forecast(self, instance: Instance) -> Forecast:
        """The goal of the last planned phase as a bound, or that nothing can be proved, and from what n on."""
        made, gap = self.phase_planner(instance.problem, instance.public)
        start = {"gap": Finding(gap, "bound on the excess of the start")}
        if self.variant == "paper":
            return Forecast(indicators=start, notices=self._paper_notices(instance, made, gap))
        phases, _ = made.first_plan(gap, self.rho)
        goal = phases[-1].goal if phases else None
        bound = None
        if goal is not None and self.growth is not None and self.difference_clip >= 1.0:
            probability = 1.0 - self.failure if made.factor else 1.0
            bound = Bound(goal, probability, _bound_condition(self.growth, instance.problem))
        notices = self._notices(instance, made, gap, goal)
        return Forecast(bound=bound, indicators=start, notices=notices, for_convex=False)

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """A smooth objective, the KL condition, and a bound on the excess of the start."""
        del public
        growth = self.growth or problem.growth
        if growth is None:
            return (
                "it needs `growth`, the (gamma, kappa)-KL condition of the objective: a wrong one makes its bound "
                "false, so there is no default. Adaptive gradient descent needs none"
            )
        if growth.kappa > 2.0:
            return (
                f"kappa = {growth.kappa:.4g} is above 2, which no smooth objective satisfies near its minimum: the KL "
                "proximal point method is for that"
            )
        if not problem.regulariser.is_smooth:
            return f"its steps are gradient steps, and the penalty {problem.regulariser!r} is not smooth"
        if not (self.is_set("curvature") or math.isfinite(problem.loss.curvature)):
            return f"the {problem.loss.name} loss has no known bound on its curvature: give `curvature`"
        if not self._has_start_gap(growth, problem):
            return "it needs a bound on the excess of the start: give `KL(..., gap=...)`"
        return None

    def releases(self) -> int:
        """The most there can be; where phases are not planned yet, twice the steps, since they may be planned anew."""
        return 2 * self.most_steps if self.most_releases is None else self.most_releases

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 1: phases under a filter."""
        planner, gap = self.phase_planner(problem, curator.public)
        course = Course(SpiderState(start, start, start, jnp.zeros(()), jnp.asarray(True)))
        if self.variant == "paper":
            return self._run_published(curator, problem, planner, gap, course)
        phases, events = planner.first_plan(gap, self.rho)
        if not phases:
            return self._outcome(course, planner, problem, gap, Status.FINISHED)
        inner = curator.filtered(self.name, Gaussian(self.noise_multiplier))
        status, risk = Status.FINISHED, gap
        while phases and course.state.finite and course.events + phases[0].steps <= events:
            phase, *phases = phases
            self._descend(inner, problem, course, phase)
            risk = phase.goal
            if self.recycle and planner.factor:
                room = min(events - course.events, planner.most_steps - course.steps)
                phases = planner.plan_again(phases, risk, self.rho - course.spent, events, room)
                status = Status.BUDGET_SPENT
        return self._outcome(course, planner, problem, risk, status)

    def _run_published(
        self, curator: Curator, problem: Problem, planner: PhasePlanner, gap: float, course: Course
    ) -> Outcome:
        """The published phases, until there are none left or the steps are taken."""
        if releases(planner, gap, self.rho) == 0:
            return self._outcome(course, planner, problem, gap, Status.FINISHED)
        inner = curator.filtered(self.name, Gaussian(self.noise_multiplier))
        for phase in phases(planner, gap, self.rho):
            self._descend(inner, problem, course, phase)
            if not course.state.finite or course.steps >= planner.most_steps:
                break
        return self._outcome(course, planner, problem, gap, Status.FINISHED)

    def _descend(self, curator: Curator, problem: Problem, course: Course, phase: Phase) -> None:
        """One phase: a gradient, then steps of one length on it and on its differences, until it is short."""
        state, loss = course.state, problem.loss
        state = state._replace(estimate=jnp.zeros_like(state.params))
        gradient = ClippedGradient(loss=loss, at=state.params, clip=self.clip)
        released = curator.release(gradient, self._noise(phase.anchor_cost))
        course.spent += phase.anchor_cost
        course.events += min(phase.steps, 2)
        for taken in range(1, phase.steps + 1):
            state = _step(state, released, length=phase.length, threshold=phase.threshold, problem=problem)
            course.state = state
            if float(state.steepness) < phase.threshold or not state.finite:
                return
            course.steps += 1
            if taken < phase.steps:
                difference = ClippedGradientDifference(
                    loss=loss,
                    at=state.params,
                    anchor=state.previous,
                    slope_clip=phase.radius / phase.length,
                )
                released = curator.release(difference, self._noise(phase.difference_cost))
                course.spent += phase.difference_cost
                course.events += taken > 1

    def _outcome(
        self, course: Course, planner: PhasePlanner, problem: Problem, risk: float, status: Status
    ) -> Outcome:
        """The result, with what is known of it."""
        findings: dict[str, Finding] = {}
        finite = bool(course.state.finite)
        if finite and self.variant == "planned" and self.difference_clip >= 1.0:
            certain = course.events == 0 or planner.factor == 0
            probability = 1.0 if certain else 1.0 - self.failure
            meaning = f"excess at most this with probability {probability:.3g}"
            condition = _bound_condition(planner.growth, problem)
            findings["risk_bound"] = Finding(risk, f"{meaning}, {condition}")
        if planner.factor:
            share = course.spent / self.rho
            findings["budget_used"] = Finding(share, "share of the zCDP paid for that releases used")
        return Outcome(course.state.params, status if finite else Status.DIVERGED, findings)

    def _noise(self, cost: float) -> Gaussian:
        """The mechanism of a release at this price; no noise where none was asked for."""
        return Gaussian(1.0 / math.sqrt(2.0 * cost) if self.noise_multiplier else 0.0)

    def _has_start_gap(self, growth: KL, problem: Problem) -> bool:
        """Whether the start's excess is bounded; the clip that is derived is finite wherever there is noise."""
        return math.isfinite(_start_gap(growth, self.clip if self.is_set("clip") else 1.0, problem))

    def phase_planner(self, problem: Problem, public: Public) -> tuple[PhasePlanner, float]:
        """The planner of this configured solver, and the bound on the start's excess."""
        assert self.growth is not None  # it is configured
        made = PhasePlanner(
            growth=self.growth,
            clip=self.clip,
            curvature=self.curvature,
            smoothness=self.smoothness,
            parameters=math.prod(problem.parameter_shape(public)),
            units=public.n,
            factor=public.relation.factor if self.noise_multiplier else 0,
            relative_error=self.relative_error,
            failure=self.failure,
            difference_clip=self.difference_clip,
            most_steps=self.most_steps,
        )
        return made, _start_gap(self.growth, self.clip, problem)

    def _releases_at_most(self, problem: Problem, public: Public) -> int:
        """How many releases there can be at the noise of this configured solver."""
        made, gap = self.phase_planner(problem, public)
        if self.variant == "paper":
            return releases(made, gap, self.rho)
        return made.first_plan(gap, self.rho)[1]

    def _paper_notices(self, instance: Instance, made: PhasePlanner, gap: float) -> tuple[str, ...]:
        """What the published phases are good for."""
        if not instance.is_private:
            return (NOISE_IS_OFF,)
        found = large_delta(instance)
        if releases(made, gap, self.rho) == 0:
            found += ("the published plan has no phase at this budget: nothing is spent.",)
        return (*found, "the published phases are for comparisons: planned ones prove far more.")

    def _notices(
        self, instance: Instance, made: PhasePlanner, gap: float, goal: float | None
    ) -> tuple[str, ...]:
        """That nothing can be proved or gained, and how many units it would take."""
        if not instance.is_private:
            return (NOISE_IS_OFF,)
        found = large_delta(instance)
        if self.difference_clip < 1.0:
            found += ("difference_clip is below 1: differences may be clipped, so there is no bound.",)
        if goal is not None:
            near = (
                f"the bound {goal:.3g} is near {gap:.3g}, that of the start: more units or a larger epsilon would "
                "help.",
            )
            return (*found, *(near if goal > 0.5 * gap else ()))
        needed = made.units_needed(gap, self.rho)
        remedy = f"it would take more than most_steps = {made.most_steps} steps."
        if math.isfinite(needed):
            remedy = (
                f"it would take about {needed:.2g} units (n is {instance.public.n}), or a larger epsilon."
            )
        nothing = "no progress can be proved at this budget, so the start is returned and nothing is spent"
        return (*found, f"{nothing}: {remedy}")


@jax.jit
@guarded
def _step(
    state: SpiderState, released: Array, *, length: float, threshold: float, problem: Problem
) -> SpiderState:
    """The estimate at w, and a step of the given length along it, unless it is shorter than the threshold."""
    estimate = state.estimate + released
    slope = estimate + problem.regulariser.gradient(state.params)
    steepness = jnp.sqrt(jnp.sum(slope * slope))
    is_flat = steepness < threshold
    moved = problem.proximal_step(state.params, estimate, length / jnp.where(is_flat, 1.0, steepness))
    return SpiderState(
        params=jnp.where(is_flat, state.params, moved),
        previous=state.params,
        estimate=estimate,
        steepness=steepness,
        finite=state.finite,
    )


def _start_gap(growth: KL, clip: float, problem: Problem) -> float:
    """The bound on the start's excess; gradients of norm C prove one if the loss is the whole objective."""
    return growth.gap_within(clip if problem.regulariser.smoothness == 0.0 else math.inf)


def _bound_condition(growth: KL, problem: Problem) -> str:
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


# ---- The phases of KL Spider as they were published, at their corrected price: for comparisons -------------
# The excess falls by the factor 1 + 1 / A a phase, A = 64 gamma^2 L F_0^(1 - 2/kappa), down to a floor of 32 times the
# noise of one gradient, to the power kappa; every phase gets an equal share of the budget.
#
# Source:
#     Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 1 and Theorem 1.
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
