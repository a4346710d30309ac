"""Rows on a public grid: small integers times a public step for each column, in a half or a quarter of the memory.

The decoded row, integers times steps, is the row from the moment that it is stored: its norm is taken of it, and every
path of the engine computes with it.
"""

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

GridStep: TypeAlias = np.int8 | np.int16
_INTERCEPT_STEPS = 64  # a power of two: the constant column is exact
_STEP_BITS = 32  # digits of a step: with the 15 of an integer, a product that float64 holds exactly
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
    private_rows: NDArray[Any], steps: NDArray[np.float64], dtype: np.dtype[Any], shift: float
) -> NDArray[GridStep]:
    """Finite rows as integers on the grid: the whole part of `|a| / s + shift`, with the sign of a.

    Args:
        private_rows: (rows, d).
        steps: (d,) of the columns.
        dtype: int8 or int16.
        shift: between 0, which rounds towards zero, and 1/2, to the nearest point.
    Privacy:
        An entry's integer depends on that entry alone. With a shift of 0 the decoded entry is no larger than the entry,
        so that the decoded row has no larger norm than the row, whichever the norm: the quotient may be rounded to a
        whole number that the entry does not reach, but then the product, which is exact, is larger than the entry, and
        the integer is made one smaller. With any shift an entry keeps its sign and moves by less than a step, unless it
        lies beyond the grid, whose end it becomes.
    Raises:
        Nothing, and warns of nothing: the input is private.
    """
    private_wide = private_rows.astype(np.float64)
    with np.errstate(all="ignore"):
        private_steps = np.minimum(np.floor(np.abs(private_wide) / steps + shift), float(np.iinfo(dtype).max))
    if shift == 0.0:
        private_steps -= private_steps * steps > np.abs(private_wide)
    return np.copysign(private_steps, private_wide).astype(dtype)


def partly_lowered(
    private_steps: NDArray[GridStep],
    private_lower: NDArray[GridStep],
    steps: NDArray[np.float64],
    private_limits: NDArray[np.float64],
) -> NDArray[GridStep]:
    """Rows on the grid of which so many entries are made the lower ones as bring the row within its limit, or all.

    Args:
        private_steps: (rows, d) integers.
        private_lower: (rows, d) the same or nearer to zero.
        steps: (d,) of the columns.
        private_limits: (rows,) of the l2 norms.
    Privacy:
        A row's result depends on that row alone. Which entries come first is read off its integers, so that over many
        rows it is no column's fate; nothing rests on it, nor on the limit being met: whoever asks looks at the norm.
    """
    width = private_steps.shape[1]
    private_squares = np.square(private_steps * steps)
    private_gains = private_squares - np.square(private_lower * steps)
    private_excess = np.sum(private_squares, axis=1) - np.square(private_limits) * (1.0 - 2.0**-40)
    private_turns = (private_steps.astype(np.int64) @ np.arange(1, 2 * width, 2)) % width
    private_sums = np.cumsum(private_gains, axis=1)
    # Of the entries from the column `turn` on, and then from the first one: what those before an entry gain.
    columns = np.arange(width)[None, :]
    private_before = private_sums - private_gains
    private_before -= np.take_along_axis(private_before, private_turns[:, None], axis=1)
    private_before += np.where(columns < private_turns[:, None], private_sums[:, -1:], 0.0)
    return np.where(private_before < private_excess[:, None], private_lower, private_steps)
