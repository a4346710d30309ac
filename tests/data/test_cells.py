"""One odd cell counts as missing: it raises nothing, warns of nothing and changes no other record."""

import decimal
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse
from tests.support.odd_inputs.cells import EVERY_ODD, FORMS, ODD, every_form, every_odd_cell, in_silence

from privopt.data import cells
from privopt.data.rows import take_rows
from privopt.data.units import Units
from privopt.data.user_keys import user_codes
from privopt.errors import ArgumentTypeError
from privopt.estimators.groups import group_codes
from privopt.estimators.linear import LogisticRegression, Ridge
from privopt.mean_of_users import user_mean
from privopt.tables import Schema, TabularEncoder, read_target, user_keys


def rows_of(units: Units) -> np.ndarray:
    return take_rows(units.private_features, slice(0, len(units.private_targets)))


@every_form
@every_odd_cell
def test_an_odd_target_counts_as_zero_and_changes_no_other_record(form: str, odd: str) -> None:
    features = np.ones((4, 1))
    arguments: dict[str, Any] = {"row_bound": 2.0, "target_bounds": (-5, 5), "n": 4}
    units = Units.from_arrays(features, FORMS[form]([1, 2.5, ODD[odd], "-1"]), **arguments)
    assert units.private_present.tolist() == [True, True, False, True]
    assert units.private_targets.tolist() == [1.0, 2.5, 0.0, -1.0]
    assert rows_of(units).tolist() == [[1], [1], [0], [1]]


@every_form
@every_odd_cell
def test_an_odd_label_is_no_class(form: str, odd: str) -> None:
    units = Units.from_arrays(
        np.ones((4, 1)), FORMS[form]([1, 0, ODD[odd], True]), row_bound=2.0, classes=[0, 1]
    )
    assert units.private_present.tolist() == [True, True, False, True]
    assert units.private_targets.tolist() == [1, -1, 0, 1]


@every_odd_cell
def test_an_odd_entry_of_a_list_of_rows_makes_the_record_zero(odd: str) -> None:
    rows = [[0.5, 1], [True, ODD[odd]], ["0.5", 0.25]]
    units = Units.from_arrays(rows, row_bound=2.0)
    assert rows_of(units).tolist() == [[0.5, 1], [0, 0], [0.5, 0.25]]
    assert units.private_present.tolist() == [True, False, True]


KEYS = np.arange(40) // 2
LISTED: list[Any] = (
    np.random.default_rng(0).uniform(-1, 1, (40, 3)).tolist()
)  # of a length that no odd row has


# Of which only what is not asked of a number fails.
NUMBERS_ALL_THE_SAME = {
    f"an object whose {name} fails" for name in ("__index__", "__int__", "__hash__", "__eq__")
}


def in_place_of(place: int, odd: Any, values: list[Any]) -> list[Any]:
    return [odd if at == place else value for at, value in enumerate(values)]


@pytest.mark.at_once("39")
@pytest.mark.parametrize("place", [0, 20, 39])
@in_silence()
def test_no_kind_of_cell_or_row_of_a_list_shows_or_changes_another(place: int) -> None:
    """Units of numbers and of codes, with any cell, row, target, label or key that is odd."""
    array = np.array(LISTED)
    numbers, labels = array[:, 0].tolist(), [0, 1] * 20
    keys = KEYS.tolist()
    for name, odd in EVERY_ODD.items():
        absent = [] if name in NUMBERS_ALL_THE_SAME else [place]
        one_cell = in_place_of(place, [odd, 0.5, 0.5], LISTED)
        for rows, gone in ((one_cell, absent), (in_place_of(place, odd, LISTED), [place])):
            units = Units.from_arrays(rows, row_bound=2.0)
            found, expected = rows_of(units), array.astype(np.float32)
            np.testing.assert_array_equal(
                np.delete(found, place, 0), np.delete(expected, place, 0), err_msg=name
            )
            assert np.flatnonzero(~units.private_present).tolist() == gone, name
            assert not gone or not np.any(found[place]), name
        one_cell = in_place_of(place, [odd, 0, 0], [[1, 1, 1]] * 40)
        for rows, gone in ((one_cell, absent), (in_place_of(place, odd, [[1, 1, 1]] * 40), [place])):
            codes = np.asarray(rows_of(Units.from_codes(rows, levels=(3, 3, 3))))
            assert np.all(np.delete(codes, place, axis=0) == 1), name
            assert (codes[place, 0] == 2) == bool(gone), name
        units = Units.from_arrays(array, in_place_of(place, odd, numbers), row_bound=2.0)
        assert np.flatnonzero(~units.private_present).tolist() == absent, name
        units = Units.from_arrays(array, in_place_of(place, odd, labels), row_bound=2.0, classes=[0, 1])
        assert set(np.flatnonzero(~units.private_present)) <= {place}, name
        for given in (odd, (1, odd)):
            owners = in_place_of(place, given, keys)
            keyed = Units.from_arrays(array, row_bound=2.0, groups=owners, n=22, relation="add-or-remove-one")
            assert keyed.private_count in (20, 21), name


