"""The groups of a table's records, by its columns: the same model to the byte as from arrays, wherever rows are."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from privopt import FairClassifier, Table, TabularEncoder
from privopt.errors import ArgumentError, ArgumentTypeError
from privopt.tables.errors import TableError

SCHEMA: dict[str, Any] = {
    "columns": {
        "age": {"kind": "num", "low": 0, "high": 100},
        "sex": {"kind": "cat", "levels": ["f", "m"]},
        "old": {"kind": "flag"},
        "who": {"kind": "id"},
        "ill": {"kind": "cat", "levels": ["no", "yes"]},
    },
    "target": "ill",
}
OPTIONS: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "random_state": 1}
ARRAYS: dict[str, Any] = {"bounds": (-1.0, 1.0), "classes": ["no", "yes"]}
PAIRS = [("f", 0), ("f", 1), ("m", 0), ("m", 1)]


def people() -> Any:
    """Some of whom are of no declared sex, of no sex, or neither old nor not."""
    rng = np.random.default_rng(0)
    old: list[Any] = rng.choice([0.0, 1.0], 400).tolist()
    old[3] = None
    sex: list[Any] = rng.choice(["f", "m", "x"], 400, p=[0.5, 0.4, 0.1]).tolist()
    sex[5] = None
    ill: list[Any] = rng.choice(["no", "yes"], 400).tolist()
    ill[7:9] = ["perhaps", None]
    who = [f"u{key}" for key in rng.integers(0, 80, 400)]
    return pa.table({"age": rng.uniform(0, 100, 400), "sex": sex, "old": old, "who": who, "ill": ill})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("people")
    for k in range(2):
        pq.write_table(people().slice(200 * k, 200), path / f"{k}.parquet", row_group_size=70)
    return path


def plain(features: Any, groups: Any = None, **options: Any) -> FairClassifier:
    frame = people().to_pandas()
    rows = TabularEncoder(SCHEMA).transform(people())
    model = FairClassifier(**OPTIONS, **ARRAYS, **options)
    return model.fit(rows, frame["ill"].tolist(), groups=groups, sensitive_features=features)


def same(one: Any, other: Any) -> bool:
    return (
        one.coef_.tobytes() == other.coef_.tobytes()
        and np.array_equal(one.intercept_, other.intercept_)
        and np.array_equal(one.group_weights_, other.group_weights_)
    )


@pytest.mark.later("memory")
@pytest.mark.parametrize("engine", ["memory", "stream", pytest.param("ray", marks=pytest.mark.audit)])
def test_the_levels_of_a_column_are_the_groups(engine: Any, folder: Path) -> None:
    if engine == "ray":
        pytest.importorskip("ray")
    shares = {"shares": [0.6, 0.4]}
    arrays = plain(people()["sex"].to_pylist(), sensitive_values=["f", "m"], **shares)
    table = Table.open(folder, SCHEMA, engine=engine)
    model = FairClassifier(**OPTIONS, **shares).fit(table, sensitive_features="sex")
    assert same(model, arrays)
    assert model.sensitive_values is None  # what the user gave stays
    assert list(model.classes_) == ["no", "yes"]
    assert np.array_equal(model.predict(table), arrays.predict(TabularEncoder(SCHEMA).transform(people())))
    assert any("Groups, given by the user: f, m." in said for said in model.privacy_.declared)
    assert any(said.startswith("Rows were read from files") for said in model.privacy_.declared)


@pytest.mark.audit
def test_several_columns_are_joined_and_users_are_protected_as_wholes(folder: Path) -> None:
    frame = people().to_pandas()
    given: dict[str, Any] = {"shares": [0.25] * 4, "max_records_per_user": 50}
    listed = frame[["sex", "old"]]
    arrays = plain(listed, frame["who"], sensitive_values=PAIRS, **given)
    table = Table.open(folder, SCHEMA, engine="stream")
    model = FairClassifier(**OPTIONS, **given).fit(table, groups="who", sensitive_features=["sex", "old"])
    assert same(model, arrays)
    assert model.privacy_.unit == "user"
    turned = FairClassifier(**OPTIONS, **given, sensitive_values=PAIRS[::-1])
    weights = turned.fit(table, groups="who", sensitive_features=("sex", "old")).group_weights_
    assert np.allclose(weights[0], arrays.group_weights_[0][::-1])


@pytest.mark.audit
def test_some_of_the_groups_may_be_declared_or_none(folder: Path) -> None:
    table = Table.open(folder, SCHEMA)
    one = FairClassifier(**OPTIONS, sensitive_values=["m"]).fit(table, sensitive_features="sex")
    assert same(one, plain(people()["sex"].to_pylist(), sensitive_values=["m"]))
    assert same(FairClassifier(**OPTIONS).fit(table), plain(None))
    assert not same(FairClassifier(**OPTIONS).fit(table), one)
    flags = FairClassifier(**OPTIONS, shares="private").fit(table, sensitive_features="old")
    assert len(flags.group_shares_) == 2
    blind = Table.open(folder, SCHEMA, exclude=["sex"])  # of what is learnt, not of what is compared
    assert (
        FairClassifier(**OPTIONS, shares=[0.6, 0.4]).fit(blind, sensitive_features="sex").n_features_in_ == 2
    )


def test_what_is_no_group_of_the_schema_is_refused(folder: Path) -> None:
    table = Table.open(folder, SCHEMA)
    halves = {"shares": [0.5, 0.5]}

    def refused(error: type[Exception], match: str, names: Any, y: Any = None, **given: Any) -> None:
        with pytest.raises(error, match=match):
            FairClassifier(**OPTIONS, **{**halves, **given}).fit(table, y, sensitive_features=names)

    refused(TableError, "no column 'race'", "race")
    refused(ArgumentError, "'age', which is of kind 'num'", "age")
    refused(ArgumentError, "must be the name of a column", np.zeros(400))
    refused(ArgumentError, "must be the name of a column", [])
    refused(
        ArgumentError, "not all different groups that the schema allows", "sex", sensitive_values=["f", "x"]
    )
    refused(
        ArgumentError, "not all different groups that the schema allows", "old", sensitive_values=[0, 0.9]
    )
    refused(ArgumentError, "has 2 columns and sensitive_values", ["sex", "old"], sensitive_values=["f", "m"])
    refused(ValueError, "shares is missing", "sex", shares=None)
    refused(ValueError, "sensitive_features is missing", None, sensitive_values=["f", "m"])
    refused(ArgumentTypeError, "y was given beside a table", "sex", np.zeros(400))
    refused(TypeError, "give the labels as stored", "sex", classes=[2, 3])


def test_how_targets_are_read_tells_tables_apart(folder: Path) -> None:
    table, known = Table.open(folder, SCHEMA), list[str]()

    class Read:
        def __init__(self, columns: tuple[str, ...]) -> None:
            self.columns = columns

        def __call__(self, private_table: Any) -> Any:
            return np.zeros(private_table.num_rows)

        def __repr__(self) -> str:
            return f"Read({self.columns})"

    for columns in (("sex",), ("old",), ("old",)):
        known.append(table.records(reading=Read(columns)).fingerprint())
    known.append(table.records().fingerprint())
    assert len(set(known)) == 3
