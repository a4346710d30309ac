"""A run that was stopped goes on from its journal: each release once, one payment, and the result of one run."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import privopt
from privopt import Account, Budget, LogisticRegression, Table, minimize, resumable
from privopt.curator import journal
from privopt.curator.journal import Journal
from privopt.data.units import Units
from privopt.errors import AccountError, ArgumentError, DataUnavailable, ReplayMismatch
from privopt.problems import losses
from privopt.problems.losses import Logistic

ROWS = np.random.default_rng(0).normal(size=(400, 3))
LABELS = ROWS[:, 0] > 0
SOLVERS = ("auto", "stochastic-gradient-descent")  # releases one by one; a compiled loop

RUN = """
import sys
import numpy as np
from privopt import Account, LogisticRegression, resumable
rows = np.random.default_rng(0).normal(size=(400, 3))
account = Account(path=sys.argv[2])
with resumable(sys.argv[1], data="toy"):
    print("ready", flush=True)
    model = LogisticRegression(epsilon=1.0, delta=1e-6, bounds=(-3, 3), classes=[False, True], account=account,
                               solver="gradient-descent")
    print(model.fit(rows, rows[:, 0] > 0).coef_.tobytes().hex(), flush=True)
"""


def fitted(folder, solver="auto", **arguments):
    arguments = {"epsilon": 1.0, "delta": 1e-6, "bounds": (-3, 3), "classes": [False, True], **arguments}
    with resumable(folder, data="toy"):
        return LogisticRegression(solver=solver, **arguments).fit(ROWS, LABELS)


def ends_of_lines(path):
    """Where each line of a journal ends."""
    opened, ends = Journal(path), [0]
    for line in opened.lines:
        ends.append(ends[-1])
        content = path.read_bytes()
        long, size, _ = journal._LENGTHS.unpack(content[ends[-1] : ends[-1] + 24])
        ends[-1] += 24 + long + size + 32
        assert size == line.values.nbytes
    opened.close()
    return ends


@pytest.mark.later("stochastic-gradient-descent")
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_run_that_ended_gives_its_result_again_and_one_cut_anywhere_goes_on(tmp_path, solver):
    whole = fitted(tmp_path, solver)
    np.testing.assert_array_equal(fitted(tmp_path, solver).coef_, whole.coef_)
    path, mark = tmp_path / "run-0001.journal", tmp_path / "run-0001.mark"
    content, ends = path.read_bytes(), ends_of_lines(path)
    assert path.stat().st_mode & 0o777 == 0o600
    kept = len(ends) // 2
    path.write_bytes(content[: ends[kept] + 7])  # the next line was being written
    with pytest.raises(ArgumentError, match="was cut, replaced or restored"):
        fitted(tmp_path, solver)
    mark.unlink()  # which a crash keeps no further than the lines
    again = fitted(tmp_path, solver)
    assert path.read_bytes()[: ends[kept]] == content[: ends[kept]]
    assert path.read_bytes() != content
    assert len(ends_of_lines(path)) == len(ends)
    assert not np.array_equal(again.coef_, whole.coef_)
    assert again.privacy_.epsilon == whole.privacy_.epsilon


MODEL = {
    "epsilon": 1.0,
    "delta": 1e-6,
    "bounds": (-3, 3),
    "classes": [False, True],
    "solver": "gradient-descent",
}


def test_arrays_that_nothing_names_are_not_resumed(tmp_path):
    """Two fits in another order would be taken for one another, and some people released twice."""
    with resumable(tmp_path / "none"), pytest.raises(ArgumentError, match="fits in another order"):
        LogisticRegression(**MODEL).fit(ROWS, LABELS)
    with resumable(tmp_path / "none"), pytest.raises(ArgumentError, match="no account pays"):
        minimize(
            losses.logistic,
            Units.from_arrays(ROWS, LABELS, row_bound=3.0, classes=[False, True]),
            budget=Budget(1.0, 1e-6),
        )
    assert not list((tmp_path / "none").iterdir())
    for name in ("", " ", 7):
        with (
            pytest.raises(ArgumentError, match="data must be a name"),
            resumable(tmp_path / "none", data=name),
        ):
            pass
    with resumable(tmp_path / "paid"):
        LogisticRegression(**MODEL, account=Account(1.0, 1e-5)).fit(ROWS, LABELS)
    with resumable(tmp_path / "paid"), pytest.raises(ArgumentError, match="is lost with its process"):
        LogisticRegression(**MODEL, account=Account(1.0, 1e-5)).fit(-ROWS, LABELS)
    with resumable(tmp_path / "named", data="patients"):
        first = LogisticRegression(**MODEL).fit(ROWS, LABELS)
    with (
        resumable(tmp_path / "named", data="members"),
        pytest.raises(ArgumentError, match="in its name of the data"),
    ):
        LogisticRegression(**MODEL).fit(-ROWS, LABELS)
    with resumable(tmp_path / "named"), pytest.raises(ArgumentError, match="in its account"):
        LogisticRegression(**MODEL, account=Account(1.0, 1e-5)).fit(ROWS, LABELS)
    with resumable(tmp_path / "named", data="patients"):
        assert np.array_equal(LogisticRegression(**MODEL).fit(ROWS, LABELS).coef_, first.coef_)


def test_files_name_their_data_themselves(tmp_path):
    columns = {name: {"kind": "num", "low": -3, "high": 3} for name in "abc"} | {"y": {"kind": "flag"}}
    data = dict(zip("abc", ROWS.T, strict=True)) | {"y": LABELS}
    pq.write_table(pa.table(data), tmp_path / "rows.parquet")
    table = Table.open(tmp_path / "rows.parquet", {"columns": columns, "target": "y"})
    options = {"epsilon": 1.0, "delta": 1e-6, "solver": "gradient-descent"}
    with resumable(tmp_path / "runs"):
        first = LogisticRegression(**options).fit(table)
        minimize(losses.logistic, table.engine(), budget=Budget(1.0, 1e-6), solver="gradient-descent")
    with resumable(tmp_path / "runs"):
        assert np.array_equal(LogisticRegression(**options).fit(table).coef_, first.coef_)


def test_a_journal_belongs_to_one_thread(tmp_path):
    """`asyncio.to_thread` copies the context: its runs are like those of any other thread, which keep no journal."""

    async def in_threads():
        fit = LogisticRegression(**MODEL).fit
        return await asyncio.gather(*(asyncio.to_thread(fit, rows, LABELS) for rows in (ROWS, -ROWS)))

    with resumable(tmp_path, data="patients"):
        others = asyncio.run(in_threads())
        assert not list(tmp_path.iterdir())
        own = LogisticRegression(**MODEL).fit(ROWS, LABELS)
    with resumable(tmp_path, data="patients"):
        again = asyncio.run(in_threads())
        assert np.array_equal(LogisticRegression(**MODEL).fit(ROWS, LABELS).coef_, own.coef_)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["run-0001.journal", "run-0001.mark"]
    assert not np.array_equal(again[0].coef_, others[0].coef_)
    written = Journal(tmp_path / "a.journal")
    with ThreadPoolExecutor(1) as pool, pytest.raises(DataUnavailable, match="the thread that began it"):
        pool.submit(written.add, {"name": "first"}, np.ones(2)).result()
    written.close()


def test_a_task_that_goes_on_after_the_block_keeps_no_journal(tmp_path):
    """Its context is a copy of that of the block; the folder may be another process's by then."""

    async def in_a_task():
        async def fit():
            return LogisticRegression(**MODEL).fit(ROWS, LABELS)

        with resumable(tmp_path, data="patients"):
            late = asyncio.create_task(fit())
        return await late

    asyncio.run(in_a_task())
    assert not list(tmp_path.iterdir())


