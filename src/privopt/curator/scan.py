"""Compiled loops: many cheap releases inside one `lax.scan`, priced as a whole before the first.

`Curator.iterate` splits a loop into stretches. The noise and the sampled units of a stretch are drawn on the host, from
the curator's secret streams, the engine hands over the rows of those units, and all enter the scan as inputs: no key
ever enters a compiled loop, nor does a row of a unit that was not drawn leave the place where it is kept. So the
program is the same wherever the rows are, and its memory does not grow with their number. Of a table of fewer rows than
a stretch draws each is there once, and steps look for their units at the places where these stand; where such a table
is in this process' memory already, with all n units in it, none of it is copied. All shapes follow from n and other
public numbers: where fewer units are there, absent rows stand for the rest. The loop also accepts recorded releases in
place of computed ones, so that a replay runs the very same program and its result is bit-identical.
"""

import bisect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from privopt.curator.handles import Turns
from privopt.curator.loops import Loop, Looped, Slot, Step, require_priced
from privopt.engine.compiled_loops import traced_sum
from privopt.engine.drawn_rows import DrawnRows, Handed, drawn_bytes, in_place, most_units, side_by_side
from privopt.engine.protocol import Engine
from privopt.engine.rounding import rounding_bound
from privopt.later import Array, jax, jnp
from privopt.ledger.events import EveryUnit, FixedSize, Poisson, Sampling, expected_units
from privopt.mechanisms.base import Mechanism, Sensitivity
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.prefix_sum import PrefixSum, PrefixSumState
from privopt.public import Public
from privopt.queries.base import MeanQuery, Query

STRETCH_BYTES = 32 * 2**20  # drawn rows and noise of a stretch; two of them are held at a time


class Stretch(NamedTuple):
    """What the steps of a stretch are given: one entry a call, of each an entry a step but for the rows.

    Attributes:
        private_handed: the rows of all steps, and where the units of each stand.
        private_shares: at which of these places the units of a step begin, and how many there are: (steps, 2).
        private_noise: what the mechanism combines with the value.
        recorded: the releases of another run.
    """

    private_handed: tuple[Handed, ...]
    private_shares: tuple[NDArray[np.int32], ...]
    private_noise: tuple[NDArray[Any], ...]
    recorded: tuple[NDArray[np.float64], ...]


class Call(NamedTuple):
    """One release call of a step, as the stretches see it.

    Attributes:
        slot: what does not change from step to step.
        turns: of a call that feeds a stream, the blocks it sees.
        room: how many units a step is padded to.
        most: how many units there are at most, see `most_units`.
    """

    slot: Slot
    turns: Turns | None
    room: int
    most: int

    def places(self, length: int) -> int:
        """Places of units in a stretch of so many steps: a block that several of them see is there once."""
        return self.room * (length if self.turns is None else min(length, len(self.turns.blocks)))

    def stored(self, length: int) -> int:
        """Rows of such a stretch: a unit that several samples hold is there once if samples hold more than all."""
        places = self.places(length)
        return places if self.turns is not None else min(places, self.most)

    def blocks(self, start: int, stop: int) -> tuple[list[int], NDArray[np.int64]]:
        """The blocks that these steps see, in order, and which of them each step sees."""
        assert self.turns is not None
        seen, at = np.unique(self.turns.at[start:stop, 0], return_inverse=True)
        return [self.turns.blocks[block] for block in seen], at


class Draws(Protocol):
    """Where the scan inputs of a stretch of steps come from."""

    forced: bool

    def stretch(self, calls: Sequence[Call], start: int, length: int, steps: int) -> Stretch:
        """What the steps start, ..., start + steps - 1 are given, padded to `length` steps."""
        ...

    def prefix(self, slot: Slot) -> NDArray[np.float64]:
        """What the stream that a call feeds has released last."""
        ...


