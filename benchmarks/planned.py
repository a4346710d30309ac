"""Planned against measured seconds of a fit, at several numbers of columns.

    python -m benchmarks planned

Rows are drawn uniformly, once a width; a fit by the default settings is repeated after one that compiles, and the
fastest counts: another process on the machine only slows it. A plan's seconds are for one core and should be within a
factor of 3 of the measured ones.
"""

import time
from collections.abc import Iterator

import numpy as np

from benchmarks.results import Record, machine
from privopt import LogisticRegression

ROWS, QUICK_ROWS = 60_000, 6_000
WIDTHS = (10, 54, 108, 511)
MOST_APART = 3.0


def measure(*, repeats: int, quick: bool) -> Iterator[Record]:
    """One record a width."""
    rows = QUICK_ROWS if quick else ROWS
    for width in WIDTHS:
        yield {
            "benchmark": "planned",
            "what": f"{width} columns",
            "machine": machine(),
            **fits(rows, width, repeats),
        }


def fits(rows: int, width: int, repeats: int) -> Record:
    """The plan of a fit, and the fastest of its repetitions."""
    generator = np.random.default_rng(width)
    features = generator.uniform(-1.0, 1.0, (rows, width)).astype(np.float32)
    labels = (features[:, 0] - features[:, -1] + generator.normal(0.0, 0.5, rows) > 0).astype(int)
    model = LogisticRegression(epsilon=1.0, delta=1.0 / rows**2, bounds=(-1, 1), classes=[0, 1])
    plan = model.plan(n_features=width, n=rows)
    walls, processors = [], []
    for _ in range(1 + repeats):
        wall, processor = time.perf_counter(), time.process_time()
        model.fit(features, labels)
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    fit_s = min(walls[1:])
    return {
        "rows": rows,
        "columns": width,
        "solver": plan.solver,
        "planned_s": plan.seconds,
        "fit_s": fit_s,
        "fit_cpu_s": min(processors[1:]),
        "planned_over_measured": plan.seconds / fit_s,
        "within": bool(1.0 / MOST_APART <= plan.seconds / fit_s <= MOST_APART),
    }
