"""Whether a report agrees with itself: what was planned, what was released, and what is said of it.

Nothing here shows that a run was as its report says. It shows that the parts of the report fit one another, so that
whoever alters one number must alter all that follow from it.
"""

import functools
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple, cast

from privopt.verification.checks import CLOSE, NOISE, Check, Outcome, held
from privopt.verification.price import REPLACE, is_private
from privopt.verification.tree import (
    Fields,
    Malformed,
    TooLong,
    Way,
    layout_free,
    met_by_units,
    mpf,
    number,
    spend,
    ways_through,
)

_NOISE_SCALES = ("GaussianEvent", "LaplaceEvent")


def checks_of(report: Fields) -> Iterator[Check]:
    """Every check of a report against itself.

    Raises:
        Malformed: a field is missing or of the wrong type.
    """
    guarantee, event = report.fields("guarantee"), report.fields("event")
    groups = report.each("releases")
    chosen = report.fields("selection").truth("private") if "selection" in report else True
    yield _claim(guarantee, event, chosen)
    if "plan" in report:
        yield _plan(report.fields("plan"), guarantee, event)
    yield from paid_for(groups, event)
    yield _scales(groups)
    if "plan" in report:
        yield from _bounds(groups, report.fields("plan"))
    yield _best_guess(report.each("curve"), guarantee)


def _claim(guarantee: Fields, event: Fields, chosen: bool) -> Check:
    finite = math.isfinite(guarantee.number("epsilon", 0.0))
    noisy = is_private(event)
    says, follows = guarantee.truth("holds"), finite and not guarantee.truth("seeded") and chosen
    return held(
        "claim",
        says == follows and (noisy or not finite),
        "whether the guarantee holds follows from epsilon, the noise, the seed and the choice of the model",
        "the report says that the guarantee holds, and its own epsilon, noise, seed or choice of model says otherwise"
        if says
        else "the report says that the guarantee does not hold, and nothing in it says why",
    )


def _plan(plan: Fields, guarantee: Fields, event: Fields) -> Check:
    budget, public = plan.fields("budget"), plan.fields("public")
    wrong: list[str] = []
    if layout_free(plan.fields("event").values) != layout_free(event.values):
        wrong.append("the priced events are not those of the plan")
    pairs = [(budget.number("delta", 0.0, 1.0), guarantee.number("delta", 0.0, 1.0), "delta")]
    pairs += [(plan.number(name), guarantee.number(name), name) for name in ("epsilon", "delta")]
    wrong += [f"{name} differs" for planned, stated, name in pairs if not _same(planned, stated)]
    if guarantee.number("epsilon", 0.0) > budget.number("epsilon", 0.0) * (1 + CLOSE):
        wrong.append("epsilon is above the budget")
    for part in (plan, public):
        wrong += [
            f"{name} differs" for name in ("relation", "unit", "n") if part.raw(name) != guarantee.raw(name)
        ]
    if plan.raw("d") != public.raw("d"):
        wrong.append("d differs")
    said = ", ".join(dict.fromkeys(wrong))
    return held(
        "plan",
        not wrong,
        "events, budget, relation, unit and sizes are those of the plan",
        f"in the plan {said}",
    )


def _scales(groups: list[Fields]) -> Check:
    """Whether the noise of every event is its multiplier times the sensitivity of its releases."""
    wrong, unknown = list[str](), list[str]()
    for group in groups:
        parts = group.each("events")
        multipliers = [_multiplier(part.fields("event"), group) for part in parts]
        for part, multiplier in zip(parts, multipliers, strict=True):
            if multiplier is None:
                continue
            own = "scale" in part.values and "sensitivity" in part.values
            stated = part if own else group if len(parts) == 1 else None
            scales = None if stated is None else stated.pair("scale")
            moved = None if stated is None else stated.pair("sensitivity")
            if scales is None or moved is None:
                unknown.append(group.text("name"))
            elif not all(_same(one, multiplier * by) for one, by in zip(scales, moved, strict=True)):
                wrong.append(group.text("name"))
        if not _ranges_agree(group, parts):
            wrong.append(group.text("name"))
    if wrong:
        names = ", ".join(dict.fromkeys(wrong))
        return Check(NOISE, Outcome.FAILS, f"the noise is not the multiplier times the sensitivity: {names}")
    if unknown:
        names = ", ".join(dict.fromkeys(unknown))
        return Check(NOISE, Outcome.UNCHECKED, f"the scale or the sensitivity is not stated: {names}")
    sentence = f"the noise of all {len(groups)} kinds of releases is the multiplier times the sensitivity"
    return Check(NOISE, Outcome.HOLDS, sentence)


def _ranges_agree(group: Fields, parts: list[Fields]) -> bool:
    """Whether the ends that a group states are those of its events, and its schedule lies between them."""
    if not all("scale" in part.values and "sensitivity" in part.values for part in parts):
        return True  # of a report that states them for the group alone
    whole = sum(part.whole("count", 1, 10**12) for part in parts) == group.raw("count")
    for name in ("scale", "sensitivity"):
        stated, known = group.pair(name), [part.pair(name) for part in parts]
        ends = [pair for pair in known if pair is not None]
        if stated is None or not ends:
            if stated is not None or ends:
                return False
            continue
        low, high = min(pair[0] for pair in ends), max(pair[1] for pair in ends)
        if whole and not (_same(low, stated[0]) and _same(high, stated[1])):
            return False
        if low < stated[0] * (1 - CLOSE) or high > stated[1] * (1 + CLOSE):
            return False
    scale, places = group.pair("scale"), group.items("schedule")
    return not places or (scale is not None and _lies_within(places, scale))


