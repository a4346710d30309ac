"""Rows on a public grid: small integers times a public step for each column, in a half or a quarter of the memory.

The decoded row, integers times steps, is the row from the moment that it is stored: its norm is taken of it, and every
path of the engine computes with it.
"""

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from privopt.mechanisms.compiled import compiled

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


@compiled
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
