"""What a report tells of a run: one dict of plain values. All of it but what follows from the rest is stored as JSON.

The words are in templates beside this file; `sentences.j2` has each sentence once, in macros that take this dict.
"""

import json
import math
import textwrap
from collections.abc import Mapping
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from privopt.errors import NotPriceable
from privopt.json_values import json_value
from privopt.ledger import accounting
from privopt.ledger.events import DeltaEvent, Event, RoundingEvent, SelectionsEvent
from privopt.planning.plan import (
    IMPROVEMENT_ENDS,
    WARNINGS,
    Finding,
    Plan,
    aim,
    in_sentences,
    meaning_of,
    meaning_of_cap,
    meaning_of_typical,
    objective,
    own_lines,
    promise,
    warnings_in,
)
from privopt.public import STORAGES
from privopt.report import forms
from privopt.report.curve import sure
from privopt.report.releases import dearest
from privopt.status import Status

if TYPE_CHECKING:
    from privopt.report.report import PrivacyReport

Leaf = TypeVar("Leaf", bound=Event)
PREPROCESSING = (
    "Preprocessing not private"  # how the sentence on features that were learned without noise begins
)
DERIVED = "derived"
CERTIFICATE, RADIUS, APPROXIMATE = "certificate", "certificate_radius", "certificate_approximate"
CERTIFICATES = (CERTIFICATE, APPROXIMATE)
MOST_SHOWN = 3  # findings in a terminal


def facts_of(report: "PrivacyReport") -> dict[str, Any]:
    """The document of a report, see `docs/report.schema.json`, and under "derived" what follows from it."""
    curve, plan = report.curve, report.plan
    facts = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "privopt": report.version,
        "title": report.title,
        "guarantee": {
            "epsilon": report.epsilon,
            "delta": report.delta,
            "relation": report.relation.value,
            "unit": report.unit,
            "n": report.n,
            "holds": report.is_private,
            "seeded": report.seeded,
            "noise": "",
            "best_guess": curve.best_guess,
        },
        "summary": [],
        "not_covered": [],
        "status": report.status,
        "curve": [{"delta": d, "epsilon": e} for d, e in zip(curve.deltas, curve.epsilons, strict=True)],
        "event": report.event.to_dict(),
        "releases": [group.to_dict() for group in report.releases],
        "plan": None if plan is None else plan.to_dict(),
        "findings": {name: found.to_dict() for name, found in report.findings.items()},
        "pictures": [picture.to_dict() for picture in report.pictures],
        "utility_assumptions": [],
        "declared": report.declared,
        "divided_rows": report.divided_rows,
        "selection": None if report.selection is None else asdict(report.selection),
        "metrics": report.metrics,
        "account": None if report.account is None else asdict(report.account),
        "notices": report.notices,
        "model": None if report.model is None else report.model.to_dict(),
        "replay": None if report.kept is None else report.kept.index,
        DERIVED: _derived(report),
    }
    return _with_words(json_value(facts))


def _with_words(facts: dict[str, Any]) -> dict[str, Any]:
    """The facts with the sentences that are stored beside them."""
    sentences = [forms.sentence("page", name, facts) for name in ("protection", "strength", "price")]
    sentences += [text for _, text in forms.entries("page", "told", facts)]
    facts["summary"] = [text for text in (*sentences, forms.sentence("page", "certificate", facts)) if text]
    facts["not_covered"] = [
        {"title": title, "text": text} for title, text in forms.entries("page", "limits", facts)
    ]
    facts["utility_assumptions"] = [text for (text,) in forms.entries("page", "assumptions", facts)]
    facts["guarantee"]["noise"] = forms.sentence("page", "noise_source", facts)
    for group, derived in zip(facts["releases"], facts[DERIVED]["releases"], strict=True):
        group["noise"] = forms.sentence("page", "noise", derived)
    return facts


