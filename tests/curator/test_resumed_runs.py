"""Searches, games, synthetic data, stages and blocks go on where they were stopped, once paid, and as the same run."""

import contextlib
import os
import stat
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import privopt
from privopt import Account, Budget, LogisticRegression, PrivateSearchCV, SyntheticData, Table, resumable
from privopt.curator import cuts
from privopt.curator.journal import Journal
from privopt.curator.run import Resumption
from privopt.data.places import GivenPlaces
from privopt.data.units import Units
from privopt.errors import ArgumentError, DataUnavailable
from privopt.games.dual_averaging import NoisyExponentiatedGradient
from privopt.papers.phased_sgd import PhasedSGD
from privopt.problems.losses import Huber
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.problems.saddle import BilinearGame

ROWS = 300
COLUMNS = {"a": {"kind": "num", "low": -1, "high": 1}, "b": {"kind": "num", "low": -1, "high": 1}}
SCHEMA = {"columns": {**COLUMNS, "ill": {"kind": "flag"}, "owner": {"kind": "id"}}, "target": "ill"}
RECORDS = np.random.default_rng(0).uniform(-1, 1, (ROWS, 2))
BUDGET = Budget(1.0, 1e-6)


class Stopped(BaseException):
    """Stands for `kill -9`."""


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "rows.parquet"
    ill = (RECORDS[:, 0] > 0).astype(np.int64)
    owner = np.random.default_rng(2).permutation(np.arange(ROWS) // 3)
    pq.write_table(pa.table({"a": RECORDS[:, 0], "b": RECORDS[:, 1], "ill": ill, "owner": owner}), path)
    return Table.open(path, SCHEMA)


def model(**arguments):
    arguments = {"epsilon": 1.0, "delta": 1e-6, "bounds": (-1, 1), "classes": [0, 1], **arguments}
    return LogisticRegression(**arguments)


CLOSE = [0.01, 0.0101]  # whichever is chosen, the last fit takes as many steps


def searched(table, account=None):
    base = LogisticRegression(bounds=(-1, 1), classes=[0, 1], solver="gradient-descent")
    search = PrivateSearchCV(base, {"alpha": CLOSE}, epsilon=1.0, delta=1e-6, account=account)
    return search.fit(table).best_estimator_.coef_


def played(table, account=None):
    del table
    signs = np.random.default_rng(1).choice([-1.0, 1.0], (ROWS, 6))
    units = Units.from_arrays(signs, row_bound=3.0)
    solver = NoisyExponentiatedGradient(steps=6)
    x, y = privopt.minimax(
        BilinearGame(rows=3, columns=3), units, budget=BUDGET, solver=solver, account=account
    ).params
    return np.concatenate([x, y])


def synthesised(table, account=None):
    schema = {"columns": {"ill": {"kind": "flag"}, "a": COLUMNS["a"]}}
    data = SyntheticData(schema, epsilon=1.0, delta=1e-6, bins=4, method="mwem", account=account)
    return data.fit(table).model_.marginal((0, 1))


def staged(table, account=None):
    return model(bounds=None, loose_bounds=(-100, 100), account=account).fit(table).coef_


def in_phases(table, account=None):
    return model(solver=PhasedSGD(phases=3), account=account).fit(table).coef_


def searched_by_user(table, account=None):
    chosen = model(
        alpha="private", alphas=CLOSE, solver="gradient-descent", max_records_per_user=2, account=account
    )
    return chosen.fit(table, groups="owner").coef_


def searched_as_they_come_and_go(table, account=None):
    here = {"relation": "add-or-remove-one", "n": ROWS + 7, "solver": "gradient-descent"}
    fitted = model(alpha="private", alphas=CLOSE, account=account, **here)
    return fitted.fit(table).coef_


RUNS = {
    "search": searched,
    "search by user": searched_by_user,
    "search as they come and go": searched_as_they_come_and_go,
    "game": played,
    "synthesis": synthesised,
    "stages": staged,
    "phases": in_phases,
}


def lines_of(path):
    with contextlib.closing(Journal(path)) as opened:
        return list(opened.lines)


@contextlib.contextmanager
def stopping(monkeypatch, line):
    """Where a run is stopped when this line is on disk, before anybody has seen its values."""
    plain = Journal.add

    def add(self, header, values):
        plain(self, header, values)
        if len(self.lines) == line:
            raise Stopped("kill -9")

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "add", add)
        yield


