"""The numbers of the figures: where lines, bars and ticks stand in a drawing of `figure.j2`, in its units of length."""

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from privopt.planning.plan import Picture, Series
from privopt.report import words

if TYPE_CHECKING:
    from privopt.report.releases import ReleaseGroup
    from privopt.report.report import PrivacyReport

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 560.0, 84.0, 538.0, 12.0, 235.0  # of the drawing, and of the plot in it
UNDER, LEGEND_ROW, LETTER = (
    58.0,
    18.0,
    6.2,
)  # below the plot without a legend, each name, and how wide a letter is
MOST_SERIES = 4  # colours
MOST_MARKED = 40  # points of a line that are marked one by one
SAME_HEIGHT = 0.01  # curves closer than this share of the highest one look like one
LONGEST_NAME = 14  # letters of a name below a bar
MOST_TICKS = 7


@dataclass(frozen=True)
class Axis:
    """A scale from `low` to `high`, drawn from `start` to `end`; logarithmic where `log` is set.

    Attributes:
        low, high: the values at its ends, positive where it is logarithmic.
        start, end: where these stand.
        log: whether it is logarithmic.
        ticks: values that are marked, and their labels.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool
    ticks: tuple[tuple[float, str], ...]

    def at(self, value: float) -> float:
        """Where a value stands; one beyond an end of a logarithmic axis at that end."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(min(max(value, low), high))
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def facts(self) -> dict[str, Any]:
        """What the drawing needs."""
        return {"log": self.log, "ticks": [[self.at(value), label] for value, label in self.ticks]}


def linear(low: float, high: float, start: float, end: float, *, whole: bool = False) -> Axis:
    """An axis with ticks at multiples of 1, 2 or 5 times a power of ten, whole numbers where that is asked for."""
    high = high if high > low else low + (abs(low) or 1.0)
    rough = (high - low) / MOST_TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    step = max(1.0, step) if whole else step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    ticks = tuple(
        (place * step, words.number(round(place * step, 12), 3)) for place in range(first, last + 1)
    )
    return Axis(low, high, start, end, log=False, ticks=ticks)


