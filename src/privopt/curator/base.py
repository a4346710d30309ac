"""The curator: the only object through which a solver reaches private data, and it gives back releases only.

What it keeps of the data between releases, a solver refers to by handles, which hold no value (`handles.py`).

A release goes through five stations, of which only the fourth reads data: checks of classes and public numbers, the
sensitivity, the charge to the ledger, the noised answer, the line in the transcript. A release that is refused has read
nothing. Subclasses say where answers come from: from data (`local.py`), from zeros in a dry run without data
(`dry_run.py`), or from recorded releases (`replay.py`).
"""

import abc
import contextlib
import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from privopt.curator import loops, streams
from privopt.curator.handles import Feed, Held, HiddenMean, OpenStream, Stream, StreamRequest, points_for
from privopt.curator.transcript import FilterMark, PublicDraw, Release, Transcript, answering
from privopt.data.blocks import Block, Lineage, block_sizes, require_order
from privopt.engine.rounding import rounding_bound
from privopt.later import Array
from privopt.ledger.events import (
    Event,
    EveryUnit,
    NoEvent,
    NonPrivateEvent,
    Repeated,
    Sampling,
    expected_units,
)
from privopt.ledger.events import Sequence as EventSequence
from privopt.ledger.payer import Payer
from privopt.mechanisms.additive import Gaussian, Laplace
from privopt.mechanisms.base import HiddenState, Mechanism, StreamMechanism, checked_sensitivity
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.tests import TestedSamples
from privopt.precision import as_released, require_double_precision
from privopt.public import Public
from privopt.queries.base import MeanQuery, Query, Scalar
from privopt.queries.safeguards import stated_sensitivity

# Told of progress: (name, 1) after a release, (stage, 0) before a stage that may take a while.
Observer = Callable[[str, int], None]


