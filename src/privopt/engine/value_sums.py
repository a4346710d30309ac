"""Sums of contributions that know losses by their values: on the host, or from one product of rows and points."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray
from scipy import sparse

from privopt.data.rows import dense_product, take_rows
from privopt.data.units import Units
from privopt.engine.general_path import UnitChunk, contributions_of_records, values_length
from privopt.engine.rounding import BlockedSum
from privopt.problems.black_box import BlackBox, CallsOfPoints, quiet_calls
from privopt.problems.losses import GLMLoss
from privopt.queries.base import MeanQuery
from privopt.queries.values import ValueSum, of_predictions


def host_contributions(query: ValueSum, chunk: UnitChunk) -> NDArray[np.float64]:
    """The clipped contribution of each unit of a chunk, (c, ...), by a loss that is called on the host.

    Privacy:
        The callable meets one record at a time, see `CallsOfPoints`; what it answers, or that it raises, becomes values
        of that record alone. From there on it is the general path: an average over the unit's records, zero if it is
        not finite, clipped.
    """
    loss = query.loss
    assert isinstance(loss, BlackBox)
    points = np.asarray(query.points(), np.float64)
    calls = CallsOfPoints(loss, points)
    private_values = np.full((*chunk.private_mask.shape, len(points)), np.nan)
    with quiet_calls():
        for unit, record in np.argwhere(chunk.private_mask):
            private_values[unit, record] = calls(
                chunk.private_features[unit, record], float(chunk.private_targets[unit, record])
            )
    # Rows have been used: the compiled rest does not depend on how many columns they have.
    private_rest = chunk._replace(private_features=np.zeros((len(private_values), 1, 1)))
    return np.asarray(_from_values(query, private_values, private_rest))


def supports_predictions(units: Units, query: MeanQuery) -> bool:
    """Whether `prediction_sum` computes the query: values of a generalised-linear loss, a unit being a record."""
    return isinstance(query, ValueSum) and isinstance(query.loss, GLMLoss) and units.private_offsets is None


def prediction_sum(
    units: Units, query: ValueSum, private_positions: NDArray[np.int64] | None
) -> NDArray[np.float64]:
    """The clipped sum over records whose loss is a function of linear predictions: one product for all points.

    Args:
        units: the data; a unit is a record.
        query: what to compute.
        private_positions: which units take part; None for all.
    Privacy:
        As on the general path; sparse rows stay sparse. Blocks have one length, from public numbers, so that nobody's
        record changes how another's is rounded.
    """
    loss = query.loss
    assert isinstance(loss, GLMLoss)
    points = np.asarray(query.points(), np.float64)
    columns = points.reshape(len(points), units.public.d, loss.outputs)
    matrix = np.ascontiguousarray(np.moveaxis(columns, 1, 0).reshape(units.public.d, -1))
    count = units.private_count if private_positions is None else len(private_positions)
    length = values_length(query, units.public, sampled=private_positions is not None)
    total: BlockedSum | None = None
    for start in range(0, max(count, 1), length):
        stop = min(start + length, count)
        where = slice(start, stop) if private_positions is None else private_positions[start:stop]
        private_block: Any
        if isinstance(units.private_features, sparse.csr_array):
            private_block = units.private_features[where]
        else:
            private_block = take_rows(units.private_features, where).astype(np.float64)
        private_predictions = np.zeros((length, matrix.shape[1]))
        private_predictions[: stop - start] = (
            dense_product(private_block, matrix)
            if isinstance(private_block, np.ndarray)
            else private_block @ matrix
        )
        private_targets, private_mask = np.zeros(length), np.zeros(length, np.bool_)
        private_targets[: stop - start] = units.private_targets[where]
        private_mask[: stop - start] = units.private_present[where]
        private_rest = UnitChunk(
            np.zeros((length, 1, 1)),
            private_targets[:, None],
            private_mask[:, None],
            np.ones(length),
            np.zeros(length, np.int32),
        )
        private_part = np.asarray(_from_predictions(query, private_predictions, private_rest))
        total = BlockedSum(private_part.shape) if total is None else total
        total.add(private_part, stop - start)
    assert total is not None
    return total.total()


@jax.jit
def _from_values(
    query: ValueSum, private_values: Float[Array, "c M m"], chunk: UnitChunk
) -> Float[Array, "c ..."]:
    return contributions_of_records(query, chunk, jax.vmap(jax.vmap(query.of_values))(private_values))


@jax.jit
def _from_predictions(
    query: ValueSum, private_predictions: Float[Array, "b P"], chunk: UnitChunk
) -> Float[Array, "..."]:
    """The sum of a block of records' clipped vectors."""
    loss = query.loss
    assert isinstance(loss, GLMLoss)
    rows = private_predictions.shape[0]
    shape = (rows, -1) if loss.outputs == 1 else (rows, -1, loss.outputs)
    private_at = jnp.reshape(private_predictions, shape)
    private_values = jax.vmap(partial(of_predictions, loss))(private_at, chunk.private_targets[:, 0])
    private_each = jax.vmap(query.of_values)(private_values)[:, None]
    return jnp.sum(contributions_of_records(query, chunk, private_each), axis=0)
