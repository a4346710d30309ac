"""How long the fused gradient pass takes, against the time NumPy needs to add up the same float32 matrix once.

    python benchmarks/pass_speed.py [--rows 200000] [--columns 54] [--repeats 41]

Prints JSON lines: compile time, then the ratio on one and on two threads. Then what it costs to sum 1.5 million rows in
parts, `cpu_ratio` of processor time to the same pass over them as one part, of which `again` is another. Then the step
of a recursive estimator (a gradient mixed with its change since the point before) against a plain gradient's, on the
same rows and on 20 000 of 20 columns: `ratio` with the slopes kept from the step before, `ratio_without` if they had to
be computed again.

Runs that are compared are interleaved and medians taken. `cpu_ratio` compares processor time on one thread, for
machines on which other processes run, and `ratio_of_fastest` the fastest runs: the pass computes, NumPy's sum waits for
memory, so whoever else uses the same core slows the pass only.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "2")

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient, MixedGradient

LIMIT = 2.5  # the bar, for one thread
MIXED_LIMIT = 1.3  # the bar of a mixed step over a plain one, on one thread and on two
SMALL = (20_000, 20)
PARTS_LIMIT = 1.02  # the bar of a sum over parts over one that takes all rows for one part
LARGE, ENGINES = 1_500_000, 7


def seconds(function: Callable[[], Any]) -> tuple[float, float]:
    """The time of one call, and the processor time that this thread spent on it."""
    start, busy = time.perf_counter(), time.thread_time()
    function()
    return time.perf_counter() - start, time.thread_time() - busy


def random_units(rows: int, columns: int) -> Units:
    """Normal features and random labels."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(rows, columns)).astype(np.float32)
    return Units.from_arrays(features, generator.integers(0, 2, rows), row_bound=1.0, classes=[0, 1])


