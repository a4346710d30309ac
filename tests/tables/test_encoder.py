"""The encoder: what every kind becomes, from pandas and Arrow, and that no cell can break it or leave its bounds."""

import datetime
import decimal
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from privopt.tables import Schema, TableError, TabularEncoder, read_table, read_target

SCHEMA: dict[str, Any] = {
    "target": "y",
    "columns": {
        "age": {"kind": "num", "low": 0, "high": 100},
        "gain": {"kind": "num", "low": 0, "high": 999, "log1p": True},
        "member": {"kind": "flag"},
        "town": {"kind": "cat", "levels": ["a", "b", "c"]},
        "code": {"kind": "cat", "levels": ["1", "2", "2.5"]},
        "y": {"kind": "flag"},
    },
}
LISTS: dict[str, Any] = {
    "columns": {
        "age": {"kind": "num", "low": 0, "high": 10},
        "picture": {"kind": "pixels", "size": 3, "low": 0, "high": 255},
        "active": {"kind": "set", "size": 5},
    }
}


def frame(**columns: Any) -> pd.DataFrame:
    rows = max(len(column) for column in columns.values())
    given = {
        "age": [50] * rows,
        "gain": [0] * rows,
        "member": [0] * rows,
        "town": ["?"] * rows,
        "code": [0] * rows,
    }
    return pd.DataFrame(given | columns)


def encoded(schema: Any = SCHEMA, **columns: Any) -> np.ndarray:
    return TabularEncoder(schema).transform(frame(**columns))


def dense(features: Any) -> np.ndarray:
    return features.toarray() if sparse.issparse(features) else features


def test_numbers_are_clipped_and_scaled() -> None:
    ages = encoded(age=[0, 25, 100, 1e300, -5])[:, 0]
    assert ages.tolist() == [-1.0, -0.5, 1.0, 1.0, -1.0]
    assert ages.dtype == np.float32
    gains = encoded(gain=[0, 999, math.sqrt(1000) - 1, 1e9])[:, 1]
    assert np.allclose(gains, [-1, 1, 0, 1], atol=1e-6)
    zero_to_one = TabularEncoder(SCHEMA, numeric_range=(0, 1)).transform(frame(age=[0, 25, 100, math.nan]))
    assert zero_to_one[:, 0].tolist() == [0.0, 0.25, 1.0, 0.5]


def test_an_encoder_says_in_which_units_its_features_are() -> None:
    said = TabularEncoder(SCHEMA, numeric_range=(0, 1)).describe_units()
    assert said == (
        "Columns are as encoded: a number runs from 0 to 1 over its declared range, a flag is 0 or 1, a level is 1 "
        "where it applies, else 0."
    )
    assert "a pixel runs from 0 to 1" in TabularEncoder(LISTS).describe_units()


def test_bounds_of_any_size_scale_without_overflow() -> None:
    schema = {"columns": {"v": {"kind": "num", "low": -1.7e308, "high": 1.7e308}}}
    values = pd.DataFrame({"v": [-1.7e308, 0.0, 1.7e308]})
    assert TabularEncoder(schema).transform(values)[:, 0].tolist() == [-1.0, 0.0, 1.0]


def test_what_is_missing_is_in_the_middle_and_a_category_a_block_of_zeros() -> None:
    features = encoded(
        age=[math.nan, math.inf, -math.inf, None],
        member=[math.nan, 1, 0, None],
        town=[None, "b", "elsewhere", math.nan],
        code=[None, 2, 7, math.nan],
    )
    assert features[:, 0].tolist() == [0.0] * 4
    assert features[:, 2].tolist() == [0.5, 1.0, 0.0, 0.5]
    assert features[:, 3:6].tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert features[:, 6:].tolist() == [[0, 0, 0], [0, 1, 0], [0, 0, 0], [0, 0, 0]]


