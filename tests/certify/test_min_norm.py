"""The shortest vector of a convex hull: reference cases, optimality, and rows that coincide."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from privopt.certify.goldstein_norm import wolfe_min_norm


def test_the_reference_cases_come_out():
    shortest, weights = wolfe_min_norm(np.array([[1.0, 2.0], [2.0, -1.0], [3.0, 1.0]]))
    np.testing.assert_allclose(shortest, [1.5, 0.5], atol=1e-12)
    np.testing.assert_allclose(weights, [0.5, 0.5, 0.0], atol=1e-12)
    around_zero = np.sin(np.outer(np.arange(1, 13), np.arange(1, 5))) + 0.35
    shortest, weights = wolfe_min_norm(around_zero)
    assert np.linalg.norm(shortest) < 1e-12
    np.testing.assert_allclose(weights @ around_zero, 0.0, atol=1e-12)


@given(
    seed=st.integers(0, 10**6),
    size=st.sampled_from([1e-150, 1e-8, 1.0, 1e8, 1e150]),
    shift=st.sampled_from([0.0, 0.5, 4.0]),
)
def test_no_row_lies_below_the_shortest_vector(seed, size, shift):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(rng.integers(1, 30), rng.integers(1, 9)))
    rows = size * np.concatenate([rows + shift, rows[: len(rows) // 2] + shift])  # some rows twice
    shortest, weights = wolfe_min_norm(rows)
    assert np.all(weights >= 0)
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_array_equal(weights @ rows, shortest)
    shortest, rows = shortest / size, rows / size
    assert np.min(rows @ shortest) >= shortest @ shortest - 3e-14 * np.max(np.sum(rows**2, axis=1))


@pytest.mark.parametrize(
    ("rows", "norm"),
    [([[0.0, 0.0]], 0.0), ([[3.0, 4.0]], 5.0), ([[2.0], [2.0], [5.0]], 2.0), ([[1.0], [-3.0]], 0.0)],
)
def test_one_row_equal_rows_and_one_column_work(rows, norm):
    shortest, weights = wolfe_min_norm(np.array(rows))
    assert np.linalg.norm(shortest) == pytest.approx(norm, abs=1e-15)
    assert weights.sum() == pytest.approx(1.0)
