"""Rows: how one is clipped, or multiplied, depends on that row alone, wherever it stands and with however many."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from privopt.data.rows import LEAST_PEAK, clip_rows, clip_sparse_rows, dense_product


@pytest.mark.parametrize(
    ("width", "columns"), [(3, 1), (20, 20), (55, 3), (255, 255), (300, 300), (400, 7), (513, 10)]
)
def test_a_rows_product_is_rounded_alike_wherever_it_stands(width: int, columns: int) -> None:
    generator = np.random.default_rng(0)
    block, matrix = generator.normal(size=(700, width)), generator.normal(size=(width, columns))
    whole = dense_product(block, matrix)
    np.testing.assert_allclose(whole, block @ matrix, rtol=1e-10, atol=1e-10)
    for shift in (1, 7, 33, 130):
        assert np.array_equal(
            dense_product(np.roll(block, shift, axis=0), matrix), np.roll(whole, shift, axis=0)
        )
    for count in (1, 63, 65, 300):  # with AVX-512, 400 columns of a few rows would go through another kernel
        assert np.array_equal(dense_product(block[-count:], matrix), whole[-count:])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_is_clipped_alike_whatever_stands_beside_it(dtype: type) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 7)) * np.logspace(-200, 200, 60)[:, None]
    rows[5], rows[6, 2], rows[7, 0] = 0.0, np.nan, np.inf
    together = clip_rows(rows.copy(), 1.5, dtype)
    alone = [clip_rows(rows[k : k + 1].copy(), 1.5, dtype) for k in range(60)]
    for part, whole in enumerate(together):
        assert np.array_equal(np.concatenate([one[part] for one in alone]), whole)
    assert together[0].dtype == dtype
    assert np.all(together[1] <= 1.5)


@pytest.mark.parametrize("width", [40, 109, 512, 700])
def test_a_row_is_rounded_alike_in_products_of_few_and_of_many_rows(width: int) -> None:
    generator = np.random.default_rng(width)
    rows = generator.normal(size=(1024, width))
    matrix = generator.normal(size=(width, width))
    together = dense_product(rows, matrix)
    for first, last in ((0, 64), (448, 512), (0, 640), (0, 1000)):
        assert np.array_equal(dense_product(rows[first:last], matrix), together[first:last])


def plainly(row: Any, bound: float, width: int, dtype: Any) -> tuple[Any, float, bool]:
    """One sparse row, alone and in every step: what it is stored as, its norm rounded up, whether it is finite."""

    def length(entries: Any) -> float:
        return math.sqrt(sum((float(entry) * float(entry) for entry in entries), 0.0))

    def norm(entries: Any) -> float:
        return length(entries) * (1.0 + (len(row) + 8) * 2.0**-53)

    def towards_zero(entries: Any) -> Any:
        stored = entries.astype(dtype)
        return np.where(
            np.abs(stored.astype(float)) > np.abs(entries), np.nextafter(stored, dtype(0)), stored
        )

    peak = max(np.abs(row), default=0.0) if not np.any(np.isnan(row)) else math.nan
    if not math.isfinite(peak) or peak < LEAST_PEAK:
        return np.zeros(len(row), dtype), 0.0, math.isfinite(peak)
    factor = 1.0 - (2.0**-22 if dtype == np.float32 else (width + 16) * 2.0**-51)
    unit = length(row / peak)
    if unit * peak > bound:
        stored = towards_zero(row / peak * (factor * bound / unit))
    elif norm(row.astype(dtype)) <= bound:
        stored = row.astype(dtype)
    else:
        stored = towards_zero(row * factor)
    return stored, norm(stored), True


@st.composite
def sparse_rows(draw: st.DrawFn) -> tuple[list[Any], float]:
    """Rows of up to six entries, and a bound that is, or nearly is, the length of one of them."""
    ordinary, tiny = st.floats(-2.0, 2.0) | st.just(1.0), st.sampled_from([0.0, -0.0, 1e-24, 0.9e-24, 1e-30])
    hostile = ordinary | tiny | st.sampled_from([1e300, -1e39, math.nan, math.inf, -math.inf])
    kinds = st.sampled_from([st.just(1.0), ordinary, tiny, hostile])
    rows = draw(st.lists(kinds.flatmap(lambda entry: st.lists(entry, max_size=6)), max_size=8))
    lengths = [math.sqrt(sum(min(entry * entry, 1e200) for entry in row)) for row in rows]
    known = [length for length in lengths if 1e-18 < length < 1e99]
    nearly = st.sampled_from([1.0, 1.0 - 2.0**-52, 1.0 + 2.0**-52, 1.0 + 1e-14, 0.3, 3.0])
    return [np.array(row, float) for row in rows], draw(st.sampled_from([1.0, *known])) * draw(nearly)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@example(
    given_rows=([np.array([0.1]), np.ones(2)], 0.1 * (1.0 + 1e-14)), dtype=np.float32
)  # rounded beyond it
@given(given_rows=sparse_rows(), dtype=st.sampled_from([np.float32, np.float64]))
def test_a_sparse_row_is_clipped_as_if_it_stood_alone(given_rows: Any, dtype: Any) -> None:
    rows, bound = given_rows
    values = np.concatenate([np.zeros(0), *rows])
    lengths = np.array([len(row) for row in rows], np.int64)
    stored, norms, finite = clip_sparse_rows(values, lengths, bound, 6, dtype)
    assert (stored.dtype, norms.dtype, finite.dtype) == (dtype, np.float64, np.bool_)
    ends = np.cumsum(lengths)
    for place, row in enumerate(rows):
        right, norm, whole = plainly(row, bound, 6, dtype)
        here = stored[ends[place] - lengths[place] : ends[place]]
        assert here.tobytes() == right.tobytes()
        assert (norms[place], finite[place]) == (norm, whole)
        assert norms[place] <= bound
