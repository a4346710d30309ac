"""What rows on a public grid cost and save: the pass, the memory, and the excess of a fit, each against float32.

    python -m benchmarks.storage [--rows 4000000] [--columns 54] [--repeats 15] [--seeds 5] [--epsilon 1.0]

Prints JSON lines. `pass`: the fused gradient pass of a storage over that of float32 on the same records, in turns, the
median of the ratios; `gigabytes` are those of the stored rows. `users` is the pass over users of ten records. `excess`
(where `../shared/data` is there): the default logistic regression on Covertype and Adult, every storage with the same
seeds: the mean loss on the training rows as float32 has them, less that of the least there is, and `over_float32`, by
how much that is more than with float32, seed by seed, with its standard error.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("NUMBA_NUM_THREADS", "2")

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.datasets import SHARED_DATA, load
from benchmarks.optimum import TINY_PENALTY, accuracy, mean_loss, minimised, scores, unit_rows
from privopt import LogisticRegression
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.public import STORAGES
from privopt.queries.slopes import ClippedGradient

DATA = ("covertype", "adult")
RECORDS_OF_A_USER = 10


def units(rows: int, columns: int, storage: Any, groups: NDArray[np.int64] | None) -> Units:
    """Uniform features within [-1, 1] and random labels: the same records in every storage."""
    generator = np.random.default_rng(0)
    features = generator.random((rows, columns), np.float32) * 2 - 1
    return Units.from_arrays(
        features,
        generator.integers(0, 2, rows),
        row_bound=math.sqrt(columns),
        entry_bound=1.0,
        classes=[0, 1],
        storage=storage,
        groups=groups,
        max_records_per_user=RECORDS_OF_A_USER,
    )


def passes(rows: int, columns: int, repeats: int, *, by_user: bool) -> Iterator[dict[str, Any]]:
    """Every storage's pass beside that of float32, on one thread and on two."""
    groups = np.arange(rows) // RECORDS_OF_A_USER if by_user else None
    stored = {storage: units(rows, columns, storage, groups) for storage in STORAGES if storage != "float64"}
    query = ClippedGradient(loss=losses.logistic, at=np.random.default_rng(2).normal(size=columns), clip=1.0)
    for threads in (1, 2):
        engines = {storage: InProcessEngine(each, threads=threads) for storage, each in stored.items()}
        times: dict[str, list[float]] = {storage: [] for storage in engines}
        for _ in range(repeats + 1):
            for storage, engine in engines.items():
                begun = time.perf_counter()
                engine.clipped_sum(query)
                times[storage].append(time.perf_counter() - begun)
        for storage, taken in times.items():
            ratios = [one / plain for one, plain in zip(taken[1:], times["float32"][1:], strict=True)]
            entry_bytes = stored[storage].public.entry_bytes
            yield {
                "benchmark": "storage",
                "what": "users" if by_user else "pass",
                "storage": storage,
                "rows": rows,
                "columns": columns,
                "threads": threads,
                "pass_ms": round(1e3 * statistics.median(taken[1:]), 2),
                "ratio": round(statistics.median(ratios), 3),
                "ratio_of_fastest": round(min(taken[1:]) / min(times["float32"][1:]), 3),
                "gigabytes": round(rows * columns * entry_bytes / 1e9, 3),
            }


def excesses(name: str, epsilon: float, seeds: int) -> Iterator[dict[str, Any]]:
    """The fits of one data set."""
    train, targets, test, test_targets, info = load(name)
    classes = list(info.classes or ())
    least = minimised(unit_rows(train), targets, len(classes), TINY_PENALTY, maxiter=1000, maxfun=2000).fun
    found: dict[str, list[float]] = {}
    for storage in STORAGES:
        right: list[float] = []
        found[storage] = []
        for seed in range(seeds):
            model = LogisticRegression(
                epsilon=epsilon,
                delta=1.0 / len(targets) ** 2,
                bounds=info.encoder.numeric_range,
                classes=classes,
                row_bound="unit",
                random_state=seed,
                storage=storage,
            ).fit(train, targets)
            found[storage].append(mean_loss(scores(model, train), targets))
            right.append(accuracy(scores(model, test), test_targets))
        more = [one - plain for one, plain in zip(found[storage], found["float32"], strict=True)]
        yield {
            "benchmark": "storage",
            "what": "excess",
            "data": name,
            "rows": len(targets),
            "epsilon": epsilon,
            "seeds": seeds,
            "storage": storage,
            "excess": round(statistics.fmean(found[storage]) - least, 6),
            "over_float32": round(statistics.fmean(more), 7),
            "standard_error": round(statistics.stdev(more) / math.sqrt(seeds), 7) if seeds > 1 else None,
            "accuracy": round(statistics.fmean(right), 5),
            "solver": model.plan_.solver,
        }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--columns", type=int, default=54)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epsilon", type=float, default=1.0)
    options = parser.parse_args()
    if Path(SHARED_DATA).is_dir():
        for name in DATA:
            for line in excesses(name, options.epsilon, options.seeds):
                print(json.dumps(line), flush=True)
    with double_precision():
        for by_user in (False, True):
            for line in passes(options.rows, options.columns, options.repeats, by_user=by_user):
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
