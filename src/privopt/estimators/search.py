"""One private search among candidates: its plan, priced as a whole, and its run through one ledger."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from privopt.blocks import block_assignment
from privopt.curator import Curator, Door
from privopt.data import Units
from privopt.estimators.base import PrivateLinearModel
from privopt.estimators.holdout import HoldoutScores
from privopt.estimators.setup import Setup
from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, GaussianEvent, Parallel, leaf_counts, sequence
from privopt.ledger.gaussian_dp import gaussian_epsilon, gaussian_mu
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.exponential import ExponentialMechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.plans import Plan, data_bytes, pass_seconds
from privopt.public import Public
from privopt.result import Result
from privopt.solvers.base import Solver
from privopt.solvers.registry import choose
from privopt.transcript import Transcript


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One point of a grid: its estimator, and everything public about a fit of it."""

    model: PrivateLinearModel
    setup: Setup

    def solver(self, public: Public, budget: Budget) -> Solver:
        """Its solver, configured for a fit that has the budget to itself."""
        problem = self.setup.problem
        return choose(self.model.solver, problem, public).configure(problem, public, budget)


@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """Everything that a search will release, fixed before the first release.

    Attributes:
        candidates: the grid.
        fits: each candidate's solver on the training part.
        choice: how the best is chosen on the holdout part.
        refits: each candidate's solver on all units; empty without a refit.
        train: public number of units of the training part.
        held_out: public number of units of the holdout part.
        plan: the announcement, with the price of all of it.
    """

    candidates: tuple[Candidate, ...]
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
        candidates: the grid.
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
    share = selection_share if refit else 1.0
    whole = [candidate.setup.public(n, by_user=by_user) for candidate in candidates]
    parts = [replace(public, n=train) for public in whole]
    each = _part_of(budget, share / len(candidates))
    fits = [candidate.solver(public, each) for candidate, public in zip(candidates, parts, strict=True)]
    refits: list[Solver] = []
    if refit:
        rest = _part_of(budget, 1.0 - share)
        refits = [candidate.solver(public, rest) for candidate, public in zip(candidates, whole, strict=True)]
    # Bounded range epsilon0 costs rho = epsilon0^2 / 8, Gaussian releases mu^2 / 2.
    bounded_range = (
        2.0 * gaussian_mu(budget.epsilon, budget.delta) * math.sqrt(share) if budget.is_private else math.inf
    )

    def events(scale: float) -> tuple[Event, Event]:
        fitted = [_scaled(solver, scale).event(public) for solver, public in zip(fits, parts, strict=True)]
        found = Parallel((sequence(fitted), ExponentialMechanism(bounded_range / scale).event()))
        refitted = [
            _scaled(solver, scale).event(public) for solver, public in zip(refits, whole, strict=False)
        ]
        return found, sequence([dominating(refitted)] if refitted else [])

    relation = whole[0].relation
    scale = calibrate(lambda factor: sequence(events(factor)), budget, relation) if budget.is_private else 1.0
    steps = [solver.passes() for solver in fits]
    passes = (
        sum(steps) * train / n
        + len(candidates) * held_out / n
        + max((s.passes() for s in refits), default=0.0)
    )
    return SearchPlan(
        candidates=tuple(candidates),
        fits=tuple(_scaled(solver, scale) for solver in fits),
        choice=ExponentialMechanism(bounded_range / scale),
        refits=tuple(_scaled(solver, scale) for solver in refits),
        train=train,
        held_out=held_out,
        plan=Plan(
            solver="private-search",
            settings={
                "candidates": len(candidates),
                "units_fitted_on": train,
                "units_held_out": held_out,
                "selection_share": share,
                "solver": fits[0].name,
            },
            event=sequence(events(scale)),
            budget=budget,
            public=whole[0],
            releases=sum(solver.releases() for solver in fits)
            + 1
            + max((s.releases() for s in refits), default=0),
            passes=passes,
            memory_bytes=2 * data_bytes(whole[0]),
            seconds=passes * pass_seconds(whole[0], candidates[0].setup.problem.loss.outputs),
        ),
    )


