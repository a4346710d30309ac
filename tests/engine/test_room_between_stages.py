"""Fits in stages and searches keep their room on the disk: once they are paid for, another program may fill it."""

import gc
import os
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.small_disk import SmallDisk

from privopt import Account, LogisticRegression, PrivateSearchCV, Table
from privopt.data.record_source import ArrayRecords
from privopt.engine.protocol import Succession
from privopt.engine.streamed.disk import NoRoom, Residency
from privopt.engine.streamed.spool import KeptRoom
from privopt.errors import DataUnavailable
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.whitening import Whitening

ROWS, D, MOST = 6_000, 6, 7
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(ROWS, D)).astype(np.float32)
LABELS = (FEATURES[:, 0] + RNG.normal(size=ROWS) > 0).astype(int)
TABLES = ["dense", "users", "sparse", "sparse, of users", "any entries", "any entries, of users"]
ONE = GradientDescent(steps=1)
RUNS = ["stages", "stages, float64", "stages, int8", "no intercept", "search", "search after bounds", "rows"]
QUICK = {("dense", "search"), ("any entries, of users", "no intercept")}
CASES = [
    pytest.param(table, run, marks=() if (table, run) in QUICK else pytest.mark.audit)
    for table in TABLES
    for run in RUNS
    if "int8" not in run or table in ("dense", "users")
]


class FilledOnceItPaid(Account):
    """Another program takes the rest of the disk as soon as this account has paid."""

    disk: SmallDisk

    def spend(self, *arguments, **named):
        number = super().spend(*arguments, **named)
        self.disk.fill()
        return number


def written(kind, path):
    """A table of some kind, and its schema."""
    columns: dict[str, Any] = {f"x{k}": {"kind": "num", "low": -5, "high": 5} for k in range(D)}
    values: dict[str, Any] = {f"x{k}": FEATURES[:, k] for k in range(D)}
    if "users" in kind:
        columns["who"], values["who"] = {"kind": "id"}, np.arange(ROWS) // 3
    if "dense" not in kind and kind != "users":
        indices = [np.unique(RNG.integers(0, 50, RNG.integers(0, MOST))).tolist() for _ in range(ROWS)]
        values["s"] = pa.array(indices, pa.list_(pa.int64()))
        columns["s"] = {"kind": "set", "size": 50} | ({} if "any" in kind else {"max_active": MOST})
    pq.write_table(pa.table(values | {"y": LABELS}), path)
    return {"columns": columns | {"y": {"kind": "flag"}}, "target": "y"}


def asked(run, by_user):
    """An estimator with no account yet."""
    cap: dict[str, Any] = {"max_records_per_user": 2} if by_user else {}
    loose: dict[str, Any] = {} if run in ("search", "rows") else {"loose_bounds": (-50.0, 50.0)}
    storage: dict[str, Any] = {"storage": run.split()[1]} if run.startswith("stages, ") else {}
    solver = Whitening(inner=ONE) if run == "stages" or storage else ONE
    model = LogisticRegression(solver=solver, fit_intercept=run != "no intercept", **cap, **loose, **storage)
    if "search" not in run and run != "rows":
        return model.set_params(epsilon=5.0, delta=1e-6)
    grid: Any = {"row_bound": [1.0, 2.0]} if run == "rows" else {"alpha": [0.01, 1.0]}
    return PrivateSearchCV(model, grid, epsilon=5.0, delta=1e-6)


@pytest.mark.later("any entries, of users-no intercept")
@pytest.mark.parametrize(("kind", "run"), CASES)
def test_a_run_that_was_paid_for_goes_on_when_the_disk_is_full(kind, run, tmp_path, monkeypatch):
    monkeypatch.setattr("privopt.engine.parts.PART_UNITS", 2048)
    schema, folder = written(kind, tmp_path / "t.parquet"), tmp_path / "spool"
    folder.mkdir()
    disk, account = SmallDisk(folder, monkeypatch), FilledOnceItPaid(10.0, 1e-4)
    account.disk = disk
    given = Table.open(tmp_path / "t.parquet", schema, engine="stream", spool=folder)
    by_user = "users" in kind
    estimator = asked(run, by_user).set_params(account=account)
    estimator.fit(given, groups="who" if by_user else None)
    assert account.entries
    assert disk.size == 0
    gc.collect()
    assert disk.taken() == 0


