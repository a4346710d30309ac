"""How much of a filter a run used: releases chosen as it went, paid for together beforehand."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from privopt.curator.transcript import FilterMark, Transcript
from privopt.ledger.event_json import event_from_dict
from privopt.ledger.events import Event, GaussianEvent
from privopt.ledger.filters import filter_cost
from privopt.report.words import number, percent


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

    @property
    def sentence(self) -> str:
        """What was paid and how much of it was used, in words."""
        if not isinstance(self.event, GaussianEvent):
            return "chosen as the run went, without noise"
        multiplier = number(self.event.noise_multiplier)
        paid = f"paid for as one release with noise {multiplier} times the sensitivity"
        return f"chosen as the run went, under a Gaussian filter that was {paid}; {self.share} of it was used"

    @property
    def share(self) -> str:
        """The used share as a percentage."""
        return "an unknown share" if self.used is None else percent(min(1.0, self.used))

    def to_dict(self) -> dict[str, Any]:
        """A dictionary of JSON values."""
        return {
            "number": self.number,
            "event": self.event.to_dict(),
            "used": self.used,
            "depth": self.depth,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "FilterUse":
        """Rebuild it from what `to_dict` gave."""
        return cls(values["number"], event_from_dict(values["event"]), values["used"], values.get("depth", 0))


def filter_uses(transcript: Transcript) -> dict[int, FilterUse]:
    """The filters of a run by their numbers, each with what its releases cost together."""
    under: dict[int, tuple[FilterMark, Transcript]] = {}
    for release in transcript:
        mark = release.under
        if mark is not None:
            _, part = under.setdefault(mark.number, (mark, Transcript(transcript.relation)))
            part.append(replace(release, under=None, released=None, lineage=release.lineage[mark.depth :]))
    return {
        number: FilterUse(number, mark.event, _share(mark.event, part), mark.depth)
        for number, (mark, part) in under.items()
    }


def _share(event: Event, part: Transcript) -> float | None:
    cap, spent = (filter_cost("gaussian", one, 0.0).amount for one in (event, part.event()))
    return spent / cap if math.isfinite(cap) and cap > 0 else None
