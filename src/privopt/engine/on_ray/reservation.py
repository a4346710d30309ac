"""The cores that a run's workers use, reserved on a cluster that others use too."""

import contextlib
import math
from typing import Any, NamedTuple

from privopt.engine.on_ray.cluster import Cluster
from privopt.errors import ArgumentError

PLACED_SECONDS = 60.0  # that a cluster has to find the cores, or to start machines that have them


class Seat(NamedTuple):
    """Where a worker starts, and with how many threads."""

    node: str
    threads: int


class Reservation:
    """Where some workers run: one a machine and all its cores, or several that share them.

    On our own cluster nobody else asks for cores, and nothing is reserved. On another's they are, all or none, as a
    placement group: two runs never hold half of what each needs, and what others reserved is left to them. The workers
    themselves ask for nothing, so that the successor of a lost one starts wherever machines are left.

    Args:
        cluster: where.
        workers: how many, a public number; at least 1.
        private_used: how many of them there are parts for.
    Attributes:
        seats: one a worker that is used.
    Raises:
        ArgumentError: the cluster does not have so many free cores in time.

    Privacy:
        What is reserved, and refused, follows from the public number. How many parts there are shows in running time.
    """

    def __init__(self, cluster: Cluster, workers: int, private_used: int) -> None:
        if cluster.address is None:
            workers = private_used  # the cores of our own are for whoever is there
        machines = [cluster.machines[k % len(cluster.machines)] for k in range(workers)]
        sharing = math.ceil(workers / len(cluster.machines))
        threads = [max(1, machine.cores // sharing) for machine in machines]
        self._group: Any = None
        nodes = [machine.node for machine in machines]
        if cluster.address is not None:
            nodes = self._reserved(cluster.address, threads)
        self.seats = [Seat(node, count) for node, count in zip(nodes, threads, strict=True)][:private_used]

    def _reserved(self, address: str, threads: list[int]) -> list[str]:
        """Reserve cores for each worker; the machines where they are."""
        import ray  # late: an extra
        from ray.util import placement_group, placement_group_table, remove_placement_group

        group = placement_group([{"CPU": count} for count in threads], strategy="SPREAD")
        try:
            if not group.wait(PLACED_SECONDS):
                free, there = (
                    int(of.get("CPU", 0)) for of in (ray.available_resources(), ray.cluster_resources())
                )
                raise ArgumentError(
                    f"the Ray cluster at {address} has no room: {len(threads)} workers need {sum(threads)} cores, "
                    f"{max(threads)} of one machine, and {free} of its {there} are free. Wait, or give fewer workers "
                    "(--workers)."
                )
        except BaseException:
            remove_placement_group(group)
            raise
        self._group = group
        where: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
        return [where[k] for k in range(len(threads))]

    def close(self) -> None:
        """Give the cores back; a second time nothing is left to do. Ray does where this process ends without."""
        group, self._group = self._group, None
        if group is not None:
            from ray.util import remove_placement_group

            with contextlib.suppress(Exception):
                remove_placement_group(group)
