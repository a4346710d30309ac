"""What a solver holds of secret state: handles that name it and contain nothing."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privopt.data.blocks import Lineage
from privopt.data.participants import check_groups
from privopt.errors import PrivoptError
from privopt.mechanisms.base import AnswerScales, HiddenState, StreamMechanism
from privopt.mechanisms.prefix_sum import PrefixSum
from privopt.mechanisms.tests import TestedSamples
from privopt.process import this_process
from privopt.public import Public, Relation
from privopt.queries.base import MeanQuery, Query
from privopt.queries.lots import LotSum

if TYPE_CHECKING:
    from privopt.curator.base import Curator


class Held:
    """Points that the curator keeps, one vector a unit or a group of units. It names them in a query and has none.

    Attributes:
        points: K, the public number of points: of groups, or of units (nominal under add-or-remove-one, where an
            absent unit has no point).
        replaced: whether a neighbouring data set *replaces* one point. So it is under replace-one, and for groups
            under both relations; otherwise a point is added or removed.
        seed: a public random number, drawn when the points were held and without looking at them: for a statistic that
            draws lots. Whoever learns it learns nothing of the points.
        drawn_for: the stream that the points are a secret sample for, which alone answers about them; None for all.
    """

    def __init__(self, *, points: int, replaced: bool, seed: int = 0, drawn_for: int | None = None) -> None:
        self.points = points
        self.replaced = replaced
        self.seed = seed
        self.drawn_for = drawn_for

    @property
    def sampled(self) -> bool:
        """Whether a unit may enter or leave the points besides being replaced, so that their number is secret."""
        return self.drawn_for is not None

    @property
    def factor(self) -> int:
        """How many clipped points one unit can move a sum of them by."""
        return 2 if self.replaced else 1

    def __repr__(self) -> str:
        return "<private>"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class HiddenMean:
    """A mean over units that the curator keeps. It says what was computed and how far one unit moves it, not the value.

    Attributes:
        query: what was computed, with its public points.
        public: of the units that it was computed on.
        sensitivity: how far one unit can move the mean, in `query.norm`, rounding of the sum included.
        rounding: how much further apart the computed means of two neighbouring data sets may be than the exact ones, in
            any norm that `query.radius` bounds and over a contribution's radius in it.
    """

    query: MeanQuery
    public: Public
    sensitivity: float
    rounding: float

    def __post_init__(self) -> None:
        if isinstance(self.query, LotSum):
            raise ValueError(
                f"{self.query.name} draws a lot for each unit at every release, and a mean that is kept is computed "
                "once: ask for it by `release`."
            )

    @property
    def norm(self) -> str:
        """In which norm the sensitivity is."""
        return self.query.norm

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the mean."""
        return self.query.shape(self.public)

    def __repr__(self) -> str:
        return "<private>"


@dataclass(frozen=True, kw_only=True)
class StreamRequest:
    """What a stream is asked for: a declared request of its mechanism, and what goes with it.

    Attributes:
        key: which stream of its curator.
        mechanism: the stream's.
        name: the request, see `StreamMechanism.requests`.
        query: what is computed on the data and fed in; None if nothing is.
        source: the curator of the units that the query is computed on.
        arguments: public.
        sensitivity: of the query on those units, rounding included; 0 without a query.
    """

    key: int
    mechanism: StreamMechanism
    name: str
    query: Query | None
    source: Any
    arguments: Mapping[str, Any]
    sensitivity: float = 0.0

    @property
    def label(self) -> str:
        """What the transcript calls it."""
        return f"{type(self.mechanism).__name__}.{self.name}"

    def require_declared(self) -> None:
        """Refuse what the mechanism does not declare. Needs no data.

        Raises:
            ValueError: there is no such request, a query is missing or too many, or an argument is not known.
        """
        declared = self.mechanism.request(self.name)
        if declared.fed is not (self.query is not None):
            needs = (
                "is fed the value of a query: give one" if declared.fed else "takes no query: leave it out"
            )
            raise ValueError(f"{self.label} {needs}.")
        unknown = sorted(set(self.arguments) - declared.arguments)
        if unknown:
            known = ", ".join(sorted(declared.arguments)) or "none"
            raise ValueError(f"{self.label} knows no argument {unknown[0]!r}; its arguments are: {known}.")