@pytest.mark.at_once("game")
@pytest.mark.parametrize("name", RUNS)
def test_it_goes_on_from_wherever_it_was_stopped_and_is_paid_once(tmp_path, monkeypatch, table, name):
    folder, account = tmp_path / "kept", Account(9.0, 1e-5)
    path, run = folder / "run-0001.journal", RUNS[name]
    if run is searched_as_they_come_and_go:
        account = Account(9.0, 1e-5, relation="add-or-remove-one")
    with resumable(tmp_path / "whole", data="toy"):
        run(table)
    whole = len(lines_of(tmp_path / "whole" / path.name))
    assert whole >= 5
    before = b""
    for line in sorted({1, 2, whole // 2, whole - 1}):
        with stopping(monkeypatch, line), pytest.raises(Stopped, match="kill"), resumable(folder, data="toy"):
            run(table, account)
        assert path.read_bytes().startswith(before)
        before = path.read_bytes()
        for file in folder.iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with resumable(folder, data="toy"):
        found = run(table, account)
    assert path.read_bytes().startswith(before)
    assert len(lines_of(path)) == whole
    assert sorted(file.suffix for file in folder.iterdir()) == [".journal", ".mark"]  # the key is gone
    with resumable(folder, data="toy"):
        np.testing.assert_array_equal(run(table, account), found)
    assert sum(entry.count for entry in account.entries) == 1


def test_records_stay_in_their_blocks_and_no_other_key_is_taken(tmp_path, monkeypatch, table):
    folder, found = tmp_path / "kept", []
    plain = cuts.block_assignment

    def assigned(*arguments, **named):
        found.append(plain(*arguments, **named))
        return found[-1]

    monkeypatch.setattr(cuts, "block_assignment", assigned)
    with stopping(monkeypatch, 6), pytest.raises(Stopped, match="kill"), resumable(folder, data="toy"):
        in_phases(table)
    key = folder / "run-0001.key"
    secret = key.read_bytes()
    assert len(secret) == 32
    key.write_bytes(bytes(32))
    with (
        pytest.raises(ArgumentError, match="is another one than when the records were cut"),
        resumable(folder, data="toy"),
    ):
        in_phases(table)
    key.unlink()  # as after a run that ended: what was released is repeated, and no block answers
    with pytest.raises(DataUnavailable, match="came to its end"), resumable(folder, data="toy"):
        in_phases(table)
    key.touch(mode=0o600)
    key.write_bytes(secret)
    with resumable(folder, data="toy"):
        in_phases(table)
    assert not key.exists()
    first, last = found[0], found[-1]
    assert len(first) == len(last) > 1
    for (places, size), (again, other) in zip(first, last, strict=True):
        assert size == other
        np.testing.assert_array_equal(places.within(0, ROWS), again.within(0, ROWS))
    assert not np.array_equal(first[0][0].within(0, ROWS), found[2][0][0].within(0, ROWS))


def test_units_that_another_process_might_not_find_again_are_not_cut(tmp_path, monkeypatch, table):
    account = Account(9.0, 1e-5)
    with (
        pytest.raises(ArgumentError, match="nothing says that arrays hold the same"),
        resumable(tmp_path / "kept", data="toy"),
    ):
        model(alpha="private", account=account).fit(RECORDS, RECORDS[:, 0] > 0, groups=np.arange(ROWS) // 2)
    monkeypatch.setattr("privopt.curator.cuts.part_count", lambda n, cap: 1 + n // 100)
    with (
        pytest.raises(ArgumentError, match="are laid out from a secret"),
        resumable(tmp_path / "users", data="toy"),
    ):
        searched_by_user(table, account)
    assert not account.entries


@pytest.mark.parametrize("engine", ["memory", "stream"])
def test_users_stand_at_the_same_places_whatever_the_secret_of_their_process(tmp_path, table, engine):
    rows, owner = 90, np.random.default_rng(3).integers(0, 20, 90)
    pq.write_table(pa.table({"a": owner / 20.0, "owner": owner}), tmp_path / "users.parquet")
    schema = {"columns": {"a": COLUMNS["a"], "owner": {"kind": "id"}}}
    firsts = list(dict.fromkeys(owner.tolist()))
    for cap in (1, rows):
        opened = Table.open(tmp_path / "users.parquet", schema, features=["a"], engine=engine)
        with contextlib.closing(opened.engine(groups="owner", max_records_per_user=cap)) as found:
            assert found.private_count == len(firsts)
            ones = found.subset(GivenPlaces(np.array([4, 7])), 2).units
            whose = np.asarray(ones.private_features)[ones.private_offsets[:-1], 0]
            np.testing.assert_allclose(whose, np.array(firsts)[[4, 7]] / 20.0, atol=1e-6)


@pytest.mark.at_once("changed5-penalty")
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"bounds": (-2, 1)}, "bounds"),
        ({"alpha": 0.5}, "alpha"),
        ({"delta": 1e-7}, "delta"),
        ({"storage": "int16"}, "storage"),
        ({"solver": "gradient-descent"}, "solver"),
        ({"penalty": "none"}, "penalty"),
    ],
)
def test_what_differs_is_named_before_a_row_is_read(tmp_path, monkeypatch, table, changed, named):
    folder = tmp_path / "kept"
    wide = {**SCHEMA, "columns": {**SCHEMA["columns"], "a": {**COLUMNS["a"], "high": 2}}}
    with resumable(folder, data="toy"):
        model().fit(table)
    before = (folder / "run-0001.journal").read_bytes()

    def read(*arguments):
        raise AssertionError("a row was read")

    monkeypatch.setattr("privopt.estimators.records.StoredRecords.units", read)
    with pytest.raises(ArgumentError, match=f"it differs in its {named}"), resumable(folder, data="toy"):
        model(**changed).fit(table)
    if named == "bounds":
        other = Table.open(tmp_path / "rows.parquet", wide)
        with pytest.raises(ArgumentError, match="it differs in its schema"), resumable(folder, data="toy"):
            model().fit(other)
    assert (folder / "run-0001.journal").read_bytes() == before


