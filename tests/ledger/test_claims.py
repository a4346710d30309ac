"""The account counts how far a run has come: one record goes on, and whoever has the claim has it alone."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from privopt import Account
from privopt.errors import AccountError, BudgetExceeded
from privopt.ledger.claims import Claim, CounterFolder, CounterInMemory, Mark, RunsInMemory
from privopt.ledger.events import GaussianEvent

KEY, OTHER = "0123456789abcdef" * 2, "f" * 32
LINES = [f"{number:064x}" for number in range(5)]
WAITING = """
import sys
from privopt import Account
claim = Account(path=sys.argv[1]).claim(sys.argv[2])
claim.begin(sys.argv[3:], paid=False)
print("begun", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Of an account's file."""
    Account.create(tmp_path / "budget.sqlite", 3.0, 1e-5, data_set="rows")
    return tmp_path / "budget.sqlite"


def begun(path: Path, lines: list[str], *, paid: bool = True, key: str = KEY) -> Claim:
    claim = Account(path=path).claim(key)
    try:
        claim.begin(lines, paid=paid)
    except AccountError:
        claim.close()
        raise
    return claim


def test_a_record_goes_on_with_what_was_counted_and_one_line_that_was_not(path: Path) -> None:
    begun(path, LINES[:1], paid=False).close()
    claim = begun(path, LINES[:1])
    claim.advance(2, LINES[1])
    claim.advance(3, LINES[2])
    claim.close()
    begun(path, LINES[:3]).close()
    begun(path, LINES[:4]).close()  # stopped between the disk and the counter
    with pytest.raises(AccountError, match=r"has counted 4 lines .* they are not the 3 of this folder"):
        begun(path, LINES[:3])
    with pytest.raises(AccountError, match="another copy went on from it"):
        begun(path, [*LINES[:3], LINES[4], LINES[4]])  # as long, and of its own
    begun(path, LINES[:1], paid=False, key=OTHER).close()  # another run


def test_what_was_counted_of_a_paid_run_is_missed(path: Path) -> None:
    begun(path, LINES, paid=False).close()
    runs = path.with_name("budget.sqlite.runs")
    stored = (runs / KEY).read_bytes()
    assert stored == b"%020d %s\n" % (5, LINES[4].encode())
    assert (runs / KEY).stat().st_mode & 0o777 == 0o600
    assert runs.stat().st_mode & 0o777 == path.parent.stat().st_mode & 0o777
    (runs / KEY).write_bytes(b"x" * len(stored))
    with pytest.raises(AccountError, match="counts no run"):
        begun(path, LINES)
    for left in (b"", stored[:50], bytes(len(stored))):
        (runs / KEY).write_bytes(left)
        with pytest.raises(AccountError, match="is missing: without it a copy"):
            begun(path, LINES)
    shutil.rmtree(runs)
    with pytest.raises(AccountError, match=r"Move the folder `.runs` beside the account's file"):
        begun(path, LINES)


def test_one_process_has_a_claim_until_it_is_killed(path: Path) -> None:
    command = [sys.executable, "-c", WAITING, str(path), KEY, LINES[0]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"begun\n"
        with pytest.raises(AccountError, match="goes on already"):
            begun(path, LINES)
        os.kill(child.pid, signal.SIGKILL)
    begun(path, LINES).close()


def test_an_account_in_memory_counts_too_and_a_forked_child_has_no_claim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    account = Account(1.0, 1e-6)
    first = account.claim(KEY)
    first.begin(LINES[:2], paid=False)
    with pytest.raises(AccountError, match="goes on already"):
        account.claim(KEY).begin(LINES[:2], paid=True)
    first.advance(3, LINES[2])
    first.close()
    first.close()
    with pytest.raises(AccountError, match="has counted 3 lines"):
        account.claim(KEY).begin(LINES[:2], paid=True)
    runs = RunsInMemory()
    here = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: here + 1)
    with pytest.raises(BudgetExceeded, match="another process"):
        Claim(KEY, CounterInMemory(runs)).begin(LINES, paid=False)


class OneSlot:
    """A counter that keeps the mark of one account."""

    def __init__(self) -> None:
        self.mark: Mark | None = None

    def read(self, account: str) -> Mark | None:
        del account
        return self.mark

    def advance(self, mark: Mark) -> None:
        self.mark = mark


def test_a_counter_that_keeps_one_mark_is_refused_before_it_is_lost(tmp_path: Path) -> None:
    slot = OneSlot()
    account = Account.create(tmp_path / "budget.sqlite", 3.0, 1e-5, data_set="rows", counter=slot)
    before = slot.mark
    with pytest.raises(AccountError, match="keeps one mark"):
        account.claim(KEY).begin(LINES, paid=False)
    assert slot.mark == before
    account.spend("a fit", GaussianEvent(40.0), 0.5, 1e-6)
    with pytest.raises(AccountError, match="is counted elsewhere too"):
        Account(path=tmp_path / "budget.sqlite").claim(KEY)


def test_copies_of_the_account_and_the_folder_meet_in_a_counter_elsewhere(tmp_path: Path) -> None:
    elsewhere = CounterFolder(tmp_path / "elsewhere")
    elsewhere.folder.mkdir()
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    Account.create(tmp_path / "here" / "a.sqlite", 3.0, 1e-5, data_set="rows", counter=elsewhere)
    begun(tmp_path / "here" / "a.sqlite", LINES[:1], paid=False).close()
    shutil.copytree(tmp_path / "here", tmp_path / "there", dirs_exist_ok=True)
    first, second = (begun(tmp_path / name / "a.sqlite", LINES[:1]) for name in ("here", "there"))
    first.advance(2, LINES[1])
    with pytest.raises(AccountError, match="or line 2 of this run by another copy of its folder"):
        second.advance(2, LINES[2])
    second.close()
    first.close()
    with pytest.raises(AccountError, match="has counted 2 lines"):
        begun(tmp_path / "there" / "a.sqlite", LINES[:1])


def test_a_key_names_no_other_file_and_a_full_disk_says_so(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in ("", "../../secret", "A" * 32, "0" * 31, "0" * 32 + "\n"):
        with pytest.raises(AccountError, match="32 hexadecimal digits"):
            Account(path=path).claim(key)
    claim = begun(path, LINES[:1], paid=False)

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    plain = os.pwrite
    with monkeypatch.context() as patch:  # a part of the line had room
        patch.setattr(os, "pwrite", lambda handle, line, place: plain(handle, line[:50], place))
        with pytest.raises(AccountError, match=r"cannot count the run .* no space left"):
            claim.advance(2, LINES[1])
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AccountError, match=r"cannot count the run .* no space left"):
        claim.advance(2, LINES[1])
    with pytest.raises(AccountError, match="cannot count the run"):
        begun(path, LINES[:1], paid=False, key=OTHER)
