"""A fit, and one with stages before the model: one plan, one ledger, one transcript.

The stages are the bounds of the features, where only loose ones are known, and the number of usable units, where the
solver releases nothing that tells it.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, final

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator, Observer
from privopt.curator.dry_run import reserved
from privopt.curator.run import Run
from privopt.data.storage import Derived
from privopt.data.units import Units
from privopt.engine.protocol import Engine
from privopt.estimators.records import Records, given_back
from privopt.estimators.scaling import Bounds, FeatureScaling
from privopt.estimators.setup import Setup
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.curves import gaussian_mu, part_of
from privopt.ledger.events import Event, leaf_counts, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning.averaging import estimation_seconds
from privopt.planning.notices import extreme_epsilon
from privopt.planning.plan import IMPROVEMENT_ENDS, IMPROVEMENT_SHARE, Finding, Plan, usable_in
from privopt.planning.row_length import (
    BY_COUNT,
    COUNT_SHARE,
    NUMBER,
    SourceColumn,
    Usable,
    count_multiplier,
    finding,
    tells,
    unseen,
)
from privopt.planning.row_length import (
    announced as announced_count,
)
from privopt.planning.task import Instance
from privopt.precision import in_float64
from privopt.public import Public
from privopt.queries.moments import ColumnMagnitudes, SecondMoment, UsableUnits, bin_ends, unpack
from privopt.report.model import ModelSummary
from privopt.report.report import PrivacyReport, Selection
from privopt.result import Result
from privopt.solve import announce, parts_of, rehearse
from privopt.solve_runs import announced
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
            meaning=setup.target.coefficients(GIVEN, divided=setup.unit_rows),
        )
        return PrivacyReport.of(
            told_of_columns(self.result, setup, names)._replace(kept=self.kept),
            declared=(*setup.declared(), *declared),
            model=model,
            divided_rows=setup.unit_rows,
            selection=self.selection,
        )


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One Gaussian release that goes before a model.

    Attributes:
        noise_multiplier: of the release; None before a budget is known.
    """

    noise_multiplier: float | None = None

    def scaled(self, factor: float) -> Self:
        """The same with all noise times `factor`."""
        return replace(self, noise_multiplier=self.mechanism.noise_multiplier * factor)

    @property
    def mechanism(self) -> Gaussian:
        """What makes the noise."""
        assert self.noise_multiplier is not None
        return Gaussian(self.noise_multiplier)

    @property
    def event(self) -> Event:
        """What it costs."""
        return self.mechanism.event()


