"""The in-process engine: sums clipped contributions of the units it holds. The reference for every other engine."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.data.rows import dense_product, row_peaks, take_rows
from privopt.data.units import Units
from privopt.data.users import within
from privopt.engine import fast_path
from privopt.engine.carried_slopes import CarriedSlopes
from privopt.engine.compiled_loops import TracedRows, traced_arrays, traced_shapes, traced_sum
from privopt.engine.general_path import (
    UnitChunk,
    block_coefficients,
    block_length,
    chunk_contributions,
    chunk_length,
    chunk_sum,
)
from privopt.engine.rounding import BlockedSum, rounding_bound
from privopt.engine.second_moments import second_moment_sum, supports_second_moment
from privopt.ledger.sampling import EveryUnit, FixedSize, Sampling
from privopt.precision import double_precision
from privopt.queries.base import MeanQuery, RecordSum, RowForm, UnitSum
from privopt.queries.gradient_norms import GradientNorms
from privopt.queries.safeguards import row_form_of
from privopt.queries.second_moment import WeightedSecondMoment

__all__ = ["InProcessEngine", "traced_arrays", "traced_shapes", "traced_sum"]


class InProcessEngine:
    """Computes on units in this process's memory. Everything it returns is private.

    Args:
        units: the data.
        threads: threads of a compiled pass, at least 1; the results do not depend on it. Default: all.
    """

    def __init__(self, units: Units, *, threads: int | None = None) -> None:
        self.units = units
        self._threads = fast_path.thread_count() if threads is None else threads
        self._private_norms = {"l2": units.private_norms}
        self._private_inverses: dict[str, NDArray[np.float64]] = {}
        self._carried = CarriedSlopes()

    def clipped_sum(
        self, query: MeanQuery, private_draw: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """The sum over units of their clipped contributions; not divided, `finish` not applied.

        Args:
            query: a `RecordSum` or `UnitSum`.
            private_draw: positions of the units that take part, without repetition; None for all.
        Privacy:
            Within `rounding_bound` of the exact sum of contributions inside the query's ball. Nothing raises, warns
            or changes shape because of a unit's values.
        """
        with double_precision(), np.errstate(all="ignore"):  # a warning must not depend on the data
            public, query = self.units.public, _with_typed_leaves(_checked(query))
            if isinstance(query, WeightedSecondMoment) and supports_second_moment(self.units, query):
                return second_moment_sum(self.units, query, private_draw)
            if isinstance(query, GradientNorms):
                groups = [_with_typed_leaves(group) for group in query.groups(public)]
                return np.concatenate([self._summed(group, private_draw) for group in groups], axis=1)
            return self._summed(query, private_draw)

    def _summed(self, query: MeanQuery, private_draw: NDArray[np.int64] | None) -> NDArray[np.float64]:
        """By the fastest of the paths that compute the query."""
        public = self.units.public
        form = row_form_of(query, public)
        # A user's average has no scalar clip in the l_inf norm.
        if form is None or (form.norm != "l2" and public.unit == "user"):
            return self._chunked_sum(query, private_draw, by_rows=False)
        if fast_path.supports(self.units, form):
            private_inverses = self._inverse_norms(form.norm)
            return fast_path.kernel_sum(
                self.units, form, private_inverses, private_draw, self._threads, self._carried
            )
        if public.unit == "user":
            return self._chunked_sum(query, private_draw, by_rows=form.averages)
        assert isinstance(query, RecordSum)
        return self._row_form_sum(query, form, private_draw)

    def general_sum(
        self, query: MeanQuery, private_draw: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """`clipped_sum` by the path that serves every query, `vmap` over chunks of whole units: the reference."""
        with double_precision(), np.errstate(all="ignore"):
            return self._chunked_sum(_with_typed_leaves(_checked(query)), private_draw, by_rows=False)

    def gather(self, query: MeanQuery) -> NDArray[np.float64]:
        """Each unit's clipped contribution as a flat vector, (n, k); zero for an absent unit.

        A statistic of the vectors may count them, so there are n of them whatever the relation.
        """
        with double_precision(), np.errstate(all="ignore"):
            query = _with_typed_leaves(_checked(query))
            private_parts = [
                np.asarray(chunk_contributions(query, private_chunk, public=self.units.public))[:units]
                for private_chunk, units in self._chunks(query, None)
            ]
            absent = max(0, self.units.public.n - self.units.private_count)
            private_parts.append(np.zeros((absent, private_parts[0].shape[1])))
            return np.concatenate(private_parts)

    def rounding_bound(self, radius: float, units: int) -> float:
        """See `engine.rounding.rounding_bound`."""
        return rounding_bound(radius, units)

    def draw(self, sampling: Sampling, generator: np.random.Generator) -> NDArray[np.int64]:
        """Draw the positions of the units that take part, in order. Independent of what the units hold.

        Args:
            sampling: Poisson draws the number from the binomial law, then that many units without replacement, which
                is each unit independently with probability `rate`; fixed-size draws `batch` of n positions without
                replacement, and an absent unit at one of them takes no part.
            generator: the secret stream for units.
        """
        private_count = self.units.private_count
        if isinstance(sampling, EveryUnit):
            return np.arange(private_count)
        if isinstance(sampling, FixedSize):
            among = max(self.units.public.n, private_count)
            private_draw = generator.choice(among, sampling.batch, replace=False, shuffle=False)
            return np.sort(self.units.private_held(private_draw)).astype(np.int64)
        size = int(generator.binomial(private_count, sampling.rate))
        return np.sort(generator.choice(private_count, size, replace=False, shuffle=False)).astype(np.int64)

    def traced_arrays(self) -> TracedRows:
        """See `engine.compiled_loops.traced_arrays`."""
        return traced_arrays(self.units)

    def view(self, matrix: NDArray[np.float64], row_bound: float) -> "InProcessEngine":
        """An engine on the rows `B^T a`, clipped to `row_bound`; see `Units.mapped`."""
        return InProcessEngine(self.units.mapped(matrix, row_bound), threads=self._threads)

    def __repr__(self) -> str:
        return f"InProcessEngine({self.units!r})"

    def _chunked_sum(
        self, query: MeanQuery, private_draw: NDArray[np.int64] | None, *, by_rows: bool
    ) -> NDArray[np.float64]:
        total: BlockedSum | None = None
        for private_chunk, units in self._chunks(query, private_draw):
            private_part = chunk_sum(query, private_chunk, public=self.units.public, by_rows=by_rows)
            total = BlockedSum(private_part.shape) if total is None else total
            total.add(np.asarray(private_part), units)
        assert total is not None
        return total.total()

    def _norms(self, norm: str) -> NDArray[np.float64]:
        if norm not in self._private_norms:
            self._private_norms[norm] = row_peaks(self.units.private_features)
        return self._private_norms[norm]

    def _inverse_norms(self, norm: str) -> NDArray[np.float64]:
        """1 / norm, rounded down; 1 for zero rows, whose contribution is zero whatever their coefficient."""
        if norm not in self._private_inverses:
            private_norms = self._norms(norm)  # 0 or at least LEAST_PEAK
            zero = private_norms == 0
            private_inverses = (1.0 / np.where(zero, 1.0, private_norms)) * (1.0 - 2.0**-52)
            self._private_inverses[norm] = np.where(zero, 1.0, private_inverses)
        return self._private_inverses[norm]

    def _chunks(
        self, query: MeanQuery, private_draw: NDArray[np.int64] | None
    ) -> Iterator[tuple[UnitChunk, int]]:
        """Chunks of whole units, padded to one shape, with how many units each really holds."""
        units = self.units
        count = units.private_count if private_draw is None else len(private_draw)
        length = chunk_length(query, units.public, count)
        records = units.public.records_per_unit
        for start in range(0, max(count, 1), length):
            stop = min(start + length, count)
            positions = np.arange(start, stop) if private_draw is None else private_draw[start:stop]
            private_features = np.zeros((length, records, units.public.d), units.private_features.dtype)
            private_targets = np.zeros((length, records))
            private_mask = np.zeros((length, records), np.bool_)
            private_weights = np.ones(length)
            private_rows = units.private_rows_of(positions)
            place = (np.arange(len(positions)), np.zeros(len(positions), np.int64))
            if units.private_offsets is not None and units.private_weights is not None:
                private_counts = np.diff(units.private_offsets)[positions]
                place = (np.repeat(place[0], private_counts), within(private_counts))
                private_weights[: len(positions)] = units.private_weights[positions]
            private_features[place] = take_rows(units.private_features, private_rows)
            private_targets[place] = units.private_targets[private_rows]
            private_mask[place] = units.private_present[private_rows]
            yield UnitChunk(private_features, private_targets, private_mask, private_weights), stop - start

    def _row_form_sum(
        self, query: RecordSum, form: RowForm, private_draw: NDArray[np.int64] | None
    ) -> NDArray[np.float64]:
        """Records in blocks: two matrix products in NumPy, the coefficients between them in JAX."""
        units, points = self.units, np.asarray(form.points, np.float64)
        private_norms = self._norms(form.norm)
        count = units.private_count if private_draw is None else len(private_draw)
        length = block_length(8 * (2 * units.public.d + points.shape[1] + 3 * form.outputs), count)
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
                public=units.public,
            )
            total.add(private_block.T @ np.asarray(private_coefficients)[: stop - start], stop - start)
        return total.total().reshape(form.shape)


def _checked(query: MeanQuery) -> MeanQuery:
    if isinstance(query, RecordSum | UnitSum):
        return query
    raise TypeError(f"the engine sums a RecordSum or a UnitSum, got {type(query).__name__}.")


def _with_typed_leaves(query: MeanQuery) -> MeanQuery:
    """The same query with NumPy leaves: how a caller made a number or a point then needs no new compilation."""

    def typed(leaf: Any) -> Any:
        return np.asarray(leaf) if isinstance(leaf, float | jax.Array) else leaf

    return jax.tree.map(typed, query)


def _padded(private_values: NDArray[Any], length: int) -> NDArray[Any]:
    """The values followed by zeros."""
    private_longer = np.zeros(length, private_values.dtype)
    private_longer[: len(private_values)] = private_values
    return private_longer
