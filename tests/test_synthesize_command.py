"""`privopt synthesize`: rows in the table's values, plan before, report after, one sentence for every mistake."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from tests.support.report_schema import require_valid
from typer.testing import CliRunner

from privopt.cli import app
from privopt.commands.synthesizing import _about
from privopt.estimators.synthetic_data import SyntheticError

SCHEMA = {
    "columns": {
        "person": {"kind": "id"},
        "sex": {"kind": "cat", "levels": ["f", "m"]},
        "age": {"kind": "num", "low": 0, "high": 99, "integer": True},
        "smokes": {"kind": "flag"},
    }
}
BUDGET = ("--epsilon", "2", "--delta", "auto")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("synthesize")
    rng = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "person": np.arange(900) // 3,
            "sex": rng.choice(["f", "m"], 900),
            "age": rng.integers(0, 100, 900),
            "smokes": rng.integers(0, 2, 900),
            "diary": "never read",
        }
    )
    table.to_parquet(path / "table.parquet")
    table.drop(columns="age").to_csv(path / "short.csv", index=False)
    (path / "schema.json").write_text(json.dumps({"people": SCHEMA}))
    return path


def run(folder: Path, *arguments: Any, table: str = "table.parquet", code: int = 0) -> str:
    """What is printed; the schema is given, and the exit code checked."""
    typed = ["synthesize", str(folder / table), "--schema", str(folder / "schema.json"), *map(str, arguments)]
    result = CliRunner().invoke(app, typed)
    assert result.exit_code == code, result.output
    return re.sub(r"\s+", " ", result.output)


def test_rows_and_a_report_are_written_and_the_plan_is_printed_first(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "rows.parquet"
    printed = run(folder, *BUDGET, "--rows", 50, "--bins", 4, "--schema-name", "people", "--output", output)
    assert printed.index("Plan, made before any record is read") < printed.index("Done")
    assert "one record among 900" in printed
    assert "1 / n^2, which declares that n is public" in printed
    assert "mean total variation distance" in printed
    rows = pq.read_table(output)
    assert rows.num_rows == 50
    assert rows.column_names == ["sex", "age", "smokes"]
    assert str(rows.schema.field("age").type) == "int64"
    report = json.loads((tmp_path / "rows.report.json").read_text())
    assert report["guarantee"]["epsilon"] <= 2.0
    assert report["guarantee"]["holds"]
    require_valid(report)
    assert (
        "PRICED: the guarantee" in CliRunner().invoke(app, ["verify", f"{tmp_path}/rows.report.json"]).output
    )
    assert (tmp_path / "rows.report.html").stat().st_size > 1000
    again = run(folder, *BUDGET, "--output", output, code=2)
    assert "is there already: give another name, or --overwrite" in again
    run(folder, *BUDGET, "--rows", 0, "--output", output, "--overwrite", "--workload", "1-way")
    assert pq.read_table(output).num_rows == 0


def test_users_are_counted_and_a_seed_is_not_private(folder: Path, tmp_path: Path) -> None:
    options = (
        "--group",
        "person",
        "--max-records",
        3,
        "--random-state",
        1,
        "--column",
        "sex",
        "--workload",
        "1-way",
    )
    printed = run(folder, *BUDGET, *options, "--output", tmp_path / "a.parquet")
    assert "300 users, counted in 'person'" in printed
    assert "NOT PRIVATE: the noise comes from --random-state 1" in printed
    assert "none: NOT PRIVATE" in printed
    run(folder, *BUDGET, *options, "--output", tmp_path / "b.parquet")
    assert pq.read_table(tmp_path / "a.parquet").equals(pq.read_table(tmp_path / "b.parquet"))


def test_an_error_below_its_noise_is_said_to_be_below_it() -> None:
    assert _about(SyntheticError(0.0, 0.0012, True, "")) == "below 0.0024 (noise 0.0012)"
    assert _about(SyntheticError(0.1, 0.0012, True, "")) == "0.1 +- 0.0012"
    assert _about(SyntheticError(0.1, 0.0, False, "")) == "0.1"


MISTAKES = [
    (("--epsilon", 1, "--delta", "auto"), "give --output"),
    (("--delta", "auto", "--output", "x.parquet"), "give --epsilon"),
    (("--epsilon", 1, "--output", "x.parquet"), "give --delta"),
    ((*BUDGET, "--output", "x.xls"), "must end in .parquet, .pq, .csv"),
    ((*BUDGET, "--output", "nowhere/x.parquet"), "cannot be written to"),
    ((*BUDGET, "--output", "x.parquet", "--relation", "add-or-remove-one"), "give --n"),
    ((*BUDGET, "--output", "x.parquet", "--n", 1), "--n must be at least 2"),
    ((*BUDGET, "--output", "x.parquet", "--max-records", 3), "name the users' column with --group"),
    ((*BUDGET, "--output", "x.parquet", "--workload", "9-way"), "workload must be '1-way'"),
    ((*BUDGET, "--output", "x.parquet", "--method", "magic"), "method must be 'auto'"),
    ((*BUDGET, "--output", "x.parquet", "--engine", "pgm"), "engine must be None or 'mbi'"),
    ((*BUDGET, "--output", "x.parquet", "--column", "pay"), "no column 'pay'"),
    ((*BUDGET, "--output", "x.parquet", "--schema-name", "others"), "no entry 'others'"),
]


@pytest.mark.parametrize(("arguments", "words"), MISTAKES)
def test_a_mistake_gets_one_sentence(folder: Path, arguments: Any, words: str, monkeypatch: Any) -> None:
    monkeypatch.chdir(folder)
    printed = run(folder, *arguments, code=2)
    assert words in printed
    assert "Done" not in printed
    assert not (folder / "x.parquet").exists()


def test_a_table_without_a_column_is_refused_and_nothing_is_spent(folder: Path, tmp_path: Path) -> None:
    printed = run(folder, *BUDGET, "--output", tmp_path / "x.parquet", table="short.csv", code=2)
    assert "has no column 'age'" in printed
    assert "Nothing was spent" in printed
