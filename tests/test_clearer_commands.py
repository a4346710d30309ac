"""What the command line says of options: all that is missing at once, numbers as written, plain help pages."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from privopt import public
from privopt.cli import app
from privopt.commands import audit_map, options
from privopt.commands.screen import typed_number

SCHEMA = {"target": "y", "columns": {"a": {"kind": "num", "low": 0, "high": 1}, "y": {"kind": "flag"}}}
PLAN = ("plan", "--n", "1000", "--epsilon", "1", "--delta", "auto", "--schema")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    return tmp_path


def said(*words: Any) -> str:
    """What a command says, as one line."""
    return " ".join(CliRunner().invoke(app, [str(word) for word in words]).output.split())


def test_everything_that_is_missing_is_named_at_once(tmp_path: Path) -> None:
    text = said("fit")
    for name in ("TABLE", "--output", "--schema", "--epsilon", "--delta"):
        assert f"{name}: " in text
    text = said("account", "create", tmp_path / "budget.sqlite", "--epsilon", 1)
    assert "give --data-set: your name of the data; and --delta: " in text
    assert all(f"{name}: " in said("predict") for name in ("DIR", "TABLE", "--output"))
    assert all(f"{name}: " in said("plan") for name in ("--schema", "--epsilon", "--delta", "--n"))
    assert all(f"{name}: " in said("synthesize") for name in ("TABLE", "--output", "--schema", "--epsilon"))
    private = said("plan", "--relation", "add-or-remove-one")
    assert "--n: under add-or-remove-one the number of units is private" in private


@pytest.mark.parametrize("command", ["fit", "plan", "account create", "audit attack", "audit", "predict"])
def test_help_pages_are_plain_text(command: str) -> None:
    page = said(*command.split(), "--help")
    assert "Usage" in page
    assert "\\[" not in page
    if command in ("fit", "account create", "predict"):
        assert "[required]" in page
        assert not re.search(r"\[(TABLE|FILE|DIR)", page)


@pytest.mark.parametrize(
    ("text", "number"), [("1", 1.0), ("inf", np.inf), ("Infinity", np.inf), ("1e-3", 1e-3), ("0", 0.0)]
)
def test_a_number_is_what_was_written(text: str, number: float) -> None:
    assert typed_number(text) == number


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        (("--epsilon", "1e400"), "'1e400' is larger than any number that can be computed with"),
        (("--epsilon", "9" * 400), "is larger than any number that can be computed with"),
        (("--epsilon", "1e-400"), "'1e-400' is smaller than any number that can be computed with"),
        (("--epsilon", "1,5"), "'1,5' is not a number. Write a decimal point"),
        (("--n", "10,000"), "--n '10,000' has thousands separators: write 10000"),
        (("--seed", "3"), "--seed is called --random-state"),
        (("--level", "0.3"), "--level is called --quantile"),
    ],
)
def test_an_option_that_cannot_be_read_gets_a_sentence(
    option: tuple[str, str], sentence: str, folder: Path
) -> None:
    assert sentence in said(*PLAN, folder / "schema.json", *option)


@pytest.mark.parametrize(
    ("epsilon", "side"), [("1000", "above 100"), ("0.0005", "below 0.001"), ("1", None), ("100", None)]
)
def test_an_unusual_epsilon_is_noticed_in_the_plan(epsilon: str, side: str | None, folder: Path) -> None:
    text = said(*PLAN, folder / "schema.json", "--epsilon", epsilon, "--solver", "gradient-descent")
    assert ("Common values lie between 0.1 and 10" in text) is (side is not None)
    assert f"is {side}" in text or side is None


def test_a_folder_with_other_files_and_a_partition_name_the_remedy(folder: Path) -> None:
    rows = pd.DataFrame({"a": [0.1, 0.9], "y": [0, 1]})
    rows.to_csv(folder / "table.csv", index=False)
    budget = ("--epsilon", 1, "--delta", "auto", "--output", folder / "model")
    text = said("fit", folder, "--schema", folder / "schema.json", *budget)
    assert "holds other files beside tables, such as 'schema.json'" in text
    assert "/*.csv'" in text
    part = folder / "parts" / "site=a"
    part.mkdir(parents=True)
    rows.to_parquet(part / "rows.parquet")
    levels = {"kind": "cat", "levels": ["a", "b"]}
    schema = {**SCHEMA, "columns": {**SCHEMA["columns"], "site": levels}}
    (folder / "sites.json").write_text(json.dumps(schema))
    text = said("fit", folder / "parts", "--schema", folder / "sites.json", *budget)
    assert "The column 'site' stands only in the names of the folders (such as 'site=a')" in text
    assert "partitioning='hive'" in text
    assert not (folder / "model").exists()


def test_the_maps_of_all_solvers_come_one_by_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Pool:
        """Maps in this process."""

        def __init__(self, *given: Any, **named: Any) -> None:
            del given, named

        def __enter__(self) -> "Pool":
            return self

        def __exit__(self, *exception: object) -> None: ...

        def map(self, function: Any, names: Any) -> Any:
            for name in names:
                told.append(capsys.readouterr())
                yield function(name)

    told: list[Any] = []
    reading = audit_map.Reading("ledger/one.py", ("one",), 3)
    monkeypatch.setattr(audit_map, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(audit_map, "SOLVERS", {"first": None, "second": None})
    monkeypatch.setattr(
        audit_map, "audit_map", lambda name, engine: audit_map.AuditMap(name, engine, (reading,))
    )
    audit_map.run(None, engine="fast", as_json=False, as_markdown=False)
    assert "running 2 solvers, each in a process of its own" in told[0].err
    assert "1 of 2 solvers: first" in told[1].err
    assert told[1].out.startswith("first on the fast engine")


def test_the_most_units_are_the_same_for_options_and_for_what_is_public() -> None:
    assert options.MOST_UNITS == public.MOST_UNITS