class SampleTurn:
    """Which sample a stream of tested samples is at, and what it was asked for. All of it is public.

    Attributes:
        held: the points of the last sample.
        asked: whether it was tested.
        used: whether something was released of it.
        stopped: whether the last test was to stop.
        answers, releases: how many there were.
    """

    __slots__ = ("answers", "asked", "held", "releases", "stopped", "used")

    def __init__(self) -> None:
        self.held: Held | None = None
        self.asked = self.used = self.stopped = False
        self.answers = self.releases = 0

    def begin(self, held: Held) -> None:
        """Turn to a fresh sample."""
        self.held, self.asked, self.used = held, False, False

    def admit(self, name: str, held: object, most: int) -> None:
        """Refuse a request that the price does not cover.

        Raises:
            ValueError: the points are not those of the last sample, or it has served already.
        """
        answers = name == "answer"
        fresh = held is self.held and held is not None and not self.used
        allowed = not self.asked and not self.stopped if answers else self.asked is not self.stopped
        if not (fresh and allowed and (self.answers if answers else self.releases) < most):
            raise ValueError(
                f"a sample serves for one test, and for one release once it passed, {most} times at most; after a "
                "failed test, fresh samples serve for one release each. Hold points of a fresh sample: "
                "curator.hold(query, sample=stream)."
            )

    def note(self, name: str, released: Any) -> None:
        """Remember what was asked for."""
        if name == "answer":
            self.asked, self.answers = True, self.answers + 1
            self.stopped = bool(released)
        else:
            self.used, self.releases = True, self.releases + 1


class OpenStream(HiddenState):
    """A stream as its curator keeps it: the hidden state, and the parts of the data that entered it.

    It is entered, by `with`, while a request is answered: an answer reads the state and changes it, so threads take
    turns.

    Attributes:
        state: the mechanism's; None at a curator without data.
        entered: the parts of the data that were fed in, in order.
        scales: the noise scales of its answers; None if they have none.
        sample: of tested samples, which sample it is at.
    Privacy:
        A forked child has a copy of the state, the noise included. What both released from it would share that noise,
        so only the process that opened the stream is answered. After an answer that broke off, other than by a refusal,
        nobody is: an item may have entered the state and not the record of who is in it. After a loop that broke off,
        by whatever exception, nobody is either: its items were recorded at once, and fewer may have entered.
    """

    __slots__ = ("_broken", "_process", "_turn", "entered", "sample", "scales", "state")

    def __init__(self, state: HiddenState | None, scales: AnswerScales | None = None) -> None:
        self.state, self.scales = state, scales
        self.entered = Entered()
        self.sample = SampleTurn()
        self._turn, self._process, self._broken = threading.Lock(), this_process(), False

    def __enter__(self) -> None:
        if this_process() != self._process:
            raise RuntimeError(
                "this stream was opened in another process, and its noise must not be used twice: ask in the process "
                "that opened it, or open, and pay for, another."
            )
        self._turn.acquire()
        try:
            if self._broken:
                raise RuntimeError(
                    "an answer of this stream broke off, so it is not known what has entered: open, and pay for, "
                    "another."
                )
        except BaseException:
            self._turn.release()
            raise

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        # What is refused is refused by one of these, and not by a subclass: no stack or memory that ran out is.
        refused = kind in (None, ValueError, RuntimeError) or issubclass(kind, PrivoptError)
        self._broken = self._broken or not refused
        self._turn.release()

    @property
    def broken(self) -> bool:
        """Whether it answers no more."""
        return self._broken

    def break_off(self) -> None:
        """Answer no more: something that fed it, while it was entered, did not come to its end."""
        self._broken = True


