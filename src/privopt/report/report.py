"""The privacy report of one run."""

import json
import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from privopt.json_values import described_array, json_value, plain
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.event_json import event_from_dict
from privopt.ledger.events import Event
from privopt.notebook import card
from privopt.planning.plan import Bound, Finding, Plan, figure
from privopt.public import Public, Relation
from privopt.report import explain, words
from privopt.report.curve import PrivacyCurve, privacy_curve
from privopt.report.model import ModelSummary
from privopt.report.releases import ReleaseGroup, group_releases
from privopt.result import Result

FORMAT = "privopt-report"
FORMAT_VERSION = 1
DEFAULT_DELTA = 1e-6  # for a run by hand, where nobody named a delta
TERMINAL_WIDTH = 79
MOST_FINDINGS = 3  # in the printed report
NO_PLAN = (
    "This run had no plan. Its price adds up what was released, and holds if noise and number of the releases were "
    "fixed beforehand, or paid for by a filter. Otherwise the guarantee is that of the ledger."
)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """How the model was chosen among several.

    Attributes:
        sentence: what was done, for the reader.
        private: whether the choice was made by a charged mechanism.
    """

    sentence: str
    private: bool


@dataclass(frozen=True, kw_only=True)
class PrivacyReport:
    """What a run protected, how strongly and at what price: public things only, of released values only the model.

    Attributes:
        title: heading of the report.
        relation: the neighbouring relation.
        event: everything that was released, priced as one: the plan where there is one, else the transcript.
        delta: the delta of the guarantee.
        seeded: whether the noise or a choice of records came from a seed, which makes the run not private.
        status: how the run ended, in a sentence.
        releases: the releases, grouped by kind.
        plan: what was announced before the data were read.
        findings: by name, what the releases show about the result; an array stands there by its shape only.
        declared: what the user declared to be public, in sentences.
        model: the released quantities.
        divided_rows: whether every row was divided by its length, so that none was shortened.
        selection: how the model was chosen among several.
        metrics: measured quality, as the caller gave it.
        notices: the planner's and the caller's remarks.
        version: the version of privopt that made the run.
    """

    title: str
    relation: Relation
    event: Event
    delta: float
    seeded: bool
    status: str
    releases: tuple[ReleaseGroup, ...]
    plan: Plan | None = None
    findings: Mapping[str, Finding] = field(default_factory=dict[str, Finding])
    declared: tuple[str, ...] = ()
    model: ModelSummary | None = None
    divided_rows: bool = False
    selection: Selection | None = None
    metrics: Mapping[str, float | int | str] = field(default_factory=dict[str, float | int | str])
    notices: tuple[str, ...] = ()
    version: str = field(default_factory=lambda: metadata.version("privopt"))

    @classmethod
    def of(
        cls,
        result: Result,
        *,
        title: str | None = None,
        declared: Iterable[str] = (),
        model: ModelSummary | None = None,
        divided_rows: bool = False,
        selection: Selection | None = None,
        metrics: Mapping[str, float | int | str] | None = None,
        extra_notices: Iterable[str] = (),
        delta: float | None = None,
    ) -> "PrivacyReport":
        """Report on a result.

        Args:
            result: what a solve gave back.
            title: heading; default: the model or the solver.
            declared: sentences on what the user declared public.
            model: the fitted model; default: the bare parameters.
            divided_rows: whether every row was divided by its length before the run.
            selection: how the model was chosen among several.
            metrics: measured quality, by name.
            extra_notices: further remarks.
            delta: the delta to price a run at that had no plan; with a plan its budget's delta is used.
        """
        plan, transcript = result.plan, result.transcript
        if plan is not None:
            delta = plan.budget.delta
        if title is None:
            solver = "" if plan is None else f" ({plan.solver})"
            title = ("Private optimization" if model is None else words.titled(model.name)) + solver
        return cls(
            title=title,
            relation=transcript.relation,
            event=transcript.event() if plan is None else plan.event,
            delta=DEFAULT_DELTA if delta is None else delta,
            seeded=transcript.seeded,
            status=result.status.value,
            releases=group_releases(transcript),
            plan=plan,
            findings={name: _without_arrays(found) for name, found in result.findings.items()},
            declared=tuple(declared),
            model=ModelSummary.of_params(result.params) if model is None else model,
            divided_rows=divided_rows,
            selection=selection,
            metrics=dict(metrics or {}),
            notices=(*((NO_PLAN,) if plan is None else plan.notices), *extra_notices),
        )

    @property
    def budget(self) -> Budget | None:
        """The budget that was set beforehand; None for a run without a plan."""
        return None if self.plan is None else self.plan.budget

    @property
    def unit(self) -> str:
        """What is protected: "record" or "user"; "unit" for a run without a plan."""
        return "unit" if self.plan is None else self.plan.public.unit

    @property
    def n(self) -> int | None:
        """The public number of units, where it is known."""
        return None if self.plan is None else self.plan.public.n

    @property
    def records_per_unit(self) -> int:
        """The most records of one unit that are used."""
        return 1 if self.plan is None else self.plan.public.records_per_unit

    @property
    def count(self) -> int:
        """The number of single releases."""
        return sum(group.count for group in self.releases)

    @cached_property
    def epsilon(self) -> float:
        """The price at `delta`."""
        return accounting.epsilon(self.event, self.delta, self.relation, near=self._near)

    @cached_property
    def curve(self) -> PrivacyCurve:
        """The whole epsilon(delta) curve; numerical accounting may take a second."""
        return privacy_curve(self.event, self.relation, self.delta, self._near)

    @property
    def is_private(self) -> bool:
        """Whether the guarantee holds: noise was on, and it was secret."""
        return math.isfinite(self.epsilon) and not self.seeded

    @property
    def _near(self) -> float | None:
        """The epsilon that the noise was calibrated to: the same grid gives the same price."""
        return self.budget.epsilon if self.budget is not None and self.budget.is_private else None

    @property
    def single_near(self) -> float | None:
        """About the epsilon of one of many releases: a bound for the grid of the numerical accountant."""
        return None if self._near is None else self._near / max(1.0, math.sqrt(self.count))

    def to_dict(self) -> dict[str, Any]:
        """Everything, as a dictionary of JSON values (infinity is the text "infinity")."""
        plan = None
        if self.plan is not None:
            plan = self.plan.to_dict() | {"epsilon": self.epsilon, "budget": asdict(self.plan.budget)}
            plan["public"] = asdict(self.plan.public) | {"relation": self.relation.value}
        document = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "privopt": self.version,
            "title": self.title,
            "guarantee": {
                "epsilon": self.epsilon,
                "delta": self.delta,
                "relation": self.relation.value,
                "unit": self.unit,
                "n": self.n,
                "holds": self.is_private,
                "seeded": self.seeded,
                "noise": explain.noise_source(self),
                "best_guess": self.curve.best_guess,
            },
            "summary": [explain.protection(self), explain.strength(self), explain.price(self)],
            "not_covered": [point._asdict() for point in explain.not_covered(self)],
            "status": self.status,
            "curve": [
                {"delta": delta, "epsilon": epsilon}
                for delta, epsilon in zip(self.curve.deltas, self.curve.epsilons, strict=True)
            ],
            "event": self.event.to_dict(),
            "releases": [group.to_dict() for group in self.releases],
            "plan": plan,
            "findings": {name: found.to_dict() for name, found in self.findings.items()},
            "utility_assumptions": explain.utility_assumptions(self),
            "declared": list(self.declared),
            "divided_rows": self.divided_rows,
            "selection": None if self.selection is None else asdict(self.selection),
            "metrics": dict(self.metrics),
            "notices": list(self.notices),
            "model": None if self.model is None else self.model.to_dict(),
        }
        return json_value(document)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "PrivacyReport":
        """Rebuild a report from what `to_dict` gave, possibly after a trip through JSON.

        Raises:
            ValueError: the document is not a report, or of a newer format.
        """
        if document.get("format") != FORMAT or document.get("format_version") != FORMAT_VERSION:
            found = f"{document.get('format')!r}, version {document.get('format_version')!r}"
            raise ValueError(f"expected a {FORMAT} document of version {FORMAT_VERSION}, got {found}.")
        relation = Relation.parse(document["guarantee"]["relation"])
        selection, model, plan = document["selection"], document["model"], document["plan"]
        return cls(
            title=document["title"],
            relation=relation,
            event=event_from_dict(document["event"]),
            delta=document["guarantee"]["delta"],
            seeded=document["guarantee"]["seeded"],
            status=document["status"],
            releases=tuple(ReleaseGroup.from_dict(group) for group in document["releases"]),
            plan=None if plan is None else _plan_from_dict(plan),
            findings=_findings_from_dict(document.get("findings", {})),
            declared=tuple(document["declared"]),
            divided_rows=document["divided_rows"],
            model=None if model is None else ModelSummary.from_dict(model),
            selection=None if selection is None else Selection(**selection),
            metrics=dict(document["metrics"]),
            notices=tuple(document["notices"]),
            version=document["privopt"],
        )

    def to_json(self) -> str:
        """The report as JSON text."""
        return json.dumps(self.to_dict(), indent=2, allow_nan=False, ensure_ascii=False)

    def to_html(self) -> str:
        """The report as one self-contained page."""
        from privopt.report.page import render  # late: a template engine and a plotting library

        return render([self], title=self.title)

    def save(self, path: str | Path) -> Path:
        """Write the report; the suffix chooses the form.

        Args:
            path: ends in ".html" or ".json".
        Returns:
            The path.
        Raises:
            ValueError: any other suffix.
        """
        path = Path(path)
        form = form_of(path)
        path.write_text(self.to_html() if form == "html" else self.to_json(), encoding="utf-8")
        return path

    def __str__(self) -> str:
        lines = [self.title]
        lines += [f"  *** {banner.title} ***" for banner in explain.banners(self)]
        for label, text in _terminal_lines(self):
            lines += textwrap.wrap(
                text,
                TERMINAL_WIDTH,
                initial_indent=f"  {label:<13} ",
                subsequent_indent=" " * 16,
                break_on_hyphens=False,
            )
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        warnings = [banner.title for banner in explain.banners(self)]
        return card(self.title, _terminal_lines(self), warnings=warnings)


