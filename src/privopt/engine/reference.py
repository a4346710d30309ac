"""The plain engine: every query by one path, contributions of whole units mapped in chunks, clipped and summed.

No kernel, no shortcut for generalised-linear losses, no compiled loop: what there is to read is this file and
`general_path`. Faster paths are held to its results by tests.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.data.participants import GroupDraw, GroupedUnits, drawn_positions, group_records
from privopt.data.places import Places
from privopt.data.room import MEMORY
from privopt.data.rows import take_rows
from privopt.data.storage import Extra
from privopt.data.targets import row_counts, within
from privopt.data.units import Units
from privopt.engine.drawn_rows import DrawnRows, drawn_rows, held_rows, most_units
from privopt.engine.general_path import (
    UnitChunk,
    chunk_contributions,
    chunk_length,
    chunk_sum,
    of_any_number,
)
from privopt.engine.parts import Range, parts_of, ranges_of, sum_over_parts, total_of_parts
from privopt.engine.rounding import BlockedSum
from privopt.engine.user_gradients import host_contributions
from privopt.later import is_jax, jax
from privopt.ledger.events import Sampling
from privopt.precision import in_float64
from privopt.proofs.huberised_objective import HuberisedObjective
from privopt.proofs.huberised_sum import LossSum
from privopt.public import Public, Relation
from privopt.queries.base import MeanQuery, Query, RecordSum, Scalar, UnitSum
from privopt.queries.lots import LotSum
from privopt.queries.safeguards import stated_sensitivity
from privopt.queries.values import ValueSum

_GROUPED_ROWS = 2**17  # of the groups that are built at a time, padding included


class ReferenceEngine:
    """Computes on units in this process's memory. Everything it returns is private.

    Args:
        units: the data.
        at_once: how many units are computed together, a power of two; default: as many as memory is good for.
    """

    compiles = False

    def __init__(self, units: Units, *, at_once: int | None = None) -> None:
        self.units = units
        self._at_once = at_once

    @cached_property
    def _parts(self) -> list["ReferenceEngine"]:
        private_parts = parts_of(self.units)
        if len(private_parts) == 1:
            return [self]
        return [ReferenceEngine(private_part, at_once=self._at_once) for private_part in private_parts]

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
            query = with_typed_leaves(checked(query, self.public))
            return sum_over_parts(self._parts, query, private_draw, ranges_of(self.units))

    def part_sum(
        self, query: MeanQuery, private_draw: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """See `PartEngine.part_sum`."""
        return self.chunked_sum(query, private_draw, by_rows=False)

    def gather(self, query: MeanQuery) -> NDArray[np.float64]:
        """Each unit's clipped contribution as a flat vector, (n, k); zero for an absent unit.

        A statistic of the vectors may count them, so there are n of them whatever the relation.
        """
        return with_absent([self.vectors(query)], self.private_count, self.public)

    def vectors(self, query: MeanQuery) -> NDArray[np.float64]:
        """The rows of `gather` of the units that are there."""
        with in_float64(), np.errstate(all="ignore"):
            query = with_typed_leaves(checked(query, self.public))
            return np.concatenate(
                [
                    self._contributions(query, private_chunk)[:units]
                    for private_chunk, units in self._chunks(query, None)
                ]
            )

    def gather_groups(self, query: MeanQuery, private_draw: GroupDraw) -> NDArray[np.float64]:
        """Each group's clipped contribution as a flat vector, (C, k), `data.participants`; zero for an empty group."""
        private_parts = group_parts(self.units, private_draw)
        return np.concatenate(
            [ReferenceEngine(private_part).vectors(query) for private_part in private_parts]
        )

    def presence(self) -> NDArray[np.bool_]:
        """Which rows of `gather` are points.

        Privacy:
            Under replace-one all n are, so that their number is public: a unit without records is the point 0. Under
            add-or-remove-one those of the units with a record that counts: adding or removing a unit then adds or
            removes its point, or changes nothing.
        """
        public = self.units.public
        if public.relation is Relation.REPLACE_ONE:
            return np.ones(public.n, np.bool_)
        return with_absent([self.there()], self.private_count, public)

    def there(self) -> NDArray[np.bool_]:
        """Which of the units that are kept have a record that counts."""
        units = self.units
        return units.private_present if units.private_offsets is None else np.diff(units.private_offsets) > 0

    def draw(self, sampling: Sampling, generator: np.random.Generator) -> NDArray[np.int64]:
        """See `drawn_positions`."""
        return drawn_positions(sampling, generator, n=self.public.n, private_count=self.private_count)

    def records(self) -> tuple[Any, NDArray[np.float64]]:
        """See `Engine.records`."""
        return self.units.private_features, self.units.private_targets

    def objective(self, objective: HuberisedObjective) -> LossSum:
        """See `Engine.objective`."""
        return loss_sum(objective, [part.units for part in self._parts])

    def rows(self, private_draw: NDArray[np.int64], room: int) -> DrawnRows:
        """See `Engine.rows`."""
        return drawn_rows(self.units, private_draw, room)

    def held_rows(self) -> DrawnRows | None:
        """See `Engine.held_rows`."""
        return held_rows(self.units)

    def view(self, matrix: NDArray[np.float64], row_bound: float) -> "ReferenceEngine":
        """See `Engine.view`."""
        return ReferenceEngine(self.units.mapped(matrix, row_bound))

    def subset(self, private_places: Places, size: int) -> "ReferenceEngine":
        """See `Engine.subset`."""
        return ReferenceEngine(self.units.subset(private_places, size))

    def reserve(self, extra: Extra) -> None:
        """See `Engine.reserve`: all is in memory."""
        del extra

    def close(self) -> None:
        """See `Engine.close`: there is nothing to give back."""

    def __repr__(self) -> str:
        return f"ReferenceEngine({self.units!r})"

    def chunked_sum(
        self, query: MeanQuery, private_draw: NDArray[np.int64] | None, *, by_rows: bool
    ) -> NDArray[np.float64]:
        """The sum over a part, chunk after chunk; `by_rows` uses a query's generalised-linear form, if it has one."""
        total: BlockedSum | None = None
        # Without a row form a contribution depends on its own unit, and on nothing that says how many there are.
        public = self.units.public if by_rows else of_any_number(self.units.public)
        for private_chunk, units in self._chunks(query, private_draw):
            if isinstance(query, ValueSum) and query.on_host:
                private_part = np.sum(host_contributions(query, private_chunk), axis=0)
            else:
                private_part = chunk_sum(query, private_chunk, public=public, by_rows=by_rows)
            total = BlockedSum(private_part.shape) if total is None else total
            total.add(np.asarray(private_part), units)
        assert total is not None
        return total.total()

    def _contributions(self, query: MeanQuery, private_chunk: UnitChunk) -> NDArray[np.float64]:
        """Each unit's clipped contribution as a flat vector."""
        if isinstance(query, ValueSum) and query.on_host:
            private_vectors = host_contributions(query, private_chunk)
            return private_vectors.reshape(len(private_vectors), -1)
        return np.asarray(chunk_contributions(query, private_chunk, public=self.units.public))

    def _chunks(
        self, query: MeanQuery, private_draw: NDArray[np.int64] | None
    ) -> Iterator[tuple[UnitChunk, int]]:
        """Chunks of whole units, padded to one shape, with how many units each really holds."""
        units = self.units.weighted_as(query.weighting)
        count = units.private_count if private_draw is None else len(private_draw)
        length = self._at_once or chunk_length(query, units.public, sampled=private_draw is not None)
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
                private_counts = row_counts(units.private_offsets, positions)
                place = (np.repeat(place[0], private_counts), within(private_counts))
                private_weights[: len(positions)] = units.private_weights[positions]
            private_features[place] = take_rows(units.private_features, private_rows)
            private_targets[place] = units.private_targets[private_rows]
            private_mask[place] = units.private_present[private_rows]
            private_positions = np.zeros(length, np.int64)
            private_positions[: len(positions)] = units.first + positions
            private_chunk = UnitChunk(
                private_features, private_targets, private_mask, private_weights, private_positions
            )
            yield private_chunk, stop - start