def test_what_one_spool_gives_back_is_kept_for_the_next_and_is_zeros(tmp_path, monkeypatch):
    disk, kept = SmallDisk(tmp_path, monkeypatch), KeptRoom(tmp_path, Residency(2**20))
    first = kept.spool(100_000)
    assert first.kept
    first.zeros(20_000, np.float32)[...] = 1.0
    growing = first.growing(np.int64, 10_000)
    growing.append(np.arange(5_000))
    np.testing.assert_array_equal(growing.finish(), np.arange(5_000))
    with pytest.raises(DataUnavailable, match="more entries"):
        first.growing(np.int64, 10).append(np.zeros(1_000, np.int64))
    first.reserve(50_000, 300_000)
    held = disk.taken()
    first.reserve(10**9)  # what comes was asked for
    assert disk.taken() == held
    disk.fill()
    first.close()
    del first, growing
    for turn in range(3):
        again = kept.spool(120_000)
        private = again.zeros(30_000, np.float32)
        assert not private.any()
        private[...] = turn + 1.0
        other = again.another(40_000).zeros(5_000, np.float64)
        assert not other.any()
        other[...] = 7.0
        again.reserve(0)
        again.close()
        del again, private, other
        assert disk.taken() == held
    with pytest.raises(NoRoom, match="no room"):
        kept.spool(10**6)
    kept.close()
    gc.collect()
    assert disk.taken() == 0


def test_what_one_spool_gave_back_is_not_memory_of_the_next(tmp_path):
    """A table that fits its share is not passed over as one that does not, in the second stage as in the first."""
    kept = KeptRoom(tmp_path, Residency(10 * 2**20))
    for _ in range(4):
        spool = kept.spool(6 * 2**20)
        spool.zeros(5 * 2**20, np.uint8)
        assert not spool.limited
        spool.close()
        del spool
    kept.spool(11 * 2**20)
    assert kept.spool(1).limited
    kept.close()


def test_what_a_run_keeps_is_given_back_at_its_end_whatever_happens(tmp_path, monkeypatch):
    disk = SmallDisk(tmp_path, monkeypatch)
    succession = Succession()
    assert succession.kept(lambda: KeptRoom(tmp_path, Residency(2**20))) is succession.kept(os.abort)
    succession.kept(os.abort).spool(5_000)
    assert disk.taken() > 0
    assert repr(succession) == "Succession()"
    succession.close()
    gc.collect()
    assert disk.taken() == 0
    succession.close()


def test_entries_of_columns_that_are_new_count():
    source = ArrayRecords(np.zeros((2, 3)))
    assert source.mapped(4, lambda rows: rows).row_entries is None
    source.row_entries = 2
    assert source.mapped(4, lambda rows: rows).row_entries == 3
    assert source.mapped(3, lambda rows: rows).row_entries == 2


@pytest.mark.later("no intercept-cap0")
@pytest.mark.parametrize("cap", [{"max_active": 5}, pytest.param({}, marks=pytest.mark.audit)])
@pytest.mark.parametrize("run", ["no intercept", "search"])
def test_room_is_taken_for_the_entries_of_sparse_rows_and_not_as_if_they_were_dense(
    cap, run, tmp_path, monkeypatch
):
    rows, size = 4_000, 300
    active = np.sort(RNG.integers(0, size // 5, (rows, 5)) + np.arange(5) * (size // 5))
    pq.write_table(pa.table({"s": list(active), "y": RNG.integers(0, 2, rows)}), tmp_path / "t.parquet")
    schema = {"columns": {"s": {"kind": "set", "size": size} | cap, "y": {"kind": "flag"}}, "target": "y"}
    folder = tmp_path / "spool"
    folder.mkdir()
    disk, account = SmallDisk(folder, monkeypatch), FilledOnceItPaid(10.0, 1e-4)
    account.disk = disk
    given = Table.open(tmp_path / "t.parquet", schema, engine="stream", spool=folder)
    asked(run, False).set_params(account=account).fit(given)
    assert account.entries
    assert disk.most < 4 * rows * size // 2
