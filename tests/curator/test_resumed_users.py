"""Users of several parts stand where they stood in the process that was stopped: their secret lies with the run."""

import contextlib
import stat
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from privopt import Account, Budget, LogisticRegression, Table, resumable
from privopt.curator.base import Curator
from privopt.curator.journal import Journal
from privopt.curator.run import Run, rehearsed
from privopt.data import user_parts
from privopt.data.units import Units
from privopt.errors import ArgumentError
from privopt.ledger.events import GaussianEvent, Parallel
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.noise import KEPT_CHOICE, NoiseSource
from privopt.precision import double_precision
from privopt.queries.moments import SecondMoment

USERS, ROWS, CAP = 90, 270, 2
RNG = np.random.default_rng(5)
OWNERS = RNG.permutation(np.r_[np.arange(USERS), RNG.integers(0, USERS, ROWS - USERS)])
NUMBER = {"kind": "num", "low": 0, "high": USERS}
SCHEMA = {
    "columns": {"a": NUMBER, "owner": {"kind": "id"}, "ill": {"kind": "flag"}},
    "target": "ill",
}
BUDGET = Budget(1.0, 1e-6)
RELATIONS = ("replace-one", "add-or-remove-one")


class Stopped(BaseException):
    """Stands for `kill -9`."""


@pytest.fixture(autouse=True)
def several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_parts, "MEAN_RECORDS", 40)
    monkeypatch.setattr(user_parts, "LEAST_USERS", 1)
    assert user_parts.part_count(USERS, CAP) == 5


