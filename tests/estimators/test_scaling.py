"""Public scaling and its inverse."""

import numpy as np
import pytest
from scipy import sparse

from privopt.estimators.scaling import BLOCK_ENTRIES, FeatureScaling, ScaledFeatures
from privopt.estimators.targets import TargetScaling

LOW, HIGH = np.array([0.0, -4.0, 2.0]), np.array([10.0, 4.0, 2.0])


def scaling(*, centered: bool = True) -> FeatureScaling:
    return FeatureScaling.of((LOW, HIGH), 3, centered=centered, keep_zero=False)


def test_bounds_are_mapped_to_minus_one_and_one_and_a_constant_to_zero() -> None:
    rows = np.asarray(ScaledFeatures(scaling())(np.array([LOW, HIGH, [5.0, 0.0, 2.0], [99.0, -99.0, 99.0]])))
    assert rows.dtype == np.float32
    np.testing.assert_array_equal(rows, [[-1, -1, 0], [1, 1, 0], [0, 0, 0], [1, -1, 0]])


def test_without_centering_zero_stays_zero() -> None:
    rows = np.asarray(ScaledFeatures(scaling(centered=False))(np.array([[0.0, 0.0, 0.0], [10.0, 2.0, 2.0]])))
    np.testing.assert_array_equal(rows, [[0, 0, 0], [1, 0.5, 1]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.bool_])
def test_features_of_any_numeric_type_are_scaled(dtype: type) -> None:
    rows = np.array([[0, 1, 0], [1, 1, 1]]).astype(dtype)
    np.testing.assert_allclose(
        ScaledFeatures(FeatureScaling.of((0, 1), 3, centered=True, keep_zero=False))(rows),
        [[-1, 1, -1], [1, 1, 1]],
    )


@pytest.mark.parametrize("bounds", [(-1, 1), (-2, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_not_finite_becomes_the_midpoint_and_nothing_else_changes(
    bounds: tuple[int, int], dtype: type
) -> None:
    rows = np.random.default_rng(0).uniform(-3, 3, (BLOCK_ENTRIES // 2 + 5, 4)).astype(dtype)
    broken = rows.copy()
    broken[[3, 4, -1], [0, 1, 2]] = [np.nan, np.inf, -np.inf]
    map_of = FeatureScaling.of(bounds, 4, centered=True, keep_zero=False)
    clean, scaled = np.asarray(ScaledFeatures(map_of)(rows)), np.asarray(ScaledFeatures(map_of)(broken))
    assert scaled[[3, 4, -1], [0, 1, 2]].tolist() == [0, 0, 0]
    zero = FeatureScaling.of(bounds, 4, centered=True, keep_zero=False, filling="zero")
    assert np.isnan(np.asarray(ScaledFeatures(zero)(broken))[[3, 4, -1], [0, 1, 2]]).all()
    rest = np.isfinite(broken)
    np.testing.assert_array_equal(scaled[rest], clean[rest])
    assert np.abs(clean).max() <= 1.0
    np.testing.assert_allclose(clean, np.clip(rows / bounds[1], -1, 1), rtol=1e-6)


def test_sparse_rows_are_divided_and_stay_sparse() -> None:
    rows = sparse.csr_array(np.array([[0.0, 8.0, 0.0], [5.0, np.inf, -1.0]]))
    map_of = FeatureScaling.of(([0, -4, -2], [10, 4, 0]), 3, centered=True, keep_zero=True)
    scaled = ScaledFeatures(map_of)(rows)
    assert sparse.issparse(scaled)
    assert scaled.nnz == rows.nnz
    np.testing.assert_array_equal(scaled.toarray(), np.array([[0, 1, 0], [0.5, 0, -0.5]], np.float32))
    broken = sparse.csr_array(np.array([[np.nan, 0.0, np.nan]]))
    np.testing.assert_array_equal(
        ScaledFeatures(map_of)(broken).toarray(), np.array([[0.5, 0, -0.5]], np.float32)
    )
    with pytest.raises(ValueError, match="bounds of sparse features must include 0"):
        FeatureScaling.of((1, 2), 3, centered=True, keep_zero=True)


@pytest.mark.parametrize("centered", [True, False])
def test_undoing_gives_the_same_predictions_and_redoing_the_same_parameters(centered: bool) -> None:
    generator = np.random.default_rng(1)
    map_of = FeatureScaling.of((LOW, [10.0, 4.0, 3.0]), 3, centered=centered, keep_zero=False)
    rows = generator.uniform(LOW, map_of.high, (20, 3))
    weights, offset = generator.normal(size=(2, 3)), generator.normal(size=2)
    coef, intercept = map_of.undo(weights, offset)
    np.testing.assert_allclose(
        rows @ coef.T + intercept, ScaledFeatures(map_of)(rows) @ weights.T + offset, atol=1e-6
    )
    again, constant = map_of.redo(coef, intercept)
    np.testing.assert_allclose(again, weights)
    np.testing.assert_allclose(constant, offset)


def test_targets_are_mapped_by_their_bounds() -> None:
    centered, plain = TargetScaling.of((2, 6), centered=True), TargetScaling.of((-2, 6), centered=False)
    np.testing.assert_array_equal(centered.apply(np.array([2, 4, 6])), [-1, 0, 1])
    np.testing.assert_allclose(plain.apply(np.array([-2.0, 0.0, 6.0])), [-1 / 3, 0, 1])
    assert centered.ends == (-1, 1)
    assert plain.ends == (pytest.approx(-1 / 3), 1)
    assert np.isnan(centered.apply(np.array([np.nan]))).all()
