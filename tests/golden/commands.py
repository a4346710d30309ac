"""Golden outputs of the command line: what is printed and written, without times, versions and digests of files."""

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import safetensors.numpy
from tests.golden.comparing import Line
from tests.golden.transcripts import digest, line_of_run, recorded
from tests.test_cli import SCHEMA, TARGETS, make_table
from typer.testing import CliRunner

from privopt.cli import app

BUDGET = ("--epsilon", "2", "--delta", "1e-5")
SEEDED = ("--random-state", "3")
MODEL = ("--output", "model")
FIT = ("fit", "table.parquet", "--schema", "ill.json", *BUDGET, *SEEDED, *MODEL)
# Each is the commands of one run, in an empty folder with the table and its schemas; the last one is shown.
COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "plan": (("plan", "--schema", "ill.json", "--epsilon", "2", "--delta", "auto", "--n", "600"),),
    "plan, users, as JSON": (
        ("plan", "--schema", "ill.json", *BUDGET, "--n", "600", "--group", "person", "--json"),
    ),
    "fit": (FIT,),
    "fit, counts, add or remove one": (
        (
            *("fit", "table.csv", "--schema", "visits.json", *BUDGET, *SEEDED, *MODEL, "--model", "poisson"),
            *("--relation", "add-or-remove-one", "--n", "700"),
        ),
    ),
    "fit, users": ((*FIT, "--group", "person", "--max-records", "2"),),
    "report": (FIT, ("report", "model")),
    "predict": (FIT, ("predict", "model", "table.csv", "--output", "predicted.parquet")),
    "synthesize": (
        (
            *("synthesize", "table.parquet", "--schema", "ill.json", *BUDGET, *SEEDED),
            *("--output", "rows.parquet", "--column", "sex", "--column", "smoker", "--column", "age"),
        ),
    ),
    "check": (("check", "table.csv", "--schema", "ward.json", "--show-values"),),
    "a mistake": (("fit", "table.parquet", "--schema", "ill.json", "--epsilon", "2", *MODEL),),
}
CHANGING = (  # from run to run, or from version to version
    (re.compile(r"^.*[━╸╺].*\n", re.MULTILINE), ""),  # how far it is, and for how long it has run
    (re.compile(r"\b\d[\d.,]* (s|ms|min|h)\b"), "<time>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?\S*"), "<date>"),
    (re.compile(r"\b[0-9a-f]{12,64}\b"), "<digest>"),
    (re.compile(r"<svg.*?</svg>", re.DOTALL), "<svg>"),
    (re.compile(r"privopt \d+\.\d+\.\d+\S*"), "privopt <version>"),
)


def command_runs() -> Iterator[tuple[str, Callable[[], Line]]]:
    """Every output."""
    for name, commands in COMMANDS.items():
        yield name, partial(_shown, commands)


def _shown(commands: tuple[tuple[str, ...], ...]) -> Line:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, recorded() as releases:
        os.chdir(folder)  # so that the texts name no path
        try:
            _write_table(Path())
            given = set(Path().iterdir())
            for command in commands:
                outcome = CliRunner().invoke(app, list(command))
            files = sorted(path for path in Path().rglob("*") if path.is_file() and path not in given)
            line = line_of_run(
                releases,
                None,
                [_content(path) for path in files],
            )
            line["values"]["exit"] = outcome.exit_code
            line["words"]["printed"] = _lasting(outcome.output).replace(str(Path.cwd()), "<folder>")
            for path in files:
                if path.name == "report.json":
                    numbers, texts = _parts(json.loads(path.read_text()))
                    line["values"]["report"] = digest(numbers)
                    line["words"]["report"] = _lasting("\n".join(texts))
                elif path.name == "report.html":
                    line["words"]["page"] = _lasting(path.read_text())
        finally:
            os.chdir(before)
    return line


def _write_table(folder: Path) -> None:
    table = make_table()
    table.to_parquet(folder / "table.parquet")
    table.to_csv(folder / "table.csv", index=False)
    for target in TARGETS:
        others = {"target": target, "other_targets": [other for other in TARGETS if other != target]}
        (folder / f"{target}.json").write_text(json.dumps(SCHEMA | others))


def _content(path: Path) -> Any:
    """The rows of a table as text, and arrays; nothing of other files."""
    if path.suffix == ".parquet":
        return np.frombuffer(pd.read_parquet(path).to_csv(index=False).encode(), np.uint8)
    return safetensors.numpy.load_file(path) if path.suffix == ".safetensors" else None


def _parts(document: Any) -> tuple[list[Any], list[str]]:
    """The numbers of a JSON document in order, and its names and texts; neither version nor digests of the replay."""
    if isinstance(document, dict):
        found = [([], [str(name)]) for name in document]
        parts = [_parts(value) for name, value in document.items() if name not in ("privopt", "replay")]
    elif isinstance(document, list):
        found, parts = [], [_parts(value) for value in document]
    else:
        return ([], [document]) if isinstance(document, str) else ([document], [])
    found += parts
    return [one for numbers, _ in found for one in numbers], [one for _, texts in found for one in texts]


def _lasting(text: str) -> str:
    """The text without what changes from run to run."""
    for pattern, name in CHANGING:
        text = pattern.sub(name, text)
    return "\n".join(line.rstrip() for line in text.splitlines())
