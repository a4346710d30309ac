"""Cells that declare no type, read one by one: numbers and labels. PRIVATE.

The type of an array or of a column is the caller's declaration and may be refused. A list and an array of Python
objects declare none, so what one record holds must neither raise, nor warn, nor change how another record is read. Each
of their cells is read by itself, and one that cannot be read counts as missing.
"""

import decimal
import math
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
        return float(private_cell) if isinstance(private_cell, NUMBERS) else math.nan
    except Exception:  # an integer beyond all floats, a signalling NaN, an object that fails when it is read
        return math.nan


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
    private_cells = np.asarray(features, dtype=object)
    return numbers(private_cells.ravel()).reshape(private_cells.shape)


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