def test_a_killed_run_is_paid_once_and_repeats_what_it_released(tmp_path):
    account = Account.create(tmp_path / "budget.sqlite", 3.0, 1e-5, data_set="rows")
    folder, arguments = tmp_path / "runs", [sys.executable, "-c", RUN]
    arguments += [str(folder), str(account.file.path)]
    path = folder / "run-0001.journal"
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, env=os.environ) as child:
        while not (path.exists() and path.stat().st_size > 4000):
            assert child.poll() is None
            time.sleep(0.002)
        os.kill(child.pid, signal.SIGKILL)
    ends, content = ends_of_lines(path), path.read_bytes()
    found = [fitted(folder, "gradient-descent", account=account).coef_ for _ in range(2)]
    assert path.read_bytes()[: ends[-1]] == content[: ends[-1]]
    assert found[0].tobytes() == found[1].tobytes()
    assert sum(entry.count for entry in account.entries) == 1


@pytest.mark.audit
def test_a_hundred_kills_at_random_moments_are_paid_once(tmp_path):
    moments = np.random.default_rng(1)
    for number in range(10):  # runs, each killed ten times on its way
        account = Account.create(tmp_path / f"{number}.sqlite", 3.0, 1e-5, data_set="rows")
        folder = tmp_path / str(number)
        arguments = [sys.executable, "-c", RUN, str(folder), str(account.file.path)]
        path, before = folder / "run-0001.journal", b""
        for _ in range(10):
            with subprocess.Popen(arguments, stdout=subprocess.PIPE, env=os.environ) as child:
                assert child.stdout is not None
                child.stdout.readline()
                time.sleep(moments.exponential(1.0))
                child.kill()
            whole = path.read_bytes() if path.exists() else b""
            kept = ends_of_lines(path)[-1] if whole else 0
            assert whole[:kept].startswith(before)
            before = whole[:kept]
        done = subprocess.run(arguments, capture_output=True, text=True, check=True, env=os.environ)
        again = subprocess.run(arguments, capture_output=True, text=True, check=True, env=os.environ)
        assert path.read_bytes().startswith(before)
        assert again.stdout == done.stdout
        assert sum(entry.count for entry in account.entries) == 1


