"""What every program over a curator has: public fields, a price known beforehand, and a plan, whatever it solves."""

import abc
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Generic, Self, TypeVar

from privopt.ledger.events import Event
from privopt.planning.effort import data_bytes, loading_seconds
from privopt.planning.forecast import Forecast
from privopt.planning.notices import NO_RELEASES, extreme_epsilon
from privopt.planning.plan import Finding, Plan
from privopt.planning.task import Task
from privopt.public import Public
from privopt.solvers.fields import check_fields, declared
from privopt.solvers.needs import Need

P = TypeVar("P")


@functools.cache
def derived_by_methods(kind: type) -> tuple[str, ...]:
    """The fields that a class derives, in the order in which its methods `default_<field>` are defined, bases first."""
    found = (name for base in reversed(kind.__mro__) for name in vars(base) if name.startswith("default_"))
    own = {field.name for field in fields(kind)}
    return tuple(
        name for name in dict.fromkeys(each.removeprefix("default_") for each in found) if name in own
    )


@dataclass(frozen=True, kw_only=True)
class Program(abc.ABC, Generic[P]):
    """A frozen configuration that runs over a curator and solves a P. `configure` derives what was left open.

    A subclass declares its fields (see `fields`), how the open ones are derived (methods `default_<field>(task)`, each
    of which sees those before it filled in), how the noise is set to the budget (`calibrated`), what it releases
    (`event`) and what to expect of it (`forecast`). How it runs, and what it gives back, is said by the kinds of
    programs: solvers of minimisations, of saddle points, synthesizers. In a program the only lines that cost privacy
    are calls on the curator. Concrete programs are final.
    """

    name: ClassVar[str]  # in plans and on the command line
    made_for_users: ClassVar[bool] = False  # for units of several records
    needs: ClassVar[tuple[Need, ...]] = ()  # of a problem, in the order in which they are asked for
    in_secret_order: ClassVar[bool] = (
        False  # whether it passes over all rows so, which must be in one place then
    )

    def __post_init__(self) -> None:
        check_fields(self)
        self.check()

    def check(self) -> None:
        """Refuse fields that do not go together.

        Raises:
            ValueError: it says which.
        """
        return

    @property
    def title(self) -> str:
        """The name with what runs inside."""
        return self.name

    @property
    def adaptive(self) -> bool:
        """Whether how often it releases, and with how much noise, depends on what was released before."""
        return False

    @property
    def makes(self) -> tuple[int, int]:
        """How often a run may cut all its units into blocks, and map the rows of all, whatever is released.

        Asked of adaptive programs: what others make is found by running them without data.
        """
        return 1, 1

    @abc.abstractmethod
    def event(self, public: Public) -> Event:
        """Everything this configured program releases. Needs no data."""

    @abc.abstractmethod
    def releases(self) -> int:
        """The number of releases of this configured program; the most there can be of an adaptive one."""

    @abc.abstractmethod
    def calibrated(self, task: Task[P]) -> Self:
        """The program with all fields but its noise set, and that now set to the budget."""

    def passes(self) -> float:
        """Expected passes over the data of this configured program: one a release."""
        return float(self.releases())

    def loss_values(self, problem: P, public: Public) -> float:
        """How many values of single records a run asks for, where it asks for nothing else of a loss; 0 elsewhere."""
        del problem, public
        return 0.0

    @abc.abstractmethod
    def seconds(self, problem: P, public: Public) -> float:
        """Rough time of a run of this configured program on data that are loaded."""

    def memory_bytes(self, problem: P, public: Public) -> int:
        """Memory of the stored data, and of what a run holds beside them."""
        del problem
        return data_bytes(public)

    def held_numbers(self, problem: P, public: Public) -> int:
        """How many numbers of the units, or of groups of them, the curator holds for a run at a time; at most."""
        configured = (each for each in self._programs_inside() if not each.open_fields())
        return max((each.held_numbers(problem, public) for each in configured), default=0)

    @property
    def needs_rows(self) -> bool:
        """Whether all rows must be in one place at once, for this program or for one inside."""
        return self.in_secret_order or any(each.needs_rows for each in self._programs_inside())

    def _programs_inside(self) -> "Iterator[Program[Any]]":
        """The programs in its fields."""
        for each in fields(self):
            value = getattr(self, each.name)
            for one in value if isinstance(value, tuple) else (value,):
                if isinstance(one, Program):
                    yield one

    @property
    def is_ours(self) -> bool:
        """Whether it and the programs inside are the library's own: others are tried without data before they are paid.

        A dry run finds most mistakes of a program, and costs little beside a run; see `curator.run.tried`.
        """
        known = type(self).__module__.partition(".")[0] == "privopt"
        return known and all(each.is_ours for each in self._programs_inside())

    def forecast(self, instance: Any) -> Forecast:
        """What to expect of this configured program on a task, before the data are read."""
        del instance
        return Forecast()

    def foreseen(self, instance: Any) -> Forecast:
        """`forecast`, without what does not hold for this problem."""
        return self.forecast(instance)

    def applicable(self, problem: P, public: Public) -> str | None:
        """Why this program cannot solve the problem, or None if it can: the first of its needs that is not met."""
        refused = (need.refusal(self, problem, public) for need in self.needs)
        return next((why for why in refused if why is not None), None)

    def obstacle(self, problem: P, public: Public) -> str | None:
        """`applicable`, and what is asked of every program of a kind."""
        return self.applicable(problem, public)

    def check_applicable(self, problem: P, public: Public) -> None:
        """Refuse a problem that this program cannot solve.

        Raises:
            ValueError: it says why.
        """
        obstacle = self.obstacle(problem, public)
        if obstacle is not None:
            raise ValueError(f"{self.title} cannot solve this problem: {obstacle}.")

    @property
    def is_for_users(self) -> bool:
        """Whether it, or what runs inside of it, was made for units of several records."""
        inner = getattr(self, "inner", None)
        return self.made_for_users or (isinstance(inner, Program) and inner.is_for_users)

    def is_set(self, field: str) -> bool:
        """Whether a field has a value."""
        return getattr(self, field) is not None

    def with_(self, **changes: Any) -> Self:
        """The same program with other fields."""
        return replace(self, **changes)

    def filled(self, instance: Any) -> Self:
        """The program with every field but the noise set from public quantities; what was given stays.

        Raises:
            ValueError: the program cannot solve the problem, or a field cannot be derived.
        """
        self.check_applicable(instance.problem, instance.public)
        program = self
        for field in derived_by_methods(type(self)):
            if not program.is_set(field):
                rule = getattr(program, f"default_{field}")
                program = replace(program, **{field: rule(instance)})
        return program

    def configure(self, instance: Any) -> Self:
        """Derive what was left open and set the noise to the budget.

        Returns:
            A program whose whole plan costs at most the budget; what it leaves unspent its forecast says.
        """
        return self.filled(instance).calibrated(instance)

    def indicators(self, instance: Any) -> Mapping[str, Finding]:
        """By name, what can be hoped for on such a task, whichever program runs."""
        del instance
        return {}

    def plan(self, instance: Any) -> Plan:
        """The plan of this program, configured first where needed."""
        program = self.configure(instance)
        public = instance.public
        forecast = program.foreseen(instance)
        return Plan(
            solver=self.title,
            settings=settings(program),
            event=program.event(public),
            budget=instance.budget,
            public=public,
            releases=program.releases(),
            adaptive=program.adaptive,
            passes=program.passes(),
            memory_bytes=program.memory_bytes(instance.problem, public),
            held=program.held_numbers(instance.problem, public),
            needs_rows=program.needs_rows,
            seconds=loading_seconds(public) + program.seconds(instance.problem, public),
            predicted_excess=forecast.excess,
            predicted_range=forecast.excess_range,
            prediction=forecast.meaning,
            bound=forecast.bound,
            indicators={**program.indicators(instance), **forecast.indicators},
            notices=(
                *(() if program.releases() else (NO_RELEASES,)),
                *extreme_epsilon(instance.budget),
                *forecast.notices,
            ),
            measure=forecast.measure,
            evaluations=program.loss_values(instance.problem, public),
        )

    def open_fields(self) -> list[str]:
        """The fields that are still to be derived."""
        return [
            name for name, field in declared(type(self)).items() if field.derived and not self.is_set(name)
        ]

    def check_configured(self) -> None:
        """Refuse to run with fields that are open.

        Raises:
            ValueError: there are some.
        """
        missing = self.open_fields()
        if missing:
            raise ValueError(
                f"{self.title} is not configured: {', '.join(missing)} not set. Call `configure(instance)` first."
            )


def settings(program: Program[Any]) -> Mapping[str, float | int | str]:
    """A program's fields, in a form that prints and serialises; an inner program's stand after its own."""
    values: dict[str, Any] = {}
    for field in fields(program):
        value = getattr(program, field.name)
        if isinstance(value, Program):
            values[field.name] = value.title
            values.update({f"{field.name}.{key}": inner for key, inner in settings(value).items()})
        elif field.repr:
            values[field.name] = value if isinstance(value, int | float | str) else repr(value)
    return values
