"""Pages: one self-contained HTML file for one run or for several, and the JSON of several."""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privopt.json_values import json_value
from privopt.ledger import accounting
from privopt.ledger.events import DeltaEvent, RoundingEvent, SelectionsEvent, sequence
from privopt.planning.counts import RELATIVE_SETTINGS
from privopt.planning.plan import meaning_of, meaning_of_cap, meaning_of_typical, objective, warnings_in
from privopt.public import STORAGES, Relation
from privopt.report import explain, facts, words
from privopt.report.explain import Point, noise_source
from privopt.report.facts import FORMAT_VERSION, ReportFacts, form_of, json_text
from privopt.report.figures import curves_figure, picture_figure, schedule_figure
from privopt.report.model import MOST_ROWS
from privopt.report.releases import ReleaseGroup, dearest

if TYPE_CHECKING:
    from privopt.report.report import PrivacyReport

_FOLDER = Path(__file__).parent
_UNBREAKABLE = (re.compile(r"(?<=\d) (?=%)"), re.compile(r"(?<=[εδ]) (?==)"), re.compile(r"(?<=[εδ]\xa0=) "))
# Control characters and marks that turn the direction of writing or cannot be seen.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]")
MOST_SETTINGS_TEXT = 120  # characters of a setting that is no number


def combined_html(
    reports: Sequence[ReportFacts],
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
    if not reports:
        raise ValueError("a page needs at least one report, got none: give the reports of the runs to show.")
    several = len(reports) > 1 or bool(summary_table)
    labels = [report.title for report in reports]
    page = _template().render(
        title=title,
        style=(_FOLDER / "report.css").read_text(encoding="utf-8"),
        several=several,
        introduction=list(introduction),
        table=_table(summary_table),
        joint=_joint_sentence(reports) if several and same_data and len(reports) > 1 else "",
        banners=list(dict.fromkeys(banner for report in reports for banner in explain.banners(report))),
        shared=_shared(reports),
        limits=explain.not_covered(next((report for report in reports if report.seeded), reports[0])),
        curves=curves_figure(reports, labels, "all") if len(reports) > 1 else "",
        runs=[_run(report, f"run{position + 1}") for position, report in enumerate(reports)],
        version=reports[0].version,
    )
    for pattern in _UNBREAKABLE:
        page = pattern.sub("\xa0", page)
    page = _UNSEEN.sub("?", page)
    return "\n".join(line.rstrip() for line in page.splitlines() if line.strip()) + "\n"


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
        "format_version": FORMAT_VERSION,
        "title": title,
        "joint_price": None
        if joint is None
        else json_value(dict(zip(("epsilon", "delta"), joint, strict=True))),
        "summary": [{str(key): json_value(value) for key, value in row.items()} for row in summary_table],
        "runs": [report.to_dict() for report in reports],
    }
    return json_text(document)


def save_combined(
    path: str | Path,
    reports: Sequence["PrivacyReport"],
    title: str,
    summary_table: Sequence[Mapping[str, Any]] = (),
    *,
    introduction: Sequence[str] = (),
    same_data: bool = True,
) -> Path:
    """Write several runs into one file; the suffix chooses the form (.html or .json)."""
    path = Path(path)
    if form_of(path) == "html":
        text = combined_html(reports, title, summary_table, introduction=introduction, same_data=same_data)
    else:
        text = combined_json(reports, title, summary_table, same_data=same_data)
    path.write_text(text, encoding="utf-8")
    return path


def joint_price(reports: Sequence[ReportFacts]) -> tuple[float, float] | None:
    """(epsilon, delta) of all runs together, if they read the same data; None if they cannot be added up.

    Runs under different relations or units have no joint price here. Delta is the largest of theirs.
    """
    if len({(report.relation, report.unit) for report in reports}) != 1:
        return None
    delta = max(report.delta for report in reports)
    event = sequence(report.event for report in reports)
    try:
        return accounting.epsilon(event, delta, reports[0].relation), delta
    except accounting.NotPriceable:
        return None


