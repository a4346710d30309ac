"""The sum of users' clipped average gradients with the count of those inside the clip, in one pass over the rows.

Averages commute with a linear map of the rows: a user's gradient in other coordinates is `B^T` times the average that
is formed from the stored rows, so that no mapped copy of the rows is needed.
"""

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.compilation import FAST, compiled
from privopt.data.rows import MappedRows, Positions, dense_product, take_rows
from privopt.data.units import Units
from privopt.engine.fast_path import (
    in_order,
    kernel_rows,
    lane_ends,
    run_lanes,
    shrunk,
    steps_of,
)
from privopt.engine.general_path import UnitChunk, contributions_of_records, values_length
from privopt.engine.kernels import (
    FORMULAS,
    TILE,
    add,
    add_share,
    decode,
    gather,
    padded,
    predictions,
    rows_of_user,
    scale_into_ball,
    slopes,
    touch,
)
from privopt.engine.rounding import BLOCK_ROWS, BlockedSum
from privopt.later import Array, Float, jax, jnp
from privopt.problems.black_box import BlackBox, CallsOfPoints, quiet_calls
from privopt.problems.losses import GLMLoss
from privopt.queries.base import MeanQuery, shrunk_radius
from privopt.queries.gradient_norms import GradientAndCount
from privopt.queries.moments import WeightedSecondMoment
from privopt.queries.safeguards import clips_by_itself
from privopt.queries.values import ValueSum, of_predictions

_USERS = 16  # users whose averages are mapped together
_MOST_COLUMNS = 4096  # of a map; the averages of `_USERS` users then take half a megabyte


def supports_gradient_and_count(units: Units, query: GradientAndCount) -> bool:
    """Whether `gradient_and_count_sum` computes the query: the library's own class, a loss with a compiled slope."""
    loss = query.loss
    return (
        type(query) is GradientAndCount
        and isinstance(loss, GLMLoss)
        and loss.outputs == 1
        and loss.kernel_code is not None
        and int(loss.kernel_code) in FORMULAS
        and not isinstance(units.private_features, MappedRows)
        and (query.row_map is None or units.public.d <= _MOST_COLUMNS)
    )


class _Task(NamedTuple):
    """The query in the numbers that the kernel takes.

    Attributes:
        point: (d,).
        formula: (code, p0, p1).
        matrix: B (d, k), or empty.
        centre: v0 (k,); zeros where there is none.
        centred: whether there is one.
        limits: clip, moved inwards already, and height.
    """

    point: NDArray[np.float64]
    formula: tuple[int, float, float]
    matrix: NDArray[np.float64]
    centre: NDArray[np.float64]
    centred: bool
    limits: tuple[float, float]


def gradient_and_count_sum(
    units: Units,
    query: GradientAndCount,
    private_positions: NDArray[np.int64] | None,
    threads: int,
) -> NDArray[np.float64]:
    """The sum over units of a query that `supports_gradient_and_count` accepts, (k + 1,).

    Args:
        units: the data; a record that is a unit counts as a user of one record.
        query: what to compute.
        private_positions: which units take part; None for all.
        threads: how many threads share the lanes; the result does not depend on it.
    """
    task, width = _task(query, units.public.d), units.public.d
    rows = kernel_rows(units.private_features)
    task = task._replace(point=task.point * steps_of(units.private_features))
    index = np.empty(0, np.int64) if private_positions is None else private_positions
    count = units.private_count if private_positions is None else len(private_positions)
    if units.private_offsets is not None and units.private_weights is not None:
        owners = (units.private_offsets, units.private_weights)
    else:
        owners = (np.arange(len(units.private_targets) + 1), units.private_present.astype(np.float64))
    entries = 64 if sparse.issparse(units.private_features) else width
    lanes = lane_ends(count, len(task.centre) + 1, entries)
    totals = np.empty((len(lanes) - 1, len(task.centre) + 1))

    def run(first: int, last: int) -> None:
        sum_gradients_and_counts(
            rows, units.private_targets, *owners, index, *task, lanes, first, last, totals
        )

    run_lanes(run, len(lanes) - 1, threads)
    return in_order(totals)


def _task(query: GradientAndCount, width: int) -> _Task:
    loss = query.loss
    assert isinstance(loss, GLMLoss)
    assert loss.kernel_code is not None
    first, second = map(float, loss.kernel_parameters)
    matrix = np.empty((0, 0)) if query.row_map is None else np.asarray(query.row_map, np.float64)
    size = width if query.row_map is None else matrix.shape[1]
    centred = query.centre is not None
    return _Task(
        point=np.ascontiguousarray(np.ravel(np.asarray(query.at, np.float64))),
        formula=(int(loss.kernel_code), first, second),
        matrix=np.ascontiguousarray(matrix),
        centre=np.ravel(np.asarray(query.centre, np.float64)) if centred else np.zeros(size),
        centred=centred,
        limits=(shrunk(query.clip), shrunk(query.height) if shrunk(query.clip) > 0 else 0.0),
    )


