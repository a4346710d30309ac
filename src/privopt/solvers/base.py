"""What a solver is: a frozen configuration, a price, and a program over a curator."""

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, leaf_counts
from privopt.planning.coordinates import Coordinates
from privopt.planning.effort import RELEASE_SECONDS, data_bytes, loading_seconds, pass_seconds
from privopt.planning.indicators import common_indicators
from privopt.planning.notices import faint_signal
from privopt.planning.plan import Bound, Finding, Plan
from privopt.precision import double_precision
from privopt.problems.glm import GLMLoss
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.result import Outcome, Result


@dataclass(frozen=True, kw_only=True)
class Solver(abc.ABC):
    """A frozen configuration. Fields left `None` are derived from public quantities by `configure`.

    A subclass says what it releases (`event`), how it derives its fields (`derived`) and how it runs (`run`). In `run`
    the only lines that cost privacy are calls on `curator`.
    """

    noise_multiplier: float | None = (
        None  # noise standard deviation / sensitivity, the same for every release
    )

    preconditions: ClassVar[bool] = False  # whether it runs in coordinates other than the data's own

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The solver's name in plans and on the command line."""

    @property
    def adaptive(self) -> bool:
        """Whether how often it releases, and with how much noise, depends on what was released before."""
        return False

    @abc.abstractmethod
    def event(self, public: Public) -> Event:
        """Everything this configured solver releases. Needs no data."""

    @abc.abstractmethod
    def derived(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """The solver with every field but the noise set from public quantities."""

    @abc.abstractmethod
    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """The program: arithmetic on releases."""

    @abc.abstractmethod
    def releases(self) -> int:
        """The number of releases of this configured solver; the most there can be of an adaptive one."""

    @abc.abstractmethod
    def passes(self) -> float:
        """Expected passes over the data of this configured solver."""

    def matrix_seconds(self, public: Public) -> float:
        """Rough time of products and decompositions of matrices of order d, which passes leave out."""
        del public
        return 0.0

    def seconds(self, problem: Problem, public: Public) -> float:
        """Rough time of a run of this configured solver on data that are loaded."""
        own = None if isinstance(problem.loss, GLMLoss) else math.prod(problem.parameter_shape(public))
        passes = self.passes() * pass_seconds(public, problem.loss.outputs, own=own)
        return passes + self.releases() * RELEASE_SECONDS + self.matrix_seconds(public)

    def predicted_excess(self, problem: Problem, public: Public, budget: Budget) -> tuple[float | None, str]:
        """Predicted excess objective, and what the number is."""
        del problem, public, budget
        return None, ""

    def bound(self, problem: Problem, public: Public, budget: Budget) -> Bound | None:
        """A bound on the excess of the result that is known before the data is read; None where there is none."""
        del problem, public, budget
        return None

    def indicators(self, problem: Problem, public: Public, budget: Budget) -> Mapping[str, Finding]:
        """By name, public quantities that say what can be hoped of this solver; see also `common_indicators`."""
        del problem, public, budget
        return {}

    def notices(self, problem: Problem, public: Public, budget: Budget) -> tuple[str, ...]:
        """What a user should be told, from public quantities."""
        del problem, public, budget
        return ()

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
            raise ValueError(f"{self.name} cannot solve this problem: {obstacle}.")

    def scaled(self, factor: float) -> Self:
        """The same configured solver with all its noise times `factor`."""
        return replace(self, noise_multiplier=required(self.noise_multiplier, "noise_multiplier") * factor)

    def in_coordinates(self, coordinates: Coordinates) -> Self:
        """The same releases with the lengths (clip, step size) of other coordinates; nothing priced may change.

        Raises:
            ValueError: the solver does not run in other coordinates.
        """
        del coordinates
        raise ValueError(f"{self.name} does not run in other coordinates than the data's own.")

    def run_in(self, curator: Curator, problem: Problem, start: Array, coordinates: Coordinates) -> Outcome:
        """Run in other coordinates: on mapped rows, with the penalty as it is there.

        Returns:
            Parameters in the original coordinates, how the run ended, and what it found (in the other coordinates).
        """
        inner = self.in_coordinates(coordinates)
        curator.announce("change of coordinates")
        view = curator.view(coordinates.matrix, coordinates.longest_row(curator.public.row_bound))
        outcome = inner.run(view, coordinates.problem(problem), coordinates.inward(start))
        findings = {
            name: replace(finding, meaning=f"{finding.meaning} (in the coordinates it ran in)")
            for name, finding in outcome.findings.items()
        }
        return outcome._replace(params=coordinates.outward(outcome.params), findings=findings)

    def configure(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """Derive what was left open and calibrate the noise to the budget.

        Returns:
            A solver whose whole plan costs at most the budget, and at least 0.999 of its epsilon.
        """
        solver = self.derived(problem, public, budget)
        if solver.noise_multiplier is not None:
            return solver
        if math.isinf(budget.epsilon):
            return replace(solver, noise_multiplier=0.0)
        once = replace(solver, noise_multiplier=1.0)
        if not any(leaf_counts(once.event(public))):
            return once  # it only gives back the start
        multiplier = calibrate(
            lambda z: replace(solver, noise_multiplier=z).event(public), budget, public.relation
        )
        return replace(solver, noise_multiplier=float(multiplier))

    def plan(self, problem: Problem, public: Public, budget: Budget) -> Plan:
        """The plan of this solver, configured first where needed."""
        solver = self.configure(problem, public, budget)
        excess, meaning = solver.predicted_excess(problem, public, budget)
        return Plan(
            solver=self.name,
            settings=settings(solver),
            event=solver.event(public),
            budget=budget,
            public=public,
            releases=solver.releases(),
            adaptive=solver.adaptive,
            passes=solver.passes(),
            memory_bytes=data_bytes(public),
            seconds=loading_seconds(public) + solver.seconds(problem, public),
            predicted_excess=excess,
            prediction=meaning,
            bound=solver.bound(problem, public, budget),
            indicators={
                **common_indicators(problem, public, budget),
                **solver.indicators(problem, public, budget),
            },
            notices=solver.notices(problem, public, budget) + faint_signal(problem, excess),
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
        if self.noise_multiplier is None:
            raise ValueError(
                f"{self.name} is not configured: call `configure(problem, public, budget)` first."
            )
        if jax.config.read("jax_enable_x64"):
            return self._solve(curator, problem, start)
        with double_precision():
            return self._solve(curator, problem, start)

    def _solve(self, curator: Curator, problem: Problem, start: Array | None) -> Result:
        shape = problem.parameter_shape(curator.public)
        first = jnp.zeros(shape, jnp.float64) if start is None else jnp.asarray(start, jnp.float64)
        if first.shape != shape:
            raise ValueError(f"start must have shape {shape}, got {first.shape}.")
        outcome = self.run(curator, problem, problem.constraint.project(first))
        return Result(outcome.params, outcome.status, curator.transcript, findings=outcome.findings)


def settings(solver: Solver) -> Mapping[str, float | int | str]:
    """A solver's fields, in a form that prints and serialises; an inner solver's stand after its own."""
    values: dict[str, Any] = {}
    for field in fields(solver):
        value = getattr(solver, field.name)
        if isinstance(value, Solver):
            values[field.name] = value.name
            values.update({f"{field.name}.{key}": inner for key, inner in settings(value).items()})
        elif field.repr:
            values[field.name] = value if isinstance(value, int | float | str) else repr(value)
    return values


def required(value: Any, field: str) -> Any:
    """A field that `configure` sets.

    Raises:
        ValueError: it is still None.
    """
    if value is None:
        raise ValueError(
            f"`{field}` is not set: give it, or call `configure(problem, public, budget)` first."
        )
    return value
