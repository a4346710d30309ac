"""The workers of a run: started, asked, and replaced where they are lost, on the charge that was made before.

Ray is an extra, and imported late: this module can be read where it is not installed.
"""

import contextlib
import math
import time
from collections import deque
from collections.abc import Generator, Mapping, Sequence
from typing import Any, NamedTuple

from privopt.data.record_source import Description, RecordSource
from privopt.data.user_parts import KeysOfOwnTypes
from privopt.engine.on_ray.cluster import Cluster
from privopt.engine.on_ray.layout import Layout, OtherCode, PartPlan, Step, code_digest, cut
from privopt.engine.on_ray.shard import NO_PART, SOURCE, Failure, NumberedStep, Preparation, Shard, total_of
from privopt.engine.parts import ROUND, ROWS, ExactSum, tell
from privopt.errors import STAYS_CHARGED, ArgumentError, DataUnavailable
from privopt.public import Relation

# ---- The cores that a run's workers use, reserved on a cluster that others use too -------------------------
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


PATIENCE = 300.0  # seconds for one answer; a worker that takes longer counts as lost
LOADING = 10.0  # times as long may it take to start, or to read one part
LOOK = 1.0  # seconds between looks at the cluster while workers are waited for
_A_BYTE = 1  # asked for in Ray's books: who asks for nothing at all is put anywhere, whatever the strategy
_BRANCHES = 64  # answers that one process adds up
_MEANS = {  # by the kind of a worker's error
    DataUnavailable.__name__: (
        ": each machine reads the files by itself, under the same names, unchanged, and with access of its own"
    ),
    OtherCode.__name__: ": every machine must have the privopt of this one, to the last letter",
}

Call = tuple[str, tuple[Any, ...]]


class Worker:
    """One actor and what it holds.

    Attributes:
        plans: of its parts.
        seat: where it starts.
        actor: the actor.
        loading: what it has been told to read, and has not yet said to have read.
        knows: the steps that it has made.
        forgets: those whose outcome it is still to let go of.
    """

    def __init__(self, plans: Sequence[PartPlan], seat: Seat) -> None:
        self.plans, self.seat = plans, seat
        self.parts = [plan.index for plan in plans]
        self.actor: Any = None
        self.loading: deque[Any] = deque()
        self.knows: set[int] = set()
        self.forgets: list[int] = []


