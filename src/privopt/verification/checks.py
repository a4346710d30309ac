"""What comes of one check, and how an accountant's answer becomes one."""

import enum
import math
from dataclasses import dataclass

from privopt.verification.price import NotChecked, Price, price, vouched_epsilon
from privopt.verification.tree import Fields

NOISE = "noise"  # the subject of the check of every scale
REPLAY = "replay"  # the subject of the check that a replay makes
CLOSE = 1e-9  # two computations of one number, in floating point


class Outcome(enum.Enum):
    """How a check ended."""

    HOLDS = "holds"
    FAILS = "fails"
    UNCHECKED = "not checked"


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        subject: what was looked at, in one or two words.
        outcome: how it ended.
        sentence: what was found.
    """

    subject: str
    outcome: Outcome
    sentence: str


def held(subject: str, holds: bool, right: str, wrong: str) -> Check:
    """A check that holds or fails, with a sentence for either."""
    return Check(subject, Outcome.HOLDS if holds else Outcome.FAILS, right if holds else wrong)


def unreplayed(reason: str) -> Check:
    """That nothing was replayed, and why: a sentence without a full stop."""
    return Check(REPLAY, Outcome.UNCHECKED, f"nothing was replayed: {reason}")


def priced(subject: str, event: Fields, relation: str, epsilon: float, delta: float) -> Check:
    """Hold a claimed price against the second accountant."""
    claim = f"({epsilon:.6g}, {delta:.4g})"
    try:
        found = price(event, relation, epsilon, delta)
        if _covered(found, epsilon, delta):
            return Check(subject, Outcome.HOLDS, f"{claim} holds by {found.how}")
        if found.least > delta * (1 + 1e-6):
            reason = f"at epsilon {epsilon:.6g} no delta below {found.least:.4g} can hold"
            return Check(subject, Outcome.FAILS, f"{claim} is wrong: {reason}")
        vouched = vouched_epsilon(event, relation, epsilon, delta)
    except NotChecked as error:
        return Check(subject, Outcome.UNCHECKED, f"{claim} was not priced a second time: {error}")
    more = "no epsilon" if math.isinf(vouched) else f"epsilon {vouched:.4g}"
    close = vouched <= 1.02 * epsilon
    sentence = (
        f"{claim} is not confirmed: the second accountant vouches for {more} at this delta ({found.how})"
    )
    return Check(subject, Outcome.UNCHECKED if close else Outcome.FAILS, sentence)


def _covered(found: Price, epsilon: float, delta: float) -> bool:
    # A delta moves by e^epsilon-fold factors: one rounding of epsilon is allowed for.
    return found.delta <= delta * (1 + 1e-6 * (1 + epsilon))
