"""Accounts in files, for tests: where they stand, and fits that they pay for."""

from pathlib import Path
from typing import Any

from privopt.ledger.account import Account
from privopt.ledger.events import GaussianEvent, Repeated

FIT = Repeated(GaussianEvent(60.0), 10)


def opened(path: Path, epsilon: float = 1.0, **terms: Any) -> Account:
    return Account.create(path, epsilon, 1e-6, data_set="patients 2026", **terms)


def pay(account: Account, name: str = "a fit", **more: Any) -> None:
    account.spend(name, FIT, 0.3, 1e-6, **more)


def names(account: Account) -> list[str]:
    assert account.file is not None
    return [payment.name for payment in account.file.payments()]
