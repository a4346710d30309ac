"""What a compiled loop needs of the engine: the rows as arrays, and the clipped sum over drawn units as pure JAX."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from privopt.data.grid import GridRows
from privopt.data.rows import aligned_zeros
from privopt.data.units import Units
from privopt.engine.exact_sum import ExactSum
from privopt.engine.general_path import UnitChunk, row_form_sum, unit_contributions
from privopt.engine.rounding import BLOCK_ROWS, PART_UNITS
from privopt.precision import double_precision
from privopt.public import INTEGER_STORAGES, Public, Relation
from privopt.queries.base import MeanQuery
from privopt.queries.safeguards import row_form_of

_REPLAYED_ENTRIES = 2**24


class TracedRows(NamedTuple):
    """Dense records, the arrays of a compiled loop."""

    private_features: Float[Array, "n d"] | Int[Array, "n d"]  # as stored
    private_targets: Float[Array, " n"]
    private_norms: Float[Array, " n"]
    private_present: Bool[Array, " n"]
    steps: Float[Array, " d"] | None = None  # of rows on a grid

    def of_rows(self, part: Callable[[Array], Array]) -> "TracedRows":
        """Some of the records: `part` takes them from an array that has one entry a record."""
        return TracedRows(
            part(self.private_features),
            part(self.private_targets),
            part(self.private_norms),
            part(self.private_present),
            self.steps,
        )


def traced_arrays(units: Units) -> TracedRows:
    """The stored rows as JAX arrays; the feature matrix is not copied. Of no records, one that is absent.

    A block that was drawn may have room for nobody; it counts as one absent record, since an axis of length 0 has no
    positions to take.

    Raises:
        ValueError: the rows are sparse, or units are users; such loops run eagerly.
    """
    private_features, steps = units.private_features, None
    if isinstance(private_features, GridRows):
        private_features, steps = private_features.private_steps, private_features.steps
    if not isinstance(private_features, np.ndarray) or units.public.unit != "record":
        raise ValueError(
            "a compiled loop needs dense records, one for each unit: run this loop with `release` instead."
        )
    if units.private_count == 0:
        return _absent(1, units.public)
    with double_precision():
        return TracedRows(
            jax.device_put(private_features, may_alias=True),  # stored aligned, and never written again
            jnp.asarray(units.private_targets),
            jnp.asarray(units.private_norms),
            jnp.asarray(units.private_present),
            None if steps is None else jnp.asarray(steps),
        )


def traced_shapes(public: Public) -> TracedRows:
    """Arrays like those of `traced_arrays`, of absent records: a replay runs the same program and holds no data.

    One record stands for all where nothing public says how many there are (under add-or-remove-one, n may be far more),
    and where they would take more than 64 MB: a replay looks at none of them. Otherwise there are n, so that a replay
    beside the run finds its program compiled.
    """
    fits = public.relation is Relation.REPLACE_ONE and public.n * public.d <= _REPLAYED_ENTRIES
    return _absent(public.n if fits else 1, public)


def _absent(rows: int, public: Public) -> TracedRows:
    with double_precision():
        return TracedRows(
            jnp.asarray(aligned_zeros(rows, public.d, public.storage)),
            jnp.zeros(rows, jnp.float64),
            jnp.zeros(rows, jnp.float64),
            jnp.zeros(rows, jnp.bool_),
            jnp.ones(public.d, jnp.float64) if public.storage in INTEGER_STORAGES else None,
        )


def traced_sum(
    query: MeanQuery, public: Public, arrays: TracedRows, private_indices: Int[Array, " m"] | None = None
) -> Float[Array, "..."]:
    """The sum of clipped contributions of the units at some positions. Pure JAX.

    Args:
        query: what to compute.
        public: the public side of the data.
        arrays: from `traced_arrays`.
        private_indices: positions, padded with the number of rows; None for every unit.
    Privacy:
        A padding index counts as an absent record. Blocks of at most `BLOCK_ROWS` units are summed, then added up in
        parts, as `rounding_bound` supposes.
    """
    rows = arrays.private_features.shape[0]
    count = rows if private_indices is None else private_indices.shape[0]
    if private_indices is None or count > BLOCK_ROWS:
        return _scan(query, public, arrays, private_indices, count)
    return _sum_at(query, public, arrays, private_indices)


def _scan(
    query: MeanQuery, public: Public, arrays: TracedRows, private_indices: Int[Array, " m"] | None, count: int
) -> Float[Array, "..."]:
    """Block after block; without indices the rows are sliced, not gathered. Parts are added by an `ExactSum`."""
    length = min(count, BLOCK_ROWS)
    blocks = -(-count // length)
    # The last slice is moved back to fit: what an earlier block has counted is masked.
    starts = jnp.minimum(jnp.arange(blocks) * length, count - length)

    def sum_of(block: Array, start: Array) -> Array:
        fresh = start + jnp.arange(length) >= block * length
        if private_indices is None:
            private_part = arrays.of_rows(lambda a: jax.lax.dynamic_slice_in_dim(a, start, length))
            return _block_sum(query, public, private_part, private_part.private_present & fresh)
        private_block = jax.lax.dynamic_slice_in_dim(private_indices, start, length)
        absent = arrays.private_features.shape[0]
        return _sum_at(query, public, arrays, jnp.where(fresh, private_block, absent))

    def body(total: Array, scanned: tuple[Array, Array]) -> tuple[Array, None]:
        return total + sum_of(*scanned), None

    def body_of_parts(
        carry: tuple[Array, ExactSum], scanned: tuple[Array, Array]
    ) -> tuple[tuple[Array, ExactSum], None]:
        total, parts = body(carry[0], scanned)[0], carry[1]
        whole = (scanned[0] + 1) % (PART_UNITS // length) == 0
        parts = jax.lax.cond(whole, lambda: parts.plus(ExactSum.of_part(total, radius)), lambda: parts)
        return (jnp.where(whole, 0.0, total), parts), None

    nothing = jnp.zeros(jax.eval_shape(lambda: _first_sum(query, public, arrays)).shape, jnp.float64)
    scanned = (jnp.arange(blocks), starts)
    if count <= PART_UNITS:
        return jax.lax.scan(body, nothing, scanned)[0]
    radius = query.radius()
    first = (nothing, ExactSum.of_part(nothing, radius))
    (total, parts), _ = jax.lax.scan(body_of_parts, first, scanned)
    return parts.plus(ExactSum.of_part(total, radius)).value(radius)


def _first_sum(query: MeanQuery, public: Public, arrays: TracedRows) -> Array:
    """The sum over the first record, for its shape."""
    private_part = arrays.of_rows(lambda a: a[:1])
    return _block_sum(query, public, private_part, private_part.private_present)


def _sum_at(
    query: MeanQuery, public: Public, arrays: TracedRows, private_indices: Int[Array, " m"]
) -> Float[Array, "..."]:
    private_inside = private_indices < arrays.private_features.shape[0]
    private_part = arrays.of_rows(lambda a: jnp.take(a, private_indices, axis=0, mode="clip"))
    return _block_sum(query, public, private_part, private_part.private_present & private_inside)


def _block_sum(
    query: MeanQuery, public: Public, private_part: TracedRows, private_mask: Bool[Array, " b"]
) -> Float[Array, "..."]:
    form = row_form_of(query, public)
    if private_part.steps is not None:  # the product is exact
        private_rows = private_part.private_features.astype(jnp.float64) * private_part.steps[None, :]
        private_part = private_part._replace(private_features=private_rows)
    if form is not None:
        private_rows = private_part.private_features.astype(jnp.float64)
        return row_form_sum(
            form, private_rows, private_part.private_targets, private_part.private_norms, private_mask
        )
    chunk = UnitChunk(
        private_part.private_features[:, None, :],
        private_part.private_targets[:, None],
        private_mask[:, None],
        jnp.ones(private_mask.shape, jnp.float64),
        jnp.zeros(private_mask.shape, jnp.int32),  # no query of a compiled loop draws lots
    )
    return jnp.sum(unit_contributions(query, public, chunk), axis=0)
