"""Columns of Arrow, and of libraries that speak it, each cell by itself. PRIVATE.

NumPy's own reading of such a column gives another type where one cell is missing: large whole numbers become floats,
and neighbours among them one number. Then one record's cell would change how others are read.
"""

from typing import Any

import numpy as np
import pandas as pd


def arrow_columns(private_given: Any) -> list[Any] | None:
    """`arrow_arrays` as arrays of NumPy, of objects where a type has none of its own; times are a series of pandas."""
    private_arrays = arrow_arrays(private_given)
    return None if private_arrays is None else [_cells(private_column) for private_column in private_arrays]


def arrow_arrays(private_given: Any) -> list[Any] | None:
    """The columns of a frame, or the one of an array or a series, as Arrow's; None for what does not speak Arrow.

    None for what is of pandas, too, and for objects of Polars.
    """
    if isinstance(private_given, pd.DataFrame | pd.Series | pd.Index | pd.api.extensions.ExtensionArray):
        return None
    if not hasattr(private_given, "__arrow_c_stream__") and not hasattr(private_given, "__arrow_c_array__"):
        return None
    stored = getattr(private_given, "dtypes", [getattr(private_given, "dtype", None)])
    if "Object" in map(str, stored):  # of Polars: Arrow would be given addresses
        return None
    import pyarrow as pa  # late: for such columns alone

    private_table = arrow_table(private_given)
    if private_table is not None:
        return list(private_table.columns)
    if isinstance(private_given, pa.Array):
        return [pa.chunked_array([private_given])]
    try:
        return [pa.chunked_array(private_given)]
    except (pa.ArrowException, TypeError, ValueError):
        return None


def arrow_table(private_frame: Any) -> Any:
    """A frame of Arrow, or of a library that speaks it, as an Arrow table; None for anything else, such as a series."""
    import pyarrow as pa  # late: for such frames alone

    if isinstance(private_frame, pa.RecordBatch):
        return pa.Table.from_batches([private_frame])
    if isinstance(private_frame, pa.Array | pa.ChunkedArray):
        return None
    try:
        return private_frame if isinstance(private_frame, pa.Table) else pa.table(private_frame)
    except (pa.ArrowException, TypeError, ValueError):
        return None


def _cells(private_column: Any) -> Any:
    """One column as its type says, whatever is missing."""
    import pyarrow as pa  # late: for such columns alone

    kind = private_column.type
    if pa.types.is_floating(kind):
        return private_column.to_numpy()
    if pa.types.is_temporal(kind):
        return pd.Series(pd.arrays.ArrowExtensionArray(private_column))
    if pa.types.is_integer(kind) and private_column.null_count == 0:  # the same numbers as below
        return private_column.to_numpy()
    return np.fromiter(map(_cell, private_column), object, len(private_column))


def _cell(private_scalar: Any) -> Any:
    """One cell as a Python value; None for one that Python cannot hold."""
    try:
        return private_scalar.as_py()
    except Exception:  # bytes that are no Unicode
        return None