@final
@dataclass(frozen=True, kw_only=True)
class ScaleEstimation(Stage):
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
    Privacy:
        The release is charged; the bounds are post-processing of it.
    """

    loose: FeatureScaling
    share: float
    keep_zero: bool

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
class UsableCount(Stage):
    """One Gaussian release of how many units are usable; its noise multiplier is the number's standard deviation.

    Privacy:
        The release is charged. Whether it is made follows from public numbers.
    """

    @classmethod
    def of(cls, told: bool, budget: Budget, public: Public) -> "UsableCount | None":
        """The count that a fit asks for; None where its solver's releases tell the number, or noise would hide it.

        Args:
            told: whether they do.
            budget: of the whole fit.
            public: of the units that the model is fitted to.
        """
        multiplier = count_multiplier(budget)
        return None if told or not tells(multiplier, public) else cls(noise_multiplier=multiplier)

    def indicators(self, public: Public) -> dict[str, Finding]:
        """How exactly the number will be known."""
        return announced_count(self.mechanism.noise_multiplier, public, BY_COUNT)

    def release(self, curator: Curator) -> dict[str, Finding]:
        """Ask once; the number, and the notice where it is low."""
        released = curator.release(UsableUnits(), self.mechanism)
        return Usable.counted(released, self.mechanism.noise_multiplier, curator.public).findings


@final
@dataclass(frozen=True, kw_only=True)
class StagedPlan:
    """Everything that a fit with stages before the model will release, fixed before the first release.

    Attributes:
        setup: the fit, with the loose bounds where there are such.
        scales: the estimation of the bounds, its noise set; None where they are given.
        count: that of the usable units, its noise set; None where there is none.
        solver: of the model, its noise set.
        plan: the announcement, with the price of all of it.
    """

    setup: Setup
    scales: ScaleEstimation | None
    count: UsableCount | None
    solver: Solver
    plan: Plan

    @classmethod
    def of(cls, setup: Setup, solver: Solver | str) -> "StagedPlan | None":
        """Fix every release and scale their noise together to the budget.

        Args:
            setup: the fit.
            solver: of the model.
        Returns:
            None where the model is all there is to release.
        """
        scales, public, budget = ScaleEstimation.of(setup), setup.planned, setup.shape.known_budget
        with in_float64():
            rest = budget if scales is None else scales.rest(budget)
            instance = Instance(setup.problem, public, rest)
            chosen, reason = choose(solver, instance)
            told = chosen.is_set("noise_multiplier") or chosen.tells_usable(instance)
            count = UsableCount.of(told, budget, public)
            if count is not None:
                share = COUNT_SHARE + (0.0 if scales is None else scales.share)
                rest = part_of(budget, 1.0 - share)
                instance = Instance(setup.problem, public, rest)
            if scales is None and count is None:
                return None
            configured, alone = announced((chosen, reason), instance)
            # It gives back the start, and nothing is to be paid.
            if not any(leaf_counts(configured.event(public))):
                count = None
            if scales is None and count is None:
                return None
            return cls._calibrated(setup, scales, count, configured, alone)

    @classmethod
    def _calibrated(
        cls,
        setup: Setup,
        scales: ScaleEstimation | None,
        count: UsableCount | None,
        solver: Solver,
        alone: Plan,
    ) -> "StagedPlan":
        """See `of`; `alone` is the plan of the model within its part of the budget."""
        public, budget = setup.planned, setup.shape.known_budget
        scales = None if scales is None else scales.configured(budget)
        before = [stage for stage in (scales, count) if stage is not None]

        def events(factor: float) -> Iterable[Event]:
            return (*(stage.scaled(factor).event for stage in before), solver.scaled(factor).event(public))

        scale = common_scale(events, budget, public)
        extreme = extreme_epsilon(alone.budget)
        plan = replace(
            alone,
            settings={
                **alone.settings,
                **({} if scales is None else {"scale_share": scales.share}),
                **({} if count is None else {"count_share": COUNT_SHARE}),
            },
            event=sequence(events(scale)),
            budget=budget,
            releases=alone.releases + len(before),
            passes=alone.passes + (scales is not None),  # the count reads no row
            seconds=alone.seconds + (0.0 if scales is None else estimation_seconds(public)),
            indicators={
                **alone.indicators,
                **({} if count is None else count.scaled(scale).indicators(public)),
            },
            notices=(
                *extreme_epsilon(budget),
                *(notice for notice in alone.notices if notice not in extreme),
            ),
        )
        return cls(
            setup=setup,
            scales=None if scales is None else scales.scaled(scale),
            count=None if count is None else count.scaled(scale),
            solver=solver.scaled(scale),
            plan=plan,
        )

    def fitted(self, curator: Callable[[str, Event], Curator], setup: Setup) -> Fitted:
        """The model, after the number of usable units.

        Args:
            curator: of the units that it is fitted to, for a stage of some name and price.
            setup: the fit, with the bounds that were found.
        """
        found = {} if self.count is None else self.count.release(curator("usable records", self.count.event))
        asked = curator("fit", self.solver.event(setup.planned))
        before = asked.transcript.releases
        result = self.solver.solve(asked, setup.problem)
        result = result._replace(plan=self.plan, findings={**result.findings, **found})
        return Fitted(result, setup, result.transcript.releases - before)


def plan_fit(setup: Setup, solver: Solver | str) -> Plan:
    """What a fit would cost and achieve, with the stages before the model."""
    staged = StagedPlan.of(setup, solver)
    if staged is not None:
        return staged.plan
    return announce(setup.problem, setup.planned, setup.shape.known_budget, solver)[1]


def common_scale(events: Callable[[float], Iterable[Event]], budget: Budget, public: Public) -> float:
    """The factor for the noise of several parts with which they cost the budget together."""
    if not budget.is_private:
        return 1.0
    return calibrate(lambda factor: sequence(events(factor)), budget, public.relation)


def fit_in_stages(
    staged: StagedPlan, records: Records, *, account: Account | None, observer: Observer | None
) -> Fitted:
    """Estimate the bounds, count the usable units, and fit the model, as far as the plan says so.

    Raises:
        BudgetExceeded: the account cannot pay; nothing was released.
    """
    setup, scales, solver = staged.setup, staged.scales, staged.solver
    asked = {**parts_of(setup.problem), "scales": scales, "count": staged.count, "solver": solver}

    def rehearsed(units: Units | Engine) -> Derived:
        return rehearse(solver, setup.problem, units, setup.planned, staged.plan.budget)

    def begun(units: Units | Engine) -> Run:
        origin = "" if scales is not None else units.origin
        return Run(
            staged.plan.solver,
            staged.plan.event,
            staged.plan.budget,
            staged.plan.public,
            noise=records.noise,
            account=account,
            observer=observer,
            of=asked,
            origin=origin,
        )

    def finished(run: Run, units: Units | Engine, setup: Setup) -> Fitted:
        fitted = staged.fitted(lambda name, event: run.curator(units, run.part(name, event)), setup)
        run.end()
        return fitted

    with in_float64():
        if scales is None:
            with given_back(setup.units(records)) as units, reserved(units, rehearsed(units).extra()):
                return finished(begun(units), units, setup)
        with records.in_succession() as records:
            # Keys and shapes are checked before anything is paid, and there is one copy of the data at a time.
            with given_back(setup.loose_units(records)) as loose:
                derived = rehearsed(loose)
                with reserved(loose, derived.beyond(loose.public)):  # of what comes after it
                    run = begun(loose)
                    setup = setup.within(scales.release(run.curator(loose, run.part("bounds", scales.event))))
            del loose
            with given_back(setup.units(records)) as units, reserved(units, derived.extra()):
                return finished(run, units, setup)


# ---- Which columns of the given features were seen by the releases of a fit --------------------------------
def told_of_columns(result: Result, setup: Setup, names: Sequence[str] | None) -> Result:
    """A result with the notice on columns in which nothing was seen; then nothing is said of its quality."""
    columns, constant = _columns(setup, names), setup.problem.constant
    released = next((one for one in result.transcript if one.name == SecondMoment.__name__), None)
    if not columns or constant is None or released is None:
        return result
    if released.released is None or released.scale is None:
        return result
    moment = np.asarray(unpack(np.asarray(released.released)[0], setup.public.d))
    found = finding(unseen(moment, float(np.ravel(released.scale)[0]), columns, constant))
    if not found:
        return result
    silent = (IMPROVEMENT_SHARE, *IMPROVEMENT_ENDS)
    kept = {name: one for name, one in result.findings.items() if name not in silent}
    return result._replace(findings={**found, **kept})


def _columns(setup: Setup, names: Sequence[str] | None) -> list[SourceColumn]:
    """The columns in the units of the rows: those of a table, or plain features whose midpoint is no usual value.

    Plain features with bounds around 0 are left out: where most are 0, such as indicators of rare levels, so is what a
    missing one becomes.
    """
    features, given = setup.features, setup.shape.columns
    if setup.loose is not None or setup.specification.missing == "zero" or setup.shape.is_sparse:
        return []
    if given is not None:
        return [
            replace(
                column,
                missing=float((column.missing - features.center[column.start]) * scale),
                spread=column.spread * float(scale) ** 2,
            )
            for column in given
            for scale in (features.inverse_spread[column.start],)
        ]
    telling: NDArray[np.int64] = np.flatnonzero((features.midpoint != 0.0) & (features.inverse_spread > 0.0))
    return [
        SourceColumn(
            name=f"feature {place}" if names is None else names[place],
            start=place,
            stop=place + 1,
            missing=0.0,
            spread=NUMBER,
        )
        for place in map(int, telling)
    ]
