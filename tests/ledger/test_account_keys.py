"""A payment with a key is made once: found again whoever asks, and taken for no other."""

from pathlib import Path

import pytest
from tests.support.account_files import names, opened

from privopt.errors import AccountError
from privopt.ledger.account import Account
from privopt.ledger.events import GaussianEvent

EVENT = GaussianEvent(60.0)
KEY = "0123456789abcdef" * 2


def accounts(path: Path) -> list[Account]:
    return [opened(path), Account(3.0, 1e-5)]


def paid(account: Account) -> int:
    return len(names(account)) if account.file is not None else sum(entry.count for entry in account.entries)


def spend(account: Account, key: str, event: GaussianEvent = EVENT) -> int | None:
    return account.spend("a fit", event, 0.1, 1e-6, key=key)


def test_a_key_pays_once(path: Path) -> None:
    for account in accounts(path):
        first = spend(account, KEY)
        assert spend(account, KEY) == first
        assert paid(account) == 1
        assert account.has_paid(KEY)
        for other in (KEY[:1], KEY[:-1], KEY + "0", KEY[::-1]):  # no part of a key is the key
            assert not account.has_paid(other)
        spend(account, KEY[:1])
        assert paid(account) == 2


def test_without_a_key_every_payment_is_another(path: Path) -> None:
    for account in accounts(path):
        for _ in range(3):
            spend(account, "")
        assert paid(account) == 3
        assert not account.has_paid("")


def test_a_key_pays_for_nothing_else(path: Path) -> None:
    for account in accounts(path):
        spend(account, KEY)
        with pytest.raises(AccountError, match="nothing was paid"):
            spend(account, KEY, GaussianEvent(50.0))
        assert paid(account) == 1


def test_another_process_finds_it_and_the_counter_follows(path: Path) -> None:
    account = opened(path)
    number = spend(account, KEY)
    again = Account(path=path)
    assert spend(again, KEY) == number
    assert again.file is not None
    assert again.file.trouble() is None
