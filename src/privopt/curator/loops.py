"""Compiled loops: many cheap releases inside one `lax.scan`, priced as a whole before the first.

`Curator.iterate` splits a loop into blocks. The noise and the sampled units of a block are drawn on the host, from the
curator's secret streams, and enter the scan as inputs: no key ever enters a compiled loop. The compiled program also
accepts recorded releases in place of computed ones, so that a replay runs the very same program and its result is
bit-identical.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray
from scipy import stats

from privopt.curator.handles import Held, OpenStream, StreamRequest
from privopt.engine.compiled_loops import traced_sum
from privopt.engine.protocol import Engine
from privopt.engine.rounding import rounding_bound
from privopt.ledger.sampling import EveryUnit, FixedSize, Sampling, expected_units
from privopt.mechanisms.base import Mechanism, StreamMechanism
from privopt.mechanisms.noise import NoiseSource
from privopt.mechanisms.objective_perturbation import ObjectiveNoise
from privopt.mechanisms.pass_noise import PassNoise
from privopt.mechanisms.tested_samples import TestedSamples
from privopt.public import Public
from privopt.queries.base import (
    ArgminQuery,
    FunctionOfMean,
    MeanQuery,
    PassQuery,
    Query,
    RecordsQuery,
    RecordSum,
    StatisticOfHeld,
)
from privopt.queries.effects import require_pure
from privopt.queries.safeguards import argues_its_sensitivity, require_on_sample
from privopt.queries.values import ValueSum

BLOCK_BYTES = 32 * 2**20  # secret draws held at a time

SAMPLE_IS_ANOTHERS = (
    "these points are a secret sample drawn for the tests of a stream, whose price covers what that stream releases of "
    "them and nothing else: ask that stream, or hold points without `sample`."
)

ReleaseCall = Callable[..., Array]
Step = Callable[[Any, ReleaseCall], Any]


@dataclass(frozen=True)
class Slot:
    """One release call inside a step: everything about it that does not change from step to step."""

    name: str
    kind: type[Query]
    mechanism: Mechanism
    sampling: Sampling
    shape: tuple[int, ...]
    on_host: bool = False  # whether its loss is called on the host, which no compiled loop does


def require_sample(stream: OpenStream, request: StreamRequest) -> None:
    """Refuse points that were not drawn for this stream, or have served, or a statistic not made for samples.

    Needs no data.

    Privacy:
        What a test says about a sample is priced together with the releases of that stream on it. A release on it that
        is paid for elsewhere would tell who is in the sample, which the price takes to be secret.
    """
    query = request.query
    held = query.held if isinstance(query, StatisticOfHeld) else None
    drawn_for = held.drawn_for if isinstance(held, Held) else None
    if isinstance(request.mechanism, TestedSamples):
        stream.sample.admit(request.name, held, request.mechanism.tests)
        require_on_sample(query, request.name)
    elif drawn_for is not None:
        raise ValueError(SAMPLE_IS_ANOTHERS)


def require_fit(
    query: Query, mechanism: Mechanism | StreamMechanism, sampling: Sampling, public: Public
) -> None:
    """Refuse a release whose price would not cover it. Needs no data.

    Raises:
        ValueError: the query states its sensitivity in another norm than the mechanism scales its noise by (for one
            number all norms are the same), its contributions have effects, it is computed on every unit and would be
            charged for a sample, the sample is one of another number of units, the query cannot tell which records a
            user owns, or it reads numbers and the rows are coded, or the other way round.
    """
    if not isinstance(query, StatisticOfHeld | FunctionOfMean):
        query.require_rows(public)
    require_pure(query, public)
    if isinstance(query, StatisticOfHeld) and isinstance(mechanism, Mechanism):
        held: Any = query.held
        if getattr(held, "drawn_for", None) is not None:
            raise ValueError(SAMPLE_IS_ANOTHERS)
    if query.norm != mechanism.norm and query.shape(public) != ():
        raise ValueError(
            f"{query.name} states its sensitivity in the {query.norm} norm, but {type(mechanism).__name__} scales "
            f"its noise by the {mechanism.norm} norm: use a mechanism of that norm, or a query that states the other."
        )
    if not (isinstance(sampling, EveryUnit) or isinstance(query, MeanQuery)):
        raise ValueError(
            f"{query.name} is computed on every unit, so it cannot be charged for a sample: leave out `sampling`."
        )
    if isinstance(sampling, FixedSize) and sampling.n != public.n:
        raise ValueError(
            f"the sample is {sampling.batch} of n = {sampling.n} units, but here n = {public.n}: its price would be "
            f"that of another rate. Draw from these units: FixedSize({sampling.batch}, {public.n})."
        )
    if isinstance(query, ArgminQuery | PassQuery | RecordsQuery) and public.unit == "user":
        raise ValueError(
            f"{query.name} sees records, not which user owns them, so it protects records only: use it "
            "where the unit is a record."
        )
    if isinstance(query, ArgminQuery | PassQuery):
        query.require_mechanism(mechanism, public)
    elif isinstance(mechanism, ObjectiveNoise):
        raise ValueError(
            f"{query.name} is not a minimisation, and {type(mechanism).__name__} puts its noise inside an objective: "
            "use a mechanism that adds noise to a value."
        )
    elif isinstance(mechanism, PassNoise):
        raise ValueError(
            f"{query.name} is no pass over the records, and {type(mechanism).__name__} draws the order and the noise "
            "of one: use a mechanism that adds noise to a value."
        )


def require_priced(
    slots: Sequence[Slot], position: int, query: Query, mechanism: Mechanism, sampling: Sampling
) -> None:
    """Refuse a release call of a step other than the one that was priced at this position.

    Raises:
        ValueError: the step is not the same at every call, so it is not a function of its state.
    """
    slot = slots[position] if position < len(slots) else None
    if slot is None or (
        (type(query), sampling, sampling.event(mechanism.event()))
        != (slot.kind, slot.sampling, slot.sampling.event(slot.mechanism.event()))
    ):
        raise ValueError(
            f"release call {position} of the step is not the one that was priced: a step must make the same calls each "
            "time. Use `release` in an ordinary loop where they differ."
        )


def declared_releases(step: Step, state: Any, public: Public) -> list[Slot]:
    """Trace a step abstractly, on no data, to learn what it releases.

    Raises:
        ValueError: a mechanism's parameters are traced values, so its cost is not known beforehand.
    """
    slots: list[Slot] = []

    def release(query: Query, mechanism: Mechanism, sampling: Sampling = EveryUnit()) -> Array:
        try:
            hash(mechanism)
        except TypeError:
            raise ValueError(
                f"the cost of {mechanism!r} depends on the state: a loop is priced before it runs. "
                "Use `release` in an ordinary loop, under a privacy filter."
            ) from None
        if isinstance(query, ArgminQuery):
            raise ValueError(
                f"{query.name} is a minimisation, whose mechanism is made for one objective: use `release`, not a loop."
            )
        if isinstance(query, PassQuery):
            raise ValueError(f"{query.name} is a whole pass over the records: use `release`, not a loop.")
        require_fit(query, mechanism, sampling, public)
        shape = query.shape(public)
        on_host = isinstance(query, ValueSum) and query.on_host
        slots.append(Slot(query.name, type(query), mechanism, sampling, shape, on_host))
        return jnp.zeros(shape, jnp.float64)

    try:
        jax.eval_shape(lambda s: step(s, release), state)
    except jax.errors.ConcretizationTypeError as traced:
        raise ValueError(
            "the step needs a number that is known only while it runs, such as a noise multiplier that depends on the "
            "state: a loop is priced before it runs. Use `release` in an ordinary loop, under a privacy filter."
        ) from traced
    return slots


def compiles(slots: list[Slot], public: Public) -> bool:
    """Whether a step runs compiled: sampled means over dense records. Anything else is faster, or only, eager.

    A sensitivity that nobody argues for is compared with the radius at every step, which needs numbers.
    """
    return (
        bool(slots)
        and not public.sparse
        and public.unit == "record"
        and all(
            issubclass(slot.kind, RecordSum)
            and not slot.on_host
            and argues_its_sensitivity(slot.kind)
            and not isinstance(slot.sampling, EveryUnit)
            for slot in slots
        )
    )


class Draws(Protocol):
    """Where the scan inputs of a block come from."""

    forced: bool

    def block(self, slots: list[Slot], length: int, capacity: list[int]) -> tuple[Any, Any, Any]:
        """(unit indices, standard noise, recorded releases) of `length` steps, one entry a slot."""
        ...


class SecretDraws:
    """Fresh units and noise from the curator's secret streams."""

    forced = False

    def __init__(self, noise: NoiseSource, engine: Engine) -> None:
        self._noise = noise
        self._engine = engine

    def block(self, slots: list[Slot], length: int, capacity: list[int]) -> tuple[Any, Any, Any]:
        """Draw a block step by step, in the order in which an eager loop would."""
        private_count = self._engine.private_count
        private_indices = [np.full((length, size), private_count, np.int32) for size in capacity]
        private_noise = [
            np.empty((length, *slot.mechanism.noise_shape(slot.shape)), np.float64) for slot in slots
        ]
        for t in range(length):
            for k, slot in enumerate(slots):
                private_units = self._engine.draw(slot.sampling, self._noise.units_generator)
                if len(private_units) > private_indices[k].shape[1]:
                    # Rarer than 1e-12 a run, and independent of the data: widen the padding, never drop a unit.
                    extra = len(private_units) - private_indices[k].shape[1]
                    private_indices[k] = np.pad(
                        private_indices[k], ((0, 0), (0, extra)), constant_values=private_count
                    )
                private_indices[k][t, : len(private_units)] = private_units
                private_noise[k][t] = slot.mechanism.draw(self._noise, slot.shape)
        recorded = [np.zeros((length, *slot.shape), np.float64) for slot in slots]
        return tuple(private_indices), tuple(private_noise), tuple(recorded)