def test_another_run_is_refused(tmp_path):
    fitted(tmp_path)
    with pytest.raises(ArgumentError, match="belongs to another run: it differs in its epsilon"):
        fitted(tmp_path, epsilon=2.0)
    with pytest.raises(ArgumentError, match="belongs to another run: it differs in its solver"):
        fitted(tmp_path, "gradient-descent")


def test_another_program_under_the_same_plan_is_refused(tmp_path):
    path = tmp_path / "run-0001.journal"
    fitted(tmp_path, "gradient-descent")
    made, other = Journal(path), tmp_path / "other"
    other.mkdir(mode=0o700)
    changed = Journal(other / path.name)
    for line in made.lines:
        header = {**line.header, "name": "something else"} if "name" in line.header else line.header
        changed.add(
            {key: value for key, value in header.items() if key not in ("dtype", "shape")}, line.values
        )
    made.close(), changed.close()
    with pytest.raises(ReplayMismatch, match="the journal has 'something else'"):
        fitted(other, "gradient-descent")


@pytest.mark.parametrize(
    ("solver", "what"),
    [("correlated-noise-descent", "stream"), ("phased-sgd", "nothing says that arrays hold the same")],
)
def test_hidden_state_is_refused_before_anything_is_paid(tmp_path, solver, what):
    account = Account(2.0, 1e-5)
    with pytest.raises(ArgumentError, match=what):
        fitted(tmp_path, solver, account=account)
    assert not account.entries


def test_seeds_and_searches_in_arrays_are_refused_before_anything_is_paid(tmp_path):
    account = Account(2.0, 1e-5)
    with pytest.raises(ArgumentError, match="seed"):
        fitted(tmp_path, random_state=1, account=account)
    with pytest.raises(ArgumentError, match="nothing says that arrays hold the same"):
        fitted(tmp_path, alpha="private", account=account)
    assert not account.entries