@pytest.mark.later("False")
@pytest.mark.parametrize("flat", [True, False])
@in_silence()
def test_no_kind_of_cell_shows_in_a_mean_over_users(flat: bool) -> None:
    settings: dict[str, Any] = {"bound": 1.0, "epsilon": 1.0, "delta": 1e-5, "random_state": 1}
    good: list[Any] = [row[0] for row in LISTED] if flat else LISTED
    expected = user_mean(in_place_of(7, np.nan if flat else [np.nan] * 3, good), KEYS, **settings).value
    for name in EVERY_ODD.keys() - NUMBERS_ALL_THE_SAME:
        odd = EVERY_ODD[name]
        for values in [in_place_of(7, odd, good), *([] if flat else [in_place_of(7, [0.5, odd, 0.5], good)])]:
            np.testing.assert_array_equal(user_mean(values, KEYS, **settings).value, expected, err_msg=name)


def test_a_list_is_read_as_most_of_its_entries_are() -> None:
    assert cells.matrix([1, "2", None, [3]]).shape == (4,)
    assert cells.matrix([[1, 2], [3], (4, 5), np.array([6, 7]), pd.Series([8, 9]), 1.0]).shape == (6, 2)
    assert cells.matrix([range(2), [np.array(3), np.float32(4)]]).tolist() == [[0, 1], [3, 4]]
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    np.testing.assert_array_equal(cells.matrix([[3, 4], masked]), [[3, 4], [1, np.nan]])
    assert cells.matrix([]).shape == (0,)
    assert cells.matrix([[], []]).shape == (2, 0)
    assert cells.matrix(5).shape == ()


def test_declared_types_decide_and_missing_numbers_are_nan() -> None:
    frame = pd.DataFrame(
        {"whole": pd.array([1, None], "Int64"), "flag": pd.array([True, False]), "real": [0.5, 1.5]}
    )
    np.testing.assert_array_equal(cells.matrix(frame), [[1, 1, 0.5], [np.nan, 0, 1.5]])
    np.testing.assert_array_equal(cells.matrix(pd.DataFrame({"a": [True], "b": [0.5]})), [[1, 0.5]])
    assert cells.matrix(np.ones((2, 2), np.float32)).dtype == np.float32
    np.testing.assert_array_equal(cells.targets(pd.array([1, None], "Int64"), labels=False), [1, np.nan])
    for refused in (np.array([[1, None]]), pd.DataFrame({"town": ["a"]})):
        with pytest.raises(TypeError, match="numbers"):
            cells.matrix(refused)
    with pytest.raises(ValueError, match="Complex data not supported: features have dtype complex128"):
        cells.matrix(np.ones((2, 2), complex))
    for refused in (pd.Series(["a", "b"], dtype="str"), np.array(["2020"], "M8[D]")):
        with pytest.raises(TypeError, match="targets must be numbers, got dtype"):
            cells.targets(refused, labels=False)


# ---- through an estimator ------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "bounds": (-1, 1), "random_state": 3, "n": 8}


