"""The command line on small tables: round trips, what is printed, and one sentence for every mistake."""

import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
from rich.console import Console
from tests.support.report_schema import require_valid
from typer.testing import CliRunner

from privopt import Account, LogisticRegression, load
from privopt.cli import app
from privopt.commands import fitting, options, planning, screen
from privopt.commands.options import Options
from privopt.commands.task import MODELS, Task
from privopt.curator.local import LocalCurator
from privopt.errors import STAYS_CHARGED, DataUnavailable
from privopt.estimators import saving
from privopt.public import DEFAULT_RECORDS, DEFAULT_WEIGHTING, Weighting
from privopt.tables import TableError, TabularEncoder
from privopt.tables.table import EncodedRecords, Table

ROWS = 600
SCHEMA: dict[str, Any] = {
    "target": "ill",
    "user": "person",
    "columns": {
        "age": {"kind": "num", "low": 0, "high": 100},
        "sex": {"kind": "cat", "levels": ["f", "m"]},
        "smoker": {"kind": "flag"},
        "person": {"kind": "id"},
        "ill": {"kind": "flag"},
        "ward": {"kind": "cat", "levels": ["north", "south", "west"]},
        "visits": {"kind": "num", "low": 0, "high": 20},
        "change": {"kind": "num", "low": -5, "high": 5},
    },
}
TARGETS = ("ill", "ward", "visits", "change")
BUDGET = ("--epsilon", "2", "--delta", "1e-5")

Run = Callable[..., Any]


def make_table() -> pd.DataFrame:
    draw = np.random.default_rng(7)
    age, smoker = draw.uniform(0, 100, ROWS), draw.integers(0, 2, ROWS)
    sex = draw.choice(["f", "m"], ROWS)
    lean = age / 50 - 1 + smoker
    return pd.DataFrame(
        {
            "diary": [f"never read {row}" for row in range(ROWS)],
            "age": age,
            "sex": sex,
            "smoker": smoker,
            "person": [f"p{row // 3}" for row in range(ROWS)],
            "ill": (lean + draw.normal(0, 0.5, ROWS) > 0.5).astype(int),
            "ward": np.where(sex == "f", "north", np.where(smoker == 1, "south", "west")),
            "visits": draw.poisson(np.exp(lean / 2)),
            "change": np.clip(lean + draw.normal(0, 0.3, ROWS), -5, 5),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table as Parquet and CSV, and schemas with one target each (other targets are no features)."""
    path = tmp_path_factory.mktemp("cli")
    table = make_table()
    table.to_parquet(path / "table.parquet")
    table.to_csv(path / "table.csv", index=False)
    entries: dict[str, Any] = {
        target: SCHEMA | {"target": target, "other_targets": [other for other in TARGETS if other != target]}
        for target in TARGETS
    }
    (path / "schema.json").write_text(json.dumps(entries))
    (path / "ill.json").write_text(json.dumps(entries["ill"]))
    return path


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line; the outcome has `exit_code` and `output` (both streams)."""
    monkeypatch.setenv("COLUMNS", "80")

    def invoke(*arguments: Any) -> Any:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return invoke


@pytest.fixture(scope="module")
def fitted(folder: Path) -> tuple[Path, str]:
    """A model directory and what was printed while it was made."""
    arguments = [
        "fit",
        folder / "table.parquet",
        "--schema",
        folder / "ill.json",
        "--epsilon",
        "2",
        "--delta",
        "auto",
    ]
    outcome = CliRunner().invoke(
        app, [*map(str, arguments), "--output", str(folder / "model")], env={"COLUMNS": "80"}
    )
    assert outcome.exit_code == 0, outcome.output
    return folder / "model", outcome.output


def fit_arguments(folder: Path, target: str, output: Path) -> list[Any]:
    schema = ["--schema", folder / "schema.json", "--schema-name", target]
    return ["fit", folder / "table.parquet", *schema, *BUDGET, "--output", output]


def flat(text: str) -> str:
    """Printed text without its line breaks and padding."""
    return " ".join(text.split())


# ---- what is printed and written ------------------------------------------------------------------------


def test_a_fit_prints_the_plan_then_counts_releases_then_says_where_everything_is(
    fitted: tuple[Path, str],
) -> None:
    directory, printed = fitted
    text = flat(printed)
    assert text.index("Plan, made before any record is read") < text.index("releases") < text.index("Done")
    assert "one record among 600; replace-one" in text
    assert "under replace-one their number is public" in text
    assert "1 / n^2, which declares that n is public" in text
    assert "logistic regression of 'ill' (classes 0, 1) from 3 columns, 4 features" in text
    assert "'person' names users" in text
    planned = json.loads((directory / "model.json").read_text())["document"]["plan"]["releases"]
    assert f"{planned}/{planned} releases" in text
    assert max(len(line.rstrip()) for line in printed.splitlines()) <= 80
    names = {path.name for path in directory.iterdir()}
    assert names == {"model.json", "model.safetensors", "releases.safetensors", "report.html", "report.json"}


def test_a_model_directory_holds_released_and_public_values_only(fitted: tuple[Path, str]) -> None:
    directory, _ = fitted
    document = json.loads((directory / "model.json").read_text())["document"]
    assert set(document) == {"versions", "target", "encoder", "estimator", "plan", "report"}
    assert document["estimator"]["class"] == "LogisticRegression"
    assert document["estimator"]["arguments"]["classes"] == [0, 1]
    assert "diary" not in (directory / "model.json").read_text()
    arrays = safetensors.numpy.load_file(directory / "model.safetensors")
    shapes = {"coef": (1, 4), "intercept": (1,)}
    assert {name: array.shape for name, array in arrays.items()} == shapes


def test_a_fitted_model_is_verified_and_its_report_is_valid(fitted: tuple[Path, str], run: Run) -> None:
    outcome = run("verify", fitted[0])
    assert outcome.exit_code == 0, outcome.output
    assert "VERIFIED" in outcome.output
    assert "replayed: " in outcome.output
    require_valid(json.loads((fitted[0] / "report.json").read_text()))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("report",), "text"),
        (("report", "event"), 10**30),
        (("report", "findings"), None),
        (("report", "plan", "settings"), []),
        (("estimator", "arguments"), 0),
        (("estimator", "class"), "os.system"),
        (("encoder", "numeric_range", 1), None),
    ],
)
def test_an_altered_model_is_refused_in_a_sentence(
    fitted: tuple[Path, str], tmp_path: Path, run: Run, place: tuple[Any, ...], value: Any
) -> None:
    shutil.copytree(fitted[0], tmp_path / "model")
    path = tmp_path / "model" / "model.json"
    content = json.loads(path.read_text())
    part = content["document"]
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    path.write_text(json.dumps(content))
    if place[0] != "report":  # beside an intact report it is not looked at
        assert run("report", tmp_path / "model").exit_code == 0
        (tmp_path / "model" / "report.json").unlink()
    outcome = run("report", tmp_path / "model")
    assert outcome.exit_code == 2, outcome.output
    assert "or altered: fit it again" in flat(outcome.stderr)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("model", "coefficients", 0, 0), 7.0),
        (("model", "intercepts"), [0.0]),
        (("model", "features"), ["age"]),
        (("model", "details"), {"certified": "yes"}),
        (("model",), None),
        (("declared",), ["Nothing."]),
        (("guarantee", "delta"), 1e-9),
        (("title",), "A better model"),
    ],
)
def test_a_report_that_does_not_fit_its_model_is_made_anew_from_the_model(
    fitted: tuple[Path, str], tmp_path: Path, run: Run, place: tuple[Any, ...], value: Any
) -> None:
    shutil.copytree(fitted[0], tmp_path / "model")
    path = tmp_path / "model" / "report.json"
    content = json.loads(path.read_text())
    part = content
    for key in place[:-1]:
        part = part[key]
    part[place[-1]] = value
    path.write_text(json.dumps(content))
    assert run("report", tmp_path / "model").exit_code == 0
    for name in ("report.json", "report.html"):
        assert (tmp_path / "model" / name).read_text() == (fitted[0] / name).read_text()


