"""Times of the engine on Ray beside those of one process: a round, tiny parts, and a lost worker.

    python -m benchmarks.scale_ray [--quick]

Prints one JSON line each: `round` (4,000,000 x 54, 2 workers; `ratio` of a round to a pass in this process, the two in
turns), `tiny` (8 workers with 10 rows each; `overhead_ms` over the same sum here) and `lost` (`seconds` of a round in
which a worker is killed, and `reload`, those that reading its parts takes by itself).
"""

import argparse
import json
import os
import signal
import statistics
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import ray

from privopt.data.record_source import ArrayRecords, Description
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.engine.on_ray.engine import RayEngine, open_on_ray
from privopt.engine.placement import Placement
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.gradient import ClippedGradient

WIDTH = 54
ROUND_ROWS, QUICK_ROWS = 4_000_000, 2_000_000
DESCRIPTION = Description(row_bound=1.0, classes=(0, 1))


class MadeRecords(ArrayRecords):
    """Normal rows, the same for the same seed, made as they are read: nothing but a seed travels to a worker."""

    def __init__(self, rows: int, width: int, seed: int) -> None:
        self.rows, self.width, self._seed = rows, width, seed

    def blocks(self, start: int, stop: int) -> Any:
        """See `RecordSource.blocks`; a block begins at a multiple of 2^16, or at `start`."""
        while start < stop:
            block, first = divmod(start, 2**16)
            length = min(stop - start, 2**16 - first)
            rng = np.random.default_rng([self._seed, block])
            features = rng.standard_normal((2**16, self.width), np.float32)[first : first + length]
            targets = rng.integers(0, 2, 2**16)[first : first + length]
            yield from ArrayRecords(features, targets).blocks(0, length)
            start += length

    def fingerprint(self) -> str:
        """See `RecordSource.fingerprint`."""
        return f"made {self.rows} x {self.width} from {self._seed}"

    def units(self) -> Units:
        """All of them in this process."""
        blocks = list(self.blocks(0, self.rows))
        features = np.concatenate([block.private_features for block in blocks])
        targets = np.concatenate([block.private_targets for block in blocks])
        return Units.from_arrays(features, targets, **DESCRIPTION.arguments())


def seconds(run: Callable[[], Any]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def opened(source: MadeRecords, workers: int) -> RayEngine:
    """An engine on a cluster of this machine."""
    return open_on_ray(source, DESCRIPTION, Placement(engine="ray", workers=workers))


def query(step: int) -> ClippedGradient:
    """A gradient, at another point each step."""
    return ClippedGradient(loss=losses.logistic, at=np.full(WIDTH, 0.01 * step), clip=0.3)


def show(what: str, **numbers: Any) -> None:
    """A line of results."""
    print(json.dumps({"what": what, "engine": "ray", **numbers}), flush=True)


def in_turns(remote: RayEngine, local: InProcessEngine, rounds: int) -> tuple[float, float]:
    """The medians of a round's seconds there and here, the two in turns."""
    for step in range(2):
        same = remote.clipped_sum(query(step)).tobytes() == local.clipped_sum(query(step)).tobytes()
        assert same, "the sums differ"
    times = [
        (
            seconds(lambda s=step: remote.clipped_sum(query(s))),
            seconds(lambda s=step: local.clipped_sum(query(s))),
        )
        for step in range(rounds)
    ]
    there, here = zip(*times, strict=True)
    return statistics.median(there), statistics.median(here)


def measure_round(rows: int, rounds: int) -> None:
    """A gradient over many rows; and what it costs to lose a worker."""
    source = MadeRecords(rows, WIDTH, 1)
    local = InProcessEngine(source.units())
    loading = time.perf_counter()
    remote = opened(source, 2)
    try:
        remote.clipped_sum(query(0))
        loaded = time.perf_counter() - loading
        there, here = in_turns(remote, local, rounds)
        show(
            "round",
            workers=2,
            rows=rows,
            ratio=round(there / here, 3),
            ray_ms=1e3 * there,
            here_ms=1e3 * here,
        )
        fleet = remote._fleet  # whose worker is killed
        victim = fleet.workers[0]
        pid = ray.get(victim.actor.__ray_call__.remote(lambda _: os.getpid()))
        expected = local.clipped_sum(query(3)).tobytes()
        start = time.perf_counter()
        os.kill(pid, signal.SIGKILL)
        same = remote.clipped_sum(query(3)).tobytes() == expected
        lost = time.perf_counter() - start
        share = sum(plan.units for plan in victim.plans)
        reload = seconds(lambda: MadeRecords(share, WIDTH, 1).units())
        show(
            "lost",
            workers=2,
            seconds=round(lost, 2),
            reload=round(reload, 2),
            first_load=round(loaded, 2),
            same=same,
        )
    finally:
        remote.close()


def measure_tiny(rounds: int) -> None:
    """Eight workers with next to nothing to do."""
    source = MadeRecords(80, WIDTH, 2)
    with mock.patch("privopt.engine.parts.PART_UNITS", 10):
        remote, local = opened(source, 8), InProcessEngine(source.units())
        try:
            there, here = in_turns(remote, local, rounds)
            show("tiny", workers=8, overhead_ms=round(1e3 * (there - here), 2))
        finally:
            remote.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds")
    quick = parser.parse_args().quick
    with double_precision():
        measure_tiny(50 if quick else 200)
        measure_round(QUICK_ROWS if quick else ROUND_ROWS, 7 if quick else 15)


if __name__ == "__main__":
    main()