def test_a_missing_number_can_mark_the_whole_record() -> None:
    table = frame(age=[math.nan, 1, 2], member=[1, math.nan, 0], town=["a", "b", "elsewhere"])
    features = TabularEncoder(SCHEMA, missing="zero").transform(table)
    assert np.isnan(features).any(axis=1).tolist() == [True, True, False]
    as_csr = TabularEncoder(SCHEMA, missing="zero", sparse_output=True).transform(table)
    assert np.array_equal(as_csr.toarray(), features, equal_nan=True)


@pytest.mark.parametrize(
    "codes",
    [
        pd.Series([1, 2, 3]),
        pd.Series([1.0, 2.0, math.nan]),
        pd.Series([1, 2, None], dtype="Int64"),
        pd.Series(["1", "2", "x"]),
        pd.Series(["1", "2", None], dtype=object),
        pd.Series([1, "2", [3]], dtype=object),
        pd.Series([1, "2", datetime.date(2020, 1, 1)], dtype=object),
        pd.Series([1, decimal.Decimal(2), 1j], dtype=object),
        pd.Series(["1", "2", "9"], dtype="category"),
        pd.Series([1, 2, 9], dtype="category"),
        pd.Series([1, "2", (3, 4)], dtype="category"),
        pd.Series([1, 2, 9], dtype="int8[pyarrow]"),
    ],
)
def test_a_category_is_found_whatever_it_is_stored_as(codes: pd.Series) -> None:
    features = encoded(code=codes)[:, 6:]
    assert features.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]


def test_fractions_and_truth_values_are_levels() -> None:
    assert encoded(code=np.array([2.5, 1.5], dtype=np.float32))[:, 6:].tolist() == [[0, 0, 1], [0, 0, 0]]
    schema = {"columns": {"v": {"kind": "cat", "levels": ["0.1", "true", "False"]}}}
    encoder = TabularEncoder(schema)
    assert encoder.transform(pd.DataFrame({"v": [True, False]})).tolist() == [[0, 1, 0], [0, 0, 1]]
    assert encoder.transform(pd.DataFrame({"v": np.array([0.1], dtype=np.float32)})).tolist() == [[1, 0, 0]]


def written(texts: list[str]) -> np.ndarray:
    """Texts as a column of numbers, whose schema says how texts write them."""
    schema = {**SCHEMA, "file": {"decimal": "."}}
    return np.asarray(TabularEncoder(schema).transform(frame(age=pd.Series(texts, dtype="str"))))


def test_text_that_is_a_number_is_read_as_one() -> None:
    assert written(["25", " 75 ", "old"])[:, 0].tolist() == [-0.5, 0.5, 0.0]
    assert encoded(age=pd.Series([25, "75", object()], dtype=object))[:, 0].tolist() == [-0.5, 0.5, 0.0]
    assert encoded(member=["1", "true", "no"])[:, 2].tolist() == [1.0, 1.0, 0.0]
    assert encoded(member=[True, False, True])[:, 2].tolist() == [1.0, 0.0, 1.0]


def test_a_column_stored_as_something_else_is_a_sentence() -> None:
    for column, words in (
        (frame(age=pd.Series(["1"], dtype="str")), r"'age' is stored as text.*how texts write them"),
        (frame(age=pd.Series(["1"], dtype="category")), "'age' is stored as text"),
        (frame(town=[3]), "'town' is stored as numbers, and none of its levels is one"),
        (frame(town=[True]), "'town' is stored as truth values"),
    ):
        for table in (column, pa.table({name: pa.array(column[name]) for name in column})):
            with pytest.raises(TableError, match=words):
                TabularEncoder(SCHEMA).transform(table)
    table = frame(age=pd.to_datetime(["2020-01-01"]))
    with pytest.raises(TableError, match=r"'age' is stored as timestamp.*holds numbers"):
        TabularEncoder(SCHEMA).transform(table)
    nested = pa.table(frame(age=[1])).set_column(3, "town", pa.array([["a"]]))
    with pytest.raises(TableError, match=r"'town' is stored as list.*holds categories"):
        TabularEncoder(SCHEMA).transform(nested)
    with pytest.raises(TableError, match=r"'picture' is stored as int64.*holds lists of numbers"):
        TabularEncoder(LISTS).transform(pd.DataFrame({"age": [1], "picture": [1], "active": [[1]]}))


