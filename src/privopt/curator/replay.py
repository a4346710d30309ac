"""Answers from a recorded transcript: what shows that a result is post-processing of its releases."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.curator import loops, scan
from privopt.curator.base import Curator
from privopt.curator.dry_run import Dataless
from privopt.curator.handles import StreamRequest
from privopt.curator.transcript import Release, Transcript
from privopt.engine.drawn_rows import Handed, absent_rows
from privopt.errors import ReplayMismatch
from privopt.ledger.events import Sampling
from privopt.ledger.payer import Payer, Unlimited
from privopt.mechanisms.base import Mechanism, StreamMechanism
from privopt.public import Public
from privopt.queries.base import Query, Scalar


class Recorded(Curator):
    """A curator that answers from a transcript, in order; a subclass says what else it has."""

    def repeat(self, transcript: Transcript) -> None:
        """Answer from this transcript, from its beginning; children go on where it stands."""
        self._recorded = transcript
        self._cursor = iter(range(len(transcript)))
        self._loop: list[Iterator[NDArray[Any]]] = []

    def _next(self, name: str) -> NDArray[Any]:
        record: Release | None = next((self._recorded[i] for i in self._cursor), None)
        if record is None or record.name != name:
            found = "the end of the transcript" if record is None else repr(record.name)
            raise ReplayMismatch(f"the solver asked for {name!r} where the transcript has {found}.")
        if record.released is None:
            raise ReplayMismatch(
                f"the values of {name!r} were not kept: raise the transcript's `keep_bytes`."
            )
        return record.released

    def _one(self, name: str) -> Any:
        """The next line, of a single release."""
        return self._line(name, 1)[0]

    def _line(self, name: str, count: int) -> NDArray[Any]:
        """The next line, of so many releases: one that holds more or fewer is of another run."""
        released = self._next(name)
        if len(released) != count:
            raise ReplayMismatch(
                f"the solver asked for {name!r} {count:,} times where the transcript has {len(released):,}."
            )
        return released

    def require_end(self) -> None:
        """Refuse a transcript of more than was asked for.

        Raises:
            ReplayMismatch: something is left.
        """
        left = next((self._recorded[i] for i in self._cursor), None)
        if left is not None:
            raise ReplayMismatch(f"the solver ended where the transcript has {left.name!r}.")

    def _answer(self, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar) -> Any:
        del mechanism, sampling, sensitivity
        return self._one(query.name)

    def _answer_in_loop(
        self, slot: int, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar
    ) -> Any:
        del query, mechanism, sampling, sensitivity
        return next(self._loop[slot])

    def _feed_in_loop(self, slot: int, request: StreamRequest) -> tuple[Any, float]:
        return next(self._loop[slot]), request.source.priced_for_stream(request).sensitivity

    def _iterate_eagerly(self, loop: loops.Loop) -> loops.Looped:
        self._loop = [iter(self._line(slot.name, loop.times)) for slot in loop.slots]
        return super()._iterate_eagerly(loop)

    def _draw_public_seed(self, name: str) -> int:
        return int(self._one(name))

    def _open_stream(self, name: str, mechanism: StreamMechanism, shape: tuple[int, ...]) -> Any:
        del mechanism, shape
        self._next(name)

    def _answer_stream(self, request: StreamRequest, state: Any) -> Any:
        del state
        if not request.mechanism.request(request.name).releases:
            return None
        return self._one(request.label)

    def _iterate_compiled(self, loop: loops.Loop) -> loops.Looped:
        recorded = [self._line(slot.name, loop.times) for slot in loop.slots]
        draws = RecordedDraws(recorded, self.public.d, self.transcript.exact_noise)
        return scan.run(loop, public=self.public, draws=draws, observe=self._observe)


class Replay(Recorded, Dataless):
    """Answers from a recorded transcript; a solver run against it must give the bit-identical result.

    Args:
        transcript: the recorded releases, with their values.
        public: the public description the solver was run with.
        ledger: a fresh ledger with the same budget, for solvers that ask what they can afford; default: no limit.
    """

    def __init__(self, transcript: Transcript, public: Public, ledger: Payer | None = None) -> None:
        super().__init__(
            public,
            Unlimited(public.relation) if ledger is None else ledger,
            Transcript(
                public.relation,
                seeded=transcript.seeded,
                eager=transcript.eager,
                exact_noise=transcript.exact_noise,
            ),
        )
        self.repeat(transcript)

    def beside(self, public: Public) -> "Replay":
        """A replay of what follows in the same transcript, of a stage with another public description."""
        return self._child(public, self.ledger)


@dataclass
class RecordedDraws:
    """Scan inputs of a replay: nobody is sampled, nothing is noised, the recorded values stand in.

    Attributes:
        recorded: the releases of each call.
        width: columns of the rows.
        exact_noise: whether noise would be integers.
        forced: whether the recorded values stand in.
    """

    recorded: list[NDArray[Any]]
    width: int
    exact_noise: bool
    forced: bool = True

    def stretch(self, calls: Sequence[scan.Call], start: int, length: int, steps: int) -> scan.Stretch:
        """The next recorded releases; padded with zeros past the last."""
        values = tuple(np.zeros((length, *call.slot.shape), np.float64) for call in calls)
        for room, recorded in zip(values, self.recorded, strict=True):
            room[:steps] = recorded[start : start + steps]
        return scan.Stretch(
            tuple(
                Handed(absent_rows(call.stored(length), self.width), np.zeros(call.places(length), np.int32))
                for call in calls
            ),
            tuple(np.zeros((length, 2), np.int32) for _ in calls),
            tuple(scan.room_for_noise(call.slot, length, exact=self.exact_noise) for call in calls),
            values,
        )

    def prefix(self, slot: loops.Slot) -> NDArray[np.float64]:
        """Not looked at: the recorded sums stand in."""
        return np.zeros(slot.shape)
