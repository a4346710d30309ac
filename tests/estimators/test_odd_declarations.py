"""What comes of odd declarations: one sentence and nothing spent, or what was meant and one payment."""

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.support.odd_inputs import declarations as odd
from tests.support.odd_inputs.declarations import Came, Done

from privopt import Units
from privopt.errors import ArgumentError, ArgumentTypeError

TENTH = 10


def some(listed: Mapping[str, Any]) -> list[Any]:
    """The names of a list, for `parametrize`: a tenth of them at once, the others in the audit."""
    return [
        pytest.param(name, marks=() if place % TENTH == 0 else (pytest.mark.audit,))
        for place, name in enumerate(listed)
    ]


def check(came: Came, expected: str | Done) -> None:
    """What came is what is expected, and paid for exactly where something was fitted."""
    if isinstance(expected, Done):
        assert came.said == ""
        assert came.spent == 1
        if isinstance(expected.what, str):
            assert str(came.what).startswith(expected.what)
        else:
            assert came.what == expected.what
    else:
        assert re.search(expected, came.said, re.DOTALL), came.said or came.what
        assert came.spent == 0
        assert "\n" not in came.said.strip()


@pytest.mark.parametrize("name", some(odd.BOUNDS))
def test_bounds(name: str) -> None:
    bounds, expected = odd.BOUNDS[name]
    came = odd.of_bounds(bounds)
    check(came, expected)
    same = name == "one feature of one value"
    assert any("'age' (5) have the same lower and upper end" in notice for notice in came.notices) is same


@pytest.mark.parametrize("name", some(odd.NAMES))
def test_names_of_columns(name: str) -> None:
    if "polars" in name or "lazy" in name:
        pytest.importorskip("polars")
    frames, expected = odd.NAMES[name]
    check(odd.of_names(*frames()), expected)


@pytest.mark.parametrize("name", some(odd.OPTIONS))
def test_options(name: str) -> None:
    options, expected = odd.OPTIONS[name]
    came = odd.of_options(options)
    check(came, expected)
    small = name == "a very small epsilon"
    assert any("epsilon 0.0001 is below 0.001" in notice for notice in came.notices) is small


@pytest.mark.parametrize("name", some(odd.KEYS))
def test_keys_of_users(name: str) -> None:
    keys, expected = odd.KEYS[name]
    check(odd.of_keys(keys), expected)


@pytest.mark.parametrize(
    ("listed", "of"), [(odd.BOUNDS, odd.of_bounds), (odd.NAMES, None), (odd.OPTIONS, None), (odd.KEYS, None)]
)
def test_there_are_enough(listed: Mapping[str, Any], of: Callable[..., Any] | None) -> None:
    del of
    assert len(listed) >= 25


def test_a_dictionary_of_bounds_needs_names() -> None:
    came = odd.of_bounds({"age": (0, 110), "income": (0, 1e5)}, odd.X)
    assert "the features have no names" in came.said
    assert came.spent == 0


LABELS: dict[str, tuple[Any, str]] = {
    "the name of a column": ("ill", "y is a text: give one target for each row"),
    "as many letters as rows": ("1" * odd.ROWS, "y is a text"),
    "a dictionary": ({"ill": odd.Y}, "y is a dictionary"),
}


@pytest.mark.parametrize("name", LABELS)
def test_targets_are_no_name_of_a_column(name: str) -> None:
    given, sentence = LABELS[name]
    with pytest.raises(ArgumentError, match=sentence):
        odd._model().fit(odd.X, given)
    with pytest.raises(ArgumentError, match=sentence):
        odd._model().fit(odd.X, odd.Y).score(odd.X, given)


def test_a_lazy_frame_of_targets_is_to_be_collected() -> None:
    polars = pytest.importorskip("polars")
    with pytest.raises(ArgumentTypeError, match=r"y is a lazy frame \(polars.LazyFrame\).*y.collect\(\)"):
        odd._model().fit(odd.X, polars.DataFrame({"y": odd.Y}).lazy())


@pytest.mark.parametrize(
    ("features", "sentence"),
    [
        ("table.csv", "features is a text.*Table.open"),
        ({"age": odd.AGE}, "features is a dictionary: pass a data frame"),
    ],
)
def test_units_are_of_arrays(features: Any, sentence: str) -> None:
    with pytest.raises(ArgumentTypeError, match=sentence):
        Units.from_arrays(features, row_bound=1.0)
