"""The lines of a ledger: charges, parts that were lent, and disjoint blocks, as events, as text and as JSON."""

import math
from dataclasses import dataclass
from typing import Any

from privopt.ledger.events import Event, Parallel, repeat, sequence
from privopt.ledger.filters import Cost


@dataclass
class Charge:
    """`count` equal releases in a row."""

    name: str
    event: Event
    count: int


@dataclass
class Part:
    """The lines of a ledger that borrowed a part of this one."""

    name: str
    entries: "list[Entry]"


@dataclass
class Blocks:
    """The lines of each disjoint block of units; `paid` is what the dearest has cost in a filter so far."""

    name: str
    blocks: "tuple[list[Entry], ...]"
    paid: Cost = Cost(0.0)


@dataclass
class Filtered:
    """One event that was paid for, and the lines of the filter that it was handed out as."""

    name: str
    event: Event
    entries: "list[Entry]"


Entry = Charge | Part | Blocks | Filtered


def add_charge(entries: list[Entry], name: str, event: Event, count: int) -> None:
    """Write a line, or raise the count of the last one if it says the same."""
    last = entries[-1] if entries else None
    if isinstance(last, Charge) and last.name == name and last.event == event:
        last.count += count
    else:
        entries.append(Charge(name, event, count))


def entries_to_event(entries: list[Entry]) -> Event:
    """Everything that was charged, as one tree."""
    events: list[Event] = []
    for entry in entries:
        if isinstance(entry, Charge):
            events.append(repeat(entry.event, entry.count))
        elif isinstance(entry, Filtered):
            events.append(entry.event)
        elif isinstance(entry, Part):
            events.append(entries_to_event(entry.entries))
        else:
            events.append(Parallel(tuple(entries_to_event(block) for block in entry.blocks)))
    return sequence(events)


def entries_to_list(entries: list[Entry]) -> list[dict[str, Any]]:
    """The lines as JSON values."""
    values: list[dict[str, Any]] = []
    for entry in entries:
        if isinstance(entry, Charge):
            values.append({"name": entry.name, "count": entry.count, "event": entry.event.to_dict()})
        elif isinstance(entry, Part):
            values.append({"name": entry.name, "entries": entries_to_list(entry.entries)})
        elif isinstance(entry, Filtered):
            inner = entries_to_list(entry.entries)
            values.append({"name": entry.name, "event": entry.event.to_dict(), "filter": inner})
        else:
            blocks = [entries_to_list(block) for block in entry.blocks]
            values.append({"name": entry.name, "parallel": blocks})
    return values


def entries_to_lines(entries: list[Entry], indent: str = "  ") -> list[str]:
    """The lines in words."""
    lines: list[str] = []
    for entry in entries:
        if isinstance(entry, Charge):
            lines.append(f"{indent}{entry.name}: {repeat(entry.event, entry.count).describe()}")
        elif isinstance(entry, Filtered):
            lines.append(f"{indent}{entry.name}, a filter of {entry.event.describe()}:")
            lines += entries_to_lines(entry.entries, indent + "  ")
        elif isinstance(entry, Part):
            lines += [f"{indent}{entry.name}:", *entries_to_lines(entry.entries, indent + "  ")]
        else:
            lines.append(f"{indent}{entry.name}, {len(entry.blocks)} disjoint blocks, the dearest counts:")
            for number, block in enumerate(entry.blocks, 1):
                lines += [f"{indent}  block {number}:", *entries_to_lines(block, indent + "    ")]
    return lines


def json_number(value: float) -> float | str:
    """A number, or "infinity", which JSON does not have."""
    return value if math.isfinite(value) else "infinity"