def parts_cost(columns: int, repeats: int, threads: int) -> dict[str, Any]:
    """A pass in parts and two over the same rows as one part, in turns, on engines of which each has its own norms.

    Where an array happens to lie moves the time of a pass by a few percent: so several engines are made, and `again`
    tells how far two are apart that do the same.
    """
    units, found = random_units(LARGE, columns), list[dict[str, list[float]]]()
    query = ClippedGradient(loss=losses.logistic, at=np.random.default_rng(2).normal(size=columns), clip=1.0)
    for _ in range(ENGINES):
        one, other, parts = (InProcessEngine(units, threads=threads) for _ in range(3))
        tasks = {"one": one.part_sum, "again": other.part_sum, "parts": parts.clipped_sum}
        times: dict[str, list[float]] = {name: [] for name in tasks}
        for turn in range(max(2, repeats // ENGINES) + 1):
            for name, task in tasks.items():
                start = time.process_time()
                task(query)
                if turn:
                    times[name].append(time.process_time() - start)
        found.append(times)

    def ratio(name: str) -> float:
        of_each = (statistics.median(times[name]) / statistics.median(times["one"]) for times in found)
        return round(statistics.median(of_each), 3)

    return {
        "benchmark": "pass_speed",
        "what": "parts",
        "rows": LARGE,
        "columns": columns,
        "threads": threads,
        "cpu_ms": round(1e3 * statistics.median(times["parts"][0] for times in found), 3),
        "cpu_ratio": ratio("parts"),
        "again": ratio("again"),
        "limit": PARTS_LIMIT,
    }


def mixed_steps(units: Units, repeats: int, threads: int) -> dict[str, Any]:
    """A walk on which every step is taken as a plain gradient and as a mixed one, with kept slopes and without."""
    points = np.random.default_rng(1).normal(size=(repeats + 5, units.public.d))
    keeping, forgetting = InProcessEngine(units, threads=threads), InProcessEngine(units, threads=threads)
    times: dict[str, list[tuple[float, float]]] = {"plain": [], "mixed": [], "without": []}

    def mixed(k: int, before: int) -> MixedGradient:
        return MixedGradient(
            loss=losses.logistic, at=points[k], previous=points[before], clip=0.5, change_clip=0.1, gain=0.9
        )

    def plain(k: int) -> Any:
        return keeping.clipped_sum(ClippedGradient(loss=losses.logistic, at=points[k], clip=0.5))

    for k in range(2, len(points)):
        times["plain"].append(seconds(lambda k=k: plain(k)))
        times["mixed"].append(seconds(lambda k=k: keeping.clipped_sum(mixed(k, k - 1))))
        times["without"].append(seconds(lambda k=k: forgetting.clipped_sum(mixed(k, k - 2))))
    wall = {name: statistics.median(one for one, _ in found[3:]) for name, found in times.items()}
    busy = {name: statistics.median(one for _, one in found[3:]) for name, found in times.items()}
    fastest = {name: min(one for one, _ in found[3:]) for name, found in times.items()}
    return {
        "benchmark": "pass_speed",
        "what": "mixed step",
        "rows": len(units.private_targets),
        "columns": units.public.d,
        "threads": threads,
        "plain_ms": round(1e3 * wall["plain"], 3),
        "mixed_ms": round(1e3 * wall["mixed"], 3),
        "ratio": round(wall["mixed"] / wall["plain"], 3),
        "ratio_of_fastest": round(fastest["mixed"] / fastest["plain"], 3),
        "cpu_ratio": round(busy["mixed"] / busy["plain"], 3) if threads == 1 else None,
        "ratio_without": round(wall["without"] / wall["plain"], 3),
        "limit": MIXED_LIMIT,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=54)
    parser.add_argument("--repeats", type=int, default=41)
    options = parser.parse_args()

    generator = np.random.default_rng(2)
    units = random_units(options.rows, options.columns)
    stored = units.private_features
    with double_precision():
        query = ClippedGradient(loss=losses.logistic, at=generator.normal(size=options.columns), clip=1.0)
        engines = {threads: InProcessEngine(units, threads=threads) for threads in (1, 2)}
        print(
            json.dumps(
                {"benchmark": "pass_speed", "first_call_s": seconds(lambda: engines[1].clipped_sum(query))[0]}
            )
        )
        tasks: dict[Any, Callable[[], Any]] = {"sum": lambda: stored.sum()}  # type: ignore[union-attr]
        for threads, engine in engines.items():
            tasks[threads] = lambda engine=engine: engine.clipped_sum(query)
        times: dict[Any, list[tuple[float, float]]] = {name: [seconds(task)] for name, task in tasks.items()}
        for _ in range(options.repeats):
            for name, task in tasks.items():
                times[name].append(seconds(task))
    middle = {name: statistics.median(wall for wall, _ in found[1:]) for name, found in times.items()}
    fastest = {name: min(wall for wall, _ in found[1:]) for name, found in times.items()}
    busy = {name: statistics.median(cpu for _, cpu in found[1:]) for name, found in times.items()}
    for threads in engines:
        print(
            json.dumps(
                {
                    "benchmark": "pass_speed",
                    "rows": options.rows,
                    "columns": options.columns,
                    "threads": threads,
                    "numpy_sum_ms": round(1e3 * middle["sum"], 3),
                    "pass_ms": round(1e3 * middle[threads], 3),
                    "ratio": round(middle[threads] / middle["sum"], 3),
                    "ratio_of_fastest": round(fastest[threads] / fastest["sum"], 3),
                    "cpu_ratio": round(busy[1] / busy["sum"], 3) if threads == 1 else None,
                    "limit": LIMIT if threads == 1 else None,
                }
            )
        )
    with double_precision():
        for threads in (1, 2):
            print(json.dumps(parts_cost(options.columns, options.repeats, threads)), flush=True)
        for measured in (units, random_units(*SMALL)):
            for threads in (1, 2):
                print(json.dumps(mixed_steps(measured, options.repeats, threads)), flush=True)


if __name__ == "__main__":
    main()
