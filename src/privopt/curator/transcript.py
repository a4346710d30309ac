"""What was released, in order: the only thing a solver's result may depend on."""

import contextlib
import json
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from privopt.data.blocks import Lineage
from privopt.errors import add_note
from privopt.ledger import accounting
from privopt.ledger.default_account import Statement
from privopt.ledger.events import Event, NoEvent, Parallel, Sampling, repeat, sequence
from privopt.public import Relation

# Two threads never take the same number: blocks of two cuts under one number would pass for disjoint.
_COUNTING = threading.Lock()


@dataclass(frozen=True)
class FilterMark:
    """The filter that a release was charged to, see `Curator.filtered`.

    Attributes:
        number: which of the transcript's filters.
        event: what was paid for all that it releases.
        depth: how deep in blocks of units it was opened.
    """

    number: int
    event: Event
    depth: int


@dataclass(frozen=True)
class PublicDraw:
    """Stands where a mechanism stands, in the line of a public random number."""

    exact: ClassVar[bool] = True

    def __repr__(self) -> str:
        return "none: public randomness"


@dataclass(frozen=True, kw_only=True)
class Release:
    """One line of a transcript: a release, or `count` releases of the same kind made in one loop.

    Attributes:
        name: what was computed.
        event: what one release cost.
        count: how many were made.
        sensitivity: public sensitivity of each release, rounding included, shape (count,).
        noise: the mechanism in words.
        scale: noise scale of each release (Gaussian: standard deviation), shape (count,); None for a selection.
        sampling: who took part.
        released: the released values, shape (count, ...); None if the size policy dropped them.
        lineage: the block of units that was asked; empty for all of them.
        under: the outermost filter that paid for it; None where the release was priced by itself.
        exact: whether its noise is exact: integers, in place of floating point.
        about: what says which numbers these are, where the name does not (`Query.about`); in memory only.
    """

    name: str
    event: Event
    count: int
    sensitivity: NDArray[np.float64]
    noise: str
    scale: NDArray[np.float64] | None
    sampling: Sampling
    released: NDArray[Any] | None
    lineage: Lineage = ()
    under: FilterMark | None = None
    exact: bool = False
    about: Any = field(default=None, repr=False, compare=False)

    @property
    def is_public(self) -> bool:
        """Whether it is a public random number, which says nothing of the data."""
        return self.noise == repr(PublicDraw())

    def to_dict(self, *, values: bool) -> dict[str, Any]:
        """A JSON-ready description; `values` includes the released numbers."""
        document: dict[str, Any] = {
            "name": self.name,
            "count": self.count,
            "event": self.event.to_dict(),
            "noise": self.noise,
            "exact": self.exact,
            "sensitivity": _compact(self.sensitivity),
            "scale": None if self.scale is None else _compact(self.scale),
            "sampling": {"kind": self.sampling.kind, "rate": self.sampling.rate},
        }
        if values and self.released is not None:
            document["released"] = self.released.tolist()
        return document


