"""An engine whose units are held by the workers of a Ray cluster."""

import dataclasses
import itertools
import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from privopt.data.participants import GroupDraw, drawn_positions
from privopt.data.places import Places, ranges_among
from privopt.data.record_source import Description, RecordSource
from privopt.data.storage import Extra
from privopt.data.units import Units, UnitsNoise
from privopt.data.user_keys import user_count
from privopt.engine.drawn_rows import DrawnRows, absent_rows, most_units
from privopt.engine.in_process import InProcessEngine
from privopt.engine.on_ray.cluster import Cluster
from privopt.engine.on_ray.fleet import PATIENCE, Call, Fleet
from privopt.engine.on_ray.layout import Choice, Mapped, Step, StoredRows, lay_out
from privopt.engine.on_ray.shard import SOURCE, LossQuestion, Question, question_of
from privopt.engine.on_ray.user_fleet import UserFleet, count_users
from privopt.engine.parts import ExactSum, Range, shares_of_parts
from privopt.engine.placement import Placement
from privopt.engine.reference import checked, group_ranges, product_bound, with_absent
from privopt.ledger.events import Sampling
from privopt.precision import in_float64
from privopt.proofs.huberised_objective import HuberisedObjective
from privopt.public import Public, Relation
from privopt.queries.base import MeanQuery, PassQuery, Query, RecordsQuery, Scalar
from privopt.queries.safeguards import stated_sensitivity

# ---- The sum of an objective's losses over records that workers hold: only sums over their parts travel ----
Vector = NDArray[np.float64]
_NONE = np.zeros(0)


class RemoteLossSum:
    """The sum over all workers, see `LossSum`; its numbers are those of `LossSumOverParts`, to the last bit.

    Args:
        fleet: the workers.
        known_as: what they know the units by.
        objective: whose losses are added up.
        private_rows: how many records there are.
        parts: of each worker, by its number.

    Privacy:
        The points that are asked about travel to the workers. They depend on the records, and are as private as rows.
    """

    def __init__(
        self,
        fleet: Fleet,
        known_as: int,
        objective: HuberisedObjective,
        private_rows: int,
        parts: Mapping[int, Sequence[int]],
    ) -> None:
        from ray.cloudpickle import cloudpickle  # late: an extra

        self._fleet, self._known_as, self._objective = fleet, known_as, objective
        self._form, self._private_rows, self._parts = cloudpickle.dumps(objective), private_rows, parts

    @property
    def private_rows(self) -> int:
        """See `LossSum.private_rows`."""
        return self._private_rows

    def gradient(self, at: Vector) -> Vector:
        """See `LossSum.gradient`."""
        return self._total("gradient", at, _NONE, self._objective.gradient_bound)

    def hessian(self, at: Vector) -> NDArray[np.float64]:
        """See `LossSum.hessian`."""
        return self._total("hessian", at, _NONE, self._objective.curvature)

    def hessian_product(self, at: Vector) -> Callable[[Vector], Vector]:
        """See `LossSum.hessian_product`."""
        return lambda vector: self._total("product", at, vector, product_bound(self._objective, vector))

    def _total(
        self, what: Literal["gradient", "hessian", "product"], at: Vector, vector: Vector, bound: float
    ) -> NDArray[np.float64]:
        asked = LossQuestion(self._form, what, np.asarray(at), np.asarray(vector), bound)
        one = sum(map(len, self._parts.values())) == 1
        # With privacy off no grid forgets the order, so it is that of the parts.
        if math.isinf(bound) and not one:
            private_sums = self._in_order(asked)
            return np.array(sum(private_sums[1:], start=private_sums[0]), np.float64)
        calls: dict[int, Call] = {k: ("loss_sum", (asked, parts)) for k, parts in self._parts.items()}
        private_total = self._fleet.total(self._known_as, calls)
        return np.array(private_total.plain if one else private_total.value(bound), np.float64)

    def _in_order(self, asked: LossQuestion) -> list[NDArray[np.float64]]:
        answers = list[ExactSum]()
        for k, parts in self._parts.items():
            for part in parts:
                answers += self._fleet.ask(self._known_as, {k: ("loss_sum", (asked, [part]))})
        return [answer.plain for answer in answers]


