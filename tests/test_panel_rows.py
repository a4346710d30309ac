"""What the test loss of the panel is, how variants relate, and that what is measured is kept and summed up."""

import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from benchmarks import panel_rows as rows
from benchmarks.panel_calibrated import calibrated
from benchmarks.panel_cells import Cell
from benchmarks.panel_halfway import halfway
from benchmarks.panel_problems import Kind, PanelArrays, PanelProblem, Target
from benchmarks.panel_rules import landed
from benchmarks.results import append, read
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score


def problem(kind: Kind = "two classes", table: str = "compas") -> PanelProblem:
    return PanelProblem(name=f"{table}: made up", table=table, kind=kind, target=Target(column="none"))


def made(kind: Kind = "two classes") -> PanelArrays:
    generator = np.random.default_rng(0)
    features = generator.uniform(-1.0, 1.0, (700, 3)).astype(np.float32)
    score = 3.0 * features[:, 0] - features[:, 1] + generator.logistic(size=700)
    classes = 2 if kind == "two classes" else 3
    targets = np.digitize(score, (0.0,) if classes == 2 else (-1.0, 1.0)).astype(float)
    return PanelArrays(
        features=features[:400],
        targets=targets[:400],
        test_features=features[400:],
        test_targets=targets[400:],
        classes=classes,
        most=1.0,
    )


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Results and optima of one test."""
    monkeypatch.setattr(rows, "SCRATCH", tmp_path)
    monkeypatch.setattr(rows, "RESULTS", tmp_path)
    return tmp_path


@pytest.mark.parametrize("classes", [2, 3])
def test_log_losses_are_those_of_scikit_learn(classes: int) -> None:
    generator = np.random.default_rng(1)
    scores = generator.normal(size=(50, 2, 1 if classes == 2 else classes))
    targets = generator.integers(0, classes, 50).astype(float)
    found = rows.log_losses(scores, targets)
    for k in range(2):
        logits = np.column_stack([np.zeros(50), scores[:, k, 0]]) if classes == 2 else scores[:, k]
        chances = np.exp(logits) / np.sum(np.exp(logits), axis=1, keepdims=True)
        assert found[k] == pytest.approx(log_loss(targets, chances, labels=range(classes)))


def test_the_area_under_the_curve_counts_ties_half() -> None:
    scores, targets = np.array([0.1, 0.5, 0.5, 0.9, 0.2]), np.array([0.0, 1.0, 0.0, 1.0, 0.0])
    assert rows.area_under_curve(scores, targets) == pytest.approx(roc_auc_score(targets, scores))
    assert math.isnan(rows.area_under_curve(scores, np.zeros(5)))


@pytest.mark.later("classes")
@pytest.mark.parametrize("kind", ["two classes", "classes"])
def test_the_least_test_loss_is_that_of_the_best_ridge_on_either_kind_of_rows(kind: Kind, kept: Path) -> None:
    data = made(kind)
    found = rows.least_test_loss(problem(kind), data)
    train, test = rows.with_constant(data.features), rows.with_constant(data.test_features)
    losses = []
    for divided in (False, True):
        ours, theirs = (one / rows.lengths(one) if divided else one for one in (train, test))
        square = float(np.mean(rows.lengths(ours) ** 2))
        for ridge in rows.RIDGES:  # the constant is penalised as the other columns are
            if kind == "two classes":
                model = LogisticRegression(
                    C=1.0 / (400 * ridge * square), fit_intercept=False, tol=1e-8, max_iter=2_000
                )
                chances = model.fit(ours, data.targets).predict_proba(theirs)
                losses.append(log_loss(data.test_targets, chances))
            else:
                losses.append(_softmax(ours, theirs, data, ridge * square))
    assert found == pytest.approx(min(losses), abs=2e-4)
    assert float(next(kept.glob("panel-rows-least-*.json")).read_text()) == found
    assert rows.least_test_loss(problem(kind), made("two classes")) == found  # read, not fitted again


def _softmax(train: np.ndarray, test: np.ndarray, data: PanelArrays, ridge: float) -> float:
    codes = data.targets.astype(int)

    def at(flat: np.ndarray) -> float:
        scores = train @ flat.reshape(-1, 3)
        chosen = scores[np.arange(len(codes)), codes] - np.log(np.sum(np.exp(scores), axis=1))
        return float(-np.mean(chosen) + 0.5 * ridge * flat @ flat)

    weights = minimize(at, np.zeros(train.shape[1] * 3), method="L-BFGS-B").x.reshape(-1, 3)
    return float(rows.log_losses((test @ weights)[:, None, :], data.test_targets)[0])


def test_a_released_length_is_typical_where_noise_is_small_and_the_middle_where_it_drowns() -> None:
    data = made()
    train = rows.with_constant(data.features)
    typical = math.exp(float(np.mean(np.log(rows.lengths(train)))))
    clear = rows.released_length(Cell(problem(), data, 100.0, 4), train)
    assert clear == pytest.approx(np.full(4, typical), rel=0.05)
    drowned = rows.released_length(Cell(problem(), data, 1e-3, 4), train)
    assert drowned == pytest.approx(np.full(4, 4.0**0.25), rel=0.05)


def test_variants_divide_the_same_scores_and_ends_are_those_of_halfway() -> None:
    data = made()
    cell = Cell(problem(), data, 1.0, 3)
    found = rows.variants(cell)
    assert {one.shape for one in found.values()} == {(300, 3, 1)}
    test = rows.with_constant(data.test_features)
    own = test / rows.lengths(test)
    np.testing.assert_allclose(found[rows.OWN][:, :, 0], own @ landed(cell).T, rtol=1e-5, atol=1e-6)
    ratio = found[rows.SHOWN] / found[rows.OWN]
    lengths = rows.lengths(test)[:, :, None] / rows.shown_length(cell)[None, :, None]
    np.testing.assert_allclose(ratio, lengths, rtol=1e-5)
    np.testing.assert_allclose(
        found[rows.PUBLIC] * 4.0**0.25, found[rows.OWN] * rows.lengths(test)[:, :, None]
    )
    ends = rows.ends(cell)
    np.testing.assert_allclose(ends[rows.HALFWAY][:, :, 0], own @ halfway(cell).T, rtol=1e-5, atol=1e-6)
    alone = own @ halfway(cell, newton=0.0).T
    np.testing.assert_allclose(ends[rows.SMALL_RIDGE][:, :, 0], alone, rtol=1e-5, atol=1e-6)
    rescaled = rows.rescaled_ends(cell)[rows.CALIBRATED][:, :, 0]
    np.testing.assert_allclose(rescaled, own @ calibrated(cell).T, rtol=1e-5, atol=1e-6)
    several = Cell(problem("classes"), made("classes"), 1.0, 3)
    assert rows.ends(several) == rows.rescaled_ends(several) == {}


@pytest.mark.audit
def test_what_is_measured_is_kept_and_not_measured_again(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "EPSILONS", (1.0,))
    monkeypatch.setattr(rows, "arrays", lambda one: made(one.kind))
    for kind in ("two classes", "classes"):
        rows.measure(problem(kind, table="compas" if kind == "two classes" else "mnist"), 2)
    found = read(kept)
    assert len(found) == 9 + 6
    assert {one["method"] for one in found if one["table"] == "mnist"}.isdisjoint(
        {rows.HALFWAY, rows.SMALL_RIDGE, rows.CALIBRATED}
    )
    assert all((one["area"] is None) == (one["table"] == "mnist") for one in found)
    assert all(one["loss"] > one["least"] > 0.0 for one in found)
    monkeypatch.setattr(rows, "variants", SimpleNamespace())  # would fail if it were called
    rows.measure(problem(), 2)
    assert read(kept) == found


def test_the_summary_weighs_tables_alike(kept: Path) -> None:
    """Two cells of adult at a ratio of 4, one of compas at 1: the mean is 2."""
    for table, data, losses in (
        ("adult", "a", (0.5, 0.2)),
        ("adult", "b", (0.9, 0.3)),
        ("compas", "c", (0.2, 0.2)),
    ):
        for method, loss in zip((rows.SHOWN, rows.OWN), losses, strict=True):
            append(
                {
                    "benchmark": rows.NAME,
                    "data": data,
                    "method": method,
                    "epsilon": 1.0,
                    "table": table,
                    "loss": loss,
                    "least": 0.1,
                    "area": 0.7,
                },
                kept,
            )
    found = rows.by_table(rows.SHOWN, rows.OWN)
    assert {table: round(math.exp(one), 3) for table, (one, _) in found.items()} == {
        "adult": 4.0,
        "compas": 1.0,
    }
    line = next(one for one in rows.summary().splitlines() if one.startswith(f"| {rows.SHOWN} over"))
    assert "2.00 (1.00 to 4.00)" in line
    assert line.endswith("+0.0000 |")
