"""The column to predict, as the labels or numbers a model takes."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from privopt.tables.cells import level_codes, read_columns
from privopt.tables.schema import Schema
from privopt.tables.values import read_values


class TargetReading(Protocol):
    """What is read of a row as its target where that is more than one column says. PRIVATE.

    A value that can be pickled, and that is told apart from others by how it prints.
    """

    @property
    def columns(self) -> Sequence[str]:
        """The columns that it reads."""
        ...

    def __call__(self, private_table: Any) -> NDArray[Any]:
        """The target of every row, NaN for a record that is to count as zero.

        Raises:
            TableError: a column is stored as something else.
        """
        ...


def read_target(table: Any, schema: Schema, target: str | None = None) -> NDArray[Any]:
    """The target of every row, in the terms of `schema.target_encoding(target)`.

    Returns:
        For a flag 0.0 and 1.0; for a category its level as text; for a number the number itself,
        neither clipped nor scaled. What is missing or unknown is NaN, or an empty text, which is no class: a private
        model counts such a record as zero.

    Raises:
        TableError: the schema or the table has no such column, or it is stored as something else.
    """
    encoding = schema.target_encoding(target)
    column = schema.column(encoding.column)
    private_column = read_columns(table, [column])[0][column.name]
    if column.kind == "cat":
        labels = np.asarray([*column.levels, ""])
        return labels[level_codes(private_column, column)]
    private_values = read_values(private_column, column)
    return np.where(np.isfinite(private_values), private_values, np.nan)
