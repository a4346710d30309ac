"""Evaluates every query of a run on a neighbouring data set as well, and records how far it moved."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.curator.handles import Held, HiddenMean, Stream, StreamRequest
from privopt.curator.local import LocalCurator, PointDraw
from privopt.data.blocks import block_assignment
from privopt.data.participants import GroupDraw
from privopt.data.places import GivenPlaces, Places
from privopt.data.units import Units
from privopt.engine.protocol import Engine, EngineName
from privopt.later import jnp
from privopt.ledger.events import EveryUnit, Sampling
from privopt.ledger.payer import Payer, Unlimited
from privopt.mechanisms.base import Mechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.queries.base import ArgminQuery, MeanQuery, PassQuery, Query, Scalar
from privopt.queries.lots import QueryType, without_lot


class Audit(Curator):
    """Runs a solver on `left` and evaluates every query on the neighbour `right` as well.

    Attributes:
        moves: (query name, distance moved / stated sensitivity), one entry a release; every ratio must be at most 1.
        asked: the queries themselves, in the same order.
        added: (mechanism, what it added to the left value over the sensitivity), one entry for each release by a
            mechanism that adds noise to a value.

    The same units are sampled on both sides. For an `ArgminQuery` the distance is between the noises that the two data
    sets would have needed for the same minimiser. For a `PassQuery` order and noise are those of the left side, and the
    query says what its sensitivity bounds: how far the end moves, or the noise that leads to the same end.
    """

    def __init__(
        self,
        left: Units | Engine,
        right: Units | Engine,
        ledger: Payer,
        *,
        noise: NoiseSource | None = None,
        understate: float = 0.0,
        engine: EngineName = "fast",
        place: int | None = None,
    ) -> None:
        """Open the audit; `understate` shrinks every sensitivity by that fraction, to show that the audit notices.

        Where one side has a unit more, `place` is its position there; None is the last. What is drawn for the units
        that both sides have is the same on both, wherever they stand: lots, samples, groups and orders.
        """
        self._noise = NoiseSource() if noise is None else noise
        self._left = LocalCurator(left, ledger, noise=self._noise, engine=engine)
        self._right = LocalCurator(right, Unlimited(ledger.relation), noise=self._noise, engine=engine)
        super().__init__(left.public, ledger, self._left.transcript)
        self._understate, self._place = understate, place
        self.moves: list[tuple[str, float]] = []
        self.asked: list[Query] = []
        self.added: list[tuple[Mechanism, NDArray[np.float64]]] = []

    @property
    def _sides(self) -> tuple[LocalCurator, LocalCurator]:
        return self._left, self._right

    def compare(self, query: Query) -> float:
        """How far the query moves over its stated sensitivity, without noise; nothing is charged or recorded.

        A minimiser is compared at one public point, a pass in one order and without noise.

        Raises:
            ValueError: the sensitivity is refused, see `safeguards.stated_sensitivity`.
        """
        stated = float(self._sensitivity(query, EveryUnit()))
        if isinstance(query, ArgminQuery):
            self._compare_noises(query, np.linspace(-1.0, 2.0, self.public.d), stated)
        elif isinstance(query, PassQuery):
            order = np.random.default_rng(0).permutation(self.public.n)
            self._compare_passes(query, order, lambda count: np.zeros((count, self.public.d)), stated)
        else:
            self._compare(query, EveryUnit(), None, stated)
        return self.moves[-1][1]

    def _keep_points(self, held: Held, query: MeanQuery, groups: int | None, sample: Stream | None) -> None:
        """The same groups, and the same order of points, on both sides."""
        query = self._left.with_lots(query)
        positions = max(side.private_positions for side in self._sides)
        private_draw = self._left.draw_points(groups, sample, positions)
        for side in self._sides:
            private_gone = self._gone(side)
            private_kept = (
                private_draw if private_gone is None else _points_without(private_gone, *private_draw)
            )
            side.hold_as(held, self._for_side(query, side), *private_kept)

    def _keep_mean(self, mean: HiddenMean) -> None:
        """The means of both sides under one handle, and how far apart they are."""
        for side in self._sides:
            side.hold_mean_as(mean)
        self._compare(mean.query, EveryUnit(), None, mean.sensitivity)

    def private_value(self, query: Query, sampling: Sampling, private_draw: NDArray[np.int64] | None) -> Any:
        """The value before noise, of the left side."""
        return self._left.private_value(query, sampling, private_draw)

    def _same_units(self, ledger: Payer) -> Self:
        sides = self._left.same_units(ledger), self._right.same_units(self._right.ledger)
        return self._pair(*sides, ledger, self._place)

    def _disjoint_units(
        self, sizes: Sequence[int], ledgers: Sequence[Payer], in_order: bool
    ) -> Sequence[Self]:
        """The same places on both sides, of whichever has more units."""
        private_count = max(side.private_engine.private_count for side in self._sides)
        generator = None if in_order else self._noise.units_generator
        parts = block_assignment(self.public, sizes, generator, private_count=private_count)
        return [
            self._pair(
                self._left.some_units(self._places(self._left, private_places), size, ledger),
                self._right.some_units(self._places(self._right, private_places), size, self._right.ledger),
                ledger,
                self._place_within(private_places),
            )
            for (private_places, size), ledger in zip(parts, ledgers, strict=True)
        ]

    def _mapped_units(self, row_map: NDArray[np.float64], row_bound: float) -> Self:
        left, right = (side.mapped_units(row_map, row_bound) for side in self._sides)
        return self._pair(left, right, self.ledger, self._place)

    def _pair(self, left: LocalCurator, right: LocalCurator, ledger: Payer, place: int | None) -> Self:
        """An audit of other units of both sides that shares what this one keeps."""
        child = self._copy(left.public, ledger)
        child._left, child._right, child._place = left, right, place
        return child

    def _gone(self, side: LocalCurator) -> int | None:
        """The position of the unit that this side lacks and the other one has; None if it lacks none."""
        counts = [one.private_engine.private_count for one in self._sides]
        if side.private_engine.private_count == max(counts):
            return None
        return min(counts) if self._place is None else self._place

    def _for_side(self, query: QueryType, side: LocalCurator) -> QueryType:
        """The query for one side: a unit that is gone has taken its lot along."""
        private_gone = self._gone(side)
        return query if private_gone is None else without_lot(query, private_gone)

    def _drawn(self, side: LocalCurator, private_draw: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
        """Where the units stand on this side that were drawn at some positions."""
        private_gone = self._gone(side)
        if private_draw is None or private_gone is None:
            return private_draw
        return moved_up(private_draw, private_gone, side.private_engine.private_count)

    def _places(self, side: LocalCurator, private_places: Places) -> Places:
        """Where the units of a block stand on this side."""
        if self._gone(side) is None:
            return private_places
        private_most = max(one.private_engine.private_count for one in self._sides)
        private_kept = self._drawn(side, private_places.within(0, private_most))
        assert private_kept is not None
        return GivenPlaces(private_kept)

    def _place_within(self, private_places: Places) -> int | None:
        """Where in a block the unit stands that one side lacks."""
        return None if self._place is None else int(private_places.before([self._place])[0])

    def _draw(self, sampling: Sampling) -> NDArray[np.int64] | None:
        """Positions of whichever side has more units."""
        return max(self._sides, key=lambda side: side.private_engine.private_count).private_draw(sampling)

    def _compare(
        self, query: Query, sampling: Sampling, private_draw: NDArray[np.int64] | None, sensitivity: float
    ) -> Any:
        """The left value; how far the right one is from it goes into `moves`. Both sides draw the same lots."""
        query = self._left.with_lots(query)
        left, right = (
            side.private_value(self._for_side(query, side), sampling, self._drawn(side, private_draw))
            for side in self._sides
        )
        moved = distance(np.asarray(left), np.asarray(right), query.norm)
        self._note(query, moved, sensitivity)
        return left

    def _note(self, query: Query, moved: float, sensitivity: float) -> None:
        self.moves.append((query.name, ratio(moved, sensitivity * (1.0 - self._understate))))
        self.asked.append(query)

    def _answer(self, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar) -> Any:
        if isinstance(query, PassQuery):
            return self._answer_pass(query, mechanism, float(sensitivity))
        if not isinstance(query, ArgminQuery):
            private_value = self._compare(query, sampling, self._draw(sampling), float(sensitivity))
            released = mechanism.release(self._noise, private_value, float(sensitivity))
            if np.shape(released) == np.shape(private_value) and 0.0 < float(sensitivity) < math.inf:
                added = (np.asarray(released) - np.asarray(private_value)) / float(sensitivity)
                self.added.append((mechanism, added))
            return released
        released = mechanism.release(
            self._noise, self._left.private_value(query, sampling, None), float(sensitivity)
        )
        self._compare_noises(query, released, float(sensitivity))
        return released

    def _compare_noises(self, query: ArgminQuery, solution: Any, sensitivity: float) -> None:
        """How far apart the noises are under which both sides have this minimiser."""
        noises = [
            np.asarray(
                query.implied_noise(
                    self.public,
                    side.private_engine.objective(query.objective(self.public)),
                    jnp.asarray(solution),
                )
            )
            for side in self._sides
        ]
        self._note(query, distance(noises[0], noises[1], query.norm), sensitivity)

    def _answer_pass(self, query: PassQuery, mechanism: Mechanism, sensitivity: float) -> Any:
        """The left release; its order and noise then lead both sides once more."""
        follow = self._left.private_value(query, EveryUnit(), None)
        orders: list[NDArray[np.int64]] = []
        drawn: list[NDArray[np.float64]] = []

        def watched(order: NDArray[np.int64], draw: Callable[[int], NDArray[np.float64]]) -> Any:
            def recorded(count: int) -> NDArray[np.float64]:
                drawn.append(draw(count))
                return drawn[-1]

            orders.append(order)
            return follow(order, recorded)

        asked: Any = watched  # the value is a function of what the mechanism draws
        released = mechanism.release(self._noise, asked, sensitivity)
        noise, used = np.concatenate([*drawn, np.zeros((0, self.public.d))]), 0

        def again(count: int) -> NDArray[np.float64]:
            nonlocal used
            used += count
            return noise[used - count : used]

        self._compare_passes(query, orders[0], again, sensitivity)
        return released

    def _compare_passes(
        self, query: PassQuery, order: Any, draw: Callable[[int], Any], sensitivity: float
    ) -> None:
        """What the sensitivity of a pass bounds, in this order and with this noise."""
        left, right = (side.private_engine.records() for side in self._sides)
        self._note(query, query.moved(self.public, left, right, order, draw), sensitivity)

    def lot(self) -> int:
        """See `Curator.lot`."""
        return self._left.lot()

    def private_stream_value(self, request: StreamRequest) -> Any:
        """The left value; how far the right one is from it is noted."""
        assert request.query is not None
        return self._compare(request.query, EveryUnit(), None, request.sensitivity)


def _points_without(
    private_gone: int, private_draw: PointDraw, private_sample: NDArray[np.bool_] | None
) -> tuple[PointDraw, NDArray[np.bool_] | None]:
    """How points are kept where a unit is gone; in an order its point is absent, behind all others."""
    if isinstance(private_draw, GroupDraw):
        private_groups = np.delete(private_draw.private_groups, private_gone)
        private_seeds = np.delete(private_draw.private_seeds, private_gone)
        kept = GroupDraw(count=private_draw.count, private_groups=private_groups, private_seeds=private_seeds)
        return kept, private_sample
    private_order = private_draw - (private_draw > private_gone)
    private_order[private_draw == private_gone] = len(private_draw) - 1
    if private_sample is not None:
        private_sample = np.append(np.delete(private_sample, private_gone), private_sample[private_gone])
    return private_order, private_sample


def moved_up(private_draw: NDArray[np.int64], private_gone: int, private_count: int) -> NDArray[np.int64]:
    """Where the units that were drawn stand among so many where one is gone: those behind it move up."""
    private_kept = private_draw[private_draw != private_gone]
    private_kept = private_kept - (private_kept > private_gone)
    return private_kept[private_kept < private_count]


def ratio(moved: float, stated: float) -> float:
    """How far a value moved over what is stated; a NaN that survived is as far as anything can move."""
    if moved == 0.0:
        return 0.0
    return moved / stated if stated > 0.0 and not math.isnan(moved) else math.inf


def distance(left: NDArray[Any], right: NDArray[Any], norm: str) -> float:
    """How far a value moved, in the norm that its query states a sensitivity for."""
    with np.errstate(all="ignore"):  # what overflows is far away
        moved = np.ravel(np.asarray(left, np.float64) - np.asarray(right, np.float64))
        if norm == "linf":
            return float(np.max(np.abs(moved), initial=0.0))
        if norm == "l1":
            return float(np.sum(np.abs(moved)))
        if norm == "range":
            return float(np.max(moved) - np.min(moved))
        largest = float(np.max(np.abs(moved), initial=0.0))
        if not 0.0 < largest < np.inf:
            return largest
        return largest * float(np.linalg.norm(moved / largest))  # squares neither vanish nor overflow
