"""What a report tells of a run: the facts, before there is any sentence, figure or page."""

import abc
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from typing import Any, Protocol

from privopt.curator.transcript import Transcript
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Event
from privopt.planning.picture import Picture
from privopt.planning.plan import Finding, Plan
from privopt.public import Relation
from privopt.report.account_use import AccountUse
from privopt.report.curve import PrivacyCurve, privacy_curve
from privopt.report.kept import KeptReleases, Recipe
from privopt.report.model import ModelSummary
from privopt.report.releases import ReleaseGroup
from privopt.status import Status

PREPROCESSING = "Preprocessing not private"  # how the sentence on it begins


class Finished(Protocol):
    """A finished run, as far as a report reads it; `privopt.result.Result` is one."""

    @property
    def params(self) -> Any:
        """The released parameters."""
        ...

    @property
    def status(self) -> Status:
        """How the run ended."""
        ...

    @property
    def transcript(self) -> Transcript:
        """Every release in order."""
        ...

    @property
    def plan(self) -> Plan | None:
        """What was announced before the data was read; None for a run by hand."""
        ...

    @property
    def kept(self) -> str | None:
        """Where rows were kept that were read from files, in a sentence; None for another run."""
        ...

    @property
    def findings(self) -> Mapping[str, Finding]:
        """By name, what the releases show about the result."""
        ...

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """Of released or public numbers."""
        ...

    @property
    def recipe(self) -> Recipe | None:
        """What the solver was given, for a replay."""
        ...


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
class ReportFacts(abc.ABC):
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

    @abc.abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Everything, as a dictionary of JSON values (infinity is the text "infinity")."""

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
