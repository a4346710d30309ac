"""Streams as a curator keeps them: opened and charged once, then asked, and fed by parts of the data."""

import abc
import contextlib
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.curator import loops
from privopt.curator.handles import Entered, Feed, OpenStream, Stream, StreamRequest
from privopt.curator.transcript import FilterMark, Release, Transcript
from privopt.data.blocks import Lineage
from privopt.errors import add_note
from privopt.ledger.events import Event, EveryUnit, NoEvent, NonPrivateEvent, Sampling
from privopt.ledger.payer import Payer
from privopt.mechanisms.base import HiddenState, Mechanism, StreamMechanism, checked_sensitivity
from privopt.mechanisms.tests import TestedSamples
from privopt.public import Public
from privopt.queries.base import Query, Scalar


class StreamKeeper(abc.ABC):
    """The part of a curator that keeps streams. Where their answers come from is said by its subclasses.

    Attributes:
        public, ledger, transcript, lineage, under: see `Curator`.
    """

    lineage: Lineage = ()
    under: FilterMark | None = None
    public: Public
    ledger: Payer
    transcript: Transcript
    _streams: dict[int, OpenStream]

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

    def _require_room(self, mechanism: Mechanism | StreamMechanism, shape: tuple[int, ...]) -> None:
        """Refuse noise on a value of this shape that exact noise cannot be drawn as, before it is charged."""
        if self.transcript.exact_noise:
            mechanism.require_room(math.prod(shape))

    def _paid_for(
        self, paid: Sequence[tuple[str, Any, Event, Sampling]], times: int = 1
    ) -> contextlib.AbstractContextManager[None]:
        """Where releases that were paid for, `times` each, are answered; see `answering`."""
        return answering(
            self.transcript,
            lambda: [unanswered(*one, times, lineage=self.lineage, under=self.under) for one in paid],
        )

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
                self._require_entry(stream.entered, mechanism, source)
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

    @contextlib.contextmanager
    def _feeding(self, feeds: Mapping[str, Feed], items: Mapping[str, int]) -> Generator[None]:
        """Enter the items of a loop into its streams, all or none, and keep the streams while the loop runs.

        Privacy:
            The items count as entered before the first is computed. After a loop that was interrupted, when fewer may
            be, its streams answer no more, see `_fed` and `OpenStream`; one that never began has entered nothing.
        Raises:
            ValueError: a stream is not of prefix sums, is another curator's or full, or fed under two names; or an item
                would put a unit into more items than it was charged for.
        """
        keys = [feed.stream.key for feed in feeds.values() if feed.stream.is_of(self)]
        if len(set(keys)) < len(keys):
            raise ValueError(
                "the loop feeds one stream under several names: name it once, a step may feed it several times."
            )
        with contextlib.ExitStack() as turns:
            for key in sorted(keys):
                turns.enter_context(self._streams[key])
            after: dict[str, Entered] = {}
            for name, feed in feeds.items():
                mechanism = feed.mechanism
                if not feed.stream.is_of(self):
                    raise ValueError(
                        f"the stream {name!r} was opened by another curator than the one that iterates: open it on "
                        "this one."
                    )
                entered = self._streams[feed.stream.key].entered.copy()
                if len(entered) + items[name] > mechanism.items:
                    raise ValueError(
                        f"the loop would feed {items[name]} items to a stream of {mechanism.items}, of which "
                        f"{len(entered)} have entered: declare as many as the loop has."
                    )
                for item in range(items[name]):
                    source = feed.source(item)
                    self._require_entry(entered, mechanism, source)
                    entered.add(source.lineage)
                after[name] = entered
            streams = {name: self._streams[feed.stream.key] for name, feed in feeds.items()}
            before = {name: stream.entered for name, stream in streams.items()}
            for name, stream in streams.items():
                stream.entered = after[name]
            try:
                yield
            except BaseException:
                for name, stream in streams.items():
                    stream.entered = stream.entered if stream.broken else before[name]
                raise

    @contextlib.contextmanager
    def _fed(self, feeds: Mapping[str, Feed]) -> Generator[None]:
        """Where a loop runs whose items count as entered: its streams break off with it, whatever stops it.

        Privacy:
            A step, or a query of somebody's own, may also raise what is a refusal elsewhere. Were its stream asked
            again, units would seem to be in earlier items than they are in, and further apart than they are.
        """
        try:
            yield
        except BaseException:
            for feed in feeds.values():
                self._streams[feed.stream.key].break_off()
            raise

    def _scales_of_feeds(
        self, slots: Sequence[loops.Slot], feeds: Mapping[str, Feed], sensitivities: list[NDArray[np.float64]]
    ) -> list[NDArray[np.float64] | None]:
        """Of each release call of a step, the noise scales of its answers; None where it feeds no stream."""
        scales = [
            np.zeros_like(moved) if slot.feed else None
            for slot, moved in zip(slots, sensitivities, strict=True)
        ]
        for name, feed in feeds.items():
            calls = [k for k, slot in enumerate(slots) if slot.feed == name]
            stated = self._streams[feed.stream.key].scales
            assert stated is not None
            for t in range(len(sensitivities[calls[0]]) if calls else 0):
                for k in calls:
                    found = scales[k]
                    assert found is not None
                    found[t] = stated.next(float(sensitivities[k][t]))
        return scales

    def _require_entry(self, entered: Entered, mechanism: StreamMechanism, source: "StreamKeeper") -> None:
        """Refuse an item that would put a unit into more items than the stream was charged for.

        Privacy:
            `Entered` tells which items one unit may be in, from how the parts of the data were cut.
        """
        if source.transcript is not self.transcript or source.lineage[: len(self.lineage)] != self.lineage:
            raise ValueError(
                "a stream is fed from the curator that opened it, or from a block of its units: no other curator's "
                "units have paid for it."
            )
        if not mechanism.covers(entered.participants(source.lineage)):
            raise ValueError(
                f"item {len(entered)} of {mechanism!r} would hold units of earlier items, more often or closer "
                "together than the stream was charged for: feed it from disjoint blocks (`blocks`), or declare the "
                "participation."
            )

    @abc.abstractmethod
    def _open_stream(
        self, name: str, mechanism: StreamMechanism, shape: tuple[int, ...]
    ) -> HiddenState | None:
        """The hidden state of a stream that was paid for; None where there is none to keep."""

    @abc.abstractmethod
    def _answer_stream(self, request: StreamRequest, state: Any) -> Any:
        """What the mechanism answers from this hidden state."""

    @abc.abstractmethod
    def _sensitivity(self, query: Query, sampling: Sampling) -> Scalar:
        """The query's sensitivity plus what float64 rounding of the sum can add on both data sets."""

    @abc.abstractmethod
    def _require_answer(self, kind: type[Query]) -> None:
        """Refuse queries of a class that nobody here can answer, from public facts."""

    @abc.abstractmethod
    def _record(
        self,
        name: str,
        mechanism: Any,
        event: Event,
        sampling: Sampling,
        sensitivities: Any,
        released: NDArray[Any],
        scales: Sequence[float] | NDArray[np.float64] | None = None,
    ) -> None:
        """Write a line of the transcript."""

    @abc.abstractmethod
    def _observe(self, name: str, count: int) -> None:
        """Tell the observer, if there is one."""