def test_a_payment_that_is_no_longer_there_is_refused(tmp_path):
    account = Account.create(tmp_path / "budget.sqlite", 3.0, 1e-5, data_set="rows")
    folder = tmp_path / "runs"
    fitted(folder, account=account)
    assert sum(entry.count for entry in account.entries) == 1
    other = Account.create(tmp_path / "another.sqlite", 3.0, 1e-5, data_set="rows")
    with pytest.raises(AccountError, match="payment 1"):
        fitted(folder, account=other)
    assert not other.entries


def test_what_cannot_be_written_is_shown_to_nobody(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    seen, path = [], tmp_path / "run-0001.journal"
    with resumable(tmp_path, data="toy"):
        units = Units.from_arrays(ROWS, LABELS, row_bound=1.0, classes=[False, True])
        monkeypatch.setattr(journal.os, "fsync", lambda handle: None)

        def observer(name, count):
            seen.append((name, count))
            monkeypatch.setattr(journal.os, "fsync", full)

        with pytest.raises(DataUnavailable, match="no space left"):
            privopt.minimize(
                Logistic(), units, budget=Budget(1.0, 1e-6), solver="gradient-descent", observer=observer
            )
    assert sum(count for _, count in seen) == 1
    monkeypatch.undo()
    before = path.read_bytes()
    with resumable(tmp_path, data="toy"):
        privopt.minimize(Logistic(), units, budget=Budget(1.0, 1e-6), solver="gradient-descent")
    assert path.read_bytes().startswith(before)


def test_one_process_at_a_time_and_nothing_but_journals(tmp_path):
    with resumable(tmp_path / "new", data="toy"):
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
        with pytest.raises(ArgumentError, match="in use"), resumable(tmp_path / "new", data="toy"):
            pass
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(ArgumentError, match="cannot be used"), resumable(tmp_path / "file", data="toy"):
        pass
    fitted(tmp_path / "new")
    path = tmp_path / "new" / "run-0001.journal"
    content = bytearray(path.read_bytes())
    content[200] ^= 1
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match="no journal"):
        fitted(tmp_path / "new")


def test_all_runs_of_a_block_keep_their_journals_in_the_folder_that_it_locked(tmp_path, monkeypatch):
    """Another folder of that name may be another process's, and would hold its releases, or lose these."""
    for name in ("here", "there"):
        (tmp_path / name / "runs").mkdir(parents=True, mode=0o700)
    monkeypatch.chdir(tmp_path / "here")
    with resumable("runs", data="toy"):
        LogisticRegression(**MODEL).fit(ROWS, LABELS)
        os.chdir(tmp_path / "there")
        LogisticRegression(**MODEL).fit(ROWS, LABELS)
        assert not list((tmp_path / "there" / "runs").iterdir())
        assert len(list((tmp_path / "here" / "runs").glob("*.journal"))) == 2
        (tmp_path / "here" / "runs").rename(tmp_path / "moved")
        (tmp_path / "there" / "runs").rename(tmp_path / "here" / "runs")
        with pytest.raises(ArgumentError, match="is another folder than"):
            LogisticRegression(**MODEL).fit(ROWS, LABELS)
    assert not list((tmp_path / "here" / "runs").iterdir())


def test_a_damaged_length_hides_no_line_behind_it(tmp_path):
    fitted(tmp_path, "gradient-descent")
    path = tmp_path / "run-0001.journal"
    ends, content = ends_of_lines(path), bytearray(path.read_bytes())
    content[ends[3] + 13] ^= 1  # of an array's size: a line of many terabytes, which ends nowhere
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match="was changed"):
        fitted(tmp_path, "gradient-descent")
    assert path.read_bytes() == content


