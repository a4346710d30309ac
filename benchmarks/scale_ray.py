"""The engine on Ray beside one process: a round, tiny shares, and a lost worker."""

import os
import signal
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import ray

from benchmarks.scale_frame import Line, Size, in_turns, line, seconds
from privopt.data.record_source import ArrayRecords, Description
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.engine.on_ray.engine import RayEngine, open_on_ray
from privopt.engine.placement import Placement
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.gradient import ClippedGradient

ROUND_LIMIT, TINY_LIMIT_MS, LOST_LIMIT = 1.2, 20, 5  # at 2 workers, at 8, seconds beyond loading
FEW, MANY = 2, 8  # workers
TINY_ROWS, TINY_REPEATS = 10, 10  # of a worker; rounds for each of a pass over many rows
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


@contextmanager
def both(rows: int, width: int, workers: int) -> Generator[tuple[RayEngine, InProcessEngine, float]]:
    """The same records on a cluster of this machine and in this process; and the seconds until the cluster answers."""
    source = MadeRecords(rows, width, 1)
    local = InProcessEngine(source.units())
    start = time.perf_counter()
    remote = open_on_ray(source, DESCRIPTION, Placement(engine="ray", workers=workers))
    try:
        with double_precision():
            require_same(remote, local, 0)
            loaded = time.perf_counter() - start
            require_same(remote, local, 1)
            yield remote, local, loaded
    finally:
        remote.close()


def query(width: int, step: int) -> ClippedGradient:
    """A gradient, at another point each step."""
    return ClippedGradient(loss=losses.logistic, at=np.full(width, 0.01 * step), clip=0.3)


def require_same(remote: RayEngine, local: InProcessEngine, step: int) -> None:
    """Ask both once.

    Raises:
        RuntimeError: the sums differ.
    """
    asked = query(local.public.d, step)
    if remote.clipped_sum(asked).tobytes() != local.clipped_sum(asked).tobytes():
        raise RuntimeError("the sums of the cluster and of this process differ")


def compared(remote: RayEngine, local: InProcessEngine, repeats: int) -> dict[str, float]:
    """The medians of a round's seconds there and here, the two in turns, each time at another point."""
    steps: dict[str, int] = {"there": 1, "here": 1}

    def ask(name: str, engine: RayEngine | InProcessEngine) -> None:
        steps[name] += 1
        engine.clipped_sum(query(local.public.d, steps[name]))

    return in_turns({"there": lambda: ask("there", remote), "here": lambda: ask("here", local)}, repeats)


def rounds(size: Size) -> Iterator[Line]:
    """`round`: a gradient over many rows by workers, over the same in this process."""
    for workers in (FEW, MANY):
        with both(size.rows, size.columns, workers) as (remote, local, _):
            times = compared(remote, local, size.repeats)
            ratio, more = times["there"] / times["here"], times["there"] - times["here"]
            limit = ROUND_LIMIT if workers == FEW else None
            yield line("round", workers, ratio, more, limit=limit, rows=size.rows)


def tiny(size: Size) -> Iterator[Line]:
    """`tiny`: what a round takes beyond the same sum in this process, where workers have next to nothing to do."""
    with (
        mock.patch("privopt.engine.parts.PART_UNITS", TINY_ROWS),
        both(MANY * TINY_ROWS, size.columns, MANY) as (remote, local, _),
    ):
        times = compared(remote, local, TINY_REPEATS * size.repeats)
        yield line("tiny", MANY, None, times["there"] - times["here"], limit_ms=TINY_LIMIT_MS)


def lost(size: Size) -> Iterator[Line]:
    """`lost`: a round in which a worker is killed, beside the seconds that loading its rows takes by itself."""
    with both(size.rows, size.columns, FEW) as (remote, local, loaded):
        victim = remote._fleet.workers[0]
        process = ray.get(victim.actor.__ray_call__.remote(lambda _: os.getpid()))
        start = time.perf_counter()
        os.kill(process, signal.SIGKILL)
        require_same(remote, local, 3)
        here = seconds(lambda: local.clipped_sum(query(size.columns, 4)))
        gone = time.perf_counter() - start - 2 * here
        share = sum(plan.units for plan in victim.plans)
        reload = seconds(lambda: MadeRecords(share, size.columns, 1).units())
        yield line(
            "lost",
            FEW,
            None,
            seconds=gone,
            reload=reload,
            first_load=loaded,
            limit=reload + LOST_LIMIT,
            rows=size.rows,
        )