class Curator(abc.ABC):
    """Answers the releases of one run on one set of units; see the module. A run may use several curators.

    `blocks`, `allot`, `filtered` and `view` give further curators: on disjoint parts of the units, on a part of the
    budget, under a privacy filter, on mapped rows. All of them write into the same transcript.

    Attributes:
        public: sizes, bounds and neighbouring relation of the curator's data.
        ledger: the sum of the charges; it refuses a charge beyond its budget before any data are read.
        transcript: all releases of the run so far, in order.
        lineage: the block of the units that this curator answers about, as a path of blocks within blocks; empty for
            all units.
        cut_from: the curator whose `blocks` made this one; None for any other.
        under: the outermost filter that pays for releases here; None if each release is charged by itself.
    """

    lineage: Lineage = ()
    cut_from: "Curator | None" = None
    under: FilterMark | None = None
    _noise: NoiseSource

    def __init__(
        self, public: Public, ledger: Payer, transcript: Transcript, observer: Observer | None = None
    ) -> None:
        self.public = public
        self.ledger = ledger
        self.transcript = transcript
        self._observer = observer
        self._streams: dict[int, OpenStream] = {}

    # Releases ----------------------------------------------------------------------------------------------------
    def release(self, query: Query, mechanism: Mechanism, sampling: Sampling = EveryUnit()) -> Array:
        """Release one noised value.

        Args:
            query: the value to compute, with its public points and its sensitivity.
            mechanism: the noise, relative to the sensitivity, and with it the price.
            sampling: which units take part: all of them, or a secret sample that the curator draws.
        Returns:
            The released value, shape `query.shape(public)`, float64 (an index for a selection).
        Privacy:
            Charged before data is read, by `sampling.event(mechanism.event())`; the noise is scaled by the
            query's sensitivity plus the engine's rounding bound.
        Raises:
            BudgetExceeded, PlanMismatch: nothing was read or spent.
            ValueError: the query's sensitivity is not in the mechanism's norm, or infinite, or the query cannot be
                sampled; nothing was read or spent.
        """
        # From public facts alone, up to the charge: a refusal by any of these lines has read no data.
        require_double_precision()
        loops.require_fit(query, mechanism, sampling, self.public)
        self._require_answer(type(query))
        price, about = mechanism.event(), query.about
        event = sampling.event(price)
        sensitivity = self._sensitivity(query, sampling)
        checked_sensitivity(sensitivity, noisy=price != NonPrivateEvent())
        self._require_room(mechanism, query.shape(self.public))
        self.ledger.charge(query.name, event)
        # Paid: whatever interrupts the answer, the transcript gets a line with the price.
        with self._paid_for([(query.name, mechanism, event, sampling)]):
            released = self._answer(query, mechanism, sampling, sensitivity)
            released_once = np.asarray(released)[None]
            self._record(query.name, mechanism, event, sampling, [sensitivity], released_once, about=about)
        self._observe(query.name, 1)
        return as_released(released)

    def iterate(
        self, step: loops.Step, state: Any, times: int, *, feeds: Mapping[str, Feed] = MappingProxyType({})
    ) -> Any:
        """Run `state = step(state, release)` `times` times, charged as a whole before the first step.

        `step` is pure; its only access to data is `release(query, mechanism, sampling)`, and `release(query,
        into=name)`, which feeds a stream of prefix sums and answers with the sum. When every release in it is a sampled
        mean over dense records, or a mean over blocks of them that feeds a stream, the loop is compiled into one
        `lax.scan`; otherwise the same step runs eagerly. A step that is hashable by value (a frozen dataclass with
        `__call__`) compiles once for all runs.

        Args:
            step: one step of the solver, with the same release calls in each step.
            state: a pytree of arrays, kept in shape and dtype by `step`.
            times: number of steps, at least 0. Public.
            feeds: the open streams that the steps feed, by name; free, since they were charged when they opened.
        Returns:
            The last state.
        Raises:
            BudgetExceeded, PlanMismatch: nothing was read or spent.
            ValueError: a mechanism's cost depends on the state; such loops use `release`. Or a stream was not charged
                for the items.
        """
        require_double_precision()
        if times == 0:
            return state
        # One slot per release call of a step, found by tracing the step without data.
        slots = loops.declared_releases(step, state, self.public, feeds, times)
        for slot in slots:
            self._require_answer(slot.kind)
            self._require_room(slot.mechanism, slot.shape)
        # How many items the loop adds to each stream.
        items = {name: times * sum(slot.feed == name for slot in slots) for name in feeds}
        with streams.feeding(self, self._streams, feeds, items):
            priced = [slot for slot in slots if not slot.feed]
            self._charge_loop(priced, times)
            run = self._iterate_compiled if self._compiles(slots, feeds) else self._iterate_eagerly
            paid = [(slot.name, slot.mechanism, slot.event(), slot.sampling) for slot in priced]
            with streams.fed(self._streams, feeds), self._paid_for(paid, times):
                state, released, sensitivities = run(loops.Loop(step, state, times, slots, feeds))
                scales = streams.scales_of_feeds(self._streams, slots, feeds, sensitivities)
                for slot, values, moved, stated in zip(slots, released, sensitivities, scales, strict=True):
                    mechanism = feeds[slot.feed].mechanism if slot.feed else slot.mechanism
                    self._record(slot.name, mechanism, slot.event(), slot.sampling, moved, values, stated)
        if times == 1:
            for slot in slots:
                self._observe(slot.name, 1)
        return state

    def affords(self, mechanism: Mechanism, sampling: Sampling = EveryUnit()) -> bool:
        """Whether the ledger would accept the charge for a release by `mechanism` now."""
        return self.ledger.affords(sampling.event(mechanism.event()))

    def public_seed(self, name: str) -> int:
        """A public random number of 63 bits, such as the seed of random directions, recorded in the transcript.

        Privacy:
            Free: it comes from a random stream of its own, independent of the data, the noise and the samples, so a
            release may depend on it as on any public number.
        """
        seed = int(self._draw_public_seed(name))
        self._record(name, PublicDraw(), NoEvent(), EveryUnit(), [], np.asarray([seed], np.int64))
        self._observe(name, 1)
        return seed

    def announce(self, stage: str) -> None:
        """Tell the observer that a stage begins, as (stage, 0), for progress output. Nothing is charged or released."""
        self._observe(stage, 0)

    # Streams -----------------------------------------------------------------------------------------------------
    def stream(self, name: str, mechanism: StreamMechanism, shape: tuple[int, ...] = ()) -> Stream:
        """Open a mechanism with hidden state; its whole declared schedule is charged now.

        Args:
            name: what the transcript calls it.
            mechanism: opens the state; its `requests` are asked through the handle.
            shape: shape of one item.
        Raises:
            BudgetExceeded, PlanMismatch: nothing was read or spent.
            ValueError: no integers hold its noise; likewise.
        """
        event = mechanism.event()
        self._require_room(mechanism, shape)
        self.ledger.charge(name, event)
        key = self.transcript.next_stream()
        with self._paid_for([(name, mechanism, event, EveryUnit())]):
            self._streams[key] = OpenStream(self._open_stream(name, mechanism, shape), mechanism.scales())
            self._record(name, mechanism, event, EveryUnit(), [], np.zeros((1, 0)))
        self._observe(name, 1)
        return Stream(self, mechanism, key)

    def ask_stream(self, request: StreamRequest) -> Any:
        """Feed or draw from an open stream; see `Stream.ask`. Free: the stream was charged when it opened."""
        request.require_declared()
        stream, mechanism, query, source = (
            self._streams[request.key],
            request.mechanism,
            request.query,
            request.source,
        )
        with stream:
            loops.require_sample(stream, request)
            if query is not None:
                loops.require_fit(query, mechanism, EveryUnit(), source.public)
                source._require_answer(type(query))
                request = source.priced_for_stream(request)
                streams.require_entry(self, stream.entered, mechanism, source)
            released = self._answer_stream(request, stream.state)
            scale = None
            if query is not None:  # what was refused above has entered nothing
                stream.entered.add(source.lineage)
                scale = None if stream.scales is None else stream.scales.next(request.sensitivity)
            if isinstance(mechanism, TestedSamples):
                stream.sample.note(request.name, released)
        if released is not None:
            values = np.asarray(released)[None]
            scales = None if scale is None else [scale]
            self._record(
                request.label, mechanism, NoEvent(), EveryUnit(), [request.sensitivity], values, scales
            )
            self._observe(request.label, 1)
        return released

    def priced_for_stream(self, request: StreamRequest) -> StreamRequest:
        """The request with the sensitivity of its query on these units, refused where no noise can match it."""
        assert request.query is not None
        sensitivity = self._sensitivity(request.query, EveryUnit())
        noisy = request.mechanism.event() != NonPrivateEvent()
        return replace(request, sensitivity=checked_sensitivity(sensitivity, noisy=noisy))

    # Points and means that the curator keeps ---------------------------------------------------------------------
    def hold(self, query: MeanQuery, *, groups: int | None = None, sample: Stream | None = None) -> Held:
        """Compute one clipped vector (a point) per unit or group and keep them here. Free: nothing is released.

        Args:
            query: the contribution that is computed. A unit without records, or whose contribution is not finite, has
                the point 0.
            groups: C, if points belong to C random groups of units, see `data.participants`, and not to units. A group
                counts as one unit with the records of all its members; one without records has the point 0.
            sample: a stream of `TestedSamples`, if the points are a fresh secret sample for it: it alone answers about
                them. The contributions of all units are computed all the same.
        Returns:
            A handle, with which a `StatisticOfHeld` query refers to the points. They are kept in a secret random order.
        Privacy:
            Of a drawn block `most_units` rows are kept, which is public; it has more with a probability below 1e-12.
        Raises:
            ValueError: there are no such groups.
        """
        held = points_for(self, self.public, groups=groups, sample=sample, seed=self.lot())
        if sample is not None:  # the stream moves to its fresh sample
            self._streams[sample.key].sample.begin(held)
        self._keep_points(held, query, groups, sample)
        return held

    def hold_mean(self, query: MeanQuery) -> HiddenMean:
        """Compute a mean over all units and keep it here. Free: nothing is released.

        Args:
            query: the mean; it is computed once, however many functions of it are released.
        Returns:
            A handle, with which a `FunctionOfMean` query refers to the mean.
        Raises:
            ValueError: the query's sensitivity is not argued for, or nobody here can answer it.
        """
        self._require_answer(type(query))
        mean = HiddenMean(
            query=query,
            public=self.public,
            sensitivity=float(self._sensitivity(query, EveryUnit())),
            rounding=2.0 * float(rounding_bound(1.0, self.public.n)) / self.public.n,
        )
        self._keep_mean(mean)
        return mean

    # Further curators on the same units or parts of them ---------------------------------------------------------
    def blocks(self, sizes: int | Sequence[int], *, in_order: bool = False) -> list["Curator"]:
        """One curator for each of several disjoint blocks of the units; the most expensive block is charged.

        In a plan the blocks are one `Parallel` event, in order; a block that only feeds a stream has the branch
        `NoEvent()`.

        Args:
            sizes: how many blocks of equal size, or the public size of each, see `blocks.block_assignment`.
            in_order: divide the records in the order in which they were given, such as that of their arrival, and not
                at random. Under replace-one only: if a record were removed, all later ones would move by one place.
        Raises:
            ValueError: the units have no order that is public.
        """
        public_sizes = block_sizes(self.public, sizes)
        if in_order:
            require_order(self.public)
        ledgers = self.ledger.parallel(len(public_sizes))
        cut = self.transcript.next_cut()
        curators = list(self._disjoint_units(public_sizes, ledgers, in_order))
        for index, curator in enumerate(curators):
            curator.lineage = (*self.lineage, Block(cut, index, len(curators)))
            curator.under, curator.cut_from = self.under, self
        return curators

    def view(self, row_map: Array | NDArray[np.float64], row_bound: float) -> "Curator":
        """A curator on the same units with linearly mapped rows, on the same ledger.

        Args:
            row_map: (d, k); a row a becomes `a @ row_map`, then is clipped to `row_bound`. Public or released.
            row_bound: largest l2 norm of a mapped row.
        """
        return self._related(self._mapped_units(np.asarray(row_map, np.float64), row_bound))

    def allot(
        self, name: str, *, share: float | None = None, rho: float | None = None, plan: Event | None = None
    ) -> "Curator":
        """A curator on the same units with a part of the budget, for an inner solver; the rest of it stays here.

        What the inner solver does not spend stays with this curator as well.

        Args:
            name: of the inner solver, for the ledger.
            share: the part, as a fraction of this curator's budget.
            rho: the part, in zCDP.
            plan: the part, as a piece of the declared plan.
        Raises:
            ValueError: not exactly one of the three was given, or it is not a part of this budget.
        """
        return self._related(self._same_units(self.ledger.sub_ledger(name, share=share, rho=rho, plan=plan)))

    def filtered(self, name: str, mechanism: Gaussian) -> "Curator":
        """A curator under a privacy filter: charge one Gaussian release now, choose during the run how to spend it.

        The noise multiplier of each release on the curator that is returned may depend on earlier releases; it refuses
        a release that would exceed the filter. What is left at the end is not given back: the price is that of
        `mechanism`.

        Args:
            name: of the solver that spends it, for the ledger.
            mechanism: noise multiplier z: the releases' costs 1 / (2 z_t^2) may add up to 1 / (2 z^2).
        Privacy:
            See `Ledger.gaussian_filter`. Sums of floats may pass the cap by 1e-9 of it. Calibration leaves ten times
            that; a multiplier given by hand leaves nothing.
        Raises:
            BudgetExceeded, PlanMismatch: nothing was spent.
        """
        event = mechanism.event()
        curator = self._related(self._same_units(self.ledger.gaussian_filter(name, event)))
        if self.under is None:
            curator.under = FilterMark(self.transcript.next_filter(), event, len(self.lineage))
        return curator

    def _copy(self, public: Public, ledger: Payer) -> Self:
        """A curator with the same source of answers, on other units or another ledger; its streams are its own."""
        child = copy.copy(self)
        child.public, child.ledger, child._streams = public, ledger, {}
        child.lineage, child.under, child.cut_from = (), None, None
        return child

    def _related(self, curator: "Curator") -> "Curator":
        """Mark a curator on the same units as being of the same block and under the same filter; return it."""
        curator.lineage, curator.under = self.lineage, self.under
        return curator

    # Answers, by subclasses --------------------------------------------------------------------------------------
    @abc.abstractmethod
    def _answer(self, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar) -> Any:
        """The noised value, of shape `query.shape(public)`, of a release that was charged."""

    def lot(self) -> int:
        """A public random number that is not recorded; without data 0."""
        return 0

    def _draw_public_seed(self, name: str) -> int:
        """A fresh public random number of 63 bits; a replay gives back the recorded one."""
        del name
        return self.lot()

    def _keep_points(self, held: Held, query: MeanQuery, groups: int | None, sample: Stream | None) -> None:
        """Compute the points of a handle, where there are data, and keep them."""
        del held, query, groups, sample

    def _keep_mean(self, mean: HiddenMean) -> None:
        """Compute the mean of a handle, where there are data, and keep it."""
        del mean

    def _open_stream(
        self, name: str, mechanism: StreamMechanism, shape: tuple[int, ...]
    ) -> HiddenState | None:
        """The hidden state of a stream that was paid for; None where there is none to keep."""
        del name
        with self._noting_floats(mechanism):
            return mechanism.open(self._noise, shape)

    def _answer_stream(self, request: StreamRequest, state: Any) -> Any:
        """What the mechanism answers from this hidden state."""
        private_fed = () if request.query is None else (self._fed(request),)
        bound = () if request.query is None else (request.sensitivity,)
        with self._noting_floats(request.mechanism):
            return getattr(request.mechanism, request.name)(
                state, self._noise, *private_fed, *bound, **request.arguments
            )

    def _fed(self, request: StreamRequest) -> Any:
        """The value that a stream is fed with; refused of a curator that answers otherwise, such as from data."""
        source, own = type(request.source).__name__, type(self).__name__
        if type(request.source) is not type(self):
            raise ValueError(f"a stream of a {own} cannot be fed by a {source}.")
        return request.source.private_stream_value(request)

    def private_stream_value(self, request: StreamRequest) -> Any:
        """The value that a stream is fed with, of these units; without data zeros."""
        assert request.query is not None
        return np.zeros(request.query.shape(self.public))

    def _noting_floats(
        self, mechanism: Mechanism | StreamMechanism
    ) -> contextlib.AbstractContextManager[None]:
        """Surrounds every draw of noise of this mechanism."""
        del mechanism
        return contextlib.nullcontext()

    @abc.abstractmethod
    def _same_units(self, ledger: Payer) -> "Curator":
        """A curator on the same units with another ledger."""

    @abc.abstractmethod
    def _disjoint_units(
        self, sizes: Sequence[int], ledgers: Sequence[Payer], in_order: bool
    ) -> Sequence["Curator"]:
        """Curators on disjoint blocks of the units, of these public sizes, each with its ledger."""

    @abc.abstractmethod
    def _mapped_units(self, row_map: NDArray[np.float64], row_bound: float) -> "Curator":
        """A curator on the same units with mapped rows."""

    def _require_answer(self, kind: type[Query]) -> None:
        """Refuse queries of a class that this curator's source of answers does not support, by public facts.

        Raises:
            ValueError: it does not support the class.
        """
        del kind

    def _require_room(self, mechanism: Mechanism | StreamMechanism, shape: tuple[int, ...]) -> None:
        """Refuse noise on a value of this shape that exact noise cannot be drawn as, before it is charged."""
        if self.transcript.exact_noise:
            mechanism.require_room(math.prod(shape))

    def _paid_for(
        self, paid: Sequence[tuple[str, Any, Event, Sampling]], times: int = 1
    ) -> contextlib.AbstractContextManager[None]:
        """Where releases that were paid for, `times` each, are answered; see `answering`."""
        return answering(self.transcript, paid, times, lineage=self.lineage, under=self.under)

    # Loops -------------------------------------------------------------------------------------------------------
    def _charge_loop(self, slots: Sequence[loops.Slot], times: int) -> None:
        """Charge for all releases of a loop, or for none: a loop that is not affordable as a whole does not begin."""
        events = [slot.event() for slot in slots]
        charges = [event if times == 1 else Repeated(event, times) for event in events]
        if len(charges) > 1 and not self.ledger.affords(EventSequence(tuple(charges))):
            names = ", ".join(slot.name for slot in slots)
            self.ledger.charge(names, EventSequence(tuple(charges)))  # refuses all of them or none
        for slot, charge in zip(slots, charges, strict=True):
            self.ledger.charge(slot.name, charge)

    def _compiles(self, slots: list[loops.Slot], feeds: Mapping[str, Feed]) -> bool:
        """Whether a loop is compiled: by the kinds of its releases, and only if its feeds use blocks of these units."""
        own_blocks = all(block.cut_from is self for feed in feeds.values() for block in feed.on)
        return not self.transcript.eager and own_blocks and loops.compiles(slots, self.public)

    def _iterate_compiled(self, loop: loops.Loop) -> loops.Looped:
        """The same as one compiled scan, where this source of answers has one."""
        return self._iterate_eagerly(loop)

    def _iterate_eagerly(self, loop: loops.Loop) -> loops.Looped:
        """Run a loop that was charged, step by step."""
        step, state, times, slots, feeds = loop
        released: list[list[Any]] = [[] for _ in slots]
        sensitivities: list[list[float]] = [[] for _ in slots]
        for t in range(times):
            position = 0

            def release(
                query: Query,
                mechanism: Mechanism | None = None,
                sampling: Sampling = EveryUnit(),
                *,
                into: str = "",
                t: int = t,  # bound now, to the step that this function belongs to
            ) -> Array:
                nonlocal position
                loops.require_priced(slots, position, query, mechanism, sampling, into)
                if into:
                    request = feeds[into].request(query, slots[position].item(t))
                    answer, sensitivity = self._feed_in_loop(position, request)
                else:
                    assert mechanism is not None
                    sensitivity = self._sensitivity(query, sampling)
                    answer = self._answer_in_loop(position, query, mechanism, sampling, sensitivity)
                released[position].append(np.asarray(answer))
                sensitivities[position].append(float(sensitivity))
                position += 1
                return as_released(answer)

            state = step(state, release)
            self._observe(slots[0].name if slots else "step", 1)
        return loops.Looped(
            state,
            [np.stack(values) for values in released],
            [np.asarray(moved) for moved in sensitivities],
        )

    def _answer_in_loop(
        self, slot: int, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar
    ) -> Any:
        """The noised answer to release call number `slot` of a step, in a loop that runs eagerly."""
        del slot
        return self._answer(query, mechanism, sampling, sensitivity)

    def _feed_in_loop(self, slot: int, request: StreamRequest) -> tuple[Any, float]:
        """The prefix sum that answers release call number `slot` of a step, and the sensitivity of its item."""
        del slot
        request = request.source.priced_for_stream(request)
        return self._answer_stream(request, self._streams[request.key].state), request.sensitivity

    # Sensitivities, handles and the transcript -------------------------------------------------------------------
    def _sensitivity(self, query: Query, sampling: Sampling) -> Scalar:
        """The query's sensitivity plus twice the float64 rounding error of the sum: once per neighbouring data set."""
        if not isinstance(query, MeanQuery):
            return query.sensitivity(self.public, sampling)
        units = expected_units(sampling, self.public.n)
        sensitivity = self._exact_sensitivity(query, sampling)
        return sensitivity + 2.0 * rounding_bound(query.radius(), self.public.n) / units

    def _exact_sensitivity(self, query: MeanQuery, sampling: Sampling) -> Scalar:
        """The sensitivity of a mean before rounding; refused where it is too small without an argument in its class."""
        return stated_sensitivity(query, self.public, sampling)

    def _record(
        self,
        name: str,
        mechanism: Any,
        event: Event,
        sampling: Sampling,
        sensitivities: Any,
        released: NDArray[Any],
        scales: Sequence[float] | NDArray[np.float64] | None = None,
        about: Any = None,
    ) -> None:
        """Add a line to the transcript: one release, or all releases of one call in a loop.

        `released` has the values of all these releases, (count, *shape), and `sensitivities` one number per release. So
        has `scales`, the scales of the noise; for Gaussian and Laplace noise they are computed here.
        """
        sensitivity = np.asarray(sensitivities, np.float64).reshape(-1)
        scale = None if scales is None else np.asarray(scales, np.float64)
        if isinstance(mechanism, Gaussian | Laplace):
            silent = (
                mechanism.noise_multiplier == 0
            )  # then the sensitivity may be infinite, and 0 times it no number
            scale = np.zeros_like(sensitivity) if silent else mechanism.noise_multiplier * sensitivity
        self.transcript.append(
            Release(
                name=name,
                event=event,
                count=len(released),
                sensitivity=sensitivity,
                noise=repr(mechanism),
                scale=scale,
                sampling=sampling,
                released=released,
                lineage=self.lineage,
                under=self.under,
                exact=self._is_exact(mechanism),
                about=about,
            )
        )

    def _is_exact(self, mechanism: Any) -> bool:
        """Whether this mechanism's noise is drawn exactly, as integers, from this run's source of noise."""
        return self.transcript.exact_noise and bool(mechanism.exact)

    def _observe(self, name: str, count: int) -> None:
        """Tell the observer, if there is one; see `Observer`."""
        if self._observer is not None:
            self._observer(name, count)
