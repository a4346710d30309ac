"""What it costs to keep a table outside of the memory of one process: JSON lines with `what`, `workers`, `ratio`.

    python -m benchmarks.scale [--quick] [--rows 4000000] [--columns 54] [--only stream cold]

Each line is about one kind of engine; `ratio` compares medians of runs that take turns in one process, so that whoever
else uses the machine slows both. `overhead_ms` is their difference in time for one pass, where that says something.
Files are written to the folder of temporary files, and gone at the end.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "2")

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.results import rounded
from privopt.data.record_source import ArrayRecords, Description
from privopt.problems import losses
from privopt.queries.gradient import ClippedGradient

QUICK_ROWS = 1_200_000
Line = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured: records, features, and runs of each task."""

    rows: int
    columns: int
    repeats: int

    def records(self) -> tuple[ArrayRecords, Description]:
        """Normal features and random labels, and what is public of them."""
        generator = np.random.default_rng(0)
        features = generator.standard_normal((self.rows, self.columns), dtype=np.float32)
        labels = generator.integers(0, 2, self.rows)
        return ArrayRecords(features, labels), Description(row_bound=1.0, classes=[0, 1])

    def query(self) -> ClippedGradient:
        """The pass that is timed: a clipped gradient."""
        point = np.random.default_rng(2).normal(size=self.columns)
        return ClippedGradient(loss=losses.logistic, at=point, clip=1.0)


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


def line(what: str, workers: int, ratio: float | None, overhead: float | None = None, **more: Any) -> Line:
    """One result; `overhead` in seconds."""
    overhead_ms = None if overhead is None else 1e3 * overhead
    return {
        "benchmark": "scale",
        "what": what,
        "workers": workers,
        "ratio": ratio,
        "overhead_ms": overhead_ms,
    } | more


MEASUREMENTS: dict[str, Callable[[Size], Iterator[Line]]] = {}


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rows and runs: within two minutes")
    parser.add_argument("--rows", type=int, default=None)
    parser.add_argument("--columns", type=int, default=54)
    parser.add_argument("--only", nargs="+", choices=sorted(MEASUREMENTS), default=list(MEASUREMENTS))
    given = parser.parse_args()
    rows = given.rows or (QUICK_ROWS if given.quick else 4_000_000)
    size = Size(rows=rows, columns=given.columns, repeats=3 if given.quick else 9)
    for name in given.only:
        for found in MEASUREMENTS[name](size):
            print(json.dumps(rounded(found)), flush=True)


if __name__ == "__main__":
    main()
