"""Sums over a coded table: cells are counted as whole numbers, without a vector for each record."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.data.rows import take_rows
from privopt.data.units import Units
from privopt.problems.workload import cells_of, strides_of
from privopt.queries.base import MeanQuery
from privopt.queries.marginals import MarginalMeans
from privopt.queries.query_means import QueryMeans

_CELLS_AT_ONCE = 2048  # of a joint table that queries are added over
_SUM_BITS = 51  # a sum of so many bits is exact in float64, and has room for twice as many units


def supports_cells(query: MeanQuery) -> bool:
    """Whether `cell_sum` computes the query: not a subclass, which may compute something else."""
    return type(query) in (MarginalMeans, QueryMeans)


def cell_sum(
    units: Units, query: MeanQuery, private_positions: NDArray[np.int64] | None
) -> NDArray[np.float64]:
    """The sum of the units' contributions.

    Args:
        units: coded, with the columns of the query.
        query: what to compute; `supports_cells` accepts it.
        private_positions: which units take part; None for all.
    Privacy:
        Records are counted, so a marginal's sum is exact. A user's share in a cell is rounded down to a multiple of a
        power of two that depends on n alone, so that it is a function of their records; the sum of such multiples is
        exact in float64 in any order. Answers of queries are sums over cells: see `QueryMeans`.
    """
    private_rows: Any = slice(None) if private_positions is None else units.private_rows_of(private_positions)
    private_codes = np.ascontiguousarray(take_rows(units.private_features, private_rows).T)
    private_shares = _shares(units)
    if private_shares is not None:
        private_shares = private_shares[private_rows]
    if isinstance(query, MarginalMeans):
        private_counts = [
            _counts(private_codes, units.public.levels, columns, private_shares)
            for columns in query.workload.sets
        ]
        return np.concatenate(private_counts)
    assert isinstance(query, QueryMeans)
    every = tuple(range(units.public.d))
    return _answered(query, _counts(private_codes, units.public.levels, every, private_shares))


def _counts(
    private_codes: NDArray[Any],
    levels: tuple[int, ...],
    columns: tuple[int, ...],
    private_shares: NDArray[np.float64] | None,
) -> NDArray[np.float64]:
    """How many records, or what shares of users, stand in each cell of a marginal."""
    private_index = np.zeros(private_codes.shape[1], np.int64)
    for column, stride in zip(columns, strides_of(levels, columns), strict=True):
        private_index += private_codes[column].astype(np.int64) * stride
    private_counts = np.bincount(private_index, private_shares, minlength=cells_of(levels, columns))
    return private_counts.astype(np.float64)


def _shares(units: Units) -> NDArray[np.float64] | None:
    """What each record adds, its unit's weight over the unit's records, on the grid; None if all are 1."""
    if units.private_offsets is None or units.private_weights is None:
        return None
    grid = 2.0 ** (_SUM_BITS - math.ceil(math.log2(units.public.n)))
    private_counts = np.diff(units.private_offsets)
    private_shares = np.floor(units.private_weights / np.maximum(private_counts, 1) * grid) / grid
    return np.repeat(private_shares, private_counts)


def _answered(query: QueryMeans, private_counts: NDArray[np.float64]) -> NDArray[np.float64]:
    """The queries' centred values, summed over the cells."""
    values, total = query.workload.queries, np.zeros(query.workload.size)
    for start in range(0, len(private_counts), _CELLS_AT_ONCE):
        here = slice(start, start + _CELLS_AT_ONCE)
        total += (values[:, here] - 0.5) @ private_counts[here]
    return total
