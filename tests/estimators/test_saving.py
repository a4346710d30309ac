"""A fitted model as a folder and back: predictions, attributes and verdicts are those of the model that was saved."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.exceptions import NotFittedError
from tests.support.saved_models import SCHEMA, save_small_model
from typer.testing import CliRunner

import privopt
from privopt import Table, load
from privopt.cli import app
from privopt.errors import ArgumentError
from privopt.estimators import saving
from privopt.replays.check import replayed
from privopt.solvers import FrankWolfe, GradientDescent
from privopt.tables import TableError
from privopt.verification.files import verify
from privopt.verification.verdict import Finding

ROWS = np.random.default_rng(5).uniform(-1, 1, (400, 3))
LEAN = ROWS[:, 0] - ROWS[:, 1] / 2
COUNTS = np.floor(2 + 2 * LEAN + ROWS[:, 2]).clip(0, 6)
QUICK = {"epsilon": 2.0, "delta": 1e-6, "bounds": (-1, 1), "solver": GradientDescent(steps=4)}
OF_CLASSES = ("LassoClassifier", "LinearSVC", "LogisticRegression", "RobustClassifier")
# Attributes that a loaded model has not: the count of steps, and what a report does not say.
LEFT_OUT = {"n_iter_", "_asked"}


def same(one: Any, other: Any) -> bool:
    """Whether two attributes are equal, arrays entry by entry and classes of ours field by field."""
    if isinstance(one, np.ndarray | tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if dataclasses.is_dataclass(one):
        return all(
            same(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one)
        )
    return bool(one == other)


def require_alike(model: Any, again: Any, X: Any) -> None:
    """Refuse a loaded model that predicts otherwise, or that has another attribute of the fit."""
    assert type(again) is type(model)
    for method in ("predict", "predict_proba", "decision_function"):
        if hasattr(model, method):
            np.testing.assert_array_equal(getattr(again, method)(X), getattr(model, method)(X))
    for name in sorted(set(vars(model)) - set(model.get_params(deep=False)) - LEFT_OUT - {"privacy_"}):
        assert same(vars(model)[name], vars(again)[name]), name
    written, read = (one.privacy_.to_dict() for one in (model, again))
    assert read | {"model": None} == written | {"model": None}
    numbers = ("name", "features", "coefficients", "intercepts", "outputs")
    assert all(read["model"][name] == written["model"][name] for name in numbers)


@pytest.mark.at_once("LogisticRegression", "PoissonRegressor")
@pytest.mark.parametrize("name", saving.SAVED)
def test_every_kind_of_model_comes_back_and_is_verified(name: str, tmp_path: Path) -> None:
    given = QUICK | ({"solver": "auto"} if name.startswith("Lasso") else {})
    about = {"classes": [0, 1]} if name in OF_CLASSES else {"target_bounds": (0, 6)}
    model = getattr(privopt, name)(**given, **about)
    model.fit(ROWS, (LEAN > 0).astype(int) if name in OF_CLASSES else COUNTS)
    assert model.save(tmp_path / "model") == tmp_path / "model"
    require_alike(model, load(tmp_path / "model"), ROWS)
    assert found_in(tmp_path / "model") is Finding.VERIFIED


LABELS = np.where(LEAN > 0.2, "ill", np.where(LEAN < -0.5, "well", "so-so"))
FRAME = pd.DataFrame(ROWS, columns=["age", "dose", "weight"])
HOLES = FRAME.mask(FRAME > 0.8)
PAIRS = {"age": (-1, 1), "dose": (-0.5, 0.5), "weight": (-1, 2)}
LINEAR, LOGISTIC = privopt.LinearRegression, privopt.LogisticRegression
REGRESSION = {"target_bounds": (0, 6)}
CASES: dict[str, tuple[Any, dict[str, Any], Any, Any]] = {
    "three classes, as in y": (LOGISTIC, {"classes": "from_y"}, FRAME, LABELS),
    "rows of length 1": (LOGISTIC, {"classes": [False, True], "row_bound": "unit"}, ROWS, LEAN > 0),
    "loose bounds": (LINEAR, REGRESSION | {"bounds": None, "loose_bounds": (-1e3, 1e3)}, HOLES, COUNTS),
    "bounds by name": (LINEAR, REGRESSION | {"bounds": PAIRS}, HOLES, COUNTS),
    "arrays of bounds": (LINEAR, REGRESSION | {"bounds": (np.full(3, -1.0), np.ones(3))}, ROWS, COUNTS),
    "indicators": (LINEAR, REGRESSION | {"missing": "indicator", "indicator": ["dose", 0]}, HOLES, COUNTS),
    "no constant": (LINEAR, REGRESSION | {"fit_intercept": False, "target_bounds": (-6, 6)}, ROWS, COUNTS),
    "sparse": (
        LINEAR,
        REGRESSION | {"fit_intercept": False},
        sparse.csr_array(np.abs(ROWS) * (ROWS > 0)),
        COUNTS,
    ),
    "an elastic net": (LINEAR, REGRESSION | {"penalty": "elasticnet"}, ROWS, COUNTS),
    "groups of columns": (
        LINEAR,
        REGRESSION | {"penalty": "group", "feature_groups": [["age", "dose"], ["weight"]]},
        FRAME,
        COUNTS,
    ),
    "a solver with a tuple": (
        privopt.LassoRegressor,
        REGRESSION | {"radius": 2.0, "solver": FrankWolfe(steps=3, refit=True, shares=(0.5, 0.5))},
        ROWS,
        COUNTS,
    ),
    "add or remove one": (LINEAR, REGRESSION | {"relation": "add-or-remove-one", "n": 450}, ROWS, COUNTS),
}
UNREPLAYED = {
    "a strength that is chosen": (LINEAR, REGRESSION | {"penalty": "l2", "alpha": "private"}, ROWS, COUNTS)
}


@pytest.mark.at_once("three classes, as in y", "loose bounds", "indicators")
@pytest.mark.parametrize("name", CASES | UNREPLAYED)
def test_whatever_was_asked_for_comes_back_and_is_verified(name: str, tmp_path: Path) -> None:
    kind, given, X, y = (CASES | UNREPLAYED)[name]
    model = kind(**(QUICK | given)).fit(X, y)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model")
    require_alike(model, again, X)
    for name_of_argument, value in model.get_params(deep=False).items():
        if not {name_of_argument} & {"alpha", "bounds"}:
            assert same(getattr(again, name_of_argument), value), name_of_argument
    assert found_in(tmp_path / "model") is (Finding.PRICED if name in UNREPLAYED else Finding.VERIFIED)
    again.save(tmp_path / "again")
    files = ["model.json", "model.safetensors", "report.json"]
    for file in [*files, *(() if name in UNREPLAYED else ("releases.safetensors",))]:
        assert (tmp_path / "again" / file).read_bytes() == (tmp_path / "model" / file).read_bytes()


def found_in(folder: Path) -> Finding:
    """What a verification of a folder, with a replay, finds."""
    return verify(folder, replayed)[0].finding


def test_users_are_protected_as_before(tmp_path: Path) -> None:
    model = LINEAR(epsilon=2.0, delta=1e-6, bounds=(-1, 1), target_bounds=(0, 6), max_records_per_user=4)
    model.fit(ROWS, COUNTS, groups=np.arange(400) // 4)
    require_alike(model, load(model.save(tmp_path / "model")), ROWS)
    assert load(tmp_path / "model").privacy_.unit == "user"


def test_a_model_of_a_table_is_one_of_the_command_line(tmp_path: Path) -> None:
    folder = save_small_model(tmp_path / "model", of_table=True)
    table, saved = tmp_path / "model.parquet", load(folder)
    done = CliRunner().invoke(app, ["predict", str(folder), str(table), "-o", str(tmp_path / "p.parquet")])
    assert done.exit_code == 0, done.output
    predicted = pd.read_parquet(tmp_path / "p.parquet")
    np.testing.assert_array_equal(
        predicted["probability_1"], saved.predict_proba(Table.open(table, SCHEMA))[:, 1]
    )
    np.testing.assert_array_equal(
        predicted["prediction"], saved.predict(saved.encoder_.transform(pd.read_parquet(table)))
    )
    before = (folder / "report.json").read_bytes()
    done = CliRunner().invoke(app, ["report", str(folder)])
    assert done.exit_code == 0, done.output
    assert (folder / "report.json").read_bytes() == before
    assert found_in(folder) is Finding.VERIFIED


def test_a_model_of_the_command_line_is_one_of_python(tmp_path: Path) -> None:
    folder = save_small_model(tmp_path / "model", of_table=True)
    table = tmp_path / "model.parquet"
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    fit = ["fit", str(table), "--schema", str(tmp_path / "schema.json"), "--epsilon", "1", "--delta", "1e-6"]
    done = CliRunner().invoke(app, [*fit, "--output", str(tmp_path / "typed")])
    assert done.exit_code == 0, done.output
    typed, other = (
        json.loads((one / "model.json").read_text())["document"] for one in (tmp_path / "typed", folder)
    )
    assert typed.keys() == other.keys()
    assert typed["encoder"] == other["encoder"]
    assert typed["estimator"].keys() == other["estimator"].keys()
    again = load(tmp_path / "typed")
    again.save(tmp_path / "again")
    assert found_in(tmp_path / "again") is Finding.VERIFIED
    assert again.privacy_.title == "Logistic regression of y"


def test_of_features_alone_nothing_is_predicted_on_the_command_line(tmp_path: Path) -> None:
    folder = save_small_model(tmp_path / "model")
    pd.DataFrame({"a": [0.1], "b": [0.2]}).to_csv(tmp_path / "t.csv", index=False)
    done = CliRunner().invoke(
        app, ["predict", str(folder), str(tmp_path / "t.csv"), "-o", str(tmp_path / "p.csv")]
    )
    assert done.exit_code == 2
    assert "was fitted to features, without a schema that makes them of a table" in done.output
    assert not (tmp_path / "p.csv").exists()
    assert CliRunner().invoke(app, ["report", str(folder)]).exit_code == 0


def test_nothing_is_replaced_unless_it_is_asked_for(tmp_path: Path) -> None:
    folder = save_small_model(tmp_path / "model")
    model = load(folder)
    (tmp_path / "file").write_text("")
    with pytest.raises(
        ArgumentError, match="is not empty: give another directory, or overwrite=True to replace"
    ):
        model.save(folder)
    with pytest.raises(ArgumentError, match="is a file: give a directory"):
        model.save(tmp_path / "file", overwrite=True)
    with pytest.raises(TableError, match="cannot be written: Not a directory"):
        model.save(tmp_path / "file" / "model")
    model.save(folder, overwrite=True)
    assert found_in(folder) is Finding.VERIFIED
    model.save(tmp_path / "some" / "where")
    assert found_in(tmp_path / "some" / "where") is Finding.VERIFIED


def test_nothing_stays_of_a_model_that_is_replaced(tmp_path: Path) -> None:
    folder = save_small_model(tmp_path / "model")
    (folder / "signature.json").write_text("{}")
    seeded = LOGISTIC(**QUICK, classes=[0, 1], random_state=1).fit(ROWS, LEAN > 0)
    seeded.save(folder, overwrite=True)
    assert {one.name for one in folder.iterdir()} == {
        "model.json",
        "model.safetensors",
        "report.json",
        "report.html",
    }
    assert load(folder).random_state == 1
    assert load(folder).privacy_.seeded


def test_released_values_that_are_others_are_left_alone(tmp_path: Path) -> None:
    folder = save_small_model(tmp_path / "model")
    assert load(folder).privacy_.kept.arrays is not None
    (folder / "releases.safetensors").write_bytes(b"others")
    assert load(folder).privacy_.kept.arrays is None
    (folder / "releases.safetensors").unlink()
    assert load(folder).privacy_.kept.arrays is None
    with pytest.raises(ValueError, match="no releases to keep: the report was read from a file"):
        load(folder).privacy_.save(tmp_path / "report.json", keep_releases=True)


class OwnDescent(GradientDescent):
    """A solver of the user's own."""


