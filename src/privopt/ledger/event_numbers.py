"""The numbers in privacy events: checked when an event is built, short when it is printed."""

import math
import operator
from typing import Any


def check_positive(event: object, name: str, advice: str) -> None:
    """Make a field a positive, finite float, or refuse it with advice."""
    value = _as_float(event, name)
    if not (value > 0 and math.isfinite(value)):
        kind = type(event).__name__
        raise ValueError(f"{name} of {kind} must be positive and finite, got {value!r}; {advice}.")
    object.__setattr__(event, name, value)


def check_number(event: object, name: str, *, low: float, high: float, advice: str) -> None:
    """Make a field a float of at least `low` and below `high`, or refuse it with advice."""
    value = _as_float(event, name)
    if not low <= value < high:
        kind = type(event).__name__
        raise ValueError(
            f"{name} of {kind} must be at least {low:g} and below {high:g}, got {value!r}: {advice}."
        )
    object.__setattr__(event, name, value)


def checked_count(value: Any, name: str, *, least: int) -> int:
    """A whole number of at least `least`, or a refusal."""
    try:
        count = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {value!r}.") from None
    if count < least:
        raise ValueError(f"{name} must be at least {least}, got {count}.")
    return count


def _as_float(event: object, name: str) -> float:
    value = getattr(event, name)
    try:
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} of {type(event).__name__} must be a number, got {value!r}.") from None


def short(value: float) -> str:
    """A number for a sentence."""
    return f"{value:.3g}"
