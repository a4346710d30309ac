"""Feature rows: clipped to a public norm, stored with norms that are never too small; dense, CSR, on a grid, mapped."""

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.compilation import compiled
from privopt.data.room import MEMORY, Room

# ------------------------------------------------------------------------------------------------------------
# Rows on a public grid: small integers times a public step for each column, in a half or a quarter of the
# memory.
# The decoded row, integers times steps, is the row from the moment that it is stored: its norm is taken of it, and
# every path of the engine computes with it.


GridStep: TypeAlias = np.int8 | np.int16
_INTERCEPT_STEPS = 64  # a power of two: the constant column is exact
_STEP_BITS = 32  # digits of a step: with the 15 of an integer, a product that float64 holds exactly
_SHIFTS = np.array([0.45, 0.4, 0.3, 0.15, 0.0])  # from the nearest point to the next one towards zero
_LEAST_EXTENT = 1e-18  # the smallest row bound there is; its smallest step is beyond `LEAST_PEAK`


@dataclass(frozen=True, eq=False, repr=False)
class GridRows:
    """Rows a_ij = k_ij s_j, of which the integers k are stored.

    Attributes:
        private_steps: (rows, d) the integers k, int8 or int16.
        steps: (d,) the steps s, public; every k s is a float64 number, so that a decoded row is exact wherever it is
            computed.
    """

    private_steps: NDArray[GridStep]
    steps: NDArray[np.float64]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, width = self.private_steps.shape
        return rows, width

    @property
    def dtype(self) -> np.dtype[np.float64]:
        """The format of a decoded row."""
        return np.dtype(np.float64)

    def take(self, positions: Any) -> NDArray[np.float64]:
        """The decoded rows at `positions`."""
        return self.private_steps[positions] * self.steps

    def __repr__(self) -> str:
        return f"GridRows(<private>, d={len(self.steps)})"


def on_grid(dtype: np.dtype[Any]) -> bool:
    """Whether rows of this format are integers on a grid."""
    return dtype.kind == "i"


def grid_steps(
    width: int, extent: float, intercept: float | None, dtype: np.dtype[Any]
) -> NDArray[np.float64]:
    """The step of each column, (width,) or (width + 1,) with a constant column.

    Args:
        width: columns of features.
        extent: public bound on their entries; what is beyond is cut to the end of the grid.
        intercept: the constant of a last column; None for no such column.
        dtype: int8 or int16.
    Returns:
        For a feature the extent over 127 or 32767, rounded to 32 bits: downwards, so that the last point of the grid is
        short of the extent by less than a step (by 2^-31 of the extent). For the constant a 64th of it: its place on
        the grid is exact.
    """
    fraction, exponent = math.frexp(max(extent, _LEAST_EXTENT) / float(np.iinfo(dtype).max))
    step = math.ldexp(math.floor(math.ldexp(fraction, _STEP_BITS)), exponent - _STEP_BITS)
    steps = np.full(width, step)
    return steps if intercept is None else np.append(steps, abs(intercept) / _INTERCEPT_STEPS)


def to_grid(
    private_rows: NDArray[Any], steps: NDArray[np.float64], dtype: np.dtype[Any]
) -> NDArray[GridStep]:
    """Finite rows as integers on the grid: the whole part of `|a| / s`, with the sign of a.

    Args:
        private_rows: (rows, d).
        steps: (d,) of the columns.
        dtype: int8 or int16.
    Privacy:
        An entry's integer depends on that entry alone. The decoded entry is no larger than the entry, so that the
        decoded row has no larger norm than the row, whichever the norm: the quotient may be rounded to a whole number
        that the entry does not reach, but then the product, which is exact, is larger than the entry, and the integer
        is made one smaller.
    Raises:
        Nothing, and warns of nothing: the input is private.
    """
    private_wide = np.abs(private_rows.astype(np.float64))
    with np.errstate(all="ignore"):
        private_steps = np.minimum(np.floor(private_wide / steps), float(np.iinfo(dtype).max))
    private_steps -= private_steps * steps > private_wide
    return np.copysign(private_steps, private_rows).astype(dtype)


