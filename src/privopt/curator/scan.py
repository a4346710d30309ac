"""Compiled loops: many cheap releases inside one `lax.scan`, priced as a whole before the first.

`Curator.iterate` splits a loop into stretches. The noise and the sampled units of a stretch are drawn on the host, from
the curator's secret streams, and enter the scan as inputs: no key ever enters a compiled loop. The compiled program
also accepts recorded releases in place of computed ones, so that a replay runs the very same program and its result is
bit-identical.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray
from scipy import stats

from privopt.curator.feeds import Feed, Turns
from privopt.curator.loops import Slot, Step, require_priced
from privopt.engine.compiled_loops import traced_sum
from privopt.engine.protocol import Engine
from privopt.engine.rounding import rounding_bound
from privopt.ledger.sampling import EveryUnit, FixedSize, Sampling, expected_units
from privopt.mechanisms.base import Mechanism, Sensitivity
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.prefix_sum import PrefixSum, PrefixSumState
from privopt.public import Public
from privopt.queries.base import MeanQuery, Query

STRETCH_BYTES = 32 * 2**20  # secret draws held at a time


class Draws(Protocol):
    """Where the scan inputs of a stretch of steps come from."""

    forced: bool

    def stretch(
        self, slots: list[Slot], length: int, steps: int, capacity: list[int]
    ) -> tuple[Any, Any, Any]:
        """(unit indices, noise, recorded releases) of `length` steps of which `steps` are run, one entry a slot.

        Of a call that feeds a stream there are no unit indices: its blocks stand in `members`.
        """
        ...

    def members(self, slot: Slot, blocks: tuple[int, ...], capacity: int) -> NDArray[np.int32]:
        """The units of the blocks that a call sees, one padded row a block."""
        ...

    def prefix(self, slot: Slot) -> NDArray[np.float64]:
        """What the stream that a call feeds has released last."""
        ...


class OpenFeed(NamedTuple):
    """A stream that a loop feeds, where there are data.

    Attributes:
        mechanism: the stream's.
        state: its hidden state.
        private_blocks: of each block, the positions of its units among those of the curator that iterates.
    """

    mechanism: PrefixSum
    state: PrefixSumState
    private_blocks: tuple[NDArray[np.int64], ...]


Noting = Callable[[Mechanism | PrefixSum], AbstractContextManager[None]]


class SecretDraws:
    """Fresh units and noise from the curator's secret streams.

    Args:
        noise: the streams.
        engine: what computes on the units.
        feeds: the streams that the loop feeds.
        noting: surrounds every draw of a mechanism's noise, and notes what it is made of.
    """

    forced = False

    def __init__(
        self,
        noise: NoiseSource,
        engine: Engine,
        feeds: Mapping[str, OpenFeed],
        noting: Noting = lambda _: nullcontext(),
    ) -> None:
        self._noise = noise
        self._engine = engine
        self._feeds = feeds
        self._noting = noting

    def stretch(
        self, slots: list[Slot], length: int, steps: int, capacity: list[int]
    ) -> tuple[Any, Any, Any]:
        """Draw step by step, in the order in which an eager loop would."""
        private_count = self._engine.private_count
        private_indices = [np.full((length, size), private_count, np.int32) for size in capacity]
        private_noise = [room_for_noise(slot, length, exact=self._noise.exact) for slot in slots]
        for t in range(length):
            for k, slot in enumerate(slots):
                if slot.feed:
                    if t < steps:  # a row of a stream's noise is drawn once, for an item that is entered
                        feed = self._feeds[slot.feed]
                        with self._noting(feed.mechanism):
                            private_row = feed.mechanism.draw_next(feed.state, self._noise)
                        _put(private_noise[k][t, ...], private_row, feed.mechanism)
                    continue
                private_units = self._engine.draw(slot.sampling, self._noise.units_generator)
                # Longer is rarer than 1e-12 a run, and independent of the data: widen the padding, never drop a unit.
                private_indices[k] = _widened(private_indices[k], len(private_units), private_count)
                private_indices[k][t, : len(private_units)] = private_units
                with self._noting(slot.mechanism):
                    private_drawn = slot.mechanism.draw(self._noise, slot.shape)
                _put(private_noise[k][t, ...], private_drawn, slot.mechanism)
        recorded = [np.zeros((length, *slot.shape), np.float64) for slot in slots]
        return tuple(private_indices), tuple(private_noise), tuple(recorded)

    def members(self, slot: Slot, blocks: tuple[int, ...], capacity: int) -> NDArray[np.int32]:
        """See `Draws.members`."""
        private_count = self._engine.private_count
        private_members = np.full((len(blocks), capacity), private_count, np.int32)
        for row, block in enumerate(blocks):
            private_units = self._feeds[slot.feed].private_blocks[block]
            private_members[row, : len(private_units)] = private_units
        return private_members

    def prefix(self, slot: Slot) -> NDArray[np.float64]:
        """See `Draws.prefix`."""
        return self._feeds[slot.feed].state.prefix


def room_for_noise(slot: Slot, length: int, *, exact: bool) -> NDArray[Any]:
    """Zeros for the noise of a call at so many steps: integers where an exact source adds it on a lattice."""
    integers = exact and slot.mechanism.exact
    shape = (length, *slot.mechanism.noise_shape(slot.shape))
    return np.zeros(shape, np.int64 if integers else np.float64)


def _put(private_room: NDArray[Any], private_drawn: NDArray[Any], mechanism: Mechanism | PrefixSum) -> None:
    """Put a draw into its place.

    Privacy:
        Floats of scale 1 that are cut to integers would be next to no noise on a lattice, where they are 2^30 and more.
    Raises:
        TypeError: the place is for integers, and floats were drawn.
    """
    if not np.can_cast(private_drawn.dtype, private_room.dtype, "same_kind"):
        raise TypeError(
            f"{type(mechanism).__name__} calls itself exact, but draws {private_drawn.dtype.name} noise: draw integers "
            "for a lattice, or let its `exact` be False."
        )
    private_room[...] = private_drawn


def run(
    step: Step,
    state: Any,
    times: int,
    slots: list[Slot],
    feeds: Mapping[str, Feed],
    *,
    public: Public,
    private_arrays: Any,
    draws: Draws,
    observe: Callable[[str, int], None],
) -> tuple[Any, list[NDArray[Any]], list[NDArray[np.float64]]]:
    """Run the loop in stretches of equal length through one compiled program.

    Returns:
        (last state, released values (times, ...) a slot, sensitivities (times,) a slot).
    """
    # The observer sees the stretches, so their length is public; their room for units is that of those that are there.
    step_bytes = sum(
        4 * (2 if slot.feed else _capacity(slot.sampling, public.n, times))
        + 8 * int(np.prod(slot.mechanism.noise_shape(slot.shape)))
        + 8 * int(np.prod(slot.shape))
        for slot in slots
    )
    private_count = len(private_arrays.private_features)
    capacity = [0 if slot.feed else _capacity(slot.sampling, private_count, times) for slot in slots]
    turns = [
        feeds[slot.feed].turns(first=slot.first, calls=slot.calls, times=times) if slot.feed else None
        for slot in slots
    ]
    private_members = tuple(
        np.zeros((0, 0), np.int32)
        if seen is None
        else draws.members(slot, seen.blocks, _room(seen, private_count))
        for slot, seen in zip(slots, turns, strict=True)
    )
    count = -(-times * step_bytes // STRETCH_BYTES)
    length = -(-times // count)
    state = jax.tree.map(jnp.asarray, state)
    prefixes = {slot.feed: jnp.asarray(draws.prefix(slot), jnp.float64) for slot in slots if slot.feed}
    released: list[list[NDArray[Any]]] = [[] for _ in slots]
    sensitivities: list[list[NDArray[np.float64]]] = [[] for _ in slots]
    for start in range(0, times, length):
        steps = min(length, times - start)
        inputs = draws.stretch(slots, length, steps, capacity)
        valid = np.arange(length) < steps
        (state, prefixes), outputs = _run_stretch(
            (state, prefixes),
            (private_arrays, private_members),
            (*inputs, _padded_turns(turns, start, length)),
            valid,
            np.asarray(draws.forced),
            np.asarray(False),
            step=step,
            slots=tuple(slots),
            public=public,
        )
        for k, (values, moved) in enumerate(outputs):
            released[k].append(np.asarray(values)[:steps])
            sensitivities[k].append(np.asarray(moved)[:steps])
        observe(slots[0].name, steps)
    return state, [np.concatenate(v) for v in released], [np.concatenate(s) for s in sensitivities]


@partial(jax.jit, static_argnames=("step", "slots", "public"))
def _run_stretch(
    carry: Any,
    private_rows: Any,
    inputs: Any,
    valid: Array,
    forced: Array,
    never: Array,
    *,
    step: Step,
    slots: tuple[Slot, ...],
    public: Public,
) -> tuple[Any, Any]:
    """Scan `step`; `forced` puts the recorded releases in place of the computed ones; `never` is False.

    What was priced (`slots`) is part of the compiled program, so that a step whose closure changed is traced anew.
    """
    private_arrays, private_members = private_rows

    def body(carry: Any, scanned: Any) -> tuple[Any, Any]:
        (private_indices, private_noise, recorded, turns), is_valid = scanned
        state, prefixes = carry
        prefixes, outputs = dict(prefixes), list[tuple[Array, Array]]()

        def release(
            query: Query,
            mechanism: Mechanism | None = None,
            sampling: Sampling = EveryUnit(),
            *,
            into: str = "",
        ) -> Array:
            k = len(outputs)
            require_priced(slots, k, query, mechanism, sampling, into)
            assert isinstance(query, MeanQuery)
            slot = slots[k]
            if into:
                block, kind = turns[k]
                private_sum = traced_sum(query, slot.publics[0], private_arrays, private_members[k][block])
                private_mean = private_sum * _of_kind([1.0 / described.n for described in slot.publics], kind)
                sensitivity = _of_kind(
                    [_rounded(query, described, sampling) for described in slot.publics], kind
                )
            else:
                private_sum = traced_sum(query, public, private_arrays, private_indices[k])
                private_mean = private_sum / expected_units(sampling, public.n)
                sensitivity = _rounded(query, public, sampling)
            computed = slot.mechanism.combine(query.finish(private_mean), sensitivity, private_noise[k])
            if into:
                computed = prefixes[into] + _as_recorded(computed, never)
            released = _as_recorded(jnp.where(forced, recorded[k], computed), never)
            if into:
                prefixes[into] = released
            outputs.append((released, jnp.asarray(sensitivity, jnp.float64)))
            return released

        advanced = (step(state, release), prefixes)
        kept = jax.tree.map(lambda new, old: jnp.where(is_valid, new, old), advanced, carry)
        return kept, tuple(outputs)

    return jax.lax.scan(body, carry, (inputs, valid))


def _rounded(query: MeanQuery, public: Public, sampling: Sampling) -> Sensitivity:
    """The sensitivity with what rounding of the sum can add."""
    units = expected_units(sampling, public.n)
    return query.sensitivity(public, sampling) + 2.0 * rounding_bound(query.radius(), public.n) / units


def _of_kind(numbers: Sequence[Sensitivity], kind: Array) -> Array:
    """One of a few numbers, chosen while the loop runs."""
    stacked = jnp.stack([jnp.asarray(number, jnp.float64) for number in numbers])
    return stacked[0] if len(numbers) == 1 else stacked[kind]


def _as_recorded(released: Array, never: Array) -> Array:
    """The released number to the last bit, as the transcript has it.

    A compiler may merge the last multiplication of a release into the addition that follows it, and would then go on
    with another rounding than it stores; a replay would differ in the last bit. Arithmetic on the bits, with a zero
    that is known at run time only, keeps the two apart.

    Args:
        released: float64.
        never: a traced False.
    """
    bits = jax.lax.bitcast_convert_type(released, jnp.int64) ^ never.astype(jnp.int64)
    return jax.lax.bitcast_convert_type(bits, jnp.float64)


def _capacity(sampling: Sampling, n: int, times: int) -> int:
    """Units a sampled batch is padded to: exceeded with probability below 1e-12 in the whole run."""
    if isinstance(sampling, FixedSize):
        return min(sampling.batch, n)
    return int(min(n, 1 + stats.binom.isf(1e-12 / times, n, sampling.rate)))


def _room(seen: Turns, rows: int) -> int:
    """Units that a block is padded to: as many as the largest has."""
    return min(max(described.n for described in seen.publics), rows)


def _widened(private_rows: NDArray[np.int32], length: int, fill: int) -> NDArray[np.int32]:
    """The rows with room for so many, where they have less."""
    extra = max(length - private_rows.shape[1], 0)
    return np.pad(private_rows, ((0, 0), (0, extra)), constant_values=fill) if extra else private_rows


def _padded_turns(turns: Sequence[Turns | None], start: int, length: int) -> tuple[NDArray[np.int32], ...]:
    """For each call, which block it sees at the steps of a stretch."""
    padded: list[NDArray[np.int32]] = []
    for seen in turns:
        rows = np.zeros((length, 2), np.int32)
        if seen is not None:
            part = seen.at[start : start + length]
            rows[: len(part)] = part
        padded.append(rows)
    return tuple(padded)
