"""What a synthesizer is: a program over a curator that gives back a model of the table, from which rows are drawn."""

import abc
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.curator.transcript import Release, Transcript
from privopt.later import jax
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.planning.averaging import RELEASE_SECONDS, data_bytes, pass_seconds
from privopt.planning.cell_weights import MOST_CELLS
from privopt.problems.workload import Workload, cells_of, codes_of, marginal_of, strides_of
from privopt.public import Public
from privopt.result import Outcome, Result
from privopt.solvers.fields import derived
from privopt.solvers.needs import Need
from privopt.solvers.program import Program
from privopt.synthesis.mirror_fit import AnswerMap


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
        self.check_applicable(workload, curator.public)
        return self.concluded(curator, workload, lambda: self.run(curator, workload))


# ---- Models as JAX pytrees, so that results are compared and printed like those of other programs ----------


def as_leaves(model: type[Any], *arrays: str) -> None:
    """Make a model's arrays the leaves of a JAX pytree; its levels are part of the structure."""

    def flatten(node: Any) -> tuple[tuple[Any, ...], Any]:
        return tuple(getattr(node, name) for name in arrays), node.levels

    def unflatten(levels: Any, leaves: Any) -> Any:
        return model(levels, *leaves)

    jax.tree_util.register_pytree_node(model, flatten, unflatten)


# ---- What a transcript says of marginals: the released ones, with the noise that was added to each ---------


@dataclass(frozen=True, eq=False)
class ReleasedMarginal:
    """A marginal with Gaussian noise.

    Attributes:
        columns: which, the first one running fastest.
        shares: of the public n in each cell, with the noise.
        stddev: of the noise on a cell.
    """

    columns: tuple[int, ...]
    shares: NDArray[np.float64]
    stddev: float

    def onto(self, levels: Sequence[int], columns: Sequence[int]) -> "ReleasedMarginal":
        """The marginal of some of its columns: cells are added up, and so is their noise."""
        codes = codes_of(levels, self.columns)
        places = [self.columns.index(column) for column in columns]
        index = codes[:, places] @ np.array(strides_of(levels, columns), np.int64)
        size = cells_of(levels, columns)
        shares = np.bincount(index, weights=self.shares, minlength=size)
        return ReleasedMarginal(
            tuple(columns), shares.astype(np.float64), self.stddev * (len(self.shares) / size) ** 0.5
        )


def released_marginals(transcript: Transcript, levels: Sequence[int]) -> tuple[ReleasedMarginal, ...]:
    """Every marginal that was released, in order; those measured twice stand twice.

    Args:
        transcript: of a synthesizer's run.
        levels: cells of each column of the table.
    """
    return tuple(marginal for release in transcript for marginal in _marginals(release, levels))


def _marginals(release: Release, levels: Sequence[int]) -> Iterable[ReleasedMarginal]:
    """The marginals of one line: of the workload that was asked for, which need not be the one of the run.

    An answer of another kind, or whose values were not kept, or that has no noise of one scale, has none.
    """
    asked = release.about
    if not isinstance(asked, Workload) or asked.levels != tuple(levels) or not asked.sets:
        return
    if release.released is None or release.scale is None:
        return
    for released, scale in zip(release.released, release.scale, strict=True):
        shares = np.ravel(released)
        if shares.size != asked.size:  # of a query of the user's own that is derived from one of these
            continue
        for columns, part in asked.marginals(shares):
            yield ReleasedMarginal(columns, part, float(scale))


def released_total(measured: Sequence[ReleasedMarginal]) -> float:
    """The total weight of the units over n, as the released marginals have it."""
    return total_weight([one.shares for one in measured], [one.stddev for one in measured])


