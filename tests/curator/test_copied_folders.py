"""Copies of a run's folder: whatever is copied, killed and started again, one payment buys one record of releases."""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privopt import Account, Budget, resumable
from privopt.curator.journal import Journal, Line
from privopt.curator.run import Resumption, Run
from privopt.data.units import Units
from privopt.errors import AccountError, DataUnavailable
from privopt.ledger.claims import CounterFolder, CounterInMemory, CounterInPlace, Mark
from privopt.ledger.events import GaussianEvent, Repeated
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.queries.moments import SecondMoment

UNITS = Units.from_arrays(np.random.default_rng(0).normal(size=(60, 2)), row_bound=1.0)
TIMES, NOISE, BUDGET = 8, Gaussian(noise_multiplier=40.0), Budget(1.0, 1e-6)
PLAN = Repeated(GaussianEvent(40.0), TIMES)


class Killed(BaseException):
    """Stands for `kill -9`."""


class Remote:
    """A counter in a data base."""

    def __init__(self) -> None:
        self.marks: dict[str, Mark] = {}

    def read(self, account: str) -> Mark | None:
        return self.marks.get(account)

    def advance(self, mark: Mark) -> None:
        before = self.marks.get(mark.account)
        if mark.payments != (0 if before is None else before.payments + 1):
            # A run's marks begin with 1, an account's with 0.
            assert before is None
            assert mark.payments == 1
        self.marks[mark.account] = mark


def account_of(kind: str, folder: Path) -> Callable[[], Account]:
    """What opens an account, as each process does."""
    if kind == "memory":
        account = Account(3.0, 1e-5)
        return lambda: account
    elsewhere: Any = None
    if kind == "folder":
        (folder / "elsewhere").mkdir()
        elsewhere = CounterFolder(folder / "elsewhere")
    if kind == "remote":
        elsewhere = Remote()
    path = folder / "budget.sqlite"
    Account.create(path, 3.0, 1e-5, data_set="rows", counter=elsewhere)
    return lambda: Account(path=path, counter=elsewhere)


def asked(folder: Path, account: Account, times: int, seen: dict[tuple[str, int], set[bytes]]) -> None:
    """A process that asks so often, and notes what it sees, by the key of the run and the number of the answer."""
    with double_precision(), resumable(folder, data="toy"):
        run = Run("asked", PLAN, BUDGET, UNITS.public, noise=NoiseSource(), account=account, of={})
        curator = run.curator(UNITS)
        for number in range(times):
            found = np.asarray(curator.release(SecondMoment(row_bound=1.0), NOISE)).tobytes()
            seen.setdefault((key_of(folder), number), set()).add(found)


class Kill:
    """Kills the process after some steps towards the disk, one of which it may leave half done."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = None
        self.torn = 0  # bytes of its last line that a crash keeps from the disk
        plain = Journal.add

        def step(call: Callable[..., Any]) -> Callable[..., Any]:
            def stepped(*arguments: Any, **named: Any) -> Any:
                self.step()
                found = call(*arguments, **named)
                self.step()
                return found

            return stepped

        def add(kept: Journal, *arguments: Any) -> None:
            self.step()
            plain(kept, *arguments)
            self.step()

        def fsync(handle: int) -> None:
            found = os.fstat(handle)
            if self.left == 0 and stat.S_ISREG(found.st_mode) and found.st_size > 400:  # a record
                os.ftruncate(handle, found.st_size - self.torn)
            self.step()

        for counter in (CounterInPlace, CounterInMemory, CounterFolder, Remote):
            monkeypatch.setattr(counter, "advance", step(counter.advance))
        monkeypatch.setattr(Resumption, "note_payment", step(Resumption.note_payment))
        monkeypatch.setattr(Journal, "add", add)
        monkeypatch.setattr(os, "fsync", fsync)

    def step(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed


@pytest.mark.at_once("seeds0-memory")
@pytest.mark.parametrize("kind", ["file", "folder", "remote", "memory"])
@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 102), marks=pytest.mark.audit)])
def test_copies_and_kills_at_any_step_release_one_record_and_lock_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, seeds: range
) -> None:
    kill = Kill(monkeypatch)
    for number in seeds:
        generator = np.random.default_rng(number)
        here = tmp_path / str(number)
        here.mkdir()
        opened = account_of(kind, here)
        folders = [here / "0"]
        folders[0].mkdir(mode=0o700)
        seen = dict[tuple[str, int], set[bytes]]()
        last = dict[str, Path]()  # the folder that went on last, of each run
        for _ in range(25):
            folder = folders[generator.integers(len(folders))]
            if generator.random() < 0.4 and len(folders) < 4:
                folders.append(here / str(len(folders)))
                shutil.copytree(folder, folders[-1])
                continue
            lines, kill.torn = len(lines_of(folder)), int(generator.integers(0, 100))
            kill.left = int(generator.integers(0, 60)) if generator.random() < 0.8 else None
            try:
                asked(folder, opened(), int(generator.integers(1, TIMES + 1)), seen)
            except Killed:
                pass
            except (AccountError, DataUnavailable):
                assert (
                    folder != last[key_of(folder)]
                )  # whoever went on last is let in again, however it was killed
                assert len(lines_of(folder)) == lines
                continue
            finally:
                kill.left = None
            if len(lines_of(folder)) > lines:
                last[key_of(folder)] = folder
        for folder in last.values():
            asked(folder, opened(), TIMES, seen)
        assert all(len(values) == 1 for values in seen.values())
        assert {key for key, _ in seen} == set(last)
        assert sum(entry.count for entry in opened().entries) == len(last)


def lines_of(folder: Path) -> list[Line]:
    """What stands in a record."""
    path = folder / "run-0001.journal"
    if not path.exists():
        return []
    opened = Journal(path)
    opened.close()
    return opened.lines


def key_of(folder: Path) -> str:
    """Of the run, from its open or closed record."""
    content = (folder / "run-0001.journal").read_bytes()
    return content.partition(b'"id": "')[2][:32].decode()
