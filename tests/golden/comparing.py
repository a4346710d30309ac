"""What differs between the golden lines that are kept and those of today's code."""

import json
import math
from collections.abc import Mapping
from typing import Any

Line = dict[str, dict[str, Any]]  # its parts, their fields
PARTS = ("values", "words")
PRICES = ("epsilon", "delta", "releases", "passes")  # of the values: what holds on any machine, to six digits
NEAR = 1e-6


def differences(old: Mapping[str, Line], new: Mapping[str, Line], *, exact: bool = True) -> list[str]:
    """One sentence for each line that differs: which of its parts, and which fields.

    Args:
        old: the lines that are kept, by the names of their runs.
        new: those of today's code, `shortened`.
        exact: whether all values count; else the prices alone, to six digits.
    """
    found = [f"{name}: no such run any more" for name in old if name not in new]
    for name, line in new.items():
        if name not in old:
            found.append(f"{name}: a new run, not yet written")
            continue
        parts = [
            f"{part}: {'; '.join(fields)}"
            for part in PARTS
            if (fields := _fields_that_differ(old[name][part], line[part], part == "words" or exact))
        ]
        if parts:
            found.append(f"{name}: {' | '.join(parts)}")
    return found


def _fields_that_differ(old: Mapping[str, Any], new: Mapping[str, Any], exact: bool) -> list[str]:
    names = [name for name in dict.fromkeys([*old, *new]) if exact or name in PRICES]
    return [
        f"{name} {_change(old.get(name), new.get(name))}"
        for name in names
        if not _agree(old.get(name), new.get(name), exact)
    ]


def _agree(old: Any, new: Any, exact: bool) -> bool:
    # As JSON has them, so that what is not a number agrees with itself.
    if exact or not (isinstance(old, float) or isinstance(new, float)):
        return json.dumps(old) == json.dumps(new)
    return None not in (old, new) and math.isclose(old, new, rel_tol=NEAR)


def _change(old: Any, new: Any) -> str:
    """What changed; of a list its entries that did."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return ", ".join(
            f"[{place}] {before!r} -> {after!r}"
            for place, (before, after) in enumerate(zip(old, new, strict=True))
            if not _agree(before, after, exact=True)
        )
    return f"{old!r} -> {new!r}"
