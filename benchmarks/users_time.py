"""How long fits of many people's records take, in a process of its own, on idle cores and on busy ones."""

import json
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from benchmarks.bars import Verdict
from benchmarks.peak_memory import peak_memory_mb, reset_peak_memory
from benchmarks.processes import lines_of
from benchmarks.results import Record, machine, select

RECORDS, WIDTH = 100, 50
SOLVERS = ("auto", "user-federated-averaging")
PEOPLE, QUICK_PEOPLE = (10_000, 100_000), (200,)
LONGEST = {"auto": 90.0, "user-federated-averaging": 180.0}  # seconds on two idle cores
MOST_MEMORY_GB, BUSY_RATIO = 3.0, 3.0
BURNERS = 2  # processes that keep the cores busy
MEGABYTE = 2**20


def measure(*, quick: bool = False) -> Iterator[Record]:
    """One record a size, solver and state of the cores."""
    for people in QUICK_PEOPLE if quick else PEOPLE:
        for solver in SOLVERS:
            for busy in (False,) if quick else (False, True):
                with _busy_cores(BURNERS if busy else 0):
                    (record,) = lines_of(
                        ["-m", "benchmarks.users_time", json.dumps({"people": people, "solver": solver})]
                    )
                yield {**record, "method": f"{solver}{', busy cores' if busy else ''}"}


def verdicts(records: Sequence[Record]) -> Iterator[Verdict]:
    """Seconds, memory and what busy cores cost."""
    for one in records:
        if one["people"] != PEOPLE[-1]:
            continue
        solver, _, busy = one["method"].partition(", ")
        if not busy:
            limit = LONGEST[solver]
            yield Verdict(
                f"fit of {one['data']}, {solver}, seconds",
                one["fit_s"],
                f"at most {limit:g}",
                one["fit_s"] <= limit,
            )
            added = one["memory_added_mb"] / 1024.0
            yield Verdict(
                f"memory of it beyond the arrays, {solver}, GB",
                added,
                f"at most {MOST_MEMORY_GB:g}",
                added <= MOST_MEMORY_GB,
            )
            continue
        idle = [other for other in select(records, data=one["data"]) if other["method"] == solver]
        if idle:
            ratio = one["fit_s"] / idle[0]["fit_s"]
            title = f"fit of {one['data']}, {solver}, busy over idle cores"
            yield Verdict(title, ratio, f"at most {BUSY_RATIO:g}", ratio <= BUSY_RATIO)


@contextmanager
def _busy_cores(count: int) -> Generator[None]:
    """Processes that only burn cycles, ended with the block."""
    burning = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in burning:
            process.kill()
            process.wait()


def generated(people: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """float32 rows, classes and users, in an order in which nobody's records are together."""
    rng = np.random.default_rng(seed)
    rows = people * RECORDS
    X = np.empty((rows, WIDTH), np.float32)
    step = 2**16
    for start in range(0, rows, step):
        part = X[start : start + step]
        part[...] = rng.uniform(-1.0, 1.0, size=part.shape)
    truth = rng.normal(size=WIDTH).astype(np.float32)
    y = (X @ truth + rng.logistic(size=rows).astype(np.float32) > 0).astype(np.int64)
    return X, y, np.tile(np.arange(people), RECORDS)


def one_fit(people: int, solver: str) -> Record:
    """Fit once and report."""
    from privopt import LogisticRegression

    X, y, groups = generated(people)
    arrays = sum(array.nbytes for array in (X, y, groups)) / MEGABYTE
    before = reset_peak_memory()
    processor, begun = time.process_time(), time.perf_counter()
    model = LogisticRegression(
        epsilon=1.0, delta=1.0 / people**2, bounds=(-1, 1), classes=[0, 1], solver=solver, random_state=0
    ).fit(X, y, groups=groups)
    return {
        "benchmark": "users",
        "data": f"{people} people x {RECORDS} records x {WIDTH} columns",
        "relation": "replace-one",
        "epsilon": 1.0,
        "people": people,
        "solver": model.plan_.solver,
        "releases": model.plan_.releases,
        "planned_s": model.plan_.seconds,
        "fit_s": time.perf_counter() - begun,
        "processor_s": time.process_time() - processor,
        "arrays_mb": arrays,
        "memory_added_mb": peak_memory_mb() - before,
        "score": model.score(X[:100_000], y[:100_000]),
        "machine": machine(),
        "command": "python -m benchmarks users --table time",
    }


if __name__ == "__main__":
    print(json.dumps(one_fit(**json.loads(sys.argv[1]))), flush=True)