def logarithmic(low: float, high: float, start: float, end: float, *, room: float = 1.0) -> Axis:
    """An axis with ticks at powers of ten, and at 2 and 5 times these where there are few; `room` widens its ends."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    factors = (1, 2, 5) if last - first <= 2 else (1, 3) if last - first <= 4 and room > 1 else (1,)
    every = max(1, math.ceil((last - first) / MOST_TICKS))
    low, high = low / room, high * room
    powers = range(first + (last - first) % every, last + 1, every)
    ticks = [
        (
            factor * 10.0**power,
            words.power_of_ten(power) if len(factors) == 1 else _digit(factor * 10.0**power),
        )
        for power in powers
        for factor in factors
    ]
    shown = tuple(tick for tick in ticks if low * (1 - 1e-9) <= tick[0] <= high * (1 + 1e-9))
    return Axis(low, max(high, low * (1 + 1e-9)), start, end, log=True, ticks=shown)


def _digit(value: float) -> str:
    """A number of one digit as the label of a tick.

    >>> _digit(0.05), _digit(1e-6), _digit(3e-7)
    ('0.05', '10⁻⁶', '3×10⁻⁷')
    """
    exponent = math.floor(math.log10(value) + 1e-9)
    if -3 <= exponent <= 5:
        return words.number(value, 2)
    digit = round(value / 10.0**exponent)
    return ("" if digit == 1 else f"{digit}×") + words.power_of_ten(exponent)


def _drawing(key: str, x: Axis, y: Axis, series: Sequence[Mapping[str, Any]], **more: Any) -> dict[str, Any]:
    """A drawing, with a legend below it where there are several series or one stands for several."""
    names = [name for one in series for name in one["names"]]
    rows = len(names) + bool(more.get("not_drawn")) if len(names) > 1 else 0
    return {
        "key": key,
        "width": WIDTH,
        "left": x.start,
        "right": RIGHT,
        "top": TOP,
        "bottom": BOTTOM,
        "height": BOTTOM + UNDER + LEGEND_ROW * rows,
        "x": x.facts(),
        "y": y.facts(),
        "series": list(series),
        "has_legend": bool(rows),
        "marks": [],
        "not_drawn": 0,
        **more,
    }


def _line(
    names: Sequence[str], xs: Iterable[float], ys: Iterable[float], x: Axis, y: Axis, *, dots: bool
) -> dict[str, Any]:
    points = [
        (x.at(a), y.at(b)) for a, b in zip(xs, ys, strict=True) if math.isfinite(a) and math.isfinite(b)
    ]
    return {"names": list(names), "points": points, "dots": points if dots else [], "bars": [], "errors": []}


# ---- What a report draws -----------------------------------------------------------------------------------


def curves_figure(
    reports: Sequence["PrivacyReport"], labels: Sequence[str], key: str
) -> dict[str, Any] | None:
    """The epsilon(delta) curves of one or several runs, each with the guarantee marked.

    Args:
        reports: the runs; those without a finite curve are left out. Runs whose curves cannot be told apart share one.
        labels: a name for each, shown where there are several.
        key: prefix of the identifiers inside the figure, unique in a page.
    """
    shown = [(report, label) for report, label in zip(reports, labels, strict=True) if report.curve.deltas]
    if not shown:
        return None
    groups = _told_apart([report for report, _ in shown])
    lines, rest = groups[:MOST_SERIES], groups[MOST_SERIES:]
    curves = [shown[group[0]][0].curve for group in lines]
    deltas = [delta for curve in curves for delta in curve.deltas]
    x = logarithmic(min(deltas), max(deltas), LEFT, RIGHT)
    y = linear(0.0, 1.05 * max(max(curve.epsilons) for curve in curves), BOTTOM, TOP)
    marks = [(place, shown[group[0]][0]) for place, group in enumerate(lines)]
    first = shown[0][0]
    is_left = first.delta > 0 and x.at(first.delta) <= LEFT + 0.6 * (RIGHT - LEFT)
    return _drawing(
        key,
        x,
        y,
        [
            _line([shown[at][1] for at in group], curve.deltas, curve.epsilons, x, y, dots=not curve.exact)
            for group, curve in zip(lines, curves, strict=True)
        ],
        marks=[
            [x.at(report.delta), y.at(report.epsilon), place] for place, report in marks if report.delta > 0
        ],
        is_left=is_left,
        not_drawn=sum(map(len, rest)),
        runs=[{"name": label, "epsilon": report.epsilon, "delta": report.delta} for report, label in shown],
    )


def _told_apart(reports: Sequence["PrivacyReport"]) -> list[list[int]]:
    """The places of the reports, those together whose curves and marks would hide one another."""
    least = min(report.curve.deltas[0] for report in reports)
    grid = np.geomspace(least, max(report.curve.deltas[-1] for report in reports), 200)
    heights = [
        np.append(np.interp(np.log(grid), np.log(report.curve.deltas), report.curve.epsilons), report.epsilon)
        for report in reports
    ]
    near = SAME_HEIGHT * max(float(height.max()) for height in heights)
    groups: list[list[int]] = []
    for place, height in enumerate(heights):
        for group in groups:
            first = group[0]
            if reports[first].delta == reports[place].delta and np.all(abs(heights[first] - height) <= near):
                group.append(place)
                break
        else:
            groups.append([place])
    return groups


def schedule_figure(groups: Sequence["ReleaseGroup"], key: str) -> dict[str, Any] | None:
    """The noise scale of each release against its place in the run, a line for each kind whose scale varies."""
    varying = [
        (group.label, [(at, scale) for at, scale in group.schedule if scale > 0])
        for group in groups
        if group.schedule
    ][:MOST_SERIES]
    labels = [label for label, _ in varying]
    named = [
        (label if labels.count(label) == 1 else f"{label} ({labels[: place + 1].count(label)})", points)
        for place, (label, points) in enumerate(varying)
        if points
    ]
    if not named:
        return None
    scales = [scale for _, points in named for _, scale in points]
    least, most = min(scales), max(scales)
    x = linear(0.0, max(at for _, points in named for at, _ in points) * 1.02, LEFT, RIGHT, whole=True)
    y = (
        linear(0.0, 1.05 * most, BOTTOM, TOP)
        if most < 2 * least
        else logarithmic(least, most, BOTTOM, TOP, room=1.15)
    )
    lines = [
        _line([name], *zip(*points, strict=True), x=x, y=y, dots=len(points) <= MOST_MARKED)
        for name, points in named
    ]
    ends = [{"name": name, "first": points[0][1], "last": points[-1][1]} for name, points in named]
    return _drawing(key, x, y, lines, ends=ends)


def picture_figure(picture: Picture, key: str) -> dict[str, Any]:
    """A picture that a program describes: lines over a number, or bars over categories."""
    reached = (value for one in picture.series for value in (*one.ys, *_ends(one)))
    heights = [0.0, *filter(math.isfinite, reached)]
    y = linear(min(heights), max(heights) * 1.05, BOTTOM, TOP)
    if picture.categories:
        x = _names(picture.categories)
        count = len(picture.series)
        drawn = [_bars(one, place, count, x, y) for place, one in enumerate(picture.series)]
    else:
        places = [value for one in picture.series for value in one.xs if math.isfinite(value)] or [0.0]
        x = linear(min(places), max(places), LEFT, RIGHT)
        drawn = [
            _line([one.name], one.xs, one.ys, x, y, dots=len(one.ys) <= MOST_MARKED) for one in picture.series
        ]
    spans = [
        {"name": one.name, "low": min(one.ys, default=0.0), "high": max(one.ys, default=0.0)}
        for one in picture.series
    ]
    return _drawing(key, x, y, drawn, spans=spans)


def _ends(one: Series) -> list[float]:
    """The ends of error bars."""
    return [
        height + sign * error
        for height, error in zip(one.ys, one.errors or (), strict=False)
        for sign in (-1, 1)
    ]


def _names(categories: Sequence[str]) -> Axis:
    """An axis with a name below each bar, or below so many of them as there is room for."""
    letters = max(4, *(min(len(name), LONGEST_NAME) for name in categories))
    step = math.ceil(len(categories) / max(1, int((RIGHT - LEFT) / (letters * LETTER + LETTER))))
    ticks = tuple(
        (float(at), textwrap.shorten(categories[at], LONGEST_NAME, placeholder="…"))
        for at in range(0, len(categories), step)
    )
    return Axis(-0.5, len(categories) - 0.5, LEFT, RIGHT, log=False, ticks=ticks)


def _bars(one: Series, place: int, count: int, x: Axis, y: Axis) -> dict[str, Any]:
    """The bars of one series: those of a category stand side by side."""
    width = 0.8 / count
    bars, errors = list[list[float]](), list[list[float]]()
    for at, height in enumerate(one.ys):
        left, right = x.at(at + place * width - 0.4), x.at(at + (place + 1) * width - 0.4)
        if math.isfinite(height):
            top, foot = sorted((y.at(height), y.at(0.0)))
            bars.append([left, top, right - left, foot - top])
        if one.errors and math.isfinite(height + one.errors[at]):
            low, high = height - one.errors[at], height + one.errors[at]
            errors.append([(left + right) / 2, y.at(low), y.at(high)])
    return {"names": [one.name], "points": [], "dots": [], "bars": bars, "errors": errors}