# Of rows that this process fetches from the workers for what needs all of them at once.
GATHERED_BYTES = 2**30
_PIECE_BYTES = 2**23  # of rows that travel at a time
PrivateShares = dict[int, dict[int, NDArray[np.int64] | None]]  # of each worker, by part


def unit_bytes(public: Public) -> int:
    """What a unit's stored rows take at most; public."""
    row = public.row_bytes if public.sparse else 8 * public.d
    return (row + 24) * public.records_per_unit


def open_on_ray(
    source: RecordSource,
    description: Description,
    placement: Placement,
    *,
    noise: UnitsNoise | None = None,
    patience: float = PATIENCE,
) -> "RayEngine":
    """Have the workers of a cluster read the records, each its parts; end it with `close`.

    Args:
        source: the records.
        description: what is public about the units.
        placement: the cluster's address, or None for one on this machine alone; how many workers; how many retries.
        noise: source of the secret choice of users' records; default: fresh, from the operating system.
        patience: seconds for one answer of a worker, who counts as lost after that; see `Fleet`.
    Raises:
        ArgumentError: the cluster cannot be used, see `Cluster.joined`; or keys of users are of types that only this
            process knows, which is said before anything is started.
        ValueError: what `Units.from_arrays` refuses.
        DataUnavailable: the records cannot be read.
    """
    source.require_portable()
    cluster = Cluster.joined(placement.address, trust_network=placement.trust_network)
    try:
        is_public = Relation.parse(description.relation) is Relation.REPLACE_ONE
        if source.by_user and description.n is None and is_public:
            users = count_users(source, description, placement, patience=patience)
            description = dataclasses.replace(description, n=user_count(users))
        layout = lay_out(source, description, noise)
        kind = Fleet if layout.secret is None else UserFleet
        fleet = kind(
            cluster,
            source,
            description,
            layout,
            workers=placement.workers,
            retries=placement.retries,
            patience=patience,
        )
    except BaseException:
        cluster.close()
        raise
    try:
        fleet.gather()
    except BaseException:
        fleet.close()
        raise
    ranges = [(plan.first, plan.first + plan.units) for plan in fleet.plans]
    return RayEngine(fleet, layout.public, SOURCE, ranges, layout.seeded, None)


