"""The door between private and public: the only way a number computed from data gets out.

A solver is a program over a door. It asks for releases and gets noised answers; it never holds data. The same program
runs against several doors: `Curator` (this file) answers from data, `replay.Replay` from a recorded transcript,
`replay.DryRun` with zeros (the price), `replay.Audit` from two neighbouring data sets at once.

Every request is priced first and looked at second: `release` and `iterate` charge the ledger from public quantities
only, and a refused release has not touched data.
"""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from privopt import loops
from privopt.data import Units
from privopt.engine.in_process import InProcessEngine
from privopt.engine.rounding import rounding_bound
from privopt.ledger.events import Event, NoEvent, Repeated
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.base import Mechanism
from privopt.mechanisms.gaussian import Gaussian
from privopt.mechanisms.laplace import Laplace
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import require_double_precision
from privopt.public import Public, Relation
from privopt.queries.base import ArgminQuery, MeanQuery, Query, Scalar, StatisticOfHeld
from privopt.sampling import EveryUnit, Sampling, expected_units
from privopt.transcript import Release, Transcript

Observer = Callable[[str, int], None]


class Held:
    """Per-unit vectors behind the door. A handle: it can be named in a query, and holds nothing."""

    def __init__(self, key: int) -> None:
        self.key = key

    def __repr__(self) -> str:
        return "<private>"


@dataclass(frozen=True)
class Stream:
    """A mechanism with hidden state behind the door, charged once when it was opened."""

    _door: "Door"
    _mechanism: Any
    _key: int

    def __repr__(self) -> str:
        return "<private>"

    def ask(self, method: str, query: Query | None = None, **public_arguments: Any) -> Any:
        """Feed a query to the hidden state, or draw from it.

        Args:
            method: the mechanism's own word for it (`add`, `draw`, `answer`).
            query: what is computed on the data and fed in; None if nothing is.
            public_arguments: anything public that the mechanism wants to know.
        Returns:
            What the mechanism releases, or None where it only remembers.
        """
        return self._door.ask_stream(self._key, self._mechanism, method, query, public_arguments)


