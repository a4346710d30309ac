"""Odd ways to declare what is public: bounds, names of columns, options, users' keys, and what comes of each.

An entry is (what is given, what comes of it). What comes of it is a pattern of the one sentence that refuses it, before
anything is spent; or, behind `done(...)`, what the fitted model then says that it did.
"""

import dataclasses
import datetime
import decimal
import math
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from sklearn.base import clone

from privopt.errors import notes_of
from privopt.estimators.linear import LogisticRegression
from privopt.ledger.account import Account
from privopt.solvers.gradient_descent import GradientDescent

ROWS = 60
AGE, INCOME = np.linspace(20.0, 90.0, ROWS), np.linspace(0.0, 5e4, ROWS)[::-1]
X = np.stack([AGE, INCOME], axis=1)
Y = (AGE > 55).astype(int)
FRAME = pd.DataFrame(X, columns=["age", "income"])
AS_MEANT = ([0.0, 0.0], [110.0, 1e5])


@dataclasses.dataclass(frozen=True)
class Done:
    """What a fit says that it did."""

    what: Any


def done(what: Any) -> Done:
    """What a fit says that it did."""
    return Done(what)


class Came(NamedTuple):
    """What came of a declaration: the sentence of a refusal, or what was done; and how many fits were paid for."""

    said: str
    what: Any
    spent: int
    notices: tuple[str, ...] = ()


def _model(**changes: Any) -> LogisticRegression:
    given: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "bounds": (0, 1e5), "classes": [0, 1]}
    return LogisticRegression(**{**given, "solver": GradientDescent(steps=2), **changes})


def _came(account: Account, make: Any, what: Any) -> Came:
    """What comes of a fit, which is made by `make()`."""
    try:
        model = make()
    except (TypeError, ValueError) as error:
        spent = len(account.entries) + len(notes_of(error))  # a note says what was spent
        return Came(f"{type(error).__name__}: {error}", None, spent)
    return Came("", what(model), len(account.entries), model.plan_.notices)


def of_bounds(bounds: Any, data: Any = FRAME) -> Came:
    """What comes of bounds: the ends of each feature."""
    account = Account(1.0, 1e-5, composition="basic")
    return _came(
        account,
        lambda: _model(bounds=bounds, account=account).fit(data, Y),
        lambda model: tuple(ends.tolist() for ends in model.bounds_),
    )


