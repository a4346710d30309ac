"""The sum of `w a a^T` over units: products of float64 blocks of rows in place of one matrix a record."""

import math
from typing import Any

import jax
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray
from scipy import sparse

from privopt.data.rows import Positions, dense_product, take_rows
from privopt.data.units import Units
from privopt.engine.rounding import BLOCK_ROWS, BlockedSum
from privopt.queries.base import shrunk_radius
from privopt.queries.safeguards import clips_by_itself
from privopt.queries.second_moment import WeightedSecondMoment

_PRODUCT_ROWS = 1024  # rows of one product
_PRODUCTS = 2048  # products that are added before their sum is set aside
_SPARSE_COLUMNS = 128  # CSR rows with fewer columns are multiplied as dense blocks


def supports_second_moment(query: WeightedSecondMoment) -> bool:
    """Whether `second_moment_sum` computes the query.

    Privacy:
        Not a subclass that contributes or clips in a way of its own, which its sensitivity may rest on.
    """
    return type(query).record_contribution is WeightedSecondMoment.record_contribution and clips_by_itself(
        type(query)
    )


def second_moment_sum(
    units: Units, query: WeightedSecondMoment, private_positions: NDArray[np.int64] | None
) -> NDArray[np.float64]:
    """The packed sum of the units' second moments, each within the query's radius.

    Args:
        units: the data; `supports_second_moment` accepts them.
        query: what to compute.
        private_positions: which units take part; None for all.
    Privacy:
        A row a of weight w counts as `s a` with s^2 = c min(w, aim / |a|^2), c its share of its unit's average (1 for
        a record) and |a| rounded up. A unit's matrix, a sum of (s a)(s a)^T, is thus positive semidefinite and within
        the radius. Rounding: an entry of a contribution passes at most 12 roundings of its own, 1024 additions in its
        product, 2048 between products, and one for each 2^21 rows of its part: no more than `rounding_bound` supposes,
        as long as the users of a part have 2^31 rows at most.
    """
    d = units.public.d
    aim = float(shrunk_radius(query.radius()))
    private_shares = _shares(units)
    private_rows = None if private_positions is None else units.private_rows_of(private_positions)
    count = len(units.private_norms) if private_rows is None else len(private_rows)
    total = BlockedSum((d, d))
    for start in range(0, count, _PRODUCT_ROWS):
        stop = min(start + _PRODUCT_ROWS, count)
        where = slice(start, stop) if private_rows is None else private_rows[start:stop]
        private_block = _block(units, where)
        private_caps = _quotient(aim, units.private_norms[where] * units.private_norms[where])
        private_scales = np.minimum(
            _weights(query, private_block, units.private_targets[where]), private_caps
        )
        if private_shares is not None:
            private_scales *= private_shares[where]
        total.add(_product(private_block, np.sqrt(private_scales)), BLOCK_ROWS // _PRODUCTS)
    private_sum = total.total()
    upper, columns = np.triu_indices(d)
    private_packed = private_sum[upper, columns]
    private_packed[upper != columns] *= math.sqrt(2.0)
    return private_packed


def _block(units: Units, where: Positions) -> Any:
    """Rows in float64, dense unless they are wide and sparse."""
    private_features = units.private_features
    if isinstance(private_features, sparse.csr_array) and units.public.d > _SPARSE_COLUMNS:
        return private_features[where].astype(np.float64)
    return take_rows(private_features, where).astype(np.float64)


def _shares(units: Units) -> NDArray[np.float64] | None:
    """The c of each row; None if all are 1."""
    if units.private_offsets is None or units.private_weights is None:
        return None
    private_counts = np.diff(units.private_offsets)
    return np.repeat(units.private_weights / np.maximum(private_counts, 1), private_counts)


def _quotient(aim: float, private_squares: NDArray[np.float64]) -> NDArray[np.float64]:
    """aim / |a|^2, infinite for a zero row."""
    with np.errstate(all="ignore"):
        return np.where(private_squares > 0, aim / private_squares, np.inf)


def _weights(
    query: WeightedSecondMoment, private_block: Any, private_targets: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The w of each row of a block, at least 0 and finite."""
    point = query.point()
    if point is None:
        return np.ones(len(private_targets))
    column = np.asarray(point, np.float64)[:, None]
    dense = isinstance(private_block, np.ndarray)
    private_predictions = dense_product(private_block, column) if dense else private_block @ column
    private_padded = np.zeros((2, _PRODUCT_ROWS))
    private_padded[:, : len(private_targets)] = private_predictions[:, 0], private_targets
    private_weights = np.asarray(_row_weights(query, private_padded[0], private_padded[1]))
    private_kept = private_weights[: len(private_targets)]
    return np.where((private_kept > 0) & np.isfinite(private_kept), private_kept, 0.0)


@jax.jit
def _row_weights(query: WeightedSecondMoment, private_predictions: Array, private_targets: Array) -> Array:
    return query.row_weights(private_predictions, private_targets)


def _product(private_block: Any, private_scales: NDArray[np.float64]) -> NDArray[np.float64]:
    """`B^T B` of the block with scaled rows, which it overwrites."""
    if isinstance(private_block, np.ndarray):
        private_block *= private_scales[:, None]
        return private_block.T @ private_block
    private_block.data *= np.repeat(private_scales, np.diff(private_block.indptr))
    return (private_block.T @ private_block).toarray()
