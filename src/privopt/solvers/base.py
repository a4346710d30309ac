"""The base class of solvers: programs that minimise F(w) + r(w) over a set, with one multiplier for all their noise."""

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from privopt.curator.base import Curator
from privopt.later import Array
from privopt.ledger.events import Event, Repeated
from privopt.mechanisms.additive import Gaussian
from privopt.planning.averaging import RELEASE_SECONDS, pass_seconds, value_seconds
from privopt.planning.coordinates import Coordinates
from privopt.planning.kl_theory import common_indicators
from privopt.planning.notices import declared_of_black_box, faint_signal
from privopt.planning.plan import Finding, Plan
from privopt.planning.task import Forecast, Instance
from privopt.precision import run_arrays
from privopt.problems.black_box import BlackBox
from privopt.problems.glm import GLMLoss
from privopt.problems.grouped_loss import GroupedLoss
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.result import Outcome, Result
from privopt.solvers.fields import asks_for_clip, derived
from privopt.solvers.program import Program


@dataclass(frozen=True, kw_only=True)
class Solver(Program[Problem]):
    """A program that minimises F(w) + r(w) over a set, F the mean loss of the units; see `Program` for its life.

    A subclass adds `run` to what `Program` asks for. Calibration evaluates `event` at several values of
    `noise_multiplier`, so all noise of a solver is a function of that one field.

    Attributes:
        noise_multiplier: noise standard deviation / sensitivity, the same for every release.
    """

    noise_multiplier: float = derived(at_least=0)

    preconditions: ClassVar[bool] = False  # whether it has `in_coordinates`, so that `Whitening` can run it
    by_values: ClassVar[bool] = False  # whether it can run on values of the loss, without its derivatives
    # The parts of the solver that need a convex loss, as a plural subject for a message; empty for none.
    for_convex: ClassVar[str] = ""

    # The run -----------------------------------------------------------------------------------------------------
    @abc.abstractmethod
    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """The algorithm: post-processing of the curator's releases.

        Args:
            curator: answers the releases, and charges each before it reads data.
            problem: loss, regulariser and constraint set.
            start: a public or released point in the set, of `problem.parameter_shape(curator.public)`, float64.
        """

    def solve(self, curator: Curator, problem: Problem, start: Array | None = None) -> Result:
        """Run the configured solver in float64, from the projected start.

        Args:
            curator: answers the releases.
            problem: loss, regulariser and constraint set.
            start: public starting point of `problem.parameter_shape(curator.public)`; default zero.
        Raises:
            ValueError: the start has the wrong shape, or the solver was not configured.
            BudgetExceeded, PlanMismatch: the curator refused a release.
        """
        shape = problem.parameter_shape(curator.public)

        def run() -> Outcome:
            xp = run_arrays()
            first = xp.zeros(shape, np.float64) if start is None else xp.asarray(start, np.float64)
            if first.shape != shape:
                raise ValueError(f"start must have shape {shape}, got {first.shape}.")
            return self.run(curator, problem, problem.constraint.project(first))

        return self.concluded(curator, problem, run)

    # Other coordinates -------------------------------------------------------------------------------------------
    def in_coordinates(self, coordinates: Coordinates) -> Self:
        """The solver with the clip and the step size for other coordinates; its `event` must stay the same.

        Raises:
            ValueError: the solver does not run in other coordinates.
        """
        del coordinates
        raise ValueError(f"{self.title} does not run in other coordinates than the data's own.")

    def run_in(self, curator: Curator, problem: Problem, start: Array, coordinates: Coordinates) -> Outcome:
        """Run a solver that is in coordinates v with w = B v, see `in_coordinates`: on rows B^T a, with B v's penalty.

        Args:
            curator: of the original rows.
            problem: in the original coordinates w.
            start: in the original coordinates w, public or released.
            coordinates: public or released.
        Returns:
            The outcome, with its parameters in the original coordinates and its findings in the other ones.
        """
        curator.announce("change of coordinates")
        view = curator.view(coordinates.matrix, coordinates.longest_row(curator.public.row_bound))
        outcome = self.run(view, coordinates.problem(problem), coordinates.inward(start))
        return in_original(outcome, coordinates)

    # What it can solve, and with which step size -----------------------------------------------------------------
    def obstacle(self, problem: Problem, public: Public) -> str | None:
        """Why it cannot solve the problem: by what it states of itself in class variables, then by `applicable`."""
        if isinstance(problem.loss, BlackBox) and not self.by_values:
            return "it needs derivatives, and the loss is a black box, known by its values only"
        if asks_for_clip("clip", getattr(self, "clip", None)):
            return 'its clip is "auto", which `minimize` and `plan` expand: here use PrivateClip(inner=...) around it'
        if problem.loss.convex is False and self.rests_on_convexity:
            return f"{self.rests_on_convexity} rest on a convex loss, and the {problem.loss.name} loss is not convex"
        if isinstance(problem.loss, GroupedLoss) and not self.weighs_groups:
            return "it minimises the mean over all records and does not weight groups against each other"
        return self.applicable(problem, public)

    @property
    def weighs_groups(self) -> bool:
        """Whether it minimises the largest of the groups' mean losses (`GroupedLoss`), and not one mean over all."""
        return False

    @property
    def rests_on_convexity(self) -> str:
        """`for_convex`; a solver with an inner solver returns that of the inner one."""
        return self.for_convex

    def longest_step(self, instance: Instance) -> float:
        """The largest stable step size, in params^2 / objective units; infinite if no limit is known."""
        del instance
        return math.inf

    def gradient_limit(self, instance: Instance, *, momentum: float = 0.0) -> float:
        """The stability limit 2 (1 + momentum) / L of the step size of gradient steps, with heavy ball or without.

        L is the solver's field `smoothness`, or its `curvature` plus the penalty's. If these are open, L is what the
        loss and the row bound allow. If it has neither field, L is the penalty's alone: rows may be far shorter than
        their bound, and the user could not state a smaller L.
        """
        smoothness, curvature = getattr(self, "smoothness", None), getattr(self, "curvature", None)
        if smoothness is None:
            smoothness = instance.penalty_smoothness
            if curvature is not None:
                smoothness += curvature
            elif self._states_curvature is not None:
                smoothness = instance.known_smoothness
        return 2.0 * (1.0 + momentum) / smoothness if smoothness > 0 else math.inf

    @property
    def _states_curvature(self) -> str | None:
        """The name of the field, if any, in which a user can state a smaller L than the row bound gives."""
        return next((name for name in ("smoothness", "curvature") if hasattr(self, name)), None)

    def check_step_size(self, instance: Instance) -> None:
        """Refuse a given step size above `longest_step`, before any budget is spent.

        Raises:
            ValueError: the step size is larger; the message says which are allowed.
        """
        given = getattr(self, "step_size", None)
        if given is None or given <= self.longest_step(instance) * (1.0 + 1e-9):
            return
        penalty, better = instance.penalty_smoothness, ""
        why = f"the penalty's curvature is {penalty:.3g}"
        if self._states_curvature is not None:
            ridge = f", {penalty:.3g} of it from the penalty" if penalty > 0 else ""
            why = f"the objective's curvature may be {instance.known_smoothness:.3g}{ridge}"
            better = (
                f" If you know that the mean objective is less curved, give its `{self._states_curvature}`."
            )
        raise ValueError(
            f"step_size must be at most {self.longest_step(instance):.3g}, got {given!r}: {why}, and longer steps on "
            f"it diverge. Leave step_size open for a safe one.{better}"
        )

    # What a run takes, and what to expect ------------------------------------------------------------------------
    def seconds(self, problem: Problem, public: Public) -> float:
        """Rough time in seconds of a run of this configured solver, once the data are loaded."""
        if isinstance(problem.loss, BlackBox):
            values = self.loss_values(problem, public) * value_seconds(problem.loss, public)
            return values + self.releases() * RELEASE_SECONDS + self.matrix_seconds(public)
        own = None if isinstance(problem.loss, GLMLoss) else math.prod(problem.parameter_shape(public))
        passes = self.passes() * pass_seconds(public, problem.loss.outputs, own=own)
        return passes + self.releases() * RELEASE_SECONDS + self.matrix_seconds(public)

    def matrix_seconds(self, public: Public) -> float:
        """Rough time in seconds of products and decompositions of d x d matrices, beside the passes over data."""
        del public
        return 0.0

    def forecast(self, instance: Instance) -> Forecast:
        """The expected excess of this configured solver and notices, before data are read; by default nothing."""
        del instance
        return Forecast()

    def foreseen(self, instance: Instance) -> Forecast:
        """`forecast`, without a prediction for convex losses if the loss is known not to be convex."""
        found = self.forecast(instance)
        says_nothing = found.excess is None and found.bound is None
        if instance.problem.loss.convex is not False or not found.for_convex or says_nothing:
            return found
        meaning = f"no formula where the loss is not convex, as the {instance.problem.loss.name} loss"
        return replace(found, excess=None, excess_range=None, bound=None, meaning=meaning)

    def indicators(self, instance: Instance) -> Mapping[str, Finding]:
        """The indicators of every minimisation, see `common_indicators`."""
        return common_indicators(instance)

    def tells_usable(self, instance: Instance) -> bool:
        """Whether its releases will show how many units are usable, see `planning.row_length`; by public numbers."""
        del instance
        return False

    def announcement(self, instance: Instance) -> Plan:
        """The plan of `Program`, with notices of a weak signal and the declarations of a black box."""
        plan = super().announcement(instance)
        return replace(
            plan,
            notices=plan.notices + faint_signal(instance, plan.predicted_excess),
            black_box=declared_of_black_box(instance.problem.loss),
        )