@functools.lru_cache(maxsize=1)
def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["pretty"] = words.pretty
    known: Any = environment.globals
    known["explain"] = explain
    return environment.get_template("report.html.j2")


def _shared(reports: Sequence[ReportFacts]) -> list[tuple[str, str]]:
    """The plain words that hold for all runs alike."""
    protections = {explain.protection(report) for report in reports}
    if len(protections) > 1 or not protections:
        return []
    return [("What is protected.", protections.pop().replace("This run protects", "Each run protects"))]


def _run(report: ReportFacts, key: str) -> dict[str, Any]:
    """What the template needs to know of one run, in words."""
    return {
        "key": key,
        "report": report,
        "tiles": _tiles(report),
        "paragraphs": [
            ("What is protected.", explain.protection(report)),
            ("How strong it is.", explain.strength(report)),
            ("What it cost.", explain.price(report)),
            *facts.paragraphs(report),
        ],
        "technical": technical(report),
        "curve": curves_figure([report], [report.title], f"{key}-curve"),
        "curve_note": _curve_note(report),
        "curve_points": _curve_points(report),
        "schedule": schedule_figure(report.releases, f"{key}-noise"),
        "releases": [_release_row(report, group) for group in report.releases],
        "pictures": [
            (picture.title, picture_figure(picture, f"{key}-picture{place}"), picture.caption)
            for place, picture in enumerate(report.pictures)
        ],
        "notices": [one for one in report.notices if one not in warnings_in(report.findings)],
        "model": _model(report),
        "settings": _settings(report),
    }


def _tiles(report: ReportFacts) -> list[tuple[str, str, str]]:
    """The four numbers of the first screen: label, value, remark."""
    finite = math.isfinite(report.epsilon)
    among = "" if report.n is None else f"among {report.n:,}"
    budget = report.budget
    within = f"budget {words.pretty(budget.epsilon)}" if budget is not None and budget.is_private else ""
    if report.unit == "user":
        among = f"with everything they contributed, {among}".rstrip(", ")
    if not report.is_noised:
        among = ""
    return [
        ("Protected", f"one {report.unit}" if report.is_noised else "nothing", among),
        ("Epsilon (ε)", words.pretty(report.epsilon) if finite else "∞", within),
        ("Delta (δ)", words.pretty(report.delta, 3), words.chance(report.delta) if report.delta else ""),
        (
            "Best guess right",
            words.percent(report.curve.best_guess) if report.is_noised else "100 %",
            "50 % is blind guessing",
        ),
    ]


def _curve_note(report: ReportFacts) -> str:
    if report.curve.exact:
        return "Exact for this run: all its noise is Gaussian."
    return (
        "The dots are computed bounds of a numerical accountant; the lines between them only guide the eye."
    )


def _curve_points(report: ReportFacts) -> list[tuple[str, str]]:
    """At most a dozen points of the curve, for readers who prefer a table."""
    pairs = list(zip(report.curve.deltas, report.curve.epsilons, strict=True))
    step = max(1, math.ceil(len(pairs) / 10))
    kept = sorted({*pairs[::step], *[pair for pair in pairs if pair[0] == report.delta]})
    return [(words.pretty(delta, 3), words.pretty(epsilon)) for delta, epsilon in kept]


def _release_row(report: ReportFacts, group: ReleaseGroup) -> dict[str, str]:
    return {
        "Released": group.label,
        "How many": f"{group.count:,}",
        "Largest change by one " + report.unit: "—"
        if group.sensitivity is None or (group.is_drawn and not group.is_sum_of_stream)
        else words.span(*group.sensitivity),
        "Noise": group.noise,
        "Noise scale": "—" if group.scale is None else words.span(*group.scale),
        "Who takes part": group.participants,
        "Cost of one": _single_cost(report, group),
    }


