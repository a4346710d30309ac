"""Blocks of users of several parts go on on Ray where the driver was killed: the same users, one payment."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from privopt import Account
from privopt.curator.journal import Journal

pytest.importorskip("ray")

# A search over five parts of users, whose driver is killed when the line of this number is on disk.
SEARCH = """
import os, signal, sys
import privopt
from privopt.curator.journal import Journal
from privopt.data import user_parts
folder, budget, table, engine, line = sys.argv[1:]
user_parts.MEAN_RECORDS, user_parts.LEAST_USERS = 40, 1
assert user_parts.part_count(90, 2) == 5
plain = Journal.add
def add(self, header, values):
    plain(self, header, values)
    if len(self.lines) == int(line):
        os.kill(os.getpid(), signal.SIGKILL)
Journal.add = add
kinds = {"a": {"kind": "num", "low": -1, "high": 1}, "owner": {"kind": "id"}, "ill": {"kind": "flag"}}
model = privopt.LogisticRegression(
    epsilon=1.0, delta=1e-6, bounds=(-1, 1), classes=[0, 1], alpha="private", solver="gradient-descent",
    max_records_per_user=2, n=90, account=privopt.Account(path=budget),
)
table = privopt.Table.open(table, {"columns": kinds, "target": "ill"}, engine=engine, **(
    {"workers": 2} if engine == "ray" else {}
))
with privopt.resumable(folder):
    print(model.fit(table, groups="owner").coef_.tobytes().hex(), flush=True)
"""


def lines_of(path: Path) -> list[Any]:
    with contextlib.closing(Journal(path)) as opened:
        return [(dict(line.header), line.values.tobytes()) for line in opened.lines]


@pytest.mark.audit
def test_a_driver_that_is_killed_in_a_block_of_users_goes_on_with_these_users(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    owner = rng.permutation(np.r_[np.arange(90), rng.integers(0, 90, 180)])
    a = rng.uniform(-1, 1, 270)
    pq.write_table(
        pa.table({"a": a, "owner": owner, "ill": (a > 0).astype(np.int64)}), tmp_path / "rows.parquet"
    )
    Account.create(tmp_path / "budget.sqlite", 3.0, 1e-5, data_set="rows")
    folder, before = tmp_path / "kept", list[Any]()
    path = folder / "run-0001.journal"

    def run(engine: str, line: int) -> "subprocess.CompletedProcess[str]":
        words = [str(folder), str(tmp_path / "budget.sqlite"), str(tmp_path / "rows.parquet")]
        command = [sys.executable, "-c", SEARCH, *words, engine, str(line)]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)

    for engine, line in (("ray", 6), ("memory", 9)):  # a candidate's releases, of a block
        assert run(engine, line).returncode == -signal.SIGKILL
        lines = lines_of(path)
        assert lines[: len(before)] == before
        assert len(lines) == line
        before = lines
    done = run("ray", 0)
    assert done.returncode == 0, done.stderr
    assert lines_of(path)[: len(before)] == before
    assert sorted(file.name for file in folder.iterdir()) == ["run-0001.journal", "run-0001.mark"]
    assert run("memory", 0).stdout == done.stdout
    file = Account(path=tmp_path / "budget.sqlite").file
    assert file is not None
    assert len(file.payments()) == 1