@dataclass(frozen=True)
class Stream:
    """A mechanism with hidden state that the curator keeps, charged once when it was opened.

    Attributes:
        mechanism: what was opened.
        key: which stream of its curator.
    """

    _curator: "Curator"
    mechanism: StreamMechanism
    key: int

    def __repr__(self) -> str:
        return "<private>"

    def is_of(self, curator: "Curator") -> bool:
        """Whether this curator opened it."""
        return self._curator is curator

    def ask(
        self,
        name: str,
        query: Query | None = None,
        *,
        on: "Curator | None" = None,
        **public_arguments: Any,
    ) -> Any:
        """Feed a query to the hidden state, or draw from it.

        Args:
            name: one of the mechanism's `requests` (`add`, `draw`, `answer`).
            query: what is computed on the data and fed in; None if nothing is.
            on: the block of units that the query is computed on; default: all units of the curator that opened the
                stream.
            public_arguments: those that the request declares.
        Returns:
            What the mechanism releases, or None where it only remembers.
        Raises:
            ValueError: the mechanism declares no such request, or a unit would be in more items than the stream was
                charged for; nothing was read.
        """
        return self._curator.ask_stream(
            StreamRequest(
                key=self.key,
                mechanism=self.mechanism,
                name=name,
                query=query,
                source=self._curator if on is None else on,
                arguments=public_arguments,
            )
        )


def points_for(
    curator: "Curator", public: Public, *, groups: int | None, sample: Stream | None, seed: int
) -> Held:
    """A handle to one point a unit, one a group, or one a unit of a fresh secret sample for a stream.

    Raises:
        ValueError: there are no such groups, or the stream is not one of `TestedSamples` of this curator.
    """
    replaced = public.relation is Relation.REPLACE_ONE
    if sample is not None:
        if groups is not None or not isinstance(sample.mechanism, TestedSamples) or not sample.is_of(curator):
            raise ValueError(
                "sample must be a stream of TestedSamples that this curator opened, and units be the points."
            )
        points = max(2, round(sample.mechanism.rate * public.n))
        return Held(points=points, replaced=replaced, seed=seed, drawn_for=sample.key)
    if groups is not None:
        return Held(points=check_groups(public, groups), replaced=True, seed=seed)
    return Held(points=public.n, replaced=replaced, seed=seed)


# ------------------------------------------------------------------------------------------------------------
# What the steps of a loop feed to a stream: one item a call, each computed on the next of some blocks.


class Feed:
    """A stream of prefix sums that a loop's steps feed, and the blocks that its items are computed on.

    A step enters an item by `release(query, into=name)`, which answers with the prefix sum up to it; `name` is that of
    the feed in `Curator.iterate(..., feeds={name: Feed(stream, blocks)})`. The first item of the loop is computed on
    the first block, the next on the second, and after the last block the first comes again.

    Args:
        stream: an open stream of `PrefixSum`.
        on: the blocks, curators of units of the curator that opened the stream.
    Raises:
        ValueError: the stream is of another mechanism, or there is no block.
    """

    def __init__(self, stream: Stream, on: Sequence[Any]) -> None:
        mechanism = stream.mechanism
        if not isinstance(mechanism, PrefixSum):
            raise ValueError(
                f"a loop feeds streams of PrefixSum, got {type(mechanism).__name__}: ask other streams in an ordinary "
                "loop."
            )
        if not on:
            raise ValueError("a stream is fed from at least one block of units, got none.")
        self.stream, self.mechanism, self.on = stream, mechanism, tuple(on)

    def source(self, item: int) -> Any:
        """The block that an item of the loop is computed on."""
        return self.on[item % len(self.on)]

    def request(self, query: Query, item: int) -> StreamRequest:
        """What enters an item of the loop."""
        return StreamRequest(
            key=self.stream.key,
            mechanism=self.mechanism,
            name="add",
            query=query,
            source=self.source(item),
            arguments={},
        )

    def turns(self, *, first: int, calls: int, times: int) -> "Turns":
        """The blocks that the call sees which enters items `first`, `first + calls`, ... of a loop of so many steps."""
        seen = (first + calls * np.arange(times)) % len(self.on)
        blocks, at = np.unique(seen, return_inverse=True)
        described = [self.on[int(block)].public for block in blocks]
        publics = tuple(dict.fromkeys(described))
        kinds = np.array([publics.index(public) for public in described])[at]
        return Turns(
            publics=publics,
            blocks=tuple(int(block) for block in blocks),
            at=np.stack([at, kinds], axis=1).astype(np.int32),
        )