def form_of(path: Path) -> Literal["html", "json"]:
    """The form that a file name asks for.

    Raises:
        ValueError: the suffix is neither .html nor .json.
    """
    suffix = path.suffix.lower()
    if suffix in (".html", ".htm"):
        return "html"
    if suffix == ".json":
        return "json"
    raise ValueError(f"a report is written as .html or .json, got the file name {path.name!r}.")


def _terminal_lines(report: PrivacyReport) -> list[tuple[str, str]]:
    """The rows of the printed report."""
    lines = [("protected", f"{explain.one_line(report)} ({report.relation.value})")]
    if math.isinf(report.epsilon):
        lines.append(("guarantee", "none: epsilon is infinite"))
    else:
        budget = "" if report.budget is None else f" (budget: epsilon {words.number(report.budget.epsilon)})"
        price = f"epsilon {words.number(report.epsilon)}, delta {words.number(report.delta, 3)}{budget}"
        guess = words.percent(report.curve.best_guess)
        lines += [
            ("guarantee", price),
            ("in words", f"whoever guesses, 50:50 beforehand, is right at most {guess} of the time"),
        ]
    kinds = [
        f"{group.count:,} x {group.label.lower()}, {group.noise}"
        + (
            ""
            if group.filter is None
            else f", chosen as the run went ({group.filter.share} of a filter used)"
        )
        for group in report.releases[:3]
    ]
    more = [f"{len(report.releases) - 3} more kinds"] if len(report.releases) > 3 else []
    lines += [
        ("releases", "; ".join([*kinds, *more]) or "none"),
        ("noise from", explain.noise_source(report)),
        ("status", report.status),
    ]
    if report.plan is not None and report.plan.predicted_excess is not None:
        excess = words.number(report.plan.predicted_excess, 2)
        lines.append(("predicted", f"objective about {excess} above its non-private optimum"))
    if report.plan is not None and report.plan.bound is not None:
        lines.append(("bound", report.plan.bound.sentence))
    shown = [(name, found) for name, found in report.findings.items() if isinstance(found.value, int | float)]
    lines += [
        ("shows", f"{words.spelled(name)} {figure(found.value)}: {textwrap.shorten(found.meaning, 160)}")
        for name, found in shown[:MOST_FINDINGS]
    ]
    if report.notices:
        lines.append(("notices", f"{len(report.notices)}, first: {textwrap.shorten(report.notices[0], 120)}"))
    lines.append(
        (
            "not covered",
            "other uses of the same data, choices made on it, floating point, timing; see the full report",
        )
    )
    return lines