def estimated(
    measured: Iterable[ReleasedMarginal], levels: Sequence[int], columns: Sequence[int]
) -> ReleasedMarginal | None:
    """The best estimate of a marginal from those released that hold its columns; None where none does.

    Weighted by precision; without noise the first one.
    """
    holding = [one.onto(levels, columns) for one in measured if set(columns) <= set(one.columns)]
    if not holding:
        return None
    exact = [one for one in holding if one.stddev == 0]
    if exact:
        return exact[0]
    precisions = np.array([one.stddev**-2.0 for one in holding])
    shares = (
        sum(weight * one.shares for weight, one in zip(precisions, holding, strict=True)) / precisions.sum()
    )
    return ReleasedMarginal(tuple(columns), np.asarray(shares), float(precisions.sum() ** -0.5))


# ---- How much of the public n the units weigh: 1, unless the counts say otherwise --------------------------


CLEARLY = 4.0  # standard deviations
SMALLEST = 1e-3


def total_weight(marginals: Sequence[NDArray[np.float64]], noises: Sequence[float]) -> float:
    """The total weight of the units over n, from released marginals.

    Fewer units than the public n, and users whose averages weigh less than 1, make every marginal sum to less than 1.
    The sums' mean by precision is used where it is clearly not 1, since it is noisy and 1 is mostly right.

    Args:
        marginals: released marginals, as shares of n.
        noises: the standard deviation of a cell of each.
    """
    variances = [len(one) * noise**2 for one, noise in zip(marginals, noises, strict=True)]
    if not variances:
        return 1.0
    if min(variances) == 0.0:
        return max(float(np.sum(marginals[int(np.argmin(variances))])), SMALLEST)
    precision = math.fsum(1.0 / one for one in variances)
    mean = (
        math.fsum(float(np.sum(one)) / var for one, var in zip(marginals, variances, strict=True)) / precision
    )
    if abs(mean - 1.0) <= CLEARLY / math.sqrt(precision):
        return 1.0
    return min(max(mean, SMALLEST), 1.0)


# ---- Counts of a given total that are close to given weights: what a sample of rows is drawn by ------------


def systematic_counts(
    weights: NDArray[np.float64], total: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Whole numbers that sum to `total` and have the expectations `total * weights / sum(weights)`.

    Every count is its expectation rounded up or down, and so is the sum of every run of neighbours.

    Args:
        weights: at least 0, with a positive sum.
        total: at least 0.
        rng: public randomness; one uniform is drawn.
    Source:
        Madow 1949 (systematic sampling); Carpenter, Clifford, Fearnhead 1999 (as a resampler of low variance).
    """
    ends = np.cumsum(weights)
    marks = np.floor(ends * (total / ends[-1]) + rng.random())
    marks[np.nonzero(weights)[0][-1] :] = total  # the last cell that has weight takes what rounding leaves
    return np.diff(np.minimum(marks, total), prepend=0.0).astype(np.int64)


# ---- A table as weights of all cells of the joint table: for up to about a million cells -------------------


@dataclass(frozen=True, eq=False)
class Histogram:
    """The weight of every cell of the joint table, the first column running fastest.

    Attributes:
        levels: cells of each column.
        weights: (N,) at least 0, of sum 1.
    """

    levels: tuple[int, ...]
    weights: NDArray[np.float64]

    @classmethod
    def uniform(cls, levels: tuple[int, ...]) -> "Histogram":
        """Every cell weighs the same."""
        cells = int(np.prod(levels))
        return cls(levels, np.full(cells, 1.0 / cells))

    def marginal(self, columns: Sequence[int]) -> NDArray[np.float64]:
        """The weights of the cells of some columns."""
        return marginal_of(self.weights, self.levels, tuple(columns))

    def answers(self, workload: Workload) -> NDArray[np.float64]:
        """The answers of a workload on these columns."""
        return AnswerMap(workload).answers(self.weights)

    def sample(self, rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """(rows, columns) codes in random order; every cell's count is within 1 of `rows` times its weight."""
        counts = systematic_counts(self.weights, rows, rng)
        drawn = rng.permutation(np.repeat(np.arange(len(counts)), counts))
        return codes_of(self.levels, range(len(self.levels)))[drawn]


as_leaves(Histogram, "weights")
