"""A table in files in the place of X and y: the same model to the byte as from arrays, from every form."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.support.report_schema import require_valid
from tests.tables.toy_tables import SCHEMA, toy_table, write_forms

from privopt import (
    Budget,
    LinearRegression,
    LogisticRegression,
    PrivateSearchCV,
    Table,
    TabularEncoder,
    Units,
    losses,
    minimize,
)
from privopt.engine import choose
from privopt.engine.in_process import InProcessEngine
from privopt.engine.placement import Placement
from privopt.errors import ArgumentError, DataUnavailable
from privopt.replays.check import replayed
from privopt.solvers.stochastic_gradient_descent import StochasticGradientDescent
from privopt.tables import TableError, user_keys
from privopt.verification.checks import Outcome
from privopt.verification.files import verify
from privopt.verification.verdict import Finding

OPTIONS: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "random_state": 1, "solver": "gradient-descent"}
KNOWN: dict[str, Any] = {"bounds": (-1.0, 1.0), "classes": [0, 1]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forms")
    write_forms(path)
    return path


@pytest.fixture(scope="module")
def arrays() -> tuple[Any, Any, Any]:
    table = toy_table()
    return TabularEncoder(SCHEMA).transform(table), table["ill"].to_numpy(), user_keys(table, "who")


def same(one: Any, other: Any) -> bool:
    return one.coef_.tobytes() == other.coef_.tobytes() and np.array_equal(one.intercept_, other.intercept_)


@pytest.mark.parametrize("groups", [None, pytest.param("who", marks=pytest.mark.audit)])
def test_the_model_is_the_same_to_the_byte(groups: Any, folder: Path, arrays: Any) -> None:
    features, targets, keys = arrays
    plain = LogisticRegression(**OPTIONS, **KNOWN).fit(
        features, targets, groups=None if groups is None else keys
    )
    forms = ("one.parquet", "four", "four/*.parquet", "one.csv", "one.csv.gz", "texts", "streamed")
    for form in forms:
        where, engine = (form, "memory") if form != "streamed" else ("four", "stream")
        table = Table.open(str(folder / where), SCHEMA, engine=engine)
        model = LogisticRegression(**OPTIONS).fit(table, groups=groups)
        assert same(model, plain), form
    assert model.privacy_.n == (600 if groups is None else 89)
    assert model.privacy_.epsilon == plain.privacy_.epsilon
    assert list(model.encoder_.get_feature_names_out()) == ["age", "sex=f", "sex=m"]
    assert list(model.privacy_.model.features) == ["age", "sex=f", "sex=m"]
    assert model.get_params() == LogisticRegression(**OPTIONS).get_params()
    assert np.array_equal(model.predict(table), plain.predict(features))
    assert np.array_equal(model.predict_proba(table), plain.predict_proba(features))
    assert np.array_equal(model.decision_function(table), plain.decision_function(features))
    assert model.fit(features, targets) if model.set_params(**KNOWN) else None
    assert model.encoder_ is None


def test_users_in_several_parts_are_those_of_arrays(
    folder: Path, arrays: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privopt.data.user_parts.MEAN_RECORDS", 1000)
    monkeypatch.setattr("privopt.data.user_parts.LEAST_USERS", 1)
    features, targets, _ = arrays
    sampled = StochasticGradientDescent(steps=5, rate=0.2)  # by their places
    options = OPTIONS | {"solver": sampled, "max_records_per_user": 50}
    plain = LogisticRegression(**options, **KNOWN).fit(features, targets, groups=toy_table()["who"])
    for place in ("memory", "stream"):
        table = Table.open(folder / "four", SCHEMA, engine=place)
        assert same(LogisticRegression(**options).fit(table, groups="who"), plain), place
    monkeypatch.setattr("privopt.data.user_parts.MEAN_RECORDS", 10**9)
    assert not same(LogisticRegression(**options).fit(table, groups="who"), plain)  # it was several parts


@pytest.mark.audit
def test_bounds_that_are_estimated_and_searches_read_the_table_anew(folder: Path, arrays: Any) -> None:
    features, targets, keys = arrays
    table = Table.open(folder / "four", SCHEMA)
    options = OPTIONS | {"loose_bounds": (-50.0, 50.0)}
    plain = LogisticRegression(**options, classes=[0, 1]).fit(features, targets, groups=keys)
    assert same(LogisticRegression(**options).fit(table, groups="who"), plain)
    grid, asked = {"alpha": [0.01, 1.0]}, {"epsilon": 1.0, "delta": 1e-6, "random_state": 1}
    base = LogisticRegression(solver="gradient-descent")
    search = PrivateSearchCV(base, grid, **asked).fit(table)
    other = PrivateSearchCV(base.set_params(**KNOWN), grid, **asked).fit(features, targets)
    assert same(search.best_estimator_, other.best_estimator_)
    assert np.array_equal(search.predict(table), other.predict(features))


def test_a_number_is_predicted_within_the_bounds_of_its_column(folder: Path) -> None:
    table = Table.open(folder / "texts", SCHEMA, target="age")
    model = LinearRegression(**OPTIONS).fit(table)
    assert model.predict(table).shape == (600,)
    assert len(model.coef_) == 2  # of the sex: what the schema calls its target stays out
    model.encoder_ = None  # as one that was read from a directory
    with pytest.raises(ArgumentError, match="1 encoded features, but the model was fitted with 2"):
        model.predict(Table.open(folder / "texts", SCHEMA, features=["age"]))


@pytest.mark.audit
def test_minimize_takes_a_table_or_its_engine(folder: Path, arrays: Any) -> None:
    features, targets, _ = arrays
    table, budget = Table.open(folder / "four", SCHEMA), Budget(1.0, 1e-6)
    options: dict[str, Any] = {"budget": budget, "random_state": 1, "solver": "gradient-descent"}
    bound = TabularEncoder(SCHEMA).row_norm_bound_
    units = Units.from_arrays(features, targets, classes=[0, 1], row_bound=bound)
    plain = np.asarray(minimize(losses.logistic, units, **options).params)
    result = minimize(losses.logistic, table, **options)
    assert np.asarray(result.params).tobytes() == plain.tobytes()
    assert "Rows were read from files and kept in the memory of this process." in result.report.declared
    streamed = Table.open(folder / "four", SCHEMA, engine="stream")
    spooled = minimize(losses.logistic, streamed, **options)
    assert np.asarray(spooled.params).tobytes() == plain.tobytes()
    assert any("kept in a spool on a local disk" in said for said in spooled.report.declared)
    assert minimize(losses.logistic, units, **options).kept is None
    engine = table.engine(groups="who")
    assert (engine.public.n, engine.public.unit) == (89, "user")
    assert minimize(losses.logistic, engine, **options).plan.public == engine.public
    with pytest.raises(TypeError, match="units must be Units"):
        minimize(losses.logistic, features, **options)


def test_the_releases_are_replayed_without_the_table(folder: Path, tmp_path: Path) -> None:
    model = LogisticRegression(**OPTIONS | {"random_state": None}).fit(Table.open(folder / "four", SCHEMA))
    path = model.privacy_.save(tmp_path / "report.json", keep_releases=True)
    (verdict,) = verify(path, replayed)
    assert verdict.finding is Finding.VERIFIED
    assert verdict.checks[-1].outcome is Outcome.HOLDS
    require_valid(json.loads(path.read_text()))


def test_an_engine_is_given_back_however_a_fit_ends(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for an engine that keeps rows elsewhere, and loses them."""
    closed: list[Any] = []

    def lost(self: Any, *arguments: Any) -> Any:
        raise DataUnavailable("the rows are gone. What the run was charged stays charged.")

    monkeypatch.setattr(InProcessEngine, "clipped_sum", lost)
    monkeypatch.setattr(InProcessEngine, "close", lambda engine: closed.append(engine))
    model = LogisticRegression(**OPTIONS | {"random_state": None})
    with pytest.raises(DataUnavailable, match="the rows are gone") as stopped:
        model.fit(Table.open(folder / "four", SCHEMA))
    assert len(closed) == 1
    assert "count its whole price as spent" in stopped.value.__notes__[-1]
    with pytest.raises(DataUnavailable, match="the rows are gone"):
        minimize(losses.logistic, Table.open(folder / "four", SCHEMA), budget=Budget(1.0, 1e-6))
    assert len(closed) == 2


