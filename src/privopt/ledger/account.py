"""An account: one budget for several fits on the same data.

A fit is a block of releases whose events are fixed (or capped) before it begins; which fit comes next, and with what
share, may depend on everything released before. So the account is a privacy filter over whole fits, and each of them
charges its whole declared plan at once, before any data is read:

* "gaussian" and "zcdp" pay for a fit by its events;
* "basic" pays for it by its own (epsilon_i, delta_i), whatever accountant priced it inside (sampling included).

An account lives as long as the process that opened it, or, with a path, in a file that outlives all of them.
"""

import math
import threading
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

from privopt.errors import AccountError, ArgumentError, BudgetExceeded
from privopt.ledger.account_file import AccountFile, charge, check_unit, ledger_of
from privopt.ledger.amounts import Budget, rounded_down
from privopt.ledger.claims import Claim, Counter, CounterFolder, CounterInMemory, CounterInPlace, RunsInMemory
from privopt.ledger.events import Event
from privopt.ledger.filters import Charge, Composition, Cost, largest_payable
from privopt.ledger.ledger import SEEDED, Ledger
from privopt.ledger.payments import Fit, Terms, now, payment_of
from privopt.public import Relation

Unit = Literal["record", "user"]


class Account:
    """A budget that several fits share; a copy of it is the same account.

    Without a path it lives in this process. With one it is opened from a file that `Account.create` or `privopt account
    create` wrote: the file knows its budget, and whatever else is given must be what it says. A payment then is on the
    disk before any data is read, so that neither a crash nor a second process spends it again, and the account is
    pickled as its path.

    Args:
        epsilon: of all fits together.
        delta: of all fits together.
        relation: the neighbouring relation that every fit must be under; default: "replace-one".
        composition: the currency, "zcdp" (the default), "gaussian" or "basic".
        bad_event_delta: part of delta set aside for bad events and rounding of the fits; default: none.
        path: of the account's file.
        data_set: the owner's name of the data, to be compared with the file's.
        counter: where the payments are counted besides, for a file that was created with such a counter; a folder is
            found again, and is given where it has moved.
    Raises:
        AccountError: there is no account in the file, or it is of other data or other terms.

    Examples:
        >>> from privopt.ledger.events import GaussianEvent, Repeated
        >>> account = Account(1.0, 1e-6, composition="gaussian")
        >>> account.spend("first model", Repeated(GaussianEvent(60.0), 100), 0.7, 1e-6)
        >>> round(account.remaining_epsilon(), 2)
        0.69
    """

    def __init__(
        self,
        epsilon: float | None = None,
        delta: float | None = None,
        *,
        relation: Relation | str | None = None,
        composition: Composition | None = None,
        bad_event_delta: float | None = None,
        path: str | Path | None = None,
        data_set: str | None = None,
        counter: Counter | None = None,
    ) -> None:
        self._file: AccountFile | None = None
        if path is not None:
            self._file = AccountFile(Path(path), counter)
            said = {
                "epsilon": epsilon,
                "delta": delta,
                "relation": None if relation is None else Relation.parse(relation),
                "composition": composition,
                "bad_event_delta": bad_event_delta,
                "data_set": data_set,
            }
            _check_terms(self._file, said)
            return
        if epsilon is None or delta is None:
            raise TypeError(
                "give an account both epsilon and delta, what all fits together may spend; or path=, the file of an "
                "account that was created before."
            )
        if data_set is not None or counter is not None:
            raise ValueError("data_set= and counter= are of an account in a file: give its path=.")
        _check_composition(composition)
        self._ledger = Ledger(
            Budget(epsilon, delta),
            Relation.REPLACE_ONE if relation is None else relation,
            composition=composition,
            bad_event_delta=bad_event_delta or 0.0,
        )
        self._lock = threading.Lock()
        self._unit: str | None = None
        self._fits: dict[str, Fit] = {}  # by their keys
        self._runs = RunsInMemory()

    @classmethod
    def create(
        cls,
        path: str | Path,
        epsilon: float,
        delta: float,
        *,
        data_set: str,
        relation: Relation | str = Relation.REPLACE_ONE,
        composition: Composition = "zcdp",
        bad_event_delta: float | None = None,
        unit: Unit | None = None,
        counter: Counter | None = None,
    ) -> "Account":
        """Open an account in a new file; whoever answers for the data does so once.

        Args:
            path: of the file; beside it stands its counter, which must move with it.
            epsilon: of all fits together, finite.
            delta: of all fits together.
            data_set: what the owner calls the data; it is shown with every payment.
            relation: the neighbouring relation that every fit must be under.
            composition: the currency, "zcdp", "gaussian" or "basic".
            bad_event_delta: part of delta set aside for bad events and rounding of the fits; default: a tenth of it,
                none under "basic".
            unit: "record" or "user", what every fit must protect; default: whatever the first one does.
            counter: counts the payments somewhere else too, a `CounterFolder` or any `Counter`; the account is not used
                without it.
        Raises:
            AccountError: the file is there already, or cannot be written.
            ValueError: an argument is out of its range.
        """
        _check_composition(composition)
        budget = Budget(epsilon, delta)
        if not math.isfinite(budget.epsilon):
            raise ArgumentError("epsilon of an account in a file must be finite: it keeps a guarantee.")
        if not data_set.strip() or not data_set.isprintable():
            raise ArgumentError(f"data_set must be a name for the data, on one line, got {data_set!r}.")
        if unit not in (None, "record", "user"):
            raise ArgumentError(
                f"unit must be 'record' or 'user', got {unit!r}: it is what every fit protects."
            )
        if bad_event_delta is None:
            bad_event_delta = 0.0 if composition == "basic" else budget.delta / 10
        terms = Terms(
            account=uuid.uuid4().hex,
            data_set=data_set,
            budget=budget,
            relation=Relation.parse(relation),
            composition=composition,
            bad_event_delta=float(bad_event_delta),
            unit=unit,
            counted_elsewhere=counter is not None,
            counter_folder=str(counter.folder) if isinstance(counter, CounterFolder) else None,
            opened=now(),
        )
        ledger_of(terms, ())  # refuses what no ledger can keep, before a file is made
        return cls(path=AccountFile.create(Path(path), terms, counter).path, counter=counter)

    @property
    def budget(self) -> Budget:
        """What all fits together may spend."""
        return self._ledger.budget if self._file is None else self._file.terms.budget

    @property
    def relation(self) -> Relation:
        """The neighbouring relation of every fit."""
        return self._ledger.relation if self._file is None else self._file.terms.relation

    @property
    def composition(self) -> Composition:
        """The currency that the fits are paid in."""
        return self._ledger.composition if self._file is None else self._file.terms.composition

    @property
    def file(self) -> AccountFile | None:
        """Where the payments stand; None for an account that lives in this process."""
        return self._file

    @property
    def name(self) -> str | None:
        """The owner's name of the data; None for an account that lives in this process."""
        return None if self._file is None else self._file.terms.data_set

    @property
    def entries(self) -> tuple[Charge, ...]:
        """The fits that were paid, in order."""
        return tuple(entry for entry in self.paid().entries if isinstance(entry, Charge))

    @property
    def remaining(self) -> float:
        """What is left, in the currency: rho, or epsilon under "basic"."""
        return self.paid().remaining

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
        key: str = "",
    ) -> int | None:
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
            key: random letters that are this fit's alone: a payment that was made with them is found again, and nothing
                is paid, so that a fit that was stopped while it paid pays once. Two fits must not share one.

        Returns:
            The number of the payment in the account's file; None for an account that lives in this process.
        Raises:
            BudgetExceeded: it would cost more than is left.
            NotPriceable: the account's currency cannot price it.
            ValueError: it is under another neighbouring relation or privacy unit, or ("basic") costs more than it pays.
            AccountError: its file could not be written, or must not be spent from.
        """
        self._check_relation(relation)
        fit = Fit(name=name, event=event, epsilon=epsilon, delta=delta, unit=unit, seeded=seeded, key=key)
        try:
            return self._pay_here(fit) if self._file is None else self._file.pay(fit)
        except BudgetExceeded as error:
            raise BudgetExceeded(f"{error} {_what_it_pays(self.paid())}") from None

    def _pay_here(self, fit: Fit) -> None:
        """Pay for a fit in this process."""
        with self._lock:
            if (paid := self._fits.get(fit.key)) is not None:
                if not fit.same_price(paid):
                    raise AccountError(
                        "the account has paid for another fit with the key of this one: nothing was paid."
                    )
                return
            check_unit(self._unit, fit.unit)
            charge(self._ledger, fit)
            self._unit = self._unit if fit.unit is None else fit.unit
            if fit.seeded:
                self._ledger.mark_seeded()
            if fit.key:
                self._fits[fit.key] = fit

    def has_paid(self, key: str) -> bool:
        """Whether a payment was made with this key."""
        if self._file is None:
            return key in self._fits
        return payment_of(key, self._file.payments()) is not None

    def claim(self, key: str) -> Claim:
        """The right to go on with the run that is paid for under a key, of whose record there may be copies.

        Its lines are counted beside the file, and wherever else the payments are.

        Raises:
            AccountError: it is not the key of a run, or the file must not be spent from.
        """
        if self._file is None:
            return Claim(key, CounterInMemory(self._runs))
        if trouble := self._file.trouble():
            raise AccountError(trouble)
        elsewhere = () if self._file.counter is None else (self._file.counter,)
        return Claim(key, CounterInPlace.of(self._file.path, key), elsewhere)

    def require(self, *, relation: Relation | str, unit: str) -> None:
        """Refuse fits that the account will not pay for at any price.

        Raises:
            ArgumentError: they are under another neighbouring relation, or protect another kind of unit.
        """
        self._check_relation(relation)
        check_unit(self._unit if self._file is None else self._file.unit_of(self._file.payments()), unit)

    def mark_seeded(self) -> None:
        """Say that something paid here rests on a seed."""
        if self._file is not None:
            self._file.mark_seeded()
        else:
            self._ledger.mark_seeded()

    def affords(self, event: Event, epsilon: float, delta: float) -> bool:
        """Whether `spend` would accept this fit."""
        if self.composition == "basic":
            return self.paid().affords_block(event, epsilon, delta)
        return self.paid().affords(event)

    def remaining_epsilon(self) -> float:
        """The largest epsilon, at the account's delta, of one more fit that the account can pay for.

        It is that of a fit with Gaussian noise, the default of all models, in the account's own composition. Under
        zCDP a new account pays for less than its own epsilon at once, since several fits add up more loosely there than
        the noise of a single one is priced. Under "basic" the fit's delta is at most what is left of the account's.
        """
        return epsilon_left(self.paid())

    def to_dict(self) -> dict[str, Any]:
        """The account and every fit as JSON values."""
        values = self.paid().to_dict()
        return values if self.name is None else {"data_set": self.name, **values}

    def __repr__(self) -> str:
        """How it is opened; nothing is read for it, and an estimator that holds it shows the same."""
        if self._file is not None:
            return f"Account(path={str(self._file.path)!r}, data_set={self._file.terms.data_set!r})"
        budget = self.budget
        return (
            f"Account(epsilon={budget.epsilon:g}, delta={budget.delta:g}, composition={self.composition!r})"
        )

    def __str__(self) -> str:
        paid = self.paid()
        kind = {"gaussian": "Gaussian", "zcdp": "zCDP", "basic": "basic"}[self.composition]
        lines = [SEEDED] if paid.seeded else []
        data = "" if self.name is None else f" of {self.name!r}"
        lines += [
            f"account{data}: {self.budget}, {self.relation.value}, {kind} composition; "
            f"one more fit may have up to epsilon = {rounded_down(epsilon_left(paid)):.3g}"
        ]
        fits = [entry for entry in paid.entries if isinstance(entry, Charge)]
        lines += [f"  {entry.name}: {entry.event.describe()}" for entry in fits]
        return "\n".join(lines if fits else [*lines, "  nothing was spent yet"])

    def paid(self) -> Ledger:
        """A ledger with everything that was paid so far, to be read, not to be paid from."""
        return self._ledger if self._file is None else self._file.ledger()

    def __copy__(self) -> "Account":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Account":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        if self._file is None:
            raise TypeError(
                "an account cannot be pickled: a stored copy could be spent twice. Keep it in the process that pays, "
                "and store account.to_dict() for the record; or have it in a file, Account(path=...), which several "
                "processes may pay from."
            )
        file = self._file
        return partial(Account, path=file.path, data_set=file.terms.data_set, counter=file.counter), ()

    def _check_relation(self, relation: Relation | str | None) -> None:
        theirs = self.relation if relation is None else Relation.parse(relation)
        if theirs is not self.relation:
            raise ArgumentError(
                f"this account keeps {self.relation.value} privacy, but the fit is under {theirs.value}: "
                "open one account for each relation."
            )


def epsilon_left(ledger: Ledger) -> float:
    """The epsilon, at the delta of a filter's budget, of the largest single fit that what is left in it pays for."""
    return largest_payable(ledger.composition, Cost(ledger.remaining), ledger.budget.delta)