def _derived(report: "PrivacyReport") -> dict[str, Any]:
    """Numbers and names that follow from the document, and the sentences of the plan."""
    plan, epsilon = report.plan, report.epsilon
    finite = math.isfinite(epsilon)
    filters = {group.filter.number: group.filter for group in report.releases if group.filter is not None}
    chose_steps = bool(filters) or (plan is not None and plan.adaptive)
    tests = [(leaf.delta, times) for leaf, times in _leaves(report, DeltaEvent) if leaf.delta > 0]
    budget = report.budget
    return {
        "finite": finite,
        "noised": report.is_noised,
        "budget": asdict(budget) if budget is not None and budget.is_private else None,
        "chosen_freely": report.selection is not None and not report.selection.private,
        "preprocessed": report.selection is not None and report.selection.sentence.startswith(PREPROCESSING),
        "certain": sure(epsilon),
        "surprise": report.curve.surprise(epsilon) if report.delta > 0 else 0.0,
        "factor": math.exp(min(epsilon, 700.0)),
        "exact_curve": report.curve.exact,
        "count": report.count,
        "chose_steps": chose_steps,
        "ended_early": chose_steps
        and plan is not None
        and report.count < plan.releases
        and report.status == Status.FINISHED.value,
        "drawn": sum(leaf.rho * times for leaf, times in _leaves(report, SelectionsEvent)),
        "tests": {"count": sum(n for _, n in tests), "delta": sum(d * n for d, n in tests)}
        if tests
        else None,
        "rounding": sum(leaf.total_variation * times for leaf, times in _leaves(report, RoundingEvent)),
        "filters": [
            one.facts() | {"count": sum(group.count for group in report.releases if group.filter == one)}
            for one in filters.values()
        ],
        "releases": [group.facts() for group in report.releases],
        "warnings": warnings_in(report.findings),
        "findings": [
            [name, found.value, found.meaning]
            for name, found in report.findings.items()
            if name not in (*WARNINGS, *IMPROVEMENT_ENDS)
        ],
        "own": own_lines(report.findings),
        "shown": _shown(report.findings),
        "remarks": [one for one in report.notices if one not in warnings_in(report.findings)],
        "certificate": _certificate(report.findings),
        "model": report.model.facts() if report.model is not None and report.model.size else None,
        **_of_plan(plan),
    }


def _shown(findings: Mapping[str, Finding]) -> list[list[Any]]:
    """The numbers that a terminal shows, with their meanings: a certificate first, and all that is said of it."""
    numbers = [
        [name, found.value, found.meaning if name in CERTIFICATES else textwrap.shorten(found.meaning, 160)]
        for name, found in findings.items()
        if isinstance(found.value, int | float) and not in_sentences(name)
    ]
    return sorted(numbers, key=lambda one: one[0] not in CERTIFICATES)[:MOST_SHOWN]


def _of_plan(plan: Plan | None) -> dict[str, Any]:
    """What the plan says in sentences of its own; None and nothing without one."""
    names = ("promise", "aim", "objective", "cap", "typical", "storage", "predicted", "bound", "condition")
    facts: dict[str, Any] = dict.fromkeys(names) | {"settings": {}, "indicators": [], "relative": []}
    if plan is None:
        return facts
    public, bound = plan.public, plan.bound
    numbers = {name: value for name, value in plan.settings.items() if isinstance(value, int | float)}
    facts["settings"] = {name: value for name, value in numbers.items() if math.isfinite(value)}
    facts["indicators"] = [[name, found.value, found.meaning] for name, found in plan.indicators.items()]
    if plan.settings.get("level_share"):
        from privopt.planning.counts import RELATIVE_SETTINGS

        facts["relative"] = RELATIVE_SETTINGS
    if public.unit == "user":
        facts["promise"] = promise(public)
    if public.by_user:
        facts |= {"aim": aim(public), "objective": objective(public)}
        facts |= {"cap": meaning_of_cap(public), "typical": meaning_of_typical(public)}
    if public.storage != STORAGES[0]:
        facts["storage"] = meaning_of(public.storage)
    if plan.predicted_excess is not None:
        facts["predicted"] = plan.excess_sentence
    if bound is not None:
        facts |= {"bound": bound.sentence}
        facts["condition"] = bound.condition.strip().removeprefix("if ").rstrip(".")
    return facts