@pytest.mark.later("an empty list", "an integer beyond all floats", "an object whose __array__ fails")
@pytest.mark.parametrize(
    "odd",
    [
        "an integer beyond all floats",
        "an object that fails",
        "an object whose __array__ fails",
        "an empty list",
    ],
)
def test_an_odd_target_counts_as_zero_and_an_odd_feature_as_the_middle_of_its_bounds(odd: str) -> None:
    draw = np.random.default_rng(0)
    features = draw.uniform(-1, 1, (8, 2))
    numbers: list[Any] = [0.5, 1.0, -1.0, 0.25, 0.0, 0.125, 1.0, 0.5]
    labels: list[Any] = [0, 1, 0, 1, 0, 1, 0, 1]
    rows: list[list[Any]] = features.tolist()
    for model, good in (
        (Ridge(target_bounds=(-1, 1), **SETTINGS), numbers),
        (LogisticRegression(classes=[0, 1], **SETTINGS), labels),
    ):
        missing = [float("nan"), *good[1:]]
        expected = model.fit(features, np.asarray(missing)).coef_
        cell = EVERY_ODD[odd]
        for y in ([cell, *good[1:]], np.fromiter([cell, *good[1:]], dtype=object)):
            np.testing.assert_array_equal(model.fit(features, y).coef_, expected)
        for first, filled in (([cell, 0.5], [0.0, 0.5]), (cell, [0.0, 0.0])):
            middle = model.set_params(missing="midpoint").fit([filled, *rows[1:]], good).coef_
            np.testing.assert_array_equal(model.fit([first, *rows[1:]], good).coef_, middle)
            model.set_params(missing="zero")
            np.testing.assert_array_equal(model.fit([first, *rows[1:]], good).coef_, expected)


def test_all_keys_missing_is_explained_where_the_number_of_users_is_public() -> None:
    settings = SETTINGS | {"n": None, "classes": [0, 1]}
    with pytest.raises(ValueError, match=r"name 0 users.*key is missing.*belongs to nobody"):
        LogisticRegression(**settings).fit(np.ones((4, 1)), [0, 1, 0, 1], groups=[None] * 4)
    few = {"n": 4, "relation": "add-or-remove-one", "solver": "gradient-descent"}
    model = LogisticRegression(**(settings | few))
    keys = [float("nan")] * 4
    assert model.fit(np.ones((4, 1)), [0, 1, 0, 1], groups=keys).privacy_.n == 4  # how many is private


# ---- in a table ------------------------------------------------------------------------

SCHEMA = Schema.from_json(
    {
        "columns": {
            "age": {"kind": "num", "low": 0, "high": 10},
            "member": {"kind": "flag"},
            "town": {"kind": "cat", "levels": ["1", "b"]},
            "picture": {"kind": "pixels", "size": 2, "low": 0, "high": 1},
            "active": {"kind": "set", "size": 3},
            "person": {"kind": "id"},
        }
    }
)
GOOD: dict[str, Any] = {"age": 10, "member": 1, "town": "b", "picture": [1, 1], "active": [1], "person": "x"}


@pytest.mark.parametrize("column", GOOD)
@every_odd_cell
def test_an_odd_cell_of_a_data_frame_is_missing(column: str, odd: str) -> None:
    table = pd.DataFrame(
        {
            name: pd.Series([good, ODD[odd] if name == column else None, good], dtype=object)
            for name, good in GOOD.items()
        }
    )
    features = np.asarray(TabularEncoder(SCHEMA, sparse_output=False).transform(table))
    assert features[0].tolist() == features[2].tolist() == [1, 1, 0, 1, 1, 1, 0, 1, 0]
    if not (column == "active" and odd == "a list"):
        assert features[1].tolist() == [0, 0.5, 0, 0, 0.5, 0.5, 0, 0, 0]
    for target in ("age", "member", "town"):
        good = read_target(table, SCHEMA, target)
        assert good[0] == good[2]
    keys = user_keys(table, "person")
    assert keys[0] == keys[2] != keys[1]


@pytest.mark.parametrize(
    "private_cells",
    [
        pa.array([1, 2**31 - 1, 1], pa.int32()).cast(pa.date32()),
        pa.array([1, 2**62, 1], pa.int64()).cast(pa.timestamp("s")),
        pa.array([1, 2**62, 1], pa.int64()).cast(pa.duration("s")),
        pa.Array.from_buffers(
            pa.string(), 3, [None, pa.py_buffer(np.array([0, 1, 2, 3], np.int32)), pa.py_buffer(b"b\xffb")]
        ),
    ],
    ids=["date", "timestamp", "duration", "text"],
)
def test_an_odd_cell_of_an_arrow_table_is_no_level_and_a_user_of_its_own(private_cells: Any) -> None:
    for column in (private_cells, private_cells.dictionary_encode()):
        table = pa.table({"town": column, "person": column})
        schema = {"columns": {"town": {"kind": "cat", "levels": ["b", "1970-01-02"]}}}
        features = TabularEncoder(schema).transform(table)
        assert features[1].tolist() == [0, 0]
        assert features[0].tolist() == features[2].tolist()
        assert user_keys(table, "person").tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    "wrong",
    [
        {"targets": np.ones(22)},
        {"groups": np.arange(22)},
        {"features": np.ones(23)},
        {"features": np.ones((23, 0))},
        {"features": sparse.csr_array((23, 0))},
        {"features": sparse.coo_array(np.ones(23))},
    ],
)
def test_a_message_about_arrays_that_do_not_fit_does_not_say_how_many_rows_there_are(wrong: Any) -> None:
    given: Any = {"features": np.ones((23, 2)), "row_bound": 2.0, "n": 40, "relation": "add-or-remove-one"}
    with pytest.raises(ValueError, match="must have") as refused:
        Units.from_arrays(**(given | wrong))
    assert not set(re.findall(r"\d+", str(refused.value))) & {"22", "23"}


