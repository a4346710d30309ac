"""The curator that holds the data: the only way a number computed from them gets out.

A solver is a program over a curator. It asks for releases and gets noised answers; it never holds data. The same
program runs against several curators: `LocalCurator` (this file) answers from data, `replay.Replay` from a recorded
transcript, `dry_run.DryRun` with zeros (the price), `audit.Audit` from two neighbouring data sets at once.

Every request is priced first and looked at second: see `base.Curator`.
"""

import contextlib
from collections.abc import Generator, MutableMapping, Sequence
from functools import partial
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from privopt.curator import loops, scan
from privopt.curator.base import Curator, Observer
from privopt.curator.handles import Feed, Held, HiddenMean, Stream, StreamRequest
from privopt.curator.transcript import Transcript
from privopt.data.blocks import Assigned, block_assignment
from privopt.data.participants import GroupDraw, draw_groups, poisson_positions, takes_everybody
from privopt.data.places import Places
from privopt.data.units import Units
from privopt.engine.choose import engine_on
from privopt.engine.drawn_rows import most_units
from privopt.engine.protocol import Engine, EngineName
from privopt.later import jnp
from privopt.ledger.events import EveryUnit, Sampling, expected_units
from privopt.ledger.payer import Payer
from privopt.mechanisms.base import Mechanism, StreamMechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.prefix_sum import PrefixSumState
from privopt.mechanisms.tests import TestedSamples
from privopt.proofs.huberised_sum import LossSum
from privopt.public import Public
from privopt.queries.base import (
    ArgminQuery,
    FunctionOfMean,
    MeanQuery,
    ObjectiveQuery,
    PassQuery,
    Query,
    RecordsQuery,
    Scalar,
    StatisticOfHeld,
)
from privopt.queries.lots import drawn_lots
from privopt.queries.safeguards import require_pure

Lotted = TypeVar("Lotted", bound=Query)
PointDraw = NDArray[np.int64] | GroupDraw  # the secret order of units' points, or the groups

__all__ = ["Curator", "Held", "LocalCurator", "Observer", "Stream"]


