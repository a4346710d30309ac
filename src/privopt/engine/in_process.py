"""The fast engine: sums clipped contributions by compiled kernels where there are any, else by the plain path."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.data.participants import GroupDraw
from privopt.data.places import Places, ranges_among
from privopt.data.rows import Positions, dense_product, row_peaks, take_rows
from privopt.data.storage import Extra
from privopt.data.units import Units
from privopt.engine import fast_path, local_passes, plain_sums
from privopt.engine.drawn_rows import DrawnRows, drawn_rows, held_rows
from privopt.engine.general_path import block_coefficients, block_length, of_any_number
from privopt.engine.mixed_kernel import CarriedSlopes
from privopt.engine.parts import Range, ranges_of, sum_over_parts
from privopt.engine.reference import (
    ReferenceEngine,
    checked,
    group_parts,
    loss_sum,
    with_absent,
    with_typed_leaves,
)
from privopt.engine.rounding import BLOCK_ROWS, BlockedSum
from privopt.engine.user_gradients import (
    gradient_and_count_sum,
    prediction_sum,
    second_moment_sum,
    supports_gradient_and_count,
    supports_predictions,
    supports_second_moment,
)
from privopt.later import Array, Bool, Float, jax, jnp
from privopt.ledger.events import Sampling
from privopt.precision import in_float64, is_in_numpy
from privopt.problems.saddle import BilinearGame
from privopt.problems.workload import cells_of, strides_of
from privopt.proofs.huberised_objective import HuberisedObjective
from privopt.proofs.huberised_sum import LossSum
from privopt.public import Public
from privopt.queries.base import MeanQuery, Query, RecordSum, RowForm, Scalar, shrunk_radius
from privopt.queries.gradient_norms import AveragedGradient, GradientAndCount, GradientNorms
from privopt.queries.groups import GroupLosses, GroupLossScores
from privopt.queries.lots import LocalPass
from privopt.queries.marginals import MarginalMeans, QueryMeans
from privopt.queries.moments import (
    TargetMagnitudes,
    TotalWeight,
    UsableUnits,
    WeightedSecondMoment,
    interval_ends,
)
from privopt.queries.payoffs import PayoffMeans, payoff_size
from privopt.queries.safeguards import is_ours, row_form_of, stated_sensitivity
from privopt.queries.values import ValueSum


class InProcessEngine:
    """Computes on units in this process's memory. Everything it returns is private.

    Args:
        units: the data.
        threads: threads of a compiled pass, at least 1; the results do not depend on it. Default: all.
        private_ranges: where each part begins and ends; default: see `ranges_of`.
    """

    compiles = True

    def __init__(
        self, units: Units, *, threads: int | None = None, private_ranges: Sequence[Range] | None = None
    ) -> None:
        self.units = units
        self._private_ranges = ranges_of(units) if private_ranges is None else private_ranges
        self._plain = ReferenceEngine(units)
        self._threads = fast_path.thread_count() if threads is None else threads
        self._private_norms = {"l2": units.private_norms}
        self._private_inverses: dict[str, NDArray[np.float64]] = {}
        self._carried = CarriedSlopes(units.room)

    @cached_property
    def _parts(self) -> list["InProcessEngine"]:
        if len(self._private_ranges) == 1:
            return [self]
        private_parts = [self.units.part(start, stop) for start, stop in self._private_ranges]
        return [
            InProcessEngine(
                private_part, threads=self._threads, private_ranges=[(0, private_part.private_count)]
            )
            for private_part in private_parts
        ]

    @property
    def public(self) -> Public:
        """See `Engine.public`."""
        return self.units.public

    @property
    def seeded(self) -> bool:
        """See `Engine.seeded`."""
        return self.units.seeded

    @property
    def origin(self) -> str:
        """See `Engine.origin`."""
        return self.units.origin

    @property
    def laid_out(self) -> str:
        """See `Engine.laid_out`."""
        return self.units.laid_out

    @property
    def private_count(self) -> int:
        """See `Engine.private_count`."""
        return self.units.private_count

    def require(self, kind: type[Query], held: int = 0) -> None:
        """See `Engine.require`: it computes every query."""
        del kind, held

    def sensitivity(self, query: MeanQuery, sampling: Sampling) -> Scalar:
        """See `Engine.sensitivity`."""
        return stated_sensitivity(query, self.public, sampling)

    def clipped_sum(
        self, query: MeanQuery, private_draw: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """See `Engine.clipped_sum`."""
        with in_float64(), np.errstate(all="ignore"):  # a warning must not depend on the data
            query = checked(query, self.units.public)
            query = query if is_in_numpy() else with_typed_leaves(query)
            return sum_over_parts(self._parts, query, private_draw, self._private_ranges, self.public)

    def part_sum(
        self, query: MeanQuery, private_draw: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """See `PartEngine.part_sum`."""
        public = self.units.public
        if supports_cells(query):
            return cell_sum(self.units.weighted_as(query.weighting), query, private_draw)
        if isinstance(query, WeightedSecondMoment) and supports_second_moment(query):
            return second_moment_sum(self.units.weighted_as(query.weighting), query, private_draw)
        if type(query) is GradientNorms:  # a subclass may compute something else
            groups = [with_typed_leaves(group) for group in query.groups(public)]
            return np.concatenate([self._summed(group, private_draw) for group in groups], axis=1)
        if type(query) is AveragedGradient:
            return self._average_of_groups(query, private_draw)
        if isinstance(query, GradientAndCount) and supports_gradient_and_count(self.units, query):
            return gradient_and_count_sum(self.units, query, private_draw, self._threads)
        if isinstance(query, GroupLosses | GroupLossScores) and supports_groups(self.units, query):
            return group_sum(self.units, query, private_draw)
        if isinstance(query, PayoffMeans) and supports_payoffs(query):
            return payoff_sum(self.units, query, private_draw)
        if isinstance(query, ValueSum) and supports_predictions(self.units, query):
            return prediction_sum(self.units, query, private_draw)
        if is_in_numpy() and type(query) is TargetMagnitudes and public.unit != "user":
            return target_magnitudes_sum(self.units, query, private_draw)
        if type(query) in (TotalWeight, UsableUnits):
            return _total_weight(self.units.weighted_as(query.weighting), private_draw)
        return self._summed(query, private_draw)

    def _average_of_groups(
        self, query: AveragedGradient, private_draw: NDArray[np.int64] | None
    ) -> NDArray[np.float64]:
        """The sum by groups of points; each is off by a share of what `rounding_bound` allows."""
        groups = query.groups(self.units.public)
        private_sums = [
            share * self._summed(with_typed_leaves(group), private_draw) for share, group in groups
        ]
        return np.asarray(np.sum(private_sums, axis=0))

    def _summed(self, query: MeanQuery, private_draw: NDArray[np.int64] | None) -> NDArray[np.float64]:
        """By the fastest of the paths that compute the query."""
        public = self.units.public
        if isinstance(query, LocalPass) and local_passes.supports(self.units, query):
            return local_passes.pass_sum(self.units, query, private_draw, self._threads)
        form = row_form_of(query, public)
        # A user's average has no scalar clip in the l_inf norm.
        if form is None or (form.norm != "l2" and public.unit == "user"):
            return self._plain.chunked_sum(query, private_draw, by_rows=False)
        if is_in_numpy() and plain_sums.supports(self.units, query):
            private_norms, private_inverses = self._norms(form.norm), self._inverse_norms(form.norm)
            return plain_sums.plain_sum(self.units, form, private_norms, private_inverses, private_draw)
        if fast_path.supports(self.units, form):
            private_inverses = self._inverse_norms(form.norm)
            private_units = self.units.weighted_as(query.weighting)
            return fast_path.kernel_sum(
                private_units, form, private_inverses, private_draw, self._threads, self._carried
            )
        if public.unit == "user":
            return self._plain.chunked_sum(query, private_draw, by_rows=form.averages)
        assert isinstance(query, RecordSum)
        return self._row_form_sum(query, form, private_draw)

    def general_sum(
        self, query: MeanQuery, private_draw: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """`clipped_sum` by the path that serves every query: the reference."""
        return self._plain.clipped_sum(query, private_draw)

    def gather(self, query: MeanQuery) -> NDArray[np.float64]:
        """See `Engine.gather`: part by part, so that each is computed as it is wherever it is kept."""
        return with_absent(
            (part.part_vectors(query) for part in self._parts), self.private_count, self.public
        )

    def part_vectors(self, query: MeanQuery) -> NDArray[np.float64]:
        """The rows of `gather` of the units of one part."""
        with in_float64(), np.errstate(all="ignore"):  # a warning must not depend on the data
            if isinstance(query, LocalPass) and local_passes.supports(self.units, query):
                return local_passes.pass_moves(self.units, query, self._threads)
        return self._plain.vectors(query)

    def gather_groups(self, query: MeanQuery, private_draw: GroupDraw) -> NDArray[np.float64]:
        """See `Engine.gather_groups`."""
        return self.group_vectors(query, private_draw, None)

    def group_vectors(
        self, query: MeanQuery, private_draw: GroupDraw, ranges: Sequence[Range] | None
    ) -> NDArray[np.float64]:
        """The rows of `gather_groups` of some groups, all of whose units are here; of all where it is None."""
        private_parts = group_parts(self.units, private_draw, ranges)
        with in_float64(), np.errstate(all="ignore"):
            if isinstance(query, LocalPass) and local_passes.supports_groups(self.units, query):
                return np.concatenate(
                    [
                        local_passes.pass_moves(private_part, query, self._threads)
                        for private_part in private_parts
                    ]
                )
        return np.concatenate(
            [ReferenceEngine(private_part).vectors(query) for private_part in private_parts]
        )

    def presence(self) -> NDArray[np.bool_]:
        """See `Engine.presence`."""
        return self._plain.presence()

    def draw(self, sampling: Sampling, generator: np.random.Generator) -> NDArray[np.int64]:
        """See `Engine.draw`."""
        return self._plain.draw(sampling, generator)

    def records(self) -> tuple[Any, NDArray[np.float64]]:
        """See `Engine.records`."""
        return self._plain.records()

    def objective(self, objective: HuberisedObjective) -> LossSum:
        """See `Engine.objective`."""
        with in_float64():
            return loss_sum(objective, [part.units for part in self._parts])

    def rows(self, private_draw: NDArray[np.int64], room: int) -> DrawnRows:
        """See `Engine.rows`."""
        return drawn_rows(self.units, private_draw, room)

    def held_rows(self) -> DrawnRows | None:
        """See `Engine.held_rows`."""
        return held_rows(self.units)

    def view(self, matrix: NDArray[np.float64], row_bound: float) -> Self:
        """See `Engine.view`."""
        private_units = self.units.mapped(matrix, row_bound)
        return type(self)(private_units, threads=self._threads, private_ranges=self._private_ranges)

    def subset(self, private_places: Places, size: int) -> Self:
        """See `Engine.subset`: units stay in their parts, wherever these are kept."""
        private_places.hold(self.units.room, self.private_count)
        return type(self)(
            self.units.subset(private_places, size),
            threads=self._threads,
            private_ranges=ranges_among(self._private_ranges, private_places),
        )

    def reserve(self, extra: Extra) -> None:
        """See `Engine.reserve`: all is in memory."""
        del extra

    def close(self) -> None:
        """See `Engine.close`: there is nothing to give back."""

    def __repr__(self) -> str:
        return f"InProcessEngine({self.units!r})"

    def _norms(self, norm: str) -> NDArray[np.float64]:
        if norm not in self._private_norms:
            self._private_norms[norm] = self.units.room.keep(row_peaks(self.units.private_features))
        return self._private_norms[norm]

    def _inverse_norms(self, norm: str) -> NDArray[np.float64]:
        """1 / norm, rounded down; 1 for zero rows, whose contribution is zero whatever their coefficient."""
        if norm not in self._private_inverses:
            private_norms = self._norms(norm)  # 0 or at least LEAST_PEAK
            zero = private_norms == 0
            private_inverses = (1.0 / np.where(zero, 1.0, private_norms)) * (1.0 - 2.0**-52)
            self._private_inverses[norm] = self.units.room.keep(np.where(zero, 1.0, private_inverses))
        return self._private_inverses[norm]

    def _row_form_sum(
        self, query: RecordSum, form: RowForm, private_draw: NDArray[np.int64] | None
    ) -> NDArray[np.float64]:
        """Records in blocks: two matrix products in NumPy, the coefficients between them in JAX."""
        units, points = self.units, np.asarray(form.points, np.float64)
        # A form of somebody's own may look at how many units there are.
        own = not is_ours(type(query))
        public = units.public if own else of_any_number(units.public)
        private_norms = self._norms(form.norm)
        count = units.private_count if private_draw is None else len(private_draw)
        entries = 2 * units.public.d + points.shape[1] + 3 * form.outputs
        length = block_length(8 * entries, units.public, sampled=private_draw is not None)
        total = BlockedSum((units.public.d, form.outputs))
        for start in range(0, count, length):
            stop = min(start + length, count)
            positions = slice(start, stop) if private_draw is None else private_draw[start:stop]
            private_block: Any
            if isinstance(units.private_features, sparse.csr_array):
                private_block = units.private_features[positions]
            else:
                private_block = take_rows(units.private_features, positions).astype(np.float64)
            private_predictions = np.zeros((length, points.shape[1]))
            private_predictions[: stop - start] = (
                dense_product(private_block, points)
                if isinstance(private_block, np.ndarray)
                else private_block @ points
            )
            private_coefficients = block_coefficients(
                query,
                private_predictions,
                _padded(units.private_targets[positions], length),
                _padded(private_norms[positions], length),
                _padded(units.private_present[positions], length),
                public=public,
            )
            total.add(private_block.T @ np.asarray(private_coefficients)[: stop - start], stop - start)
        return total.total().reshape(form.shape)


def target_magnitudes_sum(
    units: Units, query: TargetMagnitudes, private_draw: NDArray[np.int64] | None
) -> NDArray[np.float64]:
    """The sum of the records' vectors, of one entry each, which is clipped: see `TargetMagnitudes`."""
    count = units.private_count if private_draw is None else len(private_draw)
    ends = interval_ends(query.largest)
    total = BlockedSum((len(ends),))
    for start in range(0, count, BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, count)
        where = slice(start, stop) if private_draw is None else private_draw[start:stop]
        private_sizes = np.clip(units.private_targets[where], 0.0, query.largest)
        private_places = np.searchsorted(ends[:-1], private_sizes)
        private_entries = np.minimum(private_sizes / ends[private_places], shrunk_radius(query.radius()))
        private_shares = np.where(units.private_present[where], private_entries, 0.0)
        private_sums: Any = np.bincount(private_places, private_shares, len(ends))
        total.add(private_sums, stop - start)
    return total.total()


def _total_weight(units: Units, private_draw: NDArray[np.int64] | None) -> NDArray[np.float64]:
    """The sum of the weights of the units that have records: pairwise, so well within the rounding bound."""
    private_weights = units.private_weights
    if private_weights is None:
        private_weights = units.private_present.astype(np.float64)
    return np.asarray(np.sum(private_weights if private_draw is None else private_weights[private_draw]))


def _padded(private_values: NDArray[Any], length: int) -> NDArray[Any]:
    """The values followed by zeros."""
    private_longer = np.zeros(length, private_values.dtype)
    private_longer[: len(private_values)] = private_values
    return private_longer


# ---- The sum of a bilinear game's payoffs: products of blocks of rows in place of one matrix a record ------
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


# ---- Sums of the groups' losses, from the records' predictions: no row is copied, sparse ones stay sparse --
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


# ---- Sums over a coded table: cells are counted as whole numbers, without a vector for each record ---------
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
    private_shares = _cell_shares(units)
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


def _cell_shares(units: Units) -> NDArray[np.float64] | None:
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
