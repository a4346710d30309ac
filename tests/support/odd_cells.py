"""Cells that no loader should have to meet, and the forms in which a caller may give cells."""

import datetime
import decimal
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest


class Raising:
    """A value that fails whatever is asked of it."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("hush")

    def __hash__(self) -> int:
        return hash(1)  # so that a look-up of 1 has to compare

    def __bool__(self) -> bool:
        raise RuntimeError("hush")

    def __float__(self) -> float:
        raise RuntimeError("hush")

    def __str__(self) -> str:
        raise RuntimeError("hush")


ODD: dict[str, Any] = {
    "an integer beyond all floats": 10**400,
    "an integer of too many digits": 10**5000,
    "a complex number": 1 + 2j,
    "a complex scalar of numpy": np.complex128(1 + 2j),
    "a long double beyond all floats": np.longdouble("1e4000"),
    "an object that fails": Raising(),
    "a type": int,
    "a date far away": np.datetime64("999999-01-01"),
    "a date": datetime.date(2020, 1, 1),
    "a signalling NaN": decimal.Decimal("sNaN"),
    "nothing": None,
    "pandas.NA": pd.NA,
    "no time": pd.NaT,
    "a list": [1, [2]],
    "an array": np.zeros((2, 2), complex),
    "a set": {1, 2},
    "a surrogate": "\ud800",
    "bytes": b"\xff",
}
FORMS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "array": lambda values: np.fromiter(values, dtype=object),
    "series": lambda values: pd.Series(values, dtype=object),
}
every_odd_cell = pytest.mark.parametrize("odd", ODD)
every_form = pytest.mark.parametrize("form", FORMS)