def test_what_no_folder_holds_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError, match="This LogisticRegression instance is not fitted yet"):
        LOGISTIC(**QUICK, classes=[0, 1]).save(tmp_path / "model")
    fair = privopt.FairClassifier(**(QUICK | {"solver": "auto"}), classes=[0, 1]).fit(ROWS, LEAN > 0)
    with pytest.raises(
        ArgumentError, match=r"a FairClassifier is not saved, only a HuberRegressor, .* or RobustReg"
    ):
        fair.save(tmp_path / "model")
    own = LINEAR(**(QUICK | {"solver": OwnDescent(steps=4)}), **REGRESSION).fit(ROWS, COUNTS)
    with pytest.raises(
        ArgumentError, match="a LinearRegression is not saved: a OwnDescent of the user's own has no"
    ):
        own.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_of_a_search_the_chosen_model_is_saved(tmp_path: Path) -> None:
    base = LINEAR(bounds=(-1, 1), solver=GradientDescent(steps=4), **REGRESSION)
    search = privopt.PrivateSearchCV(base, {"fit_intercept": [True, False]}, epsilon=2.0, delta=1e-6)
    search.fit(ROWS, COUNTS).save(tmp_path / "model")
    require_alike(search.best_estimator_, load(tmp_path / "model"), ROWS)
    assert load(tmp_path / "model").privacy_.epsilon == search.privacy_.epsilon


@pytest.mark.parametrize(
    ("place", "value"),
    [("names", ["a"]), ("labels", [1]), ("class", "FairClassifier"), ("n", None), ("arguments", {})],
)
def test_an_altered_folder_is_refused_in_a_sentence(place: str, value: Any, tmp_path: Path) -> None:
    folder = save_small_model(tmp_path / "model")
    content = json.loads((folder / "model.json").read_text())
    content["document"]["estimator"][place] = value
    (folder / "model.json").write_text(json.dumps(content))
    if place != "labels":  # which a model whose classes are given does not look at
        with pytest.raises(
            TableError, match="written by another version of privopt, or altered: fit it again"
        ):
            load(folder)
    assert found_in(folder) is not Finding.VERIFIED
    shutil.rmtree(folder)
    with pytest.raises(TableError, match="is no model directory"):
        load(folder)
