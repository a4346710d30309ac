"""The demo: quickly on a part of the records, and (as an audit) whole, from a cold cache and against the clock."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.report_schema import require_valid
from typer.testing import CliRunner

from privopt import demo
from privopt.cli import app
from privopt.commands import screen
from privopt.verification.files import verify
from privopt.verification.verdict import Finding

PART = 3000
SECONDS = 60.0  # on 2 cores, compilation included


@pytest.fixture(scope="module")
def records() -> tuple[demo.Records, demo.Records]:
    pytest.importorskip("statsmodels")
    train, held_out = demo.load()
    assert (len(train.private_visits), len(held_out.private_visits)) == (
        demo.TRAINING,
        demo.RECORDS - demo.TRAINING,
    )
    part = demo.Records(
        private_features=train.private_features[:PART], private_visits=train.private_visits[:PART]
    )
    return part, held_out


def test_the_split_is_fixed(records: tuple[demo.Records, demo.Records]) -> None:
    again = demo.load()[0]
    assert again.private_visits[:PART].tolist() == records[0].private_visits.tolist()


def test_the_public_ranges_hold_the_records(records: tuple[demo.Records, demo.Records]) -> None:
    for part in records:
        assert abs(part.private_features).max() <= 1
        assert part.private_visits.min() >= 0


def test_the_account_pays_for_all_models_and_no_more() -> None:
    fits = demo.planned(PART)
    account = demo.opened(fits)
    assert len(fits) == 4
    assert [fit.plan.budget.epsilon for fit in fits] == [0.5, 1.0, 2.0, 1.0]
    assert 2.0 < account.budget.epsilon < 4.5
    for fit in fits:
        account.spend(fit.title, fit.plan.event, fit.plan.budget.epsilon, fit.plan.budget.delta)
    assert account.remaining_epsilon() < 0.4


def test_the_plan_is_printed_before_the_data_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise KeyError("the data")

    monkeypatch.setattr(demo, "load", fail)
    outcome = CliRunner().invoke(app, ["demo", "--output", str(tmp_path / "out")], env={"COLUMNS": "80"})
    assert outcome.exit_code == 1
    for word in (
        "Plan, made before any record is read",
        "releases",
        "data passes",
        "predicted error",
        "all together",
    ):
        assert word in outcome.output


def test_without_statsmodels_one_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: None)
    outcome = CliRunner().invoke(app, ["demo", "--output", str(tmp_path / "out")])
    assert outcome.exit_code == 2
    assert "pip install 'privopt[demo]'" in outcome.output
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def made(records: tuple[demo.Records, demo.Records]) -> tuple[Any, Any, list[dict[str, Any]], str]:
    """The fits of a part of the demo, the account that paid, the comparison, and what is printed."""
    train, held_out = records
    fits = demo.planned(PART)
    account = demo.opened(fits)
    terminal = screen.console()
    with terminal.capture() as captured:
        demo.fit_all(terminal, fits, account, train)
        rows = demo.compared(fits, train, held_out)
        demo.show_results(terminal, rows)
    return fits, account, rows, captured.get()


def test_a_part_of_the_demo_fits_compares_and_reports(
    made: tuple[Any, Any, list[dict[str, Any]], str], tmp_path: Path
) -> None:
    fits, account, rows, text = made
    assert [row["model"] for row in rows].count("private") == 4
    assert len(rows) == 8
    assert len(account.entries) == 4
    ended = [(int(made), int(of)) for made, of in re.findall(r"(\d+)/(\d+) releases", text)]
    assert len(ended) == len(fits)
    for fit, (made, of) in zip(fits, ended, strict=True):
        assert made == of  # a run that may end early ends with a full bar all the same
        assert of <= fit.plan.releases if fit.plan.adaptive else of == fit.plan.releases
    for heading in ("accuracy", "AUC", "deviance", demo.NO_PRIVACY):
        assert heading in text
    page = demo.save(tmp_path, fits, rows)
    html = page.read_text()
    assert "joint guarantee" in html
    assert "chronic diseases" in html
    assert "https://" not in html.replace("http://www.w3.org", "")
    document = json.loads(page.with_suffix(".json").read_text())
    assert document["joint_price"]["epsilon"] <= account.budget.epsilon
    assert len(document["runs"]) == 4
    require_valid(document)
    assert Finding.REFUTED not in [verdict.finding for verdict in verify(page.with_suffix(".json"))]


@pytest.mark.audit
def test_the_whole_demo_runs_within_a_minute_from_a_cold_cache(tmp_path: Path) -> None:
    pytest.importorskip("statsmodels")
    started = time.perf_counter()
    outcome = subprocess.run(
        [
            sys.executable,
            "-c",
            "from privopt.cli import main; main()",
            "demo",
            "--output",
            str(tmp_path / "out"),
        ],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "COLUMNS": "80"},
    )
    seconds = time.perf_counter() - started
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stderr == ""
    assert seconds < SECONDS
    rows = json.loads((tmp_path / "out" / "report.json").read_text())["summary"]
    area = {(row["model"], row["epsilon"]): row["AUC"] for row in rows if row["AUC"] != ""}
    reference = area[demo.NO_PRIVACY, "infinity"]
    assert area["private", 2.0] > reference - 0.02
    assert area["private", 1.0] > reference - 0.03
    assert area["private", 0.5] > reference - 0.05
    deviance = {row["model"]: row["deviance"] for row in rows if row["predicts"] == demo.COUNT_QUESTION}
    assert deviance[demo.NO_PRIVACY] < deviance["private"] < deviance[demo.NO_MODEL]
