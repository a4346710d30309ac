"""Whoever lets an account pay has the run's room on the disk before it: every entry point, on a disk that is full."""

import ast
import gc
import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.small_disk import SmallDisk
from typer.testing import CliRunner

import privopt
from privopt import Account, BilinearGame, Budget, Table, Units
from privopt.cli import app
from privopt.data.record_source import ArrayRecords, Description
from privopt.engine.placement import Placement
from privopt.engine.streamed import StreamedEngine, open_streamed
from privopt.engine.streamed.spool import Spool
from privopt.errors import ArgumentError
from privopt.games.dual_averaging import SampledDualAveraging
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.whitening import Whitening

ROWS, D = 600, 4
RNG = np.random.default_rng(0)
FEATURES = RNG.uniform(-1, 1, (ROWS, D)).astype(np.float32)
LABELS = (FEATURES[:, 0] > 0).astype(int)
BUDGET = Budget(5.0, 1e-6)
ASKED: dict[str, Any] = {"epsilon": 5.0, "delta": 1e-6}
STAGED: dict[str, Any] = {"loose_bounds": (-50.0, 50.0)}
WHITENED = Whitening(inner=GradientDescent(steps=1))
SOURCE = Path(privopt.__file__).parent
# Where a run begins: with records that may lie in a spool, with some that never do, and with made-up ones.
STREAMED = {"estimators/search.py", "estimators/stages.py", "solve_runs.py"}
IN_MEMORY = {"mean_of_users.py"}
MADE_UP = {"commands/audit_map.py", "testing/programs.py"}
GAME = BilinearGame(rows=1, columns=D - 1)
PLAYED = SampledDualAveraging(batches="one pass", steps=3)


def fitted(name, **named):
    """An estimator that estimates bounds, so that it stores its rows twice."""
    return lambda table, account: getattr(privopt, name)(**ASKED, **STAGED, **named, account=account).fit(
        table
    )


def searched(table, account):
    model = privopt.LogisticRegression(solver=WHITENED)
    privopt.PrivateSearchCV(model, {"alpha": [0.1, 1.0]}, **ASKED, account=account).fit(table)


def played(table, account):
    engine = table.engine()
    try:
        privopt.minimax(GAME, engine, budget=BUDGET, solver=PLAYED, account=account)
    finally:
        engine.close()


def minimised(table, account):
    privopt.minimize(privopt.losses.logistic, table, budget=BUDGET, solver=WHITENED, account=account)


# Every public name that takes an account: how it comes to pay for a run on a streamed table.
PAYING: dict[str, Any] = {
    "FairClassifier": fitted("FairClassifier"),
    "HuberRegressor": fitted("HuberRegressor", target_bounds=(-1, 1)),
    "LassoClassifier": fitted("LassoClassifier"),
    "LassoRegressor": fitted("LassoRegressor", target_bounds=(-1, 1)),
    "LinearRegression": fitted("LinearRegression", target_bounds=(-1, 1)),
    "LinearSVC": fitted("LinearSVC"),
    "LogisticRegression": fitted("LogisticRegression"),
    "PoissonRegressor": fitted("PoissonRegressor", target_bounds=(0, 1)),
    "PrivateSearchCV": searched,
    "QuantileRegressor": fitted("QuantileRegressor", target_bounds=(-1, 1)),
    "Ridge": fitted("Ridge", target_bounds=(-1, 1)),
    "RobustClassifier": fitted("RobustClassifier"),
    "RobustRegressor": fitted("RobustRegressor", target_bounds=(-1, 1)),
    "minimax": played,
    "minimize": minimised,
}
QUICK = {"LogisticRegression", "PrivateSearchCV", "minimax", "minimize"}
# The others compute on arrays in memory alone, and refuse a streamed table.
REFUSING: dict[str, Any] = {
    "SyntheticData": lambda table, account: privopt.SyntheticData(
        table.schema, **ASKED, n=ROWS, account=account
    ).fit(table),
    "user_mean": lambda table, account: privopt.user_mean(
        table, np.arange(ROWS), bound=1.0, **ASKED, account=account
    ),
}
SHOWN = {"PrivacyReport"}  # says how much of an account is used


