"""Sums of the groups' losses over records, from their predictions: no row is copied, and sparse ones stay sparse."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpy.typing import NDArray
from scipy import sparse

from privopt.data.rows import dense_product, take_rows
from privopt.data.units import Units
from privopt.engine.general_path import block_length
from privopt.engine.rounding import BlockedSum
from privopt.queries.group_losses import GroupLosses, GroupLossScores

GroupSum = GroupLosses | GroupLossScores


def supports_groups(units: Units, query: object) -> bool:
    """Whether `group_sum` computes the query: on records, and no subclass, which may contribute in a way of its own."""
    return type(query) in (GroupLosses, GroupLossScores) and units.private_offsets is None


def group_sum(
    units: Units, query: GroupSum, private_positions: NDArray[np.int64] | None
) -> NDArray[np.float64]:
    """The clipped sum of the records' capped losses by group.

    Args:
        units: the data; a unit is a record.
        query: what to compute.
        private_positions: which units take part; None for all.
    Privacy:
        Every record's vector passes the query's own clip, as on the general path; absent records count for nothing.
        Blocks have one length, from public numbers, so that nobody's record changes how another's is rounded.
    """
    points = np.asarray(query.at, np.float64).reshape(-1, 1)
    count = units.private_count if private_positions is None else len(private_positions)
    entries = 2 * units.public.d + 6 * query.loss.groups + 8
    length = block_length(8 * entries, units.public, sampled=private_positions is not None)
    total = BlockedSum((query.loss.groups,))
    for start in range(0, count, length):
        stop = min(start + length, count)
        where = slice(start, stop) if private_positions is None else private_positions[start:stop]
        private_block: Any
        if isinstance(units.private_features, sparse.csr_array):
            private_block = units.private_features[where]
        else:
            private_block = take_rows(units.private_features, where).astype(np.float64)
        private_predictions = np.zeros(length)
        private_predictions[: stop - start] = (
            dense_product(private_block, points)
            if isinstance(private_block, np.ndarray)
            else private_block @ points
        )[:, 0]
        private_targets, private_mask = np.zeros(length), np.zeros(length, np.bool_)
        private_targets[: stop - start] = units.private_targets[where]
        private_mask[: stop - start] = units.private_present[where]
        total.add(
            np.asarray(_block_sum(query, private_predictions, private_targets, private_mask)), stop - start
        )
    return total.total()


@jax.jit
def _block_sum(
    query: GroupSum,
    private_predictions: Float[Array, " b"],
    private_targets: Float[Array, " b"],
    private_mask: Bool[Array, " b"],
) -> Float[Array, " groups"]:
    """The sum of a block of records' clipped vectors."""
    private_each = jax.vmap(query.contribution_at)(private_predictions, private_targets)
    private_clipped = jax.vmap(query.clip_unit)(private_each)
    return jnp.sum(jnp.where(private_mask[:, None], private_clipped, 0.0), axis=0)
