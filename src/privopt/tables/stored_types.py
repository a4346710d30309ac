"""The types that columns declare, which are public, against what the schema says of them."""

from typing import Any, Literal

import pandas as pd
import pyarrow as pa

from privopt.data import cells
from privopt.tables.column_spec import ColumnSpec
from privopt.tables.errors import TableError

Declared = Literal["text", "numbers", "truth values"]


def check_stored(spec: ColumnSpec, kind: Any) -> None:
    """Refuse a column whose declared type holds no cell that its description can read, or needs it said how.

    Args:
        spec: the column.
        kind: its type, of Arrow or of pandas. One of pandas' objects declares nothing.
    Raises:
        TableError: numbers stand where no level is one, or text stands where a number is described and the schema does
            not say how texts write numbers.
    """
    declared = _declared(kind)
    if getattr(kind, "kind", None) == "c":  # of NumPy
        raise TableError(
            f"Column {spec.name!r} is stored as {kind}: store real and imaginary parts as two columns."
        )
    if spec.kind == "num" and declared == "text" and spec.file is None and not spec.is_huge:
        raise TableError(
            f"Column {spec.name!r} is stored as text: the schema says that it holds numbers. Store it as numbers, or "
            'say in the schema how texts write them, such as "file": {"decimal": "."}.'
        )
    if spec.kind != "cat" or declared in (None, "text"):
        return
    read = [cells.flag(level) if declared == "truth values" else cells.number(level) for level in spec.levels]
    if not any(value == value for value in read):
        raise TableError(
            f"Column {spec.name!r} is stored as {declared}, and none of its levels is one, such as {spec.levels[0]!r}: "
            "give the levels as the table writes them, or store the column as text."
        )


def _declared(kind: Any) -> Declared | None:
    """What a type says of its cells; None where it says nothing, or that they are something else."""
    if isinstance(kind, pd.ArrowDtype):
        kind = kind.pyarrow_dtype
    if not isinstance(kind, pa.DataType):
        if isinstance(kind, pd.StringDtype):
            return "text"
        if isinstance(kind, pd.CategoricalDtype):
            return _declared(getattr(kind.categories, "dtype", None))
        if pd.api.types.is_bool_dtype(kind):
            return "truth values"
        return "numbers" if pd.api.types.is_numeric_dtype(kind) else None
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if str(kind) in ("string", "large_string", "string_view"):
        return "text"
    if pa.types.is_boolean(kind):
        return "truth values"
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
    return "numbers" if is_number else None