class LocalCurator(Curator):
    """The curator that holds data, noise and ledger.

    Args:
        data: the units, or an engine that computes on them wherever they are.
        ledger: the budget; built from a plan, or a filter (see `ledger.ledger`).
        noise: secret randomness; default: fresh, from the operating system.
        observer: for progress bars: called with (name, count) after releases, and with (what, 0) before a stage that
            may take a while; sees nothing private.
        transcript: where releases are recorded; default: a new one.
        engine: what computes on the units given: "fast", or "reference", the plain path that the fast one is checked
            against.
    """

    def __init__(
        self,
        data: Units | Engine,
        ledger: Payer,
        *,
        noise: NoiseSource | None = None,
        observer: Observer | None = None,
        transcript: Transcript | None = None,
        engine: EngineName = "fast",
    ) -> None:
        private_engine = engine_on(data, engine) if isinstance(data, Units) else data
        public = private_engine.public
        transcript = Transcript(public.relation) if transcript is None else transcript
        super().__init__(public, ledger, transcript, observer)
        self._noise = NoiseSource() if noise is None else noise
        self._take(private_engine)
        transcript.eager = not private_engine.compiles

    def _take(self, private_engine: Engine) -> None:
        """Answer about these units, of which nothing is kept yet."""
        ledger, transcript, public = self.ledger, self.transcript, private_engine.public
        if ledger.relation is not public.relation:
            raise ValueError(
                f"the ledger keeps {ledger.relation.value} privacy, but the units are described under "
                f"{public.relation.value}: sensitivities and prices must be of one relation."
            )
        transcript.seeded = transcript.seeded or self._noise.seeded or private_engine.seeded
        transcript.exact_noise = transcript.exact_noise and self._noise.exact
        if transcript.seeded:
            ledger.mark_seeded()
        self.private_engine = private_engine
        # Mechanisms that were seen to draw floats, whatever they call themselves.
        self._of_floats = set[type]()
        self._private_held: dict[Held, tuple[NDArray[np.float64], NDArray[np.bool_]]] = {}
        # A mean is gone with its handle: a run may hold one a step.
        self._private_means: MutableMapping[HiddenMean, NDArray[np.float64]] = WeakKeyDictionary()

    def _keep_points(self, held: Held, query: MeanQuery, groups: int | None, sample: Stream | None) -> None:
        query = self.with_lots(query)
        self.hold_as(held, query, *self.draw_points(groups, sample, self.private_positions))

    def _keep_mean(self, mean: HiddenMean) -> None:
        self.hold_mean_as(mean)

    def hold_mean_as(self, handle: HiddenMean) -> None:
        """Compute the mean of a handle on these units, and keep it under the handle."""
        require_pure(handle.query, self.public)
        self._private_means[handle] = np.asarray(self.private_value(handle.query, EveryUnit(), None))

    def with_lots(self, query: Lotted) -> Lotted:
        """The query with fresh lots for the units, if it draws any."""
        return drawn_lots(query, self._noise.units_generator)

    def lot(self) -> int:
        """See `Curator.lot`."""
        return int(self._noise.public_generator.integers(0, 2**63))

    @property
    def private_positions(self) -> int:
        """How many points units have, absent ones included, see `most_units`."""
        return max(most_units(self.public), self.private_engine.private_count)

    def draw_points(
        self, groups: int | None, sample: Stream | None, positions: int
    ) -> tuple[PointDraw, NDArray[np.bool_] | None]:
        """How the points of the units at some positions are kept: in groups, or in which order.

        Returns:
            The groups or the order; and who is in the sample, if one is drawn: each position by a draw of its own.
        """
        generator = self._noise.units_generator
        if groups is not None:
            return draw_groups(self.public, groups, generator, private_count=positions), None
        order = generator.permutation(positions)
        if sample is None or not isinstance(sample.mechanism, TestedSamples):
            return order, None
        private_sample = np.zeros(positions, np.bool_)
        private_sample[poisson_positions(sample.mechanism.rate, positions, generator)] = True
        return order, private_sample

    def hold_as(
        self,
        handle: Held,
        query: MeanQuery,
        private_draw: PointDraw,
        private_sample: NDArray[np.bool_] | None = None,
    ) -> None:
        """Keep the points under a handle, as they were drawn for as many positions as this curator has, or more."""
        require_pure(query, self.public)
        if isinstance(private_draw, GroupDraw):
            private_points = self.private_engine.gather_groups(query, private_draw)
            self._private_held[handle] = (private_points, np.ones(len(private_points), np.bool_))
            return
        private_order = private_draw[private_draw < self.private_positions]
        private_present = self.private_engine.presence()
        if private_sample is not None:
            private_present = private_present & private_sample[: len(private_present)]
        self._private_held[handle] = (
            self.private_engine.gather(query)[private_order],
            private_present[private_order],
        )

    def same_units(self, ledger: Payer) -> Self:
        """A curator of the same units with another ledger."""
        curator = self._child(self.private_engine, ledger)
        curator._private_held, curator._private_means = self._private_held, self._private_means
        return curator

    def some_units(self, private_places: Places, size: int, ledger: Payer) -> Self:
        """A curator of the units at some places, `size` of them as far as anybody may know."""
        return self._child(self.private_engine.subset(private_places, size), ledger)

    def mapped_units(self, row_map: NDArray[np.float64], row_bound: float) -> Self:
        """A curator of the same units with mapped rows, see `Units.mapped`."""
        curator = self._child(self.private_engine.view(row_map, row_bound), self.ledger)
        curator._private_held, curator._private_means = self._private_held, self._private_means
        return curator

    def _same_units(self, ledger: Payer) -> Curator:
        return self.same_units(ledger)

    def _disjoint_units(
        self, sizes: Sequence[int], ledgers: Sequence[Payer], in_order: bool
    ) -> Sequence[Self]:
        parts = self._parts(sizes, in_order)
        return [
            self.some_units(private_places, size, ledger)
            for (private_places, size), ledger in zip(parts, ledgers, strict=True)
        ]

    def _parts(self, sizes: Sequence[int], in_order: bool) -> Assigned:
        """Where the units of each block stand, and how many there are."""
        private_count = self.private_engine.private_count
        generator = None if in_order else self._noise.units_generator
        return block_assignment(self.public, sizes, generator, private_count=private_count)

    def _mapped_units(self, row_map: NDArray[np.float64], row_bound: float) -> Curator:
        return self.mapped_units(row_map, row_bound)

    def _child(self, private_engine: Engine, ledger: Payer) -> Self:
        child = self._copy(private_engine.public, ledger)
        child._take(private_engine)
        return child

    def _require_answer(self, kind: type[Query]) -> None:
        self.private_engine.require(kind)

    def _exact_sensitivity(self, query: MeanQuery, sampling: Sampling) -> Scalar:
        return self.private_engine.sensitivity(query, sampling)

    def private_value(self, query: Query, sampling: Sampling, private_draw: NDArray[np.int64] | None) -> Any:
        """The value before noise; a function of the noise for an `ArgminQuery` or a `PassQuery`."""
        if isinstance(query, MeanQuery):
            private_sum = self.private_engine.clipped_sum(query, private_draw)
            # By the reciprocal, as a compiled loop divides by a constant: the same number to the last bit.
            with np.errstate(all="ignore"):  # a warning must not depend on the data
                private_mean = private_sum * (1.0 / expected_units(sampling, self.public.n))
            finishes = type(query).finish is not MeanQuery.finish
            return query.finish(jnp.asarray(private_mean)) if finishes else private_mean
        if isinstance(query, StatisticOfHeld):
            if query.held not in self._private_held:
                raise ValueError(
                    f"{query.name} asks for vectors that another curator holds: ask the curator that holds them."
                )
            private_vectors, private_present = self._private_held[query.held]
            private_statistic = query.value(jnp.asarray(private_vectors), jnp.asarray(private_present))
            return _shaped(query, private_statistic, self.public)
        if isinstance(query, FunctionOfMean):
            if query.mean not in self._private_means:
                raise ValueError(
                    f"{query.name} asks for a mean that another curator holds: ask the curator that holds it."
                )
            with np.errstate(all="ignore"):  # a warning must not depend on the data
                return _shaped(query, query.value(self._private_means[query.mean]), query.mean.public)
        if isinstance(query, ArgminQuery):
            return partial(query.minimise, self.public, self._private_loss_sum(query))
        if isinstance(query, ObjectiveQuery):
            return _shaped(query, query.value(self.public, self._private_loss_sum(query)), self.public)
        if isinstance(query, PassQuery):
            return partial(query.follow, self.public, *self.private_engine.records())
        if isinstance(query, RecordsQuery):
            return _shaped(query, query.value(self.public, *self.private_engine.records()), self.public)
        raise TypeError(
            f"no engine computes a {type(query).__name__}: derive it from RecordSum, UnitSum, RecordsQuery, "
            "ObjectiveQuery, ArgminQuery, PassQuery, StatisticOfHeld or FunctionOfMean."
        )

    def _private_loss_sum(self, query: ArgminQuery | ObjectiveQuery) -> LossSum:
        return self.private_engine.objective(query.objective(self.public))

    def private_draw(self, sampling: Sampling) -> NDArray[np.int64] | None:
        if takes_everybody(sampling, self.public.n):
            return None
        return self.private_engine.draw(sampling, self._noise.units_generator)

    def _answer(self, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar) -> Any:
        query = self.with_lots(query)
        private_value = self.private_value(query, sampling, self.private_draw(sampling))
        with self._noting_floats(mechanism):
            return mechanism.release(self._noise, private_value, float(sensitivity))

    @contextlib.contextmanager
    def _noting_floats(self, mechanism: Mechanism | StreamMechanism) -> Generator[None]:
        """Where noise of this mechanism is drawn: what it is made of decides what the transcript calls it."""
        if not self._noise.exact:
            yield
            return
        self._noise.drew_floats()
        yield
        if self._noise.drew_floats():
            self._of_floats.add(type(mechanism))

    def _is_exact(self, mechanism: Any) -> bool:
        return super()._is_exact(mechanism) and type(mechanism) not in self._of_floats

    def private_stream_value(self, request: StreamRequest) -> Any:
        """See `Curator.private_stream_value`."""
        assert request.query is not None
        return self.private_value(self.with_lots(request.query), EveryUnit(), None)

    def _iterate_compiled(self, loop: loops.Loop) -> loops.Looped:
        open_feeds = {name: self._open_feed(feed) for name, feed in loop.feeds.items()}
        looped = scan.run(
            loop,
            public=self.public,
            draws=scan.SecretDraws(self._noise, self.private_engine, open_feeds, self._noting_floats),
            observe=self._observe,
        )
        for name, feed in open_feeds.items():
            last = max((k for k, slot in enumerate(loop.slots) if slot.feed == name), default=None)
            if last is not None:
                feed.state.prefix = np.array(looped.released[last][-1], np.float64)
        return looped

    def _open_feed(self, feed: Feed) -> scan.OpenFeed:
        """What a compiled loop needs of a stream that it feeds from blocks of these units."""
        state = self._streams[feed.stream.key].state
        assert isinstance(state, PrefixSumState)
        return scan.OpenFeed(feed.mechanism, state, tuple(block.private_engine for block in feed.on))


def _shaped(query: Query, private_value: Any, public: Public) -> Any:
    """The value, refused if it has another shape than the query states: noise of that shape would be shared."""
    if np.shape(private_value) != tuple(query.shape(public)):
        raise ValueError(
            f"{query.name} states the shape {tuple(query.shape(public))}, but its value has another: noise is drawn in "
            "the shape that is stated, one draw for each entry."
        )
    return private_value
