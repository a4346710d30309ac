"""Figures hide nothing: curves that coincide share a line, and the legend stands under the axes."""

import dataclasses
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from tests.support import report_samples as samples

from privopt.report import figures
from privopt.report.report import PrivacyReport


@pytest.fixture(scope="module")
def reports() -> list[PrivacyReport]:
    return [samples.gaussian_report(epsilon) for epsilon in (0.5, 1.0, 2.0)]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The axes of every figure that gets a legend."""
    found: list[Any] = []
    legend = figures._legend
    monkeypatch.setattr(figures, "_legend", lambda axes: (legend(axes), found.append(axes)))
    return found


@pytest.mark.audit
def test_curves_that_coincide_are_one_line_with_all_their_names(
    reports: list[PrivacyReport], drawn: list[Any]
) -> None:
    again = dataclasses.replace(reports[1], title="again")
    svg = figures.curves_figure([*reports, again], ["half", "one", "two", "one again"], "key")
    (axes,) = drawn
    lines = [line for line in axes.get_lines() if len(line.get_xdata()) > 1]
    assert [line.get_label() for line in lines] == ["half", "one\none again", "two"]
    assert "one again: epsilon 1 at delta" in svg
    assert "--series-3" in svg
    assert "--series-4" not in svg


@pytest.mark.audit
def test_the_legend_stands_under_the_axes_and_inside_the_figure(
    reports: list[PrivacyReport], drawn: list[Any]
) -> None:
    figures.curves_figure([*reports, reports[0]], ["half", "one", "two", "half again"], "key")
    (axes,) = drawn
    canvas = FigureCanvasAgg(axes.figure)
    canvas.draw()
    legend = axes.get_legend().get_window_extent()
    assert legend.y1 < axes.xaxis.label.get_window_extent().y0
    assert legend.y0 > 0
    assert legend.x1 < axes.figure.bbox.x1


@pytest.mark.audit
def test_runs_beyond_the_last_colour_are_counted(drawn: list[Any]) -> None:
    many = [samples.gaussian_report(epsilon) for epsilon in (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)]
    figures.curves_figure(many, [f"run {place}" for place in range(6)], "key")
    (axes,) = drawn
    assert axes.get_legend().get_texts()[-1].get_text() == "run 3\n(not drawn: 2 other runs)"


def test_a_single_run_has_no_legend(reports: list[PrivacyReport], drawn: list[Any]) -> None:
    assert "<svg" in figures.curves_figure(reports[:1], ["half"], "key")
    assert not drawn
