"""An account in a file survives kills, full and read-only disks, clocks that jump and sixteen writers."""

import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.account_files import names, opened, pay
from tests.support.interrupting import house, interrupted_at, lines_of

from privopt.errors import AccountError, BudgetExceeded
from privopt.ledger import account_file, payments
from privopt.ledger.account import Account

CHILDREN = Path(__file__).parent.parent / "support" / "account_children.py"


def children(*jobs: list[Any]) -> list[dict[str, Any]]:
    """What the script of paying processes prints of each job."""
    done = subprocess.run(
        [sys.executable, str(CHILDREN), json.dumps(jobs)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def check_killed(done: dict[str, Any], times: int) -> None:
    """Whatever a child was told is stored; what it had no time to hear of is at most one payment a kill."""
    assert done["told"] <= done["stored"] <= done["told"] + times
    assert done["stored"] > 0


def test_killed_crowded_and_full_it_may_count_too_much_and_never_too_little(folder: Path) -> None:
    paths = [str(folder / name) for name in ("killed", "crowded", "full")]
    for path, epsilon in zip(paths, (300.0, 0.5, 300.0), strict=True):
        account = opened(Path(path), epsilon=epsilon, bad_event_delta=0.0)
        if path.endswith("crowded"):
            fits = int(account.remaining / (1 / (2 * 60.0**2)))
    killed, crowded, full = children(
        ["kill", paths[0], 10, 5], ["race", paths[1], 16], ["fill", paths[2], 24576]
    )
    check_killed(killed, 10)
    assert crowded == {"told": fits, "stored": fits, "failed": 0}
    assert Account(path=paths[1]).file.trouble() is None  # type: ignore[union-attr]
    assert 0 < full["told"] <= full["stored"] <= full["told"] + 1
    assert full["refusal"].endswith("No data was read for this payment.")


@pytest.mark.audit
def test_a_thousand_kills_lose_no_payment(path: Path, evidence: Any) -> None:
    opened(path, epsilon=3000.0)
    (killed,) = children(["kill", str(path), 1000, 1])
    check_killed(killed, 1000)
    lost = max(0, killed["told"] - killed["stored"])
    evidence("accounts", "a process that pays", tried=1000, of="kills", largest=lost, bound=0)


def test_threads_spend_one_budget(path: Path) -> None:
    account = opened(path, epsilon=0.2, bad_event_delta=0.0)
    fits, started = int(account.remaining / (10 / (2 * 60.0**2))), threading.Barrier(4)

    def spend(_: int) -> int:
        started.wait()
        for paid in range(fits + 1):
            try:
                pay(account)
            except BudgetExceeded:
                return paid
        return fits + 1

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(spend, range(4))) == fits == len(names(account))


def through(connection: Callable[[sqlite3.Connection], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Have something done to every connection."""
    plain = account_file._connection

    def changed(path: Path) -> sqlite3.Connection:
        made = plain(path)
        connection(made)
        return made

    monkeypatch.setattr(account_file, "_connection", changed)


def test_a_full_data_base_refuses_the_payment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = opened(path, epsilon=300.0)
    through(lambda made: made.execute("PRAGMA max_page_count = 5"), monkeypatch)
    with pytest.raises(AccountError, match="database or disk is full"):
        pay_often(account)
    paid = len(names(account))
    assert 0 < paid < 1000
    monkeypatch.undo()
    pay(account)
    assert len(names(account)) == paid + 1


def pay_often(account: Account) -> None:
    for _ in range(1000):
        pay(account)


def test_a_read_only_disk_refuses_the_payment_and_shows_the_account(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = opened(path)
    pay(account)
    through(lambda made: made.execute("PRAGMA query_only = ON"), monkeypatch)
    with pytest.raises(AccountError, match=r"readonly database. No data was read for this payment"):
        pay(account)
    assert names(Account(path=path)) == ["a fit"]
    assert "a fit" in str(account)


def test_a_payment_is_on_the_disk_before_data_is_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account, settings = opened(path), list[tuple[int, str]]()

    def note(made: sqlite3.Connection) -> None:
        ask = lambda name: made.execute(f"PRAGMA {name}").fetchone()[0]  # noqa: E731
        settings.append((ask("synchronous"), ask("journal_mode")))

    through(note, monkeypatch)
    pay(account)
    assert settings == [(3, "delete")]  # EXTRA: the row, and the folder once the journal is gone


def test_a_busy_account_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = opened(path)
    monkeypatch.setattr(account_file, "PATIENCE", 0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(
        AccountError, match="other processes have been paying from it for 0 seconds: try again"
    ):
        pay(account)
    other.close()
    pay(account)


def test_nothing_rests_on_the_clock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = opened(path)
    left = []
    for time in ("2026-01-01T00:00:00+00:00", "2099-01-01T00:00:00+00:00", "1970-01-01T00:00:00+00:00"):
        monkeypatch.setattr(payments, "now", lambda time=time: time)
        pay(account, time)
        left.append(Account(path=path).remaining)
    assert left == sorted(left, reverse=True)
    assert len(set(left)) == 3
    assert names(account)[-1].startswith("1970")


LEDGER = house("ledger")
EVERY_FOURTH_AND_ALL = pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.audit)])


@EVERY_FOURTH_AND_ALL
def test_an_account_that_is_stopped_while_it_is_made_is_there_or_is_not(step: int, tmp_path: Path) -> None:
    def make(number: int) -> Path:
        folder = tmp_path / str(number)
        folder.mkdir(exist_ok=True)
        return opened(folder / "budget.sqlite").file.path  # type: ignore[union-attr]

    lines = lines_of(lambda: make(0), LEDGER)
    assert len(lines) > 60
    for number, line in enumerate(lines[::step], start=1):
        assert interrupted_at(line, lambda number=number: make(number), KeyboardInterrupt, LEDGER) is not None
        left = sorted(one.name for one in (tmp_path / str(number)).iterdir())
        if left:
            assert left == ["budget.sqlite", "budget.sqlite.counter"]
            pay(Account(path=tmp_path / str(number) / "budget.sqlite"))
        else:
            make(number)


@EVERY_FOURTH_AND_ALL
def test_a_payment_that_is_stopped_at_any_line_is_whole_or_was_not_made(step: int, path: Path) -> None:
    account = opened(path, epsilon=300.0)
    pay(account)
    for kind in (KeyboardInterrupt, MemoryError):
        for line in lines_of(lambda: pay(account), LEDGER)[::step]:
            before = len(names(account))
            if interrupted_at(line, lambda: pay(account), kind, LEDGER) is not None:
                assert len(names(account)) - before in (0, 1)
            assert account.file.trouble() is None  # type: ignore[union-attr]
    before, other = len(names(account)), Account(path=path)
    pay(other)
    assert len(names(account)) == before + 1
    assert sorted(one.name for one in path.parent.iterdir()) == ["budget.sqlite", "budget.sqlite.counter"]
