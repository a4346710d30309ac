"""On paper: passes over a table that no machine here could hold, from rates measured here. JSON lines.

    python -m benchmarks.scale_forecast [--records 1e9] [--columns 100] [--passes 12 102 150]

Measured: a clipped gradient on one thread over rows in memory, as float32 and at 8 bits, each beyond the caches.
Everything else is assumed, and an argument: the machines and their cores, what the memory of one machine delivers
(`--bus`, GB/s), its storage (`--disk`), how fast a core reads files into rows (`--fill`, see `benchmarks.scale`), what
a round costs besides (`--round`, ms), and what a driver needs for parameters of so many megabytes (`--parameters`, 10
ms for each). A line names what limits a pass: cores, memory, disk, or driver.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks.results import rounded
from benchmarks.scale_frame import Size, in_turns
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine

MEASURED_ROWS = 400_000
PARAMETER_SECONDS = 0.01  # of a driver, for each megabyte of parameters that travels down and up
ENTRY_BYTES = {"float32": 4, "int8": 1}


def core_rates(columns: int) -> dict[str, float]:
    """Bytes of rows that one thread passes over in a second, by storage."""
    generator = np.random.default_rng(0)
    features = generator.standard_normal((MEASURED_ROWS, columns), dtype=np.float32)
    labels = generator.integers(0, 2, MEASURED_ROWS)
    size = Size(rows=MEASURED_ROWS, columns=columns, repeats=5)
    query, engines = size.query(), dict[str, InProcessEngine]()
    for storage in ENTRY_BYTES:
        units = Units.from_arrays(features, labels, row_bound=1.0, classes=[0, 1], storage=storage)
        engines[storage] = InProcessEngine(units, threads=1)
    tasks = {name: partial(engine.clipped_sum, query) for name, engine in engines.items()}
    taken = in_turns(tasks, size.repeats)
    return {name: MEASURED_ROWS * columns * ENTRY_BYTES[name] / taken[name] for name in tasks}


def forecasts(given: argparse.Namespace, rates: dict[str, float]) -> Iterator[dict[str, Any]]:
    """One line for each place, storage and number of passes."""
    places = (("cluster", given.machines, "float32"), ("stream", 1, "float32"), ("memory", 1, "int8"))
    for place, machines, storage in places:
        size = given.records * given.columns * ENTRY_BYTES[storage] / machines  # of one machine
        bus = 1e9 * (given.disk if place == "stream" else given.bus)
        ways = {
            "cores": size / (given.cores * rates[storage]),
            "disk" if place == "stream" else "memory": size / bus,
        }
        rest = 1e-3 * given.round * (place == "cluster") + PARAMETER_SECONDS * given.parameters
        limit = max(ways, key=lambda name: ways[name])
        a_pass = ways[limit] + rest
        floats = given.records * given.columns * 4 / machines
        for passes in given.passes:
            yield {
                "benchmark": "scale_forecast",
                "what": place,
                "machines": machines,
                "cores": given.cores,
                "storage": storage,
                "passes": passes,
                "gigabytes_a_machine": size / 1e9,
                "seconds_a_pass": a_pass,
                "minutes": passes * a_pass / 60,
                "minutes_of_loading": floats / (given.cores * given.fill * 1e9) / 60,
                "limit": limit if ways[limit] >= rest else "driver",
                "measured_gigabytes_a_core": rates[storage] / 1e9,
            }


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=float, default=1e9)
    parser.add_argument("--columns", type=int, default=100)
    parser.add_argument("--passes", type=int, nargs="+", default=[12, 102, 150])
    parser.add_argument("--machines", type=int, default=8)
    parser.add_argument("--cores", type=int, default=32)
    parser.add_argument("--bus", type=float, default=100.0, help="GB/s of one machine's memory")
    parser.add_argument("--disk", type=float, default=6.0, help="GB/s of one machine's storage")
    parser.add_argument(
        "--fill", type=float, default=0.15, help="GB/s of float32 that a core reads from files"
    )
    parser.add_argument(
        "--round", type=float, default=20.0, help="ms of a round on a cluster, besides the pass"
    )
    parser.add_argument("--parameters", type=float, default=0.0, help="megabytes of parameters")
    given = parser.parse_args()
    for found in forecasts(given, core_rates(given.columns)):
        print(json.dumps(rounded(found)), flush=True)


if __name__ == "__main__":
    main()
