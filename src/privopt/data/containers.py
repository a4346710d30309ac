"""What stands for many rows, by its type alone: frames whose rows are not there yet, names of files, dictionaries."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import narwhals as nw
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
