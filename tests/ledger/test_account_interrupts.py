"""An account in a file whose payment is stopped at any of its lines: it pays again at once, and nothing is undone."""

import sqlite3
from pathlib import Path

import pytest
from tests.support.account_files import names, opened, pay
from tests.support.interrupting import house, interrupted_at, lines_of

from privopt.ledger import account_file


def test_a_payment_that_is_stopped_at_any_line_leaves_the_file_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while what stopped it is kept, as an interactive session keeps the last traceback with all its frames."""
    monkeypatch.setattr(account_file, "PATIENCE", 0.1)  # seconds that a payment waits for others
    account = opened(tmp_path / "budget.sqlite", epsilon=1e4)
    inside = house("ledger/account_file.py")
    lines = lines_of(lambda: pay(account), inside)
    assert len(lines) > 60
    kept = []
    for place in lines:
        before = len(names(account))
        kept.append(interrupted_at(place, lambda: pay(account), KeyboardInterrupt, inside))
        pay(account)
        assert len(names(account)) in (before + 1, before + 2)
    assert sum(isinstance(error, KeyboardInterrupt) for error in kept) > 50
    assert account.file is not None
    assert account.file.trouble() is None
    with sqlite3.connect(tmp_path / "budget.sqlite") as connection:
        assert connection.execute("SELECT count(*) FROM payment").fetchone()[0] == len(names(account))
