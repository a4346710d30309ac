"""Whether everything that was released has been paid for, block by block, and every filter kept to its price.

The recorded releases are put into a tree of their own: those on disjoint blocks side by side, whatever was released
under a filter as what was bought for it. What a unit meets in that tree must be among what a unit meets in the one
that was priced.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from privopt.verification.checks import Check, Outcome, held
from privopt.verification.curves import mpf
from privopt.verification.fields import Fields, Malformed, number
from privopt.verification.tree import Way, met_by_units, ways_through
from privopt.verification.work import TooLong, spend

_CLOSE = 1e-6  # of the share of a filter that was used
_MOST_COUNT = 10**12
_MOST_BLOCKS = 10**7  # of one cut
_DEEPEST = 32  # blocks in blocks
_FREE = "NoEvent"
_TOO_MANY = "the units are divided in too many ways to count what each of them meets"
Path = tuple[tuple[int, int, int], ...]


class _Made(NamedTuple):
    """An event that was released so often on a block of the units."""

    path: Path
    event: dict[str, Any]
    times: int


class _Filter(NamedTuple):
    """What was bought for all releases under a filter, where it was opened, and what they were."""

    bought: Fields
    used: float | None
    opened_in: Path
    made: list[_Made]
    thinned: list[bool]


def paid_for(groups: list[Fields], event: Fields) -> Iterator[Check]:
    """Hold the recorded releases against the priced events, and those under a filter against what it bought.

    Raises:
        Malformed: a group is none, or its counts do not add up.
    """
    filters: dict[int, _Filter] = {}
    made: list[_Made] = []
    for group in groups:
        own, whole = _made_in(group), _is_whole(group)
        if "filter" not in group:
            if not whole:
                raise Malformed(f"{group.place}.count is not the sum of its events' counts.")
            made += own
            continue
        place = group.fields("filter")
        depth = place.whole("depth", 0, 64) if "depth" in place else 0
        opened = own[0].path[:depth] if own else ()
        found = filters.setdefault(
            place.whole("number", 0, 10**9), _Filter(place.fields("event"), _used(place), opened, [], [])
        )
        if found.bought.values != place.raw("event") or found.used != _used(place):
            yield Check("releases", Outcome.FAILS, "one filter was paid for by two different events")
            return
        if any(one.path[:depth] != found.opened_in or len(one.path) < depth for one in own):
            yield Check("releases", Outcome.FAILS, "one filter paid for releases on other units than its own")
            return
        found.made.extend(one._replace(path=one.path[depth:]) for one in own)
        found.thinned.append(not whole)
    made += [_Made(each.opened_in, each.bought.values, 1) for each in filters.values()]
    known = all("blocks" in group for group in groups)
    yield _among(_tree(made, "the recorded releases"), event, blocks_known=known)
    for each in filters.values():
        yield _kept(each)


def _made_in(group: Fields) -> list[_Made]:
    """What a group released, block by block."""
    parts = group.each("events")
    counts = [part.whole("count", 1, _MOST_COUNT) for part in parts]
    events = [part.fields("event").values for part in parts]
    if not group.values.get("blocks"):
        return [_Made((), event, count) for event, count in zip(events, counts, strict=True)]
    left, made = list(counts), list[_Made]()
    for part in group.each("blocks"):
        at, count = part.whole("event", 0, len(events) - 1), part.whole("count", 1, _MOST_COUNT)
        left[at] -= count
        path = tuple(_block(value, part.place) for value in part.items("of"))
        if len(path) > _DEEPEST:
            raise Malformed(f"{part.place} divides the units more than {_DEEPEST} deep.")
        made.append(_Made(path, events[at], count))
    if any(left):
        raise Malformed(f"{group.place}.blocks do not hold its events as often as they were released.")
    return made


def _block(value: Any, place: str) -> tuple[int, int, int]:
    numbers = cast("list[Any]", value) if isinstance(value, list) else []
    if len(numbers) != 3 or not all(isinstance(one, int) and not isinstance(one, bool) for one in numbers):
        raise Malformed(f"{place}.of must name blocks by three whole numbers each.")
    cut, index, of = numbers
    if not (0 <= cut <= _MOST_COUNT and 0 <= index < of <= _MOST_BLOCKS):
        raise Malformed(f"{place}.of names a block that is none of its cut.")
    return cut, index, of


def _is_whole(group: Fields) -> bool:
    """Whether every release of a group is among its events."""
    listed = sum(part.whole("count", 1, _MOST_COUNT) for part in group.each("events"))
    total = group.whole("count", 1, _MOST_COUNT)
    if listed > total:
        raise Malformed(f"{group.place}.count is below the sum of its events' counts.")
    return listed == total


def _used(place: Fields) -> float | None:
    used = place.raw("used")
    return None if used is None else number(used, f"{place.place}.used", 0.0, float("inf"))


def _tree(made: list[_Made], place: str) -> Fields:
    """The releases as one event; those on disjoint blocks of one cut side by side."""
    here: list[dict[str, Any]] = []
    cuts: dict[int, tuple[int, dict[int, list[_Made]]]] = {}
    for one in made:
        if not one.path:
            here.append({"event": "Repeated", "count": one.times, "of": one.event})
            continue
        cut, index, of = one.path[0]
        blocks, inside = cuts.setdefault(cut, (of, {}))
        if blocks != of:
            raise Malformed(f"in {place} one cut has two numbers of blocks.")
        inside.setdefault(index, []).append(one._replace(path=one.path[1:]))
    for _, inside in cuts.values():
        branches = [_tree(each, place).values for each in inside.values()]
        here.append({"event": "Parallel", "of": branches})
    return Fields({"event": "Sequence", "of": here}, place)


def _among(made: Fields, event: Fields, *, blocks_known: bool) -> Check:
    """Whether what a unit meets of the releases is among what it meets of the priced events."""
    (met, met_exact), (paid, paid_exact) = met_by_units(made), met_by_units(event)
    most = _most(met)
    total = sum(count for leaf, count in most.leaves.items() if leaf.kind != _FREE)
    missing: set[str] = set()
    try:
        spend(len(paid) * sum(20 + len(way.leaves) for way in met))
    except TooLong:
        return Check("releases", Outcome.UNCHECKED, _TOO_MANY)
    for way in met:
        short = [_short(way, other) for other in paid]
        if all(short):
            missing |= min(short, key=len)
    if not missing and (paid_exact or len(paid) == 1):
        said = "each of the recorded events that a unit meets, at most"
        return Check("releases", Outcome.HOLDS, f"{said} {total:,}, is among those that were priced")
    kinds = ", ".join(sorted(missing))
    if not missing or not (met_exact and paid_exact):
        return Check("releases", Outcome.UNCHECKED, _TOO_MANY)
    if not blocks_known and not _short(most, _added_up(event)):
        reason = "a report of version 1 does not say which releases were on which block of the units"
        return Check("releases", Outcome.UNCHECKED, reason)
    return Check(
        "releases",
        Outcome.FAILS,
        f"{len(missing)} kinds of recorded events were not priced, or not as often: {kinds}",
    )


def _short(way: Way, paid: Way) -> set[str]:
    """The kinds of events of which more were released than paid for."""
    return {
        leaf.kind
        for leaf, count in way.leaves.items()
        if leaf.kind != _FREE and paid.leaves.get(leaf, 0) < count
    }


def _most(ways: tuple[Way, ...]) -> Way:
    """Of every leaf the most that a unit meets."""
    most = ways[0]
    for way in ways[1:]:
        most = most.join(way)
    return most


def _added_up(event: Fields) -> Way:
    """Every leaf of a tree, those of disjoint blocks added up."""

    def changed(node: Any) -> Any:
        if isinstance(node, list):
            return [changed(one) for one in cast("list[Any]", node)]
        if not isinstance(node, dict):
            return node
        members = cast("dict[str, Any]", node)
        kind = "Sequence" if members.get("event") == "Parallel" else members.get("event")
        return {**members, "event": kind, **({"of": changed(members["of"])} if "of" in members else {})}

    return met_by_units(Fields(changed(event.values), event.place))[0][0]


def _kept(each: _Filter) -> Check:
    """Whether the releases under a filter cost no more than was paid for it, and the stated share is theirs."""
    subject = "filter"
    if any(each.thinned):
        return Check(subject, Outcome.UNCHECKED, "not all releases under the filter are recorded")
    bought, _ = ways_through(each.bought)
    ways, exact = ways_through(_tree(each.made, "the releases under a filter"))
    if any(way.bare for way in ways):
        bare = all(way.bare for way in bought)
        return held(subject, bare, "no noise, and none paid for", "something was released without noise")
    gaussian_only = all(not (way.leaves or way.bad or way.rounding) for way in (*ways, *bought))
    if not gaussian_only or not exact or len(bought) != 1:
        return Check(subject, Outcome.UNCHECKED, "a filter over other releases than Gaussian ones")
    spent, cap = max(way.mu_squared for way in ways), bought[0].mu_squared
    if spent > cap * (1 + mpf(_CLOSE)):
        return Check(subject, Outcome.FAILS, "more was released under a filter than was paid for it")
    share = float(spent / cap) if cap else 0.0
    right = each.used is not None and abs(each.used - share) <= _CLOSE * max(1.0, share)
    return held(
        subject,
        right,
        f"the releases under a filter cost {100 * share:.4g} % of what was paid for it",
        "the share of a filter that was used is not what its releases cost",
    )
