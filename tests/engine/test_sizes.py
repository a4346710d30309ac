"""A clip holds for rows, slopes and vectors of any size: where squares, products and reciprocals leave float64."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import sparse
from tests.contracts.queries import OWN, PLAIN

from privopt.data.rows import LEAST_PEAK, MappedRows, clip_rows, clip_sparse_rows
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.projections import scale_of
from privopt.proofs.huberised_sum import HuberisedSum
from privopt.queries.base import clip_rows_to_ball, clip_to_ball
from privopt.queries.moments import SecondMoment
from privopt.queries.scores import VertexScores, clip_to_cube
from privopt.queries.slopes import ClippedGradient, MixedGradient

SIZES = 10.0 ** np.array(
    [-323.0, -308.5, -308.0, -200.0, -162.0, -46.0, -3.0, 0.0, 77.0, 154.0, 200.0, 300.0, 307.5, 308.2]
)
RADII = (1e-99, 3e-16, 0.4, 1e99)
LAYOUTS = ("dense", "csr")


@pytest.fixture(autouse=True)
def double() -> Any:
    with double_precision(), warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def of_one_row(row: Any, target: float, layout: str, **options: Any) -> Units:
    """A row, and an empty one."""
    rows: Any = np.vstack([row, 0.0 * row])
    rows = sparse.csr_array(rows) if layout == "csr" else rows
    return Units.from_arrays(rows, [target, 0.0], row_bound=1.5, storage="float64", **options)


def length(vector: Any) -> float:
    return float(np.sqrt(np.sum(np.asarray(vector).astype(np.longdouble) ** 2)))


# Rows ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_long_row_of_entries_whose_squares_vanish_stays_within_the_clip(layout: str) -> None:
    """Each square is below the least number, but one: the norm came out 143 times too small."""
    row = np.full(45_000, 1.5e-162)
    row[0] = 2.6e-162
    units = of_one_row(row, 1e307, layout)
    engine = InProcessEngine(units)
    for loss in (losses.squared, PLAIN):
        asked = ClippedGradient(loss=loss, at=np.zeros(45_000), clip=0.4)
        assert length(engine.clipped_sum(asked)) <= 0.4
    whole = HuberisedSum(losses.squared, 0.4, units.private_features, units.private_targets)
    assert length(whole.gradient(np.zeros(45_000))) <= 0.4


@pytest.mark.later("1e-320-dense", "5e-309-dense")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [1e-320, 5e-309, 1e-200, 1.5e-162, 1e-100, 0.99e-24, 1.01e-24, 1e-8])
def test_a_row_of_any_size_stays_within_the_clip_of_its_norm_and_of_its_largest_entry(
    size: float, layout: str
) -> None:
    """A norm of 0 beside a row that is not let the coefficient through; 1 / 5e-309 is infinite, with a warning."""
    engine = InProcessEngine(of_one_row(np.array([size, -size, 0.5 * size]), 1e307, layout))
    at = np.array([0.2, 0.1, -0.3])
    for loss in (losses.squared, PLAIN, OWN):
        mixed: Any = {"previous": np.ones(3), "change_clip": 1e-3, "gain": 0.5}
        assert length(engine.clipped_sum(ClippedGradient(loss=loss, at=at, clip=1e-3))) <= 1e-3
        assert length(engine.clipped_sum(MixedGradient(loss=loss, at=at, clip=1e-3, **mixed))) <= 1e-3
        scores = engine.clipped_sum(VertexScores(loss=loss, at=at, clip=1e-3, offset=0.0 * at))
        assert float(np.max(np.abs(scores))) <= 1e-3
    assert length(engine.clipped_sum(SecondMoment(row_bound=1e-3))) <= 1e-6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_row_without_an_entry_of_the_least_size_is_zero_alike_in_both_layouts(dtype: Any) -> None:
    rows = np.array([[0.999, 0.5], [1.0, 0.0], [1.001, 1e-300], [-0.8, 0.8], [0.0, 0.0]]) * LEAST_PEAK
    rows[1, 0] = LEAST_PEAK
    stored, norms, finite = clip_rows(rows.copy(), 1.0, dtype)
    assert np.any(stored != 0.0, axis=1).tolist() == [False, True, True, False, False]
    assert np.array_equal(norms > 0.0, np.any(stored != 0.0, axis=1))
    assert finite.all()
    values, sparse_norms, _ = clip_sparse_rows(rows.reshape(-1), np.full(5, 2), 1.0, 2, dtype)
    assert np.array_equal(values.reshape(5, 2), stored)
    np.testing.assert_allclose(sparse_norms, norms, rtol=1e-14)


def test_the_least_bound_of_rows_leaves_room_for_the_least_row() -> None:
    for given in ({"row_bound": 0.9e-18}, {"row_bound": 1.0, "intercept": 1e-200}):
        with pytest.raises(ValueError, match="1e-18 and"):
            Units.from_arrays(np.ones((3, 2)), **given)
    wide = Units.from_arrays(np.ones((2, 10_000)), row_bound=1e-18)
    assert np.all(wide.private_norms > 0.99e-18)


def test_a_mapped_row_that_is_nearly_zero_is_clipped_by_the_least_norm(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("privopt.data.storage.DENSE_VIEW_BYTES", 0)
    units = of_one_row(np.array([1.0, 0.5, 0.0]), 1e307, "csr").mapped(np.eye(3) * 0.9e-24, 1.0)
    assert isinstance(units.private_features, MappedRows)
    assert np.all(units.private_norms >= LEAST_PEAK)
    asked = ClippedGradient(loss=PLAIN, at=np.zeros(3), clip=1e-3)
    assert length(InProcessEngine(units).clipped_sum(asked)) <= 1e-3


@pytest.mark.parametrize("shrink", [1.0, 1e-160, 1e-280])
@pytest.mark.parametrize("size", [1e-320, 2e-162, 1e-23, 1.0])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_records_huberised_gradient_is_within_the_clip_in_mapped_coordinates(
    layout: str, size: float, shrink: float
) -> None:
    units = of_one_row(np.array([size, -size, 0.5 * size]), 1e307, layout)
    matrix = None if shrink == 1.0 else shrink * np.diag([1.0, 0.5, 2.0])
    found = HuberisedSum(losses.squared, 0.4, units.private_features, units.private_targets, matrix)
    gradient = found.gradient(np.zeros(3))
    assert length(gradient if matrix is None else matrix.T @ gradient) <= 0.4


# Vectors and coefficients --------------------------------------------------------------------------------------------


@pytest.mark.later("1e-99")
@pytest.mark.parametrize("radius", RADII)
def test_a_vector_of_any_size_ends_in_the_ball(radius: float) -> None:
    """Beyond 4.5e307 the reciprocal that XLA multiplies by is subnormal, hence 0, and the vector seemed short."""
    vectors = jnp.asarray(SIZES[:, None] * np.array([1.0, -1.0, 0.3]))
    for clip, size in ((clip_to_ball, length), (clip_to_cube, lambda one: float(np.max(np.abs(one))))):
        for clipped in (
            jax.jit(jax.vmap(lambda one, clip=clip: clip(one, radius)))(vectors),
            jnp.stack([clip(one, radius) for one in vectors]),
        ):
            for one, stated in zip(np.asarray(clipped), np.asarray(vectors), strict=True):
                assert size(one) <= radius
                if size(stated) > radius:
                    assert size(one) >= radius * (1.0 - 2e-9)


@pytest.mark.parametrize("norm", ["l2", "linf"])
@pytest.mark.parametrize("radius", RADII)
def test_a_coefficient_of_any_size_times_a_row_ends_in_the_ball(radius: float, norm: Any) -> None:
    coefficients = SIZES[:, None] * np.array([1.0, -1.0, 0.3])
    run = jax.jit(lambda values, norms: clip_rows_to_ball(values, norms, radius, norm))
    for row in (LEAST_PEAK, 1e-3, 1.0, 1e30):
        clipped = np.asarray(run(coefficients, np.full(len(SIZES), row)))
        for one, stated in zip(clipped, coefficients, strict=True):
            size = length(one) if norm == "l2" else float(np.max(np.abs(one)))
            assert size <= radius / row
            if float(np.max(np.abs(stated))) > radius / row:
                assert size >= radius / row * (1.0 - 2e-9)
    assert np.all(np.isfinite(run(coefficients, np.zeros(len(SIZES)))))  # of an empty row


@pytest.mark.later("1e+290-3e-16-csr", "1e+290-3e-16-dense")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("clip", [3e-16, 1e-12, 0.4])
@pytest.mark.parametrize("target", [1e290, 1.7e308])
def test_the_average_of_a_user_of_any_size_is_within_the_clip(
    target: float, clip: float, layout: str
) -> None:
    """The factor that shortens it was one subnormal number, rounded by up to half of itself."""
    engine = InProcessEngine(
        of_one_row(np.array([1.0, 0.0, 0.0]), target, layout, groups=[0, 1], max_records_per_user=1)
    )
    at: Any = np.zeros(3)
    for loss in (losses.squared, OWN):
        plain = ClippedGradient(loss=loss, at=at, clip=clip)
        mixed = MixedGradient(loss=loss, at=at, previous=at, clip=clip, change_clip=clip, gain=0.5)
        for asked, most in ((plain, clip), (mixed, 0.5 * clip)):
            assert most * (1.0 - 2e-9) <= length(engine.clipped_sum(asked)) <= most


@pytest.mark.parametrize("size", SIZES)
def test_a_vector_divided_by_its_scale_is_of_ordinary_size(size: float) -> None:
    vector = jnp.asarray(size * np.array([1.0, -0.4]))
    largest = float(jnp.max(jnp.abs(jax.jit(lambda one: one / scale_of(one))(vector))))
    assert largest <= 2.0**20
    assert largest >= 1.0 - 1e-15 or size < 1e-300