def run(
    step: Step,
    state: Any,
    times: int,
    slots: list[Slot],
    *,
    public: Public,
    private_arrays: Any,
    draws: Draws,
    observe: Callable[[str, int], None],
) -> tuple[Any, list[NDArray[Any]], list[NDArray[np.float64]]]:
    """Run the loop in blocks of equal length through one compiled program.

    Returns:
        (last state, released values (times, ...) a slot, sensitivities (times,) a slot).
    """
    # The observer sees the blocks, so their length is public; their room for units is that of those that are there.
    step_bytes = sum(
        4 * _capacity(slot.sampling, public.n, times)
        + 8 * int(np.prod(slot.mechanism.noise_shape(slot.shape)))
        + 8 * int(np.prod(slot.shape))
        for slot in slots
    )
    private_count = len(private_arrays.private_features)
    capacity = [_capacity(slot.sampling, private_count, times) for slot in slots]
    count = -(-times * step_bytes // BLOCK_BYTES)
    length = -(-times // count)
    state = jax.tree.map(jnp.asarray, state)
    released: list[list[NDArray[Any]]] = [[] for _ in slots]
    sensitivities: list[list[NDArray[np.float64]]] = [[] for _ in slots]
    for start in range(0, times, length):
        steps = min(length, times - start)
        inputs = draws.block(slots, length, capacity)
        valid = np.arange(length) < steps
        state, outputs = _run_block(
            state,
            private_arrays,
            inputs,
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
def _run_block(
    state: Any,
    private_arrays: Any,
    inputs: Any,
    valid: Array,
    forced: Array,
    never: Array,
    *,
    step: Step,
    slots: tuple[Slot, ...],
    public: Public,
) -> tuple[Any, Any]:
    """Scan `step` over one block; `forced` puts the recorded releases in place of the computed ones; `never` is False.

    What was priced (`slots`) is part of the compiled program, so that a step whose closure changed is traced anew.
    """

    def body(carry: Any, scanned: Any) -> tuple[Any, Any]:
        (private_indices, private_noise, recorded), is_valid = scanned
        outputs: list[tuple[Array, Array]] = []

        def release(query: Query, mechanism: Mechanism, sampling: Sampling = EveryUnit()) -> Array:
            k = len(outputs)
            require_priced(slots, k, query, mechanism, sampling)
            assert isinstance(query, MeanQuery)
            units = expected_units(sampling, public.n)
            private_mean = traced_sum(query, public, private_arrays, private_indices[k]) / units
            sensitivity = (
                query.sensitivity(public, sampling) + 2.0 * rounding_bound(query.radius(), public.n) / units
            )
            computed = mechanism.combine(query.finish(private_mean), sensitivity, private_noise[k])
            released = _as_recorded(jnp.where(forced, recorded[k], computed), never)
            outputs.append((released, jnp.asarray(sensitivity, jnp.float64)))
            return released

        advanced = step(carry, release)
        kept = jax.tree.map(lambda new, old: jnp.where(is_valid, new, old), advanced, carry)
        return kept, tuple(outputs)

    return jax.lax.scan(body, state, (inputs, valid))


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
