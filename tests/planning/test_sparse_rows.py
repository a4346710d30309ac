"""What a plan says of rows that are kept sparse: by the most entries that the schema allows, and as is measured."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from privopt import Budget, LogisticRegression, Table, losses, minimize
from privopt.cli import app
from privopt.commands import planning
from privopt.data.units import Units
from privopt.engine import choose
from privopt.engine.placement import Placement
from privopt.planning import averaging
from privopt.public import Public
from privopt.solve import plan
from privopt.tables import TabularEncoder

ROWS, SIZE, ACTIVE, OWNED = 4000, 20_000, 50, 10
BUDGET: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-8}
PRIVATE: dict[str, Any] = {**BUDGET, "solver": "gradient-descent"}


def described(active: int | None = ACTIVE) -> dict[str, Any]:
    """A set of at most so many of 20,000, and a number."""
    cap = {} if active is None else {"max_active": active}
    return {
        "target": "y",
        "columns": {
            "s": {"kind": "set", "size": SIZE, **cap},
            "x": {"kind": "num", "low": -1.0, "high": 1.0},
            "u": {"kind": "id"},
            "y": {"kind": "cat", "levels": [0, 1]},
        },
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table whose rows have as many entries as they may, and its schema."""
    made = tmp_path_factory.mktemp("sparse")
    rng = np.random.default_rng(0)
    active = np.sort(rng.integers(0, SIZE // ACTIVE, (ROWS, ACTIVE)) + np.arange(0, SIZE, SIZE // ACTIVE))
    columns = {
        "s": pa.array(list(active.astype(np.int32))),
        "x": rng.uniform(-1, 1, ROWS),
        "u": np.arange(ROWS) // OWNED,
        "y": rng.integers(0, 2, ROWS),
    }
    pq.write_table(pa.table(columns), made / "t.parquet")
    for name, cap in (("capped", ACTIVE), ("any", None)):
        (made / f"{name}.json").write_text(json.dumps(described(cap)), encoding="utf-8")
    return made


def place_of(folder: Path, schema: str, *words: Any) -> dict[str, Any]:
    """What the command says of the place, as JSON."""
    given = ("plan", "--schema", folder / f"{schema}.json", "--epsilon", 1, "--delta", 1e-8, "--json", *words)
    outcome = CliRunner().invoke(app, [*map(str, given), "--solver", "gradient-descent"])
    assert outcome.exit_code == 0, outcome.output
    return json.loads(outcome.stdout)["place"]


def held_bytes(units: Units) -> int:
    """What rows, targets, norms and presence take."""
    rows: Any = units.private_features
    return sum(
        array.nbytes
        for array in (
            rows.data,
            rows.indices,
            rows.indptr,
            units.private_targets,
            units.private_norms,
            units.private_present,
        )
    )


def test_numbers_by_hand() -> None:
    public = Public(n=10**6, d=20_002, sparse=True, row_entries=52)
    assert (public.stored_entries, public.row_bytes) == (52, 52 * (4 + 4) + 8)
    assert averaging.data_bytes(public) == 10**6 * (424 + 17)
    assert averaging.pass_seconds(public) == pytest.approx(10**6 * (52 * 5e-9 + 1.2e-8))
    assert averaging.loading_seconds(public) == pytest.approx(10**6 * 52 * 4e-8)
    users = dataclasses.replace(public, unit="user", records_per_unit=100, typical_records=10.0)
    assert averaging.data_bytes(users) == 10**7 * (424 + 17)
    wide = dataclasses.replace(public, storage="float64")
    assert wide.row_bytes == 52 * (8 + 4) + 8
    unknown = dataclasses.replace(public, row_entries=None)
    assert unknown.stored_entries == dataclasses.replace(public, row_entries=10**9).stored_entries == 20_002
    dense = dataclasses.replace(public, sparse=False)  # of dense rows the number of entries says nothing
    assert averaging.data_bytes(dense) == 10**6 * (4 * 20_002 + 17)
    assert averaging.pass_seconds(unknown) == averaging.pass_seconds(dense)
    assert not public.mapped(3, 1.0).sparse
    assert public.mapped(3, 1.0).row_entries is None


def test_auto_goes_by_the_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rows and a copy of them, an eighth for the rest, and what is read at a time.
    row = 51 * 8 + 8
    assert choose.needed_bytes(10**6, 20_001, entries=51) == 10**6 * 2 * row * 9 // 8 + 260_000_000
    assert (
        choose.needed_bytes(1000, 2000, entries=51) == 1000 * (row + 8000) * 9 // 8 + 510_000
    )  # a dense map
    for share, entries, engine in ((2, 51, "memory"), (1, 51, "stream"), (2, None, "stream")):
        monkeypatch.setattr(choose, "memory_share", lambda share=share: share * 10**9)
        assert choose.settled(Placement(), 10**6, 20_001, entries=entries).engine == engine


@pytest.mark.parametrize("entries", [0, -1, True, 2.5, "3"])
def test_what_is_no_number_of_entries_is_refused(entries: Any) -> None:
    model = LogisticRegression(bounds=(-1, 1), classes=[0, 1], **BUDGET)
    with pytest.raises(ValueError, match="row_entries must be a whole number of at least 1"):
        model.plan(n_features=5, n=1000, row_entries=entries)
    with pytest.raises(ValueError, match="row_entries must be a whole number of at least 1"):
        plan(losses.logistic, n=1000, d=5, row_entries=entries, **BUDGET)


@pytest.mark.audit
def test_the_command_says_what_the_schema_allows(folder: Path) -> None:
    capped = place_of(folder, "capped", "--n", 10**6, "--memory", "2GB")
    assert capped["engine"] == "memory"
    assert capped["rows"] == 441_000_000  # 10^6 rows of 50 of the set, a number and a constant
    assert capped["memory"] == 701_000_000
    assert capped["pass_seconds"] < 1 < place_of(folder, "any", "--n", 10**6)["pass_seconds"]
    anything = place_of(folder, "any", "--n", 10**6, "--memory", "2GB")
    assert (anything["engine"], anything["rows"]) == ("stream", 10**6 * (20_002 * 8 + 8 + 17))
    of_users = place_of(folder, "capped", "--n", 10**5, "--group", "u", "--typical-records", 10)
    assert of_users["rows"] == capped["rows"]
    words = ("plan", "--schema", folder / "any.json", "--n", 10**6, "--epsilon", 1, "--delta", 1e-8)
    text = " ".join(CliRunner().invoke(app, [*map(str, words)]).output.split())
    assert "rows count as full, as a set of the schema has no max_active" in text


@pytest.mark.at_once("stream-u")
@pytest.mark.parametrize("groups", [None, "u"])
@pytest.mark.parametrize("engine", ["memory", "stream"])
def test_a_fit_of_a_table_plans_what_it_stores(folder: Path, engine: Any, groups: str | None) -> None:
    table = Table.open(folder / "t.parquet", folder / "capped.json", engine=engine)
    users: dict[str, Any] = {"max_records_per_user": OWNED, "typical_records": OWNED}
    model = LogisticRegression(bounds=(-1, 1), classes=["0", "1"], random_state=0, **users, **PRIVATE)
    model.fit(table, groups=groups)
    public = model.plan_.public
    assert (public.sparse, public.row_entries) == (True, ACTIVE + 2)
    entries = TabularEncoder(described(), target="y").most_entries
    asked = model.plan(n_features=model.n_features_in_, n=public.n, by_user=bool(groups), row_entries=entries)
    same = ("memory_bytes", "seconds", "public")
    assert [getattr(asked, name) for name in same] == [getattr(model.plan_, name) for name in same]
    result = minimize(losses.logistic, table, budget=Budget(1.0, 1e-8), random_state=0)
    assert result.plan is not None
    assert result.plan.public.row_entries == ACTIVE + 1


@pytest.mark.parametrize("groups", [None, "u"])
def test_what_is_stored_is_what_was_planned(folder: Path, groups: str | None) -> None:
    table = Table.open(folder / "t.parquet", folder / "capped.json")
    engine: Any = table.engine(groups=groups, max_records_per_user=OWNED, typical_records=float(OWNED))
    stored, planned = held_bytes(engine.units), averaging.data_bytes(engine.public)
    assert planned / 1.5 < stored < 1.01 * planned
    few = ["--group", "u", "--max-records", OWNED, "--typical-records", OWNED] if groups else []
    said = place_of(folder, "capped", "--n", ROWS // OWNED if groups else ROWS, *few)
    assert said["rows"] / 1.5 < stored < 1.01 * said["rows"]


def test_a_dense_schema_is_planned_as_before(folder: Path) -> None:
    schema = {"columns": {name: {"kind": "num", "low": 0, "high": 1} for name in "abc"}}
    assert TabularEncoder(schema).most_entries is None
    assert TabularEncoder(schema, sparse_output=True).most_entries == 3
    assert planning.data_bytes(Public(n=10, d=3)) == 10 * (12 + 17)
