"""Ways to get more from one payment than it pays for, or the record of another run: none of them works."""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import privopt
from privopt import Account, Budget, Table, resumable
from privopt.curator.journal import Journal
from privopt.curator.run import Run
from privopt.data.units import Units
from privopt.errors import AccountError, ArgumentError, DataUnavailable, PlanMismatch, PrivoptError
from privopt.ledger.events import GaussianEvent, Repeated
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.queries.moments import SecondMoment

TIMES, NOISE, BUDGET = 4, Gaussian(noise_multiplier=40.0), Budget(1.0, 1e-6)
PLAN = Repeated(GaussianEvent(40.0), TIMES)
UNITS = Units.from_arrays(np.random.default_rng(0).normal(size=(60, 2)), row_bound=1.0)


@dataclasses.dataclass
class Workplace:
    """A folder for resumption and an account, in the hands of somebody who wants more than is paid for."""

    here: Path

    @property
    def folder(self) -> Path:
        return self.here / "kept"

    @property
    def account(self) -> Account:
        return Account(path=self.here / "budget.sqlite")

    def asked(self, times: int, folder: Path | None = None, account: Account | None = None) -> list[bytes]:
        """What a process gets that asks so often."""
        with double_precision(), resumable(self.folder if folder is None else folder, data="toy"):
            return self.answers(times, account)

    def answers(self, times: int, account: Account | None = None) -> list[bytes]:
        account = self.account if account is None else account
        run = Run("asked", PLAN, BUDGET, UNITS.public, noise=NoiseSource(), account=account, of={})
        curator = run.curator(UNITS)
        return [
            np.asarray(curator.release(SecondMoment(row_bound=1.0), NOISE)).tobytes() for _ in range(times)
        ]

    def copy(self, name: str, of: str = "kept") -> Path:
        shutil.copytree(self.here / of, self.here / name, dirs_exist_ok=True)
        return self.here / name


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    Account.create(tmp_path / "budget.sqlite", 3.0, 1e-5, data_set="rows")
    return Workplace(tmp_path)


def an_older_copy_after_the_end(place: Workplace) -> list[bytes]:
    place.asked(2)
    older = place.copy("older")
    place.asked(4)
    return place.asked(4, older)


def the_files_of_an_older_copy_put_back(place: Workplace) -> list[bytes]:
    place.asked(2)
    place.copy("older")
    place.asked(4)
    place.copy("kept", of="older")  # journal and mark
    return place.asked(4)


def the_end_cut_off_with_the_mark(place: Workplace) -> list[bytes]:
    place.asked(4)
    path = place.folder / "run-0001.journal"
    path.write_bytes(path.read_bytes()[:-40])
    path.with_suffix(".mark").unlink()
    return place.asked(4)


def two_at_once(place: Workplace) -> list[bytes]:
    place.asked(1)
    second = place.copy("second")
    with double_precision(), resumable(place.folder, data="toy"):
        place.answers(2)
        return place.asked(4, second)


def the_record_of_one_run_twice_in_a_program(place: Workplace) -> list[bytes]:
    place.asked(2)
    for file in list(place.folder.iterdir()):
        shutil.copy(file, place.folder / file.name.replace("0001", "0002"))
    with double_precision(), resumable(place.folder, data="toy"):
        place.answers(4)
        return place.answers(4)


def what_was_counted_thrown_away(place: Workplace) -> list[bytes]:
    place.asked(2)
    older = place.copy("older")
    place.asked(4)
    shutil.rmtree(place.here / "budget.sqlite.runs")
    return place.asked(4, older)


def the_account_moved_without_what_was_counted(place: Workplace) -> list[bytes]:
    place.asked(2)
    (place.here / "moved").mkdir()
    for name in ("budget.sqlite", "budget.sqlite.counter"):
        shutil.copy(place.here / name, place.here / "moved")
    return place.asked(4, account=Account(path=place.here / "moved" / "budget.sqlite"))


def an_account_of_the_same_name(place: Workplace) -> list[bytes]:
    place.asked(2)
    (place.here / "new").mkdir()
    other = Account.create(place.here / "new" / "budget.sqlite", 3.0, 1e-5, data_set="rows")
    return place.asked(4, account=other)


