"""The number of usable records: on the model, in plan, terminal, report and JSON, and the notice where it is small."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from privopt import LinearRegression, LogisticRegression, PoissonRegressor
from privopt.cli import app
from privopt.planning.usable import Usable, moment_deviation
from privopt.public import Public, Relation

ROWS, WIDTH = 2_000, 4
CAUSES = "Usual causes: labels in another spelling than the declared ones"


def table() -> tuple[Any, Any]:
    draw = np.random.default_rng(5)
    features = draw.uniform(-1.0, 1.0, (ROWS, WIDTH))
    return features, (features[:, 0] > draw.logistic(size=ROWS) / 4).astype(int)


def fitted(targets: Any, kind: Any = LogisticRegression, **options: Any) -> Any:
    declared = {"epsilon": 1.0, "delta": 1e-6, "bounds": (-1, 1), "random_state": 3}
    return kind(**declared | options).fit(table()[0], targets)


Y = table()[1]
UNREADABLE: dict[str, tuple[Any, dict[str, Any]]] = {
    "a spelling of yes and no that is not known": (np.where(Y, "ja", "nein"), {"classes": [False, True]}),
    "labels as text": (np.where(Y, "one", "none").astype(object), {"classes": [0, 1]}),
    "codes 1 and 2 for 2 and 3": (Y + 1, {"classes": [2, 3]}),
    "decimal comma": ([f"{y},25" for y in Y], {"kind": LinearRegression, "target_bounds": (0, 2)}),
    "M for male": (np.where(Y, "M", "F"), {"classes": ["male", "female"]}),
    "counts as text": ([f"{y} visits" for y in Y], {"kind": PoissonRegressor, "target_bounds": (0, 9)}),
    "every target missing": (np.full(ROWS, np.nan), {"kind": LinearRegression, "target_bounds": (0, 2)}),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_targets_that_cannot_be_read_are_noticed_everywhere(name: str) -> None:
    targets, options = UNREADABLE[name]
    model = fitted(targets, **options)
    assert model.usable_ < 0.7 * ROWS
    printed = " ".join(str(model.privacy_).split())
    assert f"of {ROWS:,} records are usable, and the others count as zero" in printed
    assert CAUSES in printed
    assert CAUSES in model.privacy_.to_html()
    document = model.privacy_.to_dict()
    assert document["findings"]["usable"]["value"] == model.usable_
    assert any(CAUSES in notice for notice in document["notices"])
    assert any("records are usable, by the trace" in text for text in document["summary"])


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_of_readable_records_all_are_usable_and_nothing_is_noticed(relation: str) -> None:
    model = fitted(Y, classes=[0, 1], relation=relation, n=ROWS)
    announced = model.plan_.indicators["usable"]
    assert abs(model.usable_ - ROWS) <= 4 * announced.value
    assert "the report will give the number of usable records to about ± " in str(model.plan_)
    assert CAUSES not in " ".join(str(model.privacy_).split())
    half = fitted(np.where(np.arange(ROWS) % 2, Y, 7), classes=[0, 1], relation=relation, n=ROWS)
    assert abs(half.usable_ - ROWS / 2) <= 4 * announced.value
    assert CAUSES in " ".join(str(half.privacy_).split())


def test_users_without_a_usable_record_are_not_usable() -> None:
    users = np.arange(ROWS) // 4
    unread = np.where(users % 2, Y, 7)
    model = LogisticRegression(epsilon=4.0, delta=1e-6, bounds=(-1, 1), classes=[0, 1], random_state=3)
    model.fit(table()[0], unread, groups=users)
    assert abs(model.usable_ - ROWS / 8) <= 4 * model.plan_.indicators["usable"].value
    assert "of 500 users are usable" in str(model.privacy_)


def test_the_deviation_is_that_of_the_trace() -> None:
    public, z, draw = Public(n=1_000, d=9), 5.0, np.random.default_rng(1)
    moment, scale = np.eye(9) / 9, z * np.sqrt(2.0) / public.n
    found = [
        Usable.in_moment(moment + np.diag(scale * draw.standard_normal(9)), z, public).estimate
        for _ in range(2_000)
    ]
    assert np.mean(found) == pytest.approx(1_000, abs=2)
    assert np.std(found) == pytest.approx(moment_deviation(z, public), rel=0.05)
    alone = Public(n=1_000, d=9, relation=Relation.ADD_OR_REMOVE_ONE)
    assert moment_deviation(z, alone) == pytest.approx(moment_deviation(z, public) / np.sqrt(2.0))


@pytest.mark.parametrize("estimate", [-1e9, 0.0, 900.0, 1e9])
def test_what_is_said_lies_between_none_and_all(estimate: float) -> None:
    said = Usable(
        estimate=estimate, deviation=10.0, public=Public(n=1_000, d=3), source="as made up"
    ).findings
    assert 0 <= said["usable"].value <= 1_000
    assert ("few_usable" in said) == (estimate < 930)
    broken = Usable.in_moment(np.full((3, 3), np.nan), 1.0, Public(n=1_000, d=3))
    assert broken.count == 0


def test_the_command_line_notices_a_file_in_another_encoding(tmp_path: Path) -> None:
    features, y = table()
    frame = pd.DataFrame(
        {f"x{k}": features[:, k] for k in range(WIDTH)} | {"vote": np.where(y, "für", "dagegen")}
    )
    frame.to_csv(tmp_path / "table.csv", index=False, encoding="latin-1")
    columns = {f"x{k}": {"kind": "num", "low": -1, "high": 1} for k in range(WIDTH)}
    levels = {"kind": "cat", "levels": ["dagegen", "für"]}
    schema = {"votes": {"target": "vote", "columns": columns | {"vote": levels}}}
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    arguments = ["fit", str(tmp_path / "table.csv"), "--schema", str(tmp_path / "schema.json")]
    arguments += [
        "--epsilon",
        "1",
        "--delta",
        "1e-6",
        "--random-state",
        "3",
        "--output",
        str(tmp_path / "model"),
    ]
    outcome = CliRunner().invoke(app, arguments, env={"COLUMNS": "100"})
    assert outcome.exit_code == 0, outcome.output
    shown = " ".join(outcome.output.split())
    assert "will give the number of usable records" in shown
    assert CAUSES in shown
    assert "an encoding other than UTF-8" in (tmp_path / "model" / "report.html").read_text()
