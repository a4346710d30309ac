"""Any query, in JAX: contributions of whole units, mapped in chunks sized to a memory target, clipped and summed.

Also the JAX form of generalised-linear queries, for losses without a compiled kernel, several outputs, or accelerators.
The functions without an underscore are pure and can be traced; nothing here knows where the rows come from.
"""

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from privopt.engine.rounding import BLOCK_ROWS
from privopt.later import Array, Bool, Float, jax, jnp
from privopt.public import Public
from privopt.queries.base import MeanQuery, RecordSum, RowForm, UnitSum, clip_rows_to_ball
from privopt.queries.lots import LotSum, lots_of
from privopt.queries.safeguards import into_radius, row_form_of
from privopt.queries.values import ValueSum

CHUNK_BYTES = 32 * 2**20
_SMALL_CHUNK = 256  # for samples, so that few units are not padded to a large chunk


class UnitChunk(NamedTuple):
    """c units, each padded to M records; NumPy arrays outside of a trace."""

    private_features: Any  # Float[Array, "c M d"], as stored
    private_targets: Any  # Float[Array, "c M"]
    private_mask: Any  # Bool[Array, "c M"]: which records exist
    private_weights: Any  # Float[Array, "c"]: of a unit's average; 1 when a unit is a record
    private_positions: Any  # Int[Array, "c"]: among all units, for the lots that they draw


_widths: dict[Any, int] = {}


def chunk_length(query: MeanQuery, public: Public, *, sampled: bool) -> int:
    """How many units a chunk holds: a power of two that divides `BLOCK_ROWS`, from public numbers alone.

    Privacy:
        Chunks of different lengths are compiled apart, and a contribution may be rounded differently in each. A length
        that followed the number of units there are, or drawn, would let one unit re-round the others', and what
        cancels or is counted may move far by that.
    """
    if isinstance(query, ValueSum):
        return values_length(query, public, sampled=sampled)
    leaves, structure = jax.tree.flatten(query)
    width_of = of_any_number(public)
    key = (structure, tuple(jnp.shape(leaf) for leaf in leaves), width_of)
    if key not in _widths:
        _widths[key] = _held_of_a_record(query, width_of)
    width = _widths[key]
    # Features twice (float32 and float64), then each record's contribution and its derivative's intermediates.
    return block_length(
        8 * public.records_per_unit * (2 * public.d + 3 * width) + 24 * width, public, sampled=sampled
    )


def values_length(query: ValueSum, public: Public, *, sampled: bool) -> int:
    """`chunk_length` where a record's values at many points are held at once."""
    points, size = jax.eval_shape(query.points).shape
    return block_length(
        8 * public.records_per_unit * (2 * public.d + 6 * points) + 8 * size, public, sampled=sampled
    )


def _held_of_a_record(query: MeanQuery, public: Public) -> int:
    """How many numbers a record's contribution has, before the clip or after, whichever are more."""
    shapes = [jax.eval_shape(partial(_one_contribution, public=public), query).shape]
    if isinstance(query, RecordSum):
        row = jnp.zeros(public.d, jnp.float64)
        shapes.append(jax.eval_shape(query.record_contribution, row, jnp.zeros((), jnp.float64)).shape)
    return max(int(np.prod(shape)) for shape in shapes)


def of_any_number(public: Public) -> Public:
    """What is public about one of the units, the same for blocks of all sizes: a trace for one serves the others."""
    return replace(public, n=2, drawn=False)


def contribution_shape(query: MeanQuery, public: Public) -> tuple[int, ...]:
    """The shape of what one unit contributes, from public sizes."""
    return tuple(jax.eval_shape(partial(_one_contribution, public=public), query).shape)