def no_account(place: Workplace) -> list[bytes]:
    place.asked(2)
    return place.asked(4, account=Account(3.0, 1e-5))


def a_record_written_anew(place: Workplace) -> list[bytes]:
    """Of the same key and payment, every hash in order, and without what was released."""
    place.asked(4)
    path = place.folder / "run-0001.journal"
    made = Journal(path)
    made.close()
    for file in (path, path.with_suffix(".mark")):
        file.unlink()
    anew = Journal(path)
    for line in made.lines[:3]:
        anew.add(
            {name: line.header[name] for name in line.header if name not in ("dtype", "shape")}, line.values
        )
    anew.close()
    return place.asked(4)


def more_than_the_plan(place: Workplace) -> list[bytes]:
    place.asked(4)
    return place.asked(5)


def an_older_account(place: Workplace) -> list[bytes]:
    files = [place.here / name for name in ("budget.sqlite", "budget.sqlite.counter")]
    before = [file.read_bytes() for file in files]
    place.asked(2)
    files[0].write_bytes(before[0])
    return place.asked(4)


def what_was_counted_thrown_away_while_it_is_paid(place: Workplace) -> list[bytes]:
    """A payment may take seconds: a copy that begins meanwhile, and finds nothing counted, pays with the same key."""
    plain, found = Account.spend, list[list[bytes]]()

    def spend(self: Account, *arguments: Any, **named: Any) -> int | None:
        patch.undo()
        other = place.copy("other")
        shutil.rmtree(place.here / "budget.sqlite.runs")
        found.append(place.asked(4, other))
        return plain(self, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Account, "spend", spend)
        try:
            return place.asked(4)
        finally:
            assert len(found) == 1
            assert place.asked(4, place.here / "other") == found[0]


ATTACKS: dict[Callable[[Workplace], Any], tuple[type[PrivoptError], str]] = {
    an_older_copy_after_the_end: (AccountError, "older copy"),
    the_files_of_an_older_copy_put_back: (AccountError, "older copy"),
    the_end_cut_off_with_the_mark: (AccountError, "older copy"),
    two_at_once: (AccountError, "goes on already"),
    the_record_of_one_run_twice_in_a_program: (AccountError, "goes on already"),
    what_was_counted_thrown_away: (AccountError, "is missing"),
    the_account_moved_without_what_was_counted: (AccountError, "is missing"),
    an_account_of_the_same_name: (AccountError, "payment 1 of the account is not the one"),
    no_account: (ArgumentError, "differs in its account"),
    a_record_written_anew: (AccountError, "older copy"),
    more_than_the_plan: (PlanMismatch, "0 of it are left"),
    what_was_counted_thrown_away_while_it_is_paid: (
        DataUnavailable,
        "removed or replaced while the run went on",
    ),
    an_older_account: (AccountError, "older copy|was restored"),
}


@pytest.mark.later("an_older_copy_after_the_end", "the_files_of_an_older_copy_put_back")
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_nothing_more_comes_of_one_payment(workplace: Workplace, attack: Callable[[Workplace], Any]) -> None:
    kind, why = ATTACKS[attack]
    with pytest.raises(kind, match=why):
        attack(workplace)


@pytest.mark.parametrize("step", [97, pytest.param(1, marks=pytest.mark.audit)])
@pytest.mark.parametrize("mark", ["with its mark", "without its mark"])
def test_a_record_that_ends_anywhere_is_refused(workplace: Workplace, mark: str, step: int) -> None:
    """Cut at every byte: by the folder itself, which has the mark, or by the account, which counted the lines."""
    workplace.asked(3)
    path, account = workplace.folder / "run-0001.journal", workplace.account
    content = path.read_bytes()
    with contextlib.closing(Journal(path)) as journal:
        key = journal.lines[0].header["id"]
    for size in range(0, len(content), step):
        path.write_bytes(content[:size])
        if mark == "with its mark":
            with pytest.raises(ArgumentError, match="was cut, replaced or restored"):
                Journal(path)
            continue
        path.with_suffix(".mark").unlink()
        with contextlib.closing(Journal(path)) as journal, pytest.raises(AccountError, match="older copy"):
            journal.follow(account.claim(key), paid=True)
    path.write_bytes(content)
    path.with_suffix(".mark").unlink(missing_ok=True)
    assert len(workplace.asked(4)) == 4


