"""What a solver is: a frozen configuration, a price, and a program over a curator."""

import abc
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, leaf_counts
from privopt.planning.coordinates import Coordinates
from privopt.planning.effort import RELEASE_SECONDS, data_bytes, loading_seconds, pass_seconds
from privopt.planning.forecast import Forecast
from privopt.planning.indicators import common_indicators
from privopt.planning.instance import Instance
from privopt.planning.notices import faint_signal
from privopt.planning.plan import Plan
from privopt.precision import double_precision
from privopt.problems.glm import GLMLoss
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.result import Outcome, Result
from privopt.solvers.fields import check_fields, declared, derived

# By field, in order: how it is derived. Each rule sees the solver with the fields before it filled in.
Defaults = Mapping[str, Callable[[Any, Instance], Any]]


@dataclass(frozen=True, kw_only=True)
class Solver(abc.ABC):
    """A frozen configuration. Open fields are derived from public quantities by `configure`.

    A subclass declares its fields (see `fields`), how the open ones are derived (`defaults`), what it releases
    (`event`), what to expect of it (`forecast`) and how it runs (`run`). In `run` the only lines that cost privacy are
    calls on `curator`. Concrete solvers are final.

    Attributes:
        noise_multiplier: noise standard deviation / sensitivity, the same for every release.
    """

    noise_multiplier: float = derived(at_least=0)

    name: ClassVar[str]  # in plans and on the command line
    preconditions: ClassVar[bool] = False  # whether it runs in coordinates other than the data's own
    defaults: ClassVar[Defaults] = {}

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

    @abc.abstractmethod
    def event(self, public: Public) -> Event:
        """Everything this configured solver releases. Needs no data."""

    @abc.abstractmethod
    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """The program: arithmetic on releases."""

    @abc.abstractmethod
    def releases(self) -> int:
        """The number of releases of this configured solver; the most there can be of an adaptive one."""

    def passes(self) -> float:
        """Expected passes over the data of this configured solver: one a release."""
        return float(self.releases())

    def matrix_seconds(self, public: Public) -> float:
        """Rough time of products and decompositions of matrices of order d, which passes leave out."""
        del public
        return 0.0

    def seconds(self, problem: Problem, public: Public) -> float:
        """Rough time of a run of this configured solver on data that are loaded."""
        own = None if isinstance(problem.loss, GLMLoss) else math.prod(problem.parameter_shape(public))
        passes = self.passes() * pass_seconds(public, problem.loss.outputs, own=own)
        return passes + self.releases() * RELEASE_SECONDS + self.matrix_seconds(public)

    def forecast(self, instance: Instance) -> Forecast:
        """What to expect of this configured solver, before the data are read."""
        del instance
        return Forecast()

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Why this solver cannot solve the problem, or None if it can."""
        del problem, public
        return None

    def check_applicable(self, problem: Problem, public: Public) -> None:
        """Refuse a problem that this solver cannot solve.

        Raises:
            ValueError: it says why.
        """
        obstacle = self.applicable(problem, public)
        if obstacle is not None:
            raise ValueError(f"{self.title} cannot solve this problem: {obstacle}.")

    def is_set(self, field: str) -> bool:
        """Whether a field has a value."""
        return getattr(self, field) is not None

    def with_(self, **changes: Any) -> Self:
        """The same solver with other fields."""
        return replace(self, **changes)

    def filled(self, instance: Instance) -> Self:
        """The solver with every field but the noise set from public quantities; what was given stays.

        Raises:
            ValueError: the solver cannot solve the problem, or a field cannot be derived.
        """
        self.check_applicable(instance.problem, instance.public)
        solver = self
        for field, rule in self.defaults.items():
            if not solver.is_set(field):
                solver = replace(solver, **{field: rule(solver, instance)})
        return solver

    def scaled(self, factor: float) -> Self:
        """The same configured solver with all its noise times `factor`."""
        return self.with_(noise_multiplier=self.noise_multiplier * factor)

    def in_coordinates(self, coordinates: Coordinates) -> Self:
        """The same releases with the lengths (clip, step size) of other coordinates; nothing priced may change.

        Raises:
            ValueError: the solver does not run in other coordinates.
        """
        del coordinates
        raise ValueError(f"{self.title} does not run in other coordinates than the data's own.")

    def run_in(self, curator: Curator, problem: Problem, start: Array, coordinates: Coordinates) -> Outcome:
        """Run in other coordinates: on mapped rows, with the penalty as it is there.

        Returns:
            Parameters in the original coordinates, how the run ended, and what it found (in the other coordinates).
        """
        inner = self.in_coordinates(coordinates)
        curator.announce("change of coordinates")
        view = curator.view(coordinates.matrix, coordinates.longest_row(curator.public.row_bound))
        outcome = inner.run(view, coordinates.problem(problem), coordinates.inward(start))
        return in_original(outcome, coordinates)

    def configure(self, instance: Instance) -> Self:
        """Derive what was left open and calibrate the noise to the budget.

        Returns:
            A solver whose whole plan costs at most the budget, and at least 0.999 of its epsilon.
        """
        solver = self.filled(instance)
        if solver.is_set("noise_multiplier"):
            return solver
        if not instance.is_private:
            return replace(solver, noise_multiplier=0.0)
        once = replace(solver, noise_multiplier=1.0)
        if not any(leaf_counts(once.event(instance.public))):
            return once  # it only gives back the start
        multiplier = calibrate(
            lambda z: replace(solver, noise_multiplier=z).event(instance.public),
            instance.budget,
            instance.public.relation,
        )
        return replace(solver, noise_multiplier=float(multiplier))

    def plan(self, instance: Instance) -> Plan:
        """The plan of this solver, configured first where needed."""
        solver = self.configure(instance)
        public = instance.public
        forecast = solver.forecast(instance)
        return Plan(
            solver=self.title,
            settings=settings(solver),
            event=solver.event(public),
            budget=instance.budget,
            public=public,
            releases=solver.releases(),
            adaptive=solver.adaptive,
            passes=solver.passes(),
            memory_bytes=data_bytes(public),
            seconds=loading_seconds(public) + solver.seconds(instance.problem, public),
            predicted_excess=forecast.excess,
            prediction=forecast.meaning,
            bound=forecast.bound,
            indicators={**common_indicators(instance), **forecast.indicators},
            notices=forecast.notices + faint_signal(instance, forecast.excess),
        )

    def solve(self, curator: Curator, problem: Problem, start: Array | None = None) -> Result:
        """Run the solver.

        Args:
            curator: answers the releases.
            problem: loss, regulariser and constraint set.
            start: public starting point of `problem.parameter_shape(curator.public)`; default zero.
        Raises:
            ValueError: the start has the wrong shape, or the solver was not configured.
            BudgetExceeded, PlanMismatch: the curator refused a release.
        """
        self._check_configured()
        if jax.config.read("jax_enable_x64"):
            return self._solve(curator, problem, start)
        with double_precision():
            return self._solve(curator, problem, start)

    def _check_configured(self) -> None:
        missing = [
            name for name, field in declared(type(self)).items() if field.derived and not self.is_set(name)
        ]
        if missing:
            raise ValueError(
                f"{self.title} is not configured: {', '.join(missing)} not set. Call `configure(instance)` first."
            )

    def _solve(self, curator: Curator, problem: Problem, start: Array | None) -> Result:
        shape = problem.parameter_shape(curator.public)
        first = jnp.zeros(shape, jnp.float64) if start is None else jnp.asarray(start, jnp.float64)
        if first.shape != shape:
            raise ValueError(f"start must have shape {shape}, got {first.shape}.")
        outcome = self.run(curator, problem, problem.constraint.project(first))
        return Result(outcome.params, outcome.status, curator.transcript, findings=outcome.findings)


def in_original(outcome: Outcome, coordinates: Coordinates) -> Outcome:
    """What was found in other coordinates, with the parameters in the original ones."""
    findings = {
        name: replace(finding, meaning=f"{finding.meaning} (in the coordinates it ran in)")
        for name, finding in outcome.findings.items()
    }
    return outcome._replace(params=coordinates.outward(outcome.params), findings=findings)


def settings(solver: Solver) -> Mapping[str, float | int | str]:
    """A solver's fields, in a form that prints and serialises; an inner solver's stand after its own."""
    values: dict[str, Any] = {}
    for field in fields(solver):
        value = getattr(solver, field.name)
        if isinstance(value, Solver):
            values[field.name] = value.title
            values.update({f"{field.name}.{key}": inner for key, inner in settings(value).items()})
        elif field.repr:
            values[field.name] = value if isinstance(value, int | float | str) else repr(value)
    return values
