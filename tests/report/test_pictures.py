"""Pictures of released numbers: drawn, kept in the JSON, and open about what they show."""

import dataclasses
import json

import pytest
from tests.support import report_samples as samples

from privopt.planning.plan import MOST_POINTS, Picture, Series, bars, line
from privopt.report.report import PrivacyReport

LINES = Picture(
    title="Temperature by step",
    caption="Known before the data was read.",
    x="step",
    y="inverse temperature",
    series=(line("x", [0.0, 1.0, 1.4]), line("y", [0.0, 2.0, 2.8])),
)
BARS = Picture(
    title="Ages",
    caption="Released, with two standard deviations.",
    x="",
    y="share",
    series=(bars("released", [0.2, 0.5, 0.3], [0.01, 0.01, 0.02]), bars("sample", [0.21, 0.5, 0.29])),
    categories=("young", "a category with a rather long name", "$\\alpha$ old"),
)


@pytest.mark.audit
def test_a_report_shows_and_keeps_its_pictures():
    report = dataclasses.replace(samples.gaussian_report(1.0), pictures=(LINES, BARS))
    page = report.to_html()
    for picture in (LINES, BARS):
        assert picture.title in page
        assert picture.caption in page
    assert page.count("picture") >= 2
    again = PrivacyReport.from_dict(json.loads(report.to_json()))
    assert again.pictures == (LINES, BARS)
    assert again.to_html() == page


def test_a_long_line_is_thinned_and_keeps_its_ends():
    long = line("x", list(range(5000)))
    assert len(long.ys) <= MOST_POINTS + 1
    assert (long.xs[0], long.xs[-1], long.ys[-1]) == (0.0, 4999.0, 4999.0)
    assert line("none", []).ys == ()


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="one to four series"):
        dataclasses.replace(LINES, series=())
    with pytest.raises(ValueError, match="3 heights has 2 places"):
        Series(name="x", ys=(1.0, 2.0, 3.0), xs=(1.0, 2.0))