class RayEngine:
    """Computes on units that workers hold, see `open_on_ray`.

    Sums are those of `InProcessEngine`, to the last bit: a part is computed as it is there, by whoever holds it, and
    what workers send up are sums of integers, which no order changes. What needs all rows at once (groups of units,
    a pass in a secret order) fetches them, and held vectors are fetched, where they take at most `GATHERED_BYTES`.

    Args:
        fleet: the workers.
        public: what is public about the units.
        known_as: what the workers know these units by.
        private_ranges: where each part begins and ends.
        seeded: see `Units.seeded`.
        parent: the engine that this one is a view or a subset of, kept while this one is.

    Privacy:
        Noise, ledger and draws are made in this process. What travels are rows where they are fetched, secret positions
        of those drawn, and sums before noise: the network between the machines must be theirs alone, or encrypted.
    """

    compiles = True

    def __init__(
        self,
        fleet: Fleet,
        public: Public,
        known_as: int,
        private_ranges: Sequence[Range],
        seeded: bool,
        parent: "RayEngine | None",
    ) -> None:
        self.public = public
        self.seeded = seeded
        self.origin, self.laid_out = fleet.origin, fleet.laid_out
        self._fleet = fleet
        self._known_as = known_as
        self._private_ranges = private_ranges
        self._parent = parent
        if parent is None:
            self._given_back = weakref.finalize(self, fleet.close)
        else:
            self._given_back = weakref.finalize(self, fleet.forget, known_as)

    @property
    def described(self) -> str:
        """Where the records are, in words for reports.

        Privacy:
            Of public facts alone: how many workers there are is not among them, as no more are started than there are
            parts, whose number is private under add-or-remove-one.
        """
        return self._fleet.cluster.described

    @property
    def private_count(self) -> int:
        """See `Engine.private_count`."""
        return self._private_ranges[-1][1]

    def require(self, kind: type[Query], held: int = 0) -> None:
        """See `Engine.require`."""
        if issubclass(kind, PassQuery | RecordsQuery):
            self._require_fit(kind.__name__)
        if 8 * held > GATHERED_BYTES:
            raise ValueError(
                f"{kind.__name__} is to be held for each unit in this process, which fetches at most "
                f"{GATHERED_BYTES:,} bytes from the workers of a cluster; {held:,} numbers take {8 * held:,}: keep the "
                "records in memory (engine='memory'), or ask for means."
            )

    def sensitivity(self, query: MeanQuery, sampling: Sampling) -> Scalar:
        """See `Engine.sensitivity`."""
        return stated_sensitivity(query, self.public, sampling)

    def clipped_sum(
        self, query: MeanQuery, private_draw: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """See `Engine.clipped_sum`: one call a worker, and one sum up from each."""
        with in_float64(), np.errstate(all="ignore"):  # a warning must not depend on the data
            question = question_of(checked(query, self.public))
            private_shares = self._shares(private_draw)
            if math.isinf(question.radius):
                return self._sum_in_order(question, private_shares)
            calls: dict[int, Call] = {
                k: ("answer", (question, private_draws)) for k, private_draws in private_shares.items()
            }
            everybody = private_draw is None and not self.public.drawn
            private_total = self._fleet.total(self._known_as, calls, told=everybody)
            # One part is no sum of parts: it is not rounded to their grid.
            one = len(self._private_ranges) == 1
            return np.array(private_total.plain if one else private_total.value(question.radius), np.float64)

    def gather(self, query: MeanQuery) -> NDArray[np.float64]:
        """See `Engine.gather`: the workers compute those of their parts, and send them piece by piece."""
        width, n = math.prod(query.shape(self.public)), self.public.n
        self.require(type(query), n * width)
        with in_float64(), np.errstate(all="ignore"):
            question = question_of(checked(query, self.public))
            private_all: NDArray[np.float64] | None = None
            rows = max(most_units(self.public), self.private_count)
            at_once = max(1, _PIECE_BYTES // (8 * max(width, 1)))
            pieces: dict[int, list[tuple[int, Call]]] = {}  # of each worker, with where they go
            for part, (first, stop) in enumerate(self._private_ranges):
                for start in range(0, stop - first, at_once):
                    piece = (start, min(start + at_once, stop - first))
                    call: Call = ("vectors", (question, part, piece))
                    pieces.setdefault(self._fleet.owner(part), []).append((first + start, call))
            for turn in itertools.zip_longest(*pieces.values()):
                asked = {k: piece for k, piece in zip(pieces, turn, strict=True) if piece is not None}
                private_found = self._fleet.ask(self._known_as, {k: call for k, (_, call) in asked.items()})
                for (place, _), private_vectors in zip(asked.values(), private_found, strict=True):
                    if private_all is None:  # a contribution may be wider than the value that is made of it
                        private_all = np.zeros((rows, private_vectors.shape[1]))
                    private_all[place : place + len(private_vectors)] = private_vectors
            return np.zeros((rows, width)) if private_all is None else private_all

    def gather_groups(self, query: MeanQuery, private_draw: GroupDraw) -> NDArray[np.float64]:
        """See `Engine.gather_groups`: some groups at a time, whose units may lie with any worker, are fetched."""
        self.require(type(query), private_draw.count * math.prod(query.shape(self.public)))
        private_groups = private_draw.private_groups[: self.private_count]
        private_vectors = list[NDArray[np.float64]]()
        for start, stop in group_ranges(self.public, private_draw.count):
            private_positions = np.flatnonzero((start <= private_groups) & (private_groups < stop))
            private_units = self._units_at(private_positions)
            private_some = GroupDraw(
                count=private_draw.count,
                private_groups=private_groups[private_positions],
                private_seeds=private_draw.private_seeds[private_positions],
            )
            private_engine = InProcessEngine(private_units)
            private_vectors.append(private_engine.group_vectors(query, private_some, [(start, stop)]))
        return np.concatenate(private_vectors)

    def presence(self) -> NDArray[np.bool_]:
        """See `Engine.presence`."""
        if self.public.relation is Relation.REPLACE_ONE:
            return np.ones(self.public.n, np.bool_)
        calls: dict[int, Call] = {k: ("there", (list(parts),)) for k, parts in self._shares(None).items()}
        private_found = self._fleet.ask(self._known_as, calls)
        private_parts = [part for private_parts in private_found for part in private_parts]
        return with_absent(private_parts, self.private_count, self.public)

    def draw(self, sampling: Sampling, generator: np.random.Generator) -> NDArray[np.int64]:
        """See `drawn_positions`."""
        return drawn_positions(sampling, generator, n=self.public.n, private_count=self.private_count)

    def records(self) -> tuple[Any, NDArray[np.float64]]:
        """See `Engine.records`."""
        self._require_fit("a query of all records at once")
        return self._fetched.records()

    def objective(self, objective: HuberisedObjective) -> RemoteLossSum:
        """See `Engine.objective`: one call a worker for each gradient or Hessian, and one sum up from each."""
        private_shares = {k: list(private_draws) for k, private_draws in self._shares(None).items()}
        return RemoteLossSum(self._fleet, self._known_as, objective, self.private_count, private_shares)

    def rows(self, private_draw: NDArray[np.int64], room: int) -> DrawnRows:
        """See `Engine.rows`: fetched some at a time, from all who hold some of them at once."""
        private_all: DrawnRows | None = None
        for start in range(0, max(len(private_draw), 1), self._at_once):
            private_some = private_draw[start : start + self._at_once]
            calls: dict[int, Call] = {
                k: ("drawn", (private_draws,)) for k, private_draws in self._shares(private_some).items()
            }
            private_blocks = [block for blocks in self._fleet.ask(self._known_as, calls) for block in blocks]
            if private_all is None:
                private_first = private_blocks[0].private_features
                private_all = absent_rows(room, self.public.d, private_first.dtype)
            private_places = start + np.argsort(self._owners(private_some), kind="stable")
            for private_column, private_values in zip(
                private_all, zip(*private_blocks, strict=True), strict=True
            ):
                private_column[private_places] = np.concatenate(private_values)
        assert private_all is not None
        return private_all

    def held_rows(self) -> DrawnRows | None:
        """See `Engine.held_rows`: workers hold them."""
        return None

    def view(self, matrix: NDArray[np.float64], row_bound: float) -> "RayEngine":
        """See `Engine.view`: the workers map the rows of their parts."""
        # What is public about mapped rows, from no rows at all; refused as `Units.mapped` does.
        nobody = StoredRows(
            np.zeros((0, self.public.d)), np.zeros(0), np.zeros(0), np.zeros(0, np.bool_), None, None
        )
        public = nobody.units(self.public).mapped(matrix, row_bound).public
        return self._child(Mapped(np.asarray(matrix, np.float64), row_bound), public, self._private_ranges)

    def subset(self, private_places: Places, size: int) -> "RayEngine":
        """See `Engine.subset`: units stay in their parts, whose workers find the places among theirs."""
        private_ranges = ranges_among(self._private_ranges, private_places)
        firsts = [first for first, _ in private_ranges]
        step = Choice(size, private_places, self._private_ranges, firsts)
        return self._child(step, self.public.block(size), private_ranges)

    def reserve(self, extra: Extra) -> None:
        """See `Engine.reserve`: workers keep all in their memory."""
        del extra

    def close(self) -> None:
        """See `Engine.close`: the workers end with the engine that `open_on_ray` made."""
        self._given_back()

    def __repr__(self) -> str:
        return f"RayEngine(<private>, {self.public!r})"

    @property
    def _at_once(self) -> int:
        """How many units travel at a time."""
        return max(1, _PIECE_BYTES // unit_bytes(self.public))

    def _owners(self, private_positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The parts of the units at some positions."""
        return np.searchsorted([stop for _, stop in self._private_ranges], private_positions, side="right")

    def _require_fit(self, what: str) -> None:
        needed = self.public.n * unit_bytes(self.public)
        if needed > GATHERED_BYTES:
            raise ValueError(
                f"{what} needs all rows in this process, which fetches at most {GATHERED_BYTES:,} bytes from the "
                f"workers of a cluster; n = {self.public.n:,} units could take {needed:,}: "
                "keep the records in memory (engine='memory'), or ask for means."
            )

    @cached_property
    def _fetched(self) -> InProcessEngine:
        """The same units in this process."""
        private_units = self._units_at(np.arange(self.private_count))
        return InProcessEngine(private_units, private_ranges=self._private_ranges)

    def _units_at(self, private_positions: NDArray[np.int64]) -> Units:
        """The units at some positions, in this process."""
        private_pieces = self._pieces(private_positions)
        return StoredRows.joined(private_pieces).units(self.public, seeded=self.seeded, origin=self.origin)

    def _pieces(self, private_positions: NDArray[np.int64]) -> list[StoredRows]:
        """The stored rows at some positions, in the order of the parts, fetched some at a time of each worker."""
        private_asked = [
            (part, private_share[start : start + self._at_once])
            for part, private_share in enumerate(shares_of_parts(private_positions, self._private_ranges))
            for start in range(0, len(private_share), self._at_once)
        ] or [(0, np.zeros(0, np.int64))]
        places: dict[int, list[int]] = {}  # of each worker, which of these it has
        for place, (part, _) in enumerate(private_asked):
            places.setdefault(self._fleet.owner(part), []).append(place)
        private_found: dict[int, StoredRows] = {}
        for turn in itertools.zip_longest(*places.values()):
            now = {k: place for k, place in zip(places, turn, strict=True) if place is not None}
            calls: dict[int, Call] = {k: ("taken", private_asked[place]) for k, place in now.items()}
            private_found.update(zip(now.values(), self._fleet.ask(self._known_as, calls), strict=True))
        return [private_found[place] for place in range(len(private_asked))]

    def _shares(self, private_draw: NDArray[np.int64] | None) -> PrivateShares:
        """What each worker sums over: its parts, and who takes part in each. A part of which nobody does is left out.

        Privacy:
            Who is asked shows in running time, and to whoever sees the network.
        """
        parts = range(len(self._private_ranges))
        private_shares: dict[int, NDArray[np.int64] | None]
        if private_draw is None:
            private_shares = dict.fromkeys(parts)
        else:
            private_drawn = shares_of_parts(private_draw, self._private_ranges)
            asked = [part for part in parts if len(private_drawn[part])] or [0]
            private_shares = {part: private_drawn[part] for part in asked}
        calls: PrivateShares = {}
        for part, private_share in private_shares.items():
            calls.setdefault(self._fleet.owner(part), {})[part] = private_share
        return calls

    def _sum_in_order(self, question: Question, private_shares: PrivateShares) -> NDArray[np.float64]:
        """The sum where privacy is off: there is no grid, so that the order shows; that of the parts, one by one."""
        private_sums = [
            self._fleet.ask(self._known_as, {k: ("answer", (question, {part: private_share}))})[0].plain
            for k, private_draws in private_shares.items()
            for part, private_share in private_draws.items()
        ]
        return np.array(sum(private_sums[1:], start=private_sums[0]), np.float64)

    def _child(self, step: Step, public: Public, private_ranges: Sequence[Range]) -> "RayEngine":
        known_as = self._fleet.known_as(self._known_as, step)
        return RayEngine(self._fleet, public, known_as, private_ranges, self.seeded, self)
