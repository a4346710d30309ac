"""The releases of a transcript, grouped by kind: what a report says of them, without their values."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from privopt.ledger.events import (
    Event,
    EveryUnit,
    FixedSize,
    NoEvent,
    Poisson,
    SampledEvent,
    Sampling,
    event_from_dict,
    leaf_counts,
)
from privopt.ledger.filters import filter_cost
from privopt.report.words import titled

if TYPE_CHECKING:
    from privopt.curator.transcript import FilterMark, Release, Transcript


# ---- How much of a filter a run used: releases chosen as it went, paid for together beforehand -------------
@dataclass(frozen=True)
class FilterUse:
    """A Gaussian filter of a run.

    Attributes:
        number: which of the run's filters.
        event: what was paid for all that it released.
        used: the share of it, in rho, that the releases needed; None where there was no noise.
        depth: how deep in blocks of the units it was opened.
    """

    number: int
    event: Event
    used: float | None
    depth: int = 0

    def facts(self) -> dict[str, Any]:
        """The used share, and the noise of the one release as which it was paid for; None where there was no noise."""
        return {"used": self.used, "noise_multiplier": getattr(self.event, "noise_multiplier", None)}

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        return {**vars(self), "event": self.event.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "FilterUse":
        """Rebuild it from what `to_dict` gave."""
        return cls(values["number"], event_from_dict(values["event"]), values["used"], values.get("depth", 0))


def filter_uses(transcript: "Transcript") -> dict[int, FilterUse]:
    """The filters of a run by their numbers, each with what its releases cost together."""
    under: "dict[int, tuple[FilterMark, Transcript]]" = {}
    for release in transcript:
        mark = release.under
        if mark is not None:
            _, part = under.setdefault(mark.number, (mark, type(transcript)(transcript.relation)))
            part.append(replace(release, under=None, released=None, lineage=release.lineage[mark.depth :]))
    return {
        number: FilterUse(number, mark.event, _share(mark.event, part), mark.depth)
        for number, (mark, part) in under.items()
    }


def _share(event: Event, part: "Transcript") -> float | None:
    cap, spent = (filter_cost("gaussian", one, 0.0).amount for one in (event, part.event()))
    return spent / cap if math.isfinite(cap) and cap > 0 else None


MOST_SCHEDULE_POINTS = 400
MOST_FILTERED_EVENTS = 1000  # different ones of releases under a filter, which are not priced one by one
Ends = tuple[float, float] | None  # the least and the largest of some numbers
Path = tuple[
    tuple[int, int, int], ...
]  # blocks in blocks: the number of the cut, of the block, of its blocks


@dataclass(frozen=True, kw_only=True)
class ReleaseGroup:
    """Releases of one kind.

    Attributes:
        name: what was computed.
        count: how many were made.
        events: what they cost: different events in order of appearance, and how often each. Of many under a filter,
            only those of least and most noise.
        sampling: who took part.
        sensitivity: least and largest sensitivity; None where a mechanism states none.
        scale: least and largest noise scale; None for selections.
        schedule: (position among all releases of the run, scale) where the scale varies, else empty; of many releases,
            the least and the greatest of each stretch.
        filter: the filter that paid for them, if one did.
        exact: whether their noise is exact: integers, in place of floating point.
        blocks: of releases on blocks of the units, (which of the events, the block, how often).
        ranges: for each of the events, the least and largest sensitivity and noise scale of its releases; None where
            none is known. Empty in reports that were written before.
    """

    name: str
    count: int
    events: tuple[tuple[Event, int], ...]
    sampling: Sampling
    sensitivity: tuple[float, float] | None
    scale: tuple[float, float] | None
    schedule: tuple[tuple[int, float], ...] = ()
    filter: FilterUse | None = None
    exact: bool = False
    blocks: tuple[tuple[int, Path, int], ...] = ()
    ranges: tuple[tuple[Ends, Ends], ...] = ()

    @property
    def label(self) -> str:
        """What was computed, in words."""
        return titled(self.name)

    @property
    def is_free(self) -> bool:
        """Whether nothing was charged for them."""
        return all(event == NoEvent() for event, _ in self.events)

    @property
    def is_drawn(self) -> bool:
        """Whether they are free releases of a stream that was charged as a whole."""
        return self.is_free and "." in self.name

    @property
    def is_sum_of_stream(self) -> bool:
        """Whether they are sums whose noise is known, released by a stream that was charged as a whole."""
        return self.is_drawn and self.scale is not None

    def leaves(self) -> list[tuple[Event, int]]:
        """The single events among what they cost, and how often each."""
        return [
            (leaf, count * times)
            for event, count in self.events
            for leaf, times in leaf_counts(event)[0].items()
        ]

    def facts(self) -> dict[str, Any]:
        """What sentences about them need: names and numbers, and the mechanisms with how often each was used."""
        inner: dict[Event, int] = {}
        for event, count in self.events:
            inner[_unsampled(event)] = inner.get(_unsampled(event), 0) + count
        described: dict[str, int] = {}
        for event, count in inner.items():
            described[event.describe()] = described.get(event.describe(), 0) + count
        multipliers = [getattr(event, "noise_multiplier", None) for event in inner]
        known = [value for value in multipliers if value is not None]
        return {
            "label": self.label,
            "count": self.count,
            "exact": self.exact,
            "sampling": self._sampled(),
            "sensitivity": self.sensitivity,
            "scale": self.scale,
            "is_drawn": self.is_drawn,
            "of_stream": self.is_sum_of_stream,
            "mechanisms": [{"words": words, "count": count} for words, count in described.items()],
            "different": len(inner),
            "multipliers": [min(known), max(known)] if len(known) == len(multipliers) else None,
            "filter": None if self.filter is None else self.filter.facts(),
        }

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values; what "noise" says is a sentence of `sentences.j2`."""
        return {
            "name": self.name,
            "count": self.count,
            "events": self._priced(),
            "noise": "",
            "exact": self.exact,
            "sampling": self._sampled(),
            "sensitivity": self.sensitivity,
            "scale": self.scale,
            "schedule": self.schedule,
            "filter": None if self.filter is None else self.filter.to_dict(),
            "blocks": [
                {"event": event, "of": [list(block) for block in path], "count": count}
                for event, path, count in self.blocks
            ],
        }

    def _sampled(self) -> dict[str, Any]:
        """Who took part, as JSON values."""
        sampling = {"kind": self.sampling.kind, "rate": self.sampling.rate}
        if isinstance(self.sampling, FixedSize):
            return sampling | {"batch": self.sampling.batch, "n": self.sampling.n}
        return sampling

    def _priced(self) -> list[dict[str, Any]]:
        """Each event, how often it was paid, and the sensitivity and noise of its releases."""
        parts = [{"event": event.to_dict(), "count": count} for event, count in self.events]
        if not self.ranges:
            return parts
        return [
            part | {"sensitivity": sensitivity, "scale": scale}
            for part, (sensitivity, scale) in zip(parts, self.ranges, strict=True)
        ]

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "ReleaseGroup":
        """Rebuild a group from what `to_dict` gave."""
        sampling: Sampling = EveryUnit()
        if values["sampling"]["kind"] == "poisson":
            sampling = Poisson(values["sampling"]["rate"])
        elif values["sampling"]["kind"] == "fixed-size":
            sampling = FixedSize(values["sampling"]["batch"], values["sampling"]["n"])
        return cls(
            name=values["name"],
            count=values["count"],
            events=tuple((event_from_dict(part["event"]), part["count"]) for part in values["events"]),
            sampling=sampling,
            sensitivity=_pair(values["sensitivity"]),
            scale=_pair(values["scale"]),
            schedule=tuple((int(at), float(scale)) for at, scale in values["schedule"]),
            filter=None if values.get("filter") is None else FilterUse.from_dict(values["filter"]),
            exact=values.get("exact", False),
            blocks=tuple(
                (part["event"], tuple((cut, index, of) for cut, index, of in part["of"]), part["count"])
                for part in values.get("blocks", [])
            ),
            ranges=tuple((_pair(part["sensitivity"]), _pair(part["scale"])) for part in values["events"])
            if all("sensitivity" in part for part in values["events"])
            else (),
        )


