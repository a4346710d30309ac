"""The base class of all programs: solvers of minimisations and of saddle points, and synthesizers of tables.

A program is a frozen set of public fields. Before any data are read it states its privacy event, its releases, its
passes over the data, and what to expect of it, and puts them together as a `Plan`.
"""

import abc
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from types import ModuleType
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar

from privopt import papers
from privopt.curator.base import Curator
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, leaf_counts
from privopt.planning.averaging import data_bytes, loading_seconds
from privopt.planning.notices import NO_RELEASES, extreme_epsilon
from privopt.planning.plan import Finding, Plan
from privopt.planning.task import Forecast, Task
from privopt.precision import run_in_numpy
from privopt.public import Public
from privopt.result import Outcome, Result
from privopt.solvers.fields import check_fields, declared
from privopt.solvers.needs import Need

P = TypeVar("P")
K = TypeVar("K", bound="Program[Any]")

ROW_PASSES = (
    4e6  # rows times passes from which on JAX and compiled kernels are worth the time that they take to load
)


@dataclass(frozen=True, kw_only=True)
class Program(abc.ABC, Generic[P]):
    """A frozen configuration that runs over a curator and solves a problem of type P. Concrete programs are final.

    Its life, for a task (the problem, the public numbers of the data, the budget):

        Program(...)        fields given by the user; a field that is None is open
        filled(task)        every open field but the noise is derived from public numbers
        calibrated(task)    the noise is set so that `event` fits the budget
        plan(task)          `configure`, which is both of these, then `announcement`: event, cost and forecast
        run                 declared by the kind of program: solvers, games and synthesizers give back different things

    A subclass declares its fields (see `fields`), a method `default_<field>(task)` for each that may be open, `event`,
    `releases`, `seconds` and `forecast`, and `calibrated` where its noise is not the one field `noise_multiplier`. In a
    run the only lines that cost privacy are calls on the curator. An `instance` below is the task; it is typed by the
    subclasses.
    """

    name: ClassVar[str]  # in plans and on the command line
    made_for_users: ClassVar[bool] = False  # whether it is made for privacy units of several records
    # Whether it passes over single records in a secret random order; all rows must then be in one place.
    in_secret_order: ClassVar[bool] = False
    needs: ClassVar[tuple[Need, ...]] = ()  # of a problem, in the order in which they are asked for

    def __post_init__(self) -> None:
        check_fields(self)
        self.check()

    def check(self) -> None:
        """Refuse fields that do not go together.

        Raises:
            ValueError: two fields exclude each other; the message names them.
        """
        return

    # Configuration: from open fields to a program that can run ---------------------------------------------------
    def is_set(self, field: str) -> bool:
        """Whether a field has a value: given by the user, or already derived."""
        return getattr(self, field) is not None

    def open_fields(self) -> list[str]:
        """The names of the derived fields that have no value yet."""
        return [
            name for name, field in declared(type(self)).items() if field.derived and not self.is_set(name)
        ]

    def with_(self, **changes: Any) -> Self:
        """The same program with some fields changed."""
        return replace(self, **changes)

    def filled(self, instance: Any) -> Self:
        """The program with every open field but the noise derived from public quantities.

        Raises:
            ValueError: the program cannot solve the problem, or a field cannot be derived.
        """
        self.check_applicable(instance.problem, instance.public)
        program = self
        for field in derived_by_methods(type(self)):
            if not program.is_set(field):
                value = getattr(program, f"default_{field}")(instance)
                if value is not None:
                    program = self.with_() if program is self else program
                    object.__setattr__(
                        program, field, value
                    )  # nobody else sees the program before it is filled
        if program is not self:
            program.__post_init__()
        return program

    def calibrated(self, task: Task[P]) -> Self:
        """The filled program with the noise that the budget allows, in its field `noise_multiplier`.

        Returns:
            A program whose whole plan costs at most the budget, and at least 0.999 of its epsilon.
        """
        if self.is_set("noise_multiplier"):
            return self
        if not task.is_private:
            return self.with_(noise_multiplier=0.0)
        return self.to_budget(task)

    def to_budget(self, task: Task[P], at: Callable[[float], Self] | None = None) -> Self:
        """A program of which all but the scale of its noise is set, with the smallest scale that the budget allows.

        Args:
            task: the budget, and what is public about the data.
            at: the program with its noise at a scale; default: `scaled`.
        Returns:
            With the scale 1 where nothing is released.
        """
        made, public = at or self.scaled, task.public

        def event(scale: float) -> Event:
            return self.scaled_event(public, scale) if at is None else at(scale).event(public)

        if not any(leaf_counts(event(1.0))):
            return made(1.0)
        return made(float(calibrate(event, task.budget, public.relation)))

    def scaled(self, factor: float) -> Self:
        """The same program with the standard deviation of all its noise times `factor`; open noise counts as 1."""
        return self.with_(noise_multiplier=self._scaled_noise(factor))

    def scaled_event(self, public: Public, factor: float) -> Event:
        """The event of `scaled(factor)`. Calibration asks for dozens; a subclass may do without the scaled programs."""
        return self.scaled(factor).event(public)

    def _scaled_noise(self, factor: float) -> float:
        """The noise multiplier of `scaled(factor)`."""
        program: Any = self
        return program.noise_multiplier * factor if self.is_set("noise_multiplier") else factor

    def configure(self, instance: Any) -> Self:
        """Derive what was left open and set the noise to the budget.

        Returns:
            A program whose whole plan costs at most the budget. Where it leaves some unspent, its forecast says so.
        """
        return self.filled(instance).calibrated(instance)

    def check_configured(self) -> None:
        """Refuse to run a program that was not configured.

        Raises:
            ValueError: some fields are open; the message names them.
        """
        missing = self.open_fields()
        if missing:
            raise ValueError(
                f"{self.title} is not configured: {', '.join(missing)} not set. Call `configure(instance)` first."
            )

    def steps_in_numpy(self, problem: P) -> bool:
        """Whether NumPy computes its steps and queries as JAX does: of the library's own parts only, by exact type."""
        del problem
        return False

    def runs_in_numpy(self, problem: P, public: Public) -> bool:
        """Whether a run is in NumPy: by public sizes alone, so that it is wherever the records are."""
        return self.steps_in_numpy(problem) and not public.by_user and public.n * self.passes() < ROW_PASSES

    def concluded(self, curator: Curator, problem: P, run: Callable[[], Outcome]) -> Result:
        """The result of a run of this program in float64; each kind of program has a `solve` that calls this.

        Raises:
            ValueError: the program was not configured.
            BudgetExceeded, PlanMismatch: the curator refused a release.
        """
        self.check_configured()
        with run_in_numpy(is_so=self.runs_in_numpy(problem, curator.public)):
            return Result.of(run(), curator.transcript)

    # What it can solve -------------------------------------------------------------------------------------------
    def applicable(self, problem: P, public: Public) -> str | None:
        """The first of its needs that is not met, as the end of a sentence; None if it can solve the problem."""
        refused = (need.refusal(self, problem, public) for need in self.needs)
        return next((why for why in refused if why is not None), None)

    def obstacle(self, problem: P, public: Public) -> str | None:
        """`applicable`, after the conditions that hold for all programs of its kind; callers ask this one."""
        return self.applicable(problem, public)

    def check_applicable(self, problem: P, public: Public) -> None:
        """Refuse a problem that this program cannot solve.

        Raises:
            ValueError: `obstacle` gives a reason, which the message repeats.
        """
        obstacle = self.obstacle(problem, public)
        if obstacle is not None:
            raise ValueError(f"{self.title} cannot solve this problem: {obstacle}.")

    @property
    def is_for_users(self) -> bool:
        """Whether it, or its inner program, is made for privacy units of several records."""
        inner = getattr(self, "inner", None)
        return self.made_for_users or (isinstance(inner, Program) and inner.is_for_users)

    # What a run releases -----------------------------------------------------------------------------------------
    @abc.abstractmethod
    def event(self, public: Public) -> Event:
        """The privacy event of a whole run of this configured program. Needs no data."""

    @abc.abstractmethod
    def releases(self) -> int:
        """The number of releases of a run of this configured program; for an adaptive one the largest number."""

    @property
    def adaptive(self) -> bool:
        """Whether the number of releases or their noise depends on what was released before in the run."""
        return False

    @property
    def makes(self) -> tuple[int, int]:
        """The most times that a run divides all units into blocks, and that it maps the rows of all (`Curator.view`).

        It is asked of adaptive programs only; for others a dry run without data counts them.
        """
        return 1, 1

    # What a run takes: passes, time and memory -------------------------------------------------------------------
    def passes(self) -> float:
        """Expected passes over the data in a run of this configured program; by default one per release."""
        return float(self.releases())

    def loss_values(self, problem: P, public: Public) -> float:
        """The number of loss values of single records in a run that uses values only (black boxes); otherwise 0."""
        del problem, public
        return 0.0

    @abc.abstractmethod
    def seconds(self, problem: P, public: Public) -> float:
        """Rough time in seconds of a run of this configured program, once the data are loaded."""

    def memory_bytes(self, problem: P, public: Public) -> int:
        """Memory in bytes of the stored data and of the work space of a run."""
        del problem
        return data_bytes(public)

    def held_numbers(self, problem: P, public: Public) -> int:
        """The most numbers that the curator caches for a run at a time, such as one vector per unit or group."""
        configured = (each for each in self._programs_inside() if not each.open_fields())
        return max((each.held_numbers(problem, public) for each in configured), default=0)

    @property
    def needs_rows(self) -> bool:
        """Whether all rows must be on one machine at once, for this program or for one inside of it."""
        return self.in_secret_order or any(each.needs_rows for each in self._programs_inside())

    def _programs_inside(self) -> "Iterator[Program[Any]]":
        """The programs in its fields, in order, tuples included."""
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

    # What to expect, and the plan --------------------------------------------------------------------------------
    @property
    def title(self) -> str:
        """The name in plans and messages; of a program with another one inside it names both."""
        return self.name

    def forecast(self, instance: Any) -> Forecast:
        """The expected error of this configured program on a task, and notices, before data are read."""
        del instance
        return Forecast()

    def foreseen(self, instance: Any) -> Forecast:
        """`forecast` without the statements whose conditions this problem does not meet; `plan` uses this one."""
        return self.forecast(instance)

    def indicators(self, instance: Any) -> Mapping[str, Finding]:
        """Public numbers about what any private method can reach on such a task, by name."""
        del instance
        return {}

    def plan(self, instance: Any) -> Plan:
        """The plan of this program, configured first where needed."""
        return self.configure(instance).announcement(instance)

    def announcement(self, instance: Any) -> Plan:
        """The plan of this configured program."""
        public = instance.public
        forecast = self.foreseen(instance)
        return Plan(
            solver=self.title,
            settings=settings(self),
            event=self.event(public),
            budget=instance.budget,
            public=public,
            releases=self.releases(),
            adaptive=self.adaptive,
            passes=self.passes(),
            memory_bytes=self.memory_bytes(instance.problem, public),
            held=self.held_numbers(instance.problem, public),
            needs_rows=self.needs_rows,
            seconds=loading_seconds(public) + self.seconds(instance.problem, public),
            predicted_excess=forecast.excess,
            predicted_range=forecast.excess_range,
            prediction=forecast.meaning,
            bound=forecast.bound,
            indicators={**self.indicators(instance), **forecast.indicators},
            notices=(
                *(() if self.releases() else (NO_RELEASES,)),
                *extreme_epsilon(instance.budget),
                *forecast.notices,
            ),
            measure=forecast.measure,
            evaluations=self.loss_values(instance.problem, public),
        )


