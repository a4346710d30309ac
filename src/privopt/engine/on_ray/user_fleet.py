"""Workers that hold users: each reads a share of the records, and sends every record to whoever holds its user."""

import dataclasses
import itertools
import math
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np

from privopt.data.read_units import stored_bytes
from privopt.data.record_source import Description, RecordSource
from privopt.data.targets import check_units
from privopt.engine.on_ray.cluster import STORE_BYTES, Cluster
from privopt.engine.on_ray.fleet import LOADING, PATIENCE, Fleet, Worker, unavailable
from privopt.engine.on_ray.layout import Layout, PartPlan, lay_out
from privopt.engine.on_ray.shard import Shard
from privopt.engine.on_ray.user_shard import AT_ONCE, Exchange, Owners, UserActor
from privopt.engine.parts import Range
from privopt.engine.placement import Placement

_BUCKETS = 64  # of users that are counted; a worker more has nothing to count
_SPAN_BYTES, _SPAN_RECORDS = 2**24, 2**16  # of stored records that are read and sent at a time, at most
_ENTRY_BYTES, _ENTRIES = 12, 128  # of a sparse row; and so many of them, as a guess where no number is public
_MARK_BYTES = 33  # of a record: digest, place, lottery number, and whether it is usable


class UserFleet(Fleet):
    """A `Fleet` of users: `gather` comes before any question.

    Who replaces a lost worker is sent its users' records anew, read by all workers.

    Args:
        cluster, source, description, layout, workers, retries, patience: see `Fleet`.
        only_counted: whether users are counted, and no rows kept.
    """

    def __init__(
        self,
        cluster: Cluster,
        source: RecordSource,
        description: Description,
        layout: Layout,
        *,
        workers: int | None,
        retries: int,
        patience: float = PATIENCE,
        only_counted: bool = False,
    ) -> None:
        self._only_counted = only_counted
        self._private_units: dict[int, list[int]] = {}
        super().__init__(
            cluster, source, description, layout, workers=workers, retries=retries, patience=patience
        )
        count = len(self.workers)
        spans = _spans(source, description, math.ceil(count / len(cluster.machines)))
        self._exchange = Exchange(self, count, spans, patience * LOADING)

    def gather(self) -> None:
        """Have the records read and sent to whoever holds their users.

        Raises:
            ArgumentError: they are more than n.
            DataUnavailable: a worker failed, or was lost once too often; or the records have changed.
        """
        self._fill(range(len(self.workers)))
        if not self._only_counted:
            super().gather()

    def user_count(self) -> int:
        """How many users there are, once they are gathered. Private under add-or-remove-one."""
        return sum(itertools.chain.from_iterable(self._private_units.values()))

    def actor(self, worker: int) -> Any:
        """See `Crew.actor`."""
        return self.workers[worker].actor

    def restart(self, worker: int, what: str) -> None:
        """See `Crew.restart`."""
        super()._replace(worker, what)

    def _replace(self, k: int, what: str) -> None:
        super()._replace(k, what)
        self._fill([k])

    def _kind(self) -> tuple[type[Shard], tuple[Any, ...]]:
        assert self._layout.secret is not None
        workers = np.array([self._owner[plan.index] for plan in self._layout.plans])
        return UserActor, (Owners(self._layout.secret, workers, self._only_counted),)

    def _loads(self, worker: Worker) -> deque[Any]:
        del worker  # it is sent what it holds
        return deque()

    def _fill(self, receivers: Iterable[int]) -> None:
        """Bring to some workers what they hold, and have them make units of it."""
        private_found = self._exchange.run(receivers)
        private_known = {k: self._private_units.setdefault(k, units) for k, units in private_found.items()}
        if self._source.fingerprint() != self._files or private_known != private_found:
            raise unavailable("the records have changed since they were opened")
        if self._only_counted:
            return
        self.plans = self._counted_plans()
        for k in private_found:
            worker = self.workers[k]
            worker.loading = deque(
                worker.actor.settle.remote(part, self.plans[part].first) for part in worker.parts
            )

    def _counted_plans(self) -> list[PartPlan]:
        """The parts with their units."""
        private_units = [units for k in range(len(self.workers)) for units in self._private_units[k]]
        public = self._layout.public
        check_units(public.n, sum(private_units), public.relation, by_user=True)
        private_first = itertools.accumulate(private_units, initial=0)
        return [
            PartPlan(part, *both) for part, both in enumerate(zip(private_first, private_units, strict=False))
        ]


def count_users(
    source: RecordSource, description: Description, placement: Placement, *, patience: float = PATIENCE
) -> int:
    """How many users the keys of a source name, counted by the workers of a cluster: public under replace-one only.

    Args:
        source: the records, with keys.
        description: what is public about the units.
        placement: see `open_on_ray`, whose cluster is the one that counts: a process is connected to one at a time.
        patience: see `Fleet`.
    Raises:
        ArgumentError: the cluster cannot be used, see `Cluster.joined`.
        DataUnavailable: the records cannot be read.
    """
    layout = lay_out(source, dataclasses.replace(description, n=_BUCKETS), None)
    layout = dataclasses.replace(layout, plans=[PartPlan(bucket) for bucket in range(_BUCKETS)])
    cluster = Cluster.joined(placement.address, trust_network=placement.trust_network)
    try:
        fleet = UserFleet(
            cluster,
            source,
            description,
            layout,
            workers=placement.workers,
            retries=placement.retries,
            patience=patience,
            only_counted=True,
        )
    except BaseException:
        cluster.close()
        raise
    try:
        fleet.gather()
        return fleet.user_count()
    finally:
        fleet.close()


def _spans(source: RecordSource, description: Description, per_machine: int) -> list[Range]:
    """The ranges of records that are read at a time: so small that all that are on their way fit the object store."""
    room = min(_SPAN_BYTES, STORE_BYTES // 2 // (AT_ONCE * per_machine))
    record = stored_bytes(source, description) // max(source.rows, 1) + _MARK_BYTES
    if source.is_sparse:
        record += _ENTRY_BYTES * min(source.width, source.row_entries or _ENTRIES)
    step = max(1, min(_SPAN_RECORDS, room // record))
    return [(start, min(start + step, source.rows)) for start in range(0, source.rows, step)]
