"""Which members a report has, and of which type each is: `docs/report.schema.json`, as far as types go.

A member that is missing, surplus or of another type is refused, whether or not a check reads it: whoever reads the
report after a verdict may.
"""

from collections.abc import Mapping
from typing import Any, cast

from privopt.verification.fields import Malformed

# A text names a type. [x] is a list of x, (x, y) either of them, a mapping an object with these members, of which those
# that end in "?" may be missing; "*" stands for members of any other name.
_NULL_OR_NUMBER, _NULL_OR_NUMBERS = ("null", "number"), ("null", ["number"])
_FOUND = {"*": {"value": ("null", "number", "text", "truth", ["any"]), "meaning": "text"}}
_LOOSE = {"*": ("null", "number", "text", "truth")}
_RELEASE = {
    "name": "text",
    "count": "whole",
    "events": [
        {"event": "any", "count": "whole", "sensitivity?": _NULL_OR_NUMBERS, "scale?": _NULL_OR_NUMBERS}
    ],
    "noise": "text",
    "sampling": {"kind": "text", "rate": "number", "batch?": "whole", "n?": "whole"},
    "sensitivity": _NULL_OR_NUMBERS,
    "scale": _NULL_OR_NUMBERS,
    "schedule": [["number"]],
    "filter": ("null", {"number": "whole", "event": "any", "used": _NULL_OR_NUMBER, "depth?": "whole"}),
    "exact": "truth",
    "blocks?": [{"event": "whole", "of": [["whole"]], "count": "whole"}],
}
_PUBLIC = {
    "n": "whole",
    "d": "whole",
    "relation": "text",
    "row_bound": "number",
    "entry_bound": _NULL_OR_NUMBER,
    "unit": "text",
    "records_per_unit": "whole",
    "weighting": "text",
    "typical_records": "number",
    "sparse": "truth",
    "outputs": "whole",
    "drawn": "truth",
    "levels": ["whole"],
    "storage?": "text",
    "row_entries?": ("null", "whole"),
}
_PLAN = {
    "solver": "text",
    "settings": _LOOSE,
    "event": "any",
    "budget": {"epsilon": "number", "delta": "number"},
    "public": _PUBLIC,
    "epsilon": "number",
    "delta": "number",
    "relation": "text",
    "unit": "text",
    "n": "whole",
    "d": "whole",
    "releases": "whole",
    "passes": "number",
    "adaptive": "truth",
    "memory_bytes": "number",
    "seconds": "number",
    "predicted_excess": _NULL_OR_NUMBER,
    "predicted_range": _NULL_OR_NUMBERS,
    "prediction": "text",
    "bound": ("null", {"value": "number", "probability": _NULL_OR_NUMBER, "condition": "text", "of": "text"}),
    "indicators": _FOUND,
    "notices": ["text"],
    "reason": "text",
    "measure": "text",
    "evaluations": "number",
    "black_box": ["text"],
}
_REPLAY = {
    "obstacle": "null",
    "recipe": {"kind": "text", "*": "any"},
    "eager": "truth",
    "exact": "truth",
    "releases": [{"name": "text", "array": "text"}],
    "sha256": "text",
}
_SERIES = {"name": "text", "xs": ["number"], "ys": ["number"], "errors": ["number"]}
REPORT: Mapping[str, Any] = {
    "format": "text",
    "format_version": "whole",
    "privopt": "text",
    "title": "text",
    "guarantee": {
        "epsilon": "number",
        "delta": "number",
        "relation": "text",
        "unit": "text",
        "n": ("null", "whole"),
        "holds": "truth",
        "seeded": "truth",
        "noise": "text",
        "best_guess": "number",
    },
    "summary": ["text"],
    "not_covered": [{"title": "text", "text": "text"}],
    "status": "text",
    "curve": [{"delta": "number", "epsilon": "number"}],
    "event": "any",
    "releases": [_RELEASE],
    "plan": ("null", _PLAN),
    "findings": _FOUND,
    "pictures": [
        {
            "title": "text",
            "caption": "text",
            "x": "text",
            "y": "text",
            "categories": ["text"],
            "series": [_SERIES],
        }
    ],
    "utility_assumptions": ["text"],
    "declared": ["text"],
    "divided_rows": "truth",
    "typical_length?": _NULL_OR_NUMBER,  # of older reports
    "selection": ("null", {"sentence": "text", "private": "truth"}),
    "metrics": _LOOSE,
    "account": (
        "null",
        {
            "data_set": "text",
            "payment": "whole",
            "epsilon": "number",
            "delta": "number",
            "used": "number",
            "remaining": "number",
            "left": "number",
        },
    ),
    "notices": ["text"],
    "model": (
        "null",
        {
            "name": "text",
            "features": ["text"],
            "coefficients": [["number"]],
            "intercepts": ["number"],
            "outputs": ["text"],
            "meaning": "text",
            "details": {"*": "any"},
        },
    ),
    "replay?": ("null", {"obstacle": "text"}, _REPLAY),
}
_NUMBERS = ("infinity", "-infinity", "nan")


def require_shape(document: Any, *, complete: bool) -> None:
    """Refuse a report with a member that is of another type, or of no name that is known.

    Args:
        document: its JSON values.
        complete: whether members that are missing are refused too, as of reports since version 2.

    Raises:
        Malformed: it says where.
    """
    place = _wrong(document, REPORT, "report", complete)
    if place is not None:
        raise Malformed(f"{place[:200]} is not what a report has there.")


def _wrong(value: Any, shape: Any, place: str, complete: bool) -> str | None:
    """Where a value is not of a shape; None if it is everywhere."""
    if isinstance(shape, tuple):
        found = [_wrong(value, one, place, complete) for one in cast("tuple[Any, ...]", shape)]
        return None if None in found else max((one or place for one in found), key=len)
    if isinstance(shape, list):
        if not isinstance(value, list):
            return place
        inner = cast("list[Any]", shape)[0]
        for index, one in enumerate(cast("list[Any]", value)):
            found_at = _wrong(one, inner, f"{place}[{index}]", complete)
            if found_at is not None:
                return found_at
        return None
    if isinstance(shape, Mapping):
        return _wrong_member(value, cast("Mapping[str, Any]", shape), place, complete)
    return None if _is_of(value, shape) else place


def _wrong_member(value: Any, shape: Mapping[str, Any], place: str, complete: bool) -> str | None:
    if not isinstance(value, dict):
        return place
    members = cast("dict[str, Any]", value)
    for name in shape if complete else ():
        if name[-1] not in "?*" and name not in members:
            return f"{place}.{name}"
    for name, one in members.items():
        inner = shape.get(name, shape.get(f"{name}?", shape.get("*")))
        where = f"{place}.{name if inner is not None else '(a member of another name)'}"
        if inner is None:
            return where
        found_at = _wrong(one, inner, where, complete)
        if found_at is not None:
            return found_at
    return None


def _is_of(value: Any, kind: str) -> bool:
    if kind == "any":
        return True
    if kind == "null":
        return value is None
    if kind == "text":
        return isinstance(value, str)
    if kind == "truth":
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (kind == "number" and (isinstance(value, float) or value in _NUMBERS))
