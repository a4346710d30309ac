"""A sparse matrix as it must be before compiled code may read it: every index within its bounds, every entry once.

SciPy's and our own compiled code follows `indptr` and `indices` without looking: a column beyond the last one reads or
writes other memory. SciPy checks some of this when a matrix is made, nothing when its arrays are changed afterwards.
"""

from typing import Any, NoReturn

import numpy as np
from scipy import sparse

from privopt.errors import ArgumentError

_MOST_COLUMNS = 2**31 - 2  # stored column numbers are int32, and a constant column may follow
_COMPRESSED: dict[str, Any] = {"csr": sparse.csr_array, "csc": sparse.csc_array, "bsr": sparse.bsr_array}
_MISMATCHED = "the number of its values is not that of their positions"


def checked_csr(features: Any) -> "sparse.csr_array":
    """The matrix as canonical CSR: columns in ascending order within a row, none of them twice. The caller's stays.

    Args:
        features: a SciPy sparse matrix or array of any format.
    Privacy:
        Which entries are stored is private, like their values. The line is drawn where arrays stop to describe a
        matrix: whether there is a row to which an entry belongs, a column, and a value. Arrays that do not are refused
        here, once, before anything is computed or spent, in a sentence that names the broken rule and no number from
        them. Everything a matrix can hold is taken in silence: entries out of order (they are sorted), stored twice
        (they are added) or stored as zero, values beyond the last stored entry (they are left out), and NaN and
        infinite values (see `Units`). Flags that SciPy keeps on the matrix, such as `has_canonical_format`, are not
        believed: an entry that is stored twice would escape the clip of its row.
    Raises:
        ArgumentError: the arrays do not describe a matrix of this shape.
    """
    if features.ndim != 2:
        raise ArgumentError(
            f"features must have shape (rows, d), got {features.ndim} dimensions: give one row for each record."
        )
    if features.shape[1] < 1 or features.shape[1] > _MOST_COLUMNS:
        raise ArgumentError(
            f"features must have at least one column and at most {_MOST_COLUMNS}, got {features.shape[1]}."
        )
    with np.errstate(all="ignore"):  # a warning must not depend on the data
        return _canonical(_as_csr(features))


def _as_csr(features: Any) -> "sparse.csr_array":
    """CSR whose arrays may be read: what compiled code converts is checked before, the rest afterwards."""
    if features.format in _COMPRESSED:
        return sparse.csr_array(_compressed(features))
    if features.format == "lil" and list(map(len, features.rows)) != list(map(len, features.data)):
        _refuse(_MISMATCHED)
    try:
        private_pairs = features.tocoo()
    except (ValueError, TypeError, IndexError, OverflowError):  # their texts may hold numbers from the arrays
        private_pairs = None
    if private_pairs is None:
        _refuse("its entries do not fit its shape")
    _require_indices(private_pairs.row, features.shape[0])
    _require_indices(private_pairs.col, features.shape[1])
    if not len(private_pairs.row) == len(private_pairs.col) == len(private_pairs.data):
        _refuse(_MISMATCHED)
    return sparse.csr_array(private_pairs)


def _compressed(features: Any) -> Any:
    """CSR, CSC or BSR with the same arrays, checked, and without the flags of the caller's."""
    private_starts, private_indices, private_values = features.indptr, features.indices, features.data
    if not isinstance(private_values, np.ndarray) or private_values.ndim != (
        3 if features.format == "bsr" else 1
    ):
        _refuse("`data` is not an array with the right number of dimensions")
    lines, width = features.shape
    if features.format == "csc":
        lines, width = width, lines
    if features.format == "bsr":
        height, breadth = private_values.shape[1:]
        if height < 1 or breadth < 1 or lines % height or width % breadth:
            _refuse("its blocks do not fit its shape")
        lines, width = lines // height, width // breadth
    _require_integers(private_starts)
    if len(private_starts) != lines + 1:
        _refuse("the length of `indptr` does not fit its shape")
    if int(private_starts[0]) != 0 or np.any(private_starts[1:] < private_starts[:-1]):
        _refuse("`indptr` does not start at 0, or decreases")
    entries = int(private_starts[-1])
    _require_integers(private_indices)
    if not entries <= len(private_indices) <= len(private_values):
        _refuse(_MISMATCHED)
    _require_indices(private_indices[:entries], width)
    arrays = (private_values[:entries], private_indices[:entries], private_starts)
    return _COMPRESSED[features.format](arrays, shape=features.shape)


def _require_integers(private_indices: Any) -> None:
    plain = isinstance(private_indices, np.ndarray) and private_indices.ndim == 1
    if not plain or private_indices.dtype.kind not in "iu":
        _refuse("its indices are not one-dimensional arrays of integers")


def _require_indices(private_indices: Any, width: int) -> None:
    _require_integers(private_indices)
    if len(private_indices) and not 0 <= int(private_indices.min()) <= int(private_indices.max()) < width:
        _refuse("a row or column index is negative or beyond the shape")


def _refuse(reason: str) -> NoReturn:
    raise ArgumentError(
        f"features are not a sparse matrix that can be read: {reason}. Build it anew from its entries, for instance by "
        "`scipy.sparse.coo_array((values, (rows, columns)), shape=shape).tocsr()`."
    )


def _canonical(private_matrix: "sparse.csr_array") -> "sparse.csr_array":
    """Sorted columns, each once; the matrix itself where it is so, a copy elsewhere."""
    private_ascends = private_matrix.indices[1:] > private_matrix.indices[:-1]
    private_breaks = private_matrix.indptr[1:-1]
    private_ascends[private_breaks[(private_breaks > 0) & (private_breaks < private_matrix.nnz)] - 1] = True
    if np.all(private_ascends):
        return private_matrix
    private_copy = sparse.csr_array(
        (private_matrix.data.copy(), private_matrix.indices.copy(), private_matrix.indptr.copy()),
        shape=private_matrix.shape,
    )
    private_copy.sum_duplicates()
    return private_copy