def group_releases(transcript: "Transcript") -> tuple[ReleaseGroup, ...]:
    """Group a transcript by what was computed, the kind of its event, its filter and who took part.

    Of a name such as `HeldMarginal[0,3]` what stands in brackets makes no group of its own.

    Returns:
        The groups in order of appearance.
    """
    kinds: "dict[tuple[Any, ...], list[tuple[int, Release]]]" = {}
    position = 1
    for release in transcript:
        if release.is_public:
            continue
        kind = type(_unsampled(release.event)).__name__
        under = None if release.under is None else release.under.number
        kinds.setdefault((_plain(release.name), kind, under, release.sampling), []).append(
            (position, release)
        )
        position += release.count
    filters = filter_uses(transcript)
    return tuple(
        _group(placed, None if under is None else filters[under])
        for (_, _, under, _), placed in kinds.items()
    )


def _group(placed: "list[tuple[int, Release]]", paid_by: FilterUse | None) -> ReleaseGroup:
    releases = [release for _, release in placed]
    events: dict[Event, int] = {}
    for release in releases:
        events[release.event] = events.get(release.event, 0) + release.count
    blocks = _blocks(releases, list(events))
    if paid_by is not None and len(events) > MOST_FILTERED_EVENTS:
        blocks = ()
        ends = [choose(events, key=_noise_multiplier) for choose in (min, max)]
        events = {event: events[event] for event in ends}
    scaled = [(first, release.scale) for first, release in placed if release.scale is not None]
    scales = _joined([scale for _, scale in scaled])
    positions = _joined([first + np.arange(len(scale), dtype=np.float64) for first, scale in scaled])
    stated = _joined([release.sensitivity for release in releases])
    varies = bool(scales.size) and math.isfinite(scales.max()) and scales.max() > scales.min() * (1 + 1e-6)
    return ReleaseGroup(
        name=_plain(releases[0].name),
        count=sum(release.count for release in releases),
        events=tuple(events.items()),
        sampling=releases[0].sampling,
        sensitivity=_ends(stated[~np.isnan(stated)]),  # of releases that were never answered none is known
        scale=_ends(scales),
        schedule=_thinned(positions, scales) if varies else (),
        filter=paid_by,
        exact=all(release.exact for release in releases),
        blocks=blocks,
        ranges=_ranges(releases, list(events)),
    )


