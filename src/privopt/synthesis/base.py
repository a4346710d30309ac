"""What a synthesizer is: a program over a curator that gives back a model of the table, from which rows are drawn."""

import abc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import jax
import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import leaf_counts
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.exponential import ExponentialMechanism
from privopt.planning.effort import RELEASE_SECONDS, data_bytes, pass_seconds
from privopt.planning.synthesis import MOST_CELLS
from privopt.planning.task import Task
from privopt.precision import double_precision
from privopt.problems.workload import Workload
from privopt.public import Public
from privopt.result import Outcome, Result
from privopt.solvers.fields import derived
from privopt.solvers.needs import Need
from privopt.solvers.program import Program


class Model(Protocol):
    """A table as a public object: what synthetic rows are drawn from."""

    @property
    def levels(self) -> tuple[int, ...]:
        """Cells of each column."""
        ...

    def marginal(self, columns: Sequence[int]) -> NDArray[np.float64]:
        """The weights of the cells of some columns, the first one running fastest."""
        ...

    def answers(self, workload: Workload) -> NDArray[np.float64]:
        """The answers of a workload on these columns."""
        ...

    def sample(self, rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """(rows, columns) codes, in random order."""
        ...


@dataclass(frozen=True)
class FewCells(Need):
    """A joint table that is small enough for a weight of every cell."""

    sentence: str = (
        "{title} weighs every cell of the joint table, and there are {cells:.3g}, more than {most:,}; use "
        "adaptive-marginals, fewer columns or coarser bins"
    )

    def is_met(self, problem: Workload, public: Public) -> bool:
        del public
        return problem.universe <= MOST_CELLS

    def refusal(self, program: Program[Any], problem: Workload, public: Public) -> str | None:
        """See `Need.refusal`."""
        said = super().refusal(program, problem, public)
        return said and said.format(title=program.title, cells=problem.universe, most=MOST_CELLS)


@dataclass(frozen=True, kw_only=True)
class Synthesizer(Program[Workload]):
    """A program that models a coded table; `run` gives back a `Model`.

    A subclass divides its budget into shares of zCDP. A Gaussian release or a choice of share w costs
    w / (2 noise_multiplier^2).

    Attributes:
        noise_multiplier: z; the whole run costs the zCDP of one Gaussian release with this noise over sensitivity.
    """

    noise_multiplier: float = derived(at_least=0)

    @abc.abstractmethod
    def run(self, curator: Curator, workload: Workload) -> Outcome:
        """The program: arithmetic on releases."""

    def gaussian(self, share: float) -> Gaussian:
        """Noise that costs a share of the whole."""
        return Gaussian(self.noise_multiplier / share**0.5)

    def choice(self, share: float) -> ExponentialMechanism:
        """A choice that costs a share of the whole: bounded range e with e^2 / 8 = share / (2 z^2)."""
        return ExponentialMechanism(2.0 * share**0.5 / self.noise_multiplier if self.is_noisy else np.inf)

    @property
    def is_noisy(self) -> bool:
        """Whether anything is protected."""
        return self.noise_multiplier > 0

    def applicable(self, problem: Workload, public: Public) -> str | None:
        """A coded table with the workload's columns, and what else it needs."""
        if public.levels == problem.levels:
            return super().applicable(problem, public)
        have = f"columns of {public.levels} cells" if public.levels else "rows of numbers"
        return f"the workload is about columns of {problem.levels} cells, and the data have {have}"

    def passes(self) -> float:
        """One: the answers are counted once and held."""
        return 1.0

    def seconds(self, problem: Workload, public: Public) -> float:
        """Rough time of a run on data that are loaded."""
        counting = pass_seconds(public, max(1, len(problem.sets)))
        return counting + self.releases() * RELEASE_SECONDS + self.fit_seconds(problem)

    @abc.abstractmethod
    def fit_seconds(self, workload: Workload) -> float:
        """Rough time of the public arithmetic."""

    def memory_bytes(self, problem: Workload, public: Public) -> int:
        """The codes, the held answers, and a few tables of the model's."""
        weights = problem.universe if problem.universe <= 2**20 else 0
        return data_bytes(public) + 3 * problem.memory_bytes + 64 * weights

    def calibrated(self, task: Task[Workload]) -> Self:
        """The filled program with the noise that the budget allows."""
        if self.is_set("noise_multiplier"):
            return self
        if not task.is_private:
            return replace(self, noise_multiplier=0.0)
        once = replace(self, noise_multiplier=1.0)
        if not any(leaf_counts(once.event(task.public))):
            return once  # nothing is released
        multiplier = calibrate(
            lambda z: replace(self, noise_multiplier=z).event(task.public), task.budget, task.public.relation
        )
        return replace(self, noise_multiplier=float(multiplier))

    def solve(self, curator: Curator, workload: Workload) -> Result:
        """Model the table.

        Args:
            curator: answers the releases.
            workload: what the model shall answer well.
        Returns:
            `params` is the `Model`.
        Raises:
            ValueError: the program was not configured, or the table has other columns.
            BudgetExceeded, PlanMismatch: the curator refused a release.
        """
        self.check_configured()
        self.check_applicable(workload, curator.public)
        if jax.config.read("jax_enable_x64"):
            outcome = self.run(curator, workload)
        else:
            with double_precision():
                outcome = self.run(curator, workload)
        return Result(outcome.params, outcome.status, curator.transcript, findings=outcome.findings)