def near_grid(
    private_rows: NDArray[Any],
    steps: NDArray[np.float64],
    dtype: np.dtype[Any],
    private_limits: NDArray[np.float64],
) -> NDArray[GridStep]:
    """Finite rows as the nearest integers on the grid, of which some are lowered where a row would exceed its limit.

    The nearest is the whole part of `|a| / s + 1/2`. In a row that is too long as many entries as bring it within the
    limit become the whole part of `|a| / s + 0.45`; if that does not do, of `|a| / s + 0.4`, and so on to 0.

    Args:
        private_rows: (rows, d).
        steps: (d,) of the columns.
        dtype: int8 or int16.
        private_limits: (rows,) of the l2 norms.
    Privacy:
        A row's integers depend on that row alone. An entry keeps its sign and moves by less than a step, unless it lies
        beyond the grid, whose end it becomes. Which entries are lowered first is read off the row's integers, so that
        over many rows it is no column's fate; nothing rests on it, nor on the limit being met: norms are summed here as
        numbers fall, and whoever asks looks at the norm.
    """
    private_steps = np.empty(private_rows.shape, dtype)
    _near(private_rows, steps, private_limits, _SHIFTS, np.iinfo(dtype).max, private_steps)
    return private_steps


@compiled()
def _near(
    private_rows: NDArray[Any],
    steps: NDArray[np.float64],
    private_limits: NDArray[np.float64],
    shifts: NDArray[np.float64],
    largest: int,
    private_steps: NDArray[GridStep],
) -> None:
    """`near_grid`, row by row; the integers are written to `private_steps`."""
    count, width = private_rows.shape
    last, up = np.float64(largest), 1.0 + (width + 8) * 2.0**-53
    for i in range(count):
        squares = 0.0
        for j in range(width):
            entry = np.float64(private_rows[i, j])
            whole = min(np.floor(abs(entry) / steps[j] + 0.5), last)
            squares += (whole * steps[j]) * (whole * steps[j])
            private_steps[i, j] = np.int64(math.copysign(whole, entry))
        limit = private_limits[i]
        for shift in shifts:
            if np.sqrt(squares) * up <= limit:
                break
            turn = 0
            for j in range(width):
                turn += np.int64(private_steps[i, j]) * (2 * j + 1)
            j = turn % width
            excess, gained = squares - limit * limit * (1.0 - 2.0**-40), 0.0
            for _ in range(width):
                if gained >= excess:
                    break
                entry = np.float64(private_rows[i, j])
                step, before = steps[j], abs(np.float64(private_steps[i, j]))
                lower = min(np.floor(abs(entry) / step + shift), last)
                if shift == 0.0 and lower * step > abs(entry):
                    lower -= 1.0
                if lower < before:
                    gained += (before * step) * (before * step) - (lower * step) * (lower * step)
                    private_steps[i, j] = np.int64(math.copysign(lower, entry))
                j = j + 1 if j + 1 < width else 0
            squares -= gained


# ------------------------------------------------------------------------------------------------------------
# Feature rows: clipped to a public norm, stored with norms that are never too small; dense, CSR, on a grid,
# mapped.


BLOCK_ENTRIES = 2**16  # entries that are held in float64 at a time: half a megabyte, which stays in the cache
LEAST_PEAK = 1e-24  # a row with no entry of this size is stored as zero
_NORM_ERROR = 2.0**-53
_LARGEST_SQUARE = 1e280  # a sum of squares up to here did not overflow
MAPPED_NORM_SLACK = 1.0 + 2.0**-20  # a product in another block may round to a neighbouring float32

PRODUCT_ROWS, PRODUCT_COLUMNS = 64, 32  # multiples of the tiles of the usual BLAS
_SMALL_PRODUCT = 2**20  # multiplications: more than where the usual BLAS end their kernels for small matrices

Positions: TypeAlias = slice | NDArray[np.int64]
Storage: TypeAlias = Literal["float32", "float64", "int16", "int8"]
Stored: TypeAlias = np.float32 | np.float64