class OpenFeed(NamedTuple):
    """A stream that a loop feeds, where there are data.

    Attributes:
        mechanism: the stream's.
        state: its hidden state.
        private_engines: of each block, what holds its units.
    """

    mechanism: PrefixSum
    state: PrefixSumState
    private_engines: tuple[Engine, ...]


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
        self._private_held: DrawnRows | None = None

    def stretch(self, calls: Sequence[Call], start: int, length: int, steps: int) -> Stretch:
        """Draw step by step, in the order in which an eager loop would, then fetch the rows of all steps."""
        private_draws: list[list[NDArray[np.int64]]] = [[] for _ in calls]
        private_noise = tuple(room_for_noise(call.slot, length, exact=self._noise.exact) for call in calls)
        for t in range(steps):
            for k, call in enumerate(calls):
                slot = call.slot
                if slot.feed:  # a row of a stream's noise is drawn once, for an item that is entered
                    feed = self._feeds[slot.feed]
                    with self._noting(feed.mechanism):
                        private_row = feed.mechanism.draw_next(feed.state, self._noise)
                    _put(private_noise[k][t, ...], private_row, feed.mechanism)
                    continue
                private_draws[k].append(self._engine.draw(slot.sampling, self._noise.units_generator))
                with self._noting(slot.mechanism):
                    private_drawn = slot.mechanism.draw(self._noise, slot.shape)
                _put(private_noise[k][t, ...], private_drawn, slot.mechanism)
        fetched = [
            self._sampled(call, private_draws[k], length)
            if call.turns is None
            else self._of_blocks(call, start, length, steps)
            for k, call in enumerate(calls)
        ]
        return Stretch(
            tuple(private_handed for private_handed, _ in fetched),
            tuple(private_shares for _, private_shares in fetched),
            private_noise,
            tuple(np.zeros((length, *call.slot.shape), np.float64) for call in calls),
        )

    def _sampled(
        self, call: Call, private_draws: list[NDArray[np.int64]], length: int
    ) -> tuple[Handed, NDArray[np.int32]]:
        """The rows of the units that were drawn, and where they stand, one step's after the other's."""
        private_shares = np.zeros((length, 2), np.int32)
        private_counts = np.array([len(private_draw) for private_draw in private_draws])
        private_shares[: len(private_counts), 1] = private_counts
        private_shares[1:, 0] = np.cumsum(private_shares[:-1, 1])
        # Longer is rarer than 1e-12 a run: widen the padding, never drop a unit.
        room = max(call.room, int(private_counts.max()))
        private_draw, places = np.concatenate(private_draws), room * length
        if call.most >= places:
            return in_place(self._engine.rows(private_draw, places)), private_shares
        private_rows = self._held_rows(call.most)
        if private_rows is None:
            private_distinct, private_draw = np.unique(private_draw, return_inverse=True)
            # More than `most` is rarer than 1e-12 as well, and only in a block that was drawn.
            private_rows = self._engine.rows(private_distinct, max(call.most, len(private_distinct)))
        private_places = np.zeros(places, np.int32)
        private_places[: len(private_draw)] = private_draw
        return Handed(private_rows, private_places), private_shares

    def _held_rows(self, most: int) -> DrawnRows | None:
        """All rows where they are in memory, and absent ones up to `most`: where there are fewer, copied once a run."""
        if self._private_held is None:
            private_rows = self._engine.held_rows()
            if private_rows is None or len(private_rows.private_targets) >= most:
                return private_rows
            self._private_held = side_by_side([private_rows], most)
        return self._private_held

    def _of_blocks(self, call: Call, start: int, length: int, steps: int) -> tuple[Handed, NDArray[np.int32]]:
        """The rows of the blocks that the steps see."""
        blocks, at = call.blocks(start, start + steps)
        private_engines = [self._feeds[call.slot.feed].private_engines[block] for block in blocks]
        private_counts = np.array([private_engine.private_count for private_engine in private_engines])
        private_shares = np.zeros((length, 2), np.int32)
        private_shares[:steps] = np.stack([at * call.room, private_counts[at]], axis=1)
        private_rows = (
            private_engine.rows(np.arange(private_engine.private_count), call.room)
            for private_engine in private_engines
        )
        return in_place(side_by_side(private_rows, call.places(length))), private_shares

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
    loop: Loop,
    *,
    public: Public,
    draws: Draws,
    observe: Callable[[str, int], None],
) -> Looped:
    """Run the loop in stretches of equal length through one compiled program.

    What a stretch needs is drawn and fetched while the one before it runs, so that two are in memory at a time, of some
    `STRETCH_BYTES` each, or of one step where its rows take more.

    Privacy:
        The length of a stretch and its room for rows follow from public numbers: they are those of a sample of n units.
        Where their number is secret it shows in no shape, so in no log of a compiler, no dump of a program and no cache
        of programs; nor in the time of the program, which is that for n units. Of a drawn block the room is that of
        `most_units`, which its units exceed with a probability below 1e-12.
    """
    step, state, times, slots, feeds = loop
    turns = [
        feeds[slot.feed].turns(first=slot.first, calls=slot.calls, times=times) if slot.feed else None
        for slot in slots
    ]

    most = most_units(public)
    calls = [
        Call(slot, seen, max(_room(slot, seen, most, times), 1), most)
        for slot, seen in zip(slots, turns, strict=True)
    ]
    length = _stretch_length(calls, times, public.d)
    state = jax.tree.map(jnp.asarray, state)
    carry = (state, {slot.feed: jnp.asarray(draws.prefix(slot), jnp.float64) for slot in slots if slot.feed})
    released: list[list[NDArray[Any]]] = [[] for _ in slots]
    sensitivities: list[list[NDArray[np.float64]]] = [[] for _ in slots]

    def collect(outputs: Any, steps: int) -> None:
        for k, (values, moved) in enumerate(outputs):
            released[k].append(np.asarray(values)[:steps])
            sensitivities[k].append(np.asarray(moved)[:steps])
        observe(slots[0].name, steps)

    running: tuple[Any, int] | None = None
    for start in range(0, times, length):
        steps = min(length, times - start)
        private_handed, *inputs = draws.stretch(
            calls, start, length, steps
        )  # while the one before is running
        if running is not None:
            collect(*running)
        carry, outputs = _run_stretch(
            carry,
            jax.tree.map(_on_device, private_handed),
            (*inputs, _padded_turns(turns, start, length)),
            np.arange(length) < steps,
            np.asarray(draws.forced),
            np.asarray(False),
            step=step,
            slots=tuple(slots),
            rooms=tuple(
                len(private.private_places) * call.room // call.places(length)
                for private, call in zip(private_handed, calls, strict=True)
            ),
            public=public,
        )
        running = outputs, steps
    assert running is not None
    collect(*running)
    return Looped(carry[0], [np.concatenate(v) for v in released], [np.concatenate(s) for s in sensitivities])