def test_the_table_may_have_other_columns_in_any_order_but_must_have_ours() -> None:
    table = frame(age=[10, 20])
    encoder = TabularEncoder(SCHEMA).fit(table)
    shuffled = table[list(table.columns)[::-1]].assign(extra="secret")
    assert np.array_equal(encoder.transform(shuffled), encoder.transform(table))
    for method in (encoder.fit, encoder.transform):
        with pytest.raises(TableError, match="has no column 'town'"):
            method(table.drop(columns="town"))
        with pytest.raises(TypeError, match=r"named columns is needed.*got ndarray"):
            method(np.zeros((2, 5)))
    numbered = {"columns": {"1": {"kind": "num", "low": 0, "high": 1}}}
    assert TabularEncoder(numbered).fit_transform(pd.DataFrame({0: [5.0], 1: [1.0]})).tolist() == [[1.0]]
    twice = pd.concat([table, table[["age"]]], axis=1)
    with pytest.raises(TableError, match="two columns of one name"):
        encoder.transform(twice)


def test_fit_looks_at_column_names_only() -> None:
    table = frame(age=[10, 20], town=["a", "z"])
    fitted = TabularEncoder(SCHEMA).fit(table)
    same = TabularEncoder(SCHEMA).fit(table.iloc[:0])
    assert vars(fitted).keys() == vars(same).keys()
    assert fitted.n_features_in_ == 5
    assert list(fitted.feature_names_in_) == list(same.feature_names_in_) == list(table.columns)
    assert fitted.transform(table.iloc[:0]).shape == (0, 9)
    assert TabularEncoder(SCHEMA, sparse_output=True).transform(table.iloc[:0]).shape == (0, 9)


def test_features_are_named_and_blocks_described() -> None:
    encoder = TabularEncoder(SCHEMA, exclude=["gain"])
    assert list(encoder.get_feature_names_out()) == [
        "age", "member", "town=a", "town=b", "town=c", "code=1", "code=2", "code=2.5",
    ]  # fmt: skip
    assert encoder.n_features_out_ == 8
    assert [(b.column, b.kind, b.start, b.stop, b.norm_bound) for b in encoder.blocks_] == [
        ("age", "num", 0, 1, 1.0),
        ("member", "flag", 1, 2, 1.0),
        ("town", "cat", 2, 5, 1.0),
        ("code", "cat", 5, 8, 1.0),
    ]
    assert encoder.row_norm_bound_ == 2.0
    assert TabularEncoder(SCHEMA, features=["age"], numeric_range=(-3, 2)).row_norm_bound_ == 3.0
    lists = TabularEncoder(LISTS)
    assert list(lists.get_feature_names_out())[:4] == ["age", "picture_0", "picture_1", "picture_2"]
    assert lists.row_norm_bound_ == math.sqrt(1 + 3 + 5)
    encoder.fit(frame(age=[1]))
    encoder.get_feature_names_out(encoder.feature_names_in_)
    with pytest.raises(ValueError, match="input_features must be the column names"):
        encoder.get_feature_names_out(["other"])


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ({"missing": "drop"}, "missing must be 'midpoint', 'zero' or 'indicator', got 'drop'"),
        ({"numeric_range": (1, 0)}, "numeric_range must be two finite numbers"),
        ({"sparse_output": "yes"}, "sparse_output must be True, False or 'auto'"),
    ],
)
def test_options_are_checked(option: dict[str, Any], sentence: str) -> None:
    encoder = TabularEncoder(SCHEMA, **option)
    for method in (encoder.fit, encoder.transform):
        with pytest.raises(ValueError, match=sentence):
            method(frame(age=[1]))


