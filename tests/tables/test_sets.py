"""Sets of indices: the encoder's arrays against a plain reference, which reads cell by cell."""

import itertools
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse

from privopt.tables import TabularEncoder

LARGE = 2**23  # features: 300 rows of so many have more places than an int32 tells apart
KINDS = (pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.uint64(), pa.float32(), pa.float64())
Cell = list[Any] | None


def plainly(cells: list[Cell], size: int, most: int | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Columns and ends of the CSR rows: of each cell its usable indices, once, the smallest ones."""
    rows = [
        sorted({int(entry) for entry in cell or [] if _usable(entry, size)})[: size if most is None else most]
        for cell in cells
    ]
    columns = np.array([index for row in rows for index in row], np.int32)
    return columns, np.cumsum([0, *map(len, rows)]).astype(np.int32)


def _usable(entry: Any, size: int) -> bool:
    return entry is not None and math.isfinite(entry) and entry == int(entry) and 0 <= entry < size


def as_column(cells: list[Cell], kind: Any, *, cuts: list[int], large: bool) -> Any:
    """Those cells in chunks."""
    ends = [0, *sorted(min(cut, len(cells)) for cut in cuts), len(cells)]
    of = pa.large_list(kind) if large else pa.list_(kind)
    parts = itertools.pairwise(ends)
    return pa.chunked_array([pa.array(cells[start:stop], of) for start, stop in parts], of)


def require_same(features: Any, columns: NDArray[Any], ends: NDArray[Any]) -> None:
    """Every array of the CSR rows, to the byte and the type."""
    for found, right in (
        (features.indices, columns),
        (features.indptr, ends),
        (features.data, np.ones(len(columns), np.float32)),
    ):
        assert found.dtype == right.dtype
        assert found.tobytes() == right.tobytes()


@st.composite
def columns_of_sets(draw: st.DrawFn) -> tuple[list[Cell], Any]:
    """Cells and how they are stored: lists in any order, with repetitions and what is no index."""
    kind = draw(st.sampled_from(KINDS))
    if pa.types.is_floating(kind):
        entry = st.sampled_from([0.0, 1.0, 2.0, 3.0, 7.0, 0.5, -1.0, 1e9, math.nan, math.inf, -math.inf])
    else:
        entry = st.integers(0 if str(kind).startswith("u") else -2, 9)
    cells = draw(st.lists(st.none() | st.lists(st.none() | entry, max_size=12), max_size=12))
    return cells, as_column(
        cells, kind, cuts=draw(st.lists(st.integers(0, 12), max_size=3)), large=draw(st.booleans())
    )


@given(
    column=columns_of_sets(),
    size=st.sampled_from([1, 3, 8, 200, LARGE]),
    most=st.none() | st.integers(1, 4),
    skipped=st.integers(0, 5),
)
def test_sets_are_what_a_plain_reading_makes_of_them(
    column: Any, size: int, most: int | None, skipped: int
) -> None:
    cells, stored = column
    described = {"kind": "set", "size": size} | ({} if most is None else {"max_active": min(most, size)})
    encoder = TabularEncoder({"columns": {"s": described}})
    features = encoder.transform(pa.table({"s": stored}).slice(skipped))
    right = plainly(cells[skipped:], size, most)
    assert features.shape == (max(0, len(cells) - skipped), size)
    require_same(features, *right)
    if size < LARGE:
        dense = encoder.set_params(sparse_output=False).transform(pa.table({"s": stored}).slice(skipped))
        assert np.array_equal(dense, features.toarray())


@pytest.mark.parametrize("most", [None, 5])
@pytest.mark.parametrize("size", [1000, LARGE])
def test_many_rows_of_large_sets_are_told_apart(size: int, most: int | None) -> None:
    rng = np.random.default_rng(0)
    cells: list[Cell] = [rng.integers(-2, size + 2, rng.integers(0, 20)).tolist() for _ in range(300)]
    described = {"kind": "set", "size": size} | ({} if most is None else {"max_active": most})
    features = TabularEncoder({"columns": {"s": described}}).transform(pa.table({"s": cells}))
    require_same(features, *plainly(cells, size, most))


def test_sets_stand_beside_other_columns_in_the_order_of_the_schema() -> None:
    rng = np.random.default_rng(1)
    rows, size = 50, 30
    cells: list[Cell] = [rng.integers(0, size, 6).tolist() for _ in range(rows)]
    numbers, towns = rng.choice([0.0, 0.5, 1.0, math.nan], rows), rng.choice(["a", "b", "?"], rows)
    schema = {
        "columns": {
            "x": {"kind": "num", "low": 0, "high": 1},
            "s": {"kind": "set", "size": size},
            "town": {"kind": "cat", "levels": ["a", "b"]},
            "again": {"kind": "set", "size": size, "max_active": 2},
        }
    }
    table = pa.table({"town": towns, "again": cells, "s": cells, "x": numbers})
    features = TabularEncoder(schema, missing="zero").transform(table)
    right = np.zeros((rows, features.shape[1]), np.float32)
    right[:, 0] = 2 * numbers - 1
    for start, most in ((1, None), (1 + size + 2, 2)):
        columns, ends = plainly(cells, size, most)
        right[np.repeat(np.arange(rows), np.diff(ends)), start + columns] = 1.0
    right[:, 1 + size : 1 + size + 2] = towns[:, None] == ["a", "b"]
    whole = sparse.csr_array(right)
    assert isinstance(features, sparse.csr_array)
    assert features.has_canonical_format
    for found, expected in ((features.indices, whole.indices), (features.indptr, whole.indptr)):
        assert found.dtype == np.int32
        assert np.array_equal(found, expected)
    assert features.data.tobytes() == whole.data.tobytes()
