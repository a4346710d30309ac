"""A black box on made-up records, before anything is paid for: whether it works, keeps state, and how long it takes."""

import time
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike, NDArray

from privopt.problems.black_box import BlackBox, CallsOfPoints, SignalCame, number_of, quiet_calls

_TIMED_DIRECTIONS, _TIMED_CALLS, _TIMED_SECONDS = 200, 5, 0.2


def try_on_made_up_records(loss: BlackBox, start: ArrayLike, features: int) -> None:
    """Call a black box on made-up records at two points, as a run would.

    Args:
        loss: the black box, `host=True` and laid out.
        start: flat public parameters, in units of its scale.
        features: how many a record has.
    Raises:
        TypeError: it gave no number for any of them; the message says what it did with the first.
        ValueError: it did not answer the same twice for the same record.
    """
    calls = CallsOfPoints(loss, _two_points(start))
    with quiet_calls():
        records = list(_records(loss, features))
        answers = [calls(*record) for record in records]
        good = [record for record, answer in enumerate(answers) if np.all(np.isfinite(answer))]
        if not good:
            raise TypeError(
                f"the {loss.name} failed on made-up records: {_what_it_did(calls, loss, *records[0])}. It must answer "
                f"with {_wanted(loss)}; if it needs records of a certain kind, give one in `example`, made up."
            )
        again = [calls(*records[record]) for record in good]
    if not all(np.array_equal(answers[record], second) for record, second in zip(good, again, strict=True)):
        raise ValueError(
            f"the {loss.name} did not answer the same twice for the same made-up record: it keeps state, or has a "
            "random generator of its own, so that one record could move what it says of others. Make it a function of "
            "its arguments alone; `numpy.random` and `random` begin anew at each call."
        )


@lru_cache(maxsize=64)
def seconds_per_value(loss: BlackBox, features: int) -> float:
    """Roughly how long one value takes on the host, by a few calls on a made-up record; timed once for each loss.

    With several points at once it is that of one among as many as a step asks for.
    """
    layout = loss.layout
    assert layout is not None
    count = 2 * min(layout.size, _TIMED_DIRECTIONS)
    points = np.zeros((count, layout.size)) + np.linspace(-0.1, 0.1, count)[:, None]
    calls = CallsOfPoints(loss, points)
    record = next(_records(loss, features))
    with quiet_calls():
        calls(*record)
        begin, count = time.perf_counter(), 0
        while count < _TIMED_CALLS and (count == 0 or time.perf_counter() - begin < _TIMED_SECONDS):
            calls(*record)
            count += 1
        return (time.perf_counter() - begin) / (count * len(points))


def _two_points(start: ArrayLike) -> Float[NDArray[np.float64], "2 p"]:
    at = np.asarray(start, np.float64).ravel()
    return np.stack([at, at + 0.1 / np.sqrt(len(at))])


def _records(loss: BlackBox, features: int) -> Iterator[tuple[NDArray[np.float64], float]]:
    """The example, or simple rows: small numbers of both signs, zeros, ones, and whole numbers."""
    if loss.example is not None:
        yield _example(loss.example, features)
        return
    places = np.arange(1.0, features + 1.0)
    yield np.cos(places) / np.sqrt(features), 0.0
    yield np.zeros(features), 0.0
    yield np.full(features, 1.0 / np.sqrt(features)), 1.0
    yield places % 5.0, 1.0


def _example(example: Any, features: int) -> tuple[NDArray[np.float64], float]:
    try:
        row, target = example
        found = np.asarray(row, np.float64), float(target)
    except (TypeError, ValueError):
        raise ValueError(
            "example must be one made-up record: a pair of its features, numbers, and its target, a number."
        ) from None
    if found[0].shape != (features,):
        raise ValueError(
            f"example must have the features of one record, of shape ({features},), got shape {found[0].shape}."
        )
    return found


def _what_it_did(calls: CallsOfPoints, loss: BlackBox, row: NDArray[np.float64], target: float) -> str:
    """What the callable did on a made-up record, in words."""
    try:
        row = np.array(row)
        row.flags.writeable = False  # as in a run
        answer: Any = calls.asked(calls.first_arguments, row, target)
    except SignalCame:
        raise
    except BaseException as failure:
        said = str(failure).splitlines()
        return f"it raised {type(failure).__name__}{f' ({said[0]})' if said else ''}"
    shape = (2,) if loss.vectorized else ()
    try:
        found = number_of(answer, shape)
    except SignalCame:
        raise
    except BaseException:
        array = answer if isinstance(answer, np.ndarray | Array) else None
        return f"it answered with {_described(answer) if array is None else _array(array)}"
    return (
        f"it answered with {found!r}"
        if not np.all(np.isfinite(found))
        else "it gave none at the second point"
    )


def _described(answer: Any) -> str:
    return f"a {type(answer).__name__}" if answer is not None else "None"


def _array(array: Any) -> str:
    return f"an array of shape {array.shape} and type {array.dtype}"


def _wanted(loss: BlackBox) -> str:
    return "m real numbers for m points" if loss.vectorized else "one real number for a record"