@dataclass(frozen=True, eq=False, repr=False)
class MappedRows:
    """The rows `B^T a`, each clipped to `bound`, of rows a too wide to store mapped: computed a block at a time.

    A row may come out one rounding apart when it is computed within another block; the norms stored for these
    rows are larger by `MAPPED_NORM_SLACK` (up to `bound`), at least `LEAST_PEAK`, and hold for each of its versions.

    Attributes:
        private_source: the rows a, CSR or mapped themselves.
        matrix: B (d, k), public.
        bound: largest l2 norm of a mapped row.
    """

    private_source: "Rows"
    matrix: NDArray[np.float64]
    bound: float

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return row_count(self.private_source), self.matrix.shape[1]

    @property
    def dtype(self) -> np.dtype[Stored]:
        """The format of a mapped row: its source's."""
        return self.private_source.dtype

    def take(self, positions: Positions) -> NDArray[Stored]:
        """The mapped rows at `positions`."""
        return clip_rows(map_rows(self.private_source, positions, self.matrix), self.bound, self.dtype)[0]

    def __repr__(self) -> str:
        return f"MappedRows(<private>, k={self.matrix.shape[1]})"


Rows: TypeAlias = NDArray[Stored] | sparse.csr_array | GridRows | MappedRows


def row_count(private_rows: Rows) -> int:
    """How many rows there are."""
    shape: Any = private_rows.shape
    return int(shape[0])


def is_computed(private_rows: Rows) -> bool:
    """Whether rows are CSR, or computed from CSR as they are asked for."""
    return isinstance(private_rows, sparse.csr_array | MappedRows)


def take_rows(private_rows: Rows, positions: Positions) -> NDArray[Stored]:
    """Some rows, dense. Never ask for all of a sparse matrix at once."""
    if isinstance(private_rows, MappedRows | GridRows):
        return private_rows.take(positions)
    if isinstance(private_rows, np.ndarray):
        return private_rows[positions]
    return np.asarray(private_rows[positions].toarray())


def row_range(private_rows: Rows, start: int, stop: int, room: Room = MEMORY) -> Rows:
    """The rows start..stop-1 as they are stored; their entries are not copied."""
    if isinstance(private_rows, MappedRows):
        private_source = row_range(private_rows.private_source, start, stop, room)
        return MappedRows(private_source, private_rows.matrix, private_rows.bound)
    if isinstance(private_rows, GridRows):
        return GridRows(private_rows.private_steps[start:stop], private_rows.steps)
    if isinstance(private_rows, np.ndarray):
        return private_rows[start:stop]
    first, last = private_rows.indptr[start], private_rows.indptr[stop]
    shape: Any = private_rows.shape
    private_starts = room.keep(private_rows.indptr[start : stop + 1] - first)
    return csr_of(
        private_rows.data[first:last], private_rows.indices[first:last], private_starts, int(shape[1])
    )


def csr_of(
    private_values: NDArray[Any], private_columns: NDArray[Any], private_starts: NDArray[Any], width: int
) -> sparse.csr_array:
    """A CSR matrix of three arrays, which are not copied."""
    private_rows = sparse.csr_array((len(private_starts) - 1, width), dtype=private_values.dtype)
    # Set one by one: the constructor copies an array that is a small piece of another.
    private_rows.data, private_rows.indices = private_values, private_columns
    private_rows.indptr = private_starts
    return private_rows


def clip_stored(
    private_block: NDArray[np.float64], bound: float, dtype: Any, steps: NDArray[np.float64] | None
) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_]]:
    """`clip_rows` to a format; with steps to float32, then rounded to their grid, whose integers are returned.

    A row is rounded to the nearest points of the grid. Where that makes it longer, so many of its entries are rounded
    towards zero instead as make it no longer than before, those first that are nearly as near to the smaller point.
    Towards zero alone, every row would be a little too short, which costs a fit more than the grid does.

    Privacy:
        A row's result depends on that row alone. What is kept is accepted by its norm, rounded up, which is at most
        that of the row before, and so at most the bound. The last rounding is towards zero and needs no test, see
        `grid.to_grid`: the norm of the row before is a bound then, should its own be rounded up further. A decoded
        entry is zero or at least a step, which is more than `LEAST_PEAK`, see `grid.grid_steps`: what `clip_rows` says
        of stored rows holds of decoded ones.
    """
    if steps is None:
        return clip_rows(private_block, bound, dtype)
    private_rows, private_norms, private_finite = clip_rows(private_block, bound)
    private_steps = near_grid(private_rows, steps, dtype, private_norms)
    private_found = row_norms(private_steps * steps)
    private_longer = np.flatnonzero(private_found > private_norms)
    if len(private_longer):
        private_steps[private_longer] = to_grid(private_rows[private_longer], steps, dtype)
        private_found[private_longer] = row_norms(private_steps[private_longer] * steps)
    return private_steps, np.minimum(private_found, private_norms), private_finite