def settings(program: Program[Any]) -> Mapping[str, float | int | str]:
    """A program's printed fields as numbers and strings; those of an inner program follow as "inner.<field>"."""
    values: dict[str, Any] = {}
    for field in fields(program):
        value = getattr(program, field.name)
        if isinstance(value, Program):
            values[field.name] = value.title
            values.update({f"{field.name}.{key}": inner for key, inner in settings(value).items()})
        elif field.repr:
            values[field.name] = value if isinstance(value, int | float | str) else repr(value)
    return values


@functools.cache
def derived_by_methods(kind: type) -> tuple[str, ...]:
    """The names of the fields that a class derives, in the order in which its `default_<field>` are defined.

    The methods of bases come first. The order matters: each method sees the fields derived before its own.
    """
    found = (name for base in reversed(kind.__mro__) for name in vars(base) if name.startswith("default_"))
    own = {field.name for field in fields(kind)}
    return tuple(
        name for name in dict.fromkeys(each.removeprefix("default_") for each in found) if name in own
    )


# ---- Programs by name --------------------------------------------------------------------------------------
class Choice(NamedTuple, Generic[K]):
    """A program, and why "auto" took it.

    Attributes:
        solver: not configured yet.
        reason: the end of a sentence after "because", printed in the plan; empty where the user named the program.
    """

    solver: K
    reason: str = ""