def _ranges(releases: "Sequence[Release]", events: Sequence[Event]) -> tuple[tuple[Ends, Ends], ...]:
    """The ends of the sensitivities and of the scales of the releases of each event."""
    stated: dict[Event, list[NDArray[np.float64]]] = {event: [] for event in events}
    scaled: dict[Event, list[NDArray[np.float64]]] = {event: [] for event in events}
    for release in releases:
        if release.event in stated:
            stated[release.event].append(release.sensitivity[~np.isnan(release.sensitivity)])
            scaled[release.event] += [] if release.scale is None else [release.scale]
    return tuple((_ends(_joined(stated[event])), _ends(_joined(scaled[event]))) for event in events)


def _blocks(releases: "Sequence[Release]", events: list[Event]) -> tuple[tuple[int, Path, int], ...]:
    """Which of the events were released on which block, and how often; none where all were on all units."""
    if not any(release.lineage for release in releases):
        return ()
    placed: dict[tuple[int, Path], int] = {}
    positions = {event: position for position, event in enumerate(events)}
    for release in releases:
        path = tuple((block.cut, block.index, block.count) for block in release.lineage)
        where = positions[release.event], path
        placed[where] = placed.get(where, 0) + release.count
    return tuple((event, path, count) for (event, path), count in placed.items())


def _plain(name: str) -> str:
    """A release's name without the details of this one."""
    return name.partition("[")[0]


def _thinned(positions: NDArray[np.float64], scales: NDArray[np.float64]) -> tuple[tuple[int, float], ...]:
    """At most so many points as show the range of every stretch of the run."""
    kept = np.arange(len(scales))
    if len(scales) > MOST_SCHEDULE_POINTS:
        stretches = np.array_split(kept, MOST_SCHEDULE_POINTS // 2)
        kept = np.unique(
            [stretch[pick(scales[stretch])] for stretch in stretches for pick in (np.argmin, np.argmax)]
        )
    return tuple((int(positions[at]), float(scales[at])) for at in kept)


def _joined(parts: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    return np.concatenate(parts) if parts else np.zeros(0)


def _ends(values: NDArray[np.float64]) -> tuple[float, float] | None:
    return (float(values.min()), float(values.max())) if values.size else None


def _noise_multiplier(event: Event) -> float:
    """The noise of an event where it has such a number, else 0."""
    return getattr(_unsampled(event), "noise_multiplier", 0.0)


def _pair(values: Any) -> tuple[float, float] | None:
    return None if values is None else (float(values[0]), float(values[1]))


def _unsampled(event: Event) -> Event:
    return event.event if isinstance(event, SampledEvent) else event


def dearest(group: ReleaseGroup) -> Event | None:
    """The event to price as "one of them alone": the one with the least noise; None for compound or free events."""
    simple = [event for event, _ in group.events if not _is_compound(event) and event != NoEvent()]
    if not simple:
        return None
    return min(simple, key=_noise_multiplier)


def _is_compound(event: Event) -> bool:
    leaves, parallels = leaf_counts(event)
    return bool(parallels) or len(leaves) != 1 or next(iter(leaves.values()), 0) != 1
