"""The parts of users that one worker holds: it reads ranges of records for all, and gets its own users' from all."""

import dataclasses
import itertools
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from privopt.data.read_units import clipped, no_records
from privopt.data.record_source import Description, RecordBlock, RecordSource
from privopt.data.targets import user_weights
from privopt.data.user_keys import UserSecret
from privopt.data.user_parts import (
    NOBODY,
    UserLayout,
    UserRecords,
    count_users,
    joined_records,
    lay_out_part,
    needed,
    parts_of_digests,
    user_digests,
)
from privopt.engine.on_ray.layout import PartPlan, StoredRows, require_same
from privopt.engine.on_ray.shard import NO_PART, SOURCE, Failure, Shard
from privopt.engine.parts import Range
from privopt.errors import DataUnavailable
from privopt.public import Public

# ---- The records of one part's users as they arrive: each once, in any order. PRIVATE ----------------------
_LOOSE = 2**14  # records that lie about before those that matter are chosen among them


@dataclass(frozen=True, eq=False, repr=False)
class Piece:
    """Some records.

    Attributes:
        private: whose they are, and where they stand.
        rows: of the usable ones, in their order; None where users are only counted.
    """

    private: UserRecords
    rows: StoredRows | None

    @classmethod
    def joined(cls, pieces: "Sequence[Piece]") -> "Piece":
        """All pieces, at least one, as one; copied."""
        rows = [piece.rows for piece in pieces if piece.rows is not None]
        private = joined_records([piece.private for piece in pieces])
        return cls(private, StoredRows.joined(rows) if rows else None)

    def at(self, private_positions: NDArray[np.int64]) -> "Piece":
        """The records at some positions; copied."""
        private, rows = self.private.taken(private_positions), self.rows
        if rows is not None:
            private_row = np.cumsum(self.private.private_usable) - 1
            rows = rows.at(private_row[private_positions[private.private_usable]])
        return Piece(private, rows)

    @property
    def private_count(self) -> int:
        """How many there are."""
        return len(self.private.private_places)


class Arrivals:
    """Holds what has arrived for a part: of every user the first record, and those that may yet be kept.

    So memory is for M records of each user, and for as many again on the way and at the end.

    Args:
        cap: M, the most records that a user keeps.
        part: which part it is.
        parts: how many there are.
        nothing: no records, in the format of the others.
    """

    def __init__(self, cap: int, part: int, parts: int, nothing: Piece) -> None:
        self._cap, self._part, self._parts = cap, part, parts
        self._pieces = [nothing]
        self._loose = self._settled = 0

    def add(self, piece: Piece) -> None:
        """Note some records."""
        self._pieces.append(piece)
        self._loose += piece.private_count
        if self._loose > max(_LOOSE, self._settled):
            self._let_go()

    def count(self) -> int:
        """How many users there are."""
        return count_users(joined_records([piece.private for piece in self._pieces]))

    def finish(self) -> tuple[UserLayout, StoredRows]:
        """What each user keeps, and the rows of that, user after user. Nothing is held any more.

        Raises:
            DataUnavailable: a record belongs to another part.
            RuntimeError: there are too many users, see `user_parts.require_few`.
        """
        everything = Piece.joined(self._pieces)
        self._pieces.clear()  # the rows are there twice at most
        layout = lay_out_part(everything.private, self._cap, self._part, self._parts)
        rows = everything.at(layout.private_chosen).rows
        assert rows is not None
        return layout, rows

    def _let_go(self) -> None:
        """Let go of the records that are not needed, piece by piece."""
        private_all = joined_records([piece.private for piece in self._pieces])
        private_stays = np.zeros(len(private_all.private_places), np.bool_)
        private_stays[needed(private_all, self._cap)] = True
        settled, start = int(private_stays.sum()), 0
        for k, piece in enumerate(self._pieces):
            private_here = np.flatnonzero(private_stays[start : start + piece.private_count])
            start += piece.private_count
            if len(private_here) < piece.private_count:
                self._pieces[k] = piece.at(private_here)
        if 2 * settled < start:  # few are left in each
            self._pieces = [Piece.joined(self._pieces)]
        self._loose, self._settled = 0, settled


# Records for each part, and in all, that are dealt out to the parts together.
_DEALT, _DEALT_AT_ONCE = 2**12, 2**18


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Owners:
    """Who holds which users. Private: whoever has the secret knows whose records are kept.

    Attributes:
        secret: of the hash and the lottery.
        workers: (parts,) which worker holds each part.
        only_counted: whether users are counted, and no rows sent.
    """

    secret: UserSecret
    workers: NDArray[np.int64]
    only_counted: bool


