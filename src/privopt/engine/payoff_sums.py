"""The sum of a bilinear game's payoffs over units: products of blocks of rows in place of one matrix a record."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.data.rows import Positions, take_rows
from privopt.data.units import Units
from privopt.engine.rounding import BLOCK_ROWS, BlockedSum
from privopt.problems.saddle import BilinearGame
from privopt.queries.payoff_means import PayoffMeans, payoff_size

_PRODUCT_ROWS = 1024  # rows of one product
_PRODUCTS = 2048  # products that are added before their sum is set aside


def supports_payoffs(query: object) -> bool:
    """Whether `payoff_sum` computes the query: no subclass, which may contribute or clip in a way of its own."""
    return type(query) is PayoffMeans and type(query.game) is BilinearGame


def payoff_sum(
    units: Units, query: PayoffMeans, private_positions: NDArray[np.int64] | None
) -> NDArray[np.float64]:
    """The sum of the units' payoffs, each the average of their records' with the unit's weight.

    Args:
        units: the data.
        query: what to compute.
        private_positions: which units take part; None for all.
    Privacy:
        Every entry of a stored row is moved into the game's bounds, one that is not finite cannot be stored; absent
        rows count for nothing. So a unit's sum is within the query's radius: no entry of it passes b^2. Rounding: an
        entry of a contribution passes at most 4 roundings of its own, 1024 additions in its product, 2048 between
        products, and one for each 2^21 rows of its part: no more than `rounding_bound` supposes, as long as the users
        of a part have 2^31 rows at most.
    """
    game = query.game
    private_shares = _shares(units)
    private_rows = None if private_positions is None else units.private_rows_of(private_positions)
    count = len(units.private_norms) if private_rows is None else len(private_rows)
    total = BlockedSum((payoff_size(game),))
    rows, columns = game.rows, game.columns
    half = 0.5 if game.offsets else 1.0
    for start in range(0, count, _PRODUCT_ROWS):
        stop = min(start + _PRODUCT_ROWS, count)
        where = slice(start, stop) if private_rows is None else private_rows[start:stop]
        private_block = np.clip(_block(units, where), *game.entries)
        private_weights = half * private_shares[where]
        private_weighted = private_block[:, :rows] * private_weights[:, None]
        private_sum = np.zeros(payoff_size(game))
        private_sum[: rows * columns] = (private_weighted.T @ private_block[:, rows : rows + columns]).ravel()
        if game.offsets:
            private_sum[rows * columns :] = private_weights @ private_block[:, rows + columns :]
        total.add(private_sum, BLOCK_ROWS // _PRODUCTS)
    return total.total()


def _block(units: Units, where: Positions) -> NDArray[np.float64]:
    private_features: Any = units.private_features
    if isinstance(private_features, sparse.csr_array):
        return private_features[where].toarray().astype(np.float64)
    return take_rows(private_features, where).astype(np.float64)


def _shares(units: Units) -> NDArray[np.float64]:
    """What each row counts: 1 for a record, its part of a user's weighted average, 0 for an absent one."""
    private_present = units.private_present.astype(np.float64)
    if units.private_offsets is None or units.private_weights is None:
        return private_present
    private_counts = np.diff(units.private_offsets)
    return private_present * np.repeat(units.private_weights / np.maximum(private_counts, 1), private_counts)
