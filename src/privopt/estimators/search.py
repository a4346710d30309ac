"""A charged search among candidates: its plan, priced as a whole, and the fits, the choice and the refit."""

import functools
import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Literal, final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privopt.curator.base import Curator, Observer
from privopt.curator.cuts import require_lasting
from privopt.curator.dry_run import foresee
from privopt.curator.journals import journals
from privopt.curator.run import Run
from privopt.data import cells
from privopt.data.containers import check_column
from privopt.data.storage import Derived, greater
from privopt.data.units import Units
from privopt.engine.choose import in_memory
from privopt.engine.protocol import Engine
from privopt.errors import ArgumentError
from privopt.estimators.records import LatestUnits, Records
from privopt.estimators.setup import Setup
from privopt.estimators.stages import (
    Fitted,
    ScaleEstimation,
    UsableCount,
    common_scale,
)
from privopt.later import jnp
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget
from privopt.ledger.composition import comparable, dominating
from privopt.ledger.curves import gaussian_mu, part_of
from privopt.ledger.events import Event, Parallel, sequence
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.planning.averaging import data_bytes, estimation_seconds, loading_seconds, pass_seconds
from privopt.planning.notices import extreme_epsilon
from privopt.planning.plan import Finding, Plan
from privopt.planning.row_length import COUNT_SHARE
from privopt.planning.task import Instance
from privopt.precision import in_float64
from privopt.public import Public
from privopt.queries.scores import HoldoutScores
from privopt.solve import rehearse
from privopt.solvers.base import Solver
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.registry import choose

AUTO = "auto"