def _single_cost(report: ReportFacts, group: ReleaseGroup) -> str:
    """What one of these releases would cost by itself."""
    if group.is_free:
        return "free: part of a mechanism that was charged as a whole"
    if group.filter is not None:
        return "paid for by a filter, see below"
    event = dearest(group)
    if event is None:
        return "charged as a whole"
    try:
        price = accounting.epsilon(event, report.delta, report.relation, near=report.single_near)
    except accounting.NotPriceable:
        return "priced together with the others only"
    return "unlimited" if math.isinf(price) else f"ε = {words.pretty(price, 2)} by itself"


def _model(report: ReportFacts) -> dict[str, Any] | None:
    model = report.model
    if model is None or not model.size:
        return None
    rows = [(name, [words.pretty(value) for value in values]) for name, values in model.largest()]
    total = len(model.features)
    note = f"The {MOST_ROWS} largest of {total:,} by absolute value." if total > MOST_ROWS else ""
    return {
        "name": words.titled(model.name),
        "headings": model.headings,
        "rows": rows,
        "note": note,
        "meaning": model.meaning,
        "size": model.size,
        "details": {key: words.pretty(value) for key, value in (model.details or {}).items()},
    }


def _settings(report: ReportFacts) -> list[tuple[str, str]]:
    if report.plan is None:
        return []
    plan = report.plan
    rows = [
        ("solver", plan.solver),
        ("features of a record, intercept included", words.pretty(plan.public.d)),
        ("passes over the data", words.pretty(plan.passes)),
        ("memory planned", words.size(plan.memory_bytes)),
        ("time planned, compilation excluded", words.duration(plan.seconds)),
    ]
    relative = RELATIVE_SETTINGS if plan.settings.get("level_share") else ()
    for key, value in plan.settings.items():
        text = words.pretty(value) + (", relative to the mean count" if key in relative else "")
        rows.append(
            (words.spelled(key), text[:MOST_SETTINGS_TEXT] + ("…" if len(text) > MOST_SETTINGS_TEXT else ""))
        )
    return rows


