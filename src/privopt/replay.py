"""Other doors for the same solver: a recorded transcript, zeros, and two neighbouring data sets at once.

`Replay` shows that a result is post-processing: it holds no data, and gives back the recorded releases.
`DryRun` answers zeros: what a solver would ask for, on public quantities only.
`Audit` evaluates every query on a neighbouring data set as well and records how far it moved.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from privopt import loops
from privopt.curator import Curator, Door, Held, block_assignment
from privopt.data import Units
from privopt.engine.in_process import InProcessEngine, traced_shapes
from privopt.errors import ReplayMismatch
from privopt.ledger.events import Event
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.base import Mechanism
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

    def parallel(self, k: int, name: str = "blocks") -> "tuple[Ledger, ...]":
        del name
        return (self,) * k


class _Dataless(Door):
    """A door without data: children share its answers."""

    def hold(self, query: MeanQuery) -> Held:
        """A handle to nothing."""
        del query
        return Held(0)

    def allot(
        self, name: str, *, share: float | None = None, rho: float | None = None, plan: Event | None = None
    ) -> Door:
        """See `Door.allot`."""
        return self._child(self.public, self.ledger.sub_ledger(name, share=share, rho=rho, plan=plan))

    def blocks(self, count: int) -> list[Door]:
        """See `Door.blocks`; only the public sizes are known."""
        parts = block_assignment(self.public, count, np.random.default_rng(0))
        ledgers = self.ledger.parallel(count)
        return [
            self._child(replace(self.public, n=size), ledger)
            for (_, size), ledger in zip(parts, ledgers, strict=True)
        ]

    def view(self, row_map: Array, row_bound: float) -> Door:
        """See `Door.view`."""
        return self._child(replace(self.public, d=int(row_map.shape[1]), row_bound=row_bound), self.ledger)

    def _child(self, public: Public, ledger: Ledger) -> Door:
        raise TypeError(f"{type(self).__name__} has no children.")

    def _open_stream(self, key: int, mechanism: Any, shape: tuple[int, ...]) -> None:
        del key, mechanism, shape


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

    def _open_stream(self, key: int, mechanism: Any, shape: tuple[int, ...]) -> None:
        del key, mechanism, shape
        next(self._cursor, None)

    def _answer_stream(
        self,
        key: int,
        mechanism: Any,
        method: str,
        query: Query | None,
        sensitivity: Scalar | None,
        public_arguments: dict[str, Any],
    ) -> Any:
        del key, query, sensitivity, public_arguments
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

    def _child(self, public: Public, ledger: Ledger) -> Door:
        del ledger
        child = DryRun(public)
        child.transcript = self.transcript
        return child

    def _answer(self, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar) -> Any:
        del mechanism, sampling, sensitivity
        return np.zeros(query.shape(self.public))

    def _answer_stream(
        self,
        key: int,
        mechanism: Any,
        method: str,
        query: Query | None,
        sensitivity: Scalar | None,
        public_arguments: dict[str, Any],
    ) -> Any:
        del key, method, sensitivity, public_arguments, mechanism
        return None if query is None else np.zeros(query.shape(self.public))

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
        self._right_held: dict[int, NDArray[np.float64]] = {}
        self._understate = understate
        self.moves: list[tuple[str, float]] = []

    def hold(self, query: MeanQuery) -> Held:
        """See `Door.hold`."""
        handle = super().hold(query)
        self._right_held[handle.key] = self._right.gather(query)
        return handle

    def allot(
        self, name: str, *, share: float | None = None, rho: float | None = None, plan: Event | None = None
    ) -> Curator:
        """See `Door.allot`."""
        ledger = self.ledger.sub_ledger(name, share=share, rho=rho, plan=plan)
        return self._pair(self._engine, self._right, ledger)

    def blocks(self, count: int) -> list[Door]:
        """See `Door.blocks`: the same positions on both sides."""
        parts = block_assignment(self.public, count, self._noise.units_generator)
        ledgers = self.ledger.parallel(count)
        children: list[Door] = []
        for (part, size), ledger in zip(parts, ledgers, strict=True):
            left = InProcessEngine(self._engine.units.subset(part, size))
            right = InProcessEngine(self._right.units.subset(part, size))
            children.append(self._pair(left, right, ledger))
        return children

    def view(self, row_map: Array, row_bound: float) -> Curator:
        """See `Door.view`."""
        matrix = np.asarray(row_map, np.float64)
        return self._pair(
            self._engine.view(matrix, row_bound), self._right.view(matrix, row_bound), self.ledger
        )

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

    def _compare(self, query: Query, sampling: Sampling, draw: Any, left: Any, sensitivity: float) -> None:
        right = self._on_the_right(query, sampling, draw)
        moved = distance(np.asarray(left), np.asarray(right), query.norm)
        self._note(query.name, moved, sensitivity)

    def _note(self, name: str, moved: float, sensitivity: float) -> None:
        stated = sensitivity * (1.0 - self._understate)
        self.moves.append((name, 0.0 if moved == 0 else moved / stated if stated > 0 else float("inf")))

    def _answer(self, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar) -> Any:
        draw = self._draw(sampling)
        private_value = self._private_value(query, sampling, draw)
        released = mechanism.release(self._noise, private_value, float(sensitivity))
        if isinstance(query, ArgminQuery):
            noises = [
                query.implied_noise(e.units.private_features, e.units.private_targets, jnp.asarray(released))
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
        mechanism: Any,
        method: str,
        query: Query | None,
        sensitivity: Scalar | None,
        public_arguments: dict[str, Any],
    ) -> Any:
        if query is not None:
            private_value = self._private_value(query, EveryUnit(), None)
            self._compare(query, EveryUnit(), None, private_value, float(sensitivity or 0.0))
        return super()._answer_stream(key, mechanism, method, query, sensitivity, public_arguments)

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
