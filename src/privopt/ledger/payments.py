"""What an account's file holds: the terms that its owner set, and the payments, chained by hash.

A payment is hashed with the hash of the one before it, the first with that of the terms, so that no row can be changed,
taken out or put in between without changing all hashes that follow. A random number in each makes its hash its own.
"""

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from typing import Any

from privopt.errors import AccountError
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Event, event_from_dict
from privopt.ledger.filters import Composition, Cost, filter_cost, rounded_up
from privopt.public import Relation

_NONCE = 32  # letters of a random number
_SLACK = 1 + 2.0**-48  # far above the rounding of the few products and sums in a price


def now() -> str:
    """The time, in words that sort: a remark in the history on which nothing rests."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What an account keeps, and for which data.

    Attributes:
        account: a random name that no other account has.
        data_set: what the owner calls the data.
        budget: what all fits together may spend.
        relation: the neighbouring relation of every fit.
        composition: the currency.
        bad_event_delta: the part of delta that is set aside for bad events and rounding.
        unit: "record" or "user" where the owner fixed it; else the first fit does.
        counted_elsewhere: whether a counter besides the one beside the file must agree.
        opened: when it was opened.
        counter_folder: where that counter is, if it is a folder.
    """

    account: str
    data_set: str
    budget: Budget
    relation: Relation
    composition: Composition
    bad_event_delta: float
    unit: str | None
    counted_elsewhere: bool
    opened: str
    counter_folder: str | None = None

    def to_json(self) -> str:
        """One line of JSON."""
        values = {**asdict(self), "relation": self.relation.value}
        if self.counter_folder is None:  # as in files that were written before there were such folders
            del values["counter_folder"]
        return json.dumps(values, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Terms":
        """The terms that `to_json` wrote.

        Raises:
            AccountError: the text is something else.
        """
        try:
            values = json.loads(text)
            budget, relation = Budget(**values.pop("budget")), Relation.parse(values.pop("relation"))
            return cls(budget=budget, relation=relation, **values)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise AccountError("the terms of the account cannot be read: privopt wrote others.") from None

    @cached_property
    def hash(self) -> str:
        """What the first payment is chained to."""
        return _hash(self.to_json())


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What an account is asked to pay for, see `Account.spend`."""

    name: str
    event: Event
    epsilon: float = 0.0
    delta: float = 0.0
    unit: str | None = None
    seeded: bool = False
    key: str = ""

    def same_price(self, other: "Fit | Payment") -> bool:
        """Whether both are for the same event, epsilon and delta."""
        theirs = (other.event.to_dict(), other.epsilon, other.delta)
        return (self.event.to_dict(), self.epsilon, self.delta) == theirs


COLUMNS = (
    "number", "time", "name", "event", "epsilon", "delta", "amount", "amount_delta", "unit", "seeded", "nonce",
    "previous", "hash",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Payment:
    """One row of an account's file.

    Attributes:
        number: 1 for the first.
        time: what the clock said.
        name: what was paid for.
        event: everything that it may release.
        epsilon: what it was calibrated to; the price under basic composition.
        delta: likewise.
        cost: in the account's currency.
        unit: what it protects, "record" or "user"; None where it did not say.
        seeded: whether it rests on a seed.
        nonce: random letters; those of a payment that was given a key begin with it.
        hash: of all this, of a random number and of the hash of the row before, or of the terms.
    """

    number: int
    time: str
    name: str
    event: Event
    epsilon: float
    delta: float
    cost: Cost
    unit: str | None
    seeded: bool
    nonce: str
    hash: str

    @classmethod
    def from_row(cls, row: Mapping[str, Any], previous: str, terms: Terms) -> "Payment":
        """A stored row, checked against the row before it and priced anew; the dearer of both prices counts.

        Args:
            row: the values by column.
            previous: the hash of the row before.
            terms: of the account.
        Raises:
            AccountError: the row was changed, or does not follow the one before, or holds an event that this version
                does not know.
        """
        *content, stored = (row[column] for column in COLUMNS)
        if (
            row["previous"] != previous
            or any(isinstance(value, bytes) for value in content)
            or (_hash(json.dumps(content)) != stored)
        ):
            raise AccountError(
                f"payment {row['number']} of the account does not carry the hash of what stands in it and before it: "
                "the file was changed by something other than privopt."
            )
        epsilon, delta = row["epsilon"], row["delta"]
        try:
            event, again = _priced(row["event"], epsilon, delta, terms)
        except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            why = str(error) if isinstance(error, ValueError) else "its event is no event."
            raise AccountError(
                f"payment {row['number']} of the account cannot be priced by this version of privopt, perhaps because "
                f"a later one wrote it: {why}"
            ) from error
        return cls(
            number=row["number"],
            time=row["time"],
            name=row["name"],
            event=event,
            epsilon=epsilon,
            delta=delta,
            cost=Cost(max(row["amount"], again.amount), max(row["amount_delta"], again.delta)),
            unit=row["unit"],
            seeded=bool(row["seeded"]),
            nonce=row["nonce"],
            hash=stored,
        )


def payment_of(key: str, payments: Sequence[Payment]) -> Payment | None:
    """The payment that was given this key; None where none was, or for no key.

    Args:
        key: of the fit that `new_row` was given.
        payments: where it may stand.
    """
    length = len(key) + _NONCE
    of_key = (paid for paid in payments if key and len(paid.nonce) == length and paid.nonce.startswith(key))
    return next(of_key, None)


def new_row(number: int, fit: Fit, previous: str, terms: Terms) -> tuple[Any, ...]:
    """The values of the columns of a payment that is made now; its random number follows its key.

    Privacy:
        The random number tells the payments of two copies of a file apart, though they be for the same and made in the
        same second: a counter that has one of them takes it for no other, so only one of them has data read.
    Raises:
        NotPriceable: the account's currency cannot price it.
    """
    cost = price(fit.event, fit.epsilon, fit.delta, terms)
    content = (
        number, now(), fit.name, json.dumps(fit.event.to_dict(), sort_keys=True), float(fit.epsilon), float(fit.delta),
        float(cost.amount), float(cost.delta), fit.unit, int(fit.seeded), fit.key + uuid.uuid4().hex, previous,
    )  # fmt: skip
    return (*content, _hash(json.dumps(content)))


def price(event: Event, epsilon: float, delta: float, terms: Terms) -> Cost:
    """What a payment costs, rounded up: by its events, or under basic composition by what it declares.

    Raises:
        NotPriceable: the currency cannot price the events.
    """
    if terms.composition == "basic":
        return Cost(epsilon, delta)
    exact = filter_cost(terms.composition, event, terms.budget.epsilon)
    return Cost(rounded_up(exact.amount * _SLACK), rounded_up(exact.delta * _SLACK))


@lru_cache(maxsize=256)  # most payments of an account are for a fit that it has paid for before
def _priced(event: str, epsilon: float, delta: float, terms: Terms) -> tuple[Event, Cost]:
    """A stored event, and its price."""
    read = event_from_dict(json.loads(event))
    return read, price(read, epsilon, delta, terms)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()