def dominating(events: Sequence[Event]) -> Event:
    """One event that costs as much as the dearest of several, whichever of them is released.

    Args:
        events: alternatives; which one is released may depend on releases before it.
    Privacy:
        Gaussian releases on everybody compose to exactly one with 1 / z^2 summed, and a smaller sum is dominated by a
        larger one whatever it is composed with. Equal events need no argument. Nothing else is totally ordered: the
        maximum of two curves need not bound a choice between them that depends on earlier releases.
    Raises:
        ValueError: the alternatives are not ordered.
    """
    if len(set(events)) == 1:
        return events[0]
    squares: list[float] = []
    for event in events:
        leaves, parallels = leaf_counts(event)
        if parallels or not all(isinstance(leaf, GaussianEvent) for leaf in leaves):
            raise ValueError(
                "the price of the refit would depend on which candidate is chosen: give a solver whose steps and "
                "sampling rate are the same for all candidates, or use refit=False."
            )
        squares.append(
            math.fsum(
                count / leaf.noise_multiplier**2
                for leaf, count in leaves.items()
                if isinstance(leaf, GaussianEvent)
            )
        )
    return GaussianEvent(1.0 / math.sqrt(max(squares)))


class SearchRun:
    """A search under way, on units that are split once. Every release goes through one ledger.

    Args:
        search: the plan.
        public: what is public about all units.
        noise: secret randomness, for the split and for all releases.
    """

    def __init__(self, search: SearchPlan, public: Public, noise: NoiseSource) -> None:
        self.search = search
        self.transcript = Transcript(public.relation, seeded=noise.seeded)
        self._noise = noise
        self._ledger = Ledger(
            search.plan.budget, public.relation, plan=search.plan.event, seeded=noise.seeded
        )
        self._train_ledger, self._held_ledger = self._ledger.parallel(2, "training and holdout part")
        sizes = (search.train, search.held_out)
        (self._private_train, _), (self._private_held, _) = block_assignment(
            public, sizes, noise.units_generator
        )

    def fit(self, index: int, units: Units) -> Result:
        """Fit a candidate on the training part of all `units`."""
        solver = self.search.fits[index]
        part = units.subset(self._private_train, self.search.train)
        ledger = self._train_ledger.sub_ledger(f"candidate {index}", plan=solver.event(part.public))
        return solver.solve(self._door(part, ledger), self.search.candidates[index].setup.problem)

    def choose(self, scores: HoldoutScores, units: Units) -> int:
        """The index of the candidate chosen on the holdout part of all `units`."""
        part = units.subset(self._private_held, self.search.held_out)
        return int(self._door(part, self._held_ledger).release(scores, self.search.choice))

    def refit(self, index: int, units: Units) -> Result:
        """Fit the winner on all units. The ledger pays for the release that dominates every candidate's refit."""
        solver = self.search.refits[index]
        event = solver.event(units.public)
        dominant = dominating([other.event(units.public) for other in self.search.refits])
        self._ledger.charge("refit", dominant)
        own = Ledger(self.search.plan.budget, units.public.relation, plan=event, seeded=self._noise.seeded)
        return solver.solve(self._door(units, own), self.search.candidates[index].setup.problem)

    def _door(self, units: Units, ledger: Ledger) -> Door:
        return Curator(units, ledger, noise=self._noise, transcript=self.transcript)


def stack(parameters: Sequence[Any]) -> Any:
    """Released models (outputs, d) as the query wants them, (k, d, outputs)."""
    return jnp.stack([jnp.asarray(np.asarray(matrix, np.float64).T) for matrix in parameters])


def _part_of(budget: Budget, fraction: float) -> Budget:
    """A budget with a fraction of the whole one's mu^2, to derive steps from."""
    if not budget.is_private:
        return budget
    mu = gaussian_mu(budget.epsilon, budget.delta) * math.sqrt(fraction)
    return Budget(gaussian_epsilon(mu, budget.delta), budget.delta)


def _scaled(solver: Solver, scale: float) -> Solver:
    assert solver.noise_multiplier is not None
    return replace(solver, noise_multiplier=solver.noise_multiplier * scale)