@compiled(FAST, inline=True)
def _add_average(
    rows: Any,
    targets: Any,
    low: int,
    high: int,
    weight: float,
    point: Any,
    formula: Any,
    scratch: Any,
    g: Any,
) -> None:
    """g += weight times the sum of the gradients of the rows low..high-1."""
    code, p0, p1 = formula
    t, s, y, no_index = scratch
    for start in range(low, high, TILE):
        m = min(TILE, high - start)
        gather(targets, no_index, start, m, y)
        predictions(rows, no_index, start, m, point, t)
        slopes(code, p0, p1, t, y, m, s)
        for r in range(m):
            s[r] *= weight
        add(rows, no_index, start, m, s, g)
    decode(rows, g)


@compiled(FAST, inline=True)
def _add_clipped(vector: Any, columns: Any, count: int, limits: Any, share: Any) -> None:
    """Add a unit's vector, brought into the ball, and its mark to the share; one that is not finite counts as zero."""
    radius, height = limits
    finite = True
    for k in range(count):
        if not abs(vector[columns[k]]) <= 1.7976931348623157e308:
            finite = False
    scale = scale_into_ball(vector, columns, count, radius) if finite else 1.0
    share[share.shape[0] - 1] += height if scale >= 1.0 else -height
    if finite and scale > 0.0:
        for k in range(count):
            j = columns[k]
            share[j] += scale * vector[j]


@compiled(FAST)
def sum_gradients_and_counts(
    rows: Any,
    targets: Any,
    offsets: Any,
    weights: Any,
    index: Any,
    point: Any,
    formula: Any,
    matrix: Any,
    centre: Any,
    centred: bool,
    limits: Any,
    lanes: Any,
    first: int,
    last: int,
    totals: Any,
) -> None:
    """Sum (clip(B^T g_j - v0), +-h) over the users at the positions of each of the lanes first..last-1.

    Args:
        rows: as in `kernels.sum_records`, sorted by user.
        targets: of all rows.
        offsets: user j owns the rows offsets[j]..offsets[j + 1] - 1.
        weights: u_j; a user of weight 0 or without rows contributes zeros.
        index: users by position, or empty.
        point: (d,).
        formula: (code, p0, p1).
        matrix: B (d, k), or empty for the identity.
        centre: v0 (k,).
        centred: whether v0 is subtracted.
        limits: (clip, moved inwards already and perhaps infinite; h).
        lanes: lane l holds the positions lanes[l]..lanes[l + 1] - 1.
        first: first lane.
        last: behind the last lane.
        totals: (lanes, k + 1); row l is set to the sum of lane l.
    Privacy:
        A user's vector that is not finite counts as one inside the clip that is zero, any other is scaled into the
        ball, whatever the user's rows and their number.
    """
    d, width = point.shape[0], centre.shape[0]
    mapped = matrix.shape[0] > 0
    scratch = (np.empty(TILE), np.empty(TILE), np.empty(TILE), np.empty(0, np.int64))
    share = np.empty(width + 1)
    averages = np.zeros((_USERS, padded(d)))
    vectors = np.empty((_USERS, width))
    there = np.empty(_USERS, np.bool_)
    every = np.arange(width)
    seen, touched = np.full(d, -1), np.empty(d, np.int64)
    for lane in range(first, last):
        totals[lane, :] = 0.0
        for block in range(lanes[lane], lanes[lane + 1], BLOCK_ROWS):
            share[:] = 0.0
            stop = min(block + BLOCK_ROWS, lanes[lane + 1])
            if not (mapped or centred):
                average = averages[0]
                for position in range(block, stop):
                    low, high, weight = rows_of_user(position, index, offsets, weights)
                    if high == low or weight == 0.0:
                        continue
                    count = touch(rows, low, high, position, seen, touched, average)
                    _add_average(rows, targets, low, high, weight, point, formula, scratch, average)
                    _add_clipped(average, touched, count, limits, share)
                add_share(share, totals[lane])
                continue
            for start in range(block, stop, _USERS):
                m = min(_USERS, stop - start)
                for u in range(m):
                    low, high, weight = rows_of_user(start + u, index, offsets, weights)
                    there[u] = high > low and weight > 0.0
                    averages[u, :] = 0.0
                    if there[u]:
                        _add_average(rows, targets, low, high, weight, point, formula, scratch, averages[u])
                for u in range(m):
                    for k in range(width):
                        vectors[u, k] = 0.0
                if mapped:
                    for j in range(d):
                        for u in range(m):
                            entry = averages[u, j]
                            for k in range(width):
                                vectors[u, k] += entry * matrix[j, k]
                else:
                    for u in range(m):
                        for k in range(width):
                            vectors[u, k] = averages[u, k]
                for u in range(m):
                    if not there[u]:
                        continue
                    finite = True
                    for k in range(width):
                        if not abs(vectors[u, k]) <= 1.7976931348623157e308:
                            finite = False
                    for k in range(width):
                        vectors[u, k] = (vectors[u, k] if finite else 0.0) - centre[k]
                    _add_clipped(vectors[u], every, width, limits, share)
            add_share(share, totals[lane])


# ------------------------------------------------------------------------------------------------------------
# Sums of contributions that know losses by their values: on the host, or from one product of rows and
# points.


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


# ------------------------------------------------------------------------------------------------------------
# The sum of `w a a^T` over units: products of float64 blocks of rows in place of one matrix a record.


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
