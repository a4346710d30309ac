"""A run as `minimize`, `minimax` and `SyntheticData` make it: on which units, rehearsed, paid for, and solved."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar, final

from privopt.curator.base import Curator, Observer
from privopt.curator.dry_run import foresee, reserved
from privopt.curator.journals import asking
from privopt.curator.run import Run, rehearsed, tried
from privopt.data.storage import Derived
from privopt.data.units import Units
from privopt.engine.choose import Holding, described, require_held
from privopt.engine.placement import Placement
from privopt.engine.protocol import Engine, EngineName
from privopt.errors import ArgumentError, ArgumentTypeError
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget
from privopt.ledger.event import Event
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.plan import Plan
from privopt.planning.task import Task
from privopt.public import DEFAULT_RECORDS, Public, Relation
from privopt.result import Result
from privopt.solve_arguments import check_arguments
from privopt.solvers.program import Program
from privopt.tables.table import Table

P = TypeVar("P", bound=Program[Any])


@final
@dataclass(frozen=True, kw_only=True)
class AskedUnits:
    """What a call says of the units of a table; None for what it leaves out.

    Attributes:
        groups: the column or columns that say whose record a row is; without them a record is a unit.
        relation: the neighbouring relation.
        max_records_per_user: public cap on the records of a user that are used.
    """

    groups: str | Sequence[str] | None
    relation: Relation | str | None
    max_records_per_user: int | None

    def check(self, units: Any) -> None:
        """Refuse what has no meaning for the data of the call.

        Raises:
            ArgumentTypeError: something is said of data that say it themselves.
            ArgumentError: a cap on the records of users is given, and no users are.
        """
        given = [name for name, value in vars(self).items() if value is not None]
        if given and not isinstance(units, Table):
            raise ArgumentTypeError(
                f"{given[0]} was given beside {type(units).__name__}: it is for a Table. Units and engines say it "
                "themselves: give it to Units.from_arrays, or to Table.engine."
            )
        if self.groups is None and self.max_records_per_user is not None:
            raise ArgumentError(
                "max_records_per_user is a cap on the records of a user: name the column or columns that say whose "
                "record a row is, groups=..., or leave it out."
            )

    def solved(
        self,
        units: Units | Engine | Table,
        budget: Budget,
        account: Account | None,
        observer: Observer | None,
        *,
        planned: Callable[[Public], Holding],
        solve: Callable[[Units | Engine], Result],
    ) -> Result:
        """The result of a run on units, on an engine, or on an engine on a table that is open as long as it runs.

        Args:
            units: the data of the call.
            budget: of the run.
            account: that pays for it.
            observer: called after releases.
            planned: the plan of the run, from what is public about the units.
            solve: runs it.
        Raises:
            TypeError, ArgumentError: one of them is of another kind, or has no meaning for the data.
        """
        self.check(units)
        check_arguments(units, budget, account, observer)
        if not isinstance(units, Table):
            return solve(units)
        with self._opened(units, account, planned) as (opened, kept):
            result = solve(opened)
        return result._replace(kept=kept, declared=(*units.declared, *result.declared))

    @contextmanager
    def _opened(
        self, table: Table, account: Account | None, planned: Callable[[Public], Holding]
    ) -> Generator[tuple[Engine, str]]:
        """An engine on the records of a table, and in words where they are kept; refuses a plan that does not fit."""
        placements = list[Placement]()

        def ahead(public: Public, placement: Placement) -> None:
            if placement.engine != "memory":
                require_held(planned(public), placement)
            placements.append(placement)

        cap = DEFAULT_RECORDS if self.max_records_per_user is None else self.max_records_per_user
        relation = Relation.REPLACE_ONE if self.relation is None else self.relation
        with asking(table.asked(self.groups), account):
            engine = table.engine(
                groups=self.groups, relation=relation, max_records_per_user=cap, ahead=ahead
            )
            with closing(engine):
                yield engine, placements[-1].told(described(engine))


def announced(choice: tuple[P, str], task: Task[Any]) -> tuple[P, Plan]:
    """The configured program, and the plan of its run, from public quantities alone.

    Args:
        choice: the program, and why it was taken, as the end of a sentence.
        task: the problem, the public numbers and the budget.
    """
    chosen, reason = choice
    configured = chosen.configure(task)
    plan = configured.announcement(task)  # of a program of the user's own it may state whatever it likes
    return configured, replace(plan, reason=reason, budget=task.budget)


def rehearse_program(
    program: Program[Any],
    solve: Callable[[Curator], Result],
    data: Units | Engine,
    public: Public,
    budget: Budget,
    event: Event,
    ends: Callable[[Result], object] | None = None,
) -> Derived:
    """Refuse what the engine, a resumption, or a program of the user's own cannot do, before anything is paid for.

    Args:
        program: as it will run; of one that is adaptive it is not known which queries it will ask.
        solve: runs it.
        data: the units, or an engine.
        public: what is public about the units that the program will see.
        budget: what the run may cost.
        event: what will be paid for.
        ends: looks at what a program of the user's own ends with, in a run without data.
    Returns:
        What it makes of the units.
    Raises:
        Exception: a program of the user's own raised it, or asked for more than it planned, in a run without data.
    """
    derived = Derived(public)
    foresee(program, solve, data, derived)
    rehearsed(solve, public, data, budget, event)
    if not program.is_ours:
        trial = tried(solve, public, budget, event)
        if ends is not None:
            ends(trial)
    return derived


def run_program(
    program: Program[Any],
    solve: Callable[[Curator], Result],
    data: Units | Engine,
    public: Public,
    plan: Plan,
    *,
    noise: NoiseSource,
    account: Account | None,
    observer: Observer | None,
    of: Mapping[str, Any],
    name: str = "",
    engine: EngineName = "fast",
    ends: Callable[[Result], object] | None = None,
) -> Result:
    """Rehearse a program, pay for its plan, and run it.

    Args:
        program: configured.
        solve: runs it.
        data: the units, or an engine.
        public: what is public about them.
        plan: what was announced.
        noise: secret randomness.
        account: charged for the whole plan before the data is read.
        observer: called after releases.
        of: what is solved and how, by name, see `Run`.
        name: what the account calls the run; default: the program.
        engine: what computes on units.
        ends: see `rehearse_program`.
    Raises:
        ValueError, TypeError: the run cannot be; nothing was paid.
        BudgetExceeded: the account cannot pay; no data has been read.
    """
    derived = rehearse_program(program, solve, data, public, plan.budget, plan.event, ends)
    with reserved(data, derived.extra()):
        run = Run(
            name or program.title,
            plan.event,
            plan.budget,
            public,
            noise=noise,
            account=account,
            observer=observer,
            seeded=data.seeded,
            origin=data.origin,
            engine=engine,
            of=of,
        )
        result = solve(run.curator(data))
        run.end()
    return result._replace(plan=plan)
