"""Which of the declared groups a record is in: sensitive features as numbers. PRIVATE.

A record's value is the value of one column, or the tuple of several. Values are read as labels are, see
`cells.label_codes`: 1, 1.0 and "1" are one, and so are "Female" and " female". What is missing or not declared is no
group, and nothing raises because of it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from privopt.data import cells
from privopt.data.arrow_columns import arrow_columns
from privopt.data.containers import as_frame
from privopt.errors import ArgumentError

Codes = NDArray[np.int64]


def group_codes(private_features: Any, values: Sequence[Any], rows: int) -> Codes:
    """The place of each record's group among the declared values; -1 for a record that is in none of them.

    Args:
        private_features: (rows,) values, or (rows, k) for values of k columns together: an array, a series, a data
            frame, a list or a dictionary of columns.
        values: the declared groups: values, or tuples of k of them. Public.
        rows: how many records there are.
    Raises:
        ArgumentError: there is not one value for each record, or not as many columns as the declared values have.
    """
    widths = {len(value) if isinstance(value, tuple) else 1 for value in values}
    as_frame(private_features, "sensitive_features")  # which refuses one whose rows are not there yet
    private_columns = _columns(private_features, max(widths))
    if not private_columns or any(len(private_column) != rows for private_column in private_columns):
        raise ArgumentError(
            "sensitive_features must have shape (rows,), one value for each row of features, or (rows, k) for values "
            "of k columns together: give as many values as rows."
        )
    count = len(private_columns)
    if widths != {count}:
        raise ArgumentError(
            f"sensitive_features has {count} columns and sensitive_values says otherwise: with several columns every "
            "value is a tuple of one value a column, such as ('Female', 'Black')."
        )
    keys = [value if isinstance(value, tuple) else (value,) for value in values]
    known = [list(dict.fromkeys(column)) for column in zip(*keys, strict=True)]
    places = {
        tuple(column.index(one) for column, one in zip(known, key, strict=True)): code
        for code, key in enumerate(keys)
    }
    private_codes = [
        cells.label_codes(np.fromiter(private_column, object, rows), column).tolist()
        for private_column, column in zip(private_columns, known, strict=True)
    ]
    return np.fromiter((places.get(key, -1) for key in zip(*private_codes, strict=True)), np.int64, rows)


def _columns(private_features: Any, width: int) -> list[list[Any]]:
    """The columns as lists of Python values; looks at types and shapes only.

    A list is read row by row: as values, or as rows of the `width` that the declared values have. A row of another kind
    is in no group, whichever row it is.
    """
    private_arrow = arrow_columns(private_features)
    if private_arrow is not None:
        return [_cells(private_column) for private_column in private_arrow]
    private_features = cells.unmasked(private_features, labels=True)
    if isinstance(private_features, Mapping):
        return [_cells(private_column) for private_column in private_features.values()]
    if isinstance(private_features, pd.DataFrame):
        return [_cells(private_features.iloc[:, place]) for place in range(private_features.shape[1])]
    if hasattr(private_features, "dtype") or hasattr(private_features, "__array__"):
        dimensions = np.ndim(private_features)
        if dimensions == 1:
            return [_cells(private_features)]
        if dimensions == 2:
            private_array = np.asarray(private_features, dtype=object)
            return [_cells(private_array[:, place]) for place in range(private_array.shape[1])]
        return []
    private_rows = [_row(private_row, width) for private_row in private_features]
    return [[private_row[place] for private_row in private_rows] for place in range(width)]


def _row(private_row: Any, width: int) -> Any:
    """The cells of one row of a list; None for each where it has another number of them."""
    if width == 1:
        return (private_row,)
    try:
        private_cells = list(private_row) if isinstance(private_row, list | tuple) else []
    except Exception:  # it fails when it is looked at
        private_cells = []
    return private_cells if len(private_cells) == width else (None,) * width


def _cells(private_column: Any) -> list[Any]:
    """The cells of a column, each by itself: no cell settles the type of another."""
    private_column = cells.uncategorised(private_column)
    if hasattr(private_column, "dtype") or hasattr(private_column, "__array__"):
        return np.asarray(private_column, dtype=object).tolist()
    return list(private_column)
