"""`privopt check`, its Python form, and missing cells on the command line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.support.turns import but_later
from typer.testing import CliRunner

from privopt import LogisticRegression, load
from privopt.cli import app
from privopt.tables import TabularEncoder
from privopt.tables.diagnosis import OUTSIDE
from privopt.tables.table import Table

SCHEMA: dict[str, Any] = {
    "target": "ill",
    "columns": {
        "smoker": {"kind": "flag"},
        "income": {"kind": "num", "low": 0, "high": 1000},
        "joined": {"kind": "date", "low": "2000-01-01", "high": "2030-01-01"},
        "sex": {"kind": "cat", "levels": ["f", "m"]},
        "age": {"kind": "num", "low": 0, "high": 100, "required": True},
        "ill": {"kind": "flag"},
    },
}
ROWS = 300


def table() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    age = rng.uniform(0, 100, ROWS)
    return pd.DataFrame(
        {
            "smoker": rng.choice(["ja", "nein"], ROWS),
            "income": [f"{number:.1f}".replace(".", ",") for number in rng.uniform(0, 1000, ROWS)],
            "joined": rng.choice(["01.02.2020", "2020-02-01"], ROWS, p=[0.9, 0.1]),
            "sex": rng.choice(["F", "m ", "secret"], ROWS),
            "age": np.where(rng.random(ROWS) < 0.1, -999, age),
            "ill": np.where(age > 50, "yes", "no"),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("check")
    table().to_csv(path / "t.csv", index=False)
    (path / "s.json").write_text(json.dumps(SCHEMA))
    return path


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_a_check_counts_cells_and_names_the_likely_cause(folder: Path) -> None:
    ended = run("check", folder / "t.csv", "--schema", folder / "s.json")
    assert ended.exit_code == 0
    said = ended.output
    assert said.startswith(OUTSIDE.partition(".")[0])
    assert '300 of 300 cells are \'ja\' or \'nein\': declare "true": "ja", "false": "nein".' in said
    assert 'write a decimal comma: say so in the schema, "file": {"decimal": ","}' in said
    assert "are dates in another order: write year, month, day" in said
    assert "are one text that the levels lack" in said
    assert "most of them one value: it may stand for a missing one" in said
    assert "secret" not in said
    assert "-999" not in said
    shown = run("check", folder / "t.csv", "--schema", folder / "s.json", "--show-values").output
    assert "'secret'" in shown
    assert "'-999" in shown
    told = json.loads(run("check", folder / "t.csv", "--schema", folder / "s.json", "--json").output)
    assert told["outside_the_guarantee"] == OUTSIDE
    assert [one["column"] for one in told["columns"]] == list(SCHEMA["columns"])
    assert "values" not in told["columns"][0]


def test_a_frame_is_checked_as_a_file_is(folder: Path) -> None:
    found = TabularEncoder(SCHEMA).check(table())
    kinds = {one.column: (one.missing, one.unreadable, one.unknown) for one in found.columns}
    assert kinds["smoker"] == (0, 300, 0)
    assert kinds["sex"][2] == (table()["sex"] == "secret").sum()
    assert kinds["ill"] == (0, 0, 0)
    assert "secret" not in str(found)
    assert found.columns[-2].out_of_range == (table()["age"] < 0).sum()
    good = TabularEncoder({**SCHEMA, "file": {"decimal": ","}}).check(table())
    assert {one.column: one.wrong for one in good.columns}["income"] == 0


def test_a_check_names_a_column_in_other_capitals(folder: Path) -> None:
    table().rename(columns={"age": "Age"}).to_csv(folder / "other.csv", index=False)
    ended = run("check", folder / "other.csv", "--schema", folder / "s.json")
    assert ended.exit_code == 2
    assert "did you mean 'Age'" in " ".join(ended.output.split())
    assert run("check", folder / "t.csv").exit_code == 2


def test_no_fit_calls_a_check() -> None:
    source = Path(__file__).parent.parent / "src" / "privopt"
    texts = {path.relative_to(source).as_posix(): path.read_text("utf-8") for path in source.rglob("*.py")}
    importing = {name for name, text in texts.items() if "tables.diagnosis import" in text}
    assert importing == {"commands/checking.py", "tables/encoder.py"}
    assert not [name for name, text in texts.items() if "encoder.check(" in text or "encoder_.check(" in text]


@pytest.mark.parametrize(
    ("missing", "width"), but_later([("indicator", 10)], [("midpoint", 6), ("zero", 6), ("indicator", 10)])
)
def test_missing_cells_of_a_table_follow_the_rule_that_is_asked_for(
    missing: str, width: int, folder: Path
) -> None:
    schema: dict[str, Any] = {**SCHEMA, "file": {"decimal": ","}}
    (folder / "said.json").write_text(json.dumps(schema))
    asked = ["--schema", folder / "said.json", "--epsilon", 5, "--delta", 1e-5, "--random-state", 1]
    asked += ["--solver", "gradient-descent", "--missing", missing]
    ended = run("fit", folder / "t.csv", *asked, "--output", folder / missing)
    assert ended.exit_code == 0, ended.output
    saved, where = load(folder / missing), folder / f"{missing}.parquet"
    assert saved.coef_.shape == (1, width)
    assert run("predict", folder / missing, folder / "t.csv", "--output", where).exit_code == 0
    assert len(pd.read_parquet(where)) == ROWS
    assert any("Missing cells" in sentence for sentence in saved.privacy_.declared)
    names = list(saved.encoder_.get_feature_names_out())
    assert ("smoker missing" in names) == (missing == "indicator")
    assert "age missing" not in names
    options: dict[str, Any] = {"epsilon": 5.0, "delta": 1e-5, "random_state": 1, "solver": "gradient-descent"}
    opened = Table.open(folder / "t.csv", schema)
    model = LogisticRegression(missing=missing, **options).fit(opened)
    np.testing.assert_allclose(model.coef_, saved.coef_)
    assert model.predict(opened).tolist() == pd.read_parquet(where)["prediction"].tolist()


def test_indicators_of_a_table_are_said_by_its_schema(folder: Path) -> None:
    model = LogisticRegression(epsilon=5.0, delta=1e-5, missing="indicator", indicator=[0])
    with pytest.raises(ValueError, match="indicator was given beside a table"):
        model.fit(Table.open(folder / "t.csv", {**SCHEMA, "file": {"decimal": ","}}))


def test_everything_that_is_missing_is_named_at_once() -> None:
    ended = run("check")
    assert ended.exit_code == 2
    assert "give TABLE: the CSV or Parquet file" in ended.output
    assert "; and --schema: a JSON file" in ended.output


def test_the_separator_of_the_schema_is_the_one_that_is_told(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    for columns, words in (("c", "with semicolons between them"), ("a", "its first line has commas between")):
        schema = {"file": {"separator": ";"}, "columns": {columns: {"kind": "num", "low": 0, "high": 1}}}
        (tmp_path / "s.json").write_text(json.dumps(schema))
        assert words in run("check", tmp_path / "t.csv", "--schema", tmp_path / "s.json").output


def test_a_likely_cause_says_both_signs_of_a_number(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a;b\n" + "1.234,5;1\n" * 9)
    schema = {"file": {"separator": ";"}, "columns": {"a": {"kind": "num", "low": 0, "high": 1e4}}}
    (tmp_path / "s.json").write_text(json.dumps(schema))
    said = run("check", tmp_path / "t.csv", "--schema", tmp_path / "s.json").output
    assert 'write thousands apart: say so in the schema, "file": {"decimal": ",", "thousands": "."}' in said
