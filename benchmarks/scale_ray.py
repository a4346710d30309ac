"""The engine on Ray beside one process: a round, tiny shares, a lost worker, and users."""

import dataclasses
import os
import signal
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import ray

from benchmarks.peak_memory import peak_memory_mb, reset_peak_memory
from benchmarks.scale_frame import Line, Size, in_turns, line, seconds
from privopt.data.record_source import ArrayRecords, Description
from privopt.data.units import Units
from privopt.data.user_parts import MOST_USERS
from privopt.engine.in_process import InProcessEngine
from privopt.engine.on_ray.cluster import Cluster
from privopt.engine.on_ray.engine import RayEngine, open_on_ray
from privopt.engine.placement import Placement
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.queries.slopes import ClippedGradient

ROUND_LIMIT, ROUND_LIMIT_MS, LOST_LIMIT = 1.2, 20, 5  # of 2 workers; of tiny shares; seconds beyond loading
DRIVER_LIMIT_MB = 150  # more than before it opened a table of users
FEW, MANY = 2, 8  # workers
TINY_ROWS, TINY_REPEATS = 10, 10  # of a worker; rounds for each of a pass over many rows
LEAST_USERS = 600_000  # so that there are two parts
RECORDS_A_USER, QUICK_RECORDS_A_USER = 4, 2
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


class MadeUsers(MadeRecords):
    """The same records, some of each user, far from each other."""

    by_user = True

    def __init__(self, rows: int, width: int, seed: int, users: int) -> None:
        super().__init__(rows, width, seed)
        self._users = users

    def blocks(self, start: int, stop: int) -> Any:
        """See `RecordSource.blocks`."""
        for block in super().blocks(start, stop):
            length = len(block.private_features)
            yield block._replace(private_keys=np.arange(start, start + length) * 7919 % self._users)
            start += length


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
    """`round`: a gradient over many rows by workers, over the same in this process.

    The few milliseconds of any round are a small part of a pass over the rows of a whole run alone: fewer rows have
    their limit in milliseconds.
    """
    for workers in (FEW,) if size.quick else (FEW, MANY):
        with both(size.rows, size.columns, workers) as (remote, local, _):
            times = compared(remote, local, size.repeats)
            ratio, more = times["there"] / times["here"], times["there"] - times["here"]
            limit = {"overhead_ms": ROUND_LIMIT_MS} if size.quick else {"ratio": ROUND_LIMIT}
            yield line(
                "round", workers, ratio, more, at_most=limit if workers == FEW else None, rows=size.rows
            )


def tiny(size: Size) -> Iterator[Line]:
    """`tiny`: what a round takes beyond the same sum in this process, where workers have next to nothing to do."""
    with (
        mock.patch("privopt.engine.parts.PART_UNITS", TINY_ROWS),
        both(MANY * TINY_ROWS, size.columns, MANY) as (remote, local, _),
    ):
        times = compared(remote, local, TINY_REPEATS * size.repeats)
        yield line(
            "tiny",
            MANY,
            times["there"] / times["here"],
            times["there"] - times["here"],
            at_most={"overhead_ms": ROUND_LIMIT_MS},
        )


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
            gone / reload,
            gone - reload,
            seconds=gone,
            reload=reload,
            first_load=loaded,
            at_most={"seconds": reload + LOST_LIMIT},
            rows=size.rows,
        )


def users(size: Size) -> Iterator[Line]:
    """`users`: loading records that go to whoever holds their users, over records that are read where they stay."""
    each = QUICK_RECORDS_A_USER if size.quick else RECORDS_A_USER
    rows = max(size.rows, each * LEAST_USERS)
    about = dataclasses.replace(DESCRIPTION, n=rows // each + 1)
    placement = Placement(engine="ray", workers=FEW)

    def loaded(source: MadeRecords, described: Description) -> tuple[RayEngine, float, float, float]:
        """An engine that has answered, the seconds until then, those of its workers' cores, and this process' MB."""
        held, start = reset_peak_memory(), time.perf_counter()
        engine = open_on_ray(source, described, placement)
        engine.clipped_sum(query(size.columns, 0))
        after, grown = time.perf_counter() - start, peak_memory_mb() - held
        actors = [worker.actor for worker in engine._fleet.workers]
        of_cores = ray.get([actor.__ray_call__.remote(lambda _: sum(os.times()[:2])) for actor in actors])
        return engine, after, sum(of_cores), grown

    cluster = Cluster.joined(None)  # started before anything is timed
    tiny_about = dataclasses.replace(about, n=MOST_USERS)  # two parts, too
    with double_precision():
        few = rows // 100
        tiny_users = MadeUsers(few, size.columns, 3, few // each)
        for source, described in ((MadeRecords(few, size.columns, 3), DESCRIPTION), (tiny_users, tiny_about)):
            engine, _, _, tiny_mb = loaded(source, described)  # libraries are read
            engine.close()
        engine, alone, alone_cores, _ = loaded(MadeRecords(rows, size.columns, 3), DESCRIPTION)
        engine.close()
        engine, together, cores, grown = loaded(MadeUsers(rows, size.columns, 3, rows // each), about)
        expected = engine.clipped_sum(query(size.columns, 1)).tobytes()
        process = ray.get(engine._fleet.workers[0].actor.__ray_call__.remote(lambda _: os.getpid()))
        start = time.perf_counter()
        os.kill(process, signal.SIGKILL)
        if engine.clipped_sum(query(size.columns, 1)).tobytes() != expected:
            raise RuntimeError("the sums before and after a loss differ")
        gone = time.perf_counter() - start
        engine.close()
    cluster.close()
    yield line(
        "users",
        FEW,
        together / alone,
        seconds=together,
        records_seconds=alone,
        core_seconds=cores,
        records_core_seconds=alone_cores,
        driver_mb=grown,
        driver_tiny_mb=tiny_mb,
        lost_seconds=gone,
        at_most={"driver_mb": DRIVER_LIMIT_MB},
        rows=rows,
    )
