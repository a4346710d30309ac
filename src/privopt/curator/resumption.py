"""How one run goes on from its journal: whether it may, whether it is the same run, and what was paid for it."""

from collections.abc import Callable
from functools import partial
from importlib import metadata
from typing import Any

import numpy as np

from privopt.curator.journal import FORMAT, Journal, journals
from privopt.curator.local import LocalCurator
from privopt.curator.resumed import ResumedCurator, refusal
from privopt.data.units import Units
from privopt.engine.protocol import Engine
from privopt.errors import AccountError, ArgumentError
from privopt.json_values import json_value
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Event
from privopt.public import Public

_NOTHING = np.zeros(0)


class Resumption:
    """One run's journal.

    Attributes:
        payment: the number of the payment that was made for the run, before it was stopped; None for none.
    """

    def __init__(self, journal: Journal, account: Account | None) -> None:
        self._journal, self._account = journal, account
        self.payment: int | None = None

    @classmethod
    def here(
        cls,
        name: str,
        event: Event,
        budget: Budget,
        public: Public,
        account: Account | None,
        *,
        resumes: bool,
        seeded: bool,
        exact: bool,
    ) -> "Resumption | None":
        """The resumption of a run in this context; None where nobody asked for one. Nothing is paid or read.

        Args:
            name: what the account calls the run.
            event: everything that it will release.
            budget: what that may cost.
            public: what is public about the units.
            account: that pays; None for none.
            resumes: whether such runs can be resumed at all.
            seeded: whether its randomness comes from a seed.
            exact: whether its noise is exact.
        Raises:
            ArgumentError: it cannot be resumed, or the journal is that of another run.
        """
        kept = journals()
        if kept is None:
            return None
        if not resumes:
            raise refusal("is neither a fit nor a solve of one problem")
        if seeded:
            raise ArgumentError(
                "a run from a seed cannot be resumed: the same noise would be drawn again. Leave out random_state."
            )
        asked = {
            "format": FORMAT,
            "privopt": metadata.version("privopt"),
            "run": name,
            "event": json_value(event.to_dict()),
            "budget": [float(budget.epsilon), float(budget.delta)],
            "public": repr(public),
            "exact": exact,
            "account": None if account is None or account.file is None else account.name,
        }
        resumption = cls(kept.next(), account)
        resumption._same("run", asked)
        line = resumption._journal.next()
        if line is not None:
            resumption.payment = resumption._checked(line.header)
        return resumption

    def note_payment(self, number: int | None) -> None:
        """Write down that the run is paid for; without an account in a file there is nothing to find again."""
        if len(self._journal.lines) > 1:
            return
        mark = None if number is None else self._hash_of(number)
        self._journal.add({"paid": number, "hash": mark}, _NOTHING)

    def curator(self, data: Units | Engine) -> Callable[..., LocalCurator]:
        """What makes curators of this run.

        Raises:
            ArgumentError: the units were chosen from a seed, or were read from other files than before.
        """
        if data.seeded:
            raise ArgumentError(
                "units whose records were chosen from a seed cannot be used in a resumed run."
            )
        self._same("data", {"origin": data.origin})
        return partial(_made, self._journal)

    def _same(self, what: str, asked: dict[str, Any]) -> None:
        """Compare the next line with what is asked for, or write it."""
        line = self._journal.next()
        if line is None:
            self._journal.add({"of": what, **asked}, _NOTHING)
            return
        stated = {name: line.header.get(name) for name in ("of", *asked)}
        different = [name for name, value in {"of": what, **asked}.items() if stated[name] != value]
        if different:
            raise ArgumentError(
                f"{str(self._journal.path)!r} belongs to another run: it differs in its {different[0]}. Start the "
                "program that was stopped, on the same files, or give a folder of its own."
            )

    def _checked(self, header: Any) -> int | None:
        """The number of the payment, which must stand in the account still."""
        number = header.get("paid")
        if number is not None and self._hash_of(number) != header.get("hash"):
            raise AccountError(
                f"payment {number} of the account is not the one that was made for this run: the account's file was "
                "restored, or is another one. Nothing was read."
            )
        return number

    def _hash_of(self, number: int) -> str | None:
        """The hash of a payment's row."""
        if self._account is None or self._account.file is None:
            return None
        payments = self._account.file.payments()
        return payments[number - 1].hash if 0 < number <= len(payments) else None


def _made(journal: Journal, *arguments: Any, **named: Any) -> LocalCurator:
    curator = ResumedCurator(*arguments, **named)
    curator.journal = journal
    return curator
