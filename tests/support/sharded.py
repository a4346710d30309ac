"""The engine of a cluster without a cluster: its shards in this process, each asked as if it were somewhere else."""

import itertools
import pickle
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from privopt.data.record_source import ArrayRecords, Description, RecordSource
from privopt.data.units import Units, UnitsNoise
from privopt.engine.on_ray import fleet
from privopt.engine.on_ray.engine import RayEngine
from privopt.engine.on_ray.fleet import Call, Fleet, Worker, checked
from privopt.engine.on_ray.layout import Layout, PartPlan, cut, lay_out
from privopt.engine.on_ray.shard import SOURCE, Shard
from privopt.engine.on_ray.user_shard import Owners, UserShard
from privopt.engine.parts import ExactSum, ranges_of

_SPAN = 7  # records that are read and sent at a time


def sent(message: Any) -> Any:
    """What arrives of a message."""
    return pickle.loads(pickle.dumps(message))


class _Method:
    """A method of an actor: called at once, on copies of what it is given, and its answer is a copy."""

    def __init__(self, shard: Shard, name: str) -> None:
        self._method = getattr(shard, name)

    def remote(self, *arguments: Any) -> Any:
        return sent(self._method(*sent(arguments)))


class _Actor:
    def __init__(self, shard: Shard) -> None:
        self._shard = shard

    def __getattr__(self, name: str) -> _Method:
        return _Method(self._shard, name)


class ShardsHere(Fleet):
    """A fleet whose workers are shards in this process; everything else is the fleet's own.

    Args:
        source: the records.
        description: what is public about the units.
        layout: the parts.
        workers: how many shards hold them.
        backwards: whether parts are dealt out, read and summed, and answers arrive and are added up, from the last to
            the first.
    """

    def __init__(
        self, source: RecordSource, description: Description, layout: Layout, *, workers: int, backwards: bool
    ) -> None:
        self.cluster: Any = SimpleNamespace(described="shards in this process", lost=None, close=lambda: None)
        self.origin, self.laid_out, self.retries_left = description.origin(source), layout.laid_out, 0
        self._source, self._description, self._layout = source, description, layout
        self._steps, self._unneeded, self._next, self._closed = {}, set(), SOURCE + 1, False
        self._way = -1 if backwards else 1
        self.plans = layout.plans
        seat: Any = None  # they are started here
        self.workers = [
            Worker(plans[:: self._way], seat) for plans in cut(layout.plans, workers)[:: self._way]
        ]
        self._owner = {part: k for k, worker in enumerate(self.workers) for part in worker.parts}
        # This process keeps its threads, and what it compiles it compiles when it is asked for.
        module = "privopt.engine.on_ray.shard"
        with mock.patch(f"{module}.threadpool_limits"), mock.patch(f"{module}.warm"):
            shards = [self._shard(worker.plans) for worker in self.workers]
        self._fill(shards)
        for worker, shard in zip(self.workers, shards, strict=True):
            worker.actor = _Actor(shard)

    def close(self) -> None:
        """See `Fleet.close`: Ray, which knows nothing of these workers, is not asked."""
        self._closed = True

    def _shard(self, plans: Sequence[PartPlan]) -> Any:
        about = (self._source, self._description, self._layout.public, plans, 1)
        if self._layout.secret is None:
            return Shard(*sent(about))
        holders = np.array([self._owner[plan.index] for plan in self._layout.plans])
        return UserShard(*sent((*about, Owners(self._layout.secret, holders, only_counted=False))))

    def _fill(self, shards: Sequence[Any]) -> None:
        """Have every shard read its parts, or get its users' records from whoever reads them."""
        if self._layout.secret is not None:
            self._exchange_users(shards)
            return
        for shard, worker in zip(shards, self.workers, strict=True):
            assert [shard.load(part) for part in worker.parts] == [None] * len(worker.parts)

    def _exchange_users(self, shards: Sequence[UserShard]) -> None:
        rows, everybody = self._source.rows, range(len(shards))
        for place, start in enumerate(range(0, rows, _SPAN)[:: self._way]):
            span = (start, min(start + _SPAN, rows))
            pieces = sent(shards[place % len(shards)].cut(*span, everybody))
            assert [shards[k].take(*span, *pieces[k]) for k in everybody[:: self._way]] == [None] * len(
                shards
            )
        units = dict[int, int]()
        for shard, worker in zip(shards, self.workers, strict=True):
            units.update(zip(worker.parts, shard.units(), strict=True))
        first = [0, *itertools.accumulate(units[part] for part in sorted(units))]
        self.plans = [PartPlan(part, first[part], units[part]) for part in sorted(units)]
        for shard, worker in zip(shards, self.workers, strict=True):
            assert [shard.settle(part, first[part]) for part in worker.parts] == [None] * len(worker.parts)

    def total(self, known_as: int, calls: Mapping[int, Call], *, told: bool = False) -> ExactSum:
        """See `Fleet.total`: in the order in which answers arrive, each of parts in the shard's order."""
        if self._way == 1:
            return super().total(known_as, calls, told=told)
        turned: dict[int, Call] = {
            k: (
                method,
                (question, type(parts)(reversed(parts.items() if isinstance(parts, dict) else parts))),
            )
            for k, (method, (question, parts)) in calls.items()
        }
        return fleet.total_of(self.ask(known_as, turned, told=told)[::-1])

    def _answers(
        self, known_as: int, calls: Mapping[int, Call], *, fetch: bool, told: bool = False
    ) -> list[Any]:
        del told  # nobody watches
        assert fetch  # so few shards are not added up by others
        answers = {k: checked(self._sent(k, known_as, calls[k])) for k in list(calls)[:: self._way]}
        return [answers[k] for k in calls]


class _ShardsOfUnits(ShardsHere):
    """Shards of units that are there: each is handed its parts, and reads nothing."""

    def __init__(self, units: Units, layout: Layout, *, workers: int, backwards: bool) -> None:
        self._units = units
        nothing = ArrayRecords(np.zeros((0, units.public.d)))
        super().__init__(nothing, Description(), layout, workers=workers, backwards=backwards)
        self.origin = units.origin

    def _fill(self, shards: Sequence[Any]) -> None:
        for shard, worker in zip(shards, self.workers, strict=True):
            shard._private_engines[SOURCE] = {
                plan.index: shard._engine(self._units.part(plan.first, plan.first + plan.units))
                for plan in worker.plans
            }


def on_shards(
    source: RecordSource,
    description: Description,
    *,
    workers: int,
    backwards: bool = False,
    noise: UnitsNoise | None = None,
) -> RayEngine:
    """`open_on_ray` without a cluster; of users, n is given."""
    layout = lay_out(source, description, noise)
    return _engine(ShardsHere(source, description, layout, workers=workers, backwards=backwards), layout)


def sharded(units: Units, *, workers: int, backwards: bool = False) -> RayEngine:
    """The same on units that are there, whatever they were made from."""
    plans = [PartPlan(k, start, stop - start) for k, (start, stop) in enumerate(ranges_of(units))]
    layout = Layout(units.public, plans, units.seeded, None)
    return _engine(_ShardsOfUnits(units, layout, workers=workers, backwards=backwards), layout)


def _engine(shards: ShardsHere, layout: Layout) -> RayEngine:
    ranges = [(plan.first, plan.first + plan.units) for plan in shards.plans]
    return RayEngine(shards, layout.public, SOURCE, ranges, layout.seeded, None)
