"""How far two JSON values, or two arrays of numbers, are alike: another processor may round differently."""

import enum
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

CLOSE = 1e-6  # of a number: what another processor may round otherwise
_TINY = 1e-12  # below which a number may be what rounding left of zero
_NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?")


class Likeness(enum.IntEnum):
    """How far two values are alike.

    Attributes:
        FAR: they differ.
        ROUGH: they differ by what rounding may do, and a change of that size may be one that somebody made.
        CLOSE: every number is within 1e-6 of itself.
        EQUAL: they are equal, bit for bit.
    """

    FAR = 0
    ROUGH = 1
    CLOSE = 2
    EQUAL = 3


def alike(one: Any, other: Any, *, words: bool = True) -> Likeness:
    """Compare two JSON values.

    Args:
        one: a value.
        other: another.
        words: whether texts count.
    """
    if isinstance(one, dict) and isinstance(other, dict):
        mine, theirs = cast("dict[str, Any]", one), cast("dict[str, Any]", other)
        if set(mine) != set(theirs):
            return Likeness.FAR
        return _least(alike(mine[name], theirs[name], words=words) for name in mine)
    if isinstance(one, list) and isinstance(other, list):
        return _alike_lists(cast("list[Any]", one), cast("list[Any]", other), words=words)
    if isinstance(one, str) and isinstance(other, str):
        return _alike_texts(one, other) if words else Likeness.EQUAL
    if _is_number(one) and _is_number(other):
        return _alike_numbers(cast("float", one), cast("float", other))
    return Likeness.EQUAL if type(one) is type(other) and one == other else Likeness.FAR


def alike_arrays(one: NDArray[np.float64], other: NDArray[np.float64]) -> Likeness:
    """Compare two arrays, entry by entry."""
    if one.shape != other.shape:
        return Likeness.FAR
    if np.array_equal(one, other):
        return Likeness.EQUAL
    away, sizes = np.abs(one - other), np.maximum(np.abs(one), np.abs(other))
    if bool(np.all(away <= CLOSE * sizes)):
        return Likeness.CLOSE
    return Likeness.ROUGH if bool(np.all(away <= CLOSE * np.max(sizes))) else Likeness.FAR


def _alike_lists(one: list[Any], other: list[Any], *, words: bool) -> Likeness:
    if len(one) != len(other):
        return Likeness.FAR
    if one and all(type(value) is float for value in (*one, *other)):
        return alike_arrays(np.asarray(one, np.float64), np.asarray(other, np.float64))
    return _least(alike(*pair, words=words) for pair in zip(one, other, strict=True))


def _alike_numbers(one: float, other: float) -> Likeness:
    if one == other:
        return Likeness.EQUAL
    if isinstance(one, int) and isinstance(other, int):
        return Likeness.FAR  # nothing rounds a whole number
    if abs(one - other) <= CLOSE * max(abs(one), abs(other)):
        return Likeness.CLOSE
    return Likeness.ROUGH if abs(one - other) <= _TINY else Likeness.FAR


def _alike_texts(one: str, other: str) -> Likeness:
    """Equal, or but for a unit in the last place of printed numbers of three digits or more."""
    if one == other:
        return Likeness.EQUAL
    if _NUMBER.sub("#", one) != _NUMBER.sub("#", other):
        return Likeness.FAR
    printed = zip(_NUMBER.findall(one), _NUMBER.findall(other), strict=True)
    return Likeness.ROUGH if all(_same_printed(*pair) for pair in printed) else Likeness.FAR


def _same_printed(one: str, other: str) -> bool:
    if one == other:
        return True
    digits = [re.sub(r"[.,]", "", text.partition("e")[0]) for text in (one, other)]
    same_form = len(one) == len(other) and one.partition("e")[2] == other.partition("e")[2]
    return same_form and len(digits[0].lstrip("0")) >= 3 and abs(int(digits[0]) - int(digits[1])) == 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _least(found: Iterable[Likeness]) -> Likeness:
    least = Likeness.EQUAL
    for one in found:
        least = min(least, one)
        if least is Likeness.FAR:
            break
    return least


def differences(pairs: Mapping[str, Likeness]) -> tuple[list[str], Likeness]:
    """The names of what differs most, and how far."""
    worst = min(pairs.values(), default=Likeness.EQUAL)
    return [name for name, found in pairs.items() if found is worst], worst