def _plan_from_dict(values: Mapping[str, Any]) -> Plan:
    public: dict[str, Any] = dict(values["public"])
    public["relation"] = Relation.parse(public["relation"])
    excess = values["predicted_excess"]
    return Plan(
        solver=values["solver"],
        settings=dict(values["settings"]),
        event=event_from_dict(values["event"]),
        budget=Budget(float(values["budget"]["epsilon"]), float(values["budget"]["delta"])),
        public=Public(**public),
        releases=values["releases"],
        passes=values["passes"],
        memory_bytes=values["memory_bytes"],
        seconds=values["seconds"],
        predicted_excess=None if excess is None else float(excess),
        prediction=values["prediction"],
        bound=None if values.get("bound") is None else _bound_from_dict(values["bound"]),
        indicators=_findings_from_dict(values.get("indicators", {})),
        notices=tuple(values["notices"]),
        adaptive=values.get("adaptive", False),
        reason=values.get("reason", ""),
    )


def _bound_from_dict(values: Mapping[str, Any]) -> Bound:
    return Bound(float(values["value"]), float(values["probability"]), values["condition"])


def _findings_from_dict(values: Mapping[str, Any]) -> dict[str, Finding]:
    return {
        name: Finding(_number_or_text(found["value"]), found["meaning"]) for name, found in values.items()
    }


def _number_or_text(value: Any) -> Any:
    """A value as `json_value` wrote it, infinity a number again."""
    return float(value) if value in ("infinity", "-infinity", "nan") else value


def _without_arrays(found: Finding) -> Finding:
    """A finding whose value is a number or words: a report shows no list of released numbers but the model."""
    value = plain(found.value)
    return Finding(described_array(value) or value, found.meaning)
