"""What a solve gives back: public things only."""

import enum
from collections.abc import Mapping
from typing import Any, NamedTuple

from privopt.curator.transcript import Transcript
from privopt.planning.plan import Finding, Plan


class Status(enum.Enum):
    """How a solve ended, in a sentence."""

    FINISHED = "The planned steps were all taken."
    BUDGET_SPENT = "The budget was spent; the last affordable iterate is returned."
    DIVERGED = "An iterate was not finite; the last finite average is returned, and the whole budget counts as spent."


NOTHING: Mapping[str, Finding] = {}


class Outcome(NamedTuple):
    """What a solver's program ends with; all of it is arithmetic on releases.

    Attributes:
        params: the parameters.
        status: how the run ended.
        findings: by name, what the releases show about the result, such as a bound on its gradient.
    """

    params: Any
    status: Status
    findings: Mapping[str, Finding] = NOTHING


class Result(NamedTuple):
    """The outcome of a solve.

    Attributes:
        params: the released parameters, shaped like the start; a pytree if the problem was given one.
        status: how the solve ended.
        transcript: every release in order; `transcript.epsilon(delta)` is the price if the releases
            were fixed beforehand or paid for by a filter.
        plan: what was announced before the data was read; None when a solver was run by hand.
        findings: by name, what the releases show about the result; see `Outcome`.
    """

    params: Any
    status: Status
    transcript: Transcript
    plan: Plan | None = None
    findings: Mapping[str, Finding] = NOTHING

    @property
    def report(self) -> Any:
        """The privacy report, in words; see `privopt.report`."""
        from privopt.report.report import PrivacyReport  # late: a result is data, a report draws figures

        return PrivacyReport.of(self)


def ending(finite: Any) -> Status:
    """The status of a run of planned steps, from whether every iterate was finite (a released quantity)."""
    return Status.FINISHED if bool(finite) else Status.DIVERGED