def test_losses_steps_and_files_are_compared(tmp_path, table):
    units = Units.from_arrays(RECORDS, RECORDS[:, 0], row_bound=2.0)
    folder, problem = tmp_path / "kept", Problem(Huber(0.5), Ridge(0.01))

    def solved(problem, solver="gradient-descent", **arguments):
        with resumable(folder, data="toy"):
            return privopt.minimize(problem, units, budget=BUDGET, solver=solver, **arguments)

    solved(problem)
    for other, named in (
        (replace(problem, loss=Huber(0.6)), "loss"),
        (replace(problem, regulariser=Ridge(0.02)), "penalty"),
    ):
        with pytest.raises(ArgumentError, match=f"differs in its {named}"):
            solved(other)
    with pytest.raises(ArgumentError, match="differs in its solver"):
        solved(problem, privopt.solvers.gradient_descent.GradientDescent(steps=3))
    owned = Account.create(tmp_path / "budget.sqlite", 3.0, 1e-5, data_set="rows")
    with pytest.raises(ArgumentError, match="differs in its account"):
        solved(problem, account=owned)
    with resumable(tmp_path / "table", data="toy"):
        model().fit(table)
    os.utime(tmp_path / "rows.parquet", (1, 1))
    changed = Table.open(tmp_path / "rows.parquet", SCHEMA)
    with (
        pytest.raises(ArgumentError, match="differs in its files"),
        resumable(tmp_path / "table", data="toy"),
    ):
        model().fit(changed)


