"""The privacy report of one run."""

import math
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privopt.atomic_files import replace_file
from privopt.json_values import described_array, json_value, plain
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Event, event_from_dict
from privopt.notebook import card
from privopt.planning.plan import Finding, Picture, Plan, warnings_in
from privopt.printable import printable_lines
from privopt.public import Relation
from privopt.report import facts, forms
from privopt.report.curve import PrivacyCurve, privacy_curve
from privopt.report.kept import RELEASES_FILE, KeptReleases
from privopt.report.model import AccountUse, ModelSummary, burn_down
from privopt.report.page import combined_html, combined_markdown
from privopt.report.releases import ReleaseGroup, group_releases

if TYPE_CHECKING:
    from privopt.result import Result

DEFAULT_DELTA = 1e-6  # for a run by hand, where nobody named a delta
NO_PLAN = (
    "This run had no plan. Its price adds up what was released. It holds if the number of releases and their noise "
    "were fixed beforehand, or if a filter paid for them; otherwise the guarantee is that of the ledger."
)
TERMINAL_WIDTH = 79


@dataclass(frozen=True, kw_only=True)
class Selection:
    """How the model was chosen among several.

    Attributes:
        sentence: what was done, for the reader.
        private: whether the choice was made by a charged mechanism, on features that no unpaid step learned.
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
        plan: what was announced before the data was read.
        findings: by name, what the releases show about the result; an array stands there by its shape only.
        pictures: of released or public numbers, as the solver describes them.
        declared: what the user declared to be public, in sentences.
        model: the released quantities.
        divided_rows: whether every row was divided by its length, to fit and to predict, so that none was shortened.
        selection: how the model was chosen among several.
        metrics: measured quality, as the caller gave it.
        account: the payment of the account in a file that paid for the run; None where none did.
        notices: the planner's and the caller's remarks.
        version: the version of privopt that made the run.
        kept: the released values, or why there are none; None in reports of version 1.
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
    pictures: tuple[Picture, ...] = ()
    declared: tuple[str, ...] = ()
    model: ModelSummary | None = None
    divided_rows: bool = False
    selection: Selection | None = None
    metrics: Mapping[str, float | int | str] = field(default_factory=dict[str, float | int | str])
    account: AccountUse | None = None
    notices: tuple[str, ...] = ()
    version: str = field(default_factory=lambda: metadata.version("privopt"))
    kept: KeptReleases | None = None

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
        from privopt.planning.notices import NO_RELEASES
        from privopt.report.words import titled

        plan, transcript = result.plan, result.transcript
        paid_by = transcript.paid_by
        if plan is not None:
            delta = plan.budget.delta
        if title is None:
            solver = "" if plan is None else f" ({plan.solver})"
            title = ("Private optimization" if model is None else titled(model.name)) + solver
        notices = (
            *(() if transcript.releases else (NO_RELEASES,)),
            *warnings_in(result.findings),
            *((NO_PLAN,) if plan is None else plan.notices),
            *extra_notices,
        )
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
            notices=tuple(dict.fromkeys(notices)),
            kept=KeptReleases.of(transcript, result.recipe),
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
        """Whether the guarantee holds: noise was on and secret, and nothing beside the fit saw the data unpaid."""
        return self.is_noised and (self.selection is None or self.selection.private)

    @property
    def is_noised(self) -> bool:
        """Whether noise was on, and it was secret."""
        return math.isfinite(self.epsilon) and not self.seeded

    @property
    def single_near(self) -> float | None:
        """About the epsilon of one of many releases: a bound for the grid of the numerical accountant."""
        return None if self._near is None else self._near / max(1.0, math.sqrt(self.count))

    @property
    def _near(self) -> float | None:
        """The epsilon that the noise was calibrated to: the same grid gives the same price."""
        return self.budget.epsilon if self.budget is not None and self.budget.is_private else None

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Everything that the templates take: the document of `to_dict`, and under "derived" what follows from it."""
        return facts.facts_of(self)

    def to_dict(self) -> dict[str, Any]:
        """Everything, as a dictionary of JSON values (infinity is the text "infinity")."""
        return json_value({name: value for name, value in self.facts.items() if name != facts.DERIVED})

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "PrivacyReport":
        """Rebuild a report from what `to_dict` gave, possibly after a trip through JSON.

        Raises:
            ValueError: the document is not a report, or of a newer format.
        """
        facts.require_format(document)

        def read(name: str, kind: Any) -> Any:
            return None if document.get(name) is None else kind(document[name])

        guarantee = document["guarantee"]
        return cls(
            title=document["title"],
            relation=Relation.parse(guarantee["relation"]),
            event=event_from_dict(document["event"]),
            delta=guarantee["delta"],
            seeded=guarantee["seeded"],
            status=document["status"],
            releases=tuple(ReleaseGroup.from_dict(group) for group in document["releases"]),
            plan=read("plan", Plan.from_dict),
            findings={name: Finding.from_dict(found) for name, found in document.get("findings", {}).items()},
            pictures=tuple(Picture.from_dict(picture) for picture in document.get("pictures", [])),
            declared=tuple(document["declared"]),
            divided_rows=document["divided_rows"],
            model=read("model", ModelSummary.from_dict),
            selection=read("selection", lambda values: Selection(**values)),
            metrics=dict(document["metrics"]),
            account=read("account", lambda values: AccountUse(**values)),
            notices=tuple(document["notices"]),
            version=document["privopt"],
            kept=read("replay", KeptReleases),
        )

    def to_json(self) -> str:
        """The report as JSON text."""
        return facts.json_text(self.to_dict())

    def to_html(self) -> str:
        """The report as one self-contained page."""
        return combined_html([self], self.title)

    def to_markdown(self) -> str:
        """The report as Markdown, without its figures."""
        return combined_markdown([self], self.title)

    def save(self, path: str | Path, *, keep_releases: bool = False) -> Path:
        """Write the report; the suffix chooses the form.

        Args:
            path: ends in ".html", ".md" or ".json".
            keep_releases: whether to write the released values as well, to `NAME.releases.safetensors` beside
                `NAME.json`: `privopt verify` then replays the run. Of one that is not private, noise from a seed or an
                infinite epsilon, they show exact sums of the data, or lead to them.
        Returns:
            The path.
        Raises:
            ValueError: any other suffix, or there are no released values to keep.
        """
        path = Path(path)
        form = facts.form_of(path)
        if keep_releases:
            self.save_releases(releases_beside(path))
        write = {"html": self.to_html, "json": self.to_json, "markdown": self.to_markdown}[form]
        path.write_text(write(), encoding="utf-8")
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

    def rows(self) -> list[tuple[str, str]]:
        """What a terminal or a notebook shows, as labelled sentences."""
        return forms.rows("lines.j2", "lines", self.facts)

    def __str__(self) -> str:
        """The report as text of at most `TERMINAL_WIDTH` columns."""
        lines = [self.title]
        lines += [f"  *** {title} ***" for title, _ in forms.entries("terminal", "banners", self.facts)]
        for label, text in self.rows():
            lines += textwrap.wrap(
                text,
                TERMINAL_WIDTH,
                initial_indent=f"  {label:<13} ",
                subsequent_indent=" " * 16,
                break_on_hyphens=False,
            )
        return printable_lines("\n".join(lines))

    def _repr_html_(self) -> str:
        warnings = [title for title, _ in forms.entries("terminal", "banners", self.facts)]
        return card(self.title, self.rows(), warnings=warnings)


def releases_beside(path: Path) -> Path:
    """Where the released values of a report stand."""
    return path.with_name(f"{path.stem}.{RELEASES_FILE}")


def _without_arrays(found: Finding) -> Finding:
    """A finding whose value is a number or words: a report shows no list of released numbers but the model."""
    value = plain(found.value)
    return Finding(described_array(value) or value, found.meaning)
