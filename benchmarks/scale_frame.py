"""The size of what is measured, runs that take turns, and a line of the result: what all of `scale` is made of."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from privopt.data.record_source import ArrayRecords, Description
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient

Line = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured: records, features, runs of each task; and whether all has to end within two minutes."""

    rows: int
    columns: int
    repeats: int
    quick: bool = False

    def records(self) -> tuple[ArrayRecords, Description]:
        """Normal features and random labels, and what is public of them."""
        generator = np.random.default_rng(0)
        features = generator.standard_normal((self.rows, self.columns), dtype=np.float32)
        labels = generator.integers(0, 2, self.rows)
        return ArrayRecords(features, labels), Description(row_bound=1.0, classes=[0, 1])

    def query(self) -> ClippedGradient:
        """The pass that is timed: a clipped gradient."""
        point = np.random.default_rng(2).normal(size=self.columns)
        with double_precision():
            return ClippedGradient(loss=losses.logistic, at=jnp.asarray(point), clip=1.0)


def seconds(task: Callable[[], Any]) -> float:
    """The time of one call."""
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


def in_turns(
    tasks: Mapping[str, Callable[[], Any]], repeats: int, *, before: Callable[[], Any] | None = None
) -> dict[str, float]:
    """Median seconds of each task, run in turns after one round that does not count.

    Args:
        tasks: what is timed, by name.
        repeats: rounds that count.
        before: called before every task, untimed.
    """
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(repeats + 1):
        for name, task in tasks.items():
            if before is not None:
                before()
            times[name].append(seconds(task))
    return {name: statistics.median(found[1:]) for name, found in times.items()}


def line(
    what: str,
    workers: int,
    ratio: float | None,
    overhead: float | None = None,
    *,
    at_most: Mapping[str, float] | None = None,
    at_least: Mapping[str, float] | None = None,
    **more: Any,
) -> Line:
    """One result; `overhead` in seconds. The limits are of fields; `within` says whether they are kept."""
    at_most, at_least = at_most or {}, at_least or {}
    overhead_ms = None if overhead is None else 1e3 * overhead
    found = {"benchmark": "scale", "what": what, "workers": workers, "ratio": ratio}
    found |= {"overhead_ms": overhead_ms} | more
    if at_most or at_least:
        found |= {"at_most": dict(at_most)} if at_most else {}
        found |= {"at_least": dict(at_least)} if at_least else {}
        found["within"] = all(found[name] <= limit for name, limit in at_most.items()) and all(
            found[name] >= limit for name, limit in at_least.items()
        )
    return found