def list_table(kind: str) -> Any:
    pictures = [[0, 51, 255], [1, 2], None, [300, -4, 0]]
    active = [[4, 0, 4], [], None, [5, -1, 2]]
    ages = [0, 5, 10, 7.5]
    if kind == "pandas":
        return pd.DataFrame({"age": ages, "picture": pd.Series(pictures), "active": pd.Series(active)})
    if kind == "arrays":
        arrays = [None if row is None else np.array(row, dtype=np.int16) for row in pictures]
        return pd.DataFrame({"age": ages, "picture": pd.Series(arrays), "active": pd.Series(active)})
    values = pa.list_(pa.int16()) if kind == "list" else pa.large_list(pa.float32())
    chunks = [pa.array(pictures[:1], values), pa.array(pictures[1:], values)]
    return pa.table({"age": ages, "picture": pa.chunked_array(chunks), "active": pa.array(active, values)})


@pytest.mark.parametrize("kind", ["pandas", "arrays", "list", "large_list"])
@pytest.mark.parametrize("sparse_output", [True, False])
def test_lists_become_pixels_and_active_indices(kind: str, sparse_output: bool) -> None:
    features = dense(TabularEncoder(LISTS, sparse_output=sparse_output).transform(list_table(kind)))
    assert np.allclose(features[:, 0], [-1, 0, 1, 0.5])
    assert np.allclose(features[:, 1:4], [[0, 0.2, 1], [0.5] * 3, [0.5] * 3, [1, 0, 0]])
    assert features[:, 4:].tolist() == [[1, 0, 0, 0, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 1, 0, 0]]


def test_fixed_size_lists_of_bytes_are_scaled_like_any_others() -> None:
    schema = {"columns": {"picture": {"kind": "pixels", "size": 4, "low": 0, "high": 255}}}
    bytes_of = np.random.default_rng(0).integers(0, 256, size=(5000, 4))
    as_bytes = pa.FixedSizeListArray.from_arrays(pa.array(bytes_of.ravel(), pa.uint8()), 4)
    as_floats = pa.FixedSizeListArray.from_arrays(pa.array(bytes_of.ravel(), pa.float64()), 4)
    encoder = TabularEncoder(schema)
    features = encoder.transform(pa.table({"picture": as_bytes}))
    assert np.array_equal(features, encoder.transform(pa.table({"picture": as_floats})))
    assert np.allclose(features, bytes_of / 255)
    missing = pa.array([[1, 2, 3, 4], None, [5, 6, 7, 8]], pa.list_(pa.uint8(), 4))
    marked = TabularEncoder(schema, missing="zero").transform(pa.table({"picture": missing})[1:])
    assert np.isnan(marked).all(axis=1).tolist() == [True, False]


def test_a_cap_on_active_indices_keeps_the_smallest_and_lowers_the_bound() -> None:
    schema = {"columns": {"active": {"kind": "set", "size": 5, "max_active": 2}}}
    encoder = TabularEncoder(schema)
    features = encoder.transform(pa.table({"active": [[4, 1, 0, 1], [3], [], [4, 3, 2]]}))
    assert features.toarray().tolist() == [[1, 1, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 0, 0, 0], [0, 0, 1, 1, 0]]
    assert encoder.row_norm_bound_ == math.sqrt(2)


def test_csr_is_chosen_for_sets_and_for_wide_mostly_empty_encodings() -> None:
    assert sparse.issparse(TabularEncoder(LISTS).transform(list_table("list")))
    wide = {"columns": {"v": {"kind": "cat", "levels": [str(level) for level in range(2000)]}}}
    features = TabularEncoder(wide).transform(pd.DataFrame({"v": [7, 1999, -1]}))
    assert isinstance(features, sparse.csr_array)
    assert features.dtype == np.float32
    assert features.indices.dtype == np.int32
    assert features.nonzero()[1].tolist() == [7, 1999]
    image = {"columns": {"v": {"kind": "pixels", "size": 2000, "low": 0, "high": 1}}}
    assert not sparse.issparse(TabularEncoder(image).transform(pa.table({"v": [[0.0] * 2000]})))


