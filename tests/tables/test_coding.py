"""Tables to codes and back: bins by public rules, every cell has a code, values of the schema's own kind."""

import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from tests.support.odd_inputs.cells import ODD

from privopt.tables import Schema, read_table
from privopt.tables.coding import TableCoding, default_bins
from privopt.tables.errors import TableError
from privopt.tables.table import Table

SCHEMA = Schema.from_json(
    {
        "user": "person",
        "columns": {
            "person": {"kind": "id"},
            "age": {"kind": "num", "low": 0, "high": 99, "integer": True},
            "children": {"kind": "num", "low": 0, "high": 4, "integer": True},
            "gain": {"kind": "num", "low": 0, "high": 100000, "log1p": True, "integer": True},
            "height": {"kind": "num", "low": 0.5, "high": 2.5},
            "sex": {"kind": "cat", "levels": ["f", "m"]},
            "level": {"kind": "cat", "levels": ["0", "1", "2"]},
            "flag": {"kind": "flag"},
            "note": {"kind": "text"},
        },
    }
)
N = 20_000
CODING = TableCoding.of(SCHEMA, N)


def table(rows=400, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(0, 100, rows),
            "children": rng.integers(0, 5, rows),
            "gain": rng.integers(0, 100_001, rows),
            "height": rng.uniform(0.5, 2.5, rows),
            "sex": rng.choice(["f", "m"], rows),
            "level": rng.integers(0, 3, rows),
            "flag": rng.integers(0, 2, rows),
        }
    )


def test_bins_are_a_function_of_the_schema_and_the_public_number_of_units():
    assert (default_bins(10), default_bins(1000), default_bins(10**9)) == (8, 10, 32)
    assert CODING.names == ("age", "children", "gain", "height", "sex", "level", "flag")
    assert default_bins(N) == 27
    assert CODING.levels[0] == 28
    assert CODING.levels[1] == 6  # a whole number of few values has a bin for each
    assert CODING.levels[2] <= 28  # whole numbers next to 0 share no bin of the logarithmic ones
    assert CODING.levels[3:] == (28, 3, 4, 3)
    assert CODING.columns[1].labels == ["0", "1", "2", "3", "4", "missing"]
    assert CODING.columns[0].labels[:2] == ["[0, 4)", "[4, 8)"]
    assert CODING.columns[4].labels == ["f", "m", "missing"]


def test_values_come_back_in_the_bin_that_they_left():
    rows = table()
    codes = CODING.encode(rows)
    assert np.all((codes >= 0) & (codes < np.array(CODING.levels) - 1))
    again = CODING.decode(codes, np.random.default_rng(1))
    np.testing.assert_array_equal(CODING.encode(again), codes)
    assert list(again.columns) == list(CODING.names)
    for name in ("children", "level", "flag", "sex"):
        assert again[name].tolist() == rows[name].tolist()
    assert again["age"].between(0, 99).all()
    assert str(again["age"].dtype) == "Int64"
    assert again["height"].dtype == np.float64
    assert again["age"].tolist() != rows["age"].tolist()


