"""What a report says of the account that paid for its run: public numbers, none of which comes from data."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from privopt.ledger.statement import Statement
from privopt.planning.picture import Picture, line
from privopt.report import words


@dataclass(frozen=True, kw_only=True)
class AccountUse:
    """A run's payment, as it stood when it was made; what was paid later is not in it.

    Attributes:
        data_set: the owner's name of the data.
        payment: its number in the account.
        epsilon: of the account, for all fits together.
        delta: likewise.
        used: the share of the account's budget that this run used.
        remaining: the share that it left.
        left: the largest epsilon of one more fit that this pays for, see `largest_payable`.
    """

    data_set: str
    payment: int
    epsilon: float
    delta: float
    used: float
    remaining: float
    left: float

    @classmethod
    def of(cls, statement: Statement) -> "AccountUse":
        """The last payment of a statement."""
        last, before = statement.lines[-1], statement.lines[:-1]
        used = before[-1].used if before else 0.0
        return cls(
            data_set=statement.terms.data_set,
            payment=last.payment.number,
            epsilon=statement.terms.budget.epsilon,
            delta=statement.terms.budget.delta,
            used=last.used - used,
            remaining=max(0.0, 1 - last.used),
            left=last.left,
        )

    def in_words(self) -> str:
        """A sentence."""
        return (
            f"payment {self.payment} of the account of {self.data_set!r}, which keeps epsilon "
            f"{words.number(self.epsilon)} at delta {words.number(self.delta, 3)} for all fits together: it used "
            f"{words.percent(self.used)} of that budget and left {words.percent(self.remaining)}, enough for one more "
            f"fit of epsilon {words.at_most(self.left)}"
        )


_TITLE = "What is left in the account"
_X, _Y = "payments", "share of the budget"


def _caption(data_set: str) -> str:
    return (
        f"The share of the budget of {data_set!r} that each payment left; the last one is this run's. Nothing here was "
        "computed from the data."
    )


def is_burn_down(picture: Any, account: Mapping[str, Any]) -> bool:
    """Whether JSON values are such a picture as `burn_down` draws, and end at what the account had left.

    Args:
        picture: the values.
        account: those of an `AccountUse`.
    """
    try:
        found = Picture.from_dict(picture)
        (series,) = found.series
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return False
    words = {"title": _TITLE, "caption": _caption(str(account["data_set"])), "x": _X, "y": _Y}
    if any(getattr(found, name) != text for name, text in words.items()) or found.categories:
        return False
    falls = all(1 >= a >= b >= 0 for a, b in pairwise(series.ys))
    ends = (series.ys[-1], series.xs[-1]) == (account["remaining"], account["payment"])
    return series.name == "left" and not series.errors and falls and ends


def burn_down(statement: Statement) -> Picture:
    """What every payment left of an account's budget."""
    return Picture(
        title=_TITLE,
        caption=_caption(statement.terms.data_set),
        x=_X,
        y=_Y,
        series=(
            line(
                "left",
                [1.0, *(max(0.0, 1 - one.used) for one in statement.lines)],
                [0, *(one.payment.number for one in statement.lines)],
            ),
        ),
    )
