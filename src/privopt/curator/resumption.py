"""How one run goes on from its journal: whether it may, whether it is the same run, and what was paid for it."""

import dataclasses
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from privopt.curator.cuts import Assigned, Cuts
from privopt.curator.digests import digest
from privopt.curator.journal import Journal
from privopt.curator.journals import (
    DATA,
    account_named,
    asked,
    journals,
    require_named,
    require_same,
    versions,
)
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
        key: random letters that name the run to the account, on disk before it pays: whatever the run is stopped in,
            it is paid for once.
        payment: the number of the payment that was made for the run, before it was stopped; None for none.
    """

    def __init__(self, journal: Journal, account: Account | None) -> None:
        self._journal, self._account = journal, account
        self._cuts = Cuts(journal)
        self.key = ""
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
        of: Mapping[str, Any] | None,
        seeded: bool,
        exact: bool,
        origin: str,
    ) -> "Resumption | None":
        """The resumption of a run in this context; None where nobody asked for one. Nothing is paid or read.

        Args:
            name: what the account calls the run.
            event: everything that it will release.
            budget: what that may cost.
            public: what is public about the units.
            account: that pays; None for none.
            of: what it solves and how, by name: public values, compared by their digests; None for a run that cannot
                be resumed.
            seeded: whether its randomness comes from a seed.
            exact: whether its noise is exact.
            origin: what its records are read from, if that is known yet; empty for arrays.
        Raises:
            ArgumentError: it cannot be resumed, or the journal is that of another run.
            AccountError: the account has counted lines of this run that are not in the journal.
        """
        kept = journals()
        if kept is None:
            return None
        if of is None:
            raise refusal("holds points of units")
        if seeded:
            raise ArgumentError(
                "a run from a seed cannot be resumed: the same noise would be drawn again. Leave out random_state."
            )
        require_named(kept, account, origin)
        solved = {what: digest(value) for what, value in of.items()}
        terms = {
            **versions(),
            "account": account_named(account),
            DATA: kept.data,
            "epsilon": float(budget.epsilon),
            "delta": float(budget.delta),
            "kind of noise": "exact" if exact else "float",
            **{one.name: repr(getattr(public, one.name)) for one in dataclasses.fields(public)},
        }
        released = {"run": name, "event": json_value(event.to_dict())}
        resumption = cls(kept.next(), account)
        resumption._begin(terms, solved, released)
        line = resumption._journal.next()
        if line is not None:
            resumption.payment = resumption._checked(line.header)
            require_named(kept, account, origin, resumption.key)
        if account is not None:
            resumption._journal.follow(account.claim(resumption.key), paid=account.has_paid(resumption.key))
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
        told = {"files, or what is read of them": data.origin}
        line = self._journal.next()
        if line is None:
            self._journal.add(told, _NOTHING)
        else:
            require_same(self._journal.path, told, line.header)
        return partial(_made, self._journal, self._cuts)

    def cut(self, data: Units | Engine, sizes: Sequence[int]) -> Assigned:
        """The units in disjoint parts, at random, see `Cuts.assigned`."""
        return self._cuts.assigned(
            data.public,
            sizes,
            origin=data.origin,
            laid_out=data.laid_out,
            in_order=False,
            private_count=data.private_count,
        )

    def end(self) -> None:
        """All was released: what was kept for what was still to come is deleted, and the journal is closed."""
        self._cuts.forget()
        self._journal.close()

    def _begin(self, terms: dict[str, Any], solved: dict[str, str], released: dict[str, Any]) -> None:
        """Compare the first line with what is asked for, naming the cause before what follows from it; or write it."""
        line = self._journal.next()
        if line is None:
            self.key = secrets.token_hex(16)
            stated = {"id": self.key, **terms, "arguments": dict(asked()), "solved": solved, **released}
            self._journal.add(stated, _NOTHING)
            return
        path, stated = self._journal.path, line.header
        self.key = stated.get("id", "")
        require_same(path, terms, stated)
        require_same(path, asked(), stated["arguments"])
        require_same(path, solved, stated["solved"])
        require_same(path, released, stated)

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


def _made(journal: Journal, cuts: Cuts, *arguments: Any, **named: Any) -> LocalCurator:
    curator = ResumedCurator(*arguments, **named)
    curator.journal, curator.cuts = journal, cuts
    return curator
