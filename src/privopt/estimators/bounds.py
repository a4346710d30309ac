"""The ways to write down the bounds of features, and the one that each of them means. Public."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_NAMED = 5  # features that a notice or an error names
Ends = tuple[NDArray[np.float64], NDArray[np.float64]]


def ends_of(bounds: Any, width: int, names: Sequence[str] | None, name: str) -> Ends:
    """The lower and the upper end of each feature.

    Args:
        bounds: two numbers, or a tuple of two arrays (the lower ends, the upper ends); or one pair (low, high) for each
            feature: a list or an array of pairs, or a mapping from the name of a column to its pair.
        width: number of features.
        names: of the features, where they are known.
        name: the argument that they were given as.
    Raises:
        TypeError, ValueError: they are none of these, or could be read in two ways.
    """
    if isinstance(bounds, Mapping):
        bounds, paired = _by_name(bounds, names, name), True
    elif not isinstance(bounds, list | tuple | np.ndarray):
        raise _no_pair(name, bounds)
    else:
        paired = _is_paired(bounds, width, name)
    try:
        if paired:
            pairs = np.asarray([[float(end) for end in pair] for pair in bounds]).reshape(len(bounds), -1)
            low, high = pairs.T
        else:
            low, high = (np.asarray(end, np.float64) for end in bounds)
    except (TypeError, ValueError, OverflowError):
        raise _no_pair(name, bounds) from None
    for end in (low, high):
        if end.shape not in ((), (width,)):
            given = f"{len(low)} pairs" if paired else f"shape {end.shape}"
            raise ValueError(
                f"{name} must be numbers or arrays of {width} entries, one for each feature, or {width} pairs "
                f"(low, high), got {given}."
            )
    return np.broadcast_to(low, (width,)), np.broadcast_to(high, (width,))


def constant_features(low: NDArray[np.float64], high: NDArray[np.float64], names: Any) -> tuple[str, ...]:
    """A notice on features whose bounds leave them one value; none where there is no such feature.

    Args:
        low: the lower ends.
        high: the upper ends.
        names: of the features, None where they are not known.
    """
    places = np.flatnonzero(low == high)
    if not len(places):
        return ()
    listed = ", ".join(
        f"{f'feature {place}' if names is None else repr(str(names[place]))} ({low[place]:g})"
        for place in places[:MOST_NAMED]
    )
    more = f" and {len(places) - MOST_NAMED} others" if len(places) > MOST_NAMED else ""
    return (
        f"The bounds of {listed}{more} have the same lower and upper end: the model sees a constant there and learns "
        "nothing from it. If the bounds were meant as one pair (low, high) per feature, give a list of pairs.",
    )


def _is_paired(bounds: Any, width: int, name: str) -> bool:
    """Whether bounds are one pair (low, high) per feature, rather than lower ends and upper ends.

    Raises:
        TypeError, ValueError: they are neither, or could be both.
    """
    try:
        in_pairs = all(np.shape(entry) == (2,) for entry in bounds)
    except ValueError:  # lists of different lengths
        raise _no_pair(name, bounds) from None
    if not in_pairs and len(bounds) != 2:
        raise _no_pair(name, bounds)
    if not in_pairs or len(bounds) != 2:
        return in_pairs
    if isinstance(bounds, list) and all(isinstance(entry, tuple) for entry in bounds):
        return True
    if width != 2 or (isinstance(bounds, tuple) and not any(isinstance(entry, tuple) for entry in bounds)):
        return False
    try:
        (first, second), (third, fourth) = ([float(end) for end in entry] for entry in bounds)
    except (TypeError, ValueError):
        raise _no_pair(name, bounds) from None
    raise ValueError(
        f"{name} of two features can be read in two ways: as pairs per feature, the first feature from {first:g} to "
        f"{second:g} and the second from {third:g} to {fourth:g}; or as lower and upper ends, the first feature from "
        f"{first:g} to {third:g} and the second from {second:g} to {fourth:g}. Give a list of two tuples (low, high) "
        "for the first reading, a tuple of two arrays (lows, highs) for the second."
    )


def _by_name(bounds: Mapping[Any, Any], names: Sequence[str] | None, name: str) -> list[Any]:
    """The pairs of a mapping, in the order of the features.

    Raises:
        TypeError, ValueError: the features have no names, or others.
    """
    if names is None:
        raise TypeError(
            f"{name} is a dictionary by column name, but the features have no names: pass a data frame, or give "
            f"{name} as a list with one pair (low, high) for each feature."
        )
    unknown = [str(key) for key in bounds if key not in names]
    missing = [str(one) for one in names if one not in bounds]
    if unknown or missing:
        said: list[str] = []
        if missing:
            said.append(f"lacks {_listed(missing)}")
        if unknown:
            near = difflib.get_close_matches(unknown[0], [str(one) for one in names], n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            said.append(f"names {_listed(unknown)}{hint}, which the features do not have")
        raise ValueError(
            f"{name} needs one pair (low, high) for each feature by its name: it {' and '.join(said)}."
        )
    return [bounds[one] for one in names]


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMED} others" if len(names) > MOST_NAMED else ""
    return ", ".join(map(repr, names[:MOST_NAMED])) + more


def _no_pair(name: str, bounds: Any) -> TypeError:
    return TypeError(
        f"{name} must be a pair (low, high) of numbers or arrays, or one pair for each feature (a list of pairs, or a "
        f"dictionary by column name), got {type(bounds).__name__} that is none."
    )