def test_auto_goes_by_public_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "memory_share", lambda: 2000)
    for rows, asked, engine, memory in (
        (10, Placement(), "memory", 2000),
        (12, Placement(), "stream", 2000),
        (12, Placement(memory=4000), "memory", 4000),
        (12, Placement(engine="memory"), "memory", None),
        (1, Placement(engine="ray"), "ray", None),
    ):
        found = choose.settled(asked, rows, 10)
        assert (found.engine, found.memory, found.chosen) == (engine, memory, asked.engine == "auto")
        assert choose.settled(found, 10**9, 10) == found  # what was settled stays
    assert choose.needed_bytes(10**6, 100) == 1_160_000_000
    assert choose.needed_bytes(10**6, 100, "float64") == 2_060_000_000
    assert choose.needed_bytes(10**6, 100, "int8") == 597_500_000
    assert choose.needed_bytes(10**6, 1) == 35_000_000  # norms and targets count where rows are short
    assert choose.most_rows(5, None) == 5
    assert choose.most_rows(5, 100) == 500


def test_users_are_not_counted_where_their_number_is_private() -> None:
    rng = np.random.default_rng(0)
    search = PrivateSearchCV(
        LogisticRegression(relation="add-or-remove-one", **KNOWN),
        {"alpha": [0.1, 1.0]},
        epsilon=1.0,
        delta=1e-6,
    )
    with pytest.raises(
        ValueError, match="n is missing: under add-or-remove-one the number of users is private"
    ):
        search.fit(rng.uniform(-1, 1, (200, 2)), rng.integers(0, 2, 200), groups=rng.integers(0, 50, 200))