def with_absent(private_parts: Iterable[NDArray[Any]], private_count: int, public: Public) -> NDArray[Any]:
    """The rows of all parts, at least one part, followed by zeros for the absent ones of `most_units`.

    Args:
        private_parts: rows of the units of each part, of which one at a time is at hand.
        private_count: how many rows they have together.
        public: what is public about the units; of a drawn block there may be more than n.
    """
    rows = max(most_units(public), private_count)
    private_all: NDArray[Any] | None = None
    start = 0
    for private_part in private_parts:
        if len(private_part) >= rows:
            return private_part
        if private_all is None:
            private_all = np.zeros((rows, *private_part.shape[1:]), private_part.dtype)
        private_all[start : start + len(private_part)] = private_part
        start += len(private_part)
    assert private_all is not None
    return private_all


def group_ranges(public: Public, groups: int) -> list[Range]:
    """Which groups are built at a time, from public numbers alone."""
    length = max(1, _GROUPED_ROWS // group_records(public, groups))
    return list(itertools.pairwise([*range(0, groups, length), groups]))


def group_parts(
    units: Units, private_draw: GroupDraw, ranges: Sequence[Range] | None = None
) -> Iterator[Units]:
    """Groups in order, some at a time: each a unit of a data set of its own.

    Args:
        units: the data; all that are in the groups asked for.
        private_draw: the groups of these units.
        ranges: which groups; None for all.
    """
    private_groups = GroupedUnits(units, private_draw)
    for start, stop in group_ranges(units.public, private_draw.count) if ranges is None else ranges:
        yield private_groups.part(start, stop)


def checked(query: MeanQuery, public: Public) -> MeanQuery:
    """A query that an engine sums over such rows, by public facts."""
    if isinstance(query, RecordSum | LotSum | UnitSum):
        query.require_rows(public)
        return query
    raise TypeError(f"the engine sums a RecordSum, a LotSum or a UnitSum, got {type(query).__name__}.")


def with_typed_leaves(query: MeanQuery) -> MeanQuery:
    """The same query with NumPy leaves: how a caller made a number or a point then needs no new compilation."""

    def typed(leaf: Any) -> Any:
        return np.asarray(leaf) if isinstance(leaf, float) or is_jax(leaf) else leaf

    leaves, structure = jax.tree.flatten(query)
    return jax.tree.unflatten(structure, map(typed, leaves))


# ------------------------------------------------------------------------------------------------------------
# Sums of losses over units in parts, for queries that minimise them: each part for itself, then an
# `ExactSum`.


Vector = NDArray[np.float64]


class LossSumOverParts:
    """The sum over all parts, see `LossSum`.

    Args:
        objective: whose losses are added up.
        private_parts: the sums over the parts.
    Privacy:
        The bounds of one record's part in each sum, from which their grids follow, are public or follow from the point
        that is asked about. `gradient_rounding` covers the grid of the gradients: it allows 40 roundings more than
        there are, and a grid of K parts adds K d 2^-76 times the bound at most.
    """

    def __init__(self, objective: HuberisedObjective, private_parts: Sequence[LossSum]) -> None:
        self._objective, self._private_parts = objective, private_parts

    @property
    def private_rows(self) -> int:
        """See `LossSum.private_rows`."""
        return sum(private_part.private_rows for private_part in self._private_parts)

    def gradient(self, at: Vector) -> Vector:
        """See `LossSum.gradient`."""
        bound = self._objective.gradient_bound
        return total_of_parts((private_part.gradient(at) for private_part in self._private_parts), bound)

    def hessian(self, at: Vector) -> NDArray[np.float64]:
        """See `LossSum.hessian`."""
        bound = self._objective.curvature
        return total_of_parts((private_part.hessian(at) for private_part in self._private_parts), bound)

    def hessian_product(self, at: Vector) -> Callable[[Vector], Vector]:
        """See `LossSum.hessian_product`."""
        private_products = [private_part.hessian_product(at) for private_part in self._private_parts]

        def product(vector: Vector) -> Vector:
            bound = product_bound(self._objective, vector)
            return total_of_parts((private_product(vector) for private_product in private_products), bound)

        return product


class PassingLossSum:
    """A sum that keeps nothing of the size of the records: what follows from them is computed whenever it is asked.

    Args:
        make: makes the sum.
        private_rows: how many records there are.
    """

    def __init__(self, make: Callable[[], LossSum], private_rows: int) -> None:
        self._make, self._private_rows = make, private_rows

    @property
    def private_rows(self) -> int:
        """See `LossSum.private_rows`."""
        return self._private_rows

    def gradient(self, at: Vector) -> Vector:
        """See `LossSum.gradient`."""
        return self._make().gradient(at)

    def hessian(self, at: Vector) -> NDArray[np.float64]:
        """See `LossSum.hessian`."""
        return self._make().hessian(at)

    def hessian_product(self, at: Vector) -> Callable[[Vector], Vector]:
        """See `LossSum.hessian_product`."""
        return lambda vector: self._make().hessian_product(at)(vector)


def product_bound(objective: HuberisedObjective, vector: Vector) -> float:
    """How long one record's Hessian times a vector can be."""
    return objective.curvature * float(np.linalg.norm(vector))


def loss_sum(objective: HuberisedObjective, private_parts: Sequence[Units]) -> LossSum:
    """The sum over the units of parts, at least one; of one part as it is, since it is no sum of parts.

    Some numbers of every record are kept where the rows are in memory, and nowhere else.
    """
    private_sums = [_sum_of_part(objective, private_part) for private_part in private_parts]
    return private_sums[0] if len(private_sums) == 1 else LossSumOverParts(objective, private_sums)


def _sum_of_part(objective: HuberisedObjective, private_part: Units) -> LossSum:
    make = partial(objective.over, private_part.private_features, private_part.private_targets)
    return make() if private_part.room is MEMORY else PassingLossSum(make, private_part.private_count)