@final
@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One point of a grid: everything public about a fit of it, and the solver it asks for."""

    setup: Setup
    solver: Solver | str

    def chosen(self, public: Public, budget: Budget) -> tuple[Solver, Instance]:
        """Its solver, and the task of a fit that has the budget to itself."""
        instance = Instance(self.setup.problem, public, budget)
        return choose(self.solver, instance).solver, instance

    def configured(self, public: Public, budget: Budget) -> Solver:
        """Its solver, configured for such a fit."""
        solver, instance = self.chosen(public, budget)
        return solver.configure(instance)

    def tells_usable(self, public: Public, budget: Budget) -> bool:
        """Whether the releases of its solver tell how many units are usable."""
        solver, instance = self.chosen(public, budget)
        return solver.tells_usable(instance)


@final
@dataclass(frozen=True, kw_only=True)
class SearchPlan:
    """Everything that a search will release, fixed before the first release.

    Attributes:
        candidates: the grid.
        scored: everything public about the units that candidates are scored on.
        scales: the estimation of bounds that goes before it; None where they are given.
        count: that of the usable units, likewise; None where each refit, or without one each fit, tells it.
        fits: each candidate's solver on the training part.
        choice: how the best is chosen on the holdout part.
        refits: each candidate's solver on all units; empty without a refit.
        train: public number of units of the training part.
        held_out: public number of units of the holdout part.
        plan: the announcement, with the price of all of it.
    """

    candidates: tuple[Candidate, ...]
    scored: Setup
    scales: ScaleEstimation | None
    count: UsableCount | None
    fits: tuple[Solver, ...]
    choice: ExponentialMechanism
    refits: tuple[Solver, ...]
    train: int
    held_out: int
    plan: Plan


def plan_search(
    candidates: Sequence[Candidate],
    scored: Setup,
    *,
    holdout: float,
    selection_share: float,
    refit: bool,
) -> SearchPlan:
    """Fix every release of a search and scale all its noise together to the budget.

    Args:
        candidates: the grid. Those whose solver is "auto" fall back to gradient descent where the automatic choice
            would make the price of the refit depend on the winner.
        scored: everything public about the units that candidates are scored on: rows as they are, with a constant.
        holdout: fraction of the units that are held out.
        selection_share: share of the budget, in rho, for finding the winner.
        refit: whether the winner is fitted again on all units.
    Raises:
        ValueError: there are too few units, or the price of a refit would depend on the choice.
    """
    n, budget = scored.shape.n, scored.shape.known_budget
    held_out = round(holdout * n)
    train = n - held_out
    if min(held_out, train) < 2:
        raise ValueError(
            f"holdout={holdout!r} of n = {n} units leaves {held_out} to score and {train} to fit on: both parts need 2."
        )
    scales = ScaleEstimation.of(scored)
    left = budget if scales is None else scales.rest(budget)
    share = selection_share if refit else 1.0
    whole = [candidate.setup.planned for candidate in candidates]
    parts = [public.block(train) for public in whole]
    if refit:
        candidates = _ordered(candidates, whole, part_of(left, 1.0 - share))
    last = whole if refit else parts
    told = all(one.tells_usable(public, left) for one, public in zip(candidates, last, strict=True))
    count = UsableCount.of(told, budget, whole[0])
    if count is not None:
        left = part_of(budget, 1.0 - COUNT_SHARE - (0.0 if scales is None else scales.share))
        candidates = _ordered(candidates, whole, part_of(left, 1.0 - share)) if refit else candidates
    each = part_of(left, share / len(candidates))
    fits = [candidate.configured(public, each) for candidate, public in zip(candidates, parts, strict=True)]
    refits: list[Solver] = []
    if refit:
        rest = part_of(left, 1.0 - share)
        refits = [
            candidate.configured(public, rest) for candidate, public in zip(candidates, whole, strict=True)
        ]
    fitting = list(zip(fits, candidates, parts, strict=True))
    refitting = list(zip(refits, candidates, whole, strict=False))
    # Bounded range epsilon0 costs rho = epsilon0^2 / 8, Gaussian releases mu^2 / 2.
    bounded_range = (
        2.0 * gaussian_mu(left.epsilon, left.delta) * math.sqrt(share) if left.is_private else math.inf
    )
    first = None if scales is None else scales.configured(budget)

    def events(scale: float) -> list[Event]:
        before = [stage.scaled(scale).event for stage in (first, count) if stage is not None]
        fitted = [solver.scaled(scale).event(public) for solver, _, public in fitting]
        found = Parallel((sequence(fitted), ExponentialMechanism(bounded_range / scale).event()))
        refitted = [solver.scaled(scale).event(public) for solver, _, public in refitting]
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

    def seconds(runs: list[tuple[Solver, Candidate, Public]]) -> list[float]:
        return [solver.seconds(one.setup.problem, public) for solver, one, public in runs]

    return SearchPlan(
        candidates=tuple(candidates),
        scored=scored,
        scales=None if first is None else first.scaled(scale),
        count=None if count is None else count.scaled(scale),
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
            | ({} if scales is None else {"scale_share": scales.share})
            | ({} if count is None else {"count_share": COUNT_SHARE}),
            event=sequence(events(scale)),
            budget=budget,
            public=whole[0],
            releases=sum(solver.releases() for solver in fits)
            + 1
            + (first is not None)
            + (count is not None)
            + max((solver.releases() for solver in refits), default=0),
            passes=passes,
            memory_bytes=2 * data_bytes(whole[0]),
            seconds=around + sum(seconds(fitting)) + max(seconds(refitting), default=0.0),
            adaptive=any(solver.adaptive for solver in (*fits, *refits)),
            held=max(
                solver.held_numbers(one.setup.problem, public)
                for solver, one, public in (*fitting, *refitting)
            ),
            needs_rows=any(solver.needs_rows for solver in (*fits, *refits)),
            indicators={} if count is None else count.scaled(scale).indicators(whole[0]),
            notices=(*extreme_epsilon(budget), *candidates[0].setup.notices),
        ),
    )


def _ordered(candidates: Sequence[Candidate], whole: Sequence[Public], budget: Budget) -> list[Candidate]:
    """The candidates, those that leave the solver open with one whose refits have comparable prices."""

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


@final
class SearchRun:
    """A search under way, on units that are split once.

    Args:
        search: the plan.
        units: all of them, stored in any way.
        run: ledger, transcript and noise; the whole plan is paid for.
    """

    def __init__(self, search: SearchPlan, units: Units | Engine, run: Run) -> None:
        self.search, self._run = search, run
        sizes = (search.train, search.held_out)
        self._train, self.held = run.split("training and holdout part", units, sizes)

    def fit(self, index: int, setup: Setup, units: Units | Engine) -> Fitted:
        """Fit a candidate on the training part of all `units`."""
        solver = self.search.fits[index]
        event = solver.event(units.public.block(self.search.train))
        return self._counted(solver, self._train.curator(units, (f"candidate {index}", event)), setup)

    def refit(self, index: int, setup: Setup, units: Units | Engine) -> Fitted:
        """Fit the winner on all units, as `fit` does."""
        events = [solver.event(units.public) for solver in self.search.refits]
        curator = self._run.curator(units, self._run.one_of("refit", events, index))
        return self._counted(self.search.refits[index], curator, setup)

    def _counted(self, solver: Solver, curator: Curator, setup: Setup) -> Fitted:
        """A solver's result, with how many releases it made."""
        transcript = self._run.transcript
        before = transcript.releases
        result = solver.solve(curator, setup.problem)
        return Fitted(result, setup, transcript.releases - before)