def frames_of(values: list[Any], kind: Any) -> Iterator[Any]:
    """A column of numbers and one of a type, in frames that speak Arrow."""
    columns = {"a": pa.array([1.5] * len(values)), "b": pa.array(values, kind)}
    yield pa.table(columns)
    yield pa.RecordBatch.from_pydict(columns)
    polars = pytest.importorskip("polars")
    yield polars.DataFrame(pa.table(columns))


@pytest.mark.later("kind0")
@pytest.mark.parametrize(
    "kind", [pa.bool_(), pa.int8(), pa.int64(), pa.float32(), pa.decimal128(5, 2), pa.null()]
)
def test_frames_of_arrow_are_read_by_the_types_that_they_declare_whatever_is_missing(kind: Any) -> None:
    full: list[Any] = [None, None] if pa.types.is_null(kind) else [1, 0]
    if pa.types.is_decimal(kind) or pa.types.is_boolean(kind):
        full = [decimal.Decimal(1), decimal.Decimal(0)] if pa.types.is_decimal(kind) else [True, False]
    for whole, private_frame in zip(frames_of(full, kind), frames_of([full[0], None], kind), strict=True):
        read, private_read = cells.matrix(whole), cells.matrix(private_frame)
        assert read.dtype == private_read.dtype == np.float64
        assert read.shape == private_read.shape == (2, 2)
        assert np.isnan(private_read[1, 1])
        np.testing.assert_array_equal(read[0], private_read[0])


@pytest.mark.parametrize("kind", [pa.string(), pa.timestamp("s"), pa.list_(pa.float64())])
def test_columns_of_arrow_that_hold_no_numbers_are_named(kind: Any) -> None:
    for frame in frames_of([None, None], kind):
        with pytest.raises(ArgumentTypeError, match="the columns b do not hold numbers"):
            cells.matrix(frame)


def test_small_floats_of_arrow_stay_small() -> None:
    assert cells.matrix(pa.table({"a": pa.array([1.5, None], pa.float32())})).dtype == np.float32


def test_a_missing_label_of_arrow_changes_no_other_label() -> None:
    classes = [2**60, 2**60 + 1]
    for last in (2**60, None):
        read = cells.label_codes(cells.targets(pa.array([*classes, last]), labels=True), classes)
        assert read.tolist() == [0, 1, -1 if last is None else 0]
    assert cells.targets(pa.array([True, None]), labels=False).tolist()[0] == 1.0
    assert cells.targets(pa.array([decimal.Decimal("1.5")]), labels=False).tolist() == [1.5]
    with pytest.raises(ArgumentTypeError, match="targets must be numbers, got dtype"):
        cells.targets(pa.array([None], pa.date32()), labels=False)


@pytest.mark.parametrize(
    "make",
    [
        lambda private_cells: pd.Series(private_cells, dtype=object).astype("category"),
        lambda private_cells: pd.Categorical(private_cells, categories=[2**60, 2**60 + 1]),
        lambda private_cells: pd.array(private_cells, dtype="Int64"),
        lambda private_cells: pd.Series(private_cells, dtype=pd.ArrowDtype(pa.int64())),
        lambda private_cells: pa.array(private_cells).dictionary_encode(),
        lambda private_cells: np.ma.array(
            [one or 0 for one in private_cells], mask=[one is None for one in private_cells]
        ),
    ],
)
def test_a_missing_cell_changes_no_other_label_key_or_group(make: Any) -> None:
    classes = [2**60, 2**60 + 1]
    for last in (2**60, None):
        private_column = make([*classes, last])
        assert cells.label_codes(cells.targets(private_column, labels=True), classes).tolist()[:2] == [0, 1]
        assert group_codes(private_column, classes, 3).tolist()[:2] == [0, 1]
        codes = user_codes(private_column, 3)
        assert codes[0] != codes[1]
        assert codes[2] == (-1 if last is None else codes[0])