def _what_it_pays(ledger: Ledger) -> str:
    """A sentence on the largest fit that an account can still pay for."""
    left = epsilon_left(ledger)
    if left <= 0:
        return "Nothing is left in the account for another fit."
    delta = "" if ledger.composition == "basic" else f" at delta {ledger.budget.delta:.3g}"
    shown = f"{rounded_down(left):.3g}"
    return (
        f"The largest fit with Gaussian noise that the account can still pay for has epsilon {shown}{delta}."
    )


def _check_composition(composition: str | None) -> None:
    if composition == "plan":
        raise ValueError(
            "composition must be 'gaussian', 'zcdp' or 'basic' for an account, got 'plan': fits are chosen as you "
            "go, so there is no plan of all of them."
        )


def _check_terms(file: AccountFile, said: Mapping[str, Any]) -> None:
    """Refuse a file whose terms are not those that were stated.

    Raises:
        AccountError: they are not.
    """
    terms = file.terms
    stored = {**vars(terms), "epsilon": terms.budget.epsilon, "delta": terms.budget.delta}
    for name, value in said.items():
        if value is not None and value != stored[name]:
            theirs, ours = (getattr(each, "value", each) for each in (stored[name], value))
            term = name.replace("_", " ")
            raise AccountError(
                f"the account {str(file.path)!r} has {term} {theirs!r}, not {ours!r}: its terms were set when it was "
                "created. Give the account of these data, or leave the argument out."
            )


def checked_account(account: Any) -> Account | None:
    """What was given as an account, if it is one or None.

    Raises:
        TypeError: it is something else.
    """
    if account is None or isinstance(account, Account):
        return account
    raise TypeError(
        f"account must be an Account or None, got {type(account).__name__}: make one with Account(epsilon, delta), or "
        "Account(path=...), and give the same one to every fit that it pays for."
    )
