"""Pages: one self-contained HTML file, or Markdown, for one run or for several, and the JSON of several."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privopt.errors import NotPriceable
from privopt.json_values import json_value
from privopt.ledger import accounting
from privopt.ledger.events import sequence
from privopt.report import facts, figures, forms

if TYPE_CHECKING:
    from privopt.report.report import PrivacyReport

_UNBREAKABLE = (re.compile(r"(?<=\d) (?=%)"), re.compile(r"(?<=[εδ]) (?==)"), re.compile(r"(?<=[εδ]\xa0=) "))
# Control characters and marks that turn the direction of writing or cannot be seen.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
MOST_POINTS = 10  # of a curve in a table, and about one more


def combined_html(
    reports: Sequence["PrivacyReport"],
    title: str,
    summary_table: Sequence[Mapping[str, Any]] = (),
    *,
    introduction: Sequence[str] = (),
    same_data: bool = True,
) -> str:
    """Several runs as one self-contained page: a summary first, each run below.

    Args:
        reports: the runs.
        title: heading of the page.
        summary_table: rows with the same keys, which head the columns.
        introduction: paragraphs before the table.
        same_data: whether all runs read the same data; the page then states their joint price.
    Raises:
        ValueError: there is no run to report on.
    """
    page = _page(reports, title, summary_table, introduction, same_data=same_data)
    text = forms.render("page", "page.html.j2", page=page)
    for pattern in _UNBREAKABLE:
        text = pattern.sub("\xa0", text)
    text = _UNSEEN.sub("?", text)
    return "\n".join(line.strip() for line in text.splitlines() if line.strip()) + "\n"


def combined_markdown(
    reports: Sequence["PrivacyReport"],
    title: str,
    summary_table: Sequence[Mapping[str, Any]] = (),
    *,
    introduction: Sequence[str] = (),
    same_data: bool = True,
) -> str:
    """The same as Markdown, without the figures; see `combined_html`."""
    page = _page(reports, title, summary_table, introduction, same_data=same_data)
    text = _UNSEEN.sub("?", forms.render("markdown", "page.md.j2", page=page))
    text = "\n".join(line.rstrip() for line in text.splitlines())
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def combined_json(
    reports: Sequence["PrivacyReport"],
    title: str,
    summary_table: Sequence[Mapping[str, Any]] = (),
    *,
    same_data: bool = True,
) -> str:
    """Several runs as one JSON text: `runs` holds what `PrivacyReport.to_dict` gives for each."""
    joint = joint_price(reports) if same_data else None
    document = {
        "format": "privopt-reports",
        "format_version": facts.FORMAT_VERSION,
        "title": title,
        "joint_price": None
        if joint is None
        else json_value(dict(zip(("epsilon", "delta"), joint, strict=True))),
        "summary": [{str(key): json_value(value) for key, value in row.items()} for row in summary_table],
        "runs": [report.to_dict() for report in reports],
    }
    return facts.json_text(document)


def save_combined(
    path: str | Path,
    reports: Sequence["PrivacyReport"],
    title: str,
    summary_table: Sequence[Mapping[str, Any]] = (),
    *,
    introduction: Sequence[str] = (),
    same_data: bool = True,
) -> Path:
    """Write several runs into one file; the suffix chooses the form (.html, .md or .json)."""
    path = Path(path)
    form = facts.form_of(path)
    if form == "json":
        text = combined_json(reports, title, summary_table, same_data=same_data)
    else:
        write = combined_html if form == "html" else combined_markdown
        text = write(reports, title, summary_table, introduction=introduction, same_data=same_data)
    path.write_text(text, encoding="utf-8")
    return path


def joint_price(reports: Sequence["PrivacyReport"]) -> tuple[float, float] | None:
    """(epsilon, delta) of all runs together, if they read the same data; None if they cannot be added up.

    Runs under different relations or units have no joint price here. Delta is the largest of theirs.
    """
    if len({(report.relation, report.unit) for report in reports}) != 1:
        return None
    delta = max(report.delta for report in reports)
    event = sequence(report.event for report in reports)
    try:
        return accounting.epsilon(event, delta, reports[0].relation), delta
    except NotPriceable:
        return None


def _page(
    reports: Sequence["PrivacyReport"],
    title: str,
    table: Sequence[Mapping[str, Any]],
    introduction: Sequence[str],
    *,
    same_data: bool,
) -> dict[str, Any]:
    """What the templates of a document take."""
    if not reports:
        raise ValueError("a page needs at least one report, got none: give the reports of the runs to show.")
    headings = list(dict.fromkeys(str(key) for row in table for key in row))
    first = next((report for report in reports if report.seeded), reports[0])
    labels = [report.title for report in reports]
    return {
        "title": title,
        "several": len(reports) > 1 or bool(table),
        "introduction": introduction,
        "table": {"headings": headings, "rows": [[row.get(name, "") for name in headings] for row in table]}
        if table
        else None,
        "joint": _joint(reports) if same_data and len(reports) > 1 else None,
        "not_covered": first.facts["not_covered"],
        "curves": figures.curves_figure(reports, labels, "all") if len(reports) > 1 else None,
        "runs": [_run(report, f"run{place + 1}") for place, report in enumerate(reports)],
        "version": reports[0].version,
    }


def _joint(reports: Sequence["PrivacyReport"]) -> dict[str, Any]:
    """The joint price of the runs, or why there is none."""
    joint = joint_price(reports)
    if joint is None:
        return {"obstacle": "units"}
    if any(report.seeded for report in reports):
        return {"obstacle": "seeded"}
    return {"obstacle": "off" if math.isinf(joint[0]) else "", "epsilon": joint[0], "delta": joint[1]}


def _run(report: "PrivacyReport", key: str) -> dict[str, Any]:
    """The facts and figures of one run."""
    pairs = list(zip(report.curve.deltas, report.curve.epsilons, strict=True))
    step = max(1, math.ceil(len(pairs) / MOST_POINTS))
    return {
        "key": key,
        "facts": report.facts,
        "costs": facts.single_costs(report),
        "curve": figures.curves_figure([report], [report.title], f"{key}-curve"),
        "points": sorted({*pairs[::step], *[pair for pair in pairs if pair[0] == report.delta]}),
        "schedule": figures.schedule_figure(report.releases, f"{key}-noise"),
        "pictures": [
            (picture, figures.picture_figure(picture, f"{key}-picture{place}"))
            for place, picture in enumerate(report.pictures)
        ],
    }
