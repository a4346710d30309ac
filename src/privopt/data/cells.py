"""Cells that declare no type, read one by one: numbers and labels. PRIVATE.

The type of an array or of a column is the caller's declaration and may be refused. A list and an array of Python
objects declare none, so what one record holds must neither raise, nor warn, nor change how another record is read. Each
of their cells is read by itself, and one that cannot be read counts as missing.
"""

import decimal
import math
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from privopt.data.sparse_format import checked_csr
from privopt.errors import ArgumentError, ArgumentTypeError

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

NUMBERS = (bool, int, float, np.bool_, np.integer, np.floating, decimal.Decimal)


def number(private_cell: Any) -> float:
    """One cell as a number; NaN for what is none. A text is a number if it is written as one."""
    try:
        if isinstance(private_cell, str):
            private_word = private_cell.strip().lower()
            if private_word in ("true", "false"):
                return float(private_word == "true")
            return math.nan if "_" in private_word else float(private_word)  # Python would read "1_000"
        return float(private_cell) if isinstance(private_cell, NUMBERS) else _of_no_dimension(private_cell)
    except Exception:  # an integer beyond all floats, a signalling NaN, an object that fails when it is read
        return math.nan


def _of_no_dimension(private_cell: Any) -> float:
    """The number in an array of no dimension; NaN for anything else."""
    if not hasattr(private_cell, "__array__") or np.ma.is_masked(private_cell):
        return math.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        private_array = np.asarray(private_cell)
        return (
            float(private_array)
            if private_array.ndim == 0 and private_array.dtype.kind in "biuf"
            else math.nan
        )


def numbers(private_cells: Iterable[Any]) -> Floats:
    """Every cell as a number; NaN for what is none."""
    with np.errstate(all="ignore"):
        return np.fromiter((number(private_cell) for private_cell in private_cells), np.float64)


def matrix(features: Any) -> Any:
    """Features as an array or a canonical CSR matrix of the type that they declare; a list is read cell by cell.

    Raises:
        TypeError, ValueError: they declare a type that is none of real numbers, such as objects, texts or complex
            numbers, or the arrays of a sparse matrix do not describe one.
    """
    if sparse.issparse(features):
        _check_numeric(features.dtype, "features")
        return checked_csr(features)
    if isinstance(features, pd.DataFrame):
        return _frame(features)
    if _declares_type(features):
        private_array = np.asarray(features)
        _check_numeric(private_array.dtype, "features")
        return private_array
    if not isinstance(features, Sequence) or isinstance(features, str | bytes):
        private_cells = np.asarray(features, dtype=object)
        return numbers(private_cells.ravel()).reshape(private_cells.shape)
    return _listed(features)


def _listed(private_rows: Sequence[Any]) -> Floats:
    """A list of rows as a matrix, or one of numbers as a vector; what most of its entries are says which, and d.

    Privacy:
        That is public, as the type of an array is. An entry of another length, or of another kind, is a record that
        cannot be read: all its cells are missing.
    """
    private_read = [_row(private_row) for private_row in private_rows]
    private_lengths = Counter(-1 if private_row is None else len(private_row) for private_row in private_read)
    width = max(private_lengths, key=lambda length: (private_lengths[length], length), default=-1)
    if width < 0:
        return numbers(
            private_row if private_cells is None else None
            for private_row, private_cells in zip(private_rows, private_read, strict=True)
        )
    private_missing = [None] * width
    return numbers(
        private_cell
        for private_cells in private_read
        for private_cell in (
            private_missing if private_cells is None or len(private_cells) != width else private_cells
        )
    ).reshape(len(private_read), width)


