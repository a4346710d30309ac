"""Rows on a public grid: none gets longer, no entry moves by a step, norms are never too small, constants are exact."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse

from privopt.data.rows import LEAST_PEAK, GridRows, grid_steps, near_grid, row_peaks, to_grid
from privopt.data.units import Units
from privopt.testing.toy_data import hostile_numbers

STORAGES = ["int8", "int16"]
D = 5


def stored(rows: Any, storage: Any, **given: Any) -> Units:
    return Units.from_arrays(rows, **{"row_bound": 2.0, **given}, storage=storage)


def decoded(units: Units) -> NDArray[np.float64]:
    rows = units.private_features
    assert isinstance(rows, GridRows)
    return rows.take(slice(None))


def exactly(number: float) -> Fraction:
    return Fraction(float(number))


@pytest.mark.parametrize("storage", STORAGES)
@given(
    seed=st.integers(0, 2**32 - 1),
    bound=st.sampled_from([1e-18, 3e-9, 1.0, 2.0, 7.3, 1e30]),
    entries=st.sampled_from([None, 1.0, 1e-3, 1e-300, 1e300]),
    at_bound=st.booleans(),
)
@example(seed=0, bound=2.0, entries=1.0, at_bound=True)
def test_no_row_is_longer_than_its_float32_form_and_no_norm_is_too_small(
    storage: str, seed: int, bound: float, entries: float | None, at_bound: bool
) -> None:
    rng = np.random.default_rng(seed)
    rows = hostile_numbers(rng, (12, D))
    if at_bound:
        rows = np.where(
            rng.random(rows.shape) < 0.5, rng.choice([-bound, bound, bound / 2, -bound / 127]), rows
        )
    intercept = float(rng.choice([-1e-18, 1.0, 3e7]))
    options = {"row_bound": bound, "entry_bound": entries, "intercept": intercept}
    units, plain = stored(rows, storage, **options), stored(rows, "float32", **options)
    found, wanted = decoded(units), np.asarray(plain.private_features, np.float64)
    assert np.array_equal(units.private_present, plain.private_present)
    assert np.all(found * np.sign(wanted) >= 0)
    assert np.all(units.private_norms <= plain.private_norms)
    assert np.array_equal(found[:, D], wanted[:, D])
    grid: Any = units.private_features
    steps, extent = grid.steps[:D], max(min(bound, entries or np.inf), 1e-18)
    inside = np.abs(wanted[:, :D]) <= extent
    moved = np.abs(wanted - found)[:, :D]
    assert np.all((moved < steps)[inside])
    assert np.all(np.abs(found[:, :D])[~inside] >= extent * (1.0 - 2.0**-30))
    peaks = np.max(np.abs(found), axis=1)
    assert np.array_equal(row_peaks(units.private_features), peaks)
    assert np.all((peaks == 0) | (peaks >= LEAST_PEAK))
    assert np.all(units.private_norms <= units.public.row_bound)
    for row, norm in zip(found, units.private_norms, strict=True):
        assert exactly(norm) ** 2 >= sum(exactly(entry) ** 2 for entry in row)


@pytest.mark.parametrize("storage", STORAGES)
def test_every_point_of_the_grid_is_exact_and_stays_where_it_is(storage: str) -> None:
    dtype = np.dtype(storage)
    last = int(np.iinfo(dtype).max)
    rng = np.random.default_rng(0)
    for extent in (1e-18, 0.3, 1.0, np.pi, 1e30):
        steps = grid_steps(2, extent, None, dtype)
        integers = np.unique(np.append(rng.integers(-last, last, 500), [-last, 0, last]))
        points = integers[:, None] * steps
        for integer, point in zip(integers[::37], points[::37, 0], strict=True):
            assert int(integer) * exactly(steps[0]) == exactly(point)
        far = np.full(len(points), np.inf)
        for found in (to_grid(points, steps, dtype), near_grid(points, steps, dtype, far)):
            assert np.array_equal(found[:, 0], integers)
        nearer, further = np.nextafter(points, 0.0), np.nextafter(points, np.copysign(np.inf, points))
        toward = integers - np.sign(integers)
        assert np.array_equal(to_grid(nearer, steps, dtype)[:, 1], toward)
        assert np.array_equal(to_grid(further, steps, dtype)[:, 1], integers)
        assert extent * (1 - 2.0**-30) <= points[-1, 0] <= extent * (1 + 2.0**-50)


def nearly(
    row: NDArray[np.float64], steps: NDArray[np.float64], last: int, limit: float
) -> NDArray[np.float64]:
    """The rule of `near_grid` for one row, in as many words."""
    width = len(row)
    found = np.minimum(np.floor(np.abs(row) / steps + 0.5), last)
    for shift in (0.45, 0.4, 0.3, 0.15, 0.0):
        length = np.linalg.norm(found * steps)
        if length <= limit:
            break
        lower = np.minimum(np.floor(np.abs(row) / steps + shift), last)
        turn = int((np.sign(row) * found) @ np.arange(1, 2 * width, 2)) % width
        for column in [*range(turn, width), *range(turn)]:
            if np.linalg.norm(found * steps) <= limit * (1.0 - 2.0**-41):
                break
            found[column] = lower[column]
    return np.sign(row) * found


@pytest.mark.parametrize("storage", STORAGES)
def test_rows_are_rounded_by_the_rule(storage: str) -> None:
    rng, dtype = np.random.default_rng(4), np.dtype(storage)
    rows = rng.normal(size=(300, 9)) * 10.0 ** rng.uniform(-1, 0.3, (300, 1))
    steps, limits = grid_steps(9, 1.0, None, dtype), np.linalg.norm(rows, axis=1)
    limits[::3] *= rng.uniform(0.97, 1.0, 100)  # some are lowered more than once
    found = near_grid(rows, steps, dtype, limits)
    wanted = [nearly(row, steps, np.iinfo(dtype).max, limit) for row, limit in zip(rows, limits, strict=True)]
    assert np.array_equal(found, wanted)
    assert np.mean(found != near_grid(rows, steps, dtype, np.full(300, np.inf))) > 0.01


@pytest.mark.parametrize("storage", STORAGES)
def test_towards_zero_no_entry_grows(storage: str) -> None:
    rng = np.random.default_rng(0)
    for extent in (1e-18, 0.3, 1e30):
        steps = grid_steps(D, extent, None, np.dtype(storage))
        rows = np.nan_to_num(hostile_numbers(rng, (500, D)), posinf=0.0, neginf=0.0)
        rows[::2] = rng.uniform(-extent, extent, (250, D))
        found = to_grid(rows, steps, np.dtype(storage)) * steps
        assert np.all(np.abs(found) <= np.abs(rows))


def test_most_rows_are_rounded_to_within_little_more_than_half_a_step() -> None:
    rows = np.random.default_rng(0).normal(size=(2000, 54))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True) * 1.000001
    found = decoded(stored(rows, "int8", row_bound=1.0))
    assert np.quantile(np.max(np.abs(found - rows), axis=1), 0.9) < 0.61 / 127
    mean = np.mean(np.linalg.norm(found, axis=1))
    assert 0.997 < mean <= 1.0  # towards zero it is 0.968


@pytest.mark.parametrize("storage", STORAGES)
def test_a_row_is_stored_alike_whatever_stands_beside_it(storage: str) -> None:
    rows = hostile_numbers(np.random.default_rng(3), (30, D))
    together = stored(rows, storage, n=30)
    for place in range(30):
        beside = np.full((2, D), np.nan)
        beside[0] = rows[place]
        alone = stored(beside, storage, n=2)
        assert np.array_equal(decoded(alone)[0], decoded(together)[place])
        assert alone.private_norms[0] == together.private_norms[place]


def test_a_row_that_becomes_zero_is_there_and_an_unusable_one_is_not() -> None:
    rows = np.array([[1e-5, 0.0], [np.nan, 1.0], [0.5, -0.5]])
    units = stored(rows, "int8", intercept=None)
    assert units.private_present.tolist() == [True, False, True]
    assert not np.any(decoded(units)[:2])
    assert units.private_norms[0] == 0.0


def test_the_grid_is_as_fine_as_the_entries_are_bounded() -> None:
    rows = np.random.default_rng(0).uniform(-1, 1, (50, 9))
    coarse, fine = stored(rows, "int8", row_bound=9.0), stored(rows, "int8", row_bound=9.0, entry_bound=1.0)
    errors = [np.max(np.abs(decoded(units) - rows)) for units in (coarse, fine)]
    assert errors[1] < 1 / 127 < 4 / 127 < errors[0]


def test_integers_take_a_half_and_a_quarter_of_the_memory() -> None:
    rows = np.ones((40, 6))
    sizes = [stored(rows, storage).private_features.private_steps.nbytes for storage in ("int16", "int8")]  # type: ignore[union-attr]
    assert sizes == [40 * 6 * 2, 40 * 6]
    assert [stored(rows, storage).public.entry_bytes for storage in STORAGES] == [1, 2]


def test_a_format_that_there_is_not_and_sparse_rows_on_a_grid_are_refused() -> None:
    with pytest.raises(
        ValueError, match="storage must be 'float32', 'float64', 'int16' or 'int8', got 'int4'"
    ):
        stored(np.ones((3, 2)), "int4")
    with pytest.raises(ValueError, match=r"storage must be .*, got None"):
        stored(np.ones((3, 2)), None)
    with pytest.raises(ValueError, match=r"is for dense rows: .* Give storage='float32'"):
        stored(sparse.csr_array(np.ones((3, 2))), "int8")


def test_printing_rows_on_a_grid_shows_no_data() -> None:
    assert repr(stored(np.ones((3, 2)), "int8").private_features) == "GridRows(<private>, d=2)"