def _rehearse(search: SearchPlan, units: Units | Engine) -> None:
    """Refuse what a resumption cannot do, and mistakes of solvers of the user's own, before anything is paid for."""
    for index, candidate in enumerate(search.candidates):
        setup, budget = candidate.setup, search.plan.budget
        rehearse(search.fits[index], setup.problem, units, setup.planned.block(search.train), budget)
        if search.refits:
            rehearse(search.refits[index], setup.problem, units, setup.planned, budget)


def run_search(
    search: SearchPlan,
    records: Records,
    *,
    account: Account | None,
    name: str,
    observer: Observer | None = None,
) -> tuple[int, Fitted]:
    """Fit every candidate, choose one, and fit it again where the plan says so.

    Args:
        search: the plan.
        records: the data.
        account: pays for the whole plan before anything is released.
        name: what the account calls the search.
        observer: called with (name, count) after releases and (what, 0) before a long stage.
    Returns:
        The index of the winner, and the winner with the transcript and the plan of the whole search.
    Raises:
        BudgetExceeded: the account cannot pay; nothing was released.
    """
    scored, setups = search.scored, [candidate.setup for candidate in search.candidates]
    latest, wholes = LatestUnits(), list[Derived]()
    records.require(lambda: search.plan)

    def with_room(data: Units | Engine) -> Units | Engine:
        """Data as they were stored, and room for all that comes before they are given back, and after that."""
        if isinstance(data, Units) or in_memory(data):
            return data
        try:
            wholes.extend(() if wholes else _wholes(search, data))
            data.reserve(functools.reduce(greater, (whole.beyond(data.public) for whole in wholes)))
        except BaseException:
            data.close()
            raise
        return data

    def units_of(setup: Setup) -> Units | Engine:
        key = (setup.row_bound, setup.unit_rows, setup.intercept)
        return latest.units(key, lambda: with_room(setup.units(records)))

    with in_float64(), records.in_succession() as records, closing(latest):
        # Keys and shapes are checked before anything is paid.
        loose = (
            latest.units("loose", lambda: with_room(scored.loose_units(records)))
            if search.scales
            else units_of(scored)
        )
        if (kept := journals()) is not None:
            require_lasting(loose.public, kept.standing(loose.origin, loose.laid_out))
        if kept is not None or not all(solver.is_ours for solver in (*search.fits, *search.refits)):
            _rehearse(search, loose)
        asked = {
            "candidates": search.candidates,
            "solvers": (search.fits, search.refits),
            "scales": search.scales,
            "count": search.count,
        }
        plan, noise = search.plan, records.noise
        run = Run(
            name,
            plan.event,
            plan.budget,
            plan.public,
            noise=noise,
            account=account,
            observer=observer,
            of=asked,
        )
        if (scales := search.scales) is not None:
            bounds = scales.release(run.curator(loose, run.part("bounds", scales.event)))
            scored, setups = scored.within(bounds), [setup.within(bounds) for setup in setups]
        del loose
        found: dict[str, Finding] = {}
        if search.count is not None:
            found = search.count.release(
                run.curator(units_of(scored), run.part("usable records", search.count.event))
            )
        under_way = SearchRun(search, units_of(scored), run)
        fits = [under_way.fit(index, setup, units_of(setup)) for index, setup in enumerate(setups)]
        given = [fit.setup.unscaled(fit.result.params) for fit in fits]
        models = jnp.stack([jnp.asarray(scored.scaled(*numbers).T) for numbers in given])  # (k, d, outputs)
        scores = HoldoutScores(score=scored.target.score, models=models)
        best = int(under_way.held.curator(units_of(scored)).release(scores, search.choice))
        fitted = under_way.refit(best, setups[best], units_of(setups[best])) if search.refits else fits[best]
        run.end()
    result = fitted.result._replace(plan=search.plan, findings={**fitted.result.findings, **found})
    return best, fitted._replace(result=result)


