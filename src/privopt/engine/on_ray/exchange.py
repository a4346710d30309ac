"""Records on their way from the workers that read them to those that hold their users: in pieces, a few at a time.

Ray's own shuffle (`ray.data`) is not used: it keeps whole blocks in the object store, and writes them to a disk where
they do not fit. Here every worker reads a range of records at a time and cuts it by who holds their users; it is asked
for another one when the pieces have been taken. This process sees who has which range, never a record.
"""

import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from privopt.engine.on_ray.shard import Failure
from privopt.engine.parts import Range

AT_ONCE = 2  # ranges of one reader that have been read, or are being read, and have not arrived everywhere
LOST = "lost"  # what a worker answers whose piece is gone, with the worker that read it


class Crew(Protocol):
    """The workers between which records are exchanged."""

    def actor(self, worker: int) -> Any:
        """The actor of a worker now."""
        ...

    def ready(self, references: list[Any], seconds: float, *, fetch: bool) -> list[Any]:
        """The first answer that is there, see `Fleet.ready`."""
        ...

    def restart(self, worker: int, what: str) -> None:
        """Start another actor in the place of a lost one, which holds nothing.

        Raises:
            DataUnavailable: that has happened too often, or the records have changed.
        """
        ...

    def checked(self, answer: Any) -> Any:
        """An answer, unless it says that a worker failed.

        Raises:
            DataUnavailable: it does.
        """
        ...


class Exchange:
    """Brings the records of each user to the worker that holds the user.

    Args:
        crew: the workers.
        workers: how many.
        spans: the ranges of records, in order; each worker reads those next to each other, in order.
        limit: seconds for one answer; whoever takes longer counts as lost.

    Privacy:
        Which range is read when depends on machines and on how many records there are. Nothing is released.
    """

    def __init__(self, crew: Crew, workers: int, spans: Sequence[Range], limit: float) -> None:
        self._crew, self._workers, self._spans, self._limit = crew, workers, spans, limit

    def run(self, receivers: Iterable[int]) -> dict[int, list[int]]:
        """Have all ranges read, and what some workers hold brought to them.

        Whoever is lost on the way is replaced, and is brought everything anew.

        Returns:
            How many units each part has, of these workers and of all that were replaced. Private.
        Raises:
            DataUnavailable: a worker failed, or was lost once too often; or the records have changed.
        """
        run = _Run(self._crew, self._workers, self._spans)
        for worker in receivers:
            run.expect(worker)
        while not run.done:
            run.ask()
            run.wait(self._limit)
        return run.private_units


class _Sent(NamedTuple):
    """What was asked, and is not answered yet.

    Attributes:
        what: "read" a range, "receive" a piece, or count the "units".
        worker: who was asked.
        actor: what it was then.
        span: index of the range; -1 for none.
        reader: of a piece: the actor that read it.
        since: when, in seconds.
    """

    what: str
    worker: int
    actor: Any
    span: int
    reader: Any
    since: float


class _Run:
    """One exchange: what has not arrived, and what is on its way. See `Exchange.run`."""

    def __init__(self, crew: Crew, workers: int, spans: Sequence[Range]) -> None:
        self.private_units: dict[int, list[int]] = {}
        self._crew, self._spans = crew, spans
        self._reader = [span * workers // len(spans) for span in range(len(spans))]
        self._missing: list[set[int]] = [set() for _ in spans]  # who has not got a range yet
        self._left: dict[int, int] = {}  # ranges that a worker has not got
        self._unread: list[deque[int]] = [deque() for _ in range(workers)]
        self._questions = Counter[int]()  # about a range that are open
        self._open = [0] * workers  # ranges of a reader with such questions
        self._sent: dict[Any, _Sent] = {}

    @property
    def done(self) -> bool:
        """Whether all have counted what they hold."""
        return len(self.private_units) == len(self._left)

    def expect(self, worker: int) -> None:
        """Note that a worker has nothing, and is to get everything."""
        self.private_units.pop(worker, None)
        self._left[worker] = len(self._spans)
        for unread in self._unread:
            unread.clear()
        for span, missing in enumerate(self._missing):
            missing.add(worker)
            if not self._questions[span]:
                self._unread[self._reader[span]].append(span)

    def ask(self) -> None:
        """Ask for what may be asked for by now."""
        for reader, unread in enumerate(self._unread):
            while unread and self._open[reader] < AT_ONCE:
                span = unread.popleft()
                self._send("read", reader, span, None, *self._spans[span], sorted(self._missing[span]))
        counting = {sent.worker for sent in self._sent.values() if sent.what == "units"}
        for worker, left in self._left.items():
            if left == 0 and worker not in self.private_units and worker not in counting:
                self._send("units", worker, -1, None)

    def wait(self, limit: float) -> None:
        """Wait for one answer; who does not give it in time, or is lost, is replaced."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        soonest = min(sent.since for sent in self._sent.values()) + limit - time.monotonic()
        ready = self._crew.ready(list(self._sent), soonest, fetch=True)
        for reference in ready:
            sent = self._sent[reference]
            try:
                answer = ray.get(reference)
            except RayTaskError as error:
                answer = Failure(type(error.cause).__name__, -1)
            except RayError:
                answer = None
                self._replace(sent.worker, sent.actor, "was lost")
            if sent.actor is self._crew.actor(sent.worker):
                self._take(sent, self._crew.checked(answer))
            self._close(self._sent.pop(reference))
        if not ready:
            now = time.monotonic()
            for sent in [sent for sent in self._sent.values() if sent.since + limit <= now]:
                self._replace(sent.worker, sent.actor, "did not answer in time")

    def _take(self, sent: _Sent, answer: Any) -> None:
        """Note an answer, and have pieces brought to whom they are for."""
        if sent.what == "units":
            self.private_units[sent.worker] = answer
        elif sent.what == "read":
            for receiver, piece in answer.items():
                if receiver in self._missing[sent.span]:
                    self._send("receive", receiver, sent.span, sent.actor, *self._spans[sent.span], *piece)
        elif answer == LOST:
            self._replace(self._reader[sent.span], sent.reader, "was lost")
        else:
            self._missing[sent.span].remove(sent.worker)
            self._left[sent.worker] -= 1

    def _replace(self, worker: int, actor: Any, what: str) -> None:
        """Replace a worker, unless that has been done; its successor gets everything anew."""
        if actor is self._crew.actor(worker):
            self._crew.restart(worker, what)
            self.expect(worker)

    def _send(self, what: str, worker: int, span: int, reader: Any, *arguments: Any) -> None:
        """Ask the actor of a worker."""
        actor = self._crew.actor(worker)
        reference = getattr(actor, what).remote(*arguments)
        self._sent[reference] = _Sent(what, worker, actor, span, reader, time.monotonic())
        if span >= 0:
            self._open[self._reader[span]] += not self._questions[span]
            self._questions[span] += 1

    def _close(self, sent: _Sent) -> None:
        """Note that a question is open no more; a range that somebody still lacks then is to be read again."""
        if sent.span < 0:
            return
        self._questions[sent.span] -= 1
        if not self._questions[sent.span]:
            del self._questions[sent.span]
            reader = self._reader[sent.span]
            self._open[reader] -= 1
            if self._missing[sent.span]:
                self._unread[reader].appendleft(sent.span)