def of_names(fitted: Any, predicted: Any) -> Came:
    """What comes of features with names: those that the model knows, and whether it predicts."""
    account = Account(1.0, 1e-5, composition="basic")

    def names_after_predicting(model: Any) -> Any:
        names = getattr(model, "feature_names_in_", None)
        try:
            model.predict(predicted)
        except (TypeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"
        return None if names is None else list(names)

    return _came(account, lambda: _model(account=account).fit(fitted, Y), names_after_predicting)


def of_options(options: dict[str, Any]) -> Came:
    """What comes of arguments: those that the model has, printed."""
    account = Account(1.0, 1e-5, composition="basic")
    return _came(
        account, lambda: _model(account=account, **options).fit(X, Y), lambda model: model.privacy_.n
    )


def of_keys(keys: Any) -> Came:
    """What comes of users' keys: how many users there are."""
    account = Account(1.0, 1e-5, composition="basic")
    model = _model(account=account, max_records_per_user=5)
    return _came(account, lambda: clone(model).fit(X, Y, groups=keys), lambda model: model.privacy_.n)


TWICE = "can be read in two ways: as pairs per feature, the first feature from 0 to 110"
BOUNDS: dict[str, tuple[Any, str | Done]] = {
    "a list of pairs": ([(0, 110), (0, 1e5)], done(AS_MEANT)),
    "a dictionary": ({"age": (0, 110), "income": (0, 1e5)}, done(AS_MEANT)),
    "a dictionary in another order": ({"income": (0, 1e5), "age": (0, 110)}, done(AS_MEANT)),
    "a dictionary of lists": ({"income": [0, 1e5], "age": [0, 110]}, done(AS_MEANT)),
    "a tuple of two arrays": ((np.array([0, 0]), np.array([110, 1e5])), done(AS_MEANT)),
    "a tuple of two lists": (([0, 0], [110, 1e5]), done(AS_MEANT)),
    "a list of lists": ([[0, 110], [0, 1e5]], TWICE),
    "a tuple of tuples": (((0, 110), (0, 1e5)), TWICE),
    "an array of 2 x 2": (np.array([[0, 110], [0, 1e5]]), TWICE),
    "a list of arrays": ([np.array([0, 110]), np.array([0, 1e5])], TWICE),
    "two numbers": ((0, 1e5), done(([0.0, 0.0], [1e5, 1e5]))),
    "a list of two numbers": ([0, 1e5], done(([0.0, 0.0], [1e5, 1e5]))),
    "an array of two numbers": (np.array([0, 1e5]), done(([0.0, 0.0], [1e5, 1e5]))),
    "a number and an array": ((0, np.array([110, 1e5])), done(AS_MEANT)),
    "NumPy scalars in pairs": (
        [(np.int64(0), np.int64(110)), (np.float32(0), np.float32(1e5))],
        done(AS_MEANT),
    ),
    "one feature of one value": ([(5, 5), (0, 1e5)], done(([5.0, 0.0], [5.0, 1e5]))),
    "a misspelt name": (
        {"age": (0, 110), "incom": (0, 1e5)},
        "lacks 'income' and names 'incom' \\(did you mean 'inc",
    ),
    "a name that is not there": (
        {"age": (0, 110), "income": (0, 1), "sex": (0, 1)},
        "names 'sex', which the feat",
    ),
    "a name missing": ({"age": (0, 110)}, "it lacks 'income'"),
    "three pairs": ([(0, 1), (0, 1), (0, 1)], "must be numbers or arrays of 2 entries.*got 3 pairs"),
    "one pair in a list": ([(0, 1)], "or 2 pairs \\(low, high\\), got 1 pairs"),
    "triples": ([(0, 1, 2), (3, 4, 5)], "must be numbers or arrays of 2 entries"),
    "texts": ([("a", "b"), (0, 1)], "got list that is none"),
    "a text": ("01", "got str that is none"),
    "a set": ({0, 1}, "got set that is none"),
    "one number": (5, "got int that is none"),
    "a frame": (FRAME, "got DataFrame that is none"),
    "no end": ([(0, 110), (0, None)], "got list that is none"),
    "an end of 400 digits": ([(0, 110), (0, 10**400)], "got list that is none"),
    "turned round": ([(110, 0), (0, 1e5)], "must be finite with low <= high"),
    "an infinite end": ([(0, 110), (0, math.inf)], "must be finite with low <= high"),
    "nothing can be learned": ([(1, 1), (2, 2)], "must have low < high for at least one feature"),
    "rows of several lengths": ([(0, 110), (0,)], "must be numbers or arrays of 2 entries"),
}

_TURNED = FRAME[["income", "age"]]
_OTHER_NAMES = FRAME.rename(columns={"age": "years"})
_ORDER = "ValueError: The feature names should match those that were passed during fit"
_UNNAMED = "X has no names of columns"
NAMED = ["age", "income"]


def _polars(frame: pd.DataFrame) -> Any:
    import polars

    return polars.DataFrame({name: frame[name].to_numpy() for name in frame})


def _arrow(frame: pd.DataFrame) -> Any:
    return pa.table({name: frame[name].to_numpy() for name in frame})


def _batch(frame: pd.DataFrame) -> Any:
    return pa.RecordBatch.from_pydict({name: frame[name].to_numpy() for name in frame})


def _twice(names: list[Any]) -> pd.DataFrame:
    return pd.DataFrame(X, columns=names)


NAMES: dict[str, tuple[Any, str | Done]] = {
    "pandas": (lambda: (FRAME, FRAME), done(NAMED)),
    "pandas in another order": (lambda: (FRAME, _TURNED), done(_ORDER)),
    "pandas with another name": (lambda: (FRAME, _OTHER_NAMES), done(_ORDER)),
    "polars": (lambda: (_polars(FRAME), _polars(FRAME)), done(NAMED)),
    "polars in another order": (lambda: (_polars(FRAME), _polars(_TURNED)), done(_ORDER)),
    "polars with another name": (lambda: (_polars(FRAME), _polars(_OTHER_NAMES)), done(_ORDER)),
    "polars after pandas": (lambda: (FRAME, _polars(FRAME)), done(NAMED)),
    "polars after pandas in another order": (lambda: (FRAME, _polars(_TURNED)), done(_ORDER)),
    "Arrow": (lambda: (_arrow(FRAME), _arrow(FRAME)), done(NAMED)),
    "Arrow in another order": (lambda: (_arrow(FRAME), _arrow(_TURNED)), done(_ORDER)),
    "Arrow with another name": (lambda: (_arrow(FRAME), _arrow(_OTHER_NAMES)), done(_ORDER)),
    "Arrow after pandas": (lambda: (FRAME, _arrow(FRAME)), done(NAMED)),
    "a record batch": (lambda: (_batch(FRAME), _batch(FRAME)), done(NAMED)),
    "a record batch in another order": (lambda: (_batch(FRAME), _batch(_TURNED)), done(_ORDER)),
    "a lazy frame": (
        lambda: (_polars(FRAME).lazy(), FRAME),
        "is a lazy frame \\(polars.LazyFrame\\).*collect",
    ),
    "a name twice": (lambda: (_twice(["a", "a"]), FRAME), "two columns of the name 'a'"),
    "a number as name twice": (lambda: (_twice([1, 1]), FRAME), "two columns of the name 1"),
    "a name twice in Arrow": (
        lambda: (pa.Table.from_arrays([pa.array(AGE), pa.array(INCOME)], names=["a", "a"]), FRAME),
        "two columns of the name 'a'",
    ),
    "numbers as names": (lambda: (_twice([3, 7]), X), done(None)),
    "names with blanks": (lambda: (_twice(["a ", " a"]), _twice(["a ", " a"])), done(["a ", " a"])),
    "capital letters": (lambda: (_twice(["a", "A"]), _twice(["A", "a"])), done(_ORDER)),
    "letters of other alphabets": (
        lambda: (_twice(["größe", "年"]), _twice(["größe", "年"])),
        done(["größe", "年"]),
    ),
    "no name": (lambda: (_twice(["", "b"]), _twice(["", "b"])), done(["", "b"])),
    "an array": (lambda: (X, X), done(None)),
    "lists": (lambda: (X.tolist(), X.tolist()), done(None)),
    "a dictionary": (lambda: ({"age": AGE, "income": INCOME}, FRAME), "X is a dictionary: pass a data frame"),
    "the name of a file": (lambda: ("table.csv", FRAME), "X is a text.*Table.open"),
    "the path of a file": (lambda: (Path("table.csv"), FRAME), "X is a text.*Table.open"),
    "rows of several lengths": (
        lambda: ([[1.0, 2.0], [1.0]] * 30, X),  # a short row counts as missing
        done(None),
    ),
    "one row": (lambda: (X[0], FRAME), "Expected 2D array, got 1D array"),
    "a number": (lambda: (7, FRAME), "Expected 2D array, got 0D array"),
}
OPTIONS: dict[str, tuple[dict[str, Any], str | Done]] = {
    "seed": ({"seed": 3}, "no argument 'seed': it is called 'random_state' here"),
    "sample_weight": ({"sample_weight": 1}, "no argument 'sample_weight' yet: records are weighted alike"),
    "class_weight": ({"class_weight": "balanced"}, "no argument 'class_weight' yet"),
    "offset": ({"offset": 1}, "no argument 'offset' yet: in a linear regression subtract"),
    "exposure": ({"exposure": 1}, "no argument 'exposure' yet: give the count divided by"),
    "a misspelt argument": ({"epsilonn": 1}, "no argument 'epsilonn': did you mean 'epsilon'"),
    "an argument of another library": ({"data_norm": 1}, "no argument 'data_norm': it has epsilon, delta"),
    "a generator": ({"random_state": np.random.default_rng(3)}, "got a Generator.*not secret"),
    "an old generator": ({"random_state": np.random.RandomState(3)}, "got a RandomState.*not secret"),
    "a negative seed": ({"random_state": -1}, "random_state must be at least 0, got -1"),
    "a seed that is no integer": (
        {"random_state": 1.5},
        "random_state must be an integer or None, got a float",
    ),
    "a text as epsilon": ({"epsilon": "1"}, "epsilon must be a number, got '1'"),
    "no epsilon": ({"epsilon": None}, "epsilon is missing"),
    "an epsilon of 0": ({"epsilon": 0}, "epsilon must be positive"),
    "NaN as epsilon": ({"epsilon": math.nan}, "epsilon must be positive"),
    "a negative epsilon": ({"epsilon": -1.0}, "epsilon must be positive"),
    "True as epsilon": ({"epsilon": True}, "epsilon must be a number, got True"),
    "no delta": ({"delta": None}, "delta is missing"),
    "a delta of 0": ({"delta": 0}, "delta must be above 0"),
    "a delta of 1": ({"delta": 1}, "delta must be at least 0 and below 1"),
    "a percentage as delta": ({"delta": "1%"}, "delta must be a number, got '1%'"),
    "a relation in capitals": ({"relation": "Replace-One"}, "relation must be 'replace-one' or"),
    "no n": ({"relation": "add-or-remove-one"}, "n is missing: under add-or-remove-one"),
    "a float as n": ({"n": 60.0}, "n must be an integer"),
    "an n of 1": ({"n": 1}, "n must be at least 2 units|more"),
    "one class": ({"classes": [1]}, "at least two different labels, got \\[1\\]"),
    "labels of NumPy": ({"classes": [np.int64(0), np.int64(1)]}, done(ROWS)),
    "a label twice": ({"classes": [0, 0]}, "at least two different labels"),
    "classes from the wrong word": ({"classes": "from-y"}, "classes must be a list of labels or 'from_y'"),
    "a text as switch": ({"fit_intercept": "yes"}, "fit_intercept must be True or False"),
    "a solver that does not exist": ({"solver": "adam"}, "adam"),
    "both kinds of bounds": ({"loose_bounds": (-1, 1)}, "bounds and loose_bounds were both given"),
    "an epsilon of 400 digits": ({"epsilon": 10**400}, "epsilon is larger than any number"),
    "a delta of 400 digits": ({"delta": 10**400}, "delta is larger than any number"),
    "an n of 400 digits": ({"n": 10**400}, "n = 1.* lies between 60 and twice that|n must be at most"),
    "an alpha of 400 digits": ({"alpha": 10**400}, "alpha is larger than any number"),
    "a row bound of 400 digits": ({"row_bound": 10**400}, "row_bound is larger than any number"),
    "a very small epsilon": ({"epsilon": 1e-4}, done(ROWS)),
}

_PERSON = np.arange(ROWS) // 3  # 20 users
KEYS: dict[str, tuple[Any, str | Done]] = {
    "integers": (_PERSON, done(20)),
    "a list": (_PERSON.tolist(), done(20)),
    "texts of them": ([str(one) for one in _PERSON], done(20)),
    "floats": (_PERSON.astype(float), done(20)),
    "floats and integers": ([float(one) if one % 2 else int(one) for one in _PERSON], done(20)),
    "integers and their texts": (
        [str(one) if place % 2 else one for place, one in enumerate(_PERSON)],
        done(20),
    ),
    "decimals": ([decimal.Decimal(int(one)) for one in _PERSON], done(20)),
    "texts with a decimal point": ([f"{one}.0" for one in _PERSON], done(20)),
    "texts and other texts": (
        [f"{one}.0" if place % 3 else str(one) for place, one in enumerate(_PERSON)],
        done(40),
    ),
    "dates": ([datetime.date(2020, 1, 1 + one) for one in _PERSON], done(20)),
    "dates and their midnights": (
        [
            datetime.date(2020, 1, 1 + one) if place % 2 else datetime.datetime(2020, 1, 1 + one)
            for place, one in enumerate(_PERSON)
        ],
        done(20),
    ),
    "identifiers": ([uuid.UUID(int=int(one) + 1) for one in _PERSON], done(20)),
    "tuples": ([("north", int(one)) for one in _PERSON], done(20)),
    "two columns": (np.stack([_PERSON // 5, _PERSON % 5], axis=1), done(20)),
    "a frame of two columns": (pd.DataFrame({"a": _PERSON // 5, "b": _PERSON % 5}), done(20)),
    "a series": (pd.Series(_PERSON), done(20)),
    "categories": (pd.Series(_PERSON).astype("category"), done(20)),
    "an index that is turned round": (pd.Series(_PERSON, index=range(ROWS)[::-1]), done(20)),
    "NA in a third": (pd.Series(_PERSON, dtype="Int64").where(_PERSON % 3 > 0), done(13)),
    "None in a half": ([None if one % 2 else int(one) for one in _PERSON], done(10)),
    "empty texts": (["" if one % 2 else str(one) for one in _PERSON], done(10)),
    "blanks around": ([f" {one}" if place % 3 else str(one) for place, one in enumerate(_PERSON)], done(40)),
    "capital letters": ([f"{'A' if place % 3 else 'a'}{one}" for place, one in enumerate(_PERSON)], done(40)),
    "lists as keys": ([[int(one)] for one in _PERSON], done(20)),
    "sets, which cannot be hashed": ([{int(one)} for one in _PERSON], "groups|users|units"),
    "a mask": (np.ma.array(_PERSON, mask=_PERSON % 2), done(10)),
    "a mask of texts": (np.ma.array(_PERSON.astype(str), mask=_PERSON % 2), done(10)),
    "the name of a column": ("user", "groups is a text: give one user key for each row"),
    "as many letters as rows": ("u" * ROWS, "groups is a text"),
    "a dictionary": ({"user": _PERSON}, "groups is a dictionary"),
    "UUIDs of Arrow": (
        pa.chunked_array([pa.array([uuid.UUID(int=int(one)).bytes for one in _PERSON], pa.uuid())]),
        done(20),
    ),
    "all missing": ([None] * ROWS, "groups|users|units"),
    "one user": ([1] * ROWS, "at least 2"),
    "too few keys": (_PERSON[:-1], "one user key for each row"),
    "a key for each column": (_PERSON[:2], "one user key for each row"),
    "no columns": (np.zeros((ROWS, 0)), "one user key for each row"),
    "a deep array": (np.zeros((ROWS, 2, 2)), "one user key for each row"),
}
KINDS = {"bounds": BOUNDS, "names of columns": NAMES, "options": OPTIONS, "users' keys": KEYS}
