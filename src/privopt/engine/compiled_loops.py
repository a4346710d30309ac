"""What a compiled loop computes with the rows that it is handed: the clipped sum over a step's share of them."""

from privopt.data.rows import PRODUCT_ROWS
from privopt.engine.drawn_rows import DrawnRows, Handed
from privopt.engine.general_path import UnitChunk, row_form_sum, unit_contributions
from privopt.engine.rounding import BLOCK_ROWS
from privopt.later import Array, Bool, Float, Int, jax, jnp
from privopt.public import Public
from privopt.queries.base import MeanQuery
from privopt.queries.safeguards import row_form_of


def traced_sum(
    query: MeanQuery, public: Public, handed: Handed, private_share: Int[Array, "2"], room: int
) -> Float[Array, "..."]:
    """The sum of clipped contributions of the units in a share of the rows. Pure JAX.

    Args:
        query: what to compute.
        public: the public side of the data.
        handed: drawn rows, for one step or many, and at which of them each unit stands.
        private_share: at which place the share begins, and how many units it has, at most `room`.
        room: how many places are looked at: at least 1, from where the share begins, and as many as there are at most
            behind it. At most `PART_UNITS`.
    Privacy:
        A place behind the share counts as an absent record, whatever it holds. Blocks of at most `BLOCK_ROWS` units are
        summed, then added up, as `rounding_bound` supposes of a part. The room may follow the number of units that are
        there, and who is drawn says at which row a unit stands; neither may re-round what others contribute, so a block
        is filled up to a multiple of `PRODUCT_ROWS` rows: products of fewer, or of other numbers, round otherwise.
    """
    start, count = private_share[0], private_share[1]
    if room <= BLOCK_ROWS:
        private_part = _rows_from(handed, start, room)
        return _block_sum(query, public, private_part, _places(len(private_part.private_targets)) < count)
    blocks = -(-room // BLOCK_ROWS)
    # The last block is moved back to fit: what an earlier block has counted is masked.
    firsts = jnp.minimum(_places(blocks) * BLOCK_ROWS, room - BLOCK_ROWS)

    def body(total: Array, scanned: tuple[Array, Array]) -> tuple[Array, None]:
        block, first = scanned
        place = first + _places(BLOCK_ROWS)
        private_part = _rows_from(handed, start + first, BLOCK_ROWS)
        private_mask = (place >= block * BLOCK_ROWS) & (place < count)
        return total + _block_sum(query, public, private_part, private_mask), None

    one = _places(PRODUCT_ROWS) < 1
    shape = jax.eval_shape(lambda: _block_sum(query, public, _rows_from(handed, 0, 1), one))
    return jax.lax.scan(body, jnp.zeros(shape.shape, jnp.float64), (_places(blocks), firsts))[0]


def _places(count: int) -> Int[Array, " count"]:
    return jnp.arange(count, dtype=jnp.int32)


def _rows_from(handed: Handed, start: Int[Array, ""] | int, length: int) -> DrawnRows:
    """The rows at so many places from `start` on, and any others up to a multiple of `PRODUCT_ROWS`."""
    private_places = jax.lax.dynamic_slice_in_dim(handed.private_places, start, length)
    private_places = jnp.pad(private_places, (0, -length % PRODUCT_ROWS))
    return DrawnRows(
        *(
            jnp.take(private_column, private_places, axis=0, mode="clip")
            for private_column in handed.private_rows
        )
    )


def _block_sum(
    query: MeanQuery, public: Public, private_part: DrawnRows, private_share: Bool[Array, " b"]
) -> Float[Array, "..."]:
    private_mask = private_part.private_present & private_share
    form = row_form_of(query, public)
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