class UserShard(Shard):
    """Reads ranges of records and cuts them by who holds their users; holds the users of some parts.

    Args:
        source: the records, with keys.
        description: what is public about the units.
        public: of all units.
        plans: of the parts to hold.
        threads: of a pass.
        owners: who holds which users.
        code: see `Shard`.

    Privacy:
        What arrives is checked record by record: one of another's part by its digest, one that comes twice, or not at
        all, by its place and by how many there are of each range. Whatever goes wrong leaves as a `Failure`. It sees
        the keys in the ranges that it reads, and has the secret by which users are divided.
    """

    def __init__(
        self,
        source: RecordSource,
        description: Description,
        public: Public,
        plans: Sequence[PartPlan],
        threads: int,
        owners: Owners,
        code: str | None = None,
    ) -> None:
        super().__init__(source, description, public, plans, threads, code)
        self._owners, self._parts = owners, len(owners.workers)
        nothing = self._piece(no_records(source, description), 0)
        self._private_arrivals = {
            plan.index: Arrivals(description.max_records_per_user, plan.index, self._parts, nothing)
            for plan in plans
        }
        self._private_loose = [nothing]
        self._arrived = list[Range]()

    def cut(
        self, start: int, stop: int, receivers: Sequence[int]
    ) -> dict[int, tuple[int, list[Piece]]] | Failure:
        """Read the records start..stop-1, and cut them by which of some workers holds their users.

        Returns:
            Of each of these workers: how many there are, and these.
        """
        try:
            require_same(self._code)
            private_cut: dict[int, list[Piece]] = {receiver: [] for receiver in receivers}
            first = start
            for block in self._source.blocks(start, stop):
                piece = self._piece(block, first)
                first += piece.private_count
                private_digests = piece.private.private_digests
                private_owners = self._owners.workers[parts_of_digests(private_digests, self._parts)]
                private_owners[private_digests == NOBODY] = -1
                for receiver in receivers:
                    private_cut[receiver].append(piece.at(np.flatnonzero(private_owners == receiver)))
            if first != stop:
                raise DataUnavailable("there are not as many records as when they were opened.")
            return {
                receiver: (sum(piece.private_count for piece in pieces), pieces)
                for receiver, pieces in private_cut.items()
            }
        except Exception as error:
            return Failure(type(error).__name__, NO_PART)

    def take(self, start: int, stop: int, private_count: int, pieces: Sequence[Piece]) -> Failure | None:
        """Note those of the records start..stop-1 whose users are held here, `private_count` in all."""
        try:
            if pieces or private_count:
                piece = Piece.joined([*self._private_loose[:1], *pieces])
                private_places = np.concatenate([[start - 1], piece.private.private_places, [stop]])
                private_parts = parts_of_digests(piece.private.private_digests, self._parts)
                if piece.private_count != private_count or np.any(np.diff(private_places) <= 0):
                    raise DataUnavailable("records are missing, or have come twice.")
                if not np.all(np.isin(private_parts, list(self._private_arrivals))):
                    raise DataUnavailable("records belong to another worker.")
                self._private_loose.append(piece)
            self._arrived.append((start, stop))
            loose = sum(piece.private_count for piece in self._private_loose)
            if loose > min(_DEALT * len(self._plans), _DEALT_AT_ONCE):
                self._deal()
        except Exception as error:
            return Failure(type(error).__name__, NO_PART)
        return None

    def units(self) -> list[int] | Failure:
        """How many users each part has, all records having arrived. Private."""
        part = min(self._plans)
        try:
            require_same(self._code)
            ends = [0, *itertools.chain.from_iterable(sorted(self._arrived)), self._source.rows]
            if ends[::2] != ends[1::2]:
                raise DataUnavailable("a range of records is missing, or has come twice.")
            self._deal()
            return [self._private_arrivals[part].count() for part in self._plans]
        except Exception as error:
            return Failure(type(error).__name__, part)

    def settle(self, part: int, first: int) -> Failure | None:
        """Make the units of a part of what has arrived; its first one is at position `first` among all."""
        try:
            layout, rows = self._private_arrivals.pop(part).finish()
            about = self._description
            private_counts = np.diff(layout.private_offsets)
            private_weights = user_weights(private_counts, about.max_records_per_user, about.user_weighting)
            rows = rows._replace(private_counts=private_counts, private_weights=private_weights)
            self._private_engines[SOURCE][part] = self._engine(
                dataclasses.replace(rows.units(self._public), first=first)
            )
        except Exception as error:
            return Failure(type(error).__name__, part)
        return None

    def _piece(self, block: RecordBlock, first: int) -> Piece:
        """All records of a block, the first of which is at place `first`, clipped as they are stored."""
        rows = block.private_features.shape[0]
        secret = self._owners.secret
        private_digests, private_rest = user_digests(block.private_keys, rows, secret)
        private_places = np.arange(first, first + rows)
        private_lottery = secret.lottery(first, first + rows)
        private_usable, stored = np.zeros(rows, np.bool_), None
        if not self._owners.only_counted:
            units = clipped(block, self._description)
            private_usable, stored = units.private_present, StoredRows.of(units)
            if not np.all(private_usable):
                stored = stored.at(np.flatnonzero(private_usable))
        return Piece(
            UserRecords(private_digests, private_rest, private_places, private_lottery, private_usable),
            stored,
        )

    def _deal(self) -> None:
        """Give what has arrived to the parts."""
        everything, self._private_loose = Piece.joined(self._private_loose), self._private_loose[:1]
        private_parts = parts_of_digests(everything.private.private_digests, self._parts)
        private_order = np.argsort(private_parts, kind="stable")
        private_parts = private_parts[private_order]
        for part, arrivals in self._private_arrivals.items():
            start, stop = np.searchsorted(private_parts, [part, part + 1])
            if start < stop:
                arrivals.add(everything.at(private_order[start:stop]))