# ---- What is kept of a release that was paid for and whose answer never arrived ----------------------------
def unanswered(
    name: str,
    mechanism: object,
    event: Event,
    sampling: Sampling,
    count: int,
    *,
    lineage: Lineage,
    under: FilterMark | None,
) -> Release:
    """A line for releases that were paid for, without values: sensitivities and scales are not a number."""
    return Release(
        name=name,
        event=event,
        count=count,
        sensitivity=np.full(count, np.nan),
        noise=repr(mechanism),
        scale=None,
        sampling=sampling,
        released=None,
        lineage=lineage,
        under=under,
    )


@contextlib.contextmanager
def answering(transcript: Transcript, lines: Callable[[], Sequence[Release]]) -> Generator[None]:
    """Write these lines if what is paid for is interrupted, by whatever exception, and say in it what was paid.

    Privacy:
        Whoever catches the exception and goes on may have seen the data's effect: how far it came, how long it took. So
        the transcript counts all that was paid for, as the ledger does. The note is made from public facts alone.
    """
    try:
        yield
    except BaseException as error:
        lost = lines()
        for line in lost:
            transcript.append(line)
        paid = [
            f"{line.count} x {line.name} ({line.event.describe()})"
            for line in lost
            if line.event != NoEvent()
        ]
        if paid:
            add_note(
                error,
                f"paid for before this, and not given back, since it may have been seen: {', '.join(paid)}.",
            )
        raise