@pytest.fixture
def table(tmp_path):
    """A streamed table, and the folder of its spool."""
    columns = {f"x{k}": {"kind": "num", "low": -5, "high": 5} for k in range(D)}
    schema = {"columns": columns | {"y": {"kind": "flag"}}, "target": "y"}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    values = {f"x{k}": FEATURES[:, k] for k in range(D)} | {"y": LABELS}
    pq.write_table(pa.table(values), tmp_path / "t.parquet")
    (tmp_path / "spool").mkdir()
    return Table.open(tmp_path / "t.parquet", schema, engine="stream", spool=tmp_path / "spool")


@pytest.fixture
def disk(tmp_path, monkeypatch):
    """A disk that is full as soon as the rows are stored."""
    small, reserve = SmallDisk(tmp_path / "spool", monkeypatch), StreamedEngine.reserve

    def on_a_full_disk(self, extra):
        small.size = small.taken()
        return reserve(self, extra)

    monkeypatch.setattr(StreamedEngine, "reserve", on_a_full_disk)
    return small


@pytest.mark.at_once("minimax")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.audit) for name in PAYING]
)
def test_who_pays_has_the_room_before(name, table, disk):
    account = Account(10.0, 1e-4)
    with pytest.raises(
        ArgumentError,
        match=r"no room for the rows .* \(--spool\)\. At least [0-9.]+ MB are missing\. It is needed",
    ):
        PAYING[name](table, account)
    assert not account.entries
    assert disk.most > 0
    gc.collect()
    assert disk.taken() == 0


@pytest.mark.parametrize("name", REFUSING)
def test_who_has_no_room_to_take_refuses_a_streamed_table(name, table, disk):
    account = Account(10.0, 1e-4)
    with pytest.raises(
        (TypeError, ValueError), match=r"takes arrays|in the memory of this process|must be numbers"
    ):
        REFUSING[name](table, account)
    assert not account.entries
    assert disk.most == 0


def test_every_public_name_that_takes_an_account_is_among_these():
    paying = {
        name
        for name in privopt.__all__
        if callable(getattr(privopt, name))
        and "account" in inspect.signature(getattr(privopt, name)).parameters
    }
    assert paying == {*PAYING, *REFUSING, *SHOWN}


def test_an_account_pays_in_one_place_and_a_run_begins_in_few():
    begun, paid = set[str](), set[str]()
    for path in SOURCE.rglob("*.py"):
        file = path.relative_to(SOURCE).as_posix()
        text = path.read_text()
        if not any(call in text for call in ("Run(", "started(", ".spend(")):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                begun |= {file} if name in ("Run", "started") else set()
                paid |= {file} if name.endswith(".spend") and not file.startswith("ledger/") else set()
    assert paid == {"curator/run.py"}
    assert begun == STREAMED | IN_MEMORY | MADE_UP
    for file in STREAMED:  # a new one comes among those above
        assert "reserve" in (SOURCE / file).read_text()


def test_the_command_says_so_too(table, disk, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    amounts = ("--epsilon", 5, "--delta", 1e-6)
    opened = run("account", "create", "a.sqlite", "--data-set", "t", "--epsilon", 10, "--delta", 1e-4)
    assert opened.exit_code == 0, opened.output
    where = ("--engine", "stream", "--spool", "spool", "--account", "a.sqlite", "--output", "model")
    solver = ("--solver", "whitening")
    found = run("fit", "t.parquet", "--schema", "schema.json", *amounts, *where, *solver)
    assert found.exit_code == 2, found.output
    assert "MB are missing" in found.output
    assert not Account(path="a.sqlite").entries
    assert not (tmp_path / "model").exists()


def test_a_game_is_played_alike_on_a_disk(tmp_path):
    units = Units.from_arrays(FEATURES, row_bound=2.0)
    engine = open_streamed(ArrayRecords(FEATURES), Description(row_bound=2.0), Placement(spool=tmp_path))
    one, other = (
        privopt.minimax(GAME, data, budget=BUDGET, solver=PLAYED, random_state=0) for data in (units, engine)
    )
    for mine, its in zip(one.params, other.params, strict=True):
        assert np.asarray(mine).tobytes() == np.asarray(its).tobytes()
    room = engine.units.room
    assert isinstance(room, Spool)
    engine.close()
