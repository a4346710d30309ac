"""A charged search under way: every candidate's fit, the choice and the refit, through one ledger."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone

from privopt.curator.base import Curator, Observer
from privopt.curator.run import Run
from privopt.data.units import Units
from privopt.estimators.fitting import ROUNDED_UP, Shape, parameters_in, record_score, set_parameters
from privopt.estimators.search import Candidate, SearchPlan
from privopt.estimators.setup import Setup
from privopt.estimators.stages import Records, released_bounds, started
from privopt.ledger.account import Account
from privopt.precision import double_precision
from privopt.queries.holdout_scores import HoldoutScores
from privopt.report.report import Selection
from privopt.result import Result
from privopt.solvers.base import Solver

if TYPE_CHECKING:
    from privopt.estimators.base import PrivateLinearModel


class SearchRun:
    """A search under way, on units that are split once.

    Args:
        search: the plan.
        units: all of them, stored in any way.
        run: ledger, transcript and noise; the whole plan is paid for.
    """

    def __init__(self, search: SearchPlan, units: Units, run: Run) -> None:
        self.search = search
        self._run = run
        sizes = (search.train, search.held_out)
        self._train, self._held = run.split("training and holdout part", units, sizes)

    def fit(self, index: int, setup: Setup, units: Units) -> tuple[Result, int]:
        """Fit a candidate on the training part of all `units`; gives the number of its releases as well."""
        solver = self.search.fits[index]
        event = solver.event(replace(units.public, n=self.search.train))
        return self._counted(solver, self._train.curator(units, (f"candidate {index}", event)), setup)

    def choose(self, scores: HoldoutScores, units: Units) -> int:
        """The index of the candidate chosen on the holdout part of all `units`."""
        return int(self._held.curator(units).release(scores, self.search.choice))

    def refit(self, index: int, setup: Setup, units: Units) -> tuple[Result, int]:
        """Fit the winner on all units, as `fit` does."""
        events = [solver.event(units.public) for solver in self.search.refits]
        curator = self._run.curator(units, self._run.one_of("refit", events, index))
        return self._counted(self.search.refits[index], curator, setup)

    def _counted(self, solver: Solver, curator: Curator, setup: Setup) -> tuple[Result, int]:
        """A solver's result, and how many releases it made."""
        before = self._run.transcript.releases
        result = solver.solve(curator, setup.problem)
        return result, self._run.transcript.releases - before


class Found(NamedTuple):
    """What a search found.

    Attributes:
        best: the index of the winner.
        result: its parameters, and the transcript and the plan of the whole search.
        setup: the winner's, with the bounds it was fitted with.
        releases: how many the winner's own fit took.
    """

    best: int
    result: Result
    setup: Setup
    releases: int


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """The model in whose scaled units candidates are scored: rows as they are, with a constant, no penalty.

    Attributes:
        model: unfitted.
        setup: everything public about its rows.
    """

    model: "PrivateLinearModel"
    setup: Setup

    @classmethod
    def of(cls, model: "PrivateLinearModel", shape: Shape, y: NDArray[Any] | None) -> "Scorer":
        """The scorer of a model's candidates."""
        scorer: Any = clone(model)
        scorer.set_params(fit_intercept=True, row_bound=math.sqrt(shape.width) * ROUNDED_UP)
        scorer.set_params(penalty=None, alpha=None, l1_radius=None)
        return cls(model=scorer, setup=shape.setup(scorer, y))


def run_search(
    search: SearchPlan,
    models: Sequence["PrivateLinearModel"],
    scorer: Scorer,
    records: Records,
    *,
    account: Account | None,
    name: str,
    observer: Observer | None = None,
) -> Found:
    """Fit every candidate, choose one, and fit it again where the plan says so.

    Args:
        search: the plan.
        models: one unfitted estimator a candidate; their parameters are set.
        scorer: the model in whose scaled units they are scored.
        records: the data.
        account: pays for the whole plan before anything is released.
        name: what the account calls the search.
        observer: called with (name, count) after releases and (what, 0) before a long stage.
    Raises:
        BudgetExceeded: the account cannot pay; nothing was released.
    """
    scored = scorer.setup
    latest: dict[Any, Units] = {}

    def units_of(setup: Setup) -> Units:
        key = (setup.row_bound, setup.unit_rows, setup.intercept)
        if key not in latest:
            latest.clear()  # one copy of the data at a time
            latest[key] = records.units(setup)
        return latest[key]

    with double_precision():
        # Keys and shapes are checked before anything is paid.
        first = units_of(scored) if search.scales is None else records.loose_units(scored)
        run = started(search.plan, records.noise, account=account, name=name, observer=observer)
        candidates = list(search.candidates)
        if search.scales is not None:
            bounds = released_bounds(run, search.scales, first)
            del first
            candidates = [_within(candidate, bounds) for candidate in candidates]
            scored = scored.within(bounds)
        under_way = SearchRun(search, units_of(scored), run)
        fits = [
            under_way.fit(index, candidate.setup, units_of(candidate.setup))
            for index, candidate in enumerate(candidates)
        ]
        for model, candidate, (result, _) in zip(models, candidates, fits, strict=True):
            set_parameters(model, result.params, candidate.setup)
        scores = HoldoutScores(
            score=record_score(scorer.model, scored),
            models=stack([parameters_in(model, scored) for model in models]),
        )
        best = under_way.choose(scores, units_of(scored))
        result, count = fits[best]
        if search.refits:
            setup = candidates[best].setup
            result, count = under_way.refit(best, setup, units_of(setup))
            set_parameters(models[best], result.params, setup)
    return Found(best, result._replace(plan=search.plan), candidates[best].setup, count)


def _within(candidate: Candidate, bounds: Any) -> Candidate:
    return replace(candidate, setup=candidate.setup.within(bounds))


def stack(parameters: Sequence[Any]) -> Any:
    """Released models (outputs, d) as the query wants them, (k, d, outputs)."""
    return jnp.stack([jnp.asarray(np.asarray(matrix, np.float64).T) for matrix in parameters])


def told_choice(search: SearchPlan) -> Selection:
    """How a candidate was chosen, for the report."""
    again = "fitted again on all units" if search.refits else "kept as it was fitted"
    return _selection(
        search,
        f"One of {len(search.fits)} candidates was chosen by the exponential mechanism on held-out units and {again}.",
    )


def told_strength(search: SearchPlan, alpha: float) -> Selection:
    """How the strength of a penalty was chosen, for the report."""
    share = float(search.plan.settings["selection_share"])
    if search.scales is not None:
        share *= 1.0 - search.scales.share
    return _selection(
        search,
        f"The strength of the penalty, alpha = {alpha:.3g}, was chosen privately among {len(search.fits)} public ones "
        f"for {100 * share:.3g} % of the budget (of its rho): each was fitted on a part of the units, the exponential "
        "mechanism chose one on the others, and the model was fitted again on all units.",
    )


def _selection(search: SearchPlan, told: str) -> Selection:
    sentence = f"{told} The price above is that of all the fits and of the choice."
    return Selection(sentence=sentence, private=search.plan.budget.is_private)
