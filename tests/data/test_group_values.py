"""Sensitive features as numbers of groups."""

import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from privopt.errors import ArgumentError, ArgumentTypeError
from privopt.estimators.groups import group_codes


@pytest.mark.parametrize(
    "features",
    [
        ["a", "b", None, "c", float("nan"), ["a"]],
        np.array(["a", "b", "", "c", "d", "e"]),
        np.array(["a", "b", None, {}, 3, set()], dtype=object),
        pd.Series(["a", "b", None, "c", pd.NA, pd.NaT]),
        pd.Series(["a", "b", None, None, None, None], dtype="category"),
        pd.DataFrame({"g": ["a", "b", "x", "y", "z", "w"]}),
        {"g": ["a", "b", "x", "y", "z", "w"]},
    ],
)
def test_what_is_missing_or_not_declared_is_no_group(features):
    assert group_codes(features, ["a", "b"], 6).tolist() == [0, 1, -1, -1, -1, -1]


def test_numbers_are_compared_by_value():
    features = [1, 1.0, decimal.Decimal(1), np.float32(1), True, "1", "1.0", "x"]
    assert group_codes(features, [2, 1], 8).tolist() == [1, 1, 1, 1, 1, 1, 1, -1]


@pytest.mark.parametrize(
    ("features", "values"),
    [
        (["Female", " female", "MALE"], ["female", "male"]),
        (np.array(["0", "0.0", "1"]), [0, 1]),
        (["no", "No ", "yes"], [0, 1]),
        ([0, 0.0, True], ["0", "1"]),
        (pa.array(["a", "A", "b"]), ["a", "b"]),
        (pa.chunked_array([["a", "A"], ["b"]]), ["a", "b"]),
        (pd.Series(["a", "A", "b"], dtype="category"), ["a", "b"]),
        (np.ma.array(["a", "a", "b"]), ["a", "b"]),
        ({"g": ["e\u0301", "\u00e9", "e"]}, ["\u00e9", "e"]),
    ],
)
def test_values_are_read_as_labels_are(features, values):
    assert group_codes(features, values, 3).tolist() == [0, 0, 1]


def test_a_masked_value_is_no_group():
    assert group_codes(np.ma.array(["a", "b"], mask=[1, 0]), ["a", "b"], 2).tolist() == [-1, 1]
    assert group_codes(np.ma.array([0, 1], mask=[0, 1]), [0, 1], 2).tolist() == [0, -1]


def test_frames_of_polars_hold_values_and_lazy_ones_are_refused():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"s": ["F", "m"], "r": ["x", None]}, schema_overrides={"s": polars.Categorical})
    assert group_codes(frame, [("M", "y"), ("F", "x")], 2).tolist() == [1, -1]
    assert group_codes(frame["s"], ["M", "F"], 2).tolist() == [1, 0]
    with pytest.raises(ArgumentTypeError, match="sensitive_features is a lazy frame"):
        group_codes(frame.lazy(), ["M", "F"], 2)


@pytest.mark.parametrize("make", [list, np.array, lambda rows: pd.DataFrame(rows, columns=["s", "r"])])
def test_several_columns_are_one_value_together(make):
    rows = [("F", "x"), ("M", "y"), ("F", "y"), ("M", "z")]
    assert group_codes(make(rows), [("M", "y"), ("F", "x")], 4).tolist() == [1, 0, -1, -1]


def test_a_row_of_another_length_in_a_list_is_no_group():
    assert group_codes([("F", "x"), ("M",), None, "F"], [("F", "x")], 4).tolist() == [0, -1, -1, -1]


def test_as_many_values_as_rows_and_as_many_columns_as_declared_are_needed():
    with pytest.raises(ArgumentError, match="give as many values as rows"):
        group_codes(["a"], ["a", "b"], 2)
    with pytest.raises(ArgumentError, match="give as many values as rows"):
        group_codes(np.zeros((2, 2, 2)), ["a", "b"], 2)
    with pytest.raises(ArgumentError, match="has 1 columns and sensitive_values says otherwise"):
        group_codes(np.array(["a", "b"]), [("a", "x"), ("b", "x")], 2)
    with pytest.raises(ArgumentError, match="has 2 columns"):
        group_codes(np.array([("a", "x"), ("b", "x")]), ["a", "b"], 2)
    assert group_codes(["a", "b"], [("a", "x"), ("b", "x")], 2).tolist() == [-1, -1]


@pytest.mark.parametrize("stranger", [None, 2.5, "\ud800", float("nan"), 10**400], ids=range(5))
@pytest.mark.parametrize("container", [list, lambda cells: {"g": cells}], ids=["list", "dictionary"])
def test_one_cell_changes_no_other_records_group(stranger, container):
    """Columns of a dictionary are lists of values, whose type no single cell decides."""
    cells = [2**53 + 1, 7, 2**53 + 1, stranger]
    assert group_codes(container(cells), [2**53 + 1, 7], 4).tolist()[:3] == [0, 1, 0]


@pytest.mark.parametrize("odd", [None, ("a", "b", "x"), "a", 3])
@pytest.mark.parametrize("place", [0, 2])
def test_no_record_decides_how_many_columns_a_list_has(odd, place):
    features = [("a", "b"), ("b", "a"), ("a", "b")]
    features[place] = odd
    expected = [0, 1, 0]
    expected[place] = -1
    assert group_codes(features, [("a", "b"), ("b", "a")], 3).tolist() == expected