def test_pandas_output_carries_names_and_index() -> None:
    table = frame(age=[10, 20]).set_index(pd.Index([7, 9]))
    features = TabularEncoder(SCHEMA).set_output(transform="pandas").fit_transform(table)
    assert list(features.columns) == list(TabularEncoder(SCHEMA).get_feature_names_out())
    assert features.index.tolist() == [7, 9]
    assert (features.dtypes == np.float32).all()


def test_it_clones_pickles_and_sits_in_a_pipeline() -> None:
    generator = np.random.default_rng(0)
    table = frame(age=generator.uniform(0, 100, 200), town=generator.choice(["a", "b", "c", "d"], 200))
    y = (table["age"] > 50).astype(int)
    encoder = TabularEncoder(SCHEMA, exclude=("gain",), missing="zero")
    copy = clone(encoder)
    assert copy.get_params() == encoder.get_params()
    restored = pickle.loads(pickle.dumps(encoder.fit(table)))
    assert np.array_equal(restored.transform(table), copy.transform(table))
    model = make_pipeline(TabularEncoder(SCHEMA), LogisticRegression(C=100)).fit(table, y)
    assert model.score(table, y) > 0.95
    assert model[:-1].get_feature_names_out().tolist() == model[0].get_feature_names_out().tolist()
    assert model.set_params(tabularencoder__exclude=["age"]).fit(table, y).score(table, y) < 0.9


def test_a_document_rebuilds_the_encoder(tmp_path: Path) -> None:
    encoder = TabularEncoder(
        SCHEMA, exclude=["gain"], target="member", numeric_range=(0, 1), sparse_output=False
    )
    again = TabularEncoder.from_document(encoder.to_document())
    table = frame(age=[10, 20], town=["a", "z"])
    assert np.array_equal(again.transform(table), encoder.transform(table))
    assert again.to_document() == encoder.to_document()


CELLS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["a", "b", "1", "2.5", "nan", "1e999", "\ud800", 10**400, b"a", (1, 2), pd.NA, pd.NaT]),
    st.lists(st.integers(-3, 300), max_size=5),
    st.lists(st.floats(), min_size=3, max_size=3),
)


@given(
    rows=st.lists(st.tuples(*[CELLS] * 7), max_size=6),
    missing=st.sampled_from(["midpoint", "zero", "indicator"]),
    ends=st.sampled_from([(-1, 0.3), (0.5, 2.0), (-1, 1)]),
)
def test_no_cell_breaks_the_encoder_or_leaves_the_row_norm_bound(
    rows: list[tuple[Any, ...]], missing: str, ends: tuple[float, float]
) -> None:
    schema = {
        "columns": SCHEMA["columns"]
        | {"picture": LISTS["columns"]["picture"], "active": LISTS["columns"]["active"]}
    }
    encoder = TabularEncoder(
        schema,
        exclude=["y"],
        missing=missing,
        sparse_output=False,
        numeric_range=ends,
    )
    names = [name for name in schema["columns"] if name != "y"]
    columns = {
        name: pd.Series([row[place] for row in rows], dtype=object) for place, name in enumerate(names)
    }
    features = encoder.transform(pd.DataFrame(columns, columns=names))
    assert features.shape == (len(rows), encoder.n_features_out_)
    assert missing == "zero" or np.isfinite(features).all()
    norms = np.linalg.norm(np.nan_to_num(features.astype(np.float64)), axis=1)
    assert np.all(norms <= encoder.row_norm_bound_ * (1 + 1e-12))
    as_csr = encoder.set_params(sparse_output=True).transform(pd.DataFrame(columns, columns=names))
    assert np.array_equal(as_csr.toarray(), features, equal_nan=True)
    assert encoder.row_entries is None
    for start in range(len(rows)):  # each row is encoded by itself
        alone = encoder.transform(pd.DataFrame(columns, columns=names)[start : start + 1])
        assert np.array_equal(alone.toarray()[0], features[start], equal_nan=True)


