"""Fields of a JSON document that nobody vouches for, each of the type that is asked for or a refusal."""

import json
import math
from typing import Any, cast

from privopt.untrusted import UntrustedFile

_NAMED = {"infinity": math.inf, "-infinity": -math.inf}


class Malformed(UntrustedFile):
    """A document lacks a field, or holds something else in its place."""


class Fields:
    """An object of a document.

    Args:
        value: what stands there.
        place: where, for a refusal: "report.guarantee".
    """

    def __init__(self, value: Any, place: str) -> None:
        if not isinstance(value, dict):
            raise Malformed(f"{place} must be an object, got {_kind(value)}.")
        self.values = cast("dict[str, Any]", value)
        self.place = place

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def raw(self, name: str) -> Any:
        """Whatever stands there.

        Raises:
            Malformed: nothing does.
        """
        if name not in self.values:
            raise Malformed(f"{self.place} has no {name!r}.")
        return self.values[name]

    def fields(self, name: str) -> "Fields":
        """An object."""
        return Fields(self.raw(name), f"{self.place}.{name}")

    def each(self, name: str) -> "list[Fields]":
        """A list of objects."""
        return [
            Fields(value, f"{self.place}.{name}[{index}]") for index, value in enumerate(self.items(name))
        ]

    def items(self, name: str) -> list[Any]:
        """A list."""
        value = self.raw(name)
        if not isinstance(value, list):
            raise Malformed(f"{self.place}.{name} must be a list, got {_kind(value)}.")
        return cast("list[Any]", value)

    def text(self, name: str) -> str:
        """A text."""
        value = self.raw(name)
        if not isinstance(value, str):
            raise Malformed(f"{self.place}.{name} must be a text, got {_kind(value)}.")
        return value

    def truth(self, name: str) -> bool:
        """A truth value."""
        value = self.raw(name)
        if not isinstance(value, bool):
            raise Malformed(f"{self.place}.{name} must be true or false, got {_kind(value)}.")
        return value

    def number(self, name: str, low: float = -math.inf, high: float = math.inf) -> float:
        """A number of at least `low` and at most `high`; infinity is the text "infinity"."""
        return number(self.raw(name), f"{self.place}.{name}", low, high)

    def whole(self, name: str, low: int, high: int) -> int:
        """A whole number of at least `low` and at most `high`."""
        value = self.raw(name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Malformed(
                f"{self.place}.{name} must be a whole number from {low:,} to {high:,}, got {_kind(value)}."
            )
        return value

    def pair(self, name: str) -> tuple[float, float] | None:
        """A least and a largest number of at least 0; None where nothing stands there."""
        if name not in self:
            return None
        ends = self.items(name)
        place = f"{self.place}.{name}"
        if len(ends) != 2:
            raise Malformed(f"{place} must be two numbers, got a list of {len(ends)}.")
        low, high = (number(end, place, 0.0, math.inf) for end in ends)
        if low > high:
            raise Malformed(f"{place} must be a least and a largest number, and is in the wrong order.")
        return low, high


def layout_free(document: Any) -> bytes:
    """JSON values as bytes that depend neither on layout nor on the order of members; 1, 1.0 and true are three."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "surrogatepass")


def number(value: Any, place: str, low: float, high: float) -> float:
    """A number of at least `low` and at most `high`, from what JSON has in its place."""
    found = _NAMED.get(value, value) if isinstance(value, str) else value
    if isinstance(found, bool) or not isinstance(found, int | float):
        raise Malformed(f"{place} must be a number, got {_kind(value)}.")
    if not low <= found <= high:
        raise Malformed(f"{place} must lie between {low:g} and {high:g}, got {found:.6g}.")
    return float(found)


def _kind(value: Any) -> str:
    """What something is, without quoting more than a number."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, int | float):
        return f"{value:.6g}"
    return {str: "a text", list: "a list", dict: "an object"}.get(type(value), type(value).__name__)
