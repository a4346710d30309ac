"""The benchmark runner measures a cell, keeps it, and renders it; nothing here depends on how fast it is."""

import math
from pathlib import Path

import pytest
from benchmarks import methods, tables
from benchmarks.bars import verdicts
from benchmarks.cells import Task, measure
from benchmarks.encoded import encode, open_encoded
from benchmarks.results import append, read


@pytest.fixture(scope="module")
def small_adult(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encode("adult", shared_data, tmp_path_factory.mktemp("encoded"), rows=1500)


def test_a_cell_is_measured_against_the_optimum_of_the_same_rows(small_adult: Path, tmp_path: Path) -> None:
    common = {"encoded": str(small_adult), "optima": str(tmp_path)}
    (plain,) = measure(Task(method=methods.PLAIN, **common))
    (private,) = measure(Task(method=methods.DEFAULT, epsilons=(1.0,), seeds=2, **common))
    assert plain["n"] == private["n"] == open_encoded(small_adult).rows == 1500
    assert plain["optimum_gradient_norm"] < 1e-5
    assert 0.0 < private["excess"] < math.log(2.0) - plain["optimum_loss"]
    assert private["accuracy"] > 0.7
    assert private["spent_epsilon"] <= 1.0
    assert private["delta"] == 1.0 / 1500**2


def test_the_last_result_of_a_cell_counts_and_is_rendered(tmp_path: Path) -> None:
    cell = {"benchmark": "accuracy", "data": "adult", "method": methods.DEFAULT, "relation": "replace-one"}
    measured = {"predicted_excess": 0.2, "objective_excess": 0.1, "predicted_over_measured": 2.0}
    for accuracy in (0.5, 0.8501234567):
        append({**cell, **measured, "epsilon": 1.0, "accuracy": accuracy, "accuracy_sd": None}, tmp_path)
    records = read(tmp_path)
    assert [record["accuracy"] for record in records] == [0.850123]
    page = "a\n<!-- table: accuracy-replace-one -->\nold\n<!-- end of table -->\nb\n"
    rendered = tables.render(records, page)
    assert "old" not in rendered
    assert "| adult | 1 | 0.8501 |" in rendered
    assert tables.render(records, rendered) == rendered
    (verdict,) = verdicts(records)
    assert verdict.met
    assert str(verdict).startswith("pass")


def test_every_marked_table_of_the_page_can_be_rendered() -> None:
    page = tables.PAGE.read_text(encoding="utf-8")
    marked = [found["name"] for found in tables.MARK.finditer(page)]
    assert len(marked) == page.count("<!-- table: ") > 0
    assert tables.MARK.sub("", tables.render([], page)) == tables.MARK.sub("", page)
