"""A table as a mixture of tables with independent columns: for any number of columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.problems.workload import Workload
from privopt.synthesis.leaves import as_leaves
from privopt.synthesis.rounding import systematic_counts

Matrix = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ProductMixture:
    """x(z) = sum_k weights_k prod_i shares_k,i(z_i): K products of independent columns.

    Attributes:
        levels: cells of each column; D is their sum.
        weights: (K,) at least 0, of sum 1.
        shares: (K, D) the columns of each product one after the other, each of sum 1.
    """

    levels: tuple[int, ...]
    weights: NDArray[np.float64]
    shares: Matrix

    @classmethod
    def independent(cls, columns: Sequence[NDArray[np.float64]]) -> "ProductMixture":
        """One product: columns that do not depend on one another."""
        return cls(tuple(len(column) for column in columns), np.ones(1), np.concatenate(columns)[None])

    @property
    def places(self) -> tuple[slice, ...]:
        """Where the cells of each column stand among the D."""
        return column_places(self.levels)

    def marginal(self, columns: Sequence[int]) -> NDArray[np.float64]:
        """The weights of the cells of some columns, the first one running fastest."""
        if not columns:
            return np.ones(1)
        places = self.places
        rows = row_products([self.shares[:, places[column]] for column in columns[1:]], self.weights)
        return np.ravel(rows.T @ self.shares[:, places[columns[0]]])

    def pairs(self) -> Matrix:
        """(D, D) the marginals of all pairs of columns at once; those of single columns on the diagonal blocks."""
        pairs = (self.shares * self.weights[:, None]).T @ self.shares
        single = self.weights @ self.shares
        for place in self.places:
            pairs[place, place] = np.diag(single[place])
        return pairs

    def answers(self, workload: Workload) -> NDArray[np.float64]:
        """The answers of a workload on these columns."""
        if workload.queries is not None:
            return workload.queries @ self.marginal(range(len(self.levels)))
        return np.concatenate([self.marginal(columns) for columns in workload.sets])

    def sample(self, rows: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """(rows, columns) codes in random order.

        A product's number of rows, and how often each code stands in its rows, are within 1 of what the model says; the
        codes of a product are then matched at random.
        """
        codes = np.empty((rows, len(self.levels)), np.int64)
        start, places = 0, self.places
        for product, count in enumerate(systematic_counts(self.weights, rows, rng).tolist()):
            if count == 0:
                continue
            for column, place in enumerate(places):
                often = systematic_counts(self.shares[product, place], count, rng)
                codes[start : start + count, column] = rng.permutation(
                    np.repeat(np.arange(len(often)), often)
                )
            start += count
        return rng.permutation(codes)


def column_places(levels: Sequence[int]) -> tuple[slice, ...]:
    """Where each column's cells stand when those of all columns stand one after the other."""
    ends = np.cumsum((0, *levels)).tolist()
    return tuple(slice(start, end) for start, end in pairwise(ends))


def row_products(factors: Sequence[Matrix], weights: NDArray[np.float64]) -> Matrix:
    """(K, cells) the weighted products of the factors' entries row by row, the first factor running fastest."""
    rows: Any = weights[:, None]
    for factor in reversed(factors):
        rows = (rows[:, :, None] * factor[:, None, :]).reshape(len(weights), -1)
    return rows


as_leaves(ProductMixture, "weights", "shares")
