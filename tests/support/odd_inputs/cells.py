"""Cells that no loader should have to meet, and the forms in which a caller may give cells."""

import datetime
import decimal
import fractions
import functools
import uuid
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
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


def _fails(*args: object, **options: object) -> Any:
    raise RuntimeError("hush")


def failing(base: type, *methods: str) -> Any:
    """An object of some kind of which some methods or attributes fail."""
    special = dict.fromkeys(methods, _fails)
    plain = {name: property(_fails) for name in methods if name in ATTRIBUTES}
    return type("Failing", (base,), {**special, **plain})()


ATTRIBUTES = ("__array_interface__", "__array_struct__", "dtype", "shape", "ndim", "__class__")
PROTOCOLS = {
    "__array__": object,
    "__array_interface__": object,
    "__array_struct__": object,
    "__array_ufunc__": object,
    "__len__": object,
    "__iter__": object,
    "__getitem__": object,
    "__float__": float,
    "__index__": int,
    "__int__": int,
    "__hash__": int,
    "__eq__": float,
    "__bool__": object,
    "strip": str,
    "__str__": str,
    "dtype": object,
    "shape": object,
    "ndim": object,
    "__class__": object,
}


class Sequential:
    """A sequence by its methods alone, which fails when it is read."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, place: int) -> Any:
        raise RuntimeError("hush")


class Endless:
    """An array that is another one each time."""

    calls = 10

    def __array__(self, *args: Any, **options: Any) -> Any:
        Endless.calls += 1
        return np.zeros(Endless.calls)


class Unending(Sequence[float]):
    """A sequence of three numbers that never ends."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, place: Any) -> Any:
        return 0.5


class Warns:
    """An array that warns."""

    def __array__(self, *args: Any, **options: Any) -> Any:
        warnings.warn("hush", stacklevel=1)
        return np.zeros(1)


class Loud:
    """A value that warns of whatever is asked of it."""

    @staticmethod
    def said() -> None:
        warnings.warn("hush", stacklevel=1)

    def __eq__(self, other: object) -> bool:
        self.said()
        return False

    def __ne__(self, other: object) -> bool:
        self.said()
        return False

    def __hash__(self) -> int:
        self.said()
        return 1

    def __str__(self) -> str:
        self.said()
        return "loud"


class LoudNumber(float):
    """A number that warns when it is read."""

    def __float__(self) -> float:
        Loud.said()
        return float("nan")


class LoudText(str):
    """A text that warns when it is read."""

    def strip(self, *chars: Any) -> str:
        Loud.said()
        return "loud"


class _OfNoHash(type):
    """The type of types that fail when they are looked up."""

    def __eq__(cls, other: object) -> bool:
        raise RuntimeError("hush")

    def __hash__(cls) -> int:
        raise RuntimeError("hush")


class OfNoHash(metaclass=_OfNoHash):
    """A value of such a type."""


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
_RECURSIVE: list[Any] = []
_RECURSIVE.append(_RECURSIVE)
_DEEP: Any = functools.reduce(lambda inner, _: (inner,), range(100_000), ())
EVERY_ODD: dict[str, Any] = {
    **ODD,
    "a fraction too large": fractions.Fraction(10**400, 3),
    "a decimal beyond all floats": decimal.Decimal("1E+999999"),
    "a bytearray": bytearray(b"ab"),
    "a view of bytes": memoryview(b"ab"),
    "a record": np.zeros(1, [("a", int)])[0],
    "an array of no dimension": np.array("x"),
    "an empty list": [],
    "a list of lists of other lengths": [[1], [2, 3]],
    "a frame": pd.DataFrame({"a": [1, 2]}),
    "a series": pd.Series([1, 2]),
    "a dictionary": {"a": 1},
    "an iterator": iter([1, 2]),
    "a span": datetime.timedelta(1),
    "a UUID": uuid.UUID(int=1),
    "a masked cell": np.ma.masked,
    "an array of objects that fail": np.array([Raising()], dtype=object),
    "a list of what fails": [Raising(), failing(object, "__array__")],
    "a sequence that fails": Sequential(),
    "an array of changing length": Endless(),
    "an array that warns": Warns(),
    "an object that warns": Loud(),
    "a number that warns": LoudNumber(1.0),
    "a text that warns": LoudText("1"),
    "a value of a type that fails": OfNoHash(),
    "a list of complex numbers": [np.complex128(1 + 2j)] * 4,
    "a list of masked cells": [np.ma.masked] * 4,
    "a list of what warns": [Warns()] * 4,
    "a recursive list": _RECURSIVE,
    "tuples in tuples": _DEEP,
    "a NaN of a long double": np.longdouble("nan"),
    "a range beyond all memory": range(10**15),
    "a sequence that never ends": Unending(),
    **{f"an object whose {name} fails": failing(base, name) for name, base in PROTOCOLS.items()},
}


@contextmanager
def in_silence() -> Generator[None]:
    """A place in which nothing may warn: where warnings are errors, whoever reads a cell catches them as one."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        yield
    assert not heard, [(str(each.message), each.filename) for each in heard]


every_odd_cell = pytest.mark.parametrize("odd", ODD)
every_form = pytest.mark.parametrize("form", FORMS)