def block_length(unit_bytes: int, public: Public, *, sampled: bool) -> int:
    """As many units as fit the memory target; a small block for a sample, and where n is small."""
    full = min(BLOCK_ROWS, 1 << (max(1, CHUNK_BYTES // unit_bytes).bit_length() - 1))
    return min(full, _SMALL_CHUNK) if sampled or public.n <= 8 * _SMALL_CHUNK else full


def unit_contributions(
    query: MeanQuery, public: Public, chunk: UnitChunk, *, by_rows: bool = False
) -> Float[Array, "c ..."]:
    """The clipped contribution of each unit of a chunk.

    Args:
        query: what to compute.
        public: the public side of the data.
        chunk: the units.
        by_rows: whether to use the query's generalised-linear form if it has one, which is faster for users.
    Privacy:
        A unit's vector depends on its own records. One that is not finite is zero (see `MeanQuery.without_bad`), and so
        is one of a unit without records; any other is mapped into the ball by the query's `clip_unit`, which is held to
        the radius by `into_radius`.
    """
    private_features = chunk.private_features.astype(jnp.float64)
    form = row_form_of(query, public) if by_rows else None
    if form is not None:
        private_vectors = _row_form_averages(form, chunk, private_features)
    elif isinstance(query, RecordSum | LotSum):
        private_vectors = _averages(chunk, _of_records(query, chunk, private_features))
    else:
        assert isinstance(query, UnitSum)
        private_vectors = jax.vmap(query.unit_contribution)(
            private_features,
            chunk.private_targets,
            chunk.private_mask.astype(jnp.float64),
            chunk.private_weights,
        )
    return _clipped(query, chunk, private_vectors)


def contributions_of_records(
    query: RecordSum, chunk: UnitChunk, private_each: Float[Array, "c M ..."]
) -> Float[Array, "c ..."]:
    """The clipped contribution of each unit of a chunk, from what each record contributes; rows are not looked at.

    Privacy:
        As `unit_contributions`.
    """
    return _clipped(query, chunk, _averages(chunk, private_each))


def _clipped(
    query: MeanQuery, chunk: UnitChunk, private_vectors: Float[Array, "c ..."]
) -> Float[Array, "c ..."]:
    private_there = jnp.any(chunk.private_mask, axis=1)
    private_good = jax.vmap(query.without_bad)(_keep(private_vectors, private_there))
    private_clipped = into_radius(query, jax.vmap(query.clip_unit)(private_good))
    return _keep(private_clipped, _finite(private_clipped) & private_there)


@partial(jax.jit, static_argnames=("public",))
def chunk_contributions(query: MeanQuery, chunk: UnitChunk, *, public: Public) -> Float[Array, "c k"]:
    """`unit_contributions` as one flat vector a unit."""
    private_vectors = unit_contributions(query, public, chunk)
    return jnp.reshape(private_vectors, (private_vectors.shape[0], -1))


@partial(jax.jit, static_argnames=("public", "by_rows"))
def chunk_sum(query: MeanQuery, chunk: UnitChunk, *, public: Public, by_rows: bool) -> Float[Array, "..."]:
    """The sum of a chunk's clipped contributions."""
    return jnp.sum(unit_contributions(query, public, chunk, by_rows=by_rows), axis=0)


@partial(jax.jit, static_argnames=("public",))
def block_coefficients(
    query: RecordSum,
    private_predictions: Float[Array, "b P"],
    private_targets: Float[Array, " b"],
    private_norms: Float[Array, " b"],
    private_mask: Bool[Array, " b"],
    *,
    public: Public,
) -> Float[Array, "b K"]:
    """Clipped coefficients of a block of records, from their predictions."""
    form = row_form_of(query, public)
    assert form is not None
    private_raw = form.coefficients(private_predictions, private_targets, private_norms)
    return clip_coefficients(form, private_raw, private_norms, private_mask)


def row_form_sum(
    form: RowForm,
    private_rows: Float[Array, "b d"],
    private_targets: Float[Array, " b"],
    private_norms: Float[Array, " b"],
    private_mask: Bool[Array, " b"],
) -> Float[Array, "..."]:
    """The clipped sum over a block of records of a generalised-linear query: two products, no per-record vector."""
    if form.norm == "linf":
        private_norms = jnp.max(jnp.abs(private_rows), axis=1)
    private_raw = form.coefficients(private_rows @ form.points, private_targets, private_norms)
    private_coefficients = clip_coefficients(form, private_raw, private_norms, private_mask)
    return jnp.reshape(private_rows.T @ private_coefficients, form.shape)


def clip_coefficients(
    form: RowForm,
    private_coefficients: Float[Array, "b K"],
    private_norms: Float[Array, " b"],
    private_mask: Bool[Array, " b"],
) -> Float[Array, "b K"]:
    """Coefficients whose contributions outer(a, s) stay within the form's radius; 0 for absent records."""
    return clip_rows_to_ball(_keep(private_coefficients, private_mask), private_norms, form.radius, form.norm)


def _one_contribution(query: MeanQuery, *, public: Public) -> Array:
    """The shape of one unit's vector, by abstract evaluation."""
    records = public.records_per_unit
    chunk = UnitChunk(
        jnp.zeros((1, records, public.d), jnp.float32),
        jnp.zeros((1, records), jnp.float64),
        jnp.ones((1, records), jnp.bool_),
        jnp.ones((1,), jnp.float64),
        jnp.zeros((1,), jnp.int32),
    )
    return unit_contributions(query, public, chunk)[0]


def _shares(chunk: UnitChunk) -> Float[Array, "c M"]:
    """u_j / k_j for each of the unit's k_j records."""
    private_counts = jnp.maximum(jnp.sum(chunk.private_mask, axis=1), 1).astype(jnp.float64)
    return jnp.where(
        chunk.private_mask, (chunk.private_weights / private_counts)[:, None], jnp.zeros((), jnp.float64)
    )


def _averages(chunk: UnitChunk, private_each: Float[Array, "c M ..."]) -> Float[Array, "c ..."]:
    """u_j / k_j times the sum over the unit's k_j records."""
    private_shares = _shares(chunk)
    extra = (1,) * (private_each.ndim - 2)
    private_each = jnp.where(
        jnp.reshape(chunk.private_mask, (*chunk.private_mask.shape, *extra)), private_each, 0.0
    )
    return jnp.sum(private_each * jnp.reshape(private_shares, (*private_shares.shape, *extra)), axis=1)


def _of_records(
    query: RecordSum | LotSum, chunk: UnitChunk, private_features: Float[Array, "c M d"]
) -> Float[Array, "c M ..."]:
    """What each record contributes."""
    if isinstance(query, RecordSum):
        return jax.vmap(jax.vmap(query.record_contribution))(private_features, chunk.private_targets)
    private_lots = lots_of(query.lots, chunk.private_positions)
    of_unit = jax.vmap(query.record_contribution_of_lot, in_axes=(0, 0, None))
    return jax.vmap(of_unit)(private_features, chunk.private_targets, private_lots)


def _row_form_averages(
    form: RowForm, chunk: UnitChunk, private_features: Float[Array, "c M d"]
) -> Float[Array, "c ..."]:
    count, records, width = private_features.shape
    private_flat = jnp.reshape(private_features, (count * records, width))
    private_norms = jnp.sqrt(jnp.sum(private_flat * private_flat, axis=1))
    private_raw = form.coefficients(
        private_flat @ form.points, jnp.reshape(chunk.private_targets, (-1,)), private_norms
    )
    private_raw = jnp.where(jnp.reshape(chunk.private_mask, (-1, 1)), private_raw, 0.0)
    private_weighted = jnp.reshape(private_raw, (count, records, form.outputs)) * _shares(chunk)[:, :, None]
    private_sums = jnp.einsum("cmd,cmk->cdk", private_features, private_weighted)
    return jnp.reshape(private_sums, (count, *form.shape))


def _finite(private_vectors: Float[Array, "c ..."]) -> Bool[Array, " c"]:
    return jnp.all(jnp.isfinite(private_vectors), axis=tuple(range(1, private_vectors.ndim)))


def _keep(private_vectors: Float[Array, "c ..."], private_kept: Bool[Array, " c"]) -> Float[Array, "c ..."]:
    extra = (1,) * (private_vectors.ndim - 1)
    return jnp.where(
        jnp.reshape(private_kept, (-1, *extra)), private_vectors, jnp.zeros_like(private_vectors)
    )