@dataclass
class Transcript:
    """Every release of a run, in order.

    Attributes:
        relation: the neighbouring relation that the sensitivities refer to.
        seeded: whether the noise, or the choice of units or records, was drawn from a seed: the run is not private.
        eager: whether loops ran step by step: a replay then does the same, for the same last digit.
        exact_noise: whether the source of noise is exact: mechanisms that can add it as integers did so.
        keep_bytes: released values are kept up to this size in total; larger ones are dropped, prices are not.
        paid_by: what the account in a file said that paid for the run; None where none did.
    """

    relation: Relation
    seeded: bool = False
    eager: bool = False
    exact_noise: bool = True
    keep_bytes: int = 256 * 2**20
    paid_by: Statement | None = None
    _releases: list[Release] = field(default_factory=list["Release"])
    _kept: int = 0
    _cuts: int = 0
    _filters: int = 0
    _streams: int = 0

    def append(self, release: Release) -> None:
        """Add a release; its values are dropped when `keep_bytes` is reached."""
        size = 0 if release.released is None else release.released.nbytes
        with _COUNTING:
            if release.released is not None and self._kept + size > self.keep_bytes:
                release = replace(release, released=None)
            else:
                self._kept += size
            self._releases.append(release)

    def __repr__(self) -> str:
        seeded = ", seeded: not private" if self.seeded else ""
        return f"Transcript({self.releases:,} releases, {self.relation.value}{seeded})"

    def __iter__(self) -> Iterator[Release]:
        return iter(self._releases)

    def __len__(self) -> int:
        return len(self._releases)

    def __getitem__(self, index: int) -> Release:
        return self._releases[index]

    @property
    def releases(self) -> int:
        """The number of single releases; a public random number is none."""
        return sum(release.count for release in self._releases if not release.is_public)

    def next_cut(self) -> int:
        """A number for the blocks that are about to be made."""
        with _COUNTING:
            self._cuts += 1
            return self._cuts

    def next_filter(self) -> int:
        """A number for the filter that is about to be opened."""
        with _COUNTING:
            self._filters += 1
            return self._filters

    def next_stream(self) -> int:
        """A number for the stream that is about to be opened."""
        with _COUNTING:
            self._streams += 1
            return self._streams

    def event(self) -> Event:
        """Everything that was released, as one event to be priced; a filter counts as what was paid for it."""
        return _tree([(release, release.lineage) for release in self])

    def epsilon(self, delta: float) -> float:
        """The privacy price of the transcript at `delta`."""
        return accounting.epsilon(self.event(), delta, self.relation)

    def to_dict(self, *, values: bool = False) -> dict[str, Any]:
        """A JSON-ready description; `values` includes the released numbers."""
        return {
            "relation": self.relation.value,
            "noise": "seeded: not private" if self.seeded else "operating-system entropy",
            "releases": [release.to_dict(values=values) for release in self],
        }

    def to_json(self, *, values: bool = False) -> str:
        """The transcript as JSON text."""
        return json.dumps(self.to_dict(values=values), indent=2, allow_nan=True)


def _tree(releases: list[tuple[Release, Lineage]], depth: int = 0) -> Event:
    """The releases in order; those on disjoint blocks of one cut side by side, where the first of them stands."""
    events: list[Event | int] = []
    cuts: dict[int, list[list[tuple[Release, Lineage]]]] = {}
    filters: set[int] = set()
    for release, lineage in releases:
        if release.under is not None and release.under.depth == depth:
            if release.under.number not in filters:
                filters.add(release.under.number)
                events.append(release.under.event)
            continue
        if not lineage:
            events.append(repeat(release.event, release.count))
            continue
        block = lineage[0]
        if block.cut not in cuts:
            cuts[block.cut] = [[] for _ in range(block.count)]
            events.append(block.cut)
        cuts[block.cut][block.index].append((release, lineage[1:]))
    return sequence(
        Parallel(tuple(_tree(branch, depth + 1) for branch in cuts[event]))
        if isinstance(event, int)
        else event
        for event in events
    )


def _compact(numbers: NDArray[np.float64]) -> float | list[float]:
    """One number where all are equal, else the list."""
    return (
        float(numbers[0]) if numbers.size and np.all(numbers == numbers[0]) else [float(x) for x in numbers]
    )


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
def answering(
    transcript: Transcript,
    paid: Sequence[tuple[str, object, Event, Sampling]],
    times: int = 1,
    *,
    lineage: Lineage,
    under: FilterMark | None,
) -> Generator[None]:
    """Write lines of what was paid for, `times` each, if it is interrupted, by whatever exception, and say so in it.

    Privacy:
        Whoever catches the exception and goes on may have seen the data's effect: how far it came, how long it took. So
        the transcript counts all that was paid for, as the ledger does. The note is made from public facts alone.
    """
    try:
        yield
    except BaseException as error:
        for one in paid:
            transcript.append(unanswered(*one, times, lineage=lineage, under=under))
        told = [f"{times} x {name} ({event.describe()})" for name, _, event, _ in paid if event != NoEvent()]
        if told:
            add_note(
                error,
                f"paid for before this, and not given back, since it may have been seen: {', '.join(told)}.",
            )
        raise