def _on_device(private_column: NDArray[Any]) -> Array:
    """The rows as they are, not copied: they are aligned, and never written again."""
    return jax.device_put(private_column, may_alias=True)


@partial(jax.jit, static_argnames=("step", "slots", "rooms", "public"))
def _run_stretch(
    carry: Any,
    private_handed: tuple[Handed, ...],
    inputs: Any,
    valid: Array,
    forced: Array,
    never: Array,
    *,
    step: Step,
    slots: tuple[Slot, ...],
    rooms: tuple[int, ...],
    public: Public,
) -> tuple[Any, Any]:
    """Scan `step`; `forced` puts the recorded releases in place of the computed ones; `never` is False.

    What was priced (`slots`) is part of the compiled program, so that a step whose closure changed is traced anew.
    """

    def body(carry: Any, scanned: Any) -> tuple[Any, Any]:
        (private_shares, private_noise, recorded, turns), is_valid = scanned
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
            described = slot.publics[0] if into else public
            private_sum = traced_sum(query, described, private_handed[k], private_shares[k], rooms[k])
            if into:
                kind = turns[k]
                private_mean = private_sum * _of_kind([1.0 / block.n for block in slot.publics], kind)
                sensitivity = _of_kind([_rounded(query, block, sampling) for block in slot.publics], kind)
            else:
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


def _stretch_length(calls: Sequence[Call], times: int, width: int) -> int:
    """How many steps make a stretch. The observer sees the stretches, so their length is public, as are these calls."""
    noise = sum(
        8 * int(np.prod(call.slot.mechanism.noise_shape(call.slot.shape))) + 8 * int(np.prod(call.slot.shape))
        for call in calls
    )

    def size(length: int) -> int:
        return length * noise + sum(
            drawn_bytes(call.places(length), call.stored(length), width) for call in calls
        )

    most = max(1, bisect.bisect_right(range(1, times + 1), STRETCH_BYTES, key=size))
    return -(-times // -(-times // most))


def _room(slot: Slot, turns: Turns | None, count: int, times: int) -> int:
    """Units that a step is padded to, of at most so many.

    A block has as many as the largest; a sampled batch more with probability below 1e-12 in the whole run.
    """
    if turns is not None:
        return min(max(described.n for described in turns.publics), count)
    if isinstance(slot.sampling, FixedSize):
        return min(slot.sampling.batch, count)
    assert isinstance(slot.sampling, Poisson)
    return int(min(count, 1 + stats.binom.isf(1e-12 / times, count, slot.sampling.rate)))


def _padded_turns(turns: Sequence[Turns | None], start: int, length: int) -> tuple[NDArray[np.int32], ...]:
    """For each call, the kind of the block that it sees at the steps of a stretch."""
    padded = tuple(np.zeros(length, np.int32) for _ in turns)
    for kinds, seen in zip(padded, turns, strict=True):
        if seen is not None:
            part = seen.at[start : start + length, 1]
            kinds[: len(part)] = part
    return padded
