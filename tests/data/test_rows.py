"""Products of rows: how a row is rounded depends on that row alone, wherever it stands and with however many."""

import numpy as np
import pytest

from privopt.data.rows import clip_rows, dense_product


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
