"""Parameters that take turns: where a test has no time for every combination, each value still has its turn."""

import itertools
from collections.abc import Collection, Iterable
from typing import Any

import pytest


def in_turn(*axes: Collection[Any]) -> list[Any]:
    """Every combination of the axes, for `parametrize`; all but one value of the last axis wait for the audit.

    Neighbours along every axis meet different values of the last one, so that all pairs of values have their turn.
    """
    found: list[Any] = []
    for places in itertools.product(*(range(len(axis)) for axis in axes)):
        values = [tuple(axis)[place] for axis, place in zip(axes, places, strict=True)]
        waits = sum(places[:-1]) % len(axes[-1]) != places[-1]
        found.append(pytest.param(*values, marks=(pytest.mark.audit,) if waits else (), id=_name(values)))
    return found


def but_later(quick: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """The values, for `parametrize` of one name or of one tuple of names; those that are not `quick` wait."""
    at_once = list(quick)
    return [
        pytest.param(
            *(value if isinstance(value, tuple) else (value,)),
            marks=() if value in at_once else (pytest.mark.audit,),
        )
        for value in values
    ]


def case_of(item: pytest.Item) -> str:
    """The name of a case between the brackets; empty for a test without parameters."""
    return getattr(getattr(item, "callspec", None), "id", "")


def waits(item: pytest.Item) -> bool:
    """Whether its marks `later` and `at_once` leave a case to the audit."""
    later, at_once = item.get_closest_marker("later"), item.get_closest_marker("at_once")
    if later is not None and case_of(item) in later.args:
        return True
    return at_once is not None and case_of(item) not in at_once.args


def require_cases(items: Iterable[pytest.Item]) -> None:
    """Refuse a name in `@pytest.mark.later` or `@pytest.mark.at_once` that no case has.

    Raises:
        pytest.UsageError: it names the test, the mark and the case.
    """
    named: dict[tuple[str, str], set[str]] = {}
    for item in items:
        for name in ("later", "at_once"):
            mark = item.get_closest_marker(name)
            if mark is not None:
                named.setdefault((item.nodeid.split("[")[0], name), set(mark.args)).discard(case_of(item))
    for (test, name), left in named.items():
        if left:
            raise pytest.UsageError(f"{test} has no case {min(left)!r}, which it marks as `{name}`")


def _name(values: list[Any]) -> str:
    return "-".join(
        ", ".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in values
    )
