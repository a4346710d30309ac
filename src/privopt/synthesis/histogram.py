"""A table as weights of all cells of the joint table: for up to about a million cells."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privopt.problems.workload import Workload, codes_of, marginal_of
from privopt.synthesis.leaves import as_leaves
from privopt.synthesis.marginal_map import AnswerMap
from privopt.synthesis.rounding import systematic_counts


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
