"""A table as weighted records: what the best responses of a game add up to, for any number of columns."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privopt.problems.workload import Workload, cells_of, strides_of
from privopt.synthesis.leaves import as_leaves
from privopt.synthesis.rounding import systematic_counts


@dataclass(frozen=True, eq=False)
class Records:
    """Records and what each weighs.

    Attributes:
        levels: cells of each column.
        codes: (records, columns).
        weights: (records,) at least 0, of sum 1.
    """

    levels: tuple[int, ...]
    codes: NDArray[np.int64]
    weights: NDArray[np.float64]

    def marginal(self, columns: Sequence[int]) -> NDArray[np.float64]:
        """The weights of the cells of some columns, the first one running fastest."""
        cells = self._cells(columns)
        size = cells_of(self.levels, columns)
        return np.bincount(cells, weights=self.weights, minlength=size).astype(np.float64)

    def answers(self, workload: Workload) -> NDArray[np.float64]:
        """The answers of a workload on these columns."""
        if workload.queries is not None:
            return workload.queries[:, self._cells(range(len(self.levels)))] @ self.weights
        return np.concatenate([self.marginal(columns) for columns in workload.sets])

    def sample(self, rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """(rows, columns) codes in random order; a record's count is within 1 of `rows` times its weight."""
        counts = systematic_counts(self.weights, rows, rng)
        return rng.permutation(np.repeat(self.codes, counts, axis=0))

    def _cells(self, columns: Sequence[int]) -> NDArray[np.int64]:
        strides = np.array(strides_of(self.levels, columns), np.int64)
        return self.codes[:, list(columns)] @ strides


as_leaves(Records, "codes", "weights")
