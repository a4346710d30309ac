"""Coded columns: one small integer a cell, the last one of a column for whatever is missing or undeclared. PRIVATE."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.data import cells
from privopt.data.rows import Positions, aligned_zeros, block_length, row_norms


def check_codes(codes: Any, levels: tuple[int, ...]) -> NDArray[Any]:
    """The codes as a numeric matrix; a masked cell becomes NaN. Looks at type and shape only.

    Raises:
        TypeError, ValueError: they are no matrix of numbers with a column for each entry of `levels`.
    """
    if isinstance(codes, np.ma.MaskedArray) and codes.dtype.kind in "biuf":
        codes = np.ma.filled(codes.astype(np.float64), np.nan)
    if sparse.issparse(codes):
        raise TypeError(
            "codes must be a dense array, got a sparse matrix: every cell of a coded table has one."
        )
    private_codes = cells.matrix(codes)
    if private_codes.ndim != 2 or private_codes.shape[1] != len(levels):
        raise ValueError(
            f"codes must have shape (rows, {len(levels)}), one column for each entry of `levels`, got "
            f"{private_codes.ndim} dimensions and {private_codes.shape[-1] if private_codes.ndim else 0} columns."
        )
    return private_codes


def store_codes(
    codes: NDArray[Any], positions: Positions, levels: tuple[int, ...]
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """The codes at some positions, in the smallest integers that hold every cell of `levels`.

    Returns:
        (stored rows, their l2 norms rounded up).
    Privacy:
        A cell depends on its own value alone: a whole number from 0 to L - 2 is kept, and anything else (NaN, huge,
        negative, a fraction, the code of a missing value) becomes L - 1. So every record has one code in each column.
    Raises:
        Nothing, and warns of nothing: the input is private.
    """
    where = np.arange(len(codes))[positions]
    private_rows: Any = aligned_zeros(len(where), len(levels), np.min_scalar_type(max(levels) - 1))
    private_norms = np.zeros(len(where))
    step = block_length(len(levels))
    for start in range(0, len(where), step):
        here = slice(start, start + step)
        private_block = codes[where[here]]
        for column, level in enumerate(levels):
            private_rows[here, column] = _column_codes(private_block[:, column], level)
        private_norms[here] = row_norms(private_rows[here])
    return private_rows, private_norms


def _column_codes(private_column: NDArray[Any], level: int) -> NDArray[np.int64]:
    """One column's cells."""
    with np.errstate(all="ignore"):
        if private_column.dtype.kind == "f":  # in which a whole number may have no float of its own
            private_wide = private_column.astype(np.float64)
            private_known = (private_wide >= 0) & (private_wide <= level - 2)
            private_known &= private_wide == np.floor(private_wide)
        else:
            private_known = (private_column >= 0) & (private_column <= level - 2)
        private_codes = np.where(private_known, private_column, 0).astype(np.int64)
    return np.where(private_known, np.minimum(private_codes, level - 2), level - 1)