@pytest.mark.parametrize(
    ("engine", "words"),
    [("memory", "in the memory of this process."), ("stream", "in a spool on a local disk")],
)
def test_the_report_says_where_rows_were_kept(engine: Any, words: str, folder: Path) -> None:
    model = LogisticRegression(**OPTIONS).fit(Table.open(folder / "four", SCHEMA, engine=engine))
    (told,) = [each for each in model.privacy_.declared if each.startswith("Rows were read from files")]
    assert words in told


@pytest.mark.audit
def test_a_table_on_workers_gives_the_bytes_of_memory_and_the_report_names_the_cluster(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr("privopt.engine.parts.PART_UNITS", 256)
    options = OPTIONS | {"relation": "add-or-remove-one", "n": 700}
    ways: list[dict[str, Any]] = [{"engine": "memory"}, {"engine": "stream"}, {"engine": "ray", "workers": 3}]
    models = [LogisticRegression(**options).fit(Table.open(folder / "four", SCHEMA, **way)) for way in ways]
    assert same(models[0], models[1])
    assert same(models[0], models[2])
    (told,) = [each for each in models[2].privacy_.declared if each.startswith("Rows were read from files")]
    assert told.endswith("They were on a Ray cluster of this machine's own, on 127.0.0.1, with a token.")


def test_what_an_engine_says_of_itself_reaches_the_report(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stands for a cluster without tokens."""
    said = "the Ray cluster at head:6379, WITHOUT tokens"
    monkeypatch.setattr(InProcessEngine, "described", said, raising=False)
    declared = LogisticRegression(**OPTIONS).fit(Table.open(folder / "four", SCHEMA)).privacy_.declared
    assert any(each.endswith(f"They were on {said}.") for each in declared)


def test_a_frame_of_raw_columns_is_not_taken_for_encoded_features(folder: Path) -> None:
    table, frame = Table.open(folder / "four", SCHEMA), toy_table().to_pandas()
    model = LogisticRegression(**OPTIONS).fit(table)
    for given in (frame, frame[["age"]], toy_table()):
        with pytest.raises(ArgumentError, match=r"give a Table, or the features .*encoder_\.transform"):
            model.predict(given)
    encoded = model.encoder_.transform(frame)
    named = pd.DataFrame(encoded, columns=model.encoder_.get_feature_names_out())
    with pytest.warns(UserWarning, match="fitted without feature names"):
        assert np.array_equal(model.predict(named), model.predict(encoded))
    assert np.array_equal(model.predict(encoded), model.predict(table))


def test_a_target_of_another_kind_is_named(folder: Path) -> None:
    for model, target, words in (
        (
            LinearRegression(**OPTIONS),
            "ill",
            "'ill' is one of some classes by the schema, and this model needs a num",
        ),
        (
            LogisticRegression(**OPTIONS),
            "age",
            "'age' is a number by the schema, and this model needs a flag or a cat",
        ),
    ):
        with pytest.raises(ArgumentError, match=words):
            model.fit(Table.open(folder / "four", SCHEMA, target=target))


def test_a_frame_is_no_file() -> None:
    for given in (toy_table(), toy_table().to_pandas(), None, 3, []):
        with pytest.raises(TableError, match="A data frame is no file: TabularEncoder"):
            Table.open(given, SCHEMA)
