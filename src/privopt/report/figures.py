"""Figures as inline SVG: no file, no script, colours of the page they stand in.

Matplotlib's object-oriented interface only: nothing global is changed, and threads wait for one another.
"""

import io
import math
import re
import textwrap
import threading
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np

from privopt.planning.plan import Picture
from privopt.printable import printable, printable_lines
from privopt.report import words
from privopt.report.facts import ReportFacts
from privopt.report.releases import ReleaseGroup

_LOCK = threading.Lock()
_WIDTH, _PLOT = 5.6, 2.23  # inches; the plot's height, with room above it and for the axis under it
_OVER, _UNDER, _LEGEND_ROW = 0.12, 0.55, 0.17
_FONT = 10.5
# Stand-ins for the page's colours, which differ between light and dark.
_INK, _MUTED, _GRID, _PAPER = "#101112", "#606162", "#d0d1d2", "#fdfcfb"
_LINES = ("#1a5a96", "#b0561a", "#2a7a4a", "#8a3a8c")
_VARIABLES = {
    _INK: "var(--ink)",
    _MUTED: "var(--muted)",
    _GRID: "var(--line)",
    _PAPER: "var(--paper)",
    **{colour: f"var(--series-{position + 1})" for position, colour in enumerate(_LINES)},
}
_DASHES = ("-", "--", "-.", ":")
_MOST_CURVES = len(_LINES)
_SAME_HEIGHT = 0.01  # curves closer than this share of the highest one look like one
_BAR_LETTERS, _LONGEST_NAME = 66, 14  # of the names below bars: all together, and of one
_MOST_MARKED = 40  # points of a line that are marked one by one


def curves_figure(reports: Sequence[ReportFacts], labels: Sequence[str], key: str) -> str:
    """The epsilon(delta) curves of one or several runs, each with the guarantee marked.

    Args:
        reports: the runs; those without a finite curve are left out. Runs whose curves cannot be told apart share one.
        labels: a name for each, shown where there are several.
        key: prefix of the identifiers inside the figure, unique in a page.
    """
    shown = [
        (report, printable(label))
        for report, label in zip(reports, labels, strict=True)
        if report.curve.deltas
    ]
    if not shown:
        return ""
    together = _told_apart([report for report, _ in shown])
    lines = [(shown[group[0]][0], [shown[place][1] for place in group]) for group in together]
    lines, rest = lines[:_MOST_CURVES], lines[_MOST_CURVES:]
    names = ["\n".join(group) for _, group in lines] if len(shown) > 1 else []
    if rest:
        names[-1] += f"\n(not drawn: {words.several(sum(len(group) for _, group in rest), 'other run')})"

    def draw(axes: Any) -> None:
        for position, (report, _) in enumerate(lines):
            colour, curve = _LINES[position], report.curve
            axes.plot(
                curve.deltas,
                curve.epsilons,
                color=colour,
                linestyle=_DASHES[position],
                marker=None if curve.exact else "o",
                markersize=3,
                linewidth=1.8,
                label=names[position] if names else None,
            )
            if report.delta > 0:
                axes.plot([report.delta], [report.epsilon], color=colour, marker="o", markersize=8)
        if len(shown) == 1 and shown[0][0].delta > 0:
            _mark(axes, shown[0][0])
        _decades(axes, [delta for report, _ in lines for delta in report.curve.deltas])
        axes.set_ylim(bottom=0)
        axes.set_xlabel("delta (logarithmic scale)")
        axes.set_ylabel("epsilon")

    marked = "; ".join(
        f"{label}: epsilon {words.number(report.epsilon)} at delta {words.number(report.delta, 3)}"
        for report, label in shown
    )
    return _svg(draw, key, "Epsilon against delta", f"Falling curves. Marked: {marked}.", legend=names)


def _told_apart(reports: Sequence[ReportFacts]) -> list[list[int]]:
    """The places of the reports, those together whose curves and marks would hide one another."""
    least = min(report.curve.deltas[0] for report in reports)
    grid = np.geomspace(least, max(report.curve.deltas[-1] for report in reports), 200)
    heights = [
        np.append(np.interp(np.log(grid), np.log(report.curve.deltas), report.curve.epsilons), report.epsilon)
        for report in reports
    ]
    near = _SAME_HEIGHT * max(float(height.max()) for height in heights)
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