def _table(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if not rows:
        return None
    headings = list(dict.fromkeys(str(key) for row in rows for key in row))
    cells = [[words.pretty(row.get(heading, "")) for heading in headings] for row in rows]
    return {"headings": headings, "rows": cells}


def _joint_sentence(reports: Sequence[ReportFacts]) -> str:
    joint = joint_price(reports)
    if joint is None:
        return "The runs use different units or relations, so they have no joint price here."
    if any(report.seeded for report in reports):
        return "The runs are not private: the random draws of at least one can be repeated from a seed."
    if math.isinf(joint[0]):
        return "Together the runs are not private: at least one has its noise switched off."
    return (
        f"All {len(reports)} runs read the same data. Whoever sees all of them faces a joint guarantee of "
        f"ε = {words.pretty(joint[0])} at δ = {words.pretty(joint[1], 3)}, weaker than that of each alone."
    )


# ---- The guarantee in the terms of the field ---------------------------------------------------------------
def technical(report: ReportFacts) -> list[Point]:
    """The guarantee for somebody who knows the definitions."""
    unit = report.unit
    if report.relation is Relation.REPLACE_ONE:
        neighbours = f"replace-one: the number of {unit}s is public, and one {unit} is replaced by anything"
    else:
        neighbours = f"add-or-remove-one: one {unit} is present or absent; the nominal n is public"
    points = [
        Point("Privacy unit", f"one {unit}"),
        Point("Neighbouring data sets", neighbours),
    ]
    if math.isfinite(report.epsilon):
        factor = words.number(math.exp(min(report.epsilon, 700.0)), 3)
        failing = (
            f"; apart from a probability δ = {words.pretty(report.delta, 3)} ({words.chance(report.delta)})"
            if report.delta > 0
            else ""
        )
        points.append(
            Point(
                "(ε, δ)-differential privacy",
                f"ε = {words.pretty(report.epsilon)}, δ = {words.pretty(report.delta, 3)}: no outcome becomes more "
                f"than {factor} times (e^ε) as likely because of one {unit}{failing}",
            )
        )
    if report.budget is not None and report.budget.is_private:
        points.append(
            Point(
                "Budget",
                f"ε = {words.pretty(report.budget.epsilon)}, δ = {words.pretty(report.budget.delta, 3)}",
            )
        )
    points += [
        *_of_users(report),
        *_storage(report),
        *_tests(report),
        *_selections(report),
        *_rounding(report),
    ]
    certified = explain.for_experts(report)
    if certified:
        points.append(Point("Certificate", certified))
    points += [Point("Noise", noise_source(report)), Point("Ending", report.status)]
    return points if report.account is None else [*points, Point("Account", report.account.in_words())]


def _of_users(report: ReportFacts) -> list[Point]:
    """What the numbers mean that were fixed for users."""
    if report.plan is None or not report.plan.public.by_user:
        return []
    public = report.plan.public
    counted = "whether or not they have records" if report.relation is Relation.REPLACE_ONE else "at most"
    return [
        Point("Users", f"{public.n:,}, {counted}; a person with none adds nothing and changes no divisor"),
        Point("What was minimised", objective(public)),
        Point("Records used of one person", meaning_of_cap(public)),
        Point("Typical number of records", meaning_of_typical(public)),
    ]


def _storage(report: ReportFacts) -> list[Point]:
    """The format of the stored rows, where it is not the usual one."""
    if report.plan is None or report.plan.public.storage == STORAGES[0]:
        return []
    return [Point("Storage", meaning_of(report.plan.public.storage))]


def _tests(report: ReportFacts) -> list[Point]:
    """What the part of delta that private tests take stands for."""
    found: dict[float, int] = {}
    for leaf, count in report.leaves(DeltaEvent):
        if leaf.delta > 0:
            found[leaf.delta] = found.get(leaf.delta, 0) + count
    if not found:
        return []
    share = words.pretty(sum(delta * count for delta, count in found.items()), 3)
    return [
        Point(
            "Private tests",
            f"{words.several(sum(found.values()), 'answer')} decided whether something else might be published, whose "
            f"noise is large enough only where such a test is rightly passed. {share} of δ is the probability that "
            "the noise lets a test pass where it must not: it is added to δ as it is, and nothing else is promised "
            "for that case.",
        )
    ]


def _selections(report: ReportFacts) -> list[Point]:
    """What a vertex that was drawn from hidden scores tells, and what stays hidden."""
    drawn = report.leaves(SelectionsEvent)
    if not drawn:
        return []
    rho = sum(leaf.rho * count for leaf, count in drawn)
    return [
        Point(
            "Drawn vertices",
            "what was published is which pure strategies, queries or coordinates were drawn, and in which order. Each "
            "was drawn with a probability proportional to e to the power of a hidden score, which a "
            f"single {report.unit} shifts a little; a draw hints at high scores, and those hints are what was paid "
            f"for (rho {words.pretty(rho, 3)} in all). The scores themselves, gradients, exact averages and what the "
            "last scores would choose were never published.",
        )
    ]


def _rounding(report: ReportFacts) -> list[Point]:
    """What the part of delta that rounding takes stands for."""
    distance = sum(count * leaf.total_variation for leaf, count in report.leaves(RoundingEvent))
    if distance == 0 or not math.isfinite(report.epsilon):
        return []
    share = words.pretty((1 + math.exp(min(report.epsilon, 700.0))) * distance, 2)
    return [
        Point(
            "Rounding",
            f"probabilities were computed in floating point, within a total variation of {words.pretty(distance, 2)} "
            f"of the exact ones: {share} of δ, that is (1 + e^ε) times as much, pays for it",
        )
    ]
