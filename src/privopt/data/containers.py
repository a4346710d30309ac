"""What stands for many rows, by its type alone: frames whose rows are not there yet, names of files, dictionaries."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import pandas as pd
from scipy import sparse

from privopt.errors import ArgumentError, ArgumentTypeError


def as_frame(given: Any, name: str) -> Any:
    """A data frame of any library that narwhals supports, as one of narwhals; anything else as it is.

    Args:
        given: what the caller gave.
        name: of the argument.
    Raises:
        ArgumentTypeError: the frame is lazy.
    """
    try:
        frame: Any = nw.from_native(given, pass_through=True)
    except Exception:  # a frame that narwhals refuses, such as one with two columns of one name
        return given
    if isinstance(frame, nw.LazyFrame):
        raise ArgumentTypeError(
            f"{name} is a lazy frame ({type(given).__module__.split('.')[0]}.{type(given).__name__}), whose rows are "
            f"not there yet: collect it first, such as {name}.collect()."
        )
    return frame


def check_features(given: Any, name: str) -> None:
    """Refuse what is no table of features, by its type.

    A row of a list that has another length than most is a record that cannot be read, see `data.cells`: to refuse it
    would tell of that record.

    Args:
        given: what the caller gave.
        name: of the argument.
    Raises:
        ArgumentTypeError: it is a text, a dictionary or a lazy frame.
    """
    if isinstance(given, str | bytes | Path):
        raise ArgumentTypeError(
            f"{name} is a text: to fit to the rows of a file, open it with privopt.Table.open(path, schema) and pass "
            "the table."
        )
    if isinstance(given, Mapping) and not sparse.issparse(given):  # SciPy's dictionary of keys is a matrix
        raise ArgumentTypeError(
            f"{name} is a dictionary: pass a data frame, pandas.DataFrame({name}), or an array of shape (rows, "
            "features)."
        )
    as_frame(given, name)


def check_column(given: Any, name: str, what: str) -> None:
    """Refuse what holds no value for each row, by its type, such as the name of a column.

    Args:
        given: what the caller gave.
        name: of the argument.
        what: one of its values is, in words.
    Raises:
        ArgumentError: it is a text, a dictionary or a lazy frame.
    """
    if isinstance(given, str | bytes | Path | Mapping):
        kind = "a dictionary" if isinstance(given, Mapping) else "a text"
        raise ArgumentError(f"{name} is {kind}: give {what} for each row, such as the column frame['name'].")
    as_frame(given, name)


# ---- Columns of Arrow, and of libraries that speak it, each cell by itself ---------------------------------
# NumPy's own reading of such a column gives another type where one cell is missing: large whole numbers become floats,
# and neighbours among them one number. Then one record's cell would change how others are read.


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