def _wholes(search: SearchPlan, data: Engine) -> list[Derived]:
    """The units of a search, as each fit and the scoring stores them, and what is made of them there."""
    scored = Derived(search.scored.planned)
    scored.cut([scored.public.block(search.held_out)])
    wholes = [scored]
    for solver, candidate in zip(search.fits, search.candidates, strict=True):
        whole = Derived(candidate.setup.planned)
        (train,) = whole.cut([whole.public.block(search.train)])
        foresee(solver, _solving(solver, candidate), data, train)
        wholes.append(whole)
    for solver, candidate in zip(search.refits, search.candidates, strict=False):
        whole = Derived(candidate.setup.planned)
        foresee(solver, _solving(solver, candidate), data, whole)
        wholes.append(whole)
    return wholes


def _solving(solver: Solver, candidate: Candidate) -> Callable[[Curator], object]:
    """A candidate's fit, over any curator."""
    return lambda curator: solver.solve(curator, candidate.setup.problem)


# ------------------------------------------------------------------------------------------------------------
# Quality on records that somebody holds, measured by scikit-learn: exact, so as private as those records
# are.


Measure = Literal["accuracy_score", "d2_pinball_score", "d2_tweedie_score", "r2_score"]


def measured(
    measure: Measure, y: Any, predicted: NDArray[Any], *, sample_weight: Any = None, **more: Any
) -> float:
    """`measure(y, predicted, **more)`, one of scikit-learn's, over the rows that have a target.

    Args:
        measure: its name in `sklearn.metrics`.
        y: what was to be predicted, private; a row whose target is missing (None, NaN, or no finite number) is left
            out, as it counts as nothing in a fit.
        predicted: one for each row.
        sample_weight: of the rows.
        more: the measure's own arguments.
    Privacy:
        What scikit-learn says of a `y` that it cannot compare quotes labels, and would end in logs: neither the error
        nor its context carries that.
    Returns:
        The measure; NaN where no row has a target.
    Raises:
        ArgumentError: y cannot be compared with predictions.
    """
    import sklearn.metrics  # late: much, and nothing of it is needed to fit

    check_column(y, "y", "one target")
    try:
        private_targets, present = _with_targets(y, labels=measure == "accuracy_score")
        if len(present) == len(predicted) and not present.all():
            if not present.any():
                return math.nan
            predicted = predicted[present]
            sample_weight = None if sample_weight is None else np.asarray(sample_weight)[present]
            private_targets = private_targets[present]
            y = np.asarray(private_targets.tolist())
        return float(getattr(sklearn.metrics, measure)(y, predicted, sample_weight=sample_weight, **more))
    except (ValueError, TypeError):
        pass  # raised outside, since an exception remembers the one that it replaces
    raise ArgumentError(
        "y must hold one target for each row, of the same kind as the predictions: give targets as they were fitted."
    )


def _with_targets(y: Any, *, labels: bool) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Targets as they are read in a fit, and which rows have one."""
    private_targets = cells.targets(y, labels=labels)
    if private_targets.ndim != 1:
        return private_targets, np.ones(0, np.bool_)  # scikit-learn judges other shapes
    if labels:
        return private_targets, ~np.asarray(pd.isna(private_targets), np.bool_)
    return private_targets, np.isfinite(private_targets.astype(np.float64))