def schedule_figure(groups: Sequence[ReleaseGroup], key: str) -> str:
    """The noise scale of each release against its place in the run, a line for each kind whose scale varies."""
    varying = [group for group in groups if group.schedule][:_MOST_CURVES]
    points = {
        name: [(at, scale) for at, scale in group.schedule if scale > 0]
        for name, group in zip(_labels(varying), varying, strict=True)
    }
    points = {name: line for name, line in points.items() if line}
    if not points:
        return ""
    scales = [scale for line in points.values() for _, scale in line]
    names = list(points) if len(points) > 1 else []

    def draw(axes: Any) -> None:
        for position, (name, line) in enumerate(points.items()):
            single = len(line) <= _MOST_MARKED
            axes.plot(
                [at for at, _ in line],
                [scale for _, scale in line],
                color=_LINES[position],
                linestyle=_DASHES[position],
                linewidth=1.6,
                marker="o" if single else None,
                markersize=3.5,
                label=name,
            )
        _scale_axis(axes, min(scales), max(scales))
        axes.set_xlim(left=0)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel("release, in order")

    spans = "; ".join(
        f"{name}: {words.number(line[0][1])} at first, {words.number(line[-1][1])} at last"
        for name, line in points.items()
    )
    return _svg(draw, key, "Noise scale of each release", f"{spans}.", left=0.175, legend=names)


def picture_figure(picture: Picture, key: str) -> str:
    """A picture that a program describes: lines over a number, or bars over categories."""
    names = [one.name for one in picture.series] if len(picture.series) > 1 else []
    bars = picture.kind == "bars"

    def draw(axes: Any) -> None:
        for position, one in enumerate(picture.series):
            if bars:
                width = 0.8 / len(picture.series)
                places = np.arange(len(one.ys)) + (position + 0.5) * width - 0.4
                axes.bar(places, one.ys, width, color=_LINES[position], label=one.name)
                if one.errors:
                    axes.errorbar(
                        places, one.ys, one.errors, fmt="none", ecolor=_INK, elinewidth=1, capsize=2
                    )
            else:
                axes.plot(
                    one.xs,
                    one.ys,
                    color=_LINES[position],
                    linestyle=_DASHES[position],
                    linewidth=1.6,
                    marker="o" if len(one.ys) <= _MOST_MARKED else None,
                    markersize=3.5,
                    label=one.name,
                )
        if bars:
            _name_bars(axes, picture.categories)
        axes.set_ylim(bottom=min(0.0, *(min(one.ys) for one in picture.series)))
        axes.set_xlabel(picture.x)
        axes.set_ylabel(picture.y)

    spans = "; ".join(
        f"{one.name}: from {words.number(min(one.ys), 3)} to {words.number(max(one.ys), 3)}"
        for one in picture.series
    )
    return _svg(draw, key, picture.title, f"{spans}.", left=0.175, legend=names)


