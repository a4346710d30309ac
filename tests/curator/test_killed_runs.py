"""A search, a game and a payment that are killed at random moments: the same releases, and one charge."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from privopt import Account
from privopt.curator.journal import Journal

COMMON = """
import os, signal, sys
import numpy as np
import privopt
from privopt.curator.run import Resumption
folder, budget, table = sys.argv[1:4]
account = privopt.Account(path=budget)
if len(sys.argv) > 4:  # killed between the payment and its line
    Resumption.note_payment = lambda self, number: os.kill(os.getpid(), signal.SIGKILL)
print("ready", flush=True)
"""
SEARCH = """
schema = {"columns": {name: {"kind": "num", "low": -1, "high": 1} for name in "ab"} | {"ill": {"kind": "flag"}}}
model = privopt.LogisticRegression(bounds=(-1, 1), classes=[0, 1], solver="gradient-descent")
grid = {"alpha": list(np.geomspace(1e-3, 1.0, 8))}
search = privopt.PrivateSearchCV(model, grid, epsilon=1.0, delta=1e-6, account=account)
with privopt.resumable(folder, data="toy"):
    found = search.fit(privopt.Table.open(table, schema, target="ill")).best_estimator_.coef_
print(found.tobytes().hex(), flush=True)
"""
GAME = """
from privopt.games.dual_averaging import NoisyExponentiatedGradient
from privopt.problems.saddle import BilinearGame
signs = np.random.default_rng(1).choice([-1.0, 1.0], (400, 10))
units = privopt.Units.from_arrays(signs, row_bound=4.0)
with privopt.resumable(folder, data="toy"):
    x, y = privopt.minimax(
        BilinearGame(rows=5, columns=5), units, budget=privopt.Budget(1.0, 1e-6), account=account,
        solver=NoisyExponentiatedGradient(steps=2000),
    ).params
print(np.concatenate([x, y]).tobytes().hex(), flush=True)
"""


def lines_of(path: Path) -> list[Any]:
    """What stands in a journal, as (header, bytes)."""
    with contextlib.closing(Journal(path)) as opened:
        return [(dict(line.header), line.values.tobytes()) for line in opened.lines]


def await_growth(child: "subprocess.Popen[bytes]", path: Path, more: int) -> None:
    """Wait until a journal has grown by so many bytes, or the process has ended."""
    before = path.stat().st_size if path.exists() else 0
    while more and child.poll() is None and (path.stat().st_size if path.exists() else 0) < before + more:
        time.sleep(0.001)


@pytest.fixture
def arguments(tmp_path: Path) -> list[str]:
    """Of the script: a folder to be, an account and a table."""
    rows = np.random.default_rng(0).uniform(-1, 1, (400, 2))
    ill = (rows[:, 0] > 0).astype(np.int64)
    pq.write_table(pa.table({"a": rows[:, 0], "b": rows[:, 1], "ill": ill}), tmp_path / "rows.parquet")
    Account.create(tmp_path / "budget.sqlite", 3.0, 1e-5, data_set="rows")
    return [str(tmp_path / name) for name in ("kept", "budget.sqlite", "rows.parquet")]


@pytest.mark.audit
@pytest.mark.parametrize("program", [SEARCH, GAME], ids=["search", "game"])
def test_thirty_kills_at_random_moments_are_paid_once(
    tmp_path: Path, arguments: list[str], program: str, evidence: Any
) -> None:
    command = [sys.executable, "-c", COMMON + program, *arguments]
    path, moments, before = tmp_path / "kept" / "run-0001.journal", np.random.default_rng(1), list[Any]()
    reached = set[int]()  # how far the runs came
    for number in range(30):
        killed = [*command, "while paying"] if number in (0, 1) else command
        with subprocess.Popen(
            killed, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=os.environ
        ) as child:
            assert child.stdout is not None
            child.stdout.readline()
            if killed is command:
                more = (
                    0 if number % 3 == 2 else int(moments.exponential(1500.0))
                )  # bytes, from where it goes on
                await_growth(child, path, more)
                time.sleep(moments.exponential(0.002 if more else 0.5))
                child.kill()
            assert child.wait() in (-signal.SIGKILL, 0)
        lines = lines_of(path) if path.exists() else []
        assert lines[: len(before)] == before  # what was released is never released again
        before = lines
        reached.add(len(lines))
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    again = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    assert lines_of(path)[: len(before)] == before
    assert again.stdout == done.stdout
    assert len(reached) > 3
    assert not path.with_suffix(".key").exists()
    charged = len(Account(path=arguments[1]).file.payments())  # type: ignore[union-attr]
    assert charged == 1
    evidence("resumption", f"a killed {'search' if program is SEARCH else 'game'}", tried=30, of="kills",
             largest=charged, bound=1)  # fmt: skip


@pytest.mark.audit
def test_runs_and_copies_of_their_folder_that_are_killed_come_to_one_result(
    tmp_path: Path, arguments: list[str], evidence: Any
) -> None:
    """Two at a time of up to five folders, killed somewhere; at last each is started again, and all that end agree."""
    moments, folders, ended, refused = np.random.default_rng(2), [Path(arguments[0])], set[str](), 0

    def started(folder: Path) -> "subprocess.Popen[str]":
        command = [sys.executable, "-c", COMMON + SEARCH, str(folder), *arguments[1:]]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
        )

    def journal(folder: Path) -> Path:
        return folder / "run-0001.journal"

    def told(child: "subprocess.Popen[str]") -> int:
        """What came of a process: how often it was refused; a result is noted."""
        out, said = child.communicate()
        if child.returncode > 0:
            assert re.search("AccountError|in use by another|DataUnavailable", said), said
        elif child.returncode == 0:
            ended.add(out.split()[-1])
        return child.returncode > 0

    first = started(folders[0])
    while not journal(folders[0]).exists() or journal(folders[0]).stat().st_size < 4000:
        time.sleep(0.001)
    first.kill()
    told(first)
    for _ in range(6):
        folder = folders[moments.integers(len(folders))]
        if len(folders) < 5:
            folders.append(tmp_path / f"copy {len(folders)}")
            shutil.copytree(folder, folders[-1])
        some = [started(folder), started(folders[moments.integers(len(folders))])]
        before = journal(folder).stat().st_size
        more = before + int(moments.exponential(1500.0))
        while some[0].poll() is None and journal(folder).stat().st_size < more:
            time.sleep(0.001)
        for child in some:
            child.kill()
            refused += told(child)
    refused += sum(told(started(folder)) for folder in folders)
    assert len(ended) == 1
    assert refused > 0
    charged = len(Account(path=arguments[1]).file.payments())  # type: ignore[union-attr]
    assert charged == 1
    evidence("resumption", "killed copies of a folder", tried=13, of="kills", largest=charged, bound=1)
