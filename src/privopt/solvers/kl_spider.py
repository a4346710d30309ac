"""KL Spider: phases of recursive gradient estimates, planned so that a bound on the excess is known before the run.

Minimises F(w) + r(w) over a constraint set, F = (1/n) sum_i f(w, xi_i), r smooth, for objectives whose gradient is
large where their excess is; convexity is not needed.
Source: Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 1.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from privopt.curator.base import Curator
from privopt.ledger.events import Event
from privopt.mechanisms.additive import Gaussian
from privopt.planning import kl_paper_phases
from privopt.planning import kl_spider as planning
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.kl_phases import Phase, PhasePlanner
from privopt.planning.plan import Finding
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.gradient import ClippedGradient
from privopt.queries.gradient_difference import ClippedGradientDifference
from privopt.result import Outcome, Status
from privopt.solvers.base import Defaults, Solver
from privopt.solvers.fields import choice, derived, number, optional
from privopt.solvers.guarded import guarded


class SpiderState(NamedTuple):
    """Where the descent stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]  # w
    previous: Float[Array, " *shape"]  # the point before
    estimate: Float[Array, " *shape"]  # v, of the gradient of the mean loss there
    steepness: Float[Array, ""]  # |v + grad r|; below the threshold w stays where it was
    finite: Bool[Array, ""]


@dataclass
class Course:
    """How far a run has come: functions of releases."""

    state: SpiderState
    spent: float = 0.0  # rho
    events: int = 0  # errors that share the failure probability, at least as many as releases
    steps: int = 0  # taken in all


@dataclass(frozen=True, kw_only=True)
class KLSpider(Solver):
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
    defaults: ClassVar[Defaults] = planning.DEFAULTS

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

    def configure(self, instance: Instance) -> Self:
        """See `Solver.configure`; the number of releases is that of the phases that the noise pays for."""
        solver = super().configure(instance)
        return solver.with_(most_releases=planning.most_releases(solver, instance.problem, instance.public))

    def scaled(self, factor: float) -> Self:
        """The same solver with all its noise times `factor`, which plans other phases."""
        return super().scaled(factor).with_(most_releases=None)

    def forecast(self, instance: Instance) -> Forecast:
        return planning.forecast(self, instance)

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
        if not planning.has_start_gap(self, growth, problem):
            return "it needs a bound on the excess of the start: give `KL(..., gap=...)`"
        return None

    @property
    def adaptive(self) -> bool:
        return True

    @property
    def makes(self) -> frozenset[str]:
        """Nothing: it asks for sums over all units."""
        return frozenset()

    @property
    def rho(self) -> float:
        """What the filter holds, in zCDP; infinite without noise."""
        return 0.5 / self.noise_multiplier**2 if self.noise_multiplier else math.inf

    def event(self, public: Public) -> Event:
        """One Gaussian release, under which all others are made."""
        del public
        return Gaussian(self.noise_multiplier).event()

    def releases(self) -> int:
        """The most there can be; where phases are not planned yet, twice the steps, since they may be planned anew."""
        return 2 * self.most_steps if self.most_releases is None else self.most_releases

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 1: phases under a filter."""
        planner, gap = planning.planner(self, problem, curator.public)
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
        if kl_paper_phases.releases(planner, gap, self.rho) == 0:
            return self._outcome(course, planner, problem, gap, Status.FINISHED)
        inner = curator.filtered(self.name, Gaussian(self.noise_multiplier))
        for phase in kl_paper_phases.phases(planner, gap, self.rho):
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
            condition = planning.condition(planner.growth, problem)
            findings["risk_bound"] = Finding(risk, f"{meaning}, {condition}")
        if planner.factor:
            share = course.spent / self.rho
            findings["budget_used"] = Finding(share, "share of the zCDP paid for that releases used")
        return Outcome(course.state.params, status if finite else Status.DIVERGED, findings)

    def _noise(self, cost: float) -> Gaussian:
        """The mechanism of a release at this price; no noise where none was asked for."""
        return Gaussian(1.0 / math.sqrt(2.0 * cost) if self.noise_multiplier else 0.0)


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
