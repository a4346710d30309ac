"""A fit in two stages, the bounds and then the model: one plan, one ledger, one transcript."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from privopt.curator.base import Observer
from privopt.curator.run import Run
from privopt.data.units import Units
from privopt.estimators.scale_estimation import Bounds, ScaleEstimation
from privopt.estimators.setup import Setup
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, sequence
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.effort import estimation_seconds
from privopt.planning.instance import Instance
from privopt.planning.plan import Plan
from privopt.precision import double_precision
from privopt.public import Public
from privopt.result import Result
from privopt.solvers.base import Solver
from privopt.solvers.registry import choose


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Records:
    """The arrays of a fit, to be turned into privacy units as each stage needs them. PRIVATE.

    Attributes:
        private_features: (rows, d).
        private_targets: (rows,).
        groups: (rows,) user keys, None where a record is a unit.
        noise: the fit's secret randomness.
    """

    private_features: Any
    private_targets: NDArray[Any]
    groups: Any
    noise: NoiseSource

    def units(self, setup: Setup) -> Units:
        """Scaled as a setup says."""
        return setup.units(self.private_features, self.private_targets, self.groups, self.noise)

    def loose_units(self, setup: Setup) -> Units:
        """Scaled by the loose bounds only."""
        return setup.loose_units(self.private_features, self.private_targets, self.groups, self.noise)


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


def plan_stages(setup: Setup, solver: Solver | str, *, n: int, by_user: bool, budget: Budget) -> StagedPlan:
    """Fix every release of both stages and scale their noise together to the budget.

    Args:
        setup: the fit.
        solver: of the second stage.
        n: public number of units.
        by_user: whether a unit is a user.
        budget: of both stages.
    """
    assert setup.scales is not None
    public, rest = setup.public(n, by_user=by_user), setup.scales.rest(budget)
    first = setup.scales.configured(budget)
    with double_precision():
        instance = Instance(setup.problem, public, rest)
        chosen, reason = choose(solver, instance)
        second = chosen.configure(instance)
        scale = common_scale(
            lambda f: (first.scaled(f).event, second.scaled(f).event(public)), budget, public
        )
        first, second = first.scaled(scale), second.scaled(scale)
        alone = replace(second.plan(instance), reason=reason)
    return StagedPlan(
        setup=setup, scales=first, solver=second, plan=with_scales(alone, first, second.event(public), budget)
    )


def common_scale(events: Callable[[float], Iterable[Event]], budget: Budget, public: Public) -> float:
    """The factor for the noise of several parts with which they cost the budget together."""
    if not budget.is_private:
        return 1.0
    return calibrate(lambda factor: sequence(events(factor)), budget, public.relation)


def with_scales(plan: Plan, scales: ScaleEstimation | None, event: Event, budget: Budget) -> Plan:
    """The plan of a fit, and of the estimation of bounds that goes before it."""
    if scales is None:
        return replace(plan, event=event, budget=budget)
    return replace(
        plan,
        settings={**plan.settings, "scale_budget": scales.share},
        event=sequence((scales.event, event)),
        budget=budget,
        releases=plan.releases + 1,
        passes=plan.passes + 1,
        seconds=plan.seconds + estimation_seconds(plan.public),
    )


def started(
    plan: Plan,
    noise: NoiseSource,
    *,
    account: Account | None,
    name: str | None = None,
    observer: Observer | None = None,
) -> Run:
    """A run of everything that a plan announces; `name` is what the account calls it.

    Raises:
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
    )


def released_bounds(run: Run, scales: ScaleEstimation, units: Units) -> Bounds:
    """The first stage of a run."""
    return scales.release(run.curator(units, run.part("bounds", scales.event)))


def fit_in_stages(
    staged: StagedPlan, records: Records, *, account: Account | None, observer: Observer | None
) -> tuple[Result, Setup]:
    """Estimate the bounds, then fit with them.

    Returns:
        The result, with the plan of both stages, and the setup with the estimated bounds.
    Raises:
        BudgetExceeded: the account cannot pay; nothing was released.
    """
    with double_precision():
        loose = records.loose_units(staged.setup)  # keys and shapes are checked before anything is paid
        run = started(staged.plan, records.noise, account=account, observer=observer)
        setup = staged.setup.within(released_bounds(run, staged.scales, loose))
        del loose  # one copy of the data at a time
        units = records.units(setup)
        part = run.part("fit", staged.solver.event(units.public))
        result = staged.solver.solve(run.curator(units, part), setup.problem)
    return result._replace(plan=staged.plan), setup