def _lies_within(schedule: list[Any], scale: tuple[float, float]) -> bool:
    """Whether a schedule's points rise in place and lie between the least and the greatest scale."""
    lists = [cast("list[Any]", one) for one in schedule]
    if not all(len(one) == 2 for one in lists):
        return False
    points = [tuple(number(value, "a schedule", 0.0, math.inf) for value in one) for one in lists]
    low, high = scale[0] * (1 - CLOSE), scale[1] * (1 + CLOSE)
    return all(a[0] < b[0] for a, b in pairwise(points)) and all(low <= one[1] <= high for one in points)


def _multiplier(event: Fields, group: Fields) -> float | None:
    """The noise multiplier of one release; refuses an event on another sample than the group says."""
    sampling = group.fields("sampling")
    if sampling.text("kind") not in ("every", "poisson", "fixed-size"):
        raise Malformed(f"{sampling.place} is a way of drawing units that is not known here.")
    if sampling.text("kind") == "every" and _rate(sampling) != 1:
        raise Malformed(f"{sampling.place} draws everybody, at another rate than 1.")
    if event.text("event") == "SampledEvent":
        inner = event.fields("sampling")
        if inner.raw("kind") != sampling.raw("kind") or not _same(_rate(inner), _rate(sampling)):
            raise Malformed(f"{group.place} was priced for another sample than it says.")
        event = event.fields("of")
    if event.text("event") not in _NOISE_SCALES:
        return None
    return event.number("noise_multiplier", 0.0)


def _rate(sampling: Fields) -> float:
    if sampling.text("kind") == "fixed-size":
        n = sampling.whole("n", 1, 10**15)
        return sampling.whole("batch", 1, n) / n
    return sampling.number("rate", 0.0, 1.0)


# Times the row bound: a loss whose slope is bounded, the ramp by 0.5, moves a gradient by that at most, whatever the
# clip. Few losses are so flat.
LEAST_SLOPE = 0.1


def _bounds(groups: list[Fields], plan: Fields) -> Iterator[Check]:
    """Sensitivities against declared bounds, for the two queries whose formula needs nothing but the report."""
    public, settings = plan.fields("public"), plan.fields("settings")
    if public.raw("unit") != "record":
        return
    n = public.whole("n", 1, 10**15)
    factor = 2.0 if public.text("relation") == REPLACE else 1.0
    clips = {
        value
        for name, value in settings.values.items()
        if name.split(".")[-1] in ("clip", "rescaling_clip") and value != "None"
    }
    for group in groups:
        found, name = group.pair("sensitivity"), group.text("name")
        if found is None or group.fields("sampling").raw("kind") != "every":
            continue
        if name == "SecondMoment":
            longest = min([public.number("row_bound", 0.0), *_settings(settings, "moment_bound")])
            least = math.sqrt(factor) * longest**2 / n
            formula, argued = "the bound on its rows squared over n", False
        elif name == "ClippedGradient" and clips and all(_is_number(clip) for clip in clips):
            least, argued = factor * min(float(clip) for clip in clips) / n, True
            smaller = "the clip" if len(clips) == 1 else "the smaller clip"
            formula = f"{'twice ' if factor == 2 else ''}{smaller} over n"
        else:
            continue
        if found[0] >= least * (1 - 1e-6):
            yield Check("bounds", Outcome.HOLDS, f"the sensitivity of {name} is at least {formula}")
        elif argued and found[0] >= min(
            least / 2, factor * LEAST_SLOPE * public.number("row_bound", 0.0) / n
        ) * (1 - 1e-6):
            sentence = (
                f"the sensitivity of {name} is {found[0] / least:.3f} of {formula}: it rests on the formula of "
                "the loss, which a report does not hold"
            )
            yield Check("bounds", Outcome.UNCHECKED, sentence)
        else:
            yield Check("bounds", Outcome.FAILS, f"the sensitivity of {name} is below {formula}")


def _settings(settings: Fields, name: str) -> list[float]:
    """The numbers of this name among the settings of a solver and of those inside it."""
    found = [value for key, value in settings.values.items() if key.split(".")[-1] == name]
    return [float(value) for value in found if _is_number(value)]


def _best_guess(curve: list[Fields], guarantee: Fields) -> Check:
    """Whether the stated best guess follows from the curve, and the curve falls."""
    points = [(point.number("delta", 0.0, 1.0), point.number("epsilon", 0.0)) for point in curve]
    falls = all(a[0] <= b[0] and a[1] >= b[1] * (1 - CLOSE) for a, b in pairwise(points))
    guesses = [1.0, *(guess(epsilon, delta) for delta, epsilon in points)]
    stated = guarantee.number("best_guess", 0.0, 1.0)
    return held(
        "guess",
        falls and stated >= min(guesses) * (1 - CLOSE),
        "the best guess follows from the curve, which falls",
        "the curve does not fall, or the best guess is better than it says",
    )


def guess(epsilon: float, delta: float) -> float:
    """How often the best guess between two neighbouring data sets, equally likely, can at most be right."""
    sure = 1.0 if epsilon > 700 else 1 / (1 + math.exp(-epsilon))
    return sure + delta * (1 - sure)


def _same(first: float, second: float) -> bool:
    return first == second or abs(first - second) <= CLOSE * max(abs(first), abs(second))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


# ---- Whether all that was released has been paid for, block by block, and every filter kept to its price ---
# The recorded releases are put into a tree of their own: those on disjoint blocks side by side, whatever was released
# under a filter as what was bought for it. What a unit meets in that tree must be among what a unit meets in the one
# that was priced.
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
    most = functools.reduce(Way.join, met)  # of every leaf the most that a unit meets
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