def in_original(outcome: Outcome, coordinates: Coordinates) -> Outcome:
    """An outcome with its parameters mapped back; its findings stay as they are, and their meanings say so."""
    findings = {
        name: replace(finding, meaning=f"{finding.meaning} (in the coordinates it ran in)")
        for name, finding in outcome.findings.items()
    }
    return outcome._replace(params=coordinates.outward(outcome.params), findings=findings)


# ---- Solvers whose every step is one release over the data, and solvers under a filter ---------------------


@dataclass(frozen=True, kw_only=True)
class StepwiseSolver(Solver):
    """A solver of `steps` steps, each from one release of the same price: by default a Gaussian one over all units.

    Attributes:
        steps: T, the number of releases and steps; 0 returns the start and spends nothing.
    """

    steps: int = derived(at_least=0)

    def step_event(self, public: Public) -> Event:
        """What one step releases."""
        del public
        return Gaussian(self.noise_multiplier).event()

    def event(self, public: Public) -> Event:
        """One release a step."""
        return Repeated(self.step_event(public), self.steps)

    def releases(self) -> int:
        """One a step."""
        return self.steps


@dataclass(frozen=True, kw_only=True)
class FilteredSolver(Solver):
    """A solver whose releases are sums over all units, under a filter worth one Gaussian release of its multiplier."""

    @property
    def adaptive(self) -> bool:
        """How many there are, and with which noise, may follow what was released."""
        return True

    @property
    def makes(self) -> tuple[int, int]:
        """Nothing: it asks for sums over all units."""
        return 0, 0

    @property
    def rho(self) -> float:
        """What the filter holds, in zCDP; infinite without noise."""
        return 0.5 / self.noise_multiplier**2 if self.noise_multiplier else math.inf

    def event(self, public: Public) -> Event:
        """One Gaussian release, under which all others are made."""
        del public
        return Gaussian(self.noise_multiplier).event()
