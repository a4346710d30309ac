"""What a report tells of a run: the facts, before there is any sentence, figure or page."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeVar

from privopt.errors import NotPriceable
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.events import DeltaEvent, Event, GaussianEvent, leaf_counts
from privopt.planning.plan import IMPROVEMENT_SHARE, USABLE, Finding, Picture, Plan, warnings_in
from privopt.public import Relation
from privopt.report.kept import KeptReleases
from privopt.report.model import AccountUse, ModelSummary
from privopt.report.releases import ReleaseGroup

# ---- The whole epsilon(delta) curve of a run, and what it means for somebody who tries to guess ------------


Leaf = TypeVar("Leaf", bound=Event)
_DENSE_POINTS = 81
# For costly curves: a few around the target, which bound the surprise, and large ones, which bound the best guess.
_MULTIPLES = (1 / 30, 1.0, 3.0, 10.0, 40.0)
_LARGE = (1e-3, 0.01, 0.02, 0.03, 0.045, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.25, 0.35)
_SMALLEST = 1.5e-10  # numerical accounting ends at 1e-10


@dataclass(frozen=True)
class PrivacyCurve:
    """Points at which a run is (epsilon, delta)-private, in order of growing delta.

    Attributes:
        deltas: from small to large.
        epsilons: the price at each, falling.
        exact: whether the curve is dense and exact (Gaussian releases only) or a few computed bounds.
    """

    deltas: tuple[float, ...]
    epsilons: tuple[float, ...]
    exact: bool

    @property
    def best_guess(self) -> float:
        """How often the best guess between two neighbouring data sets, 50:50 beforehand, is right at most.

        Every (epsilon, delta) bounds it by (e^epsilon + delta) / (1 + e^epsilon); the least of these is the answer.

        Source:
            Kairouz, Oh, Viswanath 2015, theorem 2.1 (both error rates), added up.
        """
        bounds = [sure(e) + d * sure(-e) for d, e in zip(self.deltas, self.epsilons, strict=True)]
        return min([1.0, *bounds])

    def surprise(self, epsilon: float) -> float:
        """Probability, at most, that the privacy loss exceeds `epsilon`: that odds shift by more than e^epsilon.

        delta(e) is the expectation of (1 - exp(e - loss)) over losses above e, so
        P[loss > epsilon] <= delta(e) / (1 - exp(e - epsilon)) for every e < epsilon.
        """
        pairs = zip(self.deltas, self.epsilons, strict=True)
        bounds = [delta / -math.expm1(lower - epsilon) for delta, lower in pairs if lower < epsilon]
        return min([1.0, *bounds])


def privacy_curve(event: Event, relation: Relation, delta: float, near: float | None) -> PrivacyCurve:
    """Price a run at many deltas: densely where that is free, else at a few points of one numerical curve.

    Args:
        event: everything that was released.
        relation: the neighbouring relation.
        delta: the delta of the guarantee; it is one of the points.
        near: about the epsilon to expect there; the grid of the numerical accountant.
    """
    leaves, parallels = leaf_counts(event)
    exact = not parallels and all(isinstance(leaf, GaussianEvent | DeltaEvent) for leaf in leaves)
    target = delta if delta > 0 else 1e-6
    if exact:
        lowest = math.log10(min(1e-12, target / 1e3))
        highest = math.log10(0.5)
        steps = range(_DENSE_POINTS)
        grid = [10 ** (lowest + (highest - lowest) * step / (_DENSE_POINTS - 1)) for step in steps]
    else:
        around = [multiple * target for multiple in _MULTIPLES if multiple * target < _LARGE[0]]
        grid = [at for at in (*around, *_LARGE) if at >= min(_SMALLEST, target)]
    wanted = sorted({*grid, target})
    points: list[tuple[float, float]] = []
    for at in wanted:
        try:
            points.append((at, accounting.epsilon(event, at, relation, near=near)))
        except NotPriceable:  # a delta too small for this accountant; the target itself was priced before
            continue
    if exact:
        points.append((accounting.delta(event, 0.0, relation), 0.0))
    points.sort()
    finite = [(at, price) for at, price in points if math.isfinite(price)]
    finite = finite[: 1 + sum(price > 0 for _, price in finite)]  # one point at epsilon = 0 says it all
    return PrivacyCurve(tuple(at for at, _ in finite), tuple(price for _, price in finite), exact)


def sure(epsilon: float) -> float:
    """How sure somebody becomes who was undecided and sees the odds shift by e^epsilon."""
    return 1 / (1 + math.exp(-epsilon)) if epsilon > -700 else 0.0


# ---- What a report tells of a run: the facts, before there is any sentence, figure or page -----------------


PREPROCESSING = "Preprocessing not private"  # how the sentence on it begins


@dataclass(frozen=True, kw_only=True)
class Selection:
    """How the model was chosen among several.

    Attributes:
        sentence: what was done, for the reader.
        private: whether the choice was made by a charged mechanism, on features that no unpaid step learned.
    """

    sentence: str
    private: bool

    @property
    def title(self) -> str:
        """What was not private, in a few words."""
        return PREPROCESSING if self.sentence.startswith(PREPROCESSING) else "Selection not private"


@dataclass(frozen=True, kw_only=True)
class ReportFacts:
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

    def leaves(self, kind: type[Leaf]) -> list[tuple[Leaf, int]]:
        """The single events of a kind among all that the releases cost, and how often each."""
        return [
            (leaf, count * times)
            for group in self.releases
            for event, count in group.events
            for leaf, times in leaf_counts(event)[0].items()
            if isinstance(leaf, kind)
        ]

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


# ---- Sentences of a report on the records and on the model, as far as the released values tell -------------


HEADINGS = {USABLE: "Usable records.", IMPROVEMENT_SHARE: "Model quality."}
LEADS = {USABLE: "", IMPROVEMENT_SHARE: "By the released values, at no further price: "}


def paragraphs(report: ReportFacts) -> list[tuple[str, str]]:
    """Headings and sentences: what to check first, then the usable records and the quality of the model."""
    told = [
        (HEADINGS[name], f"{LEADS[name]}{report.findings[name].meaning}.")
        for name in HEADINGS
        if name in report.findings
    ]
    checks = [
        ("Please check.", sentence[:1].upper() + sentence[1:]) for sentence in warnings_in(report.findings)
    ]
    return [*checks, *told]


# ---- The two forms a report is written in: a page for people, JSON for programs ----------------------------


FORMAT = "privopt-report"
FORMAT_VERSION = 2
READ_VERSIONS = (1, 2)
MOST = {
    "pictures": 24,
    "releases": 10_000,
    "findings": 500,
    "summary": 100,
    "declared": 1000,
}  # of each, in a report
MOST_POINTS = 1000  # of a line in a picture


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
    raise ValueError(
        f"a report is written as .html or .json, got the file name {path.name!r}: end it in one of the two."
    )


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