def test_what_a_table_was_asked_for_is_compared(tmp_path):
    path = tmp_path / "rows.parquet"
    flags = {"ill": (RECORDS[:, 0] > 0).astype(np.int64), "well": (RECORDS[:, 0] < 0).astype(np.int64)}
    owners = {"person": np.arange(ROWS) // 2, "house": np.arange(ROWS) // 4}
    pq.write_table(pa.table({"a": RECORDS[:, 0], "b": RECORDS[:, 1], **flags, **owners}), path)
    kinds = {key: {"kind": "flag" if key in flags else "id"} for key in (*flags, *owners)}
    schema = {"columns": {**COLUMNS, **kinds}}
    wide = {"columns": {**schema["columns"], "a": {"kind": "num", "low": -5, "high": 1}}}

    def solved(schema=schema, target="ill", features=("a", "b")):
        given = Table.open(path, schema, target=target, features=features)
        with resumable(tmp_path / "solved", data="toy"):
            privopt.minimize(privopt.losses.logistic, given, budget=BUDGET, solver="gradient-descent")

    def fitted(groups):
        given = Table.open(path, schema, target="ill", features=["a", "b"], n=ROWS // 2)
        with resumable(tmp_path / "fitted", data="toy"):
            model(max_records_per_user=4, solver="gradient-descent").fit(given, groups=groups)

    def sought(target):
        given = Table.open(path, schema, target=target, features=["a", "b"])
        with resumable(tmp_path / "sought", data="toy"):
            searched(given)

    solved()
    fitted("person")
    sought("ill")
    for call, named in (
        (lambda: solved(schema=wide), "schema"),
        (lambda: solved(target="well"), "target"),
        (lambda: solved(features=("b", "a")), "features"),
        (lambda: fitted("house"), "groups"),
        (lambda: sought("well"), "target"),
    ):
        with pytest.raises(ArgumentError, match=f"it differs in its {named}"):
            call()
    solved()


@pytest.mark.later("file")
@pytest.mark.parametrize("where", ["file", "process"])
def test_a_payment_whose_line_is_missing_is_found_again(tmp_path, monkeypatch, table, where):
    account = Account(9.0, 1e-5)
    if where == "file":
        account = Account.create(tmp_path / "budget.sqlite", 9.0, 1e-5, data_set="rows")

    def stop(self, number):
        raise Stopped("kill -9")

    with monkeypatch.context() as patch:
        patch.setattr(Resumption, "note_payment", stop)
        for _ in range(2):
            with pytest.raises(Stopped, match="kill"), resumable(tmp_path / "kept", data="toy"):
                model(account=account, solver="gradient-descent").fit(table)
            assert sum(entry.count for entry in account.entries) == 1
    with resumable(tmp_path / "kept", data="toy"):
        model(account=account, solver="gradient-descent").fit(table)
    assert sum(entry.count for entry in account.entries) == 1
    with resumable(tmp_path / "another", data="toy"):
        model(account=account, solver="gradient-descent").fit(table)
    assert sum(entry.count for entry in account.entries) == 2


def test_a_folder_and_files_that_others_may_open_are_refused(tmp_path, table):
    open_to_all = tmp_path / "open"
    open_to_all.mkdir()
    open_to_all.chmod(0o755)
    with pytest.raises(ArgumentError, match="must be yours alone"), resumable(open_to_all, data="toy"):
        pass
    folder = tmp_path / "kept"
    with resumable(folder, data="toy"):
        played(table)
    path = folder / "run-0001.journal"
    path.chmod(0o644)
    with pytest.raises(ArgumentError, match="must be yours alone"), resumable(folder, data="toy"):
        played(table)
    path.chmod(0o600)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1  # the last line: without its mark it would pass for one that a crash cut short
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match="was cut, replaced or restored"), resumable(folder, data="toy"):
        played(table)
    assert path.read_bytes() == content


def test_a_journal_of_another_version_is_refused(tmp_path, monkeypatch, table):
    with monkeypatch.context() as patch, resumable(tmp_path / "kept", data="toy"):
        patch.setattr("privopt.curator.journals.metadata.version", lambda name: "0.0.1")
        played(table)
    with (
        pytest.raises(ArgumentError, match="differs in its version of privopt"),
        resumable(tmp_path / "kept", data="toy"),
    ):
        played(table)


def test_an_adaptive_program_with_a_stream_is_refused_before_it_is_paid(tmp_path, table):
    account = Account(9.0, 1e-5)
    schema = {"columns": {"ill": {"kind": "flag"}, "a": COLUMNS["a"]}}
    data = SyntheticData(schema, epsilon=1.0, delta=1e-6, bins=4, method="pmw", account=account)
    with pytest.raises(ArgumentError, match="opens a stream"), resumable(tmp_path / "kept", data="toy"):
        data.fit(table)
    assert not account.entries
    with pytest.raises(ArgumentError, match="holds points"), resumable(tmp_path / "kept", data="toy"):
        privopt.user_mean(RECORDS, np.arange(ROWS) // 2, bound=2.0, epsilon=1.0, delta=1e-6, account=account)
    assert not account.entries


@pytest.mark.later("searched")
@pytest.mark.parametrize("run", [searched, searched_by_user])
def test_another_engine_goes_on_with_the_same_blocks(tmp_path, monkeypatch, table, run):
    folder = tmp_path / "kept"
    with stopping(monkeypatch, 6), pytest.raises(Stopped, match="kill"), resumable(folder, data="toy"):
        run(table)
    streamed = Table.open(tmp_path / "rows.parquet", SCHEMA, engine="stream")
    with resumable(folder, data="toy"):
        found = run(streamed)
    with resumable(folder, data="toy"):
        np.testing.assert_array_equal(run(table), found)
