"""Which account pays for a run that names none, and whether a run needs one: the environment and the project's file.

    PRIVOPT_ACCOUNT=budget.sqlite         the default account
    PRIVOPT_REQUIRE_ACCOUNT=1             no run without an account in a file

or, in the nearest folder from the working directory upwards that has a `privopt.toml`, or a `pyproject.toml` with a
table [tool.privopt]:

    account = "budget.sqlite"             beside that file
    data_set = "patients 2026"            the owner's name of the data, to be compared with the account's
    require_account = true

The environment has the first word on the account; where either requires one, one is required. A project file that
cannot be read stops every run: it might have required an account. All this reminds people of what they agreed on. It
does not hold up somebody who means to go round it, and who has the data anyway.
"""

import os
import tomllib
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, time
from functools import cached_property
from pathlib import Path
from typing import Any

from privopt.errors import AccountError, ArgumentError
from privopt.ledger.account import Account
from privopt.ledger.account_file import AccountFile
from privopt.ledger.events import NoEvent
from privopt.ledger.filters import Cost, filter_cap, largest_payable, largest_payables, sum_of_costs
from privopt.ledger.payments import Payment, Terms
from privopt.untrusted import UntrustedFile, read_regular

ACCOUNT, REQUIRE = "PRIVOPT_ACCOUNT", "PRIVOPT_REQUIRE_ACCOUNT"
PROJECT_FILE, TABLE = "privopt.toml", "[tool.privopt]"
MOST_BYTES = 2**20  # of the project's file
_KINDS = {"account": str, "data_set": str, "require_account": bool}
_NOTHING_PRIVATE: ContextVar[bool] = ContextVar("nothing_private", default=False)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """What the environment and the project say.

    Attributes:
        account: the file of the default account; None for no default.
        data_set: the owner's name of its data, where the project says it.
        required: whether a run must have an account in a file.
        source: who says so, for messages.
    """

    account: Path | None = None
    data_set: str | None = None
    required: bool = False
    source: str = ""

    @classmethod
    def here(cls) -> "Policy":
        """The policy of the working directory.

        Raises:
            AccountError: the project's file or the environment cannot be understood.
        """
        project, values = _project()
        named, required = os.environ.get(ACCOUNT, ""), _switch(REQUIRE)
        if named:
            account, data_set = Path(named), None
        else:
            account = project.parent / values["account"] if project and "account" in values else None
            data_set = values.get("data_set")
        return cls(
            account=account,
            data_set=data_set,
            required=required or values.get("require_account", False),
            source=REQUIRE if required else str(project),
        )

    def open_default(self) -> Account | None:
        """The default account; None where there is none.

        Raises:
            AccountError: it is not there, or of other data.
        """
        return None if self.account is None else Account(path=self.account, data_set=self.data_set)


def paying_account(given: Account | None) -> Account | None:
    """The account that pays for a run: the one that was given, else the default; None for none.

    Args:
        given: what the caller named.
    Raises:
        AccountError: an account in a file is required, and there is none.
    """
    if _NOTHING_PRIVATE.get():
        return given
    policy = Policy.here()
    account = policy.open_default() if given is None else given
    if policy.required and (account is None or account.file is None):
        found = (
            "none was given, and there is no default" if account is None else "this one ends with its process"
        )
        raise AccountError(
            f"{policy.source} requires an account in a file for every run, and {found}: give account="
            f"Account(path=...) or --account FILE, or name a default in {ACCOUNT}. Nothing was read."
        )
    return account


@contextmanager
def nothing_private() -> Generator[None]:
    """Around runs on made-up or published records: no default account pays for them, and none is required."""
    token = _NOTHING_PRIVATE.set(True)
    try:
        yield
    finally:
        _NOTHING_PRIVATE.reset(token)


def _project() -> tuple[Path | None, Mapping[str, Any]]:
    """The project's file and what it says of privopt."""
    try:
        here = Path.cwd()
    except FileNotFoundError:  # the working directory was removed: no project is there
        return None, {}
    for folder in (here, *here.parents):
        own, shared = folder / PROJECT_FILE, folder / "pyproject.toml"
        if _is_there(own):
            return own, _checked(own, _read(own))
        if _is_there(shared):
            values = _read(shared).get("tool", {}).get("privopt")
            if values is not None:
                return shared, _checked(shared, values)
    return None, {}


def _is_there(file: Path) -> bool:
    """Whether anything has this name, be it no file at all: that is refused when it is read."""
    return file.exists() or file.is_symlink()


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(read_regular(file, MOST_BYTES, follow=True).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        reason = str(error) if isinstance(error, UntrustedFile | tomllib.TOMLDecodeError) else "it is no TOML"
        raise AccountError(
            f"{str(file)!r} cannot be read, and it may say which account pays for runs: {reason.rstrip('.')}."
        ) from None


def _checked(file: Path, values: Any) -> Mapping[str, Any]:
    if not isinstance(values, dict) or not set(values) <= set(_KINDS):
        known = ", ".join(_KINDS)
        raise AccountError(f"what {str(file)!r} says of privopt may name {known}, and nothing else.")
    for name, value in values.items():
        if type(value) is not _KINDS[name]:
            raise AccountError(
                f"{name} in {str(file)!r} must be {'true or false' if name == 'require_account' else 'a text'}, got "
                f"{value!r}."
            )
    return values


def _switch(name: str) -> bool:
    value = os.environ.get(name, "").strip().lower()
    if value not in ("", "0", "false", "1", "true"):
        raise AccountError(f"{name} must be 1 or 0, got {value!r}.")
    return value in ("1", "true")


# ------------------------------------------------------------------------------------------------------------
# A statement of an account: what every payment cost and left, as numbers that may be shown to anybody.
# Nothing in it comes from data. What is left is told twice: as a share of the budget in the account's currency, in
# which payments add up, and as the epsilon of the largest fit that it still pays for.


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
