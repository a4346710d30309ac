"""What a loop releases, learned from its step before anything is read, and what may be released at all."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privopt.curator.handles import Feed, Held, OpenStream, StreamRequest
from privopt.engine.drawn_rows import row_bytes
from privopt.engine.rounding import PART_UNITS
from privopt.later import Array, jax, jnp
from privopt.ledger.events import Event, EveryUnit, FixedSize, NoEvent, Sampling, expected_units
from privopt.mechanisms.base import Mechanism, StreamMechanism
from privopt.mechanisms.objective_perturbation import ObjectiveNoise, PassNoise
from privopt.mechanisms.tests import TestedSamples
from privopt.public import Public
from privopt.queries.base import (
    ArgminQuery,
    FunctionOfMean,
    MeanQuery,
    ObjectiveQuery,
    PassQuery,
    Query,
    RecordsQuery,
    RecordSum,
    StatisticOfHeld,
)
from privopt.queries.safeguards import argues_its_sensitivity, is_ours, require_on_sample, require_pure
from privopt.queries.values import called_on_host

_MOST_SIZES = 16  # of blocks that one call of a compiled step is computed on
_MOST_BYTES = 32 * 2**20  # of rows that a compiled step is handed, as they are expected
_MOST_UNITS = (
    PART_UNITS // 2
)  # likewise: a sample that turns out larger is still one part for the rounding bound

SAMPLE_IS_ANOTHERS = (
    "these points are a secret sample drawn for the tests of a stream, whose price covers what that stream releases of "
    "them and nothing else: ask that stream, or hold points without `sample`."
)

ReleaseCall = Callable[..., Array]
Step = Callable[[Any, ReleaseCall], Any]


@dataclass(frozen=True)
class Slot:
    """One release call inside a step: everything about it that does not change from step to step.

    Attributes:
        name: what the transcript calls it.
        kind: of the query.
        mechanism: what noises it; of an item of a stream, what adds a row of the stream's noise.
        sampling: who takes part; of an item, everybody in its block.
        shape: of the answer.
        feed: the stream that it feeds; empty where it feeds none.
        first, calls: it enters items `first`, `first + calls`, ... of the loop.
        publics: what is public about the blocks that it is computed on, each different description once.
        on_host: whether a loss is called on the host, which no compiled loop does.
    """

    name: str
    kind: type[Query]
    mechanism: Mechanism
    sampling: Sampling
    shape: tuple[int, ...]
    feed: str = ""
    first: int = 0
    calls: int = 1
    publics: tuple[Public, ...] = ()
    on_host: bool = False

    def event(self) -> Event:
        """What one call costs: nothing where it feeds a stream, which was charged when it opened."""
        return NoEvent() if self.feed else self.sampling.event(self.mechanism.event())

    def item(self, step: int) -> int:
        """Which item of the loop it enters."""
        return self.first + self.calls * step


class Loop(NamedTuple):
    """A loop: what `Curator.iterate` was given, and the release calls of each step, in order."""

    step: Step
    state: Any
    times: int
    slots: list[Slot]
    feeds: Mapping[str, Feed]


class Looped(NamedTuple):
    """What became of a loop.

    Attributes:
        state: the last one.
        released: of each release call the values, (times, *shape).
        sensitivities: of each release call, (times,).
    """

    state: Any
    released: list[NDArray[Any]]
    sensitivities: list[NDArray[np.float64]]


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


def require_no_sample(query: Query) -> None:
    """Refuse a statistic of points that are the secret sample of a stream, which alone may ask about them."""
    held: Any = query.held if isinstance(query, StatisticOfHeld) else None
    if getattr(held, "drawn_for", None) is not None:
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
    if not isinstance(mechanism, TestedSamples):
        require_no_sample(query)
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
    if isinstance(query, ArgminQuery | ObjectiveQuery | PassQuery | RecordsQuery) and public.unit == "user":
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
    slots: Sequence[Slot],
    position: int,
    query: Query,
    mechanism: Mechanism | None,
    sampling: Sampling,
    into: str = "",
) -> None:
    """Refuse a release call of a step other than the one that was priced at this position.

    Raises:
        ValueError: the step is not the same at every call, so it is not a function of its state, or asks about points
            that are the sample of a stream.
    """
    require_no_sample(query)
    slot = slots[position] if position < len(slots) else None
    price = NoEvent() if mechanism is None else sampling.event(mechanism.event())
    if slot is None or (type(query), sampling, price, into) != (
        slot.kind,
        slot.sampling,
        slot.event(),
        slot.feed,
    ):
        raise ValueError(
            f"release call {position} of the step is not the one that was priced: a step must make the same calls each "
            "time. Use `release` in an ordinary loop where they differ."
        )


def declared_releases(
    step: Step, state: Any, public: Public, feeds: Mapping[str, Feed] = MappingProxyType({}), times: int = 1
) -> list[Slot]:
    """Trace a step abstractly, on no data, to learn what it releases.

    Raises:
        ValueError: a mechanism's parameters are traced values, so its cost is not known beforehand; or the step feeds a
            stream that there is not.
    """
    slots: list[Slot] = []

    def release(
        query: Query,
        mechanism: Mechanism | None = None,
        sampling: Sampling = EveryUnit(),
        *,
        into: str = "",
    ) -> Array:
        if into or mechanism is None:
            slots.append(_fed_slot(query, mechanism, sampling, into, feeds))
        else:
            slots.append(_priced_slot(query, mechanism, sampling, public))
        return jnp.zeros(slots[-1].shape, jnp.float64)

    try:
        jax.eval_shape(lambda s: step(s, release), state)
    except jax.errors.ConcretizationTypeError as traced:
        raise ValueError(
            "the step needs a number that is known only while it runs, such as a noise multiplier that depends on the "
            "state: a loop is priced before it runs. Use `release` in an ordinary loop, under a privacy filter."
        ) from traced
    return [_in_turn(slots, k, feeds, times) if slot.feed else slot for k, slot in enumerate(slots)]


def _priced_slot(query: Query, mechanism: Mechanism, sampling: Sampling, public: Public) -> Slot:
    """The call that releases a query for its price."""
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
    return Slot(
        query.name, type(query), mechanism, sampling, query.shape(public), on_host=called_on_host(query)
    )


def _fed_slot(
    query: Query, mechanism: Mechanism | None, sampling: Sampling, into: str, feeds: Mapping[str, Feed]
) -> Slot:
    """The call that enters a query into a stream."""
    if into not in feeds or mechanism is not None or sampling != EveryUnit():
        known = ", ".join(map(repr, feeds)) or "none"
        raise ValueError(
            f"a step calls release(query, mechanism, sampling), or release(query, into=name) with the name of a stream "
            f"that `iterate` was given in `feeds` (here: {known}), got into={into!r}."
        )
    feed = feeds[into]
    for public in dict.fromkeys(block.public for block in feed.on):
        require_fit(query, feed.mechanism, EveryUnit(), public)
    request = feed.request(query, 0)
    shape = query.shape(request.source.public)
    return Slot(
        request.label,
        type(query),
        feed.mechanism.of_item(),
        EveryUnit(),
        shape,
        feed=into,
        on_host=called_on_host(query),
    )


def _in_turn(slots: Sequence[Slot], position: int, feeds: Mapping[str, Feed], times: int) -> Slot:
    """The call with its turn among those of a step that feed the same stream."""
    slot = slots[position]
    same = [k for k, other in enumerate(slots) if other.feed == slot.feed]
    first, calls = same.index(position), len(same)
    publics = feeds[slot.feed].turns(first=first, calls=calls, times=times).publics
    return replace(slot, first=first, calls=calls, publics=publics)


def compiles(slots: list[Slot], public: Public) -> bool:
    """Whether a step runs compiled: sampled means, and items of streams, over some dense records.

    Anything else is faster, or only, eager. So are means over very many records, whose rows stay where they are.

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
            and (_blocks_fit(slot) if slot.feed else not isinstance(slot.sampling, EveryUnit))
            and _rows_fit(slot, public)
            for slot in slots
        )
    )


def _rows_fit(slot: Slot, public: Public) -> bool:
    """Whether the rows of a step are handed over: those that are expected of a sample, or a block's."""
    units = max(
        [block.n for block in slot.publics] if slot.feed else [expected_units(slot.sampling, public.n)]
    )
    return units <= _MOST_UNITS and units * row_bytes(public.d) <= _MOST_BYTES


def _blocks_fit(slot: Slot) -> bool:
    """Whether the blocks of an item are of few sizes, and of one where a query of somebody's own may look at it.

    Privacy:
        A unit that is not in a block must not move its mean by as much as a rounding (`whole_strategy`). Where blocks
        are drawn, the room that a compiled program has for them follows the largest, so its order of summation may too:
        each is computed by itself.
    """
    own = not is_ours(slot.kind)
    drawn = any(public.drawn for public in slot.publics)
    return not drawn and len(slot.publics) <= (1 if own else _MOST_SIZES)
