"""A statement of an account: what every payment cost and left, as numbers that may be shown to anybody.

Nothing in it comes from data. What is left is told twice: as a share of the budget in the account's currency, in which
payments add up, and as the epsilon of the largest fit that it still pays for.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, time
from functools import cached_property

from privopt.errors import ArgumentError
from privopt.ledger.account_file import AccountFile
from privopt.ledger.events import NoEvent
from privopt.ledger.filters import Cost, filter_cap, largest_payable, largest_payables, sum_of_costs
from privopt.ledger.payments import Payment, Terms


@dataclass(frozen=True, kw_only=True)
class Line:
    """One payment.

    Attributes:
        payment: what was paid.
        used: the share of the budget that it and all before it used, at most 1 but for rounding.
        rest: what is left after it.
        left_delta: the delta of one more fit: the account's, of which under basic composition what was paid is gone.
        terms: of the account.
    """

    payment: Payment
    used: float
    rest: Cost
    left_delta: float
    terms: Terms

    @cached_property
    def left(self) -> float:
        """The largest epsilon of one more fit that what is left after it pays for: a search; see `Statement.lefts`."""
        return largest_payable(self.terms.composition, self.rest, self.terms.budget.delta)

    @property
    def is_mark(self) -> bool:
        """Whether it only says that a seed was used, and pays for nothing."""
        return isinstance(self.payment.event, NoEvent)


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What an account's file says.

    Attributes:
        terms: what its owner set.
        unit: "record" or "user", once it is known.
        lines: the payments, in order.
        earlier: whether later payments were left out.
    """

    terms: Terms
    unit: str | None
    lines: tuple[Line, ...]
    earlier: bool = False

    @classmethod
    def of(cls, file: AccountFile, *, as_of: str | None = None, last: int | None = None) -> "Statement":
        """The statement of an account's file, its counters unasked.

        Args:
            file: the account's.
            last: number of the last payment to show; default: all of them.
            as_of: a date or a time (ISO 8601; UTC unless it says otherwise): up to the last payment of then. Clocks may
                jump; what was paid before a payment that is shown is always shown.
        Raises:
            ArgumentError: `as_of` is no time.
            AccountError: the file cannot be read, or was changed.
        """
        payments = file.payments()[:last]
        shown = payments if as_of is None else _until(payments, moment(as_of))
        return cls(
            terms=file.terms,
            unit=file.unit_of(shown),
            lines=_lines(file.terms, shown),
            earlier=len(shown) < len(payments),
        )

    def lefts(self) -> list[float]:
        """What `Line.left` says of every line, found in one search."""
        rests = [line.rest for line in self.lines]
        return largest_payables(self.terms.composition, rests, self.terms.budget.delta)

    @property
    def used(self) -> float:
        """The share of the budget that is used."""
        return self.lines[-1].used if self.lines else 0.0

    @property
    def left(self) -> float:
        """The largest epsilon, at the account's delta, of one more fit that the account pays for."""
        if self.lines:
            return self.lines[-1].left
        terms = self.terms
        cap = filter_cap(terms.composition, terms.budget, terms.bad_event_delta)
        return largest_payable(terms.composition, cap, terms.budget.delta)

    @property
    def left_delta(self) -> float:
        """The delta of that fit."""
        return self.lines[-1].left_delta if self.lines else self.terms.budget.delta

    @property
    def fits(self) -> int:
        """How many payments were made, marks of seeds left out."""
        return sum(not line.is_mark for line in self.lines)

    @property
    def seeded(self) -> bool:
        """Whether something that was paid rests on a seed, so that nothing here is private."""
        return any(line.payment.seeded for line in self.lines)


def moment(text: str) -> datetime:
    """A date or time; a date stands for its end.

    Raises:
        ArgumentError: it is neither.
    """
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise ArgumentError(f"a time must look like 2026-11-23 or 2026-11-23T14:30, got {text!r}.") from None
    if len(text.strip()) <= len("2026-11-23"):
        found = datetime.combine(found.date(), time.max)
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def _until(payments: tuple[Payment, ...], latest: datetime) -> tuple[Payment, ...]:
    by_then = [payment.number for payment in payments if datetime.fromisoformat(payment.time) <= latest]
    return payments[: max(by_then, default=0)]


def _lines(terms: Terms, payments: Iterable[Payment]) -> tuple[Line, ...]:
    cap, spent = filter_cap(terms.composition, terms.budget, terms.bad_event_delta), Cost(0.0)
    lines: list[Line] = []
    for payment in payments:
        spent = sum_of_costs((spent, payment.cost))
        rest = Cost(max(0.0, cap.amount - spent.amount))
        shares = [spent.amount / cap.amount, *([spent.delta / cap.delta] if cap.delta > 0 else [])]
        is_basic = terms.composition == "basic"
        delta = max(0.0, cap.delta - spent.delta) if is_basic else terms.budget.delta
        lines.append(Line(payment=payment, used=max(shares), rest=rest, left_delta=delta, terms=terms))
    return tuple(lines)
