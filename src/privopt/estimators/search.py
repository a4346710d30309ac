"""A charged search among candidates: its plan, priced as a whole."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from privopt.estimators.scale_estimation import ScaleEstimation
from privopt.estimators.setup import Setup
from privopt.estimators.stages import common_scale
from privopt.ledger.amounts import Budget
from privopt.ledger.dominating import comparable, dominating
from privopt.ledger.events import Event, Parallel, sequence
from privopt.ledger.gaussian_dp import gaussian_mu, part_of
from privopt.mechanisms.exponential import ExponentialMechanism
from privopt.planning.effort import data_bytes, estimation_seconds, loading_seconds, pass_seconds
from privopt.planning.instance import Instance
from privopt.planning.plan import Plan
from privopt.public import Public
from privopt.solvers.base import Solver
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.registry import choose

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One point of a grid: everything public about a fit of it, and the solver it asks for."""

    setup: Setup
    solver: Solver | str

    def configured(self, public: Public, budget: Budget) -> Solver:
        """Its solver, configured for a fit that has the budget to itself."""
        instance = Instance(self.setup.problem, public, budget)
        return choose(self.solver, instance).solver.configure(instance)


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """Everything that a search will release, fixed before the first release.

    Attributes:
        candidates: the grid.
        scales: the estimation of bounds that goes before it; None where they are given.
        fits: each candidate's solver on the training part.
        choice: how the best is chosen on the holdout part.
        refits: each candidate's solver on all units; empty without a refit.
        train: public number of units of the training part.
        held_out: public number of units of the holdout part.
        plan: the announcement, with the price of all of it.
    """

    candidates: tuple[Candidate, ...]
    scales: ScaleEstimation | None
    fits: tuple[Solver, ...]
    choice: ExponentialMechanism
    refits: tuple[Solver, ...]
    train: int
    held_out: int
    plan: Plan


def plan_search(
    candidates: Sequence[Candidate],
    *,
    n: int,
    by_user: bool,
    budget: Budget,
    holdout: float,
    selection_share: float,
    refit: bool,
) -> SearchPlan:
    """Fix every release of a search and scale all its noise together to the budget.

    Args:
        candidates: the grid. Those whose solver is "auto" fall back to gradient descent where the automatic choice
            would make the price of the refit depend on the winner.
        n: public number of units.
        by_user: whether a unit is a user.
        budget: of the whole search.
        holdout: fraction of the units that are held out.
        selection_share: share of the budget, in rho, for finding the winner.
        refit: whether the winner is fitted again on all units.
    Raises:
        ValueError: there are too few units, or the price of a refit would depend on the choice.
    """
    held_out = round(holdout * n)
    train = n - held_out
    if min(held_out, train) < 2:
        raise ValueError(
            f"holdout={holdout!r} of n = {n} units leaves {held_out} to score and {train} to fit on: both parts need 2."
        )
    scales = candidates[0].setup.scales
    left = budget if scales is None else scales.rest(budget)
    share = selection_share if refit else 1.0
    whole = [candidate.setup.public(n, by_user=by_user) for candidate in candidates]
    parts = [replace(public, n=train) for public in whole]
    if refit:
        candidates = _ordered(candidates, whole, part_of(left, 1.0 - share))
    each = part_of(left, share / len(candidates))
    fits = [candidate.configured(public, each) for candidate, public in zip(candidates, parts, strict=True)]
    refits: list[Solver] = []
    if refit:
        rest = part_of(left, 1.0 - share)
        refits = [
            candidate.configured(public, rest) for candidate, public in zip(candidates, whole, strict=True)
        ]
    # Bounded range epsilon0 costs rho = epsilon0^2 / 8, Gaussian releases mu^2 / 2.
    bounded_range = (
        2.0 * gaussian_mu(left.epsilon, left.delta) * math.sqrt(share) if left.is_private else math.inf
    )
    first = None if scales is None else scales.configured(budget)

    def events(scale: float) -> list[Event]:
        before = [] if first is None else [first.scaled(scale).event]
        fitted = [solver.scaled(scale).event(public) for solver, public in zip(fits, parts, strict=True)]
        found = Parallel((sequence(fitted), ExponentialMechanism(bounded_range / scale).event()))
        refitted = [solver.scaled(scale).event(public) for solver, public in zip(refits, whole, strict=False)]
        return [*before, found, *([dominating(refitted)] if refitted else [])]

    scale = common_scale(events, budget, whole[0])
    passes = (
        sum(solver.passes() for solver in fits) * train / n
        + len(candidates) * held_out / n
        + max((solver.passes() for solver in refits), default=0.0)
        + (first is not None)
    )
    outputs = candidates[0].setup.problem.loss.outputs
    around = loading_seconds(whole[0]) + pass_seconds(whole[0], outputs)
    if first is not None:
        around += estimation_seconds(whole[0])
    fitting = [
        solver.seconds(one.setup.problem, public)
        for solver, one, public in zip(fits, candidates, parts, strict=True)
    ]
    refitting = [
        solver.seconds(one.setup.problem, public)
        for solver, one, public in zip(refits, candidates, whole, strict=False)
    ]
    return SearchPlan(
        candidates=tuple(candidates),
        scales=None if first is None else first.scaled(scale),
        fits=tuple(solver.scaled(scale) for solver in fits),
        choice=ExponentialMechanism(bounded_range / scale),
        refits=tuple(solver.scaled(scale) for solver in refits),
        train=train,
        held_out=held_out,
        plan=Plan(
            solver="private-search",
            settings={
                "candidates": len(candidates),
                "units_fitted_on": train,
                "units_held_out": held_out,
                "selection_share": share,
                "solver": ", ".join(dict.fromkeys(solver.title for solver in fits)),
            }
            | ({} if scales is None else {"scale_budget": scales.share}),
            event=sequence(events(scale)),
            budget=budget,
            public=whole[0],
            releases=sum(solver.releases() for solver in fits)
            + 1
            + (first is not None)
            + max((solver.releases() for solver in refits), default=0),
            passes=passes,
            memory_bytes=2 * data_bytes(whole[0]),
            seconds=around + sum(fitting) + max(refitting, default=0.0),
            adaptive=any(solver.adaptive for solver in (*fits, *refits)),
        ),
    )


def _ordered(candidates: Sequence[Candidate], whole: Sequence[Public], budget: Budget) -> list[Candidate]:
    """The candidates, those that leave the solver open with one whose refits have comparable prices.

    Raises:
        ValueError: solvers that the user named have prices that cannot be compared.
    """

    def refits(some: Sequence[Candidate]) -> list[Event]:
        return [one.configured(public, budget).event(public) for one, public in zip(some, whole, strict=True)]

    plain = [
        replace(candidate, solver=GradientDescent()) if candidate.solver == AUTO else candidate
        for candidate in candidates
    ]
    if plain != list(candidates) and not comparable(refits(candidates)):
        candidates = plain
    dominating(refits(candidates))
    return list(candidates)