def map_rows(private_rows: Rows, positions: Positions, matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """`B^T a` for some rows a, in float64; a sparse row is not made dense first."""
    if isinstance(private_rows, sparse.csr_array):
        return np.asarray(private_rows[positions] @ matrix, np.float64)
    return dense_product(take_rows(private_rows, positions), matrix)


def dense_product(private_block: NDArray[Any], matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """`private_block @ matrix` in float64, without a warning.

    Privacy:
        Both are filled up with zeros, the block to a multiple of `PRODUCT_ROWS` rows, the matrix of `PRODUCT_COLUMNS`
        columns: BLAS rounds what lies beyond its whole tiles differently, so one unit's arrival would change the
        rounding of those it moves there. The block has so many rows besides that the product is no small one, for which
        some BLAS have kernels of their own (OpenBLAS with AVX-512, up to 10^6 multiplications), which add up otherwise.
    """
    count, width = private_block.shape
    whole = whole_tiles(matrix)
    rows = max(count, _SMALL_PRODUCT // max(whole.size, 1) + 1)
    private_full = np.zeros((-(-rows // PRODUCT_ROWS) * PRODUCT_ROWS, width))
    private_full[:count] = private_block
    with np.errstate(all="ignore"):  # a warning must not depend on the data
        return (private_full @ whole)[:count, : matrix.shape[1]]


def whole_tiles(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """The matrix with zero columns up to a multiple of `PRODUCT_COLUMNS`; itself if it has as many."""
    missing = -matrix.shape[1] % PRODUCT_COLUMNS
    return np.pad(matrix, ((0, 0), (0, missing))) if missing else matrix


def block_length(width: int, *, lines: int = 1) -> int:
    """How many rows of `width` entries make a block of `BLOCK_ENTRIES` at most: a multiple of `lines`, not zero."""
    return max(1, BLOCK_ENTRIES // max(width, 1) // lines) * lines


def clip_rows(
    private_block: NDArray[np.float64], bound: float, dtype: Any = np.float32
) -> tuple[NDArray[Stored], NDArray[np.float64], NDArray[np.bool_]]:
    """Clip rows to a public norm and round them to `dtype`, so that the *stored* row obeys the bound.

    Args:
        private_block: rows in float64, any values; overwritten.
        bound: largest l2 norm of a stored row.
        dtype: float32 or float64.
    Returns:
        (stored rows, their l2 norms rounded up, which rows were finite). Other rows are stored as zero.
    Privacy:
        One row's result depends on that row alone. A row beyond the bound is scaled a little inside it and rounded
        towards zero, which never lengthens it. Norms are those of the stored values times
        1 + (d + 8) 2^-53, more than their float64 evaluation can be short.
        A row whose largest entry is below `LEAST_PEAK` is stored as zero, in either format. So a stored row is zero or
        has a square between 1e-48 and the bound's: beside it, squares that underflow (below 1e-307) are less than
        1e-250 of the whole for any number of columns, 1 / |a| and 1 / |a|^2 are finite, and plain float64 arithmetic on
        stored rows is as accurate as the sum above supposes, wherever a norm is taken of them again. The least float32
        that is not subnormal is 1e-14 of `LEAST_PEAK`: whether a processor takes subnormal numbers for zero does not
        show. Bounds of rows are 1e-18 and more (`data.targets`), so no clipped row falls below.
    Raises:
        Nothing, and warns of nothing: the input is private.
    """
    with np.errstate(all="ignore"):
        private_squares = np.einsum("ij,ij->i", private_block, private_block)
        private_plain = _plain(private_squares, bound, private_block.shape[1])
        private_rows = private_block.astype(dtype)
        private_norms = row_norms(private_rows)
        private_finite = np.ones(len(private_block), np.bool_)
        private_rest = np.flatnonzero(~(private_plain & (private_norms <= bound)))
        if len(private_rest):  # the same result for every row, in more steps
            private_rows[private_rest], private_norms[private_rest], private_finite[private_rest] = (
                _clip_any_rows(private_block[private_rest], bound, dtype)
            )
    return private_rows, private_norms, private_finite


def _clip_any_rows(
    private_block: NDArray[np.float64], bound: float, dtype: Any
) -> tuple[NDArray[Stored], NDArray[np.float64], NDArray[np.bool_]]:
    """`clip_rows` for rows of any length."""
    factor = _shrink_factor(dtype, private_block.shape[1])
    private_peak = np.max(np.abs(private_block), axis=1, initial=0.0)
    private_finite = np.isfinite(private_peak)
    private_kept = private_finite & (private_peak >= LEAST_PEAK)
    private_block[~private_kept] = 0.0
    private_scale = np.where(private_kept, private_peak, 1.0)
    # Scaled by the largest entry first: the squares can neither overflow nor vanish.
    private_unit = private_block / private_scale[:, None]
    private_length = np.sqrt(np.einsum("ij,ij->i", private_unit, private_unit))
    private_over = private_length * private_scale > bound
    private_shrink = factor * bound / np.where(private_length > 0, private_length, 1.0)
    private_block[private_over] = (private_unit * private_shrink[:, None])[private_over]
    private_rows = private_block.astype(dtype)
    private_norms = row_norms(private_rows)
    again = private_over | ~(private_norms <= bound)
    private_block[again & ~private_over] *= factor
    private_rows[again] = _towards_zero(private_block[again], dtype)
    private_norms[again] = row_norms(private_rows[again])
    return private_rows, private_norms, private_finite


def _plain(private_squares: NDArray[np.float64], bound: float, width: int) -> NDArray[np.bool_]:
    """Which rows of these squared norms are surely not too long, nor overflow, nor have no entry of `LEAST_PEAK`."""
    within = min(bound * bound * (1.0 - (width + 16) * 2 * _NORM_ERROR), _LARGEST_SQUARE)
    least = 1.01 * width * LEAST_PEAK**2  # a longer row has an entry of that size
    return (private_squares >= least) & (private_squares <= within)


def _shrink_factor(dtype: Any, width: int) -> float:
    """A clipped row stays this far inside, more than the rounding of its entries and of its norm can add."""
    return 1.0 - (2.0**-22 if dtype == np.float32 else (width + 16) * 2.0**-51)


def clip_sparse_rows(
    private_values: NDArray[np.float64],
    private_lengths: NDArray[np.int64],
    bound: float,
    width: int,
    dtype: Any = np.float32,
) -> tuple[NDArray[Stored], NDArray[np.float64], NDArray[np.bool_]]:
    """`clip_rows` for the stored values of consecutive CSR rows of `width`, `private_lengths` of them a row."""
    with np.errstate(all="ignore"):
        private_plain = _plain(_sparse_squares(private_values, private_lengths), bound, width)
        if not np.any(private_plain):
            return _clip_any_sparse_rows(private_values, private_lengths, bound, width, dtype)
        private_stored = private_values.astype(dtype)
        private_norms = _sparse_norms(private_stored, private_lengths)
        private_finite = np.ones(len(private_lengths), np.bool_)
        private_rest = ~(private_plain & (private_norms <= bound))
        if np.any(private_rest):  # the same result for every row, in more steps
            private_here = np.repeat(private_rest, private_lengths)
            private_stored[private_here], private_norms[private_rest], private_finite[private_rest] = (
                _clip_any_sparse_rows(
                    private_values[private_here], private_lengths[private_rest], bound, width, dtype
                )
            )
    return private_stored, private_norms, private_finite


def _clip_any_sparse_rows(
    private_values: NDArray[np.float64],
    private_lengths: NDArray[np.int64],
    bound: float,
    width: int,
    dtype: Any,
) -> tuple[NDArray[Stored], NDArray[np.float64], NDArray[np.bool_]]:
    """`clip_sparse_rows` for rows of any length."""

    def each(private_of_row: NDArray[Any]) -> NDArray[Any]:
        return np.repeat(private_of_row, private_lengths)

    factor = _shrink_factor(dtype, width)
    private_peak, private_some = np.zeros(len(private_lengths)), private_lengths > 0
    private_starts = (np.cumsum(private_lengths) - private_lengths)[private_some]
    private_peak[private_some] = np.maximum.reduceat(np.abs(private_values), private_starts)
    private_finite = np.isfinite(private_peak)
    private_kept = private_finite & (private_peak >= LEAST_PEAK)
    private_values = np.where(each(private_kept), private_values, 0.0)
    private_scale = np.where(private_kept, private_peak, 1.0)
    private_unit = private_values / each(private_scale)
    private_length = np.sqrt(_sparse_squares(private_unit, private_lengths))
    private_over = private_length * private_scale > bound
    private_shrink = factor * bound / np.where(private_length > 0, private_length, 1.0)
    private_values = np.where(each(private_over), private_unit * each(private_shrink), private_values)
    private_stored = private_values.astype(dtype)
    again = private_over | ~(_sparse_norms(private_stored, private_lengths) <= bound)
    private_values = np.where(each(again & ~private_over), private_values * factor, private_values)
    private_stored = np.where(each(again), _towards_zero(private_values, dtype), private_stored)
    return private_stored, _sparse_norms(private_stored, private_lengths), private_finite


def _sparse_squares(
    private_values: NDArray[np.float64], private_lengths: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The squared norms of consecutive CSR rows: each row's squares in their order, whatever stands beside it."""
    count = len(private_lengths)
    row = np.repeat(np.arange(count), private_lengths)
    return np.asarray(np.bincount(row, private_values * private_values, count), np.float64)


def _sparse_norms(private_stored: NDArray[Stored], private_lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """`row_norms` of consecutive CSR rows."""
    private_squares = _sparse_squares(private_stored.astype(np.float64), private_lengths)
    return np.asarray(np.sqrt(private_squares) * (1.0 + (private_lengths + 8) * _NORM_ERROR), np.float64)


def row_norms(private_rows: NDArray[Stored]) -> NDArray[np.float64]:
    """The l2 norms of stored rows, in float64, rounded up; see `clip_rows` why no square underflows."""
    private_wide = private_rows.astype(np.float64, copy=False)
    private_squares = np.einsum("ij,ij->i", private_wide, private_wide)
    return np.sqrt(private_squares) * (1.0 + (private_rows.shape[1] + 8) * _NORM_ERROR)


def row_peaks(private_rows: Rows) -> NDArray[np.float64]:
    """The l_inf norms of stored rows: exact, and those of mapped rows in every version, see `MappedRows`."""
    count = row_count(private_rows)
    private_peaks = np.zeros(count)
    if isinstance(private_rows, sparse.csr_array):
        row = np.repeat(np.arange(count), np.diff(private_rows.indptr))
        np.maximum.at(private_peaks, row, np.abs(private_rows.data).astype(np.float64))
        return private_peaks
    step = block_length(int(private_rows.shape[1]))
    for start in range(0, count, step):
        private_block = take_rows(private_rows, slice(start, start + step))
        private_peaks[start : start + step] = np.max(np.abs(private_block), axis=1, initial=0.0)
    if isinstance(private_rows, MappedRows):
        return np.maximum(private_peaks, LEAST_PEAK) * MAPPED_NORM_SLACK
    return private_peaks


def aligned_zeros(rows: int, width: int, dtype: Any = np.float32) -> NDArray[Any]:
    """A zero matrix that starts on a 64-byte boundary, so that JAX can use it without a copy."""
    return MEMORY.zeros((rows, width), dtype)


def _towards_zero(private_values: NDArray[np.float64], dtype: Any) -> NDArray[Stored]:
    """Round towards zero."""
    private_stored = private_values.astype(dtype)
    too_long = np.abs(private_stored.astype(np.float64)) > np.abs(private_values)  # so it is not zero
    # The number next to one on its way to zero has the next smaller integer for its bits.
    private_bits = private_stored.view(np.dtype(f"i{private_stored.itemsize}"))
    private_bits -= too_long
    return private_stored
