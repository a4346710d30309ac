"""Figures hide nothing: curves that coincide share a line, and the legend stands under the axes."""

import dataclasses
import math
import re
from xml.etree import ElementTree

import pytest
from tests.support import report_samples as samples

from privopt.planning.plan import Picture, bars, line
from privopt.report import figures
from privopt.report.report import PrivacyReport

SVG = re.compile(r"<svg.*?</svg>", re.DOTALL)


@pytest.fixture(scope="module")
def reports() -> list[PrivacyReport]:
    return [samples.gaussian_report(epsilon) for epsilon in (0.5, 1.0, 2.0)]


def names_in(figure: dict) -> list[list[str]]:
    return [one["names"] for one in figure["series"]]


def drawn(page: str) -> list[ElementTree.Element]:
    """The figures of a page, read as XML."""
    return [ElementTree.fromstring(svg) for svg in SVG.findall(page)]


def texts(figure: ElementTree.Element) -> list[str]:
    return [one.text or "" for one in figure.iter("text")]


def test_curves_that_coincide_are_one_line_with_all_their_names(reports: list[PrivacyReport]) -> None:
    again = dataclasses.replace(reports[1], title="again")
    figure = figures.curves_figure([*reports, again], ["half", "one", "two", "one again"], "key")
    assert figure is not None
    assert names_in(figure) == [["half"], ["one", "one again"], ["two"]]
    assert [run["name"] for run in figure["runs"]] == ["half", "one", "two", "one again"]
    assert len(figure["marks"]) == 3


def test_the_legend_stands_under_the_axes_and_inside_the_figure(reports: list[PrivacyReport]) -> None:
    titled = [dataclasses.replace(one, title=f"run <{place}>") for place, one in enumerate(reports)]
    from privopt.report.page import combined_html

    figure = drawn(combined_html(titled, "three"))[0]
    height = float(figure.attrib["viewBox"].split()[-1])
    ys = {text.text: float(text.attrib["y"]) for text in figure.iter("text")}
    for place in range(3):
        assert ys["delta (logarithmic scale)"] < ys[f"run <{place}>"] < height


def test_runs_beyond_the_last_colour_are_counted() -> None:
    many = [samples.gaussian_report(epsilon) for epsilon in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)]
    figure = figures.curves_figure(many, [f"run {place}" for place in range(6)], "key")
    assert figure is not None
    assert names_in(figure) == [["run 0"], ["run 1"], ["run 2"], ["run 3"]]
    assert figure["not_drawn"] == 2


def test_a_single_run_has_no_legend_and_its_guarantee_is_marked(reports: list[PrivacyReport]) -> None:
    (figure,) = drawn(reports[0].to_html())
    assert "this run: epsilon 0.5" in texts(figure)
    assert not [text for text in texts(figure) if text == reports[0].title]
    x, y, _ = figures.curves_figure(reports[:1], ["half"], "key")["marks"][0]
    assert figures.LEFT < x < figures.RIGHT
    assert figures.TOP < y < figures.BOTTOM


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0.0, 1.3, ["0", "0.2", "0.4", "0.6", "0.8", "1", "1.2"]),
        (-0.02, 0.05, ["-0.02", "-0.01", "0", "0.01", "0.02", "0.03", "0.04", "0.05"]),
        (0.0, 0.0, ["0", "0.2", "0.4", "0.6", "0.8", "1"]),
        (0.0, 3e7, ["0", "5,000,000", "10,000,000", "15,000,000", "20,000,000", "25,000,000", "30,000,000"]),
    ],
)
def test_a_linear_axis_has_round_ticks_in_its_range(low: float, high: float, labels: list[str]) -> None:
    axis = figures.linear(low, high, 0.0, 100.0)
    assert [label for _, label in axis.ticks] == labels
    assert all(-1e-6 <= axis.at(value) <= 100.0 + 1e-6 for value, _ in axis.ticks)


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (1e-12, 0.5, ["10⁻¹²", "10⁻¹⁰", "10⁻⁸", "10⁻⁶", "10⁻⁴", "10⁻²", "1"]),
        (0.003, 0.02, ["0.005", "0.01", "0.02"]),
        (1e-7, 3e-6, ["10⁻⁷", "2×10⁻⁷", "5×10⁻⁷", "10⁻⁶", "2×10⁻⁶"]),
    ],
)
def test_a_logarithmic_axis_has_ticks_at_powers_or_between_them(
    low: float, high: float, labels: list[str]
) -> None:
    axis = figures.logarithmic(low, high, 0.0, 100.0)
    assert [label for _, label in axis.ticks] == [label for label in labels if label != "1"]
    assert axis.at(low / 10) == pytest.approx(0.0)
    assert axis.at(math.sqrt(low * high)) == pytest.approx(50.0)


def test_bars_stand_on_zero_at_their_categories_and_their_errors_reach_both_ways() -> None:
    series = (bars("a", [0.2, -0.1], [0.05, 0.0]), bars("b", [0.4, math.nan]))
    picture = Picture(title="t", caption="c", x="", y="y", series=series, categories=("one", "two"))
    first, second = figures.picture_figure(picture, "key")["series"]
    (up, down), ((_, low, high), _) = first["bars"], first["errors"]
    assert up[1] + up[3] == pytest.approx(down[1])  # both end at zero
    assert (low + high) / 2 == pytest.approx(up[1])
    assert low > high  # lower values stand lower down
    assert len(second["bars"]) == 1  # what is not finite is left out
    assert up[0] + up[2] == pytest.approx(second["bars"][0][0])


def test_numbers_that_are_not_finite_are_left_out() -> None:
    picture = Picture(
        title="t", caption="c", x="x", y="y", series=(line("a", [1.0, math.inf, math.nan, 2.0]),)
    )
    (found,) = figures.picture_figure(picture, "key")["series"]
    assert len(found["points"]) == 2
    nothing = dataclasses.replace(picture, series=(line("a", [math.nan]),))
    assert figures.picture_figure(nothing, "key")["series"][0]["points"] == []


def test_a_figure_escapes_its_names_and_holds_no_mark_of_a_terminal() -> None:
    hostile = "</text><script>alert(1)</script>\x1b[2J"
    picture = Picture(
        title=hostile, caption=hostile, x=hostile, y=hostile, series=(line(hostile, [1.0]), line("b", [2.0]))
    )
    page = dataclasses.replace(samples.gaussian_report(), pictures=(picture,)).to_html()
    assert "<script" not in page
    assert "\x1b" not in page
    (_, figure) = drawn(page)
    assert [text for text in texts(figure) if "alert(1)" in text]