def _name_bars(axes: Any, categories: Sequence[str]) -> None:
    """A name below each bar, or below so many of them as there is room for."""
    room = max(1, _BAR_LETTERS // max(4, *(min(len(name), _LONGEST_NAME) for name in categories)))
    step = math.ceil(len(categories) / room)
    places = range(0, len(categories), step)
    axes.set_xticks(list(places))
    axes.set_xticklabels(
        [printable(textwrap.shorten(categories[at], _LONGEST_NAME, placeholder="…")) for at in places]
    )
    for text in axes.get_xticklabels():
        text.set_parse_math(False)


def _labels(groups: Sequence[ReleaseGroup]) -> list[str]:
    """A different name for each group: its label, numbered where several share it."""
    labels = [group.label for group in groups]
    return [
        label if labels.count(label) == 1 else f"{label} ({labels[: position + 1].count(label)})"
        for position, label in enumerate(labels)
    ]


def _scale_axis(axes: Any, least: float, most: float) -> None:
    """A logarithmic axis with plain ticks at 1, 2 and 5; a linear one from 0 where all is of one size."""
    if most < 2 * least:
        axes.set_ylim(bottom=0)
        axes.set_ylabel("noise scale")
        return
    first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
    steps = (1, 2, 5) if last - first <= 2 else (1, 3) if last - first <= 4 else (1,)
    every = max(1, math.ceil((last - first) / 7))
    exponents = range(last, first - 1, -every)
    ticks = sorted(step * 10.0**exponent for exponent in exponents for step in steps)
    low, high = least / 1.15, most * 1.15
    shown = [tick for tick in ticks if low <= tick <= high]
    axes.set_yscale("log")
    axes.set_ylabel("noise scale (logarithmic)")
    axes.minorticks_off()
    axes.set_ylim(low, high)
    axes.set_yticks(shown)
    axes.set_yticklabels([_tick(tick) for tick in shown])


def _tick(value: float) -> str:
    """A number of one digit as the label of a tick.

    >>> _tick(0.05), _tick(1e-6), _tick(3e-7)
    ('0.05', '10⁻⁶', '3×10⁻⁷')
    """
    exponent = math.floor(math.log10(value) + 1e-9)
    if -3 <= exponent <= 5:
        return words.number(value, 2)
    digit = round(value / 10.0**exponent)
    return ("" if digit == 1 else f"{digit}×") + words.power_of_ten(exponent)


def _decades(axes: Any, deltas: Sequence[float]) -> None:
    """A logarithmic axis whose ticks are plain text: matplotlib's own formulas take most of a figure's time."""
    first, last = math.ceil(math.log10(min(deltas)) - 1e-9), math.floor(math.log10(max(deltas)) + 1e-9)
    exponents = range(last, first - 1, -max(1, math.ceil((last - first) / 7)))
    axes.set_xscale("log")
    axes.minorticks_off()
    axes.set_xticks([10.0**exponent for exponent in exponents])
    axes.set_xticklabels([words.power_of_ten(exponent) for exponent in exponents])


def _mark(axes: Any, report: ReportFacts) -> None:
    """Label the guarantee where a falling curve leaves room: to its upper right, or to its lower left near the edge."""
    low, high = math.log(report.curve.deltas[0]), math.log(report.curve.deltas[-1])
    room = math.log(report.delta) <= low + 0.6 * (high - low)
    axes.annotate(
        f"this run: epsilon {words.number(report.epsilon, 3)}",
        (report.delta, report.epsilon),
        xytext=(8, 8) if room else (-8, -8),
        textcoords="offset points",
        ha="left" if room else "right",
        va="bottom" if room else "top",
        color=_INK,
        fontsize=_FONT,
    )


def _legend(axes: Any) -> None:
    """Under the axes, where it hides nothing."""
    legend = axes.legend(
        loc="upper left",
        bbox_to_anchor=(0.0, -_UNDER / _PLOT),
        borderaxespad=0.0,
        fontsize=_FONT - 0.5,
        labelcolor=_INK,
        frameon=False,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)


def _svg(
    draw: Callable[[Any], None],
    key: str,
    title: str,
    description: str,
    *,
    left: float = 0.135,
    legend: Sequence[str] = (),
) -> str:
    """Draw into a fresh figure and make its SVG fit for a page: themed, described, with its own identifiers."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    with _LOCK:
        rows = sum(1 + name.count("\n") for name in legend)
        under = _UNDER + (_LEGEND_ROW * (rows + 0.5 * len(legend)) if legend else 0.0)
        height = _OVER + _PLOT + under
        figure = Figure(figsize=(_WIDTH, height), facecolor="none")
        FigureCanvasSVG(figure)
        figure.subplots_adjust(left=left, right=0.96, top=1.0 - _OVER / height, bottom=under / height)
        axes: Any = figure.add_subplot(facecolor="none")
        axes.grid(visible=True, color=_GRID, linewidth=0.7)
        axes.set_axisbelow(True)
        draw(axes)
        if legend:
            _legend(axes)
        axes.tick_params(colors=_MUTED, labelsize=_FONT, which="both", length=3)
        for side, spine in axes.spines.items():
            spine.set_color(_GRID)
            spine.set_visible(side in ("left", "bottom"))
        for label in (axes.xaxis.label, axes.yaxis.label):
            label.set(color=_INK, fontsize=_FONT)
        for text in figure.findobj(Text):  # names stand in warnings of letters that the font lacks, too
            text.set_text(printable_lines(text.get_text()))
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        with rc_context({"svg.hashsalt": key}):  # the same figure is the same text
            figure.savefig(buffer, format="svg", metadata=nothing, transparent=True)
    return _adapt(buffer.getvalue(), key, title, description)


def _adapt(svg: str, key: str, title: str, description: str) -> str:
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<!--.*?-->\s*|<metadata>.*?</metadata>\s*", "", body, flags=re.DOTALL)
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, variable)
    used = set(re.findall(r"(?:href=\"#|url\(#)([^\")]+)", body))
    body = re.sub(
        r" id=\"([^\"]*)\"", lambda found: f' id="{key}-{found[1]}"' if found[1] in used else "", body
    )
    body = re.sub(r"(href=\"#|url\(#)", rf"\g<1>{key}-", body)
    box = re.search(r"viewBox=\"[^\"]*\"", body)
    assert box is not None  # matplotlib always writes one
    inside = body[body.index(">") + 1 :]
    return (
        f'<svg {box[0]} role="img" aria-labelledby="{key}-title {key}-desc" '
        'xmlns:xlink="http://www.w3.org/1999/xlink">'
        f'<title id="{key}-title">{escape(title)}</title><desc id="{key}-desc">{escape(description)}</desc>{inside}'
    )
