"""The number of usable records: on the model, in plan, terminal, report and JSON, and the notice where it is small."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from privopt import LinearRegression, LogisticRegression, PoissonRegressor, Table
from privopt.cli import app
from privopt.planning.row_length import SourceColumn, Usable, moment_deviation, unseen
from privopt.public import Public, Relation
from privopt.replays.check import replayed
from privopt.verification.checks import Outcome

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


@pytest.mark.at_once("M for male")
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


@pytest.mark.later("add-or-remove-one")
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
    model: Any = LogisticRegression(epsilon=4.0, delta=1e-6, bounds=(-1, 1), classes=[0, 1], random_state=3)
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


def tabled(folder: Path, frame: pd.DataFrame, columns: dict[str, Any], epsilon: float = 2.0) -> Any:
    """A model of the table's column "bought", fitted to a file."""
    frame.to_parquet(folder / "table.parquet")
    schema = {"shop": {"target": "bought", "columns": columns | {"bought": {"kind": "flag"}}}}
    (folder / "schema.json").write_text(json.dumps(schema))
    opened = Table.open(folder / "table.parquet", folder / "schema.json")
    return LogisticRegression(epsilon=epsilon, delta=1e-6, random_state=3).fit(opened)


COLUMNS: dict[str, Any] = {
    "age": {"kind": "num", "low": 0, "high": 100},
    "member": {"kind": "flag"},
    "city": {"kind": "cat", "levels": ["Ulm", "Bonn", "Hof", "Selb"]},
}


def shop() -> pd.DataFrame:
    draw = np.random.default_rng(6)
    age = draw.uniform(10.0, 90.0, ROWS)
    bought = (age > 50 + 10 * draw.normal(size=ROWS)).astype(int)
    city = draw.choice(["Ulm", "Bonn", "Hof", "Selb"], ROWS, p=[0.6, 0.3, 0.09, 0.01])
    return pd.DataFrame({"age": age, "member": draw.random(ROWS) < 0.01, "city": city, "bought": bought})


def test_where_something_was_seen_in_every_column_the_quality_is_said(tmp_path: Path) -> None:
    whole = tabled(tmp_path, shop(), COLUMNS)
    assert "unseen_columns" not in whole.privacy_.findings
    assert "improvement_share" in whole.privacy_.findings


@pytest.mark.at_once("age-nan")
@pytest.mark.parametrize(
    ("name", "cell"), [("age", float("nan")), ("member", "perhaps"), ("city", "Erlangen")]
)
def test_columns_in_which_nothing_was_seen_are_named_and_the_quality_is_left_out(
    name: str, cell: Any, tmp_path: Path
) -> None:
    model = tabled(tmp_path, shop().assign(**{name: [cell] * ROWS}), COLUMNS)
    assert model.privacy_.findings["unseen_columns"].meaning.startswith(
        f"nothing but the midpoint was seen in {name}: "
    )
    assert "improvement_share" not in model.privacy_.findings
    assert f"seen in {name}: " in " ".join(str(model.privacy_).split())
    assert f"seen in {name}: " in model.privacy_.to_html()
    assert any(f"seen in {name}: " in notice for notice in model.privacy_.to_dict()["notices"])
    saved = model.privacy_.save(tmp_path / f"{name}.json", keep_releases=True)
    check = replayed(json.loads(saved.read_text()), tmp_path / f"{name}.releases.safetensors")
    assert check is not None
    assert check.outcome is Outcome.HOLDS, check.sentence


def test_where_noise_would_hide_any_column_none_is_named(tmp_path: Path) -> None:
    model = tabled(tmp_path, shop().assign(age=float("nan")), COLUMNS, epsilon=0.02)
    assert "unseen_columns" not in model.privacy_.findings


def test_plain_features_are_named_unless_their_midpoint_is_zero() -> None:
    features = np.random.default_rng(7).uniform(0.0, 1.0, (ROWS, 3))
    features[:, 1:] = np.nan
    model = LogisticRegression(
        epsilon=2.0, delta=1e-6, bounds=[(0, 1), (0, 1), (-1, 1)], classes=[0, 1], random_state=3
    )
    frame = pd.DataFrame(features, columns=["age", "income", "sign"])
    told = model.fit(frame, (features[:, 0] > 0.5).astype(int)).privacy_.findings["unseen_columns"]
    assert told.value == 1
    assert told.meaning.startswith("nothing but the midpoint was seen in income: ")


@pytest.mark.parametrize("missing", [0.0, 0.5])
def test_the_noise_of_a_spread_is_as_it_is_computed(missing: float) -> None:
    draw, noise = np.random.default_rng(8), 0.01
    column = SourceColumn(name="x", start=0, stop=2, missing=missing, spread=9.0)
    named = 0
    for _ in range(2_000):
        errors = np.triu(noise * draw.normal(size=(3, 3)) / np.sqrt(2.0), 1)
        moment = np.zeros((3, 3))
        moment[:2, :2], moment[2, :2], moment[:2, 2] = missing**2, missing, missing
        moment[2, 2] = 1.0
        moment += errors + errors.T + np.diag(noise * draw.normal(size=3))
        named += unseen(moment, noise, [column], 2) == ["x"]
    assert named / 2_000 == pytest.approx(0.977, abs=0.01)  # all but two standard deviations on one side
