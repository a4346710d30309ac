"""Times of the engine on Ray beside those of one process: a round, tiny parts, a lost worker, and users.

    python -m benchmarks.scale_ray [--quick | --users]

Prints one JSON line each: `users` (4,000,000 x 54 records of 1,000,000 users on 2 workers, from the start to a first
sum: `seconds`, and `core_seconds` of the workers, both also where a record is a unit; `driver_mb`, by which this
process grows at most, and `driver_tiny_mb` with a hundredth of the records; `lost_seconds` of a sum in which a worker
is killed), `round` (4,000,000 x 54, 2 workers; `ratio` of a round to a pass in this process, the two in turns), `tiny`
(8 workers with 10 rows each; `overhead_ms` over the same sum here) and `lost` (`seconds` of a round in which a worker
is killed, and `reload`, those that reading its parts takes by itself).
"""

import argparse
import dataclasses
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

from benchmarks.cells import peak_memory_mb, reset_peak_memory
from privopt.data.record_source import ArrayRecords, Description
from privopt.data.units import Units
from privopt.data.user_parts import MOST_USERS
from privopt.engine.in_process import InProcessEngine
from privopt.engine.on_ray.cluster import Cluster
from privopt.engine.on_ray.engine import RayEngine, open_on_ray
from privopt.engine.placement import Placement
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.gradient import ClippedGradient

WIDTH = 54
ROUND_ROWS, QUICK_ROWS = 4_000_000, 2_000_000
QUICK_USERS = 2_400_000  # records of so many users that there are two parts
DESCRIPTION = Description(row_bound=1.0, classes=(0, 1))


class MadeRecords(ArrayRecords):
    """Normal rows, the same for the same seed, made as they are read: nothing but a seed travels to a worker."""

    def __init__(self, rows: int, width: int, seed: int) -> None:
        self.rows, self.width, self._seed = rows, width, seed
        self._latest: tuple[int, Any, Any] | None = None  # block: read in order, none is made twice

    def blocks(self, start: int, stop: int) -> Any:
        """See `RecordSource.blocks`; a block begins at a multiple of 2^16, or at `start`."""
        while start < stop:
            block, first = divmod(start, 2**16)
            length = min(stop - start, 2**16 - first)
            features, targets = (column[first : first + length] for column in self._made(block))
            yield from ArrayRecords(features, targets).blocks(0, length)
            start += length

    def _made(self, block: int) -> tuple[Any, Any]:
        """The features and targets of a block."""
        if self._latest is None or self._latest[0] != block:
            rng = np.random.default_rng([self._seed, block])
            features = rng.standard_normal((2**16, self.width), np.float32)
            self._latest = block, features, rng.integers(0, 2, 2**16)
        return self._latest[1:]

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


class MadeUsers(MadeRecords):
    """The same records, four of each user, far from each other."""

    by_user = True

    def blocks(self, start: int, stop: int) -> Any:
        """See `RecordSource.blocks`."""
        for block in super().blocks(start, stop):
            length = len(block.private_features)
            yield block._replace(private_keys=np.arange(start, start + length) * 7919 % (self.rows // 4))
            start += length


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


def measure_users(rows: int) -> None:
    """Records that are sent to whoever holds their users, beside records that are read where they stay."""
    about = dataclasses.replace(DESCRIPTION, n=rows // 4 + 1)
    placement = Placement(engine="ray", workers=2)

    def loaded(source: MadeRecords, described: Description) -> tuple[RayEngine, float, float, float]:
        """An engine that has answered, the seconds until then, those of its workers' cores, and this process' MB."""
        held, start = reset_peak_memory(), time.perf_counter()
        engine = open_on_ray(source, described, placement)
        engine.clipped_sum(query(0))
        after, grown = time.perf_counter() - start, peak_memory_mb() - held
        actors = [worker.actor for worker in engine._fleet.workers]
        of_cores = ray.get([actor.__ray_call__.remote(lambda _: sum(os.times()[:2])) for actor in actors])
        return engine, after, sum(of_cores), grown

    cluster = Cluster.joined(None)  # started before anything is timed
    tiny_about = dataclasses.replace(about, n=MOST_USERS)  # two parts, too
    for made, described in ((MadeRecords, DESCRIPTION), (MadeUsers, tiny_about)):  # libraries are read
        engine, _, _, tiny = loaded(made(rows // 100, WIDTH, 3), described)
        engine.close()
    engine, alone, alone_cores, _ = loaded(MadeRecords(rows, WIDTH, 3), DESCRIPTION)
    engine.close()
    engine, together, cores, grown = loaded(MadeUsers(rows, WIDTH, 3), about)
    expected = engine.clipped_sum(query(1)).tobytes()
    pid = ray.get(engine._fleet.workers[0].actor.__ray_call__.remote(lambda _: os.getpid()))
    start = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    same = engine.clipped_sum(query(1)).tobytes() == expected
    lost = time.perf_counter() - start
    engine.close()
    cluster.close()
    show(
        "users",
        workers=2,
        rows=rows,
        seconds=round(together, 1),
        records_seconds=round(alone, 1),
        core_seconds=round(cores, 1),
        records_core_seconds=round(alone_cores, 1),
        driver_mb=round(grown, 1),
        driver_tiny_mb=round(tiny, 1),
        lost_seconds=round(lost, 1),
        same=same,
    )


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
    parser.add_argument("--users", action="store_true", help="users alone")
    arguments = parser.parse_args()
    quick = arguments.quick
    with double_precision():
        measure_users(QUICK_USERS if quick else ROUND_ROWS)
        if arguments.users:
            return
        measure_tiny(50 if quick else 200)
        measure_round(QUICK_ROWS if quick else ROUND_ROWS, 7 if quick else 15)


if __name__ == "__main__":
    main()
