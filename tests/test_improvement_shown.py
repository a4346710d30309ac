"""What a person sees of the quality to expect and of that reached: on the command line and in a notebook."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from privopt import LogisticRegression, PoissonRegressor
from privopt.cli import app

ROWS = 3_000
BUDGET = ("--epsilon", "0.2", "--delta", "1e-7")
COLUMNS = {
    **{f"x{k}": {"kind": "num", "low": -1, "high": 1} for k in range(6)},
    "ill": {"kind": "flag"},
    "visits": {"kind": "num", "low": 0, "high": 20},
}
WOULD = re.compile(
    r"about [\d,]+ records at the same epsilon, or epsilon [\d.]+ with the same records, would "
    r"(double it|bring (it|the lower end) to 90 %)"
)
UNITS = "the clip and the step size of the plan are in units of the mean count"


def table() -> pd.DataFrame:
    draw = np.random.default_rng(5)
    features = draw.uniform(-1.0, 1.0, (ROWS, 6))
    lean = features @ np.array([1.5, -1.0, 0.5, 0.0, 0.0, 0.3])
    columns = {f"x{k}": features[:, k] for k in range(6)}
    return pd.DataFrame(
        columns
        | {"ill": (lean > draw.logistic(size=ROWS)).astype(int), "visits": draw.poisson(np.exp(lean / 2))}
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("quality")
    table().to_parquet(path / "table.parquet")
    entries = {
        target: {"target": target, "other_targets": [other], "columns": COLUMNS}
        for target, other in (("ill", "visits"), ("visits", "ill"))
    }
    (path / "schema.json").write_text(json.dumps(entries))
    return path


def run(*arguments: object) -> str:
    """What a command prints, without line breaks and padding."""
    outcome = CliRunner().invoke(app, [str(one) for one in arguments], env={"COLUMNS": "80"})
    assert outcome.exit_code == 0, outcome.output
    return " ".join(outcome.output.split())


def shown(page: str) -> str:
    """The text of a page of HTML, without line breaks and padding."""
    words: list[str] = []
    parser = HTMLParser()
    parser.handle_data = words.append  # type: ignore[method-assign]
    parser.feed(page)
    return " ".join(" ".join(words).split())


@pytest.mark.audit
def test_the_command_line_says_which_quality_to_expect_and_was_reached(folder: Path) -> None:
    schema = ("--schema", folder / "schema.json", "--schema-name", "ill")
    planned = run("plan", *schema, *BUDGET, "--n", ROWS)
    sentence = re.search(r"quality (between [^;]* of the improvement that .*?; .*?) bound", planned)
    assert sentence is not None
    assert WOULD.search(sentence[1])
    fitted = run(
        "fit", folder / "table.parquet", *schema, *BUDGET, "--random-state", 3, "--output", folder / "model"
    )
    assert sentence[1] in fitted
    reached = re.search(
        r"Done .* quality ((?:between|at most) [^;]* of the improvement that .*?; .*?) model", fitted
    )
    assert reached is not None
    assert WOULD.search(reached[1])
    assert reached[1] in run("report", folder / "model")
    page = shown((folder / "model" / "report.html").read_text())
    assert f"Model quality. By the released values, at no further price: {reached[1]}." in page


@pytest.mark.audit
def test_a_notebook_says_which_quality_to_expect_and_was_reached() -> None:
    frame = table()
    model = LogisticRegression(epsilon=0.2, delta=1e-7, bounds=(-1, 1), classes=[0, 1], random_state=3)
    model.fit(frame[[f"x{k}" for k in range(6)]].to_numpy(), frame["ill"].to_numpy())
    assert WOULD.search(model.plan_.improvement_sentence)
    assert f"quality {model.plan_.improvement_sentence}" in shown(model.plan_._repr_html_())
    reached = model.privacy_.findings["improvement_share"].meaning
    assert WOULD.search(reached)
    assert f"quality {reached}" in shown(model.privacy_._repr_html_())


@pytest.mark.audit
def test_counts_are_planned_in_units_of_their_mean_and_everything_says_so(folder: Path) -> None:
    schema = ("--schema", folder / "schema.json", "--schema-name", "visits", "--model", "poisson")
    planned = run("plan", *schema, *BUDGET, "--n", ROWS)
    assert f"note {UNITS}, which no plan can know" in planned
    frame = table()
    model = PoissonRegressor(epsilon=0.3, delta=1e-7, bounds=(-1, 1), target_bounds=(0, 20), random_state=3)
    model.fit(frame[[f"x{k}" for k in range(6)]].to_numpy(), frame["visits"].to_numpy())
    assert UNITS in shown(model.plan_._repr_html_())
    assert UNITS in " ".join(str(model.plan_).split())
    page = shown(model.privacy_.to_html())
    assert UNITS in page
    assert "are in units of their mean, and the run set its own once that was released" in page
    settings = model.plan_.settings
    for name in ("clip", "step size", "smoothness"):
        value = settings[f"inner.{name.replace(' ', '_')}"]
        assert isinstance(value, float)
        assert f"inner: {name} {value:.4g}, relative to the mean count" in page
    assert re.search(r"Mean count [\d.]+ of the records, as released before the descent", page)