def test_zeros_that_a_power_cut_left_are_dropped_and_hide_no_line(tmp_path):
    path = tmp_path / "run-0001.journal"
    made = Journal(path)
    made.add({"name": "a"}, np.arange(3.0)), made.add({"name": "b"}, np.arange(3.0))
    made.close()
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(4096))
    again = Journal(path)
    assert [line.header["name"] for line in again.lines] == ["a", "b"]
    again.close()
    assert path.read_bytes() == whole
    mark = path.with_suffix(".mark")
    stored = mark.read_bytes()
    mark.write_bytes(bytes(len(stored)))  # which is not waited for, as the line is
    again = Journal(path)
    assert [line.header["name"] for line in again.lines] == ["a", "b"]
    again.close()
    mark.write_bytes(stored)
    path.write_bytes(whole + bytes(4096) + b"x")
    with pytest.raises(ArgumentError, match="is no journal of a run"):
        Journal(path)
    path.write_bytes(whole[: len(whole) // 2] + bytes(len(whole)))  # of a line that was there
    with pytest.raises(ArgumentError, match=r"does not hold the 2 lines|is no journal"):
        Journal(path)


def test_after_a_line_that_could_not_be_written_there_is_no_other(tmp_path, monkeypatch):
    path = tmp_path / "a.journal"
    written = Journal(path)
    written.add({"name": "first"}, np.ones(2))

    def full(handle):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(journal.os, "fsync", full)
        with pytest.raises(DataUnavailable, match="no space left"):
            written.add({"name": "second"}, np.ones(2))
    with pytest.raises(ValueError, match="closed"):
        written.add({"name": "third"}, np.ones(2))
    again = Journal(path)
    assert [line.header["name"] for line in again.lines] == ["first", "second"]
    again.close()


def test_a_line_that_ctrl_c_stopped_is_followed_by_no_other(tmp_path, monkeypatch):
    path = tmp_path / "a.journal"
    written = Journal(path)
    written.add({"name": "first"}, np.ones(2))

    def stop(*_):
        raise KeyboardInterrupt("Ctrl-C")

    for count, stopped in (
        (1, (journal.os, "fsync")),
        (2, (journal, "Line")),
    ):  # before and after it was counted
        with monkeypatch.context() as patch:
            patch.setattr(*stopped, stop)
            with pytest.raises(KeyboardInterrupt, match="Ctrl-C"):
                written.add({"name": f"after {count}"}, np.ones(200))
        with pytest.raises(ValueError, match="closed"):
            written.add({"name": "in its place"}, np.ones(2))
        written = Journal(path)
        assert [line.header["name"] for line in written.lines] == ["first", "after 1", "after 2"][: count + 1]
    written.close()


def test_a_first_line_whose_file_may_lose_its_name_is_shown_to_nobody(tmp_path, monkeypatch):
    written = Journal(tmp_path / "a.journal")

    def fail(folder):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(journal, "keep_names", fail)
        with pytest.raises(
            DataUnavailable, match=r"cannot be written: input/output error\. .* shown to nobody"
        ):
            written.add({"name": "first"}, np.ones(2))
    assert not written.lines
    again = Journal(tmp_path / "a.journal")  # which the other one has let go of
    assert [line.header["name"] for line in again.lines] == ["first"]
    again.close()


def test_a_fork_and_a_second_name_of_the_file_are_refused(tmp_path, monkeypatch):
    written = Journal(tmp_path / "a.journal")
    (tmp_path / "b.journal").hardlink_to(tmp_path / "a.journal")
    with pytest.raises(ArgumentError, match="in use"):
        Journal(tmp_path / "b.journal")
    monkeypatch.setattr(journal.os, "getpid", lambda: -1)
    with pytest.raises(DataUnavailable, match="forked process"):
        written.add({"name": "first"}, np.ones(2))
    written.close()


@pytest.mark.parametrize(
    ("solver", "what"),
    [("correlated-noise-descent", "stream"), ("phased-sgd", "nothing says that arrays hold the same")],
)
def test_hidden_state_of_a_second_stage_is_refused_before_anything_is_paid(tmp_path, solver, what):
    account = Account(2.0, 1e-5)
    with pytest.raises(ArgumentError, match=what):
        fitted(tmp_path, solver, account=account, bounds=None, loose_bounds=(-100, 100))
    assert not account.entries
