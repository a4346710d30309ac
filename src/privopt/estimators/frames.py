"""Features as they are handed over: the names of a frame's columns, and what is refused by its type alone."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import narwhals as nw
import pandas as pd
from scipy import sparse

from privopt.errors import ArgumentError, ArgumentTypeError


def column_names(X: Any) -> list[Any] | None:
    """The names of the columns of a data frame of any library that narwhals supports; None for anything else.

    Raises:
        ArgumentError: two columns have one name.
        ArgumentTypeError: the frame is lazy.
    """
    if isinstance(X, pd.DataFrame):
        names = list(X.columns)
    else:
        try:
            frame: Any = nw.from_native(X, pass_through=True)
        except Exception:  # a frame that narwhals refuses, such as one with two columns of one name
            frame = X
        if isinstance(frame, nw.LazyFrame):
            raise ArgumentTypeError(
                f"X is a lazy frame ({type(X).__module__.split('.')[0]}.{type(X).__name__}), whose rows are not there "
                "yet: collect it first, such as X.collect()."
            )
        if isinstance(frame, nw.DataFrame):
            names = list(frame.columns)
        else:
            names = list(
                getattr(X, "column_names", ())
            )  # of Arrow, also where narwhals refuses two of one name
        if not names:
            return None
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise ArgumentError(
            f"X has two columns of the name {twice[0]!r}: rename one of them, so that each coefficient belongs to one "
            "column."
        )
    return names


def check_table(X: Any) -> None:
    """Refuse what is no table of features, by its type.

    A row of a list that has another length than most is a record that cannot be read, see `data.cells`: to refuse it
    would tell of that record.

    Raises:
        ArgumentTypeError: it is a text or a dictionary.
    """
    if isinstance(X, str | bytes | Path):
        raise ArgumentTypeError(
            "X is a text: to fit to the rows of a file, open it with privopt.Table.open(path, schema) and pass the "
            "table."
        )
    if isinstance(X, Mapping) and not sparse.issparse(X):  # SciPy's dictionary of keys is a matrix
        raise ArgumentTypeError(
            "X is a dictionary: pass a data frame, pandas.DataFrame(X), or an array of shape (rows, features)."
        )