@given(
    ages=st.lists(st.floats(allow_nan=True), min_size=1, max_size=8),
    low=st.floats(-1e9, 1e9),
    width=st.floats(1e-3, 1e9),
)
def test_every_number_lands_in_the_numeric_range(ages: list[float], low: float, width: float) -> None:
    schema = {"columns": {"v": {"kind": "num", "low": low, "high": low + width}}}
    features = TabularEncoder(schema, numeric_range=(-0.1, 0.7)).transform(pd.DataFrame({"v": ages}))
    assert np.all((features >= np.float32(-0.1)) & (features <= np.float32(0.7)))


@pytest.mark.audit
@given(texts=st.lists(st.text("0123456789.+-eEinfatyxX_ \t\u0663", max_size=6), max_size=5))
def test_text_is_read_as_the_same_number_whatever_stands_beside_it(texts: list[str]) -> None:
    def read(cells: list[str]) -> np.ndarray:
        return written([*cells, "1"])[:-1, 0]

    together = read(texts)
    assert np.array_equal(together, read([*texts, "no number"])[:-1])
    assert np.array_equal(together, [read([text])[0] for text in texts])


def test_one_record_does_not_change_how_another_is_read() -> None:
    schema = {"columns": {"v": {"kind": "cat", "levels": ["1", "True", "0.1"]}}}
    cells = [True, 1, "1", np.float32(0.1), 1.0, None]
    alone = [
        TabularEncoder(schema).transform(pd.DataFrame({"v": pd.Series([c], dtype=object)}))[0] for c in cells
    ]
    together = TabularEncoder(schema).transform(pd.DataFrame({"v": pd.Series(cells, dtype=object)}))
    assert np.array_equal(together, alone)
    assert together.argmax(axis=1).tolist()[:5] == [1, 0, 0, 2, 0]


def test_arrow_pandas_and_polars_style_tables_agree() -> None:
    table = frame(age=[1, 2, None], town=["a", None, "q"], code=[1, 2, None], member=[True, None, False])
    arrow = pa.Table.from_pandas(table)
    encoder = TabularEncoder(SCHEMA)
    expected = encoder.transform(table)
    assert np.array_equal(encoder.transform(arrow), expected)
    assert np.array_equal(encoder.transform(arrow.to_batches()[0]), expected)

    class SpeaksArrow:
        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            return arrow.__arrow_c_stream__(requested_schema)

    assert np.array_equal(encoder.transform(SpeaksArrow()), expected)
    chunked = pa.concat_tables([arrow[:1], arrow[1:]])
    dictionaries = chunked.set_column(
        3, "town", pa.chunked_array([c.dictionary_encode() for c in chunked["town"].chunks])
    )
    assert np.array_equal(encoder.transform(dictionaries), expected)


def test_adult_has_its_108_features_and_arrow_equals_pandas(shared_data: Path) -> None:
    schema = Schema.from_json(shared_data / "schema.json", "adult")
    table = read_table(shared_data / "adult.parquet", schema)
    encoder = TabularEncoder(schema)
    features = encoder.fit_transform(table)
    assert features.shape == (48_842, 108)
    assert np.array_equal(features, encoder.transform(table.to_pandas()))
    names = list(encoder.get_feature_names_out())
    assert np.all(features[:, ["=" in name for name in names]].sum(axis=1) == 8)
    sexes = features[:, names.index("sex=Male")]
    assert sexes.mean() == pytest.approx(0.668, abs=1e-3)
    assert read_target(table, schema).mean() == pytest.approx(0.239, abs=1e-3)
    assert np.linalg.norm(features, axis=1).max() <= encoder.row_norm_bound_


def test_covertype_has_its_54_features(shared_data: Path) -> None:
    encoder = TabularEncoder(Schema.from_json(shared_data / "schema.json", "covertype"))
    assert encoder.n_features_out_ == 54
    assert "target" not in encoder.get_feature_names_out()
    assert encoder.row_norm_bound_ == math.sqrt(12)


def test_integer_codes_are_categories(shared_data: Path) -> None:
    schema = Schema.from_json(shared_data / "schema.json", "adult_discrete")
    features = TabularEncoder(schema).transform(
        read_table(shared_data / "adult_discrete.parquet", schema)[:1000]
    )
    assert np.all(features.sum(axis=1) == 13)