def test_a_stored_report_is_printed_without_what_fits_and_draws(fitted: tuple[Path, str]) -> None:
    program = f"""
import sys
from pathlib import Path
from privopt.commands import reporting
reporting.run(Path({str(fitted[0])!r}), path_only=False, work=60.0)
print(sorted({{"jax", "matplotlib", "numba", "pandas", "sklearn"}} & set(sys.modules)))
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "guarantee" in finished.stdout
    assert finished.stdout.splitlines()[-1] == "[]"


def test_predictions_are_columns_of_a_parquet_file_and_the_target_may_be_missing(
    fitted: tuple[Path, str], folder: Path, run: Run
) -> None:
    table = pd.read_parquet(folder / "table.parquet")
    table.drop(columns=["ill", "person", "ward"]).to_csv(folder / "new.csv", index=False)
    for source in ("table.parquet", "new.csv"):
        outcome = run("predict", fitted[0], folder / source, "--output", folder / f"{source}.parquet")
        assert outcome.exit_code == 0, outcome.output
    predictions = pd.read_parquet(folder / "table.parquet.parquet")
    assert list(predictions.columns) == ["prediction", "probability_0", "probability_1"]
    assert len(predictions) == ROWS
    np.testing.assert_allclose(predictions["probability_0"] + predictions["probability_1"], 1.0)
    assert set(predictions["prediction"]) <= {0, 1}
    assert (predictions["prediction"] == table["ill"]).mean() > 0.6
    pd.testing.assert_frame_equal(predictions, pd.read_parquet(folder / "new.csv.parquet"))


def test_the_report_is_printed_and_written_anew(fitted: tuple[Path, str], run: Run) -> None:
    directory, _ = fitted
    page = (directory / "report.html").read_text()
    data = (directory / "report.json").read_text()
    (directory / "report.html").unlink()
    (directory / "report.json").write_text("")
    released = (directory / "releases.safetensors").read_bytes()
    outcome = run("report", directory)
    assert outcome.exit_code == 0, outcome.output
    assert "epsilon" in outcome.output
    assert "report.html" in outcome.output
    assert (directory / "report.html").read_text() == page
    assert (directory / "report.json").read_text() == data
    assert (directory / "releases.safetensors").read_bytes() == released
    assert "sex=f" in page
    assert run("report", directory, "--open-path").output.strip() == str(
        (directory / "report.html").resolve()
    )


def test_a_plan_says_before_any_table_what_the_fit_then_does(
    fitted: tuple[Path, str], folder: Path, run: Run
) -> None:
    words = ("--schema", folder / "ill.json", "--epsilon", 2, "--delta", "auto", "--n", ROWS)
    outcome = run("plan", *words, "--all")
    assert outcome.exit_code == 0, outcome.output
    alone = run("plan", *words).output
    assert "Other solvers" not in alone
    assert "privopt plan --all says" in flat(alone)
    assert "stochastic-gradient-descent" in outcome.output
    promised = outcome.output[: outcome.output.index("Other solvers")]
    done = fitted[1]
    for label in ("price", "effort", "predicted", "bound"):
        line = next(line for line in promised.splitlines() if line.strip().startswith(label))
        assert line in done


def test_rows_of_fewer_bits_are_for_dense_features(
    folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("plan", "--schema", folder / "ill.json", "--epsilon", 2, "--delta", "auto", "--n", 10**6)
    assert "int4" in run(*command, "--storage", "int4").output
    given = Options(schema=folder / "ill.json", epsilon=2.0, delta="auto", storage=options.StorageName.INT8)
    assert Task.of(given).estimator(10**6).storage == "int8"
    monkeypatch.setattr(TabularEncoder, "is_sparse", True)
    outcome = run(*command, "--storage", "int8")
    assert outcome.exit_code == 2
    assert "--storage int8 is for dense features" in flat(outcome.output)


def test_a_plan_as_json_holds_what_is_printed(folder: Path, run: Run) -> None:
    for epsilon in (2, "inf"):
        arguments = (
            "--schema",
            folder / "ill.json",
            "--epsilon",
            epsilon,
            "--delta",
            "auto",
            "--n",
            ROWS,
            "--json",
        )
        outcome = run("plan", *arguments)
        assert outcome.exit_code == 0, outcome.output
        document = json.loads(outcome.output, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
        first, *others = document["plans"]
        assert document["chosen"] == first["solver"]
        assert first["solver"] not in {other["solver"] for other in others}
        assert "stochastic-gradient-descent" in {other["solver"] for other in others}
        assert {"bound", "indicators", "predicted_excess", "releases", "reason"} <= set(first)


@pytest.mark.at_once("linear-change-extra0")
@pytest.mark.parametrize(
    ("model", "target", "extra"),
    [
        ("linear", "change", ()),
        ("huber", "change", ("--group", "person")),
        ("quantile", "change", ("--quantile", "0.9")),
        ("poisson", "visits", ("--relation", "add-or-remove-one", "--n", "1000")),
        ("svm", "ill", ("--solver", "stochastic-gradient-descent")),
        ("robust", "ill", ()),
        ("robust", "change", ("--group", "person")),
    ],
)
def test_every_model_predicts_a_column(
    model: str, target: str, extra: tuple[str, ...], folder: Path, tmp_path: Path, run: Run
) -> None:
    outcome = run(*fit_arguments(folder, target, tmp_path / "model"), "--model", model, *extra)
    assert outcome.exit_code == 0, outcome.output
    outcome = run("predict", tmp_path / "model", folder / "table.csv", "--output", tmp_path / "out.parquet")
    assert outcome.exit_code == 0, outcome.output
    predictions = pd.read_parquet(tmp_path / "out.parquet")
    assert list(predictions.columns) == ["prediction"]
    assert len(predictions) == ROWS
    assert np.isfinite(predictions["prediction"]).all()


@pytest.mark.at_once("logistic", "svm")
@pytest.mark.parametrize("model", MODELS)
def test_a_model_that_is_read_back_predicts_what_was_fitted(model: str, folder: Path, tmp_path: Path) -> None:
    target = "ill" if MODELS[model].of_classes else "visits"
    options = Options(
        schema=folder / "schema.json", schema_name=target, epsilon=3.0, delta="1e-5", model=model
    )
    task = Task.of(options)
    table = Table.open(folder / "table.parquet", task.schema)
    features = task.encoder.transform(make_table())
    estimator = task.estimator(ROWS).fit(table)
    again = load(estimator.save(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict(features), estimator.predict(features))
    if hasattr(estimator, "predict_proba"):
        np.testing.assert_array_equal(again.predict_proba(features), estimator.predict_proba(features))
    assert again.privacy_.to_dict() | {"model": None} == estimator.privacy_.to_dict() | {"model": None}


def test_a_model_directory_with_an_earlier_name_of_an_argument_is_read(
    folder: Path, tmp_path: Path, run: Run
) -> None:
    directory = tmp_path / "model"
    assert run(*fit_arguments(folder, "ill", directory)).exit_code == 0
    fresh, document = load(directory), directory / "model.json"
    text = document.read_text(encoding="utf-8")
    assert text.count('"scale_share": 0.05') == 2  # of the estimator, and of the recipe of a replay
    document.write_text(text.replace('"scale_share": 0.05', '"scale_budget": 0.07', 1), encoding="utf-8")
    again = load(directory)
    assert again.scale_share == 0.07
    np.testing.assert_array_equal(again.coef_, fresh.coef_)


def test_several_classes_have_a_probability_each(folder: Path, tmp_path: Path, run: Run) -> None:
    outcome = run(*fit_arguments(folder, "ward", tmp_path / "model"))
    assert outcome.exit_code == 0, outcome.output
    assert (
        run(
            "predict", tmp_path / "model", folder / "table.csv", "--output", tmp_path / "out.parquet"
        ).exit_code
        == 0
    )
    predictions = pd.read_parquet(tmp_path / "out.parquet")
    assert list(predictions.columns) == [
        "prediction",
        *(f"probability_{ward}" for ward in ("north", "south", "west")),
    ]
    assert set(predictions["prediction"]) <= {"north", "south", "west"}
    np.testing.assert_allclose(predictions.iloc[:, 1:].sum(axis=1), 1.0)


def test_a_group_column_protects_users_whole(folder: Path, tmp_path: Path, run: Run) -> None:
    extra = ("--group", "person", "--max-records", "2")
    outcome = run(*fit_arguments(folder, "ill", tmp_path / "model"), *extra)
    assert outcome.exit_code == 0, outcome.output
    text = flat(outcome.output)
    assert (
        "one user ('person'): everything a person contributed; at most 2 records of each are used; among 200"
        in text
    )
    assert "each person counts by their number of records" in text
    assert "counted in 'person'" in text
    plan = json.loads((tmp_path / "model" / "model.json").read_text())["document"]["plan"]
    assert (plan["unit"], plan["n"]) == ("user", 200)


@pytest.mark.audit
def test_several_columns_name_a_user_together(folder: Path, tmp_path: Path, run: Run) -> None:
    table = make_table()
    table["site"], table["number"] = (
        [str(row // 3 // 20) for row in range(ROWS)],
        [row // 3 % 20 for row in range(ROWS)],
    )
    columns = SCHEMA["columns"] | {"site": {"kind": "id"}, "number": {"kind": "id"}}
    schema = SCHEMA | {"other_targets": ["ward", "visits", "change"], "columns": columns}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    table.to_parquet(tmp_path / "table.parquet")
    table.to_csv(tmp_path / "table.csv", index=False)
    released: list[Any] = []
    for name, groups in (
        ("table.parquet", ("--group", "person")),
        ("table.parquet", ("--group", "site", "--group", "number")),
        ("table.csv", ("--group", "number", "--group", "site")),
    ):
        more = ("--weighting", "record", "--typical-records", 3, "--max-records", 4, "--random-state", 1)
        output = tmp_path / f"model {len(released)}"
        arguments = ("--schema", tmp_path / "schema.json", *BUDGET, *groups, *more, "--output", output)
        outcome = run("fit", tmp_path / name, *arguments)
        assert outcome.exit_code == 0, outcome.output
        text = flat(outcome.output)
        assert f"counted in {', '.join(repr(group) for group in groups[1::2])}" in text
        assert "u = k / M for k records used of at most M = 4" in text
        public = json.loads((output / "model.json").read_text())["document"]["plan"]["public"]
        assert (public["n"], public["weighting"], public["typical_records"]) == (200, "record", 3.0)
        released.append(safetensors.numpy.load_file(output / "model.safetensors")["coef"])
    for other in released[1:]:
        np.testing.assert_allclose(other, released[0], atol=1e-9)


@pytest.mark.audit
def test_a_plan_for_users_prices_records_and_caps_from_public_numbers(folder: Path, run: Run) -> None:
    arguments = ("plan", "--schema", folder / "ill.json", *BUDGET, "--n", 5000)
    text = flat(run(*arguments, "--group", "person", "--typical-records", 20).output)
    assert "Records or users, at the same epsilon and delta" in text
    assert "Protects one record of 100,000; a person with 20 records would have epsilon" in text
    for cap, kept in (
        ("1", "1 record"),
        ("10", "10 records"),
        ("100", "20 records"),
        ("1,000", "20 records"),
    ):
        assert re.search(
            rf"cap {cap} excess [\d.e-]+; noise of one mean [\d.e-]+ .*?; {kept} of a typical person", text
        )
    assert "TOO FEW" not in text
    document = json.loads(run(*arguments, "--group", "person", "--json").output)
    assert [price["cap"] for price in document["caps"]] == [None, 1, 10, 100, 1000]
    alone = run(*arguments)
    assert "Records or users" not in alone.output
    assert "caps" not in json.loads(run(*arguments, "--json").output)


def test_the_options_state_the_defaults_of_the_package() -> None:
    assert (options.MAX_RECORDS, options.WEIGHTING) == (DEFAULT_RECORDS, DEFAULT_WEIGHTING)
    assert [each.value for each in options.WeightingName] == list(get_args(Weighting))


def test_sets_are_fitted_and_predicted_without_becoming_dense(tmp_path: Path, run: Run) -> None:
    draw = np.random.default_rng(3)
    words = [sorted(draw.choice(5000, size=4, replace=False).tolist()) for _ in range(300)]
    table = pa.table({"words": words, "odd": [row[0] % 2 for row in words]})
    pq.write_table(table, tmp_path / "words.parquet")
    words_column = {"kind": "set", "size": 5000, "max_active": 4}
    schema = {"target": "odd", "columns": {"words": words_column, "odd": {"kind": "flag"}}}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    outcome = run(
        *("fit", tmp_path / "words.parquet", "--schema", tmp_path / "schema.json", *BUDGET),
        *("--output", tmp_path / "model"),
    )
    assert outcome.exit_code == 0, outcome.output
    assert "5,000 features" in flat(outcome.output)
    assert (
        run(
            "predict", tmp_path / "model", tmp_path / "words.parquet", "--output", tmp_path / "o.parquet"
        ).exit_code
        == 0
    )
    assert len(pd.read_parquet(tmp_path / "o.parquet")) == 300


@pytest.mark.audit
def test_the_form_of_the_table_and_columns_without_description_change_nothing(
    folder: Path, tmp_path: Path, run: Run
) -> None:
    pd.read_parquet(folder / "table.parquet").drop(columns="diary").to_parquet(tmp_path / "bare.parquet")
    for name, table in (
        ("a", folder / "table.csv"),
        ("b", folder / "table.parquet"),
        ("c", tmp_path / "bare.parquet"),
    ):
        arguments = (
            "--schema",
            folder / "ill.json",
            *BUDGET,
            "--random-state",
            "1",
            "--output",
            tmp_path / name,
        )
        outcome = run("fit", table, *arguments)
        assert outcome.exit_code == 0, outcome.output
        assert outcome.output.count("NOT PRIVATE") == 2
        assert not (tmp_path / name / "releases.safetensors").exists()  # noise from a seed hides nothing
    arrays = [safetensors.numpy.load_file(tmp_path / name / "model.safetensors") for name in "abc"]
    for other in arrays[1:]:
        np.testing.assert_array_equal(other["coef"], arrays[0]["coef"])


def test_an_infinite_epsilon_says_that_nothing_is_private(folder: Path, run: Run) -> None:
    outcome = run("plan", "--schema", folder / "ill.json", "--epsilon", "inf", "--delta", "auto", "--n", 500)
    assert outcome.exit_code == 0, outcome.output
    assert "NOT PRIVATE: epsilon is infinite" in flat(outcome.output)


def test_a_model_is_replaced_only_when_asked(folder: Path, tmp_path: Path, run: Run) -> None:
    arguments = fit_arguments(folder, "ill", tmp_path / "model")
    assert run(*arguments).exit_code == 0
    first = (tmp_path / "model" / "model.safetensors").read_bytes()
    outcome = run(*arguments)
    assert outcome.exit_code == 2
    assert "--overwrite" in outcome.output
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == first
    assert run(*arguments, "--overwrite").exit_code == 0
    assert (tmp_path / "model" / "model.safetensors").read_bytes() != first


def test_the_version_and_the_help_are_printed(run: Run) -> None:
    assert run("--version").output.startswith("privopt 0.")
    for arguments in ((), ("--help",)):
        outcome = run(*arguments)
        assert outcome.exit_code == 0
        assert all(command in outcome.output for command in ("fit", "plan", "predict", "report", "demo"))


# ---- mistakes ------------------------------------------------------------------------

MISTAKES = {
    "no such table": ("fit nowhere.parquet {schema} {budget} --output out", "no table 'nowhere.parquet'"),
    "a table of another format": ("fit schema.json {schema} {budget} --output out", "of no known format"),
    "a broken table": ("fit broken.parquet {schema} {budget} --output out", "not well-formed Parquet"),
    "a table that lacks a column": ("fit narrow.csv {schema} {budget} --output out", "no column 'sex'"),
    "no schema": ("fit table.csv {budget} --output out", "give --schema"),
    "no such schema": (
        "fit table.csv --schema nowhere.json {budget} --output out",
        "no schema file 'nowhere.json'",
    ),
    "a schema that is no JSON": ("fit table.csv --schema table.csv {budget} --output out", "is not JSON"),
    "a schema with a kind that is none": (
        "fit table.csv --schema odd.json {budget} --output out",
        "kind 'nmu'",
    ),
    "a schema of several entries": (
        "fit table.csv --schema schema.json {budget} --output out",
        "several entries",
    ),
    "a target the schema lacks": ("fit table.csv {schema} {budget} --target y --output out", "no column 'y'"),
    "no target at all": ("fit table.csv --schema bare.json {budget} --output out", "give --target"),
    "no epsilon": ("fit table.csv {schema} --delta auto --output out", "give --epsilon"),
    "epsilon 0": ("fit table.csv {schema} --epsilon 0 --delta auto --output out", "must be positive"),
    "epsilon in words": ("fit table.csv {schema} --epsilon small --delta auto --output out", "'--epsilon'"),
    "epsilon not a number": (
        "fit table.csv {schema} --epsilon nan --delta auto --output out",
        "must be positive",
    ),
    "no delta": ("fit table.csv {schema} --epsilon 1 --output out", "give --delta"),
    "delta 1": ("fit table.csv {schema} --epsilon 1 --delta 1 --output out", "above 0 and below 1"),
    "delta 0": ("fit table.csv {schema} --epsilon 1 --delta 0 --output out", "above 0 and below 1"),
    "delta in words": ("fit table.csv {schema} --epsilon 1 --delta tiny --output out", "'auto' or a number"),
    "no output": ("fit table.csv {schema} {budget}", "give --output"),
    "an output that is a file": ("fit table.csv {schema} {budget} --output bare.json", "is a file"),
    "an output in use": ("fit table.csv {schema} {budget} --output .", "not empty"),
    "an unknown model": ("fit table.csv {schema} {budget} --model forest --output out", "'forest'"),
    "numbers for a class": ("fit table.csv {schema} {budget} --model linear --output out", "as classes"),
    "classes for a number": (
        "fit table.csv {schema} {budget} --target change --model svm --output out",
        "as a number",
    ),
    "two of three classes": (
        "fit table.csv {schema} {budget} --target ward --model svm --output out",
        "two classes",
    ),
    "negative counts": (
        "fit table.csv {schema} {budget} --target change --model poisson --output out",
        "low must be",
    ),
    "an unknown group": ("fit table.csv {schema} {budget} --group whom --output out", "no column 'whom'"),
    "the target as group": ("fit table.csv {schema} {budget} --group ill --output out", "both name"),
    "an unknown relation": ("fit table.csv {schema} {budget} --relation same --output out", "'same'"),
    "a private n": ("fit table.csv {schema} {budget} --relation add-or-remove-one --output out", "give --n"),
    "an n that is too small": ("fit table.csv {schema} {budget} --n 100 --output out", "n = 100"),
    "an n of one": ("fit table.csv {schema} {budget} --n 1 --output out", "at least 2"),
    "an unknown solver": ("fit table.csv {schema} {budget} --solver magic --output out", "'magic'"),
    "a quantile of 2": ("fit table.csv {schema} {budget} --quantile 2 --output out", "between 0 and 1"),
    "a quantile for another model": ("plan {schema} {budget} --quantile 0.9 --n 100", "--model quantile"),
    "a weighting without users": ("plan {schema} {budget} --weighting user --n 100", "with --group"),
    "a typical user without users": ("plan {schema} {budget} --typical-records 5 --n 100", "with --group"),
    "an unknown weighting": ("plan {schema} {budget} --group person --weighting all --n 100", "'all'"),
    "a cap of 0": ("plan {schema} {budget} --group person --max-records 0 --n 100", "--max-records"),
    "more typical records than the cap": (
        "plan {schema} {budget} --group person --max-records 5 --typical-records 6 --n 100",
        "between 1 and the cap of 5",
    ),
    "too few users": ("plan {schema} {budget} --group person --n 15", "At least 20 users are needed"),
    "noise that drowns the users": (
        "plan {schema} --epsilon 0.01 --delta 1e-9 --group person --n 30",
        "the noise of one mean would be",
    ),
    "a group named twice": (
        "plan {schema} {budget} --group person --group person --n 100",
        "one column twice",
    ),
    "a second group that is unknown": (
        "fit table.csv {schema} {budget} --group person --group whom --output out",
        "no column 'whom'",
    ),
    "more users than n": (
        "fit table.csv {schema} {budget} --group person --n 100 --output out",
        "more users than n",
    ),
    "a cap on records without users": ("plan {schema} {budget} --max-records 5 --n 100", "with --group"),
    "a name for a schema that has none": (
        "plan {schema} --schema-name bla {budget} --n 100",
        "no entry 'bla': it describes one table, without a name",
    ),
    "an output below a file": (
        "fit table.csv {schema} {budget} --output bare.json/model",
        "cannot be written to: not a directory",
    ),
    "a solver that cannot solve it": (
        "fit table.csv {schema} {budget} --solver frank-wolfe --output out",
        "frank-wolfe cannot solve this problem",
    ),
    "a table in which nobody has an id": (
        "fit nobody.csv {schema} {budget} --group person --output out",
        "has 0 users",
    ),
    "a table without rows": ("fit empty.csv {schema} {budget} --output out", "at least 2"),
    "an unknown option": ("fit table.csv {schema} {budget} --colour red --output out", "--colour"),
    "an unknown command": ("train table.csv", "train"),
    "no table argument": ("fit", "TABLE"),
    "a plan without n": ("plan {schema} {budget}", "give --n"),
    "a plan without schema": ("plan {budget} --n 100", "give --schema"),
    "a plan without epsilon": ("plan {schema} --delta auto --n 100", "give --epsilon"),
    "no model to predict with": ("predict nowhere table.csv --output out.parquet", "no model directory"),
    "predictions as text": (
        "predict {model} table.csv --output out.txt",
        "must end in .parquet, .pq, .csv, .tsv, .feather or .arrow",
    ),
    "predictions nowhere": ("predict {model} table.csv --output no/where.parquet", "cannot be written to"),
    "predictions beside no column": (
        "predict {model} table.csv --output out.csv --keep persons",
        "--keep: The table has no column 'persons': did you mean 'person'?",
    ),
    "predictions beside their like": (
        "predict {model} likes.csv --output out.csv --keep prediction",
        "--keep 'prediction' has the name of a column of predictions",
    ),
    "predictions over the table": (
        "predict {model} table.parquet --output table.parquet",
        "the table itself",
    ),
    "predictions without output": ("predict {model} table.csv", "give --output"),
    "predictions from too few columns": (
        "predict {model} narrow.csv --output out.parquet",
        "no column 'sex'",
    ),
    "a report of nothing": ("report nowhere", "no model directory"),
    "a report of a damaged model": ("report damaged", "not JSON"),
    "a report of a strange model": ("report strange", "another version"),
    "a demo into a file": ("demo --output bare.json", "cannot be a folder"),
}


@pytest.fixture(scope="module")
def mishaps(folder: Path) -> Path:
    """The folder with files that are wrong in one way each."""
    table = make_table()
    table[["age", "smoker", "ill"]].to_csv(folder / "narrow.csv", index=False)
    table.head(0).to_csv(folder / "empty.csv", index=False)
    table.assign(prediction=0).to_csv(folder / "likes.csv", index=False)
    table.assign(person="").to_csv(folder / "nobody.csv", index=False)
    (folder / "broken.parquet").write_bytes(b"PAR1 no more PAR1")
    (folder / "odd.json").write_text(json.dumps({"columns": {"age": {"kind": "nmu"}}}))
    (folder / "bare.json").write_text(json.dumps({"columns": SCHEMA["columns"]}))
    for name in ("damaged", "strange"):
        (folder / name).mkdir()
    (folder / "damaged" / "model.json").write_text("{")
    from privopt.tables import save_model

    save_model(folder / "strange", arrays={"coef": np.zeros(2)}, document={"encoder": 3})
    return folder


@pytest.mark.later(
    "a solver that cannot solve it",
    "an n that is too small",
    "more users than n",
    "no such table",
    "noise that drowns the users",
    "too few users",
)
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_answered_by_one_sentence(
    name: str, mishaps: Path, fitted: tuple[Path, str], run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(mishaps)
    before = {path: path.stat().st_mtime_ns for path in mishaps.rglob("*")}
    line, expected = MISTAKES[name]
    words = line.format(schema="--schema ill.json", budget=" ".join(BUDGET), model=fitted[0]).split()
    outcome = run(*words)
    assert outcome.exit_code == 2, outcome.output
    assert isinstance(outcome.exception, SystemExit)
    last = outcome.output.splitlines()[-1]
    assert last.startswith("privopt: ")
    assert expected in last
    assert "Traceback" not in outcome.output
    if name not in (
        "an n that is too small",
        "more users than n",
    ):  # found when users or rows are counted, after the plan was printed
        assert len(outcome.output.splitlines()) == 1
    assert {path: path.stat().st_mtime_ns for path in mishaps.rglob("*")} == before


def test_the_plan_comes_before_the_data_and_a_failure_of_ours_shows_no_cell(
    folder: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise KeyError("a private cell")

    monkeypatch.setattr(EncodedRecords, "blocks", fail)
    outcome = run(*fit_arguments(folder, "ill", tmp_path / "model"))
    assert outcome.exit_code == 1
    assert "Plan, made before any record is read" in outcome.output
    last = outcome.output.splitlines()[-1]
    assert last.startswith("privopt: internal error (KeyError)")
    assert "PRIVOPT_DEBUG=1" in last
    assert "a private cell" not in outcome.output
    assert "Traceback" not in outcome.output
    assert not (tmp_path / "model").exists()
    monkeypatch.setenv("PRIVOPT_DEBUG", "1")
    assert "a private cell" in run(*fit_arguments(folder, "ill", tmp_path / "model")).output


def test_an_error_below_that_is_a_value_error_is_not_shown_as_the_users(
    folder: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        return np.asarray(["a private cell"]).astype(float)

    monkeypatch.setattr(EncodedRecords, "blocks", fail)
    outcome = run(*fit_arguments(folder, "ill", tmp_path / "model"))
    assert outcome.exit_code == 1
    assert "internal error (ValueError)" in outcome.output
    assert "a private cell" not in outcome.output


def test_a_value_error_of_python_in_a_line_of_ours_is_not_shown_either(
    folder: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: dict[str, Any] = {"__name__": "privopt.tables.cells"}
    exec("def fail(*arguments, **options): return float('a private cell')", names)
    monkeypatch.setattr(EncodedRecords, "blocks", names["fail"])
    outcome = run(*fit_arguments(folder, "ill", tmp_path / "model"))
    assert outcome.exit_code == 1
    assert "internal error (ValueError)" in outcome.output
    assert "a private cell" not in outcome.output


def interrupt(*arguments: Any, **options: Any) -> Any:
    raise KeyboardInterrupt


def test_a_fit_that_is_interrupted_while_it_reads_has_spent_nothing(
    folder: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EncodedRecords, "blocks", interrupt)
    outcome = run(*fit_arguments(folder, "ill", tmp_path / "some" / "model"))
    assert outcome.exit_code == 130
    assert "Traceback" not in outcome.output
    assert "Nothing was spent" in outcome.output
    assert outcome.output.splitlines()[-1] == "privopt: stopped. Nothing was spent."
    assert not (tmp_path / "some").exists()


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
def test_a_fit_that_stops_halfway_says_what_was_spent(
    failure: type[BaseException], folder: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(model: Any, *arguments: Any, observer: Any, **options: Any) -> Any:
        observer("ClippedGradient", 1)
        observer("ClippedGradient", 2)
        raise failure("a private cell")

    monkeypatch.setattr(MODELS["logistic"].estimator, "fit", fit)
    outcome = run(*fit_arguments(folder, "ill", tmp_path / "model"))
    assert outcome.exit_code == (130 if failure is KeyboardInterrupt else 1)
    text = flat(outcome.output)
    assert "Stopped after 3 of 18 releases. Fitting had begun: count its whole price as spent" in text
    assert "on these data, epsilon 2 at delta 1e-5" in text
    assert "a private cell" not in text
    assert not (tmp_path / "model").exists()


def test_the_place_for_the_model_is_written_to_before_anything_is_read(
    folder: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, reader in ((fitting, "opened"), (Table, "row_count"), (EncodedRecords, "blocks")):
        monkeypatch.setattr(place, reader, lambda *arguments, **options: pytest.fail("something was read"))
    (tmp_path / "file").write_text("")
    outcome = run(*fit_arguments(folder, "ill", tmp_path / "file" / "model"))
    assert outcome.exit_code == 2
    assert "cannot be written to: not a directory" in outcome.output


def test_a_model_that_is_paid_for_is_written_elsewhere_when_its_place_fails(
    folder: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = saving.write

    def fail_at_first(model: Any, directory: Path) -> None:
        if directory == tmp_path / "model":
            raise TableError(f"The model directory {str(directory)!r} cannot be written: no space left.")
        write(model, directory)

    monkeypatch.setattr(saving, "write", fail_at_first)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    outcome = run(*fit_arguments(folder, "ill", tmp_path / "model"))
    assert outcome.exit_code == 0, outcome.output
    assert "paid for, and is written to" in flat(outcome.output)
    (elsewhere,) = tmp_path.glob("privopt-model-*")
    assert load(elsewhere / "model").encoder_.target == "ill"


# ---- odd tables ------------------------------------------------------------------------

ODD_CELLS = ("9" * 5000, "1e999", "1+2j", "-", "999999-12-31", "\ud800", "nan", "\x00", '"')


@pytest.mark.at_once("sex")
@pytest.mark.parametrize("column", ["age", "sex", "smoker", "person", "ill"])
def test_an_odd_cell_of_a_csv_stops_nothing(column: str, folder: Path, tmp_path: Path, run: Run) -> None:
    table = make_table()[["age", "sex", "smoker", "person", "ill"]].astype(object)
    for row, cell in enumerate(ODD_CELLS):
        table.loc[row, column] = cell
    path = tmp_path / "odd.csv"
    path.write_bytes(table.to_csv(index=False).encode("utf-8", "surrogatepass"))
    arguments = (
        "--schema",
        folder / "ill.json",
        *BUDGET,
        "--group",
        "person",
        "--output",
        tmp_path / "model",
    )
    outcome = run("fit", path, *arguments)
    assert outcome.exit_code == 0, outcome.output
    outcome = run("predict", tmp_path / "model", path, "--output", tmp_path / "out.parquet")
    assert outcome.exit_code == 0, outcome.output
    assert len(pd.read_parquet(tmp_path / "out.parquet")) == ROWS


@pytest.mark.later("person")
@pytest.mark.parametrize("column", ["sex", "person"])
def test_a_date_far_away_in_a_parquet_file_stops_nothing(
    column: str, folder: Path, tmp_path: Path, run: Run
) -> None:
    table = pa.Table.from_pandas(make_table())
    days = np.arange(ROWS, dtype=np.int32) // 3
    days[5] = 2**31 - 1
    table = table.set_column(table.column_names.index(column), column, pa.array(days).cast(pa.date32()))
    pq.write_table(table, tmp_path / "odd.parquet")
    arguments = (
        "--schema",
        folder / "ill.json",
        *BUDGET,
        "--group",
        "person",
        "--output",
        tmp_path / "model",
    )
    outcome = run("fit", tmp_path / "odd.parquet", *arguments)
    assert outcome.exit_code == 0, outcome.output


def test_records_without_a_user_count_as_nothing_on_the_command_line_too(
    folder: Path, tmp_path: Path, run: Run
) -> None:
    table = make_table()
    nobody = table.head(90).assign(person=None, ill=1 - table["ill"].head(90), age=0.0)
    table.to_parquet(tmp_path / "whole.parquet")
    pd.concat([table, nobody]).to_parquet(tmp_path / "more.parquet")
    pd.concat([table, nobody]).to_csv(tmp_path / "more.csv", index=False)
    released = []
    for name in ("whole.parquet", "more.parquet", "more.csv"):
        arguments = ("--schema", folder / "ill.json", *BUDGET, "--group", "person", "--random-state", 1)
        outcome = run("fit", tmp_path / name, *arguments, "--output", tmp_path / f"model of {name}")
        assert outcome.exit_code == 0, outcome.output
        assert "among 200;" in flat(outcome.output)
        released.append(safetensors.numpy.load_file(tmp_path / f"model of {name}" / "model.safetensors"))
    for other in released[1:]:
        np.testing.assert_array_equal(other["coef"], released[0]["coef"])


@pytest.mark.at_once("ward")
@pytest.mark.parametrize("target", ["ill", "ward", "visits"])
def test_a_table_with_a_header_only_has_no_predictions(
    target: str, mishaps: Path, tmp_path: Path, run: Run
) -> None:
    outcome = run(*fit_arguments(mishaps, target, tmp_path / "model"))
    assert outcome.exit_code == 0, outcome.output
    outcome = run("predict", tmp_path / "model", mishaps / "empty.csv", "--output", tmp_path / "out.parquet")
    assert outcome.exit_code == 0, outcome.output
    assert ": 0 rows, prediction" in flat(outcome.output)
    assert len(pd.read_parquet(tmp_path / "out.parquet")) == 0


# ---- what a plan says ------------------------------------------------------------------------


@pytest.mark.audit
def test_a_tiny_epsilon_is_never_shown_as_zero(folder: Path, tmp_path: Path, run: Run) -> None:
    arguments = ("--schema", folder / "ill.json", "--epsilon", "1e-9", "--delta", "auto")
    for solver in ("auto", "curvature-probe"):
        outcome = run("plan", *arguments, "--n", ROWS, "--solver", solver)
        assert outcome.exit_code == 0, outcome.output
        assert "epsilon 1e-9 at delta" in flat(outcome.output)
    outcome = run("fit", folder / "table.csv", *arguments, "--output", tmp_path / "model")
    assert outcome.exit_code == 0, outcome.output
    assert "guarantee epsilon 1e-9 at delta" in flat(outcome.output)
    printed = flat(run("report", tmp_path / "model").output)
    assert "epsilon 1e-9, delta 2.78e-6 (budget: epsilon 1e-9)" in printed
    assert "psilon 1e-9 at delta" in (tmp_path / "model" / "report.html").read_text()


@pytest.mark.audit
def test_a_plan_never_predicts_two_numbers(folder: Path, run: Run) -> None:
    for n in (50, 100, 1000, 100_000):
        for epsilon in (0.1, 1):
            arguments = ("--epsilon", epsilon, "--delta", "auto", "--n", n, "--json")
            document = json.loads(run("plan", "--schema", folder / "ill.json", *arguments).output)
            for plan in document["plans"]:
                for notice in plan["notices"]:
                    said = re.search(r"predicted excess (\S+) is near", notice)
                    assert said is None or said[1] == f"{plan['predicted_excess']:.2g}"


def test_a_plan_as_json_says_that_a_seed_is_not_private(folder: Path, run: Run) -> None:
    arguments = ("--schema", folder / "ill.json", *BUDGET, "--n", ROWS, "--json")
    arguments += ("--solver", "gradient-descent")
    assert json.loads(run("plan", *arguments).output)["warnings"] == []
    (warning,) = json.loads(run("plan", *arguments, "--random-state", 3).output)["warnings"]
    assert warning.startswith("NOT PRIVATE: the noise comes from --random-state 3")


def test_a_stopped_fit_goes_on_from_its_folder_on_one_payment(
    folder: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = Account.create(tmp_path / "budget.sqlite", 2.2, 1e-4, data_set="ill")  # for one such fit
    arguments = [*fit_arguments(folder, "ill", tmp_path / "model"), "--solver", "gradient-descent"]
    arguments += ["--account", tmp_path / "budget.sqlite", "--resume", tmp_path / "kept"]
    answer, answered = LocalCurator._answer, list[int]()

    def stopped(*given: Any) -> Any:
        answered.append(1)
        if len(answered) == 4:
            raise KeyboardInterrupt
        return answer(*given)

    monkeypatch.setattr(LocalCurator, "_answer", stopped)
    interrupted = run(*arguments)
    assert interrupted.exit_code == 130
    assert "The same command, started again, goes on from there" in interrupted.output.splitlines()[-1]
    again = run(*arguments)
    assert again.exit_code == 0, again.output
    assert "paid for this run before it was stopped" in flat(again.output)
    planned = json.loads((tmp_path / "model" / "model.json").read_text())["document"]["plan"]["releases"]
    assert len(answered) == planned + 1  # the three that were made are repeated, the fourth is made
    assert f"{planned}/{planned} releases" in flat(again.output)
    assert account.file is not None
    assert len(account.file.payments()) == 1
    other = run(*arguments[:-4], *arguments[-2:], "--overwrite")
    assert "belongs to another run" in flat(other.output)
    assert other.exit_code == 2


def test_a_stopped_synthesis_goes_on_from_its_folder_on_one_payment(
    folder: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = Account.create(tmp_path / "budget.sqlite", 2.2, 1e-4, data_set="ill")  # for one such run
    arguments = [
        "synthesize",
        folder / "table.parquet",
        "--schema",
        folder / "ill.json",
        "--column",
        "sex",
        *BUDGET,
    ]
    arguments += ["--output", tmp_path / "made.parquet", "--account", tmp_path / "budget.sqlite"]
    arguments += ["--resume", tmp_path / "kept"]

    def stopped(*given: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalCurator, "_answer", stopped)
        assert run(*arguments).exit_code == 130
    again = run(*arguments)
    assert again.exit_code == 0, again.output
    assert "paid for this run before it was stopped" in flat(again.output)
    assert account.file is not None
    assert len(account.file.payments()) == 1
    seeded = run(*arguments, "--random-state", 1, "--overwrite")
    assert "--resume cannot be given with --random-state" in flat(seeded.output)


def test_mistakes_with_a_folder_for_resumption_are_sentences(folder: Path, tmp_path: Path, run: Run) -> None:
    arguments = fit_arguments(folder, "ill", tmp_path / "model")
    (tmp_path / "file").write_text("no folder")
    for given, said in (
        (
            ("--resume", tmp_path / "kept", "--random-state", 1),
            "--resume cannot be given with --random-state",
        ),
        (("--resume", tmp_path / "model" / "kept"), "must not lie in --output"),
        (("--resume", tmp_path / "file"), "cannot be used"),
        (("--resume", tmp_path / "kept", "--solver", "correlated-noise-descent"), "opens a stream"),
    ):
        outcome = run(*arguments, *given)
        assert said in flat(outcome.output)
        assert outcome.exit_code == 2
        assert not (tmp_path / "model").exists()


def test_fit_and_plan_have_the_same_options(run: Run) -> None:
    def options(command: str) -> set[str]:
        return set(re.findall(r"^  (?:-h, )?(--[a-z-]+)", run(command, "--help").output, re.MULTILINE))

    assert options("fit") - {"--output", "--overwrite", "--resume", "--sign-key"} == options("plan") - {
        "--all",
        "--json",
    }
    assert len(options("plan")) == 29


def test_a_bar_counts_releases() -> None:
    terminal = screen.console()
    with terminal.capture() as captured, screen.release_bar(terminal, "fitting", 5) as observer:
        observer("ClippedGradient", 2)
        observer("ClippedGradient", 3)
    assert "5/5 releases" in captured.get()


def test_a_bar_says_what_is_prepared_and_runs_to_and_fro_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    drawn = io.StringIO()
    terminal = Console(file=drawn, force_terminal=True, width=100)
    with screen.release_bar(terminal, "fitting", 5) as observer:
        for name, count in (("rows", 0), ("second moment", 1), ("coordinates", 0), ("gradient", 2)):
            observer(name, count)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn.getvalue())
    said = ("preparing: rows", "preparing: coordinates", "3/3 releases")
    places = [text.find(words) for words in said]
    assert -1 not in places
    assert places == sorted(places)


def test_a_fit_tells_its_observer_what_it_prepares_whatever_the_rows() -> None:
    generator = np.random.default_rng(0)
    features, labels = generator.uniform(-1, 1, (400, 3)), generator.integers(0, 2, 400)
    model = LogisticRegression(epsilon=1.0, delta=1e-6, bounds=(-1, 1), classes=(0, 1))
    heard = []
    for rows in (features, np.full_like(features, np.nan)):
        calls: list[tuple[str, int]] = []
        model.fit(rows, labels, observer=lambda *call, calls=calls: calls.append(call))
        heard.append(calls)
    assert heard[0] == heard[1]
    assert [name for name, count in heard[0] if count == 0] == [
        "rows",
        "second moment of the rows",
        "change of coordinates",
        "scale and shift of the predictions",
    ]
    assert sum(count for _, count in heard[0]) == model.plan_.releases


@pytest.mark.audit
def test_the_installed_command_fails_with_one_line_on_stderr(folder: Path) -> None:
    program = "from privopt.cli import main; main()"
    outcome = subprocess.run(
        [sys.executable, "-c", program, "report", str(folder / "nowhere")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 2
    assert outcome.stdout == ""
    assert len(outcome.stderr.splitlines()) == 1
    assert "no model directory" in outcome.stderr


def test_a_table_in_several_files_is_fitted_predicted_and_synthesized(
    folder: Path, tmp_path: Path, run: Run
) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    table = make_table()
    for k in range(3):
        table.iloc[k::3].to_parquet(parts / f"{k}.parquet", row_group_size=50)
    schema = ("--schema", folder / "ill.json")
    fit = (
        "--target",
        "ill",
        "--epsilon",
        1,
        "--delta",
        "auto",
        "--random-state",
        3,
        "--solver",
        "gradient-descent",
    )
    outcome = run(
        "fit", parts / "*.parquet", *schema, *fit, "--engine", "memory", "--output", tmp_path / "one"
    )
    assert outcome.exit_code == 0, outcome.output
    assert "engine     memory of this process" in outcome.output
    files = [parts / f"{k}.parquet" for k in (2, 0, 1)]
    assert run("fit", *files, *schema, *fit, "--output", tmp_path / "other").exit_code == 0
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "other")]
    assert models[0] == models[1]
    report = json.loads((tmp_path / "one" / "report.json").read_text())
    assert any("in the memory of this process" in sentence for sentence in report["declared"])
    output = tmp_path / "p.parquet"
    assert run("predict", tmp_path / "one", parts, "--output", output).exit_code == 0
    assert pq.read_table(output).num_rows == len(table)
    assert "the table itself" in run("predict", tmp_path / "one", parts, "--output", files[0]).output
    rows = ("--epsilon", 1, "--delta", "auto", "--workload", "1-way", "--output", tmp_path / "rows.parquet")
    assert run("synthesize", parts, *schema, *rows, "--column", "sex").exit_code == 0


def test_records_that_are_gone_end_a_fit_with_exit_code_3(
    folder: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands for an engine that reads rows during the run, and a file that is gone by then."""

    def gone(*arguments: Any, **options: Any) -> Any:
        raise DataUnavailable(f"the file 't' is gone since the table was opened. {STAYS_CHARGED}")

    monkeypatch.setattr(LocalCurator, "private_value", gone)
    outcome = run(*fit_arguments(folder, "ill", tmp_path / "model"))
    assert outcome.exit_code == 3
    assert outcome.output.splitlines()[-1].startswith("privopt: the file 't' is gone")
    assert "count its whole price as spent on these data" in outcome.output.splitlines()[-1]
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("resumed", [False, True])
def test_records_that_are_gone_before_anything_is_charged_cost_nothing_in_words_either(
    resumed: bool, folder: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two sentences, that nothing was spent and that what was charged stays charged, never stand together."""
    arguments = [*fit_arguments(folder, "ill", tmp_path / "model"), "--solver", "gradient-descent"]
    if resumed:
        arguments += ["--resume", tmp_path / "kept"]
        with monkeypatch.context() as patch:
            patch.setattr(LocalCurator, "_answer", interrupt)
            assert run(*arguments).exit_code == 130

    def gone(*arguments: Any, **options: Any) -> Any:
        raise DataUnavailable(f"the file 't' is gone since the table was opened. {STAYS_CHARGED}")

    monkeypatch.setattr(EncodedRecords, "blocks", gone)
    outcome = run(*arguments)
    assert outcome.exit_code == 3
    said = flat(outcome.output)
    assert ("a run was begun in this folder" in said) is resumed
    assert ("Nothing was spent: no release was made" in said) is not resumed
    assert ("was charged before stays charged" in outcome.output.splitlines()[-1]) is resumed
    assert STAYS_CHARGED not in said


PLACES = {
    "an address without a cluster": ("--address host:6379", "--address is about a Ray cluster"),
    "workers without a cluster": ("--workers 3", "--workers is about a Ray cluster"),
    "trust without a cluster": ("--trust-network", "--trust-network is about a Ray cluster"),
    "a spool in memory": ("--engine memory --spool .", "--spool is the folder of a streamed table"),
    "no port of a cluster": ("--engine ray --address head", "HOST:PORT"),
    "a port beyond the last": ("--engine ray --address head:99999", "HOST:PORT"),
    "a spool nowhere": ("--spool no/where", "is no folder"),
    "memory in words": ("--memory lots", "such as 8GB"),
    "another engine": ("--engine disk", "--engine"),
    "memory in memory": ("--engine memory --memory 1GB", "--memory is what rows may take"),
    "memory of a cluster": ("--engine ray --memory 1GB", "--memory is what rows may take"),
    "retries without a cluster": ("--retries 1", "--retries is about a Ray cluster"),
    "fewer retries than none": ("--retries -1", "--retries"),
}


@pytest.mark.parametrize("case", PLACES)
def test_what_is_said_of_places_must_fit(case: str, folder: Path, tmp_path: Path, run: Run) -> None:
    typed, words = PLACES[case]
    outcome = run(*fit_arguments(folder, "ill", tmp_path / "model"), *typed.split())
    assert outcome.exit_code == 2
    assert words in outcome.output.splitlines()[-1]
    assert "Plan" not in outcome.output
    assert not (tmp_path / "model").exists()


def test_a_plan_of_a_table_counts_it_as_a_fit_does(folder: Path, tmp_path: Path, run: Run) -> None:
    table = make_table().assign(who=lambda rows: "u" + (rows.index // 2).astype(str))
    for k in range(2):
        table.iloc[k::2].to_csv(tmp_path / f"{k}.csv", index=False)
    schema = json.loads((folder / "ill.json").read_text())
    schema["columns"]["who"] = {"kind": "id"}
    (tmp_path / "s.json").write_text(json.dumps(schema))
    words = ("--schema", tmp_path / "s.json", *BUDGET, "--target", "ill", "--solver", "gradient-descent")
    files = tmp_path / "*.csv"
    assert f"{ROWS:,} records, the table's rows" in flat(run("plan", files, *words).output)
    users = flat(run("plan", tmp_path / "0.csv", files.with_name("1.csv"), *words, "--group", "who").output)
    assert f"{ROWS // 2:,} users, counted in 'who'" in users
    assert f"{ROWS + 9:,} records, given by --n" in flat(run("plan", files, *words, "--n", ROWS + 9).output)
    said = run("plan", files, *words, "--json")
    assert json.loads(said.output)["plans"][0]["public"]["n"] == ROWS
    for more, expected in (
        (("--relation", "add-or-remove-one"), "add-or-remove-one the number of units is private"),
        (("--engine", "memory", "--memory", "1GB"), "--memory is what rows may take"),
    ):
        refused = run("plan", files, *words, *more)
        assert refused.exit_code == 2
        assert expected in refused.output
    refused = run("plan", tmp_path / "2.csv", *words)
    assert refused.exit_code == 2
    assert "There is no table" in refused.output


@pytest.mark.parametrize("in_memory", [False, True])
def test_a_plan_minds_a_spool_that_lies_in_memory(
    in_memory: bool, folder: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "lies_in_memory", lambda spool: in_memory and spool == tmp_path)
    words = ("plan", "--schema", folder / "ill.json", *BUDGET, "--n", 10**6, "--solver", "whitening")
    text = flat(run(*words, "--engine", "stream", "--spool", tmp_path).output)
    assert ("lies in memory, and so will the spool: give --spool a folder on a disk" in text) is in_memory


@pytest.mark.audit
def test_a_terminal_is_told_what_takes_a_while(
    folder: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(screen, "console", lambda: Console(highlight=False, force_terminal=True, width=99))
    make_table().to_csv(tmp_path / "t.csv", index=False)
    words = ("--schema", folder / "ill.json", *BUDGET, "--target", "ill", "--solver", "gradient-descent")
    outcome = run("fit", tmp_path / "t.csv", *words, "--output", tmp_path / "m")
    assert outcome.exit_code == 0, outcome.output
    assert "Counting records: texts are read for it once." in outcome.output
    outcome = run("predict", tmp_path / "m", tmp_path / "t.csv", "--output", tmp_path / "p.parquet")
    assert "Predicting" in outcome.output
    assert f"{len(make_table())} rows" in outcome.output


def test_a_plan_says_where_rows_are_kept_and_what_a_tenth_would_reach(folder: Path, run: Run) -> None:
    words = ("plan", "--schema", folder / "ill.json", *BUDGET, "--n", 10**9, "--solver", "whitening")
    text = flat(run(*words, "--engine", "stream", "--memory", "1GB").output)
    assert "with a linear map of the rows on a local disk, read once a pass" in text
    assert "1.1 GB of memory in this process" in text or "1.2 GB of memory in this process" in text
    assert "beyond about 650 MB that a fit of any table takes" in text
    assert "of computing and" not in text  # that would be of rows in memory
    assert "a random tenth of the records, 100,000,000, would reach an excess of about" in text
    of_ray = flat(run(*words, "--engine", "ray", "--workers", 8).output)
    assert re.search(r"ray: [\d.,]+ GB, with a linear map .* of 8 workers, [\d.,]+ GB each", of_ray)
    place = json.loads(run(*words, "--json", "--memory", "1GB").output)["place"]
    assert place["engine"] == "stream"
    assert place["bytes_read"] > 1e11


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("--engine ray", "with --engine ray at most 1.1 GB are: take another"),
        ("--memory 1GB --json", "with --engine stream at most 1 GB are: give more --memory"),
    ],
)
def test_a_plan_whose_held_points_do_not_fit_is_refused(
    typed: str, words: str, folder: Path, run: Run
) -> None:
    users = ("plan", "--schema", folder / "ill.json", *BUDGET, "--group", "person")
    solver = ("--solver", "user-federated-averaging")
    outcome = run(*users, *solver, *typed.split(), "--n", 10**9)
    assert outcome.exit_code == 2
    assert re.search(r"holds [\d,]*,000,000,000 numbers of the users in this process", flat(outcome.output))
    assert words in flat(outcome.output)
    assert run(*users, *solver, *typed.split(), "--n", 10**6).exit_code == 0


def test_a_plan_that_needs_all_rows_at_once_is_refused_on_a_cluster(folder: Path, run: Run) -> None:
    typed = ("plan", "--schema", folder / "ill.json", *BUDGET, "--solver", "phased-sgd", "--n", 5 * 10**7)
    outcome = run(*typed, "--engine", "ray")
    assert outcome.exit_code == 2
    assert "phased-sgd holds all rows at once in this process" in flat(outcome.output)
    assert run(*typed, "--engine", "stream", "--memory", "1GB").exit_code == 0