class UserActor(UserShard):
    """A `UserShard` as an actor: pieces travel through the object store, from worker to worker."""

    def read(self, start: int, stop: int, receivers: Sequence[int]) -> Any:
        """See `cut`; instead of pieces what they are known by to Ray, and nothing where there are none."""
        import ray

        found = self.cut(start, stop, receivers)
        if isinstance(found, Failure):
            return found
        return {
            receiver: (private_count, [ray.put(pieces)] if private_count else [])
            for receiver, (private_count, pieces) in found.items()
        }

    def receive(self, start: int, stop: int, private_count: int, references: Sequence[Any]) -> Any:
        """See `take`; `LOST` where the pieces are gone with the worker that had read them."""
        import ray
        from ray.exceptions import ObjectLostError

        try:
            pieces = [piece for reference in references for piece in ray.get(reference)]
        except ObjectLostError:
            return LOST
        return self.take(start, stop, private_count, pieces)


# ------------------------------------------------------------------------------------------------------------
# Records on their way from the workers that read them to those that hold their users: in pieces, a few at a
# time.
# Ray's own shuffle (`ray.data`) is not used: it keeps whole blocks in the object store, and writes them to a disk where
# they do not fit. Here every worker reads a range of records at a time and cuts it by who holds their users; it is
# asked for another one when the pieces have been taken. This process sees who has which range, never a record.


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
        self._reader = [span * workers // len(spans) for span in range(len(spans))]

    def run(self, receivers: Iterable[int]) -> dict[int, list[int]]:
        """Have all ranges read, and what some workers hold brought to them.

        Whoever is lost on the way is replaced, and is brought everything anew.

        Returns:
            How many units each part has, of these workers and of all that were replaced. Private.
        Raises:
            DataUnavailable: a worker failed, or was lost once too often; or the records have changed.
        """
        self._private_units: dict[int, list[int]] = {}
        self._missing: list[set[int]] = [set() for _ in self._spans]  # who has not got a range yet
        self._left: dict[int, int] = {}  # ranges that a worker has not got
        self._unread: list[deque[int]] = [deque() for _ in range(self._workers)]
        self._questions = Counter[int]()  # about a range that are open
        self._open = [0] * self._workers  # ranges of a reader with such questions
        self._sent: dict[Any, _Sent] = {}
        for worker in receivers:
            self._expect(worker)
        try:
            while len(self._private_units) < len(self._left):
                self._ask()
                self._wait()
        finally:
            self._sent.clear()  # what was asked and not waited for is Ray's to let go of
        return self._private_units

    def _expect(self, worker: int) -> None:
        """Note that a worker has nothing, and is to get everything."""
        self._private_units.pop(worker, None)
        self._left[worker] = len(self._spans)
        for unread in self._unread:
            unread.clear()
        for span, missing in enumerate(self._missing):
            missing.add(worker)
            if not self._questions[span]:
                self._unread[self._reader[span]].append(span)

    def _ask(self) -> None:
        """Ask for what may be asked for by now."""
        for reader, unread in enumerate(self._unread):
            while unread and self._open[reader] < AT_ONCE:
                span = unread.popleft()
                self._send("read", reader, span, None, *self._spans[span], sorted(self._missing[span]))
        counting = {sent.worker for sent in self._sent.values() if sent.what == "units"}
        for worker, left in self._left.items():
            if left == 0 and worker not in self._private_units and worker not in counting:
                self._send("units", worker, -1, None)

    def _wait(self) -> None:
        """Wait for one answer; who does not give it in time, or is lost, is replaced."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        soonest = min(sent.since for sent in self._sent.values()) + self._limit - time.monotonic()
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
            for sent in [sent for sent in self._sent.values() if sent.since + self._limit <= now]:
                self._replace(sent.worker, sent.actor, "did not answer in time")

    def _take(self, sent: _Sent, answer: Any) -> None:
        """Note an answer, and have pieces brought to whom they are for."""
        if sent.what == "units":
            self._private_units[sent.worker] = answer
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
            self._expect(worker)

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