class Turns(NamedTuple):
    """The blocks that one call of a step sees, step by step.

    Attributes:
        publics: what is public about the blocks, each different description once.
        blocks: positions of the blocks in the feed that this call ever sees, in order.
        at: for each step, which of `blocks` and which of `publics`, (times, 2).
    """

    publics: tuple[Public, ...]
    blocks: tuple[int, ...]
    at: NDArray[np.int32]


# ------------------------------------------------------------------------------------------------------------
# Which parts of the data entered a stream, item by item, and in how many items one unit can be by that.


class Participants(NamedTuple):
    """See `mechanisms.base.Entry`."""

    items: frozenset[int]
    most: int
    gap: int | None


@dataclass
class _Part:
    """A part of the data, and how it was cut further.

    Attributes:
        own: the items that hold all of it.
        cuts: by the number of a cut, the blocks of it that entered.
        most: in how many of the items below, its own included, a unit of it may be.
        latest: the last of these items; -1 for none.
    """

    own: list[int] = field(default_factory=list[int])
    cuts: dict[int, "_Cut"] = field(default_factory=dict[int, "_Cut"])
    most: int = 0
    latest: int = -1

    def items(self) -> Iterator[int]:
        """All items below, its own included."""
        yield from self.own
        for cut in self.cuts.values():
            yield from cut.items()


@dataclass
class _Cut:
    """Disjoint blocks of a part: a unit is in one of them."""

    blocks: dict[int, _Part] = field(default_factory=dict[int, _Part])
    most: int = 0
    latest: int = -1

    def items(self) -> Iterator[int]:
        """All items in any of the blocks."""
        for block in self.blocks.values():
            yield from block.items()


class Entered:
    """The items of a stream, by the part of the data that each was computed on.

    Privacy:
        Two parts share no unit if they lie in different blocks of one cut; any others may. So a unit can be in all
        items of the parts that hold its own, and of every other cut in the items of one block. `most` and `gap` are the
        extremes over all units that this leaves possible.
    """

    def __init__(self) -> None:
        self._root = _Part()
        self._lineages: list[Lineage] = []

    def __len__(self) -> int:
        return len(self._lineages)

    def copy(self) -> "Entered":
        """The same items, to try further ones."""
        other = Entered()
        for lineage in self._lineages:
            other.add(lineage)
        return other

    def participants(self, lineage: Lineage) -> Participants:
        """What a next item of this part would mean for the units in it."""
        most, latest = 1, -1
        shared: list[int] = [len(self)]
        part: _Part | None = self._root
        for block in lineage:
            most, latest = most + len(part.own), max(latest, *part.own[-1:], -1)
            shared += part.own
            for number, cut in part.cuts.items():
                if number != block.cut:
                    most, latest = most + cut.most, max(latest, cut.latest)
                    shared += cut.items()
            cut = part.cuts.get(block.cut)
            part = None if cut is None else cut.blocks.get(block.index)
            if part is None:
                break
        if part is not None:
            most, latest = most + part.most, max(latest, part.latest)
            shared += part.items()
        return Participants(frozenset(shared), most, None if latest < 0 else len(self) - latest)

    def add(self, lineage: Lineage) -> None:
        """Note that the next item was computed on this part of the data."""
        item = len(self._lineages)
        self._lineages.append(lineage)
        path = [self._root]
        for block in lineage:
            cut = path[-1].cuts.setdefault(block.cut, _Cut())
            path.append(cut.blocks.setdefault(block.index, _Part()))
        path[-1].own.append(item)
        for depth in range(len(path) - 1, -1, -1):
            part = path[depth]
            part.most, part.latest = len(part.own) + sum(cut.most for cut in part.cuts.values()), item
            if depth:
                cut = path[depth - 1].cuts[lineage[depth - 1].cut]
                cut.most, cut.latest = max(cut.most, part.most), item
