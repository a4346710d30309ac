"""Whether a report agrees with itself: what was planned, what was released, and what is said of it.

Nothing here shows that a run was as its report says. It shows that the parts of the report fit one another, so that
whoever alters one number must alter all that follow from it.
"""

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, cast

from privopt.verification.checks import CLOSE, NOISE, Check, Outcome, held
from privopt.verification.counting import paid_for
from privopt.verification.fields import Fields, Malformed, layout_free, number
from privopt.verification.price import REPLACE, is_private

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
        elif argued and found[0] >= least / 2 * (1 - 1e-6):
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