def _row(private_row: Any) -> list[Any] | None:
    """The cells of a row; None for what is none, such as a number, a text or an object that fails."""
    try:
        if isinstance(private_row, list | tuple):
            return list(private_row)
        if isinstance(private_row, str | bytes | bytearray | memoryview | np.generic | decimal.Decimal):
            return None
        if isinstance(private_row, Sequence):
            return list(private_row)
        if isinstance(private_row, np.ma.MaskedArray):
            return list(private_row) if private_row.ndim == 1 else None  # with what is masked in it
        if not hasattr(private_row, "__array__"):
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            private_array = np.asarray(private_row)
            return list(private_array) if private_array.ndim == 1 else None
    except Exception:
        return None


def targets(private_targets: Any, *, labels: bool) -> NDArray[Any]:
    """Targets as an array: labels as they are given, numbers as numbers.

    Raises:
        TypeError, ValueError: numbers are wanted, and a type is declared that is none of real numbers.
    """
    dtype = getattr(private_targets, "dtype", None)
    if not _declares_type(private_targets):
        private_cells = _objects(private_targets)
    elif isinstance(dtype, pd.api.extensions.ExtensionDtype):
        if not labels and not _is_numeric(dtype):
            _refuse(dtype, "targets")
        private_cells = np.asarray(private_targets, dtype=object)
    else:
        private_cells = np.asarray(private_targets)
    if labels:
        return private_cells
    if private_cells.dtype.kind == "O":
        return numbers(private_cells.ravel()).reshape(private_cells.shape)
    _check_numeric(private_cells.dtype, "targets")
    return private_cells


def label_codes(private_labels: NDArray[Any], classes: Sequence[Any]) -> Codes:
    """Position of each label among the classes, -1 for a label that is none of them."""
    if private_labels.dtype.kind == "O":
        position = {label: code for code, label in enumerate(classes)}
        return np.fromiter((_code(position, label) for label in private_labels), np.int64)
    known = np.asarray(classes)
    order = np.argsort(known)
    place = np.minimum(np.searchsorted(known[order], private_labels), len(classes) - 1)
    return np.where(known[order][place] == private_labels, order[place], -1)


def _declares_type(values: Any) -> bool:
    """Whether an array, a series or the like says of which type its cells are."""
    return hasattr(values, "dtype") or hasattr(values, "__array__")


def _objects(private_cells: Any) -> NDArray[Any]:
    """A list as an array of its cells, whatever they are."""
    return np.fromiter(private_cells, dtype=object)


def _is_numeric(dtype: Any) -> bool:
    return pd.api.types.is_numeric_dtype(dtype) and not pd.api.types.is_complex_dtype(dtype)


def _frame(private_frame: pd.DataFrame) -> NDArray[Any]:
    """A data frame as an array of numbers, by the types of its columns alone."""
    odd = [str(name) for name, dtype in private_frame.dtypes.items() if not _is_numeric(dtype)]
    if odd:
        raise ArgumentTypeError(
            f"the columns {', '.join(odd)} do not hold numbers: encode them first, by public rules (TabularEncoder)."
        )
    dtypes = [dtype for dtype in private_frame.dtypes if isinstance(dtype, np.dtype)]
    if len(dtypes) == len(private_frame.columns) > 0:
        return private_frame.to_numpy(np.result_type(*dtypes))
    return private_frame.to_numpy(np.float64, na_value=np.nan)


def _check_numeric(dtype: Any, name: str) -> None:
    if dtype.kind not in "biuf":
        _refuse(dtype, name)


def _refuse(dtype: Any, name: str) -> None:
    if dtype.kind == "c":  # scikit-learn's words and type of exception
        raise ArgumentError(
            f"Complex data not supported: {name} have dtype {dtype}, give real and imaginary parts as two columns."
        )
    raise ArgumentTypeError(
        f"{name} must be numbers, got dtype {dtype}: encode other columns first, by public rules "
        "(TabularEncoder)."
    )


def _code(position: Mapping[Any, int], private_label: Any) -> int:
    try:
        return position.get(private_label, -1)
    except Exception:  # it cannot be hashed or compared, so it is no class
        return -1