class Fleet:
    """The workers that hold all parts, in order; shared by an engine, its views and its subsets.

    Args:
        cluster: where they are; closed at the end.
        source: the records.
        description: what is public about the units.
        layout: the parts.
        workers: how many; None for one a machine of another's cluster, or a core of our own.
        retries: how often the parts of a lost worker are read again, in all.
        patience: seconds for one answer; starting, and reading one part, may take ten times as long.

    Raises:
        ArgumentError: a cluster of others does not have enough free cores.

    Privacy:
        A worker that is lost, or does not answer in time, is replaced, and its successor is asked the same query on the
        same units: the sum that arrives is the one that would have arrived, to the last bit, and is noised once. How
        often that happens depends on machines, never on what a query's answer is. A worker's error names the kind and
        the part, see `Shard`; the kind alone where records come and go, whose number a part's would tell of.
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
    ) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self.cluster = cluster
        self.retries_left = retries
        self._source, self._description, self._layout = source, description, layout
        self.origin, self._files = description.origin(source), source.fingerprint()
        self.laid_out = layout.laid_out
        self._patience = patience
        self._steps: dict[int, tuple[int, Step]] = {}
        self._unneeded = set[int]()
        self._next = SOURCE + 1
        self._closed = False
        if workers is None:
            workers = cluster.machines[0].cores if cluster.address is None else len(cluster.machines)
        shares = cut(layout.plans, workers)
        by_user, relation = layout.secret is not None, layout.public.relation
        self._parts_are_public = by_user or relation is Relation.REPLACE_ONE
        if self._parts_are_public:
            workers = len(shares)
        self._reservation = Reservation(cluster, workers, len(shares))
        self.workers = [
            Worker(plans, seat) for plans, seat in zip(shares, self._reservation.seats, strict=True)
        ]
        self.plans = layout.plans
        self._owner = {part: k for k, worker in enumerate(self.workers) for part in worker.parts}
        try:
            for worker in self.workers:
                self._start(worker, NodeAffinitySchedulingStrategy(worker.seat.node, soft=True))
        except BaseException:
            self._reservation.close()
            raise

    def gather(self) -> None:
        """Wait until every worker has read its parts: what cannot be read ends a run before anything is charged.

        Raises:
            DataUnavailable: a worker failed, or was lost once too often; or the records have changed.
        """
        self.ask(SOURCE, dict.fromkeys(range(len(self.workers)), ("ready", ())))

    def known_as(self, parent: int, step: Step) -> int:
        """Note a step, which workers make when they are next asked; what its outcome is known by."""
        known_as, self._next = self._next, self._next + 1
        self._steps[known_as] = (parent, step)
        return known_as

    def forget(self, known_as: int) -> None:
        """Note that the outcome of a step is needed no more; the step is, while something is made of it.

        Whoever replaces a lost worker makes all steps anew that led to what is asked for.
        """
        self._let_go(known_as)
        self._unneeded.add(known_as)
        while gone := self._unneeded - {parent for parent, _ in list(self._steps.values())}:
            for step in gone:
                self._steps.pop(step, None)
                self._let_go(step)
            self._unneeded -= gone

    def _let_go(self, known_as: int) -> None:
        for worker in self.workers:
            if known_as in worker.knows:
                worker.knows.remove(known_as)
                worker.forgets.append(known_as)

    def owner(self, part: int) -> int:
        """Which worker holds a part."""
        return self._owner[part]

    def ask(self, known_as: int, calls: Mapping[int, Call], *, told: bool = False) -> list[Any]:
        """The answers of some workers; whoever is lost is replaced and asked again.

        Args:
            known_as: on which units.
            calls: what to ask each worker, who makes the steps that led to the units first.
            told: whether all parts are asked, so that it is told how many have answered, see `tell`.
        Raises:
            DataUnavailable: a worker failed, or was lost once too often; or the records have changed.
        """
        with self._ended_by_interrupts():
            return self._answers(known_as, calls, fetch=True, told=told)

    def total(self, known_as: int, calls: Mapping[int, Call], *, told: bool = False) -> ExactSum:
        """The sum of what some workers answer; where they are many, added up by workers. See `ask`."""
        import ray
        from ray.exceptions import RayError

        if len(calls) <= _BRANCHES:
            return total_of(self.ask(known_as, calls, told=told))
        with self._ended_by_interrupts():
            references = self._answers(known_as, calls, fetch=False, told=told)
            while len(references) > 1:
                groups = [references[k : k + _BRANCHES] for k in range(0, len(references), _BRANCHES)]
                references = [
                    self.workers[k * _BRANCHES % len(self.workers)].actor.combine.remote(*group)
                    for k, group in enumerate(groups)
                ]
            found = self.ready(references, self._patience, fetch=True)
            with contextlib.suppress(RayError):
                if found:
                    return self.checked(ray.get(found[0]))
            # Somebody was lost after answering: without the tree it is seen who.
            return total_of(self._answers(known_as, calls, fetch=True))

    def ready(self, references: list[Any], seconds: float, *, fetch: bool) -> list[Any]:
        """The first answer that is there, after waiting at most some seconds; none where none is.

        Ray itself would wait for a server of its own that is gone, or end this process.

        Args:
            references: what the answers are known by to Ray.
            seconds: to wait.
            fetch: whether they are brought to this machine.
        Raises:
            DataUnavailable: a process of our own cluster has ended, or another's head, without which nobody answers.
        """
        import ray

        end = time.monotonic() + seconds
        while True:
            left = end - time.monotonic()
            step = max(0.0, min(left, LOOK))
            found, _ = ray.wait(references, num_returns=1, timeout=step, fetch_local=fetch)
            if (lost := self.cluster.lost) is not None:
                raise unavailable(lost)
            if found or left <= LOOK:
                return found

    def checked(self, answer: Any) -> Any:
        """An answer, unless it says that a worker failed.

        Raises:
            DataUnavailable: it does.
        """
        if isinstance(answer, Failure) and not self._parts_are_public:
            answer = answer._replace(part=NO_PART)
        return checked(answer)

    def close(self) -> None:
        """End all workers, and their cluster where it is our own; where it is lost, workers end with the connection."""
        if self._closed:
            return
        self._closed = True
        try:
            if self.cluster.lost is None:  # else each word to it would take Ray half a minute
                for worker in self.workers:
                    _kill(worker)
                self._reservation.close()
        finally:  # where Ctrl-C falls into it, too: else the cluster would count this fleet for ever
            self.cluster.close()

    @contextlib.contextmanager
    def _ended_by_interrupts(self) -> Generator[None]:
        if self._closed:
            raise DataUnavailable(
                f"the engine is closed, and its workers hold no records any more. {STAYS_CHARGED}"
            )
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            self.close()
            raise

    def _answers(
        self, known_as: int, calls: Mapping[int, Call], *, fetch: bool, told: bool = False
    ) -> list[Any]:
        """Wait for all, for each as long as patience lasts, which begins anew with every part that it has read."""
        from ray.exceptions import RayError

        waiting = {k: self._sent(k, known_as, call) for k, call in calls.items()}
        asked = {k: self.workers[k].actor for k in waiting}
        since = dict.fromkeys(waiting, time.monotonic())
        answers: dict[int, Any] = {}
        while waiting:
            heads = {self._head(k, waiting[k]): k for k in waiting}
            left = min(since[k] + self._limit(k) for k in waiting) - time.monotonic()
            ready = self.ready(list(heads), left, fetch=fetch)
            late = [] if ready else [k for k in waiting if since[k] + self._limit(k) <= time.monotonic()]
            lost = dict.fromkeys(late, "did not answer in time")
            for reference in ready:
                k = heads[reference]
                since[k] = time.monotonic()
                is_answer = reference == waiting[k]
                try:
                    found = self._fetched(reference) if fetch or not is_answer else reference
                except RayError:
                    lost[k] = "was lost"
                    continue
                if is_answer:
                    answers[k] = found
                    del waiting[k]
                    if told:
                        answered = sum(len(self.workers[each].parts) for each in answers)
                        tell(ROUND, answered, len(self._owner), self._layout.public)
                else:
                    self.workers[k].loading.popleft()
                    left_to_read = sum(len(worker.loading) for worker in self.workers)
                    parts = len(self._owner)
                    tell(ROWS, parts - left_to_read, parts, self._layout.public)
            for k, what in lost.items():
                if self.workers[k].actor is asked[k]:  # else it was found to be lost by another's replacement
                    self._replace(k, what)
            for k in waiting if lost else ():
                if self.workers[k].actor is not asked[k]:
                    waiting[k], asked[k] = self._sent(k, known_as, calls[k]), self.workers[k].actor
                since[k] = time.monotonic()  # all had to wait
        return [answers[k] for k in calls]

    def _limit(self, k: int) -> float:
        return self._patience * (LOADING if self.workers[k].loading else 1.0)

    def _head(self, k: int, reference: Any) -> Any:
        loading = self.workers[k].loading
        return loading[0] if loading else reference

    def _fetched(self, reference: Any) -> Any:
        """What a worker has answered."""
        import ray
        from ray.exceptions import RayTaskError

        try:
            return self.checked(ray.get(reference))
        except RayTaskError as error:
            raise unavailable(f"a worker failed ({type(error.cause).__name__})") from None

    def _sent(self, k: int, known_as: int, call: Call) -> Any:
        """Ask a worker, who first makes what it does not know yet."""
        worker, asked_on = self.workers[k], known_as
        steps = list[NumberedStep]()
        while known_as != SOURCE and known_as not in worker.knows:
            parent, step = self._steps[known_as]
            steps.insert(0, NumberedStep(known_as, parent, step.at(worker.parts)))
            worker.knows.add(known_as)
            known_as = parent
        forgotten, worker.forgets = worker.forgets, []
        method, arguments = call
        return getattr(worker.actor, method).remote(Preparation(steps, forgotten), asked_on, *arguments)

    def _replace(self, k: int, what: str) -> None:
        """Start another worker with the same parts."""
        if self.retries_left == 0:
            raise unavailable(f"a worker {what}, and no retries are left")
        self.retries_left -= 1
        if self._source.fingerprint() != self._files:
            raise unavailable(f"a worker {what}, and the records have changed since they were opened")
        _kill(self.workers[k])
        self._start(self.workers[k], "SPREAD")

    def _start(self, worker: Worker, strategy: Any) -> None:
        import ray

        kind, more = self._kind()
        actor = ray.remote(kind).options(  # type: ignore[call-overload]
            num_cpus=0, memory=_A_BYTE, max_restarts=0, max_task_retries=0, scheduling_strategy=strategy
        )
        worker.actor = actor.remote(
            self._source,
            self._description,
            self._layout.public,
            worker.plans,
            worker.seat.threads,
            *more,
            code=code_digest(),
        )
        worker.knows, worker.forgets = set(), []
        worker.loading = self._loads(worker)

    def _kind(self) -> tuple[type[Shard], tuple[Any, ...]]:
        """What an actor is made of, and what it is told beyond what all are."""
        return Shard, ()

    def _loads(self, worker: Worker) -> deque[Any]:
        """Have a new actor read its parts."""
        return deque(worker.actor.load.remote(part) for part in worker.parts)


def _kill(worker: Worker) -> None:
    import ray

    with contextlib.suppress(Exception):
        ray.kill(worker.actor, no_restart=True)


def checked(answer: Any) -> Any:
    """An answer that is none raises, in words of our own."""
    if isinstance(answer, Failure):
        if answer.kind == KeysOfOwnTypes.__name__:  # of a source that did not know
            raise KeysOfOwnTypes
        where = "" if answer.part == NO_PART else f" at part {answer.part} of the records"
        raise unavailable(f"a worker failed{where} ({answer.kind}{_MEANS.get(answer.kind, '')})")
    return answer


def unavailable(what: str) -> DataUnavailable:
    """The end of a run, in a sentence."""
    return DataUnavailable(f"{what}: the records cannot be computed on any more. {STAYS_CHARGED}")
