"""An account: one budget for several fits on the same data.

A fit is a block of releases whose events are fixed (or capped) before it begins; which fit comes next, and with what
share, may depend on everything released before. So the account is a privacy filter over whole fits, and each of them
charges its whole declared plan at once, before any data is read:

* "gaussian" and "zcdp" pay for a fit by its events;
* "basic" pays for it by its own (epsilon_i, delta_i), whatever accountant priced it inside (sampling included).
"""

import threading
from typing import Any, Never

from privopt.ledger.amounts import Budget
from privopt.ledger.entries import Charge
from privopt.ledger.events import Event
from privopt.ledger.filters import Composition, Cost, SetAside, filter_epsilon
from privopt.ledger.ledger import SEEDED, Ledger
from privopt.public import Relation


class Account:
    """A budget that several fits share; a copy of it is the same account.

    Args:
        epsilon: of all fits together.
        delta: of all fits together.
        relation: the neighbouring relation that every fit must be under.
        composition: the currency, "zcdp" (the default), "gaussian" or "basic".
        bad_event_delta: part of delta set aside for bad events and rounding of the fits.

    Examples:
        >>> from privopt.ledger.events import GaussianEvent, Repeated
        >>> account = Account(1.0, 1e-6, composition="gaussian")
        >>> account.spend("first model", Repeated(GaussianEvent(60.0), 100), 0.7, 1e-6)
        >>> round(account.remaining_epsilon(), 2)
        0.69
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        *,
        relation: Relation | str = Relation.REPLACE_ONE,
        composition: Composition = "zcdp",
        bad_event_delta: float = 0.0,
    ) -> None:
        if composition == "plan":
            raise ValueError(
                "composition must be 'gaussian', 'zcdp' or 'basic' for an account, got 'plan': fits are chosen as you "
                "go, so there is no plan of all of them."
            )
        self._ledger = Ledger(
            Budget(epsilon, delta), relation, composition=composition, bad_event_delta=bad_event_delta
        )
        self._lock = threading.Lock()
        self._unit: str | None = None

    @property
    def budget(self) -> Budget:
        """What all fits together may spend."""
        return self._ledger.budget

    @property
    def relation(self) -> Relation:
        """The neighbouring relation of every fit."""
        return self._ledger.relation

    @property
    def composition(self) -> Composition:
        """The currency that the fits are paid in."""
        return self._ledger.composition

    @property
    def entries(self) -> tuple[Charge, ...]:
        """The fits that were paid, in order."""
        return tuple(entry for entry in self._ledger.entries if isinstance(entry, Charge))

    @property
    def remaining(self) -> float:
        """What is left, in the currency: rho, or epsilon under "basic"."""
        return self._ledger.remaining

    def spend(
        self,
        name: str,
        event: Event,
        epsilon: float,
        delta: float,
        *,
        relation: Relation | str | None = None,
        unit: str | None = None,
        seeded: bool = False,
    ) -> None:
        """Pay for a fit before it reads any data, or refuse and record nothing.

        Args:
            name: the fit.
            event: its whole plan. A fit that is itself a filter is one event that holds all it may spend:
                `ZCDPEvent(rho)`, or `GaussianEvent(1 / mu)` for a Gaussian filter.
            epsilon: what the fit was calibrated to; the price under "basic".
            delta: likewise.
            relation: the fit's neighbouring relation, to be compared with the account's.
            unit: the fit's privacy unit, "record" or "user"; an account keeps the privacy of one kind.
            seeded: the fit's noise or its choice of records comes from a seed, so the account is marked as not private.

        Raises:
            BudgetExceeded: it would cost more than is left.
            NotPriceable: the account's currency cannot price it.
            ValueError: it is under another neighbouring relation or privacy unit, or ("basic") costs more than it pays.
        """
        self._check_relation(relation)
        with self._lock:
            if unit is not None and self._unit not in (None, unit):
                raise ValueError(
                    f"this account has paid for fits that protect a {self._unit}, but this one protects a {unit}: open "
                    "one account for each."
                )
            if self.composition == "basic":
                self._ledger.spend(name, event, epsilon, delta)
            else:
                self._ledger.charge(name, event)
            self._unit = self._unit if unit is None else unit
            if seeded:
                self.mark_seeded()

    def mark_seeded(self) -> None:
        """Say that something paid here rests on a seed."""
        self._ledger.mark_seeded()

    def affords(self, event: Event, epsilon: float, delta: float) -> bool:
        """Whether `spend` would accept this fit."""
        if self.composition == "basic":
            return self._ledger.affords_block(event, epsilon, delta)
        return self._ledger.affords(event)

    def remaining_epsilon(self) -> float:
        """The epsilon, at the account's delta, of a single fit that spends all that is left."""
        if self.composition == "basic":
            return self.remaining
        aside = SetAside(self._ledger.bad_event_delta, self.budget.epsilon)
        return filter_epsilon(self.composition, Cost(self.remaining), self.budget.delta, aside)

    def to_dict(self) -> dict[str, Any]:
        """The account and every fit as JSON values."""
        return self._ledger.to_dict()

    def __str__(self) -> str:
        kind = {"gaussian": "Gaussian", "zcdp": "zCDP", "basic": "basic"}[self.composition]
        lines = [SEEDED] if self._ledger.seeded else []
        lines += [
            f"account: {self.budget}, {self.relation.value}, {kind} composition; "
            f"epsilon = {self.remaining_epsilon():.3g} is left for one more fit"
        ]
        lines += [f"  {entry.name}: {entry.event.describe()}" for entry in self.entries]
        return "\n".join(lines if self.entries else [*lines, "  nothing was spent yet"])

    def __copy__(self) -> "Account":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Account":
        return self

    def __reduce__(self) -> Never:
        raise TypeError(
            "an account cannot be pickled: a stored copy could be spent twice. Keep it in the process that pays, and "
            "store account.to_dict() for the record."
        )

    def _check_relation(self, relation: Relation | str | None) -> None:
        theirs = self.relation if relation is None else Relation.parse(relation)
        if theirs is not self.relation:
            raise ValueError(
                f"this account keeps {self.relation.value} privacy, but the fit is under {theirs.value}: "
                "open one account for each relation."
            )


def checked_account(account: Any) -> Account | None:
    """What was given as an account, if it is one or None.

    Raises:
        TypeError: it is something else.
    """
    if account is None or isinstance(account, Account):
        return account
    raise TypeError(
        f"account must be an Account or None, got {type(account).__name__}: make one with Account(epsilon, delta), and "
        "give the same one to every fit that it pays for."
    )