@dataclass(frozen=True)
class Maker(Generic[K]):
    """Makes a program with all fields open; its class is loaded then.

    Attributes:
        room: the package that the class is imported from.
        made: the class, or one of its class methods, such as "SVRG.plus_plus".
        inner: the class of the program inside of it, if it has one.
    """

    room: ModuleType
    made: str
    inner: str | None = None

    def __call__(self) -> K:
        make: Any = attrgetter(self.made)(self.room)
        return make() if self.inner is None else make(inner=getattr(self.room, self.inner)())

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes of what it makes."""
        return self.made.partition(".")[0], *(() if self.inner is None else (self.inner,))


@dataclass(frozen=True)
class Registry(Generic[K]):
    """The programs of one kind by their names.

    Attributes:
        kind: their class.
        option: the argument that asks for one.
        one: a program of the kind, in words.
        example: the name of one of them, and an instance as it is typed.
        offered: makers of those that `plan` compares and "auto" chooses among, with all fields open.
        published: those of `privopt.papers`, which are named or not used at all.
        renamed: the old name and today's, of those that had another one.
    """

    kind: type[K]
    option: str
    one: str
    example: tuple[str, str]
    offered: Mapping[str, Callable[[], K]]
    published: Mapping[str, str]
    renamed: tuple[tuple[str, str], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All that can be asked for."""
        return *self.offered, *self.published

    def named(self, name: str) -> K:
        """The program with one of the names, with all fields open."""
        return self.offered[name]() if name in self.offered else papers.published(name)

    def chosen(self, given: Any, automatic: Callable[[], Choice[K]]) -> Choice[K]:
        """The program meant by a name, an instance, or "auto".

        Raises:
            TypeError: it is neither a name nor a program of the kind.
            ValueError: an unknown name.
        """
        name, instance = self.example
        if not isinstance(given, str | self.kind):
            what = given.__name__ + " itself" if isinstance(given, type) else type(given).__name__
            raise TypeError(
                f"{self.option} must be 'auto', a name such as {name!r}, or {self.one} like {instance}, got {what}."
            )
        if given == "auto":
            return automatic()
        if not isinstance(given, str):
            return Choice(given)
        if given not in self.names:
            now = "".join(f", which is {new!r} now" for old, new in self.renamed if old == given)
            raise ValueError(
                f"{self.option} must be 'auto', one of {sorted(self.names)} or {self.one}, got {given!r}{now}."
            )
        return Choice(self.named(given))
