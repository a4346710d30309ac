"""A fit, and one in two stages, the bounds and then the model: one plan, one ledger, one transcript."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator, Observer
from privopt.curator.rehearsals import reserved
from privopt.curator.run import Run
from privopt.data.units import Units
from privopt.engine.protocol import Engine
from privopt.estimators.records import Records, given_back
from privopt.estimators.scaling import Bounds, FeatureScaling
from privopt.estimators.seen import told_of_columns
from privopt.estimators.setup import Setup
from privopt.estimators.targets import describe_coefficients
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, sequence
from privopt.ledger.gaussian_dp import gaussian_mu, part_of
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.effort import estimation_seconds
from privopt.planning.instance import Instance
from privopt.planning.notices import extreme_epsilon
from privopt.planning.plan import Plan, usable_in
from privopt.precision import double_precision
from privopt.public import Public
from privopt.queries.column_magnitudes import ColumnMagnitudes, bin_ends
from privopt.report.model import ModelSummary
from privopt.report.report import PrivacyReport, Selection
from privopt.result import Result
from privopt.solve import parts_of, rehearse
from privopt.solve import plan as plans_for
from privopt.solvers.base import Solver
from privopt.solvers.registry import choose

LEVELS = 40  # powers of two below the loose range: twelve orders of magnitude
LEAST_SHARE = 0.005  # a bin with fewer of the units does not widen the bounds
GIVEN = "Columns are in the units that they were given in."
FALSE_ALARM = 0.05  # probability that noise alone is taken for an entry, in any of the bins


class Fitted(NamedTuple):
    """A model that was fitted.

    Attributes:
        result: its parameters, and the transcript and the plan of everything that was released for it.
        setup: what translates it, with the bounds it was fitted with.
        steps: how many releases its own last fit took.
        selection: how it was chosen, in words; None where nothing was.
        kept: where the records were kept, in words; None for arrays.
    """

    result: Result
    setup: Setup
    steps: int
    selection: Selection | None = None
    kept: str | None = None

    def attributes(self, names: Sequence[str] | None, declared: Iterable[str]) -> dict[str, Any]:
        """All that a fit sets of its estimator, by name; see `report` for the arguments."""
        return {
            **self.setup.attributes(*self.setup.unscaled(self.result.params)),
            "plan_": self.result.plan,
            "n_iter_": self.steps,
            "usable_": usable_in(self.result.findings),
            "privacy_": self.report(names, declared),
        }

    def told(self, names: Sequence[str] | None) -> Result:
        """The result with what its releases say of the columns, under the names of the features where known."""
        return told_of_columns(self.result, self.setup, names)

    def report(self, names: Sequence[str] | None, declared: Iterable[str]) -> PrivacyReport:
        """What was protected, how, and at what price.

        Args:
            names: of the features, where they are known.
            declared: sentences on what the user declared public besides the model's own arguments.
        """
        setup, labels = self.setup, self.setup.target.labels
        coef, intercept = setup.unscaled(self.result.params)
        model = ModelSummary.of(
            setup.specification.kind,
            coef,
            features=names,
            intercept=intercept if setup.specification.fit_intercept else None,
            classes=None if labels is None else list(labels),
            meaning=describe_coefficients(setup.target, GIVEN, divided=setup.unit_rows),
        )
        return PrivacyReport.of(
            self.told(names)._replace(kept=self.kept),
            declared=(*setup.declared(), *declared),
            model=model,
            divided_rows=setup.unit_rows,
            selection=self.selection,
        )


@final
@dataclass(frozen=True, kw_only=True)
class ScaleEstimation:
    """One Gaussian release of how many units have entries of each sign and power of two, column by column.

    The bounds of a column reach from the lowest to the highest bin that clearly holds units: more than
    `LEAST_SHARE` of them, and more than the noise of all bins explains. A column with none but zeros in sight keeps
    its loose range. Values beyond the bounds are clipped, so they are wrong by a factor of 2 at most and never
    dangerous. Moments of the clipped columns were measured as well: on a range a thousand times too wide their
    noise hides the scale altogether.

    Attributes:
        loose: the scaling by the loose range, without a shift: float32 rows keep small entries' relative precision.
        share: of the whole budget's mu^2.
        keep_zero: whether the bounds must include 0, because the features are sparse.
        noise_multiplier: of the release; None before a budget is known.
    Privacy:
        The release is charged; the bounds are post-processing of it.
    """

    loose: FeatureScaling
    share: float
    keep_zero: bool
    noise_multiplier: float | None = None

    @classmethod
    def of(cls, setup: Setup) -> "ScaleEstimation | None":
        """The estimation that a fit asks for; None where its bounds are given."""
        if setup.loose is None:
            return None
        share = setup.specification.scale_share
        return cls(loose=setup.loose, share=share, keep_zero=setup.shape.is_sparse)

    def configured(self, budget: Budget) -> "ScaleEstimation":
        """With the noise that a share of the budget allows."""
        part = part_of(budget, self.share)
        noise = 1.0 / gaussian_mu(part.epsilon, part.delta) if budget.is_private else 0.0
        return replace(self, noise_multiplier=noise)

    def rest(self, budget: Budget) -> Budget:
        """What is left for the fit."""
        return part_of(budget, 1.0 - self.share)

    def scaled(self, factor: float) -> "ScaleEstimation":
        """The same with all noise times `factor`."""
        assert self.noise_multiplier is not None
        return replace(self, noise_multiplier=self.noise_multiplier * factor)

    @property
    def mechanism(self) -> Gaussian:
        """What makes the noise."""
        assert self.noise_multiplier is not None
        return Gaussian(self.noise_multiplier)

    @property
    def event(self) -> Event:
        """What it costs."""
        return self.mechanism.event()

    def release(self, curator: Curator) -> Bounds:
        """Ask once, and read the bounds off the answer."""
        asked = ColumnMagnitudes(levels=LEVELS, columns=self.loose.width)
        shares = np.asarray(curator.release(asked, self.mechanism))
        return self.bounds(shares, self.mechanism.noise_multiplier * float(asked.sensitivity(curator.public)))

    def bounds(self, shares: NDArray[np.float64], stddev: float) -> Bounds:
        """Each column's bounds, from the released shares (d, bins) and their noise's standard deviation."""
        seen = shares > max(LEAST_SHARE, stddev * math.sqrt(2.0 * math.log(shares.size / FALSE_ALARM)))
        sizes = np.maximum(np.abs(self.loose.low), np.abs(self.loose.high))
        lower, upper = bin_ends(LEVELS)
        first, last = np.argmax(seen, axis=1), shares.shape[1] - 1 - np.argmax(seen[:, ::-1], axis=1)
        low = np.clip(lower[first] * sizes, self.loose.low, self.loose.high)
        high = np.clip(upper[last] * sizes, self.loose.low, self.loose.high)
        if self.keep_zero:
            low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
        found = np.any(seen, axis=1) & (low < high)
        return np.where(found, low, self.loose.low), np.where(found, high, self.loose.high)


@final
@dataclass(frozen=True, kw_only=True)
class StagedPlan:
    """Everything that a fit in two stages will release, fixed before the first release.

    Attributes:
        setup: the fit, with the loose bounds.
        scales: the first stage, its noise set.
        solver: the second, its noise set.
        plan: the announcement, with the price of both.
    """

    setup: Setup
    scales: ScaleEstimation
    solver: Solver
    plan: Plan

    def fitted(self, result: Result, setup: Setup) -> Fitted:
        """The model, from what the second stage gave and the fit with the bounds of the first."""
        steps = result.transcript.releases - 1  # without the bounds
        return Fitted(result._replace(plan=self.plan), setup, steps)


def plan_fit(setup: Setup, solver: Solver | str) -> Plan:
    """What a fit would cost and achieve, with the estimation of its bounds where they are not given."""
    scales, public, budget = ScaleEstimation.of(setup), setup.planned, setup.shape.known_budget
    if scales is not None:
        return plan_stages(setup, scales, solver).plan
    return plans_for(
        setup.problem,
        n=public.n,
        d=public.d,
        epsilon=budget.epsilon,
        delta=budget.delta,
        relation=public.relation,
        row_bound=public.row_bound,
        entry_bound=public.entry_bound,
        storage=public.storage,
        row_entries=public.row_entries,
        max_records_per_user=public.records_per_unit if public.by_user else None,
        user_weighting=public.weighting,
        typical_records=public.typical_records if public.by_user else None,
        solver=solver,
    ).default


def plan_stages(setup: Setup, scales: ScaleEstimation, solver: Solver | str) -> StagedPlan:
    """Fix every release of both stages and scale their noise together to the budget.

    Args:
        setup: the fit.
        scales: the first stage.
        solver: of the second stage.
    """
    budget = setup.shape.known_budget
    public, rest = setup.planned, scales.rest(budget)
    first = scales.configured(budget)
    with double_precision():
        instance = Instance(setup.problem, public, rest)
        chosen, reason = choose(solver, instance)
        second = chosen.configure(instance)
        scale = common_scale(
            lambda f: (first.scaled(f).event, second.scaled(f).event(public)), budget, public
        )
        first, second = first.scaled(scale), second.scaled(scale)
        alone = replace(second.plan(instance), reason=reason)
    plan = replace(
        alone,
        settings={**alone.settings, "scale_share": first.share},
        event=sequence((first.event, second.event(public))),
        budget=budget,
        releases=alone.releases + 1,
        passes=alone.passes + 1,
        seconds=alone.seconds + estimation_seconds(public),
        notices=(
            *extreme_epsilon(budget),
            *(notice for notice in alone.notices if notice not in extreme_epsilon(rest)),
        ),
    )
    return StagedPlan(setup=setup, scales=first, solver=second, plan=plan)


def common_scale(events: Callable[[float], Iterable[Event]], budget: Budget, public: Public) -> float:
    """The factor for the noise of several parts with which they cost the budget together."""
    if not budget.is_private:
        return 1.0
    return calibrate(lambda factor: sequence(events(factor)), budget, public.relation)


def started(
    plan: Plan,
    noise: NoiseSource,
    *,
    account: Account | None,
    name: str | None = None,
    observer: Observer | None = None,
    of: Mapping[str, Any],
) -> Run:
    """A run of everything that a plan announces; `name` is what the account calls it, `of` what it solves and how.

    Raises:
        ArgumentError: it was to be resumed, and cannot be.
        BudgetExceeded: the account cannot pay; nothing was released.
    """
    return Run(
        name or plan.solver,
        plan.event,
        plan.budget,
        plan.public,
        noise=noise,
        account=account,
        observer=observer,
        of=of,
    )


def released_bounds(run: Run, scales: ScaleEstimation, units: Units | Engine) -> Bounds:
    """The first stage of a run."""
    return scales.release(run.curator(units, run.part("bounds", scales.event)))


def fit_in_stages(
    staged: StagedPlan, records: Records, *, account: Account | None, observer: Observer | None
) -> Fitted:
    """Estimate the bounds, then fit with them.

    Raises:
        BudgetExceeded: the account cannot pay; nothing was released.
    """
    with double_precision(), records.in_succession() as records:
        # Keys and shapes are checked before anything is paid, and there is one copy of the data at a time.
        with given_back(staged.setup.loose_units(records)) as loose:
            derived = rehearse(
                staged.solver, staged.setup.problem, loose, staged.setup.planned, staged.plan.budget
            )
            asked = {**parts_of(staged.setup.problem), "scales": staged.scales, "solver": staged.solver}
            with reserved(loose, derived.beyond(loose.public)):  # of what comes after it
                run = started(staged.plan, records.noise, account=account, observer=observer, of=asked)
                setup = staged.setup.within(released_bounds(run, staged.scales, loose))
        del loose
        with given_back(setup.units(records)) as units, reserved(units, derived.extra()):
            part = run.part("fit", staged.solver.event(units.public))
            result = staged.solver.solve(run.curator(units, part), setup.problem)
            run.end()
    return staged.fitted(result, setup)
