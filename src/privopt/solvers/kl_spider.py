"""KL Spider: phases of recursive gradient estimates, planned so that a bound on the excess is known before the run.

Minimises F(w) + r(w) over a constraint set, F = (1/n) sum_i f(w, z_i), r smooth, for objectives whose gradient is large
where their excess is; convexity is not needed.
Source: Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 1.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.curator.base import Curator
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Event
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_defaults
from privopt.planning.kl_spider import Phase, PhasePlanner
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.plan import Bound, Finding
from privopt.problems.constraints import Constraint, Unconstrained
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Regulariser
from privopt.public import Public
from privopt.queries.gradient import ClippedGradient
from privopt.queries.gradient_difference import ClippedGradientDifference
from privopt.result import Outcome, Status
from privopt.solvers.base import Solver, required

MOST_STEPS = 100_000


class SpiderState(NamedTuple):
    """Where a run stands; all of it is a function of released values."""

    params: Float[Array, " *shape"]  # w
    spent: float  # rho
    events: int  # errors that share the failure probability, at least as many as releases
    steps: int  # taken in all
    finite: bool  # whether every iterate and estimate was


@dataclass(frozen=True, kw_only=True)
class KLSpider(Solver):
    """Normalised descent in phases, each on one released gradient and released differences, with a bound beforehand.

    Attributes:
        mode: "planned" (the lowest bound that the budget pays for, see `kl_phases`) or "paper" (the published phases at
            their corrected price, for comparisons).
        growth: the (gamma, kappa)-KL condition, 1 <= kappa <= 2, and the gap of the start; default the problem's.
        clip: C, the largest norm of one unit's gradient; default the loss's bound on it.
        curvature: L' of one record's loss; utility only.
        smoothness: L of the objective, the penalty included; default `curvature` plus that of the penalty.
        relative_error: e in (0, 1/2), the error of a gradient estimate over the gradient.
        failure: beta in (0, 1), the probability with which the bound may fail.
        recycle: whether every phase plans anew with what earlier phases that ended early have left.
        difference_clip: zeta, the clip of a difference over L' |w' - w|; below 1 there is no bound.
        most_steps: of all phases together; default 100 000. 0 returns the start and spends nothing.
        most_releases: how many there can be; set by `configure`, for the plan.
    Guarantee:
        (epsilon, delta)-DP by a filter: the costs 1 / (2 z^2) of all releases add up to at most that of one Gaussian
        release of multiplier `noise_multiplier`, under the curator's relation, for any data, loss and parameters. What
        is not spent is paid for all the same.
    Differs from the paper:
        Sensitivities are factor * C / n and factor * L' |w' - w| / n; the paper's lack the factor 2 of replacement and,
        for differences, the constants: as printed it spends more than twice its budget. Every difference that is
        paid for is used, and a phase starts from the point at which the phase before ended. Where no progress can be
        proved nothing is spent. The phases, their number and the split of the budget are planned from the exact noise,
        which lowers the bound by orders of magnitude; budget that early stops leave over is planned again.
    Source:
        Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 1 and Theorem 1.
    """

    mode: Literal["planned", "paper"] = "planned"
    growth: KL | None = None
    clip: float | None = None
    curvature: float | None = None
    smoothness: float | None = None
    relative_error: float = 0.25
    failure: float = 0.1
    recycle: bool = True
    difference_clip: float = 1.0
    most_steps: int | None = None
    most_releases: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("planned", "paper"):
            raise ValueError(f"mode must be 'planned' or 'paper', got {self.mode!r}.")
        if not 0.0 < self.relative_error < 0.5:
            raise ValueError(
                f"relative_error must be between 0 and 1/2, got {self.relative_error!r}: with half the gradient wrong "
                "a step proves nothing. 1/4 is usual."
            )
        if not 0.0 < self.failure < 1.0:
            raise ValueError(f"failure must be between 0 and 1, got {self.failure!r}: it is a probability.")
        if self.most_steps is not None and self.most_steps < 0:
            raise ValueError(f"most_steps must be at least 0, got {self.most_steps!r}.")
        for name in ("clip", "curvature", "smoothness", "difference_clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value!r}.")

    @property
    def name(self) -> str:
        """The solver's name."""
        return "kl-spider"

    @property
    def adaptive(self) -> bool:
        """Noise and number of releases follow what was released."""
        return True

    def event(self, public: Public) -> Event:
        """One Gaussian release, under which all others are made."""
        del public
        return Gaussian(required(self.noise_multiplier, "noise_multiplier")).event()

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """A smooth objective, the KL condition, and a bound on the excess of the start."""
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
        if self.curvature is None and not math.isfinite(problem.loss.curvature):
            return f"the {problem.loss.name} loss has no known bound on its curvature: give `curvature`"
        if not math.isfinite(self._gap(problem, growth, self._clip(problem, public))):
            return "it needs a bound on the excess of the start: give `KL(..., gap=...)`"
        return None

    def derived(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """The constants of the problem, where a field was left open."""
        self.check_applicable(problem, public)
        curvature = self.curvature
        if curvature is None:
            curvature = problem.smoothness(public) - problem.regulariser.smoothness
        smoothness = self.smoothness
        if smoothness is None:
            smoothness = curvature + problem.regulariser.smoothness
        most_steps = MOST_STEPS if budget.is_private else descent_defaults.NOISELESS_STEPS
        return replace(
            self,
            growth=self.growth or problem.growth,
            clip=self._clip(problem, public) if budget.is_private else self.clip or math.inf,
            curvature=curvature,
            smoothness=smoothness,
            most_steps=most_steps if self.most_steps is None else self.most_steps,
        )

    def configure(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """See `Solver.configure`; the number of releases is that of the phases that the noise pays for."""
        solver = super().configure(problem, public, budget)
        planner, gap = solver._planner(problem, public)
        if solver.mode == "paper":
            return replace(solver, most_releases=planner.paper_releases(gap, solver._rho()))
        return replace(solver, most_releases=planner.first_plan(gap, solver._rho())[1])

    def scaled(self, factor: float) -> Self:
        """The same solver with all its noise times `factor`, which plans other phases."""
        return replace(super().scaled(factor), most_releases=None)

    def releases(self) -> int:
        """The most there can be: twice the planned steps, since phases may be planned anew."""
        most_steps = MOST_STEPS if self.most_steps is None else self.most_steps
        return 2 * most_steps if self.most_releases is None else self.most_releases

    def passes(self) -> float:
        """One a release."""
        return float(self.releases())

    def bound(self, problem: Problem, public: Public, budget: Budget) -> Bound | None:
        """The goal of the last planned phase; None where no progress can be proved, or in the paper's mode."""
        del budget
        planner, gap = self._planner(problem, public)
        phases, _ = planner.first_plan(gap, self._rho())
        if not phases or self.mode == "paper" or self.difference_clip < 1.0:
            return None
        probability = 1.0 - self.failure if planner.factor else 1.0
        return Bound(phases[-1].goal, probability, _condition(planner.growth, problem))

    def notices(self, problem: Problem, public: Public, budget: Budget) -> tuple[str, ...]:
        """That nothing can be proved or gained, and how many units it would take."""
        if not budget.is_private:
            return (NOISE_IS_OFF,)
        planner, gap = self._planner(problem, public)
        found = large_delta(public, budget)
        if self.mode == "paper":
            if planner.paper_releases(gap, self._rho()) == 0:
                found += ("the published plan has no phase at this budget: nothing is spent.",)
            return (*found, "the published phases are for comparisons: planned ones prove far more.")
        if self.difference_clip < 1.0:
            found += ("difference_clip is below 1: differences may be clipped, so there is no bound.",)
        phases, _ = planner.first_plan(gap, self._rho())
        if phases:
            near = (
                f"the bound {phases[-1].goal:.3g} is near {gap:.3g}, that of the start: more units or a larger "
                "epsilon would help.",
            )
            return (*found, *(near if phases[-1].goal > 0.5 * gap else ()))
        needed = planner.units_needed(gap, self._rho())
        remedy = f"it would take more than most_steps = {planner.most_steps} steps."
        if math.isfinite(needed):
            remedy = f"it would take about {needed:.2g} units (n is {public.n}), or a larger epsilon."
        nothing = "no progress can be proved at this budget, so the start is returned and nothing is spent"
        return (*found, f"{nothing}: {remedy}")

    def indicators(self, problem: Problem, public: Public, budget: Budget) -> Mapping[str, Finding]:
        """The bound on the start's excess, which any other has to beat."""
        del budget
        _, gap = self._planner(problem, public)
        return {"gap": Finding(gap, "bound on the excess of the start")}

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 1: phases under a filter."""
        planner, gap = self._planner(problem, curator.public, start.size)
        state = SpiderState(start, spent=0.0, events=0, steps=0, finite=True)
        if self.mode == "paper":
            return self._run_published(curator, problem, planner, gap, state)
        rho = self._rho()
        phases, events = planner.first_plan(gap, rho)
        if not phases:
            return self._outcome(state, planner, problem, gap, Status.FINISHED)
        inner = curator.filtered(self.name, Gaussian(required(self.noise_multiplier, "noise_multiplier")))
        status, risk = Status.FINISHED, gap
        while phases and state.finite and state.events + phases[0].steps <= events:
            phase, *phases = phases
            state = self._descend(inner, problem, state, phase)
            risk = phase.goal
            if self.recycle and planner.factor:
                room = min(events - state.events, planner.most_steps - state.steps)
                phases = planner.plan_again(phases, risk, rho - state.spent, events, room)
                status = Status.BUDGET_SPENT
        return self._outcome(state, planner, problem, risk, status)

    def _run_published(
        self, curator: Curator, problem: Problem, planner: PhasePlanner, gap: float, state: SpiderState
    ) -> Outcome:
        """The published phases, until there are none left or the steps are taken."""
        if planner.paper_releases(gap, self._rho()) == 0:
            return self._outcome(state, planner, problem, gap, Status.FINISHED)
        inner = curator.filtered(self.name, Gaussian(required(self.noise_multiplier, "noise_multiplier")))
        for phase in planner.paper_phases(gap, self._rho()):
            state = self._descend(inner, problem, state, phase)
            if not state.finite or state.steps >= planner.most_steps:
                break
        return self._outcome(state, planner, problem, gap, Status.FINISHED)

    def _descend(self, curator: Curator, problem: Problem, state: SpiderState, phase: Phase) -> SpiderState:
        """One phase: a gradient, then steps of one length on it and on its differences, until it is short."""
        clip, loss, penalty = required(self.clip, "clip"), problem.loss, problem.regulariser
        params = state.params
        estimate = curator.release(
            ClippedGradient(loss=loss, at=params, clip=clip), self._noise(phase.anchor_cost)
        )
        state = state._replace(
            spent=state.spent + phase.anchor_cost, events=state.events + min(phase.steps, 2)
        )
        for taken in range(1, phase.steps + 1):
            slope = _slope(estimate, params, regulariser=penalty)
            steepness = float(jnp.sqrt(jnp.sum(slope * slope)))
            if not math.isfinite(steepness):
                return state._replace(finite=False)
            if steepness < phase.threshold:
                return state
            moved = _moved(params, slope, phase.length / steepness, constraint=problem.constraint)
            if not bool(jnp.all(jnp.isfinite(moved))):
                return state._replace(finite=False)
            if taken < phase.steps:
                difference = ClippedGradientDifference(
                    loss=loss, at=moved, anchor=params, slope_clip=phase.radius / phase.length
                )
                estimate = estimate + curator.release(difference, self._noise(phase.difference_cost))
                state = state._replace(
                    spent=state.spent + phase.difference_cost, events=state.events + (taken > 1)
                )
            params = moved
            state = state._replace(params=params, steps=state.steps + 1)
        return state

    def _outcome(
        self, state: SpiderState, planner: PhasePlanner, problem: Problem, risk: float, status: Status
    ) -> Outcome:
        """The result, with what is known of it."""
        findings: dict[str, Finding] = {}
        if state.finite and self.mode == "planned" and self.difference_clip >= 1.0:
            certain = state.events == 0 or planner.factor == 0
            probability = 1.0 if certain else 1.0 - self.failure
            meaning = f"excess at most this with probability {probability:.3g}"
            findings["risk_bound"] = Finding(risk, f"{meaning}, {_condition(planner.growth, problem)}")
        if planner.factor:
            share = state.spent / self._rho()
            findings["budget_used"] = Finding(share, "share of the zCDP paid for that releases used")
        return Outcome(state.params, status if state.finite else Status.DIVERGED, findings)

    def _noise(self, cost: float) -> Gaussian:
        """The mechanism of a release at this price; no noise where none was asked for."""
        return Gaussian(1.0 / math.sqrt(2.0 * cost) if self.noise_multiplier else 0.0)

    def _rho(self) -> float:
        """The budget; infinite without noise."""
        multiplier = required(self.noise_multiplier, "noise_multiplier")
        return 0.5 / multiplier**2 if multiplier else math.inf

    def _clip(self, problem: Problem, public: Public) -> float:
        """The given clip, the loss's bound on gradients, or a guess."""
        if self.clip is not None:
            return self.clip
        exact = problem.gradient_bound(public)
        return (
            exact
            if math.isfinite(exact)
            else descent_defaults.guess(problem, public).slope * public.row_bound
        )

    def _gap(self, problem: Problem, growth: KL, clip: float) -> float:
        """The bound on the start's excess; gradients of norm C prove one if the loss is the whole objective."""
        return growth.gap_within(clip if problem.regulariser.smoothness == 0.0 else math.inf)

    def _planner(
        self, problem: Problem, public: Public, parameters: int | None = None
    ) -> tuple[PhasePlanner, float]:
        """The planner of a configured solver, and the bound on the start's excess."""
        growth = required(self.growth or problem.growth, "growth")
        clip, curvature = required(self.clip, "clip"), required(self.curvature, "curvature")
        planner = PhasePlanner(
            growth=growth,
            clip=clip,
            curvature=curvature,
            smoothness=self.smoothness or curvature + problem.regulariser.smoothness,
            parameters=parameters or math.prod(problem.parameter_shape(public)),
            units=public.n,
            factor=public.relation.factor if self.noise_multiplier else 0,
            relative_error=self.relative_error,
            failure=self.failure,
            difference_clip=self.difference_clip,
            most_steps=MOST_STEPS if self.most_steps is None else self.most_steps,
        )
        return planner, self._gap(problem, growth, clip)


def _condition(growth: KL, problem: Problem) -> str:
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


@jax.jit
def _slope(estimate: Array, params: Array, *, regulariser: Regulariser) -> Array:
    """The estimate of the gradient of the whole objective: the penalty's is public."""
    return estimate + regulariser.gradient(params)


@partial(jax.jit, static_argnames=("constraint",))
def _moved(params: Array, slope: Array, scale: float, *, constraint: Constraint) -> Array:
    """The next iterate."""
    return constraint.project(params - scale * slope)
