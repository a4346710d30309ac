"""The releases of a transcript, grouped by kind: what a report says of them, without their values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from privopt.ledger.events import Event, NoEvent, SampledEvent, event_from_dict, leaf_counts
from privopt.report.words import number, span, spelled
from privopt.sampling import EveryUnit, FixedSize, Poisson, Sampling
from privopt.transcript import Release, Transcript

MOST_SCHEDULE_POINTS = 400


@dataclass(frozen=True, kw_only=True)
class ReleaseGroup:
    """Releases of one kind.

    Attributes:
        name: what was computed.
        count: how many were made.
        events: what they cost: different events in order of appearance, and how often each.
        sampling: who took part.
        sensitivity: least and largest sensitivity; None where a mechanism states none.
        scale: least and largest noise scale; None for selections.
        schedule: (position, scale) of releases spread evenly over the run where the scale varies, else empty.
    """

    name: str
    count: int
    events: tuple[tuple[Event, int], ...]
    sampling: Sampling
    sensitivity: tuple[float, float] | None
    scale: tuple[float, float] | None
    schedule: tuple[tuple[int, float], ...] = ()

    @property
    def label(self) -> str:
        """What was computed, in words."""
        text = spelled(self.name)
        return text[:1].upper() + text[1:]

    @property
    def noise(self) -> str:
        """The mechanism in words."""
        described = [_unsampled(event).describe() for event, _ in self.events]
        if len(set(described)) <= 2:
            return "; ".join(dict.fromkeys(described))
        multipliers = [getattr(_unsampled(event), "noise_multiplier", None) for event, _ in self.events]
        known = [value for value in multipliers if value is not None]
        if len(known) < len(multipliers):
            return f"{described[0]}; and {len(set(described)) - 1} others"
        return f"{described[0].split(',')[0]}, {span(min(known), max(known))} times the sensitivity"

    @property
    def participants(self) -> str:
        """Who took part, in words."""
        if isinstance(self.sampling, Poisson):
            return f"a secret random sample, each with probability {percent_of(self.sampling.rate)}"
        if isinstance(self.sampling, FixedSize):
            return f"a secret random sample of {self.sampling.batch:,} of {self.sampling.n:,}"
        return "everybody"

    @property
    def is_free(self) -> bool:
        """Whether nothing was charged for them."""
        return all(event == NoEvent() for event, _ in self.events)

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        sampling: dict[str, Any] = {"kind": self.sampling.kind, "rate": self.sampling.rate}
        if isinstance(self.sampling, FixedSize):
            sampling |= {"batch": self.sampling.batch, "n": self.sampling.n}
        return {
            "name": self.name,
            "count": self.count,
            "events": [{"event": event.to_dict(), "count": count} for event, count in self.events],
            "noise": self.noise,
            "sampling": sampling,
            "sensitivity": self.sensitivity,
            "scale": self.scale,
            "schedule": self.schedule,
        }

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
        )


def percent_of(rate: float) -> str:
    """A sampling rate as a percentage, not rounded up."""
    return f"{number(100 * rate, 3)} %"


def group_releases(transcript: Transcript) -> tuple[ReleaseGroup, ...]:
    """Group a transcript by what was computed, the kind of its event and who took part, in order of appearance."""
    kinds: dict[tuple[Any, ...], list[Release]] = {}
    for release in transcript:
        inner = _unsampled(release.event)
        kinds.setdefault((release.name, type(inner).__name__, release.sampling), []).append(release)
    return tuple(_group(releases) for releases in kinds.values())


def _group(releases: list[Release]) -> ReleaseGroup:
    events: dict[Event, int] = {}
    for release in releases:
        events[release.event] = events.get(release.event, 0) + release.count
    sensitivities = [float(value) for release in releases for value in release.sensitivity]
    scales = [float(value) for release in releases if release.scale is not None for value in release.scale]
    varies = bool(scales) and math.isfinite(max(scales)) and max(scales) > min(scales) * (1 + 1e-6)
    return ReleaseGroup(
        name=releases[0].name,
        count=sum(release.count for release in releases),
        events=tuple(events.items()),
        sampling=releases[0].sampling,
        sensitivity=_ends(sensitivities),
        scale=_ends(scales),
        schedule=_thinned(scales) if varies else (),
    )


def _thinned(scales: list[float]) -> tuple[tuple[int, float], ...]:
    kept = min(len(scales), MOST_SCHEDULE_POINTS)
    positions = [round(point * (len(scales) - 1) / max(1, kept - 1)) for point in range(kept)]
    return tuple((position + 1, scales[position]) for position in positions)


def _ends(values: list[float]) -> tuple[float, float] | None:
    return (min(values), max(values)) if values else None


def _pair(values: Any) -> tuple[float, float] | None:
    return None if values is None else (float(values[0]), float(values[1]))


def _unsampled(event: Event) -> Event:
    return event.event if isinstance(event, SampledEvent) else event


def dearest(group: ReleaseGroup) -> Event | None:
    """The event to price as "one of them alone": the one with the least noise; None for compound or free events."""
    simple = [event for event, _ in group.events if not _is_compound(event) and event != NoEvent()]
    if not simple:
        return None
    return min(simple, key=lambda event: getattr(_unsampled(event), "noise_multiplier", 0.0))


def _is_compound(event: Event) -> bool:
    leaves, parallels = leaf_counts(event)
    return bool(parallels) or len(leaves) != 1 or next(iter(leaves.values()), 0) != 1