@pytest.fixture
def path(tmp_path: Path) -> Path:
    columns = {"a": OWNERS.astype(float), "owner": OWNERS, "ill": (OWNERS > 40).astype(np.int64)}
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    return tmp_path / "rows.parquet"


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Whose records every block has that was made, in the order in which they stand."""
    found, plain = list[list[int]](), Units.subset

    def subset(self: Units, *arguments: Any, **named: Any) -> Units:
        made = plain(self, *arguments, **named)
        assert made.private_offsets is not None
        firsts = made.private_offsets[:-1][np.diff(made.private_offsets) > 0]
        found.append(np.asarray(made.private_features)[firsts, 0].tolist())
        return made

    monkeypatch.setattr(Units, "subset", subset)
    return found


def searched(path: Path, account: Account | None = None, engine: Any = "memory", **named: Any) -> Any:
    model = LogisticRegression(
        epsilon=1.0,
        delta=1e-6,
        bounds=(0, USERS),
        classes=[0, 1],
        alpha="private",
        alphas=[0.01, 0.0101],  # whichever is chosen, the last fit takes as many steps
        solver="gradient-descent",
        max_records_per_user=CAP,
        account=account,
        **named,
    )
    return model.fit(Table.open(path, SCHEMA, engine=engine), groups="owner").coef_


@contextlib.contextmanager
def stopping(monkeypatch: pytest.MonkeyPatch, line: int) -> Generator[None]:
    """Where a run is stopped when this line is on disk, before anybody has seen its values."""
    plain = Journal.add

    def add(self: Journal, header: Any, values: Any) -> None:
        plain(self, header, values)
        if len(self.lines) == line:
            raise Stopped("kill -9")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", add)
        with pytest.raises(Stopped, match="kill"):
            yield


def lines_of(folder: Path) -> list[Any]:
    with contextlib.closing(Journal(folder / "run-0001.journal")) as opened:
        return list(opened.lines)


@pytest.mark.audit
@pytest.mark.parametrize(
    ("relation", "every"),
    [("replace-one", 7), *(pytest.param(one, 1, marks=pytest.mark.audit) for one in RELATIONS)],
)
def test_a_search_goes_on_with_the_same_users_in_its_blocks_wherever_it_is_stopped(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    path: Path,
    blocks: list[list[int]],
    relation: Any,
    every: int,
) -> None:
    named: dict[str, Any] = {"relation": relation, "n": USERS}
    folder, account = tmp_path / "kept", Account(9.0, 1e-5, relation=relation)
    with resumable(tmp_path / "whole", data="toy"):
        searched(path, **named)
    whole = len(lines_of(tmp_path / "whole"))
    assert whole > 6
    apart = {tuple(block) for block in blocks}
    blocks.clear()
    before, journal = b"", folder / "run-0001.journal"
    for line in range(1, whole, every):
        with stopping(monkeypatch, line), resumable(folder, data="toy"):
            searched(path, account, **named)
        assert journal.read_bytes().startswith(before)
        before = journal.read_bytes()
        assert journal.with_suffix(".users").exists()
        assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in folder.iterdir())
    with resumable(folder, data="toy"):
        found = searched(path, account, **named)
    assert len(lines_of(folder)) == whole
    same = {tuple(block) for block in blocks}
    assert len(blocks) > len(same) == len(apart)  # the same ones in every process
    assert not same & apart
    assert sorted(file.suffix for file in folder.iterdir()) == [".journal", ".mark"]
    with resumable(folder, data="toy"):
        np.testing.assert_array_equal(searched(path, account, **named), found)
    assert sorted(file.suffix for file in folder.iterdir()) == [".journal", ".mark"]
    assert sum(entry.count for entry in account.entries) == 1


@pytest.mark.parametrize("others", ["of one bit", pytest.param("of any kind", marks=pytest.mark.audit)])
def test_no_other_secret_lays_out_users_who_were_cut(
    others: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    folder, account = tmp_path / "kept", Account(9.0, 1e-5)
    with stopping(monkeypatch, 5), resumable(folder, data="toy"):
        searched(path, account)
    key, before = folder / "run-0001.users", (folder / "run-0001.journal").read_bytes()
    secret, why = key.read_bytes(), "is another one than when the users were cut"

    def refused() -> None:
        with pytest.raises(ArgumentError, match=why), resumable(folder, data="toy"):
            searched(path, account)

    one_bit = bytes([secret[0] ^ 1]) + secret[1:]
    for other in [one_bit] if others == "of one bit" else [b"", bytes(32), secret[:-1], one_bit]:
        key.write_bytes(other)
        refused()
    key.unlink()
    refused()
    key.write_bytes(secret)
    with monkeypatch.context() as patch:  # as by a hash of another version
        plain: Any = vars(user_parts)["_SIPHASH"]
        patch.setattr(user_parts, "_SIPHASH", lambda *given, **named: plain(*given, **named) ^ np.uint64(1))
        refused()
    assert (folder / "run-0001.journal").read_bytes() == before
    key.write_bytes(secret)
    with resumable(folder, data="toy"):
        searched(path, account)
    assert sum(entry.count for entry in account.entries) == 1


def test_users_whose_secret_is_not_kept_with_the_run_are_not_cut(tmp_path: Path, path: Path) -> None:
    """Opened before, or for the run before: what is kept of them is gone when another process goes on."""
    account, noise, plan = Account(9.0, 1e-5), Gaussian(20.0), Parallel((GaussianEvent(20.0),) * 2)

    def opened() -> Any:
        table = Table.open(path, SCHEMA, features=["a"], target="ill", engine="memory")
        return table.engine(groups="owner", max_records_per_user=CAP, row_bound=100.0)

    def cut(curator: Curator) -> None:
        for block in curator.blocks(2):
            block.release(SecondMoment(row_bound=100.0), noise)

    def solved(engine: Any) -> None:
        rehearsed(cut, engine.public, engine, BUDGET, plan)
        run = Run("blocks", plan, BUDGET, engine.public, noise=NoiseSource(), account=account, of={})
        cut(run.curator(engine))
        run.end()

    before = opened()
    with double_precision():
        with (
            pytest.raises(ArgumentError, match="theirs is not kept"),
            resumable(tmp_path / "one", data="toy"),
        ):
            solved(before)
        assert not account.entries
        with resumable(tmp_path / "two", data="toy"):
            inside = opened()
            solved(inside)
            with pytest.raises(ArgumentError, match="theirs is not kept"):
                solved(inside)
            assert sum(entry.count for entry in account.entries) == 1
            solved(opened())
    assert sum(entry.count for entry in account.entries) == 2


def test_no_secret_stays_behind_of_users_of_whom_nothing_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Path
) -> None:
    folder = tmp_path / "kept"

    def opened() -> None:
        Table.open(path, SCHEMA, features=["a"], target="ill", engine="memory").engine(groups="owner")

    def stopped() -> None:
        opened()
        assert [file.name for file in folder.iterdir()] == ["run-0001.users"]
        raise Stopped("kill -9")

    with pytest.raises(Stopped, match="kill"), resumable(folder, data="toy"):
        stopped()
    assert KEPT_CHOICE.get() is None
    assert not list(folder.iterdir())
    with stopping(monkeypatch, 4), resumable(folder, data="toy"):
        searched(path)
    secret = (folder / "run-0001.users").read_bytes()
    with resumable(folder, data="toy"):
        opened()
    assert (folder / "run-0001.users").read_bytes() == secret  # the run that was stopped may go on


def test_users_of_tables_side_by_side_keep_records_by_independent_choices(tmp_path: Path) -> None:
    """Places of records in two tables move apart with a neighbour: one choice for both would tell of it."""
    columns = {"a": RNG.permutation(ROWS) / ROWS, "owner": OWNERS, "ill": (OWNERS > 40).astype(np.int64)}
    for name in ("one", "other"):
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")

    def kept(name: str) -> Any:
        table = Table.open(
            tmp_path / f"{name}.parquet", SCHEMA, features=["a"], target="ill", engine="memory"
        )
        engine: Any = table.engine(groups="owner", max_records_per_user=CAP, row_bound=100.0)
        return np.asarray(engine.units.private_features)

    with resumable(tmp_path / "kept", data="toy"):
        one, again, other = kept("one"), kept("one"), kept("other")
    assert len(one) == len(other) < ROWS
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


def test_another_engine_goes_on_with_the_same_users_in_its_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Path, blocks: list[list[int]]
) -> None:
    folder = tmp_path / "kept"
    with stopping(monkeypatch, 6), resumable(folder, data="toy"):
        searched(path)
    first = blocks.copy()
    blocks.clear()
    with resumable(folder, data="toy"):
        found = searched(path, engine="stream")
    assert first[0] in blocks
    assert sorted(file.suffix for file in folder.iterdir()) == [".journal", ".mark"]
    with resumable(folder, data="toy"):
        np.testing.assert_array_equal(searched(path), found)