class Door(abc.ABC):
    """What a solver sees. Subclasses say where the answers come from.

    Attributes:
        public: sizes, bounds and relation of the data behind the door.
        ledger: what was charged; refuses before anything is read.
        transcript: what was released.
    """

    def __init__(
        self, public: Public, ledger: Ledger, transcript: Transcript, observer: Observer | None = None
    ) -> None:
        self.public = public
        self.ledger = ledger
        self.transcript = transcript
        self._observer = observer
        self._streams: dict[int, Any] = {}

    def release(self, query: Query, mechanism: Mechanism, sampling: Sampling = EveryUnit()) -> Array:
        """Release one noised value.

        Args:
            query: what to compute.
            mechanism: how to noise it, and so what it costs.
            sampling: which units take part; drawn behind the door.
        Returns:
            The released value, shape `query.shape(public)`, float64 (an index for a selection).
        Privacy:
            Charged before data is read, by `sampling.event(mechanism.event())`; the noise is scaled by the
            query's sensitivity plus the engine's rounding bound.
        Raises:
            BudgetExceeded, PlanMismatch: nothing was read or spent.
        """
        require_double_precision()
        event = sampling.event(mechanism.event())
        self.ledger.charge(query.name, event)
        sensitivity = self._sensitivity(query, sampling)
        released = self._answer(query, mechanism, sampling, sensitivity)
        self._record(query.name, mechanism, event, sampling, [sensitivity], np.asarray(released)[None])
        return jnp.asarray(released)

    def iterate(self, step: loops.Step, state: Any, times: int) -> Any:
        """Run `state = step(state, release)` `times` times, priced as a whole before the first.

        `step` is pure; its only access to data is `release(query, mechanism, sampling)`. When every release in it is a
        sampled mean over dense records, the loop is compiled into one `lax.scan`; otherwise the same step runs
        eagerly. A step that is hashable by value (a frozen dataclass with `__call__`) compiles once for all runs.

        Args:
            step: one step of the solver.
            state: a pytree of arrays, kept in shape and dtype by `step`.
            times: number of steps, at least 0. Public.
        Returns:
            The last state.
        Raises:
            BudgetExceeded, PlanMismatch: nothing was read or spent.
            ValueError: a mechanism's cost depends on the state; such loops use `release`.
        """
        require_double_precision()
        if times == 0:
            return state
        slots = loops.probe(step, state, self.public)
        events = [slot.sampling.event(slot.mechanism.event()) for slot in slots]
        for slot, event in zip(slots, events, strict=True):
            self.ledger.charge(slot.name, event if times == 1 else Repeated(event, times))
        if loops.compiles(slots, self.public):
            state, released, sensitivities = self._iterate_compiled(step, state, times, slots)
        else:
            state, released, sensitivities = self._iterate_eagerly(step, state, times, slots)
        for slot, event, values, moved in zip(slots, events, released, sensitivities, strict=True):
            self._record(slot.name, slot.mechanism, event, slot.sampling, moved, values)
        return state

    def affords(self, mechanism: Mechanism, sampling: Sampling = EveryUnit()) -> bool:
        """Whether a release by `mechanism` would be granted now."""
        return self.ledger.affords(sampling.event(mechanism.event()))

    def stream(self, name: str, mechanism: Any, shape: tuple[int, ...] = ()) -> Stream:
        """Open a mechanism with hidden state; its whole declared schedule is charged now.

        Args:
            name: what the transcript calls it.
            mechanism: has `event()`, `open(noise, shape)` and its own methods on the state it opens.
            shape: shape of one item.
        Raises:
            BudgetExceeded, PlanMismatch: nothing was read or spent.
        """
        event = mechanism.event()
        self.ledger.charge(name, event)
        key = len(self.transcript)
        self._open_stream(key, mechanism, shape)
        self._record(name, mechanism, event, EveryUnit(), [], np.zeros((1, 0)))
        return Stream(self, mechanism, key)

    def ask_stream(
        self, key: int, mechanism: Any, method: str, query: Query | None, public_arguments: dict[str, Any]
    ) -> Any:
        """Feed or draw from an open stream; see `Stream.ask`. Free: the stream was charged when it opened."""
        sensitivity = None if query is None else self._sensitivity(query, EveryUnit())
        released = self._answer_stream(key, mechanism, method, query, sensitivity, public_arguments)
        name = f"{type(mechanism).__name__}.{method}"
        if released is not None:
            self._record(
                name, mechanism, NoEvent(), EveryUnit(), [sensitivity or 0.0], np.asarray(released)[None]
            )
        return released

    @abc.abstractmethod
    def hold(self, query: MeanQuery) -> Held:
        """Compute each unit's clipped contribution and keep it behind the door. Free: nothing is released."""

    @abc.abstractmethod
    def allot(
        self, name: str, *, share: float | None = None, rho: float | None = None, plan: Event | None = None
    ) -> "Door":
        """Lend an inner solver a part of the budget; what it does not spend stays with this door.

        Args:
            name: who borrows.
            share: the part, as a fraction of this door's budget.
            rho: the part, in zCDP.
            plan: the part, as a piece of the declared plan.
        Raises:
            ValueError: not exactly one of the three was given, or it is not a part of this budget.
        """

    @abc.abstractmethod
    def blocks(self, count: int) -> list["Door"]:
        """Split the units at random into `count` disjoint blocks; the dearest block is what is charged."""

    @abc.abstractmethod
    def view(self, row_map: Array, row_bound: float) -> "Door":
        """The same data through a public linear map of its rows, on the same ledger.

        Args:
            row_map: (d, k); a row a becomes `a @ row_map`, then is clipped to `row_bound`. Public or released.
            row_bound: largest l2 norm of a mapped row.
        """

    @abc.abstractmethod
    def _answer(self, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar) -> Any: ...

    @abc.abstractmethod
    def _open_stream(self, key: int, mechanism: Any, shape: tuple[int, ...]) -> None: ...

    @abc.abstractmethod
    def _answer_stream(
        self,
        key: int,
        mechanism: Any,
        method: str,
        query: Query | None,
        sensitivity: Scalar | None,
        public_arguments: dict[str, Any],
    ) -> Any: ...

    @abc.abstractmethod
    def _iterate_compiled(
        self, step: loops.Step, state: Any, times: int, slots: list[loops.Slot]
    ) -> tuple[Any, list[NDArray[Any]], list[NDArray[np.float64]]]: ...

    def _iterate_eagerly(
        self, step: loops.Step, state: Any, times: int, slots: list[loops.Slot]
    ) -> tuple[Any, list[NDArray[Any]], list[NDArray[np.float64]]]:
        released: list[list[Any]] = [[] for _ in slots]
        sensitivities: list[list[float]] = [[] for _ in slots]
        for _ in range(times):
            position = 0

            def release(query: Query, mechanism: Mechanism, sampling: Sampling = EveryUnit()) -> Array:
                nonlocal position
                sensitivity = self._sensitivity(query, sampling)
                answer = self._answer_in_loop(position, query, mechanism, sampling, sensitivity)
                released[position].append(np.asarray(answer))
                sensitivities[position].append(float(sensitivity))
                position += 1
                return jnp.asarray(answer)

            state = step(state, release)
            self._observe(slots[0].name if slots else "step", 1)
        return (
            state,
            [np.stack(values) for values in released],
            [np.asarray(moved) for moved in sensitivities],
        )

    def _answer_in_loop(
        self, slot: int, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar
    ) -> Any:
        """The answer to the release call number `slot` of an eager loop's step."""
        del slot
        return self._answer(query, mechanism, sampling, sensitivity)

    def _sensitivity(self, query: Query, sampling: Sampling) -> Scalar:
        """The query's sensitivity plus what float64 rounding of the sum can add on both data sets."""
        sensitivity = query.sensitivity(self.public, sampling)
        if isinstance(query, MeanQuery):
            units = expected_units(sampling, self.public.n)
            sensitivity = sensitivity + 2.0 * rounding_bound(query.radius(), self.public.n) / units
        return sensitivity

    def _record(
        self,
        name: str,
        mechanism: Any,
        event: Event,
        sampling: Sampling,
        sensitivities: Any,
        released: NDArray[Any],
    ) -> None:
        sensitivity = np.asarray(sensitivities, np.float64).reshape(-1)
        scale = None
        if isinstance(mechanism, Gaussian | Laplace):
            silent = mechanism.noise_multiplier == 0  # and the sensitivity may be infinite
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
            )
        )
        if len(released) == 1:
            self._observe(name, 1)

    def _observe(self, name: str, count: int) -> None:
        if self._observer is not None:
            self._observer(name, count)


