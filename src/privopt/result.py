"""What a solve gives back: public things only."""

import enum
from typing import Any, NamedTuple

from privopt.plans import Plan
from privopt.transcript import Transcript


class Status(enum.Enum):
    """How a solve ended, in a sentence."""

    FINISHED = "The planned steps were all taken."
    BUDGET_SPENT = "The budget was spent; the last affordable iterate is returned."
    DIVERGED = "An iterate was not finite; the last finite average is returned, and the whole budget counts as spent."


class Result(NamedTuple):
    """The outcome of a solve.

    Attributes:
        params: the released parameters, shaped like the start; a pytree if the problem was given one.
        status: how the solve ended.
        transcript: every release in order; `transcript.epsilon(delta)` is the price.
        plan: what was announced before the data was read; None when a solver was run by hand.
    """

    params: Any
    status: Status
    transcript: Transcript
    plan: Plan | None = None

    @property
    def report(self) -> Any:
        """The privacy report, in words; see `privopt.report`."""
        from privopt.report.report import PrivacyReport  # late: a result is data, a report draws figures

        return PrivacyReport.of(self)


def ending(finite: Any) -> Status:
    """The status of a run of planned steps, from whether every iterate was finite (a released quantity)."""
    return Status.FINISHED if bool(finite) else Status.DIVERGED