def test_two_copies_that_were_stopped_at_the_same_line_are_told_apart(
    workplace: Workplace, monkeypatch: pytest.MonkeyPatch
) -> None:
    workplace.asked(1)
    other = workplace.copy("other")
    with monkeypatch.context() as patch:  # the disk has the line, and the account does not
        patch.setattr(
            "privopt.ledger.claims.Claim.advance", lambda *arguments: (_ for _ in ()).throw(AccountError("x"))
        )
        with pytest.raises(DataUnavailable, match="start the same run again"):
            workplace.asked(2)
    twin = workplace.copy("twin")
    workplace.asked(2, other)
    with pytest.raises(AccountError, match="another copy went on"):
        workplace.asked(2)
    with pytest.raises(AccountError, match="another copy went on"):
        workplace.asked(4, twin)
    assert len(workplace.asked(4, other)) == 4


def test_a_payment_in_memory_buys_one_record_too(tmp_path: Path) -> None:
    place, account = Workplace(tmp_path), Account(3.0, 1e-5)
    place.asked(1, account=account)
    older = place.copy("older")
    first = place.asked(4, account=account)
    with pytest.raises(AccountError, match="older copy"):
        place.asked(4, older, account=account)
    for folder in (older, place.folder):
        with (
            pytest.raises(ArgumentError, match="differs in its account"),
            double_precision(),
            resumable(folder, data="toy"),
        ):
            Run("asked", PLAN, BUDGET, UNITS.public, noise=NoiseSource(), of={})
    assert place.asked(4, account=account) == first
    assert sum(entry.count for entry in account.entries) == 1


def test_engines_opened_by_hand_are_compared_by_what_they_read(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).uniform(-1, 1, (300, 3))
    flags = {"ill": (rows[:, 0] > 0).astype(np.int64), "well": (rows[:, 0] < 0).astype(np.int64)}
    owners = {"person": np.arange(300) // 2, "house": (np.arange(300) + 1) % 150}
    columns = {name: rows[:, k] for k, name in enumerate("abc")}
    pq.write_table(pa.table({**columns, **flags, **owners}), tmp_path / "rows.parquet")
    kinds = {name: {"kind": "num", "low": -1, "high": 1} for name in columns}
    kinds |= {name: {"kind": "flag" if name in flags else "id"} for name in (*flags, *owners)}

    def solved(
        changed: Any = (), groups: Any = None, features: Any = ("a", "b"), target: str = "ill", **named: Any
    ) -> None:
        schema = {"columns": {**kinds, **dict(changed)}}
        table = Table.open(tmp_path / "rows.parquet", schema, target=target, features=list(features))
        engine = table.engine(groups=groups, row_bound=1.5, **named)
        folder = tmp_path / ("users" if groups else "records")
        with resumable(folder, data="toy"):
            privopt.minimize(privopt.losses.logistic, engine, budget=BUDGET, solver="gradient-descent")

    solved()
    solved()
    solved(groups="person", max_records_per_user=2)
    for attack in (
        lambda: solved(target="well"),
        lambda: solved(features=("a", "c")),
        lambda: solved(features=("b", "a")),
        lambda: solved(changed={"a": {"kind": "num", "low": -2, "high": 1}}.items()),
        lambda: solved(groups="house", max_records_per_user=2),
    ):
        with pytest.raises(ArgumentError, match="differs in its files, or what is read of them"):
            attack()
    with pytest.raises(ArgumentError, match="differs in its"):
        solved(groups="person", max_records_per_user=2, user_weighting="user")
    pq.write_table(pa.table({**columns, **flags, **owners}), tmp_path / "rows.parquet")
    with pytest.raises(ArgumentError, match="differs in its files"):
        solved()
