"""The promises about one case stand side by side, so that one worker compiles the case's programs and no other does."""

from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the tests of a file by their case, and otherwise as they are."""
    files: dict[Any, list[int]] = {}
    for place, item in enumerate(items):
        if item.path.parent == HERE and case_of(item) is not None:
            files.setdefault(item.path, []).append(place)
    for places in files.values():
        tests = [items[place] for place in places]
        turns = {case: turn for turn, case in enumerate(dict.fromkeys(map(case_of, tests)))}
        for place, item in zip(places, sorted(tests, key=lambda one: turns[case_of(one)]), strict=True):
            items[place] = item


def case_of(item: pytest.Item) -> tuple[str, Any] | None:
    """The name of the case that a test is about, and the relation; None where it is about no case."""
    given: dict[str, Any] = item.callspec.params if "callspec" in vars(item) else {}
    case, relation = given.get("solved") or (given.get("case"), given.get("relation"))
    return None if case is None else (str(getattr(case, "name", case)), relation)