class Curator(Door):
    """The door that holds data, noise and ledger.

    Args:
        units: the data.
        ledger: the budget; built from a plan, or a filter (see `ledger.ledger`).
        noise: secret randomness; default: fresh, from the operating system.
        observer: called with (name, count) after releases, for progress bars; sees nothing private.
    """

    def __init__(
        self,
        units: Units,
        ledger: Ledger,
        *,
        noise: NoiseSource | None = None,
        observer: Observer | None = None,
        transcript: Transcript | None = None,
        engine: InProcessEngine | None = None,
    ) -> None:
        self._noise = NoiseSource() if noise is None else noise
        if transcript is None:
            transcript = Transcript(units.public.relation, seeded=self._noise.seeded)
        super().__init__(units.public, ledger, transcript, observer)
        self._private_units = units
        self._engine = InProcessEngine(units) if engine is None else engine
        self._private_held: dict[int, NDArray[np.float64]] = {}

    def hold(self, query: MeanQuery) -> Held:
        """Compute each unit's clipped contribution and keep it behind the door. Free: nothing is released."""
        handle = Held(len(self._private_held))
        self._private_held[handle.key] = self._engine.gather(query)
        return handle

    def allot(
        self, name: str, *, share: float | None = None, rho: float | None = None, plan: Event | None = None
    ) -> "Curator":
        """See `Door.allot`."""
        ledger = self.ledger.sub_ledger(name, share=share, rho=rho, plan=plan)
        return self._child(self._private_units, self._engine, ledger)

    def blocks(self, count: int) -> list["Door"]:
        """See `Door.blocks`.

        Privacy:
            Under replace-one the blocks are slices of a random permutation of unit positions: the replaced unit
            stays in its block. Under add-or-remove-one each position joins a block independently, so that adding a
            unit moves no other; a block's mean divides by its public nominal size n / count.
        """
        parts = block_assignment(self.public, count, self._noise.units_generator)
        ledgers = self.ledger.parallel(count)
        return [
            self._child(*self._subset(part, size), ledger)
            for (part, size), ledger in zip(parts, ledgers, strict=True)
        ]

    def view(self, row_map: Array, row_bound: float) -> "Curator":
        """See `Door.view`."""
        engine = self._engine.view(np.asarray(row_map, np.float64), row_bound)
        return self._child(engine.units, engine, self.ledger)

    def _subset(self, private_indices: NDArray[np.int64], size: int) -> tuple[Units, InProcessEngine]:
        private_units = self._private_units.subset(private_indices, size)
        return private_units, InProcessEngine(private_units)

    def _child(self, private_units: Units, engine: InProcessEngine, ledger: Ledger) -> "Curator":
        return Curator(
            private_units,
            ledger,
            noise=self._noise,
            observer=self._observer,
            transcript=self.transcript,
            engine=engine,
        )

    def _private_value(self, query: Query, sampling: Sampling, private_draw: NDArray[np.int64] | None) -> Any:
        """The value before noise; a function of the noise for an `ArgminQuery`."""
        if isinstance(query, MeanQuery):
            private_sum = self._engine.clipped_sum(query, private_draw)
            return query.finish(jnp.asarray(private_sum) / expected_units(sampling, self.public.n))
        if isinstance(query, StatisticOfHeld):
            return query.value(jnp.asarray(self._private_held[query.held.key]))
        if isinstance(query, ArgminQuery):
            return partial(
                query.minimise, self._private_units.private_features, self._private_units.private_targets
            )
        raise TypeError(f"the engine does not know how to compute a {type(query).__name__}.")

    def _draw(self, sampling: Sampling) -> NDArray[np.int64] | None:
        if isinstance(sampling, EveryUnit):
            return None
        return self._engine.draw(sampling, self._noise.units_generator)

    def _answer(self, query: Query, mechanism: Mechanism, sampling: Sampling, sensitivity: Scalar) -> Any:
        private_value = self._private_value(query, sampling, self._draw(sampling))
        return mechanism.release(self._noise, private_value, float(sensitivity))

    def _open_stream(self, key: int, mechanism: Any, shape: tuple[int, ...]) -> None:
        self._streams[key] = mechanism.open(self._noise, shape)

    def _answer_stream(
        self,
        key: int,
        mechanism: Any,
        method: str,
        query: Query | None,
        sensitivity: Scalar | None,
        public_arguments: dict[str, Any],
    ) -> Any:
        ask = getattr(mechanism, method)
        if query is None:
            return ask(self._streams[key], self._noise, **public_arguments)
        private_value = self._private_value(query, EveryUnit(), None)
        return ask(
            self._streams[key], self._noise, private_value, float(sensitivity or 0.0), **public_arguments
        )

    def _iterate_compiled(
        self, step: loops.Step, state: Any, times: int, slots: list[loops.Slot]
    ) -> tuple[Any, list[NDArray[Any]], list[NDArray[np.float64]]]:
        return loops.run(
            step,
            state,
            times,
            slots,
            public=self.public,
            private_arrays=self._engine.traced_arrays(),
            draws=loops.SecretDraws(self._noise, self._engine),
            observe=self._observe,
        )


def block_assignment(
    public: Public, count: int, generator: np.random.Generator
) -> list[tuple[NDArray[np.int64], int]]:
    """Assign unit positions to disjoint blocks, without looking at the units.

    Returns:
        One (positions, public size) pair a block; the size is what the block's means divide by.
    Raises:
        ValueError: fewer than two units a block.
    """
    if not 1 <= count <= public.n // 2:
        raise ValueError(f"count must be between 1 and n / 2 = {public.n // 2} blocks, got {count}.")
    if public.relation is Relation.ADD_OR_REMOVE_ONE:
        block = generator.integers(count, size=public.n)
        return [(np.flatnonzero(block == b), max(2, public.n // count)) for b in range(count)]
    return [(np.sort(part), len(part)) for part in np.array_split(generator.permutation(public.n), count)]
