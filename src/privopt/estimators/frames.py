"""The names of the columns of features that are handed over as a frame."""

from collections import Counter
from typing import Any

import narwhals as nw
import pandas as pd

from privopt.data.containers import as_frame
from privopt.errors import ArgumentError


def column_names(X: Any) -> list[Any] | None:
    """The names of the columns of a data frame of any library that narwhals supports; None for anything else.

    Raises:
        ArgumentError: two columns have one name.
        ArgumentTypeError: the frame is lazy.
    """
    if isinstance(X, pd.DataFrame):
        names = list(X.columns)
    else:
        frame = as_frame(X, "X")
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