def test_what_is_missing_or_undeclared_comes_back_missing():
    rows = pd.DataFrame(
        {
            "age": [np.nan, np.inf, -np.inf],
            "children": [None, "many", ODD["an object that fails"]],
            "gain": pd.Series(["x", None, "3"], dtype=object),
            "height": [1e300, -1e300, np.nan],
            "sex": ["d", None, 3],
            "level": [7, None, "1"],
            "flag": [np.nan, 0.4, 7],
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        codes = CODING.encode(rows)
        again = CODING.decode(codes, np.random.default_rng(0))
    assert again["age"].isna().all()
    assert again["children"].isna().all()
    assert again["sex"].isna().all()
    assert again["gain"].isna().tolist() == [True, True, False]
    assert again["flag"].isna().tolist() == [True, False, True]
    assert again["flag"].tolist()[1] == 0
    assert again["level"].isna().tolist() == [True, True, False]
    assert again["height"][:2].tolist() == pytest.approx([2.5, 0.5], abs=0.1)


def test_numbers_are_whole_where_the_schema_says_so():
    codes = np.zeros((50, 1), np.int64)
    plain = {"columns": {"x": {"kind": "num", "low": 0, "high": 100}}}
    for entry, whole in [({}, False), ({"integer": True}, True), ({"integer": False}, False)]:
        schema = Schema.from_json({"columns": {"x": {**plain["columns"]["x"], **entry}}})
        assert Schema.from_json(schema.to_json()) == schema
        values = TableCoding.of(schema, 1000).decode(codes, np.random.default_rng(0))["x"]
        assert all(float(value).is_integer() for value in values) == whole
        assert values.between(0, 10).all()
        assert values.nunique() > 5


def test_a_share_between_whole_bounds_comes_back_as_a_share():
    schema = Schema.from_json({"columns": {"share": {"kind": "num", "low": 0, "high": 1}}})
    coding, shares = TableCoding.of(schema, 2000), np.random.default_rng(0).uniform(size=2000)
    again = coding.decode(coding.encode(pd.DataFrame({"share": shares})), np.random.default_rng(1))["share"]
    assert np.max(np.abs(np.sort(again) - np.sort(shares))) < 0.1


def test_whole_numbers_are_rounded_to_the_nearest():
    schema = Schema.from_json({"columns": {"score": {"kind": "num", "low": 0, "high": 10, "integer": True}}})
    coding, scores = TableCoding.of(schema, 2000), np.random.default_rng(0).uniform(0, 10, 2000)
    again = coding.decode(coding.encode(pd.DataFrame({"score": scores})), np.random.default_rng(1))["score"]
    np.testing.assert_array_equal(again, np.rint(scores))


@pytest.mark.parametrize(("low", "type_"), [(2**60, "uint64"), (-(2**60), "int64"), (2**63 + 5, "uint64")])
def test_whole_numbers_beyond_floats_are_told_apart(low, type_, tmp_path):
    entry = {"kind": "num", "low": low, "high": low + 999, "integer": True}
    schema = Schema.from_json({"columns": {"key": entry}})
    drawn = [low + int(k) for k in np.random.default_rng(0).integers(0, 1000, 500)]
    coding = TableCoding.of(schema, 500, bins=1000)
    texts = pd.Series(map(str, drawn), dtype=object)
    for column in (pd.Series(drawn, dtype=type_), pd.Series(drawn, dtype=object), texts):
        again = coding.decode(coding.encode(pd.DataFrame({"key": column})), np.random.default_rng(1))["key"]
        assert again.tolist() == drawn
    pd.DataFrame({"key": drawn}).to_csv(tmp_path / "t.csv", index=False)
    opened = Table.open(tmp_path / "t.csv", schema)
    for read in (read_table(tmp_path / "t.csv", schema), opened.read(["key"])):
        assert coding.decode(coding.encode(read), np.random.default_rng(1))["key"].tolist() == drawn
    assert np.concatenate(list(opened.features())).shape == (500, 1)
    odd = pd.DataFrame({"key": pd.Series([*ODD.values(), 10**400, "9" * 400], dtype=object)})
    codes = coding.encode(odd)
    assert np.all((codes >= 0) & (codes <= 1000))
    del entry["integer"]
    with pytest.raises(TableError, match="few floating-point numbers"):
        TableCoding.of(Schema.from_json({"columns": {"key": entry}}), 500)


def test_a_required_column_has_no_cell_for_missing_values():
    columns = {
        "a": {"kind": "num", "low": 0, "high": 8, "required": True},
        "b": {"kind": "flag", "required": True},
        "c": {"kind": "cat", "levels": ["x", "y"], "required": True},
    }
    coding = TableCoding.of(Schema.from_json({"columns": columns}), 10, bins=4)
    assert coding.levels == (4, 2, 2)
    odd = pd.DataFrame({name: pd.Series([None, "?"], dtype=object) for name in columns})
    codes = coding.encode(odd)
    assert codes.tolist() == [[2, 0, 0]] * 2
    assert not coding.decode(codes, np.random.default_rng(0)).isna().any().any()
    assert coding.columns[2].labels == ["x", "y"]
    np.testing.assert_array_equal(coding.columns[0].overlap((0, 4)), [1, 1, 0, 0])


def test_dates_come_back_as_days():
    entry = {"kind": "date", "low": "2020-01-01", "high": "2021-12-31"}
    edges = ["2020-01-01", "2021-01-01", "2021-12-31"]
    coding = TableCoding.of(
        Schema.from_json({"columns": {"day": entry}}),
        1000,
        bins={"day": edges},
    )
    assert coding.columns[0].labels == ["[2020-01-01, 2021-01-01)", "[2021-01-01, 2021-12-31]", "missing"]
    days = pd.Series(["2020-05-01", "2021-05-01T10:00", "1999-01-01", "soon", None], dtype=object)
    codes = coding.encode(pd.DataFrame({"day": days}))
    assert codes[:, 0].tolist() == [0, 1, 0, 2, 2]
    again = coding.decode(codes, np.random.default_rng(0))["day"]
    assert str(again.dtype).startswith("datetime64")
    assert again.dt.year.tolist()[:3] == [2020, 2021, 2020]
    assert again.isna().tolist() == [False] * 3 + [True] * 2
    np.testing.assert_allclose(coding.columns[0].overlap(("2021-01-01", "2030-01-01")), [0, 1, 0])


def test_flags_come_back_as_the_table_declares_or_the_schema_spells_them():
    spelt = {"kind": "flag", "true": "ja", "false": "nein"}
    schema = Schema.from_json({"columns": {"a": {"kind": "flag"}, "b": spelt}})
    rows = pd.DataFrame({"a": [True, False], "b": ["nein", "JA"]})
    coding = TableCoding.of(schema, 10).stored_as(rows)
    again = coding.decode(coding.encode(rows), np.random.default_rng(0))
    assert again["a"].tolist() == [True, False]
    assert str(again["a"].dtype) == "boolean"
    assert again["b"].tolist() == ["nein", "ja"]


def test_levels_are_whole_numbers_only_where_the_schema_writes_all_of_them_so():
    for levels, expected in [(["0", "-3"], [0, -3]), (["0", "x"], ["0", "x"]), (["01", "2"], ["01", "2"])]:
        schema = Schema.from_json({"columns": {"x": {"kind": "cat", "levels": levels}}})
        values = TableCoding.of(schema, 100).decode(np.array([[0], [1]]), np.random.default_rng(0))["x"]
        assert values.tolist() == expected


def test_arrow_tables_and_columns_by_name_are_coded_alike():
    rows = table(50)
    wanted = TableCoding.of(SCHEMA, N, columns=["sex", "age"], bins={"age": [0, 18, 65, 99]})
    assert wanted.levels == (3, 4)
    arrow = pa.table(
        {"age": pa.array(rows["age"], pa.int8()), "sex": pa.array(rows["sex"]).dictionary_encode()}
    )
    np.testing.assert_array_equal(wanted.encode(arrow), wanted.encode(rows))
    assert wanted.columns[1].labels == ["[0, 18)", "[18, 65)", "[65, 99]", "missing"]
    assert wanted.place("age") == 1


def test_a_condition_covers_a_share_of_each_cell():
    coding = TableCoding.of(SCHEMA, N, columns=["age", "height", "sex", "flag"], bins=4)
    age, height, sex, flag = coding.columns
    assert age.edges == (0, 25, 50, 75, 99)
    np.testing.assert_allclose(age.overlap((20, 49)), [0.2, 1, 0, 0, 0])
    np.testing.assert_allclose(height.overlap((1.25, 9)), [0, 0.5, 1, 1, 0])
    np.testing.assert_allclose(sex.overlap("m"), [0, 1, 0])
    np.testing.assert_allclose(flag.overlap([0, True]), [1, 1, 0])
    for column, wanted, words in [
        (sex, "x", "no level 'x'"),
        (sex, [], "no level: give"),
        (age, 3, "an interval"),
    ]:
        with pytest.raises(TableError, match=words):
            column.overlap(wanted)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"columns": ["pay"]}, "no column 'pay'"),
        ({"columns": ["note"]}, "of kind 'text': synthetic data can have num, flag, cat, date only"),
        ({"columns": ["sex", "sex"]}, "named twice"),
        ({"columns": "sex"}, "must be a list"),
        ({"columns": []}, "No column is left"),
        ({"bins": {"sex": 3}}, "bins names 'sex'"),
        ({"bins": 0}, "between 1 and 4096 bins, got 0"),
        ({"bins": {"age": [3, 1]}}, "list of rising edges"),
        ({"bins": "many"}, "list of rising edges"),
    ],
)
def test_what_cannot_be_coded_is_refused(options, words):
    with pytest.raises(TableError, match=words):
        TableCoding.of(SCHEMA, N, **options)


def test_a_declaration_of_whole_numbers_must_make_sense():
    for entry, words in [({"integer": 3}, "must be true or false"), ({"integer": True}, "there are not two")]:
        with pytest.raises(TableError, match=words):
            Schema.from_json({"columns": {"x": {"kind": "num", "low": 0.2, "high": 0.7, **entry}}})
