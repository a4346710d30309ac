"""Tables that commands write: their formats, the columns that `predict --keep` copies, and plain help pages."""

import gzip
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from tests.support.saved_models import save_small_model
from typer.testing import CliRunner

import privopt
from privopt import load
from privopt.cli import app

ROWS = 70_000  # of text in several blocks
IDS = [f"0{place}" for place in range(ROWS)]
NOTES = ['says "yes", then\nno', "", "plain"]


def run(*words: Any, code: int = 0) -> str:
    """What a command prints, as one line."""
    outcome = CliRunner().invoke(app, [str(word) for word in words])
    assert outcome.exit_code == code, outcome.output
    return " ".join(outcome.output.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of the columns a and b, and a table of them with others that its schema does not have."""
    path = tmp_path_factory.mktemp("written")
    save_small_model(path / "model", of_table=True)
    rows = np.random.default_rng(2).uniform(-1, 1, (ROWS, 2))
    table = pd.DataFrame(rows, columns=["a", "b"]).assign(
        id=IDS, note=[NOTES[place % 3] for place in range(ROWS)], weight=np.arange(ROWS)
    )
    table.to_parquet(path / "t.parquet", row_group_size=30_000)
    table.to_csv(path / "t.csv", index=False)
    (path / "t.csv.gz").write_bytes(gzip.compress((path / "t.csv").read_bytes()))
    (path / "parts").mkdir()
    for part in range(3):
        table[part * 30_000 : (part + 1) * 30_000].to_parquet(path / "parts" / f"{part}.parquet")
    return path


def expected(folder: Path) -> Any:
    """The probabilities of the second class."""
    features = pd.read_parquet(folder / "t.parquet", columns=["a", "b"])
    model = load(folder / "model")
    return model.predict_proba(model.encoder_.transform(features))[:, 1]


@pytest.mark.parametrize("table", ["t.parquet", "t.csv", "t.csv.gz", "parts"])
def test_columns_that_are_kept_stand_beside_the_predictions_of_their_rows(
    table: str, folder: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.parquet"
    kept = ("--keep", "id", "--keep", "note", "--keep", "weight", "--keep", "id")
    said = run("predict", folder / "model", folder / table, "--output", output, *kept)
    assert "70,000 rows, id, note, weight, prediction and 2 more" in said
    found = pd.read_parquet(output)
    assert list(found) == ["id", "note", "weight", "prediction", "probability_0", "probability_1"]
    assert list(found["id"]) == IDS
    assert list(found["note"][:6]) == NOTES * 2
    assert list(found["weight"].astype(int)) == list(range(ROWS))
    is_text = pa.types.is_string(pq.read_schema(output).field("weight").type)
    assert is_text is ("csv" in table)  # a text has no types
    np.testing.assert_allclose(found["probability_1"], expected(folder), atol=1e-6)


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("out.csv", lambda path: pd.read_csv(path, dtype={"id": str}, keep_default_na=False)),
        ("out.TSV", lambda path: pd.read_csv(path, sep="\t", dtype={"id": str}, keep_default_na=False)),
        ("out.feather", pd.read_feather),
        ("out.arrow", lambda path: pa.ipc.open_file(path).read_pandas()),
    ],
)
def test_predictions_are_written_in_the_format_of_their_name(
    name: str, read: Any, folder: Path, tmp_path: Path
) -> None:
    kept = ("--keep", "id", "--keep", "note")
    run("predict", folder / "model", folder / "t.parquet", "-o", tmp_path / name, *kept)
    found = read(tmp_path / name)
    assert list(found["id"]) == IDS
    assert list(found["note"][:6]) == NOTES * 2
    np.testing.assert_array_equal(found["probability_1"], expected(folder))


def test_what_cannot_be_kept_is_refused_before_anything_is_predicted(folder: Path, tmp_path: Path) -> None:
    small = pa.table({"a": [0.1], "b": [0.2], "words": [[7]], "prediction": [1]})
    pq.write_table(small, tmp_path / "small.parquet")
    (tmp_path / "two.csv").mkdir()
    predict = ("predict", folder / "model", tmp_path / "small.parquet", "--output")
    for name, kept, sentence in (
        (
            "o.csv",
            "words",
            "Column 'words' holds list<element: int64>, which .csv has no form for: write .parquet",
        ),
        ("o.csv", "prediction", "--keep 'prediction' has the name of a column of predictions: rename it"),
        ("o.csv", "word", "--keep: The table has no column 'word': did you mean 'words'?"),
        ("two.csv", "words", "two.csv' is a directory: give a file"),
        ("o.xlsx", "words", "o.xlsx' must end in .parquet, .pq, .csv, .tsv, .feather or .arrow"),
    ):
        said = run(*predict, tmp_path / name, "--keep", kept, code=2)
        assert sentence in said
        assert "Counting" not in said
        assert not (tmp_path / name).is_file()
    run(*predict, tmp_path / "o.parquet", "--keep", "words")
    assert pd.read_parquet(tmp_path / "o.parquet")["words"][0].tolist() == [7]
    (tmp_path / "two").mkdir()
    pq.write_table(small, tmp_path / "two" / "1.parquet")
    pq.write_table(small.set_column(2, "words", pa.array([[0.5]])), tmp_path / "two" / "2.parquet")
    predict = (
        "predict",
        folder / "model",
        tmp_path / "two",
        "--output",
        tmp_path / "p.csv",
        "--keep",
        "words",
    )
    assert "stores words as other types than the first file does" in run(*predict, code=2)


@pytest.mark.parametrize("name", ["empty.csv", "empty.parquet"])
def test_a_table_without_rows_has_the_columns_of_its_predictions(
    name: str, folder: Path, tmp_path: Path
) -> None:
    nothing = pd.DataFrame({"a": [0.1], "b": [0.2], "id": ["x"]}).head(0)
    (nothing.to_csv if name == "empty.csv" else nothing.to_parquet)(tmp_path / name, index=False)
    run("predict", folder / "model", tmp_path / name, "-o", tmp_path / "o.feather", "--keep", "id")
    found = pd.read_feather(tmp_path / "o.feather")
    assert list(found) == ["id", "prediction", "probability_0", "probability_1"]
    assert found.empty


def test_a_kept_cell_that_is_no_text_is_missing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(b"a,b,id\n0,0,one\n0,0,\xff\n0,0,three\n")
    run("predict", folder / "model", tmp_path / "t.csv", "-o", tmp_path / "o.parquet", "--keep", "id")
    assert pq.read_table(tmp_path / "o.parquet")["id"].to_pylist() == ["one", None, "three"]


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("rows.csv", pd.read_csv),
        ("rows.feather", pd.read_feather),
        ("rows.tsv", lambda path: pd.read_csv(path, sep="\t")),
    ],
)
def test_synthetic_rows_are_written_in_the_format_of_their_name(
    name: str, read: Any, folder: Path, tmp_path: Path
) -> None:
    number = {"kind": "num", "low": -1, "high": 1}
    schema = '{"columns": {"a": {"kind": "num", "low": -1, "high": 1}, "b": {"kind": "flag"}}}'
    (tmp_path / "schema.json").write_text(schema)
    budget = ("--epsilon", 2, "--delta", "auto", "--workload", "1-way", "--rows", 40)
    run(
        "synthesize",
        folder / "t.parquet",
        "--schema",
        tmp_path / "schema.json",
        *budget,
        "-o",
        tmp_path / name,
    )
    assert (
        number["low"]
        <= read(tmp_path / name)["a"].min()
        <= read(tmp_path / name)["a"].max()
        <= number["high"]
    )
    assert len(read(tmp_path / name)) == 40
    assert (tmp_path / "rows.report.json").exists()


def commands(group: Any, *before: str) -> Iterator[tuple[str, ...]]:
    """The words of every command and group."""
    yield before
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, *before, name)


@pytest.mark.parametrize("words", list(commands(typer.main.get_command(app))), ids=" ".join)
def test_a_help_page_has_no_escape_sequences(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE", "PY_COLORS", "GITHUB_ACTIONS"):
        monkeypatch.setenv(name, "1")
    outcome = CliRunner().invoke(app, [*words, "--help"])
    assert outcome.exit_code == 0
    assert "Usage: " in outcome.output
    assert "\x1b" not in outcome.output


def test_nothing_but_public_names_is_listed() -> None:
    program = "import privopt, privopt.solvers; print(*(n for n in dir(privopt) if not n.startswith('_')))"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    names = printed.stdout.split()
    assert len(names) <= 45
    assert set(names) == set(privopt.__all__) - {"__version__"}
