"""What a solve gives back: public things only."""

import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from privopt.curator.transcript import Transcript
from privopt.later import jax
from privopt.notebook import card
from privopt.planning.improvement import Evidence
from privopt.planning.plan import Finding, Picture, Plan, figure, in_sentences, own_lines, warnings_in
from privopt.report.kept import Recipe
from privopt.report.report import PrivacyReport
from privopt.status import Status

NOTHING: Mapping[str, Finding] = {}


class Outcome(NamedTuple):
    """What a solver's program ends with; all of it is arithmetic on releases.

    Attributes:
        params: the parameters.
        status: how the run ended.
        findings: by name, what the releases show about the result, such as a bound on its gradient.
        pictures: of released or public numbers, for the report.
        evidence: what the released gradients say together, in the coordinates of the run; None of most solvers.
    """

    params: Any
    status: Status
    findings: Mapping[str, Finding] = NOTHING
    pictures: tuple[Picture, ...] = ()
    evidence: Evidence | None = None


class Result(NamedTuple):
    """The outcome of a solve.

    Attributes:
        params: the released parameters, an array of NumPy; a pytree of arrays of JAX if the problem was given one.
        status: how the solve ended.
        transcript: every release in order; `transcript.epsilon(delta)` is the price if the releases
            were fixed beforehand or paid for by a filter.
        plan: what was announced before the data was read; None when a solver was run by hand.
        findings: by name, what the releases show about the result; see `Outcome`.
        pictures: likewise.
        recipe: what the solver was given, for a replay; None where it was run by hand.
        kept: where rows were kept that were read from the files of a table, in a sentence.
        declared: what the caller declared to be public, in sentences.
    """

    params: Any
    status: Status
    transcript: Transcript
    plan: Plan | None = None
    findings: Mapping[str, Finding] = NOTHING
    pictures: tuple[Picture, ...] = ()
    recipe: Recipe | None = None
    kept: str | None = None
    declared: tuple[str, ...] = ()

    @classmethod
    def of(cls, outcome: Outcome, transcript: Transcript) -> "Result":
        """The result of a program that ran to its end."""
        return cls(
            outcome.params,
            outcome.status,
            transcript,
            findings=outcome.findings,
            pictures=outcome.pictures,
        )

    def __repr__(self) -> str:
        lines = [f"  {label}: {textwrap.shorten(text, 100)}" for label, text in self._rows()]
        return "\n".join(["Result(", *lines, ")"])

    def _repr_html_(self) -> str:
        return card("Result", self._rows())

    def _rows(self) -> list[tuple[str, str]]:
        """What there is, as labelled sentences; parameters and findings by their sizes."""
        leaves = [np.shape(leaf) for leaf in jax.tree.leaves(self.params)]
        shapes = ", ".join(" x ".join(map(str, shape)) or "1" for shape in leaves[:4])
        more = f" and {len(leaves) - 4} more arrays" if len(leaves) > 4 else ""
        rows = [
            ("params", f"{shapes}{more} released numbers"),
            ("status", self.status.value),
        ]
        if self.plan is not None:
            rows.append(("plan", self.plan.headline))
        noise = "; the noise came from a seed: NOT PRIVATE" if self.transcript.seeded else ""
        rows.append(("transcript", f"{self.transcript.releases:,} releases{noise}"))
        rows += own_lines(self.findings)
        rows += [("notice", sentence) for sentence in warnings_in(self.findings)]
        others = {name: found for name, found in self.findings.items() if not in_sentences(name)}
        if others:
            found = (f"{name.replace('_', ' ')} {figure(one.value)}" for name, one in others.items())
            rows.append(("findings", ", ".join(found)))
        return [*rows, ("more", "`.report` says in words what was protected, and at what price")]

    @property
    def report(self) -> PrivacyReport:
        """The privacy report, in words; see `privopt.report`."""
        return PrivacyReport.of(self, declared=self.declared)


def ending(finite: Any) -> Status:
    """The status of a run of planned steps, from whether every iterate was finite (a released quantity)."""
    return Status.FINISHED if bool(finite) else Status.DIVERGED
