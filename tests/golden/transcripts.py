"""A golden line: what a run released, what it cost and what it said, in two parts, values and words."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from tests.golden.comparing import Line

from privopt.curator.transcript import Release, Transcript
from privopt.ledger.events import FixedSize
from privopt.planning.plan import Plan

PARTS = ("values", "words")
PRICES = (
    "epsilon",
    "delta",
    "releases",
    "passes",
)  # of the values: what holds on any machine, to nine digits
LONGEST = 72  # of a text that stands in a line as it is


@contextmanager
def recorded() -> Iterator[list[Release]]:
    """Every release of seeded runs in this block, in order; dry runs and replays have no seed."""
    releases: list[Release] = []
    append = Transcript.append

    def noted(transcript: Transcript, release: Release) -> None:
        if transcript.seeded:
            releases.append(release)
        append(transcript, release)

    Transcript.append = noted
    try:
        yield releases
    finally:
        Transcript.append = append


def line_of_run(
    releases: Iterable[Release], plan: Plan | None, parameters: Any, texts: Mapping[str, str] | None = None
) -> Line:
    """The line of a run: its releases one by one, whichever loop made them, its plan and its result."""
    releases = list(releases)
    line = {"values": {}, "words": {}} if plan is None else line_of_plan(plan)
    line["values"] |= {
        "made": sum(release.count for release in releases),
        "events": digest(*_runs((_fields(release), release.count) for release in releases)),
        "sensitivities": digest(*(np.ravel(release.sensitivity) for release in releases)),
        "released": digest(*(one for release in releases for one in _each(release))),
        "parameters": digest(*map(np.asarray, jax.tree.leaves(parameters))),
    }
    line["words"] |= {
        "names": [
            f"{name} x {count}" if count > 1 else name
            for name, count in _runs((release.name, release.count) for release in releases)
        ],
        **(texts or {}),
    }
    return line


def line_of_plan(plan: Plan) -> Line:
    """The line of a plan: what is announced before any data are read."""
    numbers = {name: value for name, value in plan.settings.items() if _is_number(value)}
    told = {name: str(value) for name, value in plan.settings.items() if not _is_number(value)}
    bound = plan.bound
    forecast = [plan.predicted_excess, *(plan.predicted_range or ())]
    forecast += [] if bound is None else [bound.value, bound.probability]
    forecast += [found.value for found in plan.indicators.values()]
    return {
        "values": {
            "epsilon": plan.epsilon,
            "delta": plan.budget.delta,
            "releases": plan.releases,
            "passes": plan.passes,
            "settings": [_plain(value) for value in numbers.values()],
            "event": digest(plan.event.to_dict()),
            "forecast": [_plain(value) for value in forecast],
            "effort": [plan.memory_bytes, plan.seconds, plan.evaluations, plan.held],
        },
        "words": {
            "settings": [*numbers, *(f"{name} = {value}" for name, value in told.items())],
            "plan": [plan.headline, *(f"{label}: {text}" for label, text in plan.rows())],
        },
    }


def digest(*parts: Any) -> str:
    """Sixteen hexadecimal digits for arrays, with type and shape, and for JSON values."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, np.ndarray):
            total.update(f"{part.dtype.str}{part.shape}".encode())
            total.update(np.ascontiguousarray(part).tobytes())
        else:
            total.update(json.dumps(part, sort_keys=True).encode())
    return total.hexdigest()[:16]


def shortened(line: Line) -> Line:
    """The line as it is kept: of a long text its beginning and a digest."""
    return {**line, "words": {name: _short(words) for name, words in line["words"].items()}}


def _short(words: Any) -> Any:
    if isinstance(words, list):
        return [_short(one) for one in words]
    if isinstance(words, str) and len(words) > LONGEST:
        return f"{words[: LONGEST - 24]} ... {digest(words)}"
    return words


def _fields(release: Release) -> Any:
    sampling = release.sampling
    drawn = [sampling.batch, sampling.n] if isinstance(sampling, FixedSize) else [sampling.rate]
    return [release.event.to_dict(), sampling.kind, *drawn]


def _each(release: Release) -> Iterator[Any]:
    """The released values of each release of a loop; None where there are none."""
    if release.released is None:
        yield from [None] * release.count
    else:
        yield from (np.asarray(one) for one in release.released)


def _runs(counted: Iterable[tuple[Any, int]]) -> list[list[Any]]:
    """Equal neighbours together: what, and how often."""
    runs: list[list[Any]] = []
    for what, count in counted:
        if runs and runs[-1][0] == what:
            runs[-1][1] += count
        else:
            runs.append([what, count])
    return runs


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number)


def _plain(value: Any) -> Any:
    """A number as JSON has it; of an array, its digest; a word is none of the values."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, str):
        return "text"
    array = np.asarray(value)
    return array.item() if array.ndim == 0 else digest(array)
