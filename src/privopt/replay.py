"""Other doors for the same solver: a recorded transcript, zeros, and two neighbouring data sets at once.

`Replay` shows that a result is post-processing: it holds no data, and gives back the recorded releases.
`DryRun` answers zeros: what a solver would ask for, on public quantities only.
`Audit` evaluates every query on a neighbouring data set as well and records how far it moved.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from privopt import loops
from privopt.curator import Curator
from privopt.data import Units
from privopt.door import Door
from privopt.engine.in_process import InProcessEngine, traced_shapes
from privopt.errors import ReplayMismatch
from privopt.handles import Held
from privopt.ledger.events import Event
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.base import Mechanism, StreamMechanism
from privopt.mechanisms.exponential import ExponentialMechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.public import Public
from privopt.queries.base import ArgminQuery, MeanQuery, Query, Scalar
from privopt.sampling import EveryUnit, Sampling
from privopt.transcript import Release, Transcript


class _Tally(Ledger):
    """A ledger that refuses nothing: for doors that hold no data."""

    def __init__(self) -> None:
        """There is nothing to open."""

    def charge(self, name: str, event: Event, count: int = 1) -> None:
        del name, event, count

    def affords(self, event: Event, count: int = 1) -> bool:
        del event, count
        return True

    def sub_ledger(
        self, name: str, *, share: float | None = None, rho: float | None = None, plan: Event | None = None
    ) -> "_Tally":
        del name, share, rho, plan
        return self

    def gaussian_filter(self, name: str, event: Event) -> "_Tally":
        del name, event
        return self

    def parallel(self, k: int, name: str = "blocks") -> "tuple[Ledger, ...]":
        del name
        return (self,) * k


class _Dataless(Door):
    """A door without data: children share its answers."""

    def hold(self, query: MeanQuery) -> Held:
        """A handle to nothing."""
        del query
        return Held(0)

    def _same_units(self, ledger: Ledger) -> Door:
        return self._child(self.public, ledger)

    def _some_units(self, private_positions: NDArray[np.int64], size: int, ledger: Ledger) -> Door:
        del private_positions  # of nobody: only the public sizes are known here
        return self._child(replace(self.public, n=size), ledger)

    def _mapped_units(self, row_map: NDArray[np.float64], row_bound: float) -> Door:
        public = replace(self.public, d=row_map.shape[1], row_bound=row_bound, sparse=False)
        return self._child(public, self.ledger)

    def _unit_generator(self) -> np.random.Generator:
        return np.random.default_rng(0)

    def _child(self, public: Public, ledger: Ledger) -> Door:
        raise TypeError(f"{type(self).__name__} has no children.")


class Replay(_Dataless):
    """Answers from a recorded transcript; a solver run against it must give the bit-identical result.

    Args:
        transcript: the recorded releases, with their values.
        public: the public description the solver was run with.
        ledger: a fresh ledger with the same budget, for solvers that ask what they can afford; default: no limit.
    """

    def __init__(
        self, transcript: Transcript, public: Public, ledger: Ledger | None = None, _cursor: Any = None
    ) -> None:
        super().__init__(
            public,
            _Tally() if ledger is None else ledger,
            Transcript(public.relation, seeded=transcript.seeded),
        )
        self._recorded = transcript
        self._cursor: Iterator[int] = iter(range(len(transcript))) if _cursor is None else _cursor
        self._loop: list[Iterator[NDArray[Any]]] = []

    def _child(self, public: Public, ledger: Ledger) -> Door:
        child = Replay(self._recorded, public, ledger, self._cursor)
        child.transcript = self.transcript
        return child

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

    def _answer(self, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar) -> Any:
        del mechanism, sampling, sensitivity
        return self._next(query.name)[0]

    def _answer_in_loop(
        self, slot: int, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar
    ) -> Any:
        del query, mechanism, sampling, sensitivity
        return next(self._loop[slot])

    def _iterate_eagerly(
        self, step: loops.Step, state: Any, times: int, slots: list[loops.Slot]
    ) -> tuple[Any, list[NDArray[Any]], list[NDArray[np.float64]]]:
        self._loop = [iter(self._next(slot.name)) for slot in slots]
        return super()._iterate_eagerly(step, state, times, slots)

    def _open_stream(self, name: str, key: int, mechanism: StreamMechanism, shape: tuple[int, ...]) -> None:
        del key, mechanism, shape
        self._next(name)

    def _answer_stream(
        self,
        key: int,
        mechanism: StreamMechanism,
        method: str,
        query: Query | None,
        sensitivity: Scalar | None,
        source: Door,
        public_arguments: dict[str, Any],
    ) -> Any:
        del key, query, sensitivity, source, public_arguments
        if method in mechanism.silent:
            return None
        return self._next(f"{type(mechanism).__name__}.{method}")[0]

    def _iterate_compiled(
        self, step: loops.Step, state: Any, times: int, slots: list[loops.Slot]
    ) -> tuple[Any, list[NDArray[Any]], list[NDArray[np.float64]]]:
        recorded = [self._next(slot.name) for slot in slots]
        return loops.run(
            step,
            state,
            times,
            slots,
            public=self.public,
            private_arrays=traced_shapes(self.public),
            draws=RecordedDraws(recorded, self.public.n),
            observe=self._observe,
        )


@dataclass
class RecordedDraws:
    """Scan inputs of a replay: nobody is sampled, nothing is noised, the recorded values stand in."""

    recorded: list[NDArray[Any]]
    n: int
    forced: bool = True
    position: int = 0

    def block(self, slots: list[loops.Slot], length: int, capacity: list[int]) -> tuple[Any, Any, Any]:
        """The next `length` recorded releases; padded with zeros past the last."""
        indices = [np.full((length, size), self.n, np.int32) for size in capacity]
        noise = [np.zeros((length, *slot.mechanism.noise_shape(slot.shape)), np.float64) for slot in slots]
        values = [np.zeros((length, *slot.shape), np.float64) for slot in slots]
        for k, recorded in enumerate(self.recorded):
            part = recorded[self.position : self.position + length]
            values[k][: len(part)] = part
        self.position += length
        return tuple(indices), tuple(noise), tuple(values)


class DryRun(_Dataless):
    """Answers zeros: which releases a solver with a fixed plan asks for, from public quantities only."""

    def __init__(self, public: Public) -> None:
        super().__init__(public, _Tally(), Transcript(public.relation))
        self._rehearsal = NoiseSource(seed=0)

    def _child(self, public: Public, ledger: Ledger) -> Door:
        del ledger
        child = DryRun(public)
        child.transcript = self.transcript
        return child

    def _answer(self, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar) -> Any:
        del sensitivity, sampling
        if isinstance(mechanism, ExponentialMechanism):
            return np.zeros((), np.int64)  # the first candidate
        return np.zeros(query.shape(self.public))

    def _open_stream(self, name: str, key: int, mechanism: StreamMechanism, shape: tuple[int, ...]) -> None:
        del name
        self._streams[key] = mechanism.open(self._rehearsal, shape)

    def _answer_stream(
        self,
        key: int,
        mechanism: StreamMechanism,
        method: str,
        query: Query | None,
        sensitivity: Scalar | None,
        source: Door,
        public_arguments: dict[str, Any],
    ) -> Any:
        """Zeros for an answer about data; what is drawn from the hidden state is drawn from one that was fed zeros."""
        ask, state = getattr(mechanism, method), self._streams[key]
        if query is None:
            return ask(state, self._rehearsal, **public_arguments)
        zeros = np.zeros(query.shape(source.public))
        if method not in mechanism.silent:
            return zeros
        return ask(state, self._rehearsal, zeros, float(sensitivity or 0.0), **public_arguments)

    def _iterate_compiled(
        self, step: loops.Step, state: Any, times: int, slots: list[loops.Slot]
    ) -> tuple[Any, list[NDArray[Any]], list[NDArray[np.float64]]]:
        return self._iterate_eagerly(step, state, times, slots)


class Audit(Curator):
    """Runs a solver on `left` and evaluates every query on the neighbour `right` as well.

    Attributes:
        moves: (query name, distance moved / stated sensitivity), one entry a release; every ratio must be at most 1.

    The same units are sampled on both sides. For an `ArgminQuery` the distance is between the noises that the two data
    sets would have needed for the same minimiser.
    """

    def __init__(
        self,
        left: Units,
        right: Units,
        ledger: Ledger,
        *,
        noise: NoiseSource | None = None,
        understate: float = 0.0,
        _engines: tuple[InProcessEngine, InProcessEngine] | None = None,
        _transcript: Transcript | None = None,
    ) -> None:
        """Open the audit; `understate` shrinks every sensitivity by that fraction, to show that the audit notices."""
        super().__init__(
            left,
            ledger,
            noise=noise,
            transcript=_transcript,
            engine=None if _engines is None else _engines[0],
        )
        self._right = InProcessEngine(right) if _engines is None else _engines[1]
        self._right_held: dict[Held, NDArray[np.float64]] = {}
        self._understate = understate
        self.moves: list[tuple[str, float]] = []

    def hold(self, query: MeanQuery) -> Held:
        """See `Door.hold`."""
        handle = super().hold(query)
        self._right_held[handle] = self._right.gather(query)
        return handle

    def _same_units(self, ledger: Ledger) -> Curator:
        return self._sharing_held(self._pair(self._engine, self._right, ledger))

    def _some_units(self, private_positions: NDArray[np.int64], size: int, ledger: Ledger) -> Curator:
        """The same positions on both sides."""
        left = InProcessEngine(self._engine.units.subset(private_positions, size))
        right = InProcessEngine(self._right.units.subset(private_positions, size))
        return self._pair(left, right, ledger)

    def _mapped_units(self, row_map: NDArray[np.float64], row_bound: float) -> Curator:
        left, right = (engine.view(row_map, row_bound) for engine in (self._engine, self._right))
        return self._sharing_held(self._pair(left, right, self.ledger))

    def _sharing_held(self, door: "Audit") -> "Audit":
        door._private_held, door._right_held = self._private_held, self._right_held
        return door

    def _pair(self, left: InProcessEngine, right: InProcessEngine, ledger: Ledger) -> "Audit":
        child = Audit(
            left.units,
            right.units,
            ledger,
            noise=self._noise,
            understate=self._understate,
            _engines=(left, right),
            _transcript=self.transcript,
        )
        child.moves = self.moves
        return child

    def _on_the_right(self, query: Query, sampling: Sampling, draw: NDArray[np.int64] | None) -> Any:
        engine, held = self._engine, self._private_held
        self._engine, self._private_held = self._right, self._right_held
        try:
            return self._private_value(query, sampling, draw)
        finally:
            self._engine, self._private_held = engine, held

    def _draw(self, sampling: Sampling) -> NDArray[np.int64] | None:
        """Positions of whichever side has more units."""
        wider = max(self._engine, self._right, key=lambda engine: engine.units.private_count)
        everybody = isinstance(sampling, EveryUnit)
        return None if everybody else wider.draw(sampling, self._noise.units_generator)

    def _private_value(self, query: Query, sampling: Sampling, private_draw: NDArray[np.int64] | None) -> Any:
        if private_draw is not None:
            private_draw = self._engine.units.private_held(private_draw)
        return super()._private_value(query, sampling, private_draw)

    def _compare(self, query: Query, sampling: Sampling, draw: Any, left: Any, sensitivity: float) -> None:
        right = self._on_the_right(query, sampling, draw)
        moved = distance(np.asarray(left), np.asarray(right), query.norm)
        self._note(query.name, moved, sensitivity)

    def _note(self, name: str, moved: float, sensitivity: float) -> None:
        stated = sensitivity * (1.0 - self._understate)
        measured = stated > 0 and not math.isnan(moved)  # a NaN that survived is as far as anything can move
        self.moves.append((name, 0.0 if moved == 0 else moved / stated if measured else math.inf))

    def _answer(self, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar) -> Any:
        draw = self._draw(sampling)
        private_value = self._private_value(query, sampling, draw)
        released = mechanism.release(self._noise, private_value, float(sensitivity))
        if isinstance(query, ArgminQuery):
            noises = [
                query.implied_noise(
                    self.public, e.units.private_features, e.units.private_targets, jnp.asarray(released)
                )
                for e in (self._engine, self._right)
            ]
            moved = distance(np.asarray(noises[0]), np.asarray(noises[1]), query.norm)
            self._note(query.name, moved, float(sensitivity))
        else:
            self._compare(query, sampling, draw, private_value, float(sensitivity))
        return released

    def _answer_stream(
        self,
        key: int,
        mechanism: StreamMechanism,
        method: str,
        query: Query | None,
        sensitivity: Scalar | None,
        source: Door,
        public_arguments: dict[str, Any],
    ) -> Any:
        if query is not None:
            assert isinstance(source, Audit)
            private_value = source._private_value(query, EveryUnit(), None)
            source._compare(query, EveryUnit(), None, private_value, float(sensitivity or 0.0))
        return super()._answer_stream(key, mechanism, method, query, sensitivity, source, public_arguments)

    def _iterate_compiled(
        self, step: loops.Step, state: Any, times: int, slots: list[loops.Slot]
    ) -> tuple[Any, list[NDArray[Any]], list[NDArray[np.float64]]]:
        return self._iterate_eagerly(step, state, times, slots)


def distance(left: NDArray[Any], right: NDArray[Any], norm: str) -> float:
    """How far a value moved, in the norm that its query states a sensitivity for."""
    moved = np.ravel(np.asarray(left, np.float64) - np.asarray(right, np.float64))
    if norm == "linf":
        return float(np.max(np.abs(moved), initial=0.0))
    if norm == "l1":
        return float(np.sum(np.abs(moved)))
    if norm == "range":
        return float(np.max(moved) - np.min(moved))
    return float(np.linalg.norm(moved))
