"""The privacy report of one run."""

import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privopt.atomic_files import replace_file
from privopt.json_values import described_array, json_value, plain
from privopt.ledger.events import event_from_dict
from privopt.notebook import card
from privopt.planning.notices import NO_RELEASES
from privopt.planning.plan import Finding, Picture, Plan, aim, figure, in_sentences, own_lines, warnings_in
from privopt.printable import printable_lines
from privopt.public import Relation
from privopt.report import explain, facts, words
from privopt.report.facts import (
    FORMAT,
    FORMAT_VERSION,
    ReportFacts,
    Selection,
    form_of,
    json_text,
    require_format,
)
from privopt.report.kept import RELEASES_FILE, KeptReleases
from privopt.report.model import AccountUse, ModelSummary, burn_down
from privopt.report.page import combined_html
from privopt.report.releases import ReleaseGroup, group_releases

if TYPE_CHECKING:
    from privopt.result import Result

DEFAULT_DELTA = 1e-6  # for a run by hand, where nobody named a delta
NO_PLAN = (
    "This run had no plan. Its price adds up what was released. It holds if the number of releases and their noise "
    "were fixed beforehand, or if a filter paid for them; otherwise the guarantee is that of the ledger."
)


@dataclass(frozen=True, kw_only=True)
class PrivacyReport(ReportFacts):
    """What a run protected, how strongly and at what price; the facts are the attributes of `ReportFacts`."""

    @classmethod
    def of(
        cls,
        result: "Result",
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
        paid_by = transcript.paid_by
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
            pictures=(*result.pictures, *(() if paid_by is None else (burn_down(paid_by),))),
            declared=(
                *(() if plan is None else plan.black_box),
                *declared,
                *(() if result.kept is None else (result.kept,)),
            ),
            model=ModelSummary.of_params(result.params) if model is None else model,
            divided_rows=divided_rows,
            selection=selection,
            metrics=dict(metrics or {}),
            account=None if paid_by is None else AccountUse.of(paid_by),
            notices=tuple(
                dict.fromkeys(
                    (
                        *(() if transcript.releases else (NO_RELEASES,)),
                        *warnings_in(result.findings),
                        *((NO_PLAN,) if plan is None else plan.notices),
                        *extra_notices,
                    )
                )
            ),
            kept=KeptReleases.of(transcript, result.recipe),
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything, as a dictionary of JSON values (infinity is the text "infinity")."""
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
            "summary": [text for text in self._summary() if text],
            "not_covered": [point._asdict() for point in explain.not_covered(self)],
            "status": self.status,
            "curve": [
                {"delta": delta, "epsilon": epsilon}
                for delta, epsilon in zip(self.curve.deltas, self.curve.epsilons, strict=True)
            ],
            "event": self.event.to_dict(),
            "releases": [group.to_dict() for group in self.releases],
            "plan": None if self.plan is None else self.plan.to_dict(),
            "findings": {name: found.to_dict() for name, found in self.findings.items()},
            "pictures": [picture.to_dict() for picture in self.pictures],
            "utility_assumptions": explain.utility_assumptions(self),
            "declared": list(self.declared),
            "divided_rows": self.divided_rows,
            "selection": None if self.selection is None else asdict(self.selection),
            "metrics": dict(self.metrics),
            "account": None if self.account is None else asdict(self.account),
            "notices": list(self.notices),
            "model": None if self.model is None else self.model.to_dict(),
            "replay": None if self.kept is None else dict(self.kept.index),
        }
        return json_value(document)

    def _summary(self) -> list[str]:
        """The report in a few paragraphs; an empty one is left out."""
        return [
            explain.protection(self),
            explain.strength(self),
            explain.price(self),
            *(sentence for _, sentence in facts.paragraphs(self)),
            explain.in_words(self),
        ]

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "PrivacyReport":
        """Rebuild a report from what `to_dict` gave, possibly after a trip through JSON.

        Raises:
            ValueError: the document is not a report, or of a newer format.
        """
        require_format(document)
        guarantee = document["guarantee"]
        selection, model, plan = document["selection"], document["model"], document["plan"]
        account, kept = document.get("account"), document.get("replay")
        return cls(
            title=document["title"],
            relation=Relation.parse(guarantee["relation"]),
            event=event_from_dict(document["event"]),
            delta=guarantee["delta"],
            seeded=guarantee["seeded"],
            status=document["status"],
            releases=tuple(ReleaseGroup.from_dict(group) for group in document["releases"]),
            plan=None if plan is None else Plan.from_dict(plan),
            findings={name: Finding.from_dict(found) for name, found in document.get("findings", {}).items()},
            pictures=tuple(Picture.from_dict(picture) for picture in document.get("pictures", [])),
            declared=tuple(document["declared"]),
            divided_rows=document["divided_rows"],
            model=None if model is None else ModelSummary.from_dict(model),
            selection=None if selection is None else Selection(**selection),
            metrics=dict(document["metrics"]),
            account=None if account is None else AccountUse(**account),
            notices=tuple(document["notices"]),
            version=document["privopt"],
            kept=None if kept is None else KeptReleases(kept),
        )

    def to_json(self) -> str:
        """The report as JSON text."""
        return json_text(self.to_dict())

    def to_html(self) -> str:
        """The report as one self-contained page."""
        return combined_html([self], self.title)

    def save(self, path: str | Path, *, keep_releases: bool = False) -> Path:
        """Write the report; the suffix chooses the form.

        Args:
            path: ends in ".html" or ".json".
            keep_releases: whether to write the released values as well, to `NAME.releases.safetensors` beside
                `NAME.json`: `privopt verify` then replays the run. Of one that is not private, noise from a seed or an
                infinite epsilon, they show exact sums of the data, or lead to them.
        Returns:
            The path.
        Raises:
            ValueError: any other suffix, or there are no released values to keep.
        """
        path = Path(path)
        form = form_of(path)
        if keep_releases:
            self.save_releases(releases_beside(path))
        path.write_text(self.to_html() if form == "html" else self.to_json(), encoding="utf-8")
        return path

    def save_releases(self, path: Path) -> None:
        """Write the released values, which were paid for and may be published, if the run was private.

        Raises:
            ValueError: they were not kept; it says why.
        """
        packed = None if self.kept is None else self.kept.packed
        if packed is None:
            reason = None if self.kept is None else self.kept.index.get("obstacle")
            raise ValueError(f"there are no releases to keep: {reason or 'the report was read from a file'}.")
        replace_file(path, packed)

    def __str__(self) -> str:
        return printed(self)

    def _repr_html_(self) -> str:
        warnings = [banner.title for banner in explain.banners(self)]
        return card(self.title, rows(self), warnings=warnings)


def releases_beside(path: Path) -> Path:
    """Where the released values of a report stand."""
    return path.with_name(f"{path.stem}.{RELEASES_FILE}")


def _without_arrays(found: Finding) -> Finding:
    """A finding whose value is a number or words: a report shows no list of released numbers but the model."""
    value = plain(found.value)
    return Finding(described_array(value) or value, found.meaning)


# ---- The printed report: labelled lines for a terminal or a notebook ---------------------------------------
TERMINAL_WIDTH = 79
MOST_FINDINGS = 3
MOST_KINDS = 3  # of releases
NOT_COVERED = "other uses of the same data, choices made on it, {floats}timing; see the full report"


def printed(report: ReportFacts) -> str:
    """The report as text of at most `TERMINAL_WIDTH` columns."""
    lines = [report.title]
    lines += [f"  *** {banner.title} ***" for banner in explain.banners(report)]
    for label, text in rows(report):
        lines += textwrap.wrap(
            text,
            TERMINAL_WIDTH,
            initial_indent=f"  {label:<13} ",
            subsequent_indent=" " * 16,
            break_on_hyphens=False,
        )
    return printable_lines("\n".join(lines))


def rows(report: ReportFacts) -> list[tuple[str, str]]:
    """What there is to say, as labelled sentences."""
    lines = [
        ("protected", f"{explain.one_line(report)} ({report.relation.value})"),
        *_guarantee(report),
        *_objective(report),
        ("releases", _releases(report)),
        ("noise from", explain.noise_source(report)),
        ("status", report.status),
        *([] if report.account is None else [("account", report.account.in_words())]),
    ]
    if report.plan is not None and report.plan.predicted_excess is not None:
        amount = report.plan.predicted_amount(partial(words.number, digits=2))
        above = f"objective {amount} above its non-private optimum"
        lines.append(
            ("predicted", above if report.plan.measure == "excess" else f"{report.plan.measure} {amount}")
        )
    if report.plan is not None and report.plan.bound is not None:
        lines.append(("bound", report.plan.bound.sentence))
    lines += own_lines(report.findings)
    shown = [
        (name, found)
        for name, found in report.findings.items()
        if isinstance(found.value, int | float) and not in_sentences(name)
    ]
    shown.sort(key=lambda one: one[0] not in explain.CERTIFICATES)
    lines += [
        ("shows", f"{words.spelled(name)} {figure(found.value)}: {_meaning(name, found)}")
        for name, found in shown[:MOST_FINDINGS]
    ]
    told = warnings_in(report.findings)
    notices = [one for one in report.notices if one not in told]
    lines += [("notice", sentence) for sentence in told]
    if notices:
        lines.append(("notices", f"{len(notices)}, first: {textwrap.shorten(notices[0], 120)}"))
    own = (
        "how long the loss function takes, what it prints or stores; "
        if report.plan is not None and report.plan.black_box
        else ""
    )
    floats = "" if all(group.exact for group in report.releases) else "floating point, "
    return [*lines, ("not covered", own + NOT_COVERED.format(floats=floats))]


def _meaning(name: str, found: Finding) -> str:
    """Of a certificate all of it: which mean it is about stands at its end."""
    return found.meaning if name in explain.CERTIFICATES else textwrap.shorten(found.meaning, 160)


def _guarantee(report: ReportFacts) -> list[tuple[str, str]]:
    if math.isinf(report.epsilon):
        return [("guarantee", "none: epsilon is infinite")]
    budget = "" if report.budget is None else f" (budget: epsilon {words.number(report.budget.epsilon)})"
    price = f"epsilon {words.number(report.epsilon)}, delta {words.number(report.delta, 3)}{budget}"
    guess = words.percent(report.curve.best_guess)
    return [
        ("guarantee", price),
        ("in words", f"whoever guesses, 50:50 beforehand, is right at most {guess} of the time"),
    ]


def _objective(report: ReportFacts) -> list[tuple[str, str]]:
    if report.plan is None or not report.plan.public.by_user:
        return []
    return [("minimised", aim(report.plan.public))]


def _releases(report: ReportFacts) -> str:
    kinds = [_kind(group) for group in report.releases[:MOST_KINDS]]
    more = len(report.releases) - MOST_KINDS
    if more > 0:
        kinds.append(f"{more} more kinds")
    return "; ".join(kinds) or "none"


def _kind(group: ReleaseGroup) -> str:
    text = f"{group.count:,} x {group.label.lower()}, {group.noise}"
    if group.filter is None:
        return text
    return f"{text}, chosen as the run went ({group.filter.share} of a filter used)"
