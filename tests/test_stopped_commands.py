"""Ctrl-C at whatever a command is doing: exit code 130, and one last sentence that says what was spent."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from privopt import Account
from privopt.cli import app
from privopt.commands import planning, synthesizing
from privopt.commands.paying import Paying
from privopt.curator.local import LocalCurator
from privopt.estimators import saving, table_source
from privopt.estimators.synthetic_data import SyntheticData
from privopt.ledger.account_file import AccountFile
from privopt.tables.table import EncodedRecords

NOTHING = "privopt: stopped. Nothing was spent."
BUDGET = ("--epsilon", "2", "--delta", "1e-5")
SCHEMA = {"columns": {"smokes": {"kind": "flag"}, "ill": {"kind": "flag"}}, "target": "ill"}
WHOLE = "count its whole price as spent on these data, epsilon 2 at delta 1e-5."


def interrupt(*arguments: Any, **named: Any) -> Any:
    raise KeyboardInterrupt


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stopped")
    draws = np.random.default_rng(0).integers(0, 2, (200, 2))
    pd.DataFrame(draws, columns=["smokes", "ill"]).to_csv(path / "table.csv", index=False)
    (path / "schema.json").write_text(json.dumps(SCHEMA))
    return path


def words(command: str, folder: Path, place: Path, *more: Any) -> list[str]:
    """The command line; what it writes goes to a folder."""
    table = [] if command == "plan" else [folder / "table.csv"]
    output = {"fit": ["--output", place / "model"], "synthesize": ["--output", place / "rows.parquet"]}
    sizes = ["--n", "200"] if command == "plan" else []
    typed = [
        command,
        *table,
        "--schema",
        folder / "schema.json",
        *BUDGET,
        *output.get(command, []),
        *sizes,
        *more,
    ]
    return [str(word) for word in typed]


def stopped(command: str, folder: Path, place: Path, *more: Any) -> str:
    """The last line of a command that is interrupted."""
    outcome = CliRunner().invoke(app, words(command, folder, place, *more))
    assert outcome.exit_code == 130, outcome.output
    assert "Traceback" not in outcome.output
    return re.sub(r"\s+", " ", outcome.stderr.splitlines()[-1])


EARLY = {
    "fit, planning": ("fit", planning, "announce"),
    "fit, reading": ("fit", EncodedRecords, "blocks"),
    "synthesize, planning": ("synthesize", SyntheticData, "plan"),
    "synthesize, reading": ("synthesize", table_source, "opened"),
    "plan": ("plan", planning, "run"),
}


@pytest.mark.parametrize("case", EARLY)
def test_before_the_fit_begins_nothing_is_spent(
    case: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, place, name = EARLY[case]
    monkeypatch.setattr(place, name, interrupt)
    assert stopped(command, folder, tmp_path) == NOTHING
    assert list(tmp_path.iterdir()) == []


LATE = {
    "fit, a release": ("fit", LocalCurator, "private_value", "Stopped after 0 of "),
    "fit, writing": ("fit", saving, "write", "The fit was made"),
    "synthesize, a release": ("synthesize", LocalCurator, "private_value", "Stopped after 0 of "),
    "synthesize, writing": ("synthesize", synthesizing, "new_table", "The fit was made"),
}


@pytest.mark.later("fit, writing")
@pytest.mark.parametrize("case", LATE)
def test_from_the_first_release_on_the_whole_price_is_spent(
    case: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command, place, name, beginning = LATE[case]
    Account.create(tmp_path / "budget.sqlite", 9.0, 1e-3, data_set="made up")
    monkeypatch.setattr(place, name, interrupt)
    last = stopped(command, folder, tmp_path, "--account", tmp_path / "budget.sqlite")
    assert last.startswith(f"privopt: stopped. {beginning}"), last
    assert last.endswith(WHOLE)
    assert len(Account(path=tmp_path / "budget.sqlite").entries) == 1
    assert not (tmp_path / "rows.parquet").exists()


@pytest.mark.later("fit")
@pytest.mark.parametrize("command", ["fit", "synthesize"])
def test_between_the_fit_and_the_writing_of_its_result_the_whole_price_is_spent(
    command: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the fit is known to have been made, and nothing was done with it yet."""

    def fitted(paying: Paying, value: bool) -> None:
        if value:
            interrupt()

    monkeypatch.setattr(Paying, "fitted", property(lambda paying: False, fitted), raising=False)
    last = stopped(command, folder, tmp_path)
    assert last.startswith("privopt: stopped. Stopped after ")
    assert last.endswith(WHOLE)


def test_a_payment_that_was_entered_is_spent_though_no_release_was_made(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Account.create(tmp_path / "budget.sqlite", 9.0, 1e-3, data_set="made up")
    monkeypatch.setattr(AccountFile, "_count", interrupt)
    last = stopped("fit", folder, tmp_path, "--account", tmp_path / "budget.sqlite")
    assert last.startswith("privopt: stopped. Stopped after 0 of ")
    assert last.endswith(WHOLE)
    assert len(Account(path=tmp_path / "budget.sqlite").entries) == 1


def test_a_device_without_memory_is_no_error_of_ours(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*arguments: Any) -> Any:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")

    monkeypatch.setattr(LocalCurator, "private_value", exhausted)
    outcome = CliRunner().invoke(app, words("fit", folder, tmp_path))
    assert outcome.exit_code == 2
    assert outcome.stderr.startswith("privopt: there is not enough memory for this")
    assert "count its whole price as spent" in re.sub(r"\s+", " ", outcome.stdout)


@pytest.mark.audit
@pytest.mark.parametrize("command", ["fit", "synthesize"])
def test_a_signal_after_the_plan_was_printed_is_answered(command: str, folder: Path, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "privopt.cli", *words(command, folder, tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    while b"Plan, made" not in process.stdout.readline():
        pass
    os.kill(process.pid, signal.SIGINT)
    _, complaint = process.communicate()
    assert process.returncode == 130
    last = re.sub(r"\s+", " ", complaint.decode().splitlines()[-1])
    assert last == NOTHING or last.endswith(WHOLE)