def _leaves(report: "PrivacyReport", kind: type[Leaf]) -> list[tuple[Leaf, int]]:
    """The single events of a kind among all that the releases cost, and how often each."""
    parts = chain.from_iterable(group.leaves() for group in report.releases)
    return [(leaf, times) for leaf, times in parts if isinstance(leaf, kind)]


def _certificate(findings: Mapping[str, Finding]) -> dict[str, Any] | None:
    """Of a certificate of stationarity: bound, radius, whether it is proved, and what it is about."""
    shown = findings.get(CERTIFICATE, findings.get(APPROXIMATE))
    if shown is None or RADIUS not in findings:
        return None
    from privopt.planning.goldstein_certificate import IN_SCALES

    said = " ".join(found.meaning for name, found in findings.items() if name.startswith(CERTIFICATE))
    return {
        "slope": float(shown.value),
        "radius": float(findings[RADIUS].value),
        "proved": CERTIFICATE in findings,
        "of_objective": "improves the objective" in said,
        "scales": IN_SCALES if IN_SCALES in said else "",
    }


def single_costs(report: "PrivacyReport") -> list[str | float]:
    """What one release of each kind would cost by itself: its epsilon, or why it has none."""
    costs: list[str | float] = []
    for group in report.releases:
        event = dearest(group)
        if group.is_free or group.filter is not None or event is None:
            costs.append("free" if group.is_free else "compound" if group.filter is None else "filtered")
            continue
        try:
            price = accounting.epsilon(event, report.delta, report.relation, near=report.single_near)
        except NotPriceable:
            price = math.nan
        costs.append("together" if math.isnan(price) else "unlimited" if math.isinf(price) else price)
    return costs


# ---- The documents that reports are stored in --------------------------------------------------------------


FORMAT = "privopt-report"
FORMAT_VERSION = 2
READ_VERSIONS = (1, 2)
MOST = {  # of each, in a report
    "pictures": 24,
    "releases": 10_000,
    "findings": 500,
    "summary": 100,
    "declared": 1000,
}
MOST_POINTS = 1000  # of a line in a picture
SUFFIXES: dict[str, Literal["html", "json", "markdown"]] = {
    ".html": "html",
    ".htm": "html",
    ".json": "json",
    ".md": "markdown",
}


def form_of(path: Path) -> Literal["html", "json", "markdown"]:
    """The form that a file name asks for.

    Raises:
        ValueError: the suffix is none of .html, .json and .md.
    """
    try:
        return SUFFIXES[path.suffix.lower()]
    except KeyError:
        raise ValueError(
            f"a report is written as .html, .json or .md, got the file name {path.name!r}: end it in one of these."
        ) from None


def json_text(document: Mapping[str, Any]) -> str:
    """A document of JSON values as text."""
    return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)


def require_format(document: Mapping[str, Any]) -> None:
    """Refuse what is not the document of one report.

    Raises:
        ValueError: the document is something else, or of a newer format.
    """
    if document.get("format") != FORMAT or document.get("format_version") not in READ_VERSIONS:
        found = f"{document.get('format')!r}, version {document.get('format_version')!r}"
        raise ValueError(f"expected a {FORMAT} document of version 1 to {FORMAT_VERSION}, got {found}.")
    for name, most in MOST.items():
        if len(document.get(name) or ()) > most:
            raise ValueError(f"a report has at most {most:,} {name}.")
    for picture in document.get("pictures") or ():
        lengths = [len(line[part]) for line in picture["series"] for part in ("xs", "ys", "errors")]
        if max(*lengths, len(picture["categories"]), 0) > MOST_POINTS:
            raise ValueError(f"a picture has at most {MOST_POINTS:,} points.")
    if any(len(group["schedule"]) > MOST_POINTS for group in document["releases"]):
        raise ValueError(f"a schedule has at most {MOST_POINTS:,} points.")
