"""The parts of users that one worker holds: it reads ranges of records for all, and gets its own users' from all."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.data.record_source import Description, RecordBlock, RecordSource
from privopt.data.units import Units
from privopt.data.user_digests import NOBODY, user_digests
from privopt.data.user_parts import UserRecords, parts_of_digests
from privopt.data.user_secret import UserSecret
from privopt.data.users import user_weights
from privopt.engine.on_ray.arrivals import Arrivals, Piece
from privopt.engine.on_ray.exchange import LOST
from privopt.engine.on_ray.layout import PartPlan, no_records, of_records
from privopt.engine.on_ray.same_code import require_same
from privopt.engine.on_ray.shard import NO_PART, SOURCE, Failure, Shard
from privopt.engine.on_ray.stored_rows import StoredRows
from privopt.engine.parts import Range
from privopt.errors import DataUnavailable
from privopt.public import Public

_DEALT, _DEALT_AT_ONCE = (
    2**12,
    2**18,
)  # records for each part, and in all, that are dealt out to the parts together


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
        if self._owners.only_counted:
            private_usable = np.zeros(rows, np.bool_)
            return Piece(
                UserRecords(private_digests, private_rest, private_places, private_lottery, private_usable),
                None,
            )
        units = Units.from_arrays(
            block.private_features, block.private_targets, **of_records(self._description, rows)
        )
        private = UserRecords(
            private_digests, private_rest, private_places, private_lottery, units.private_present
        )
        stored = StoredRows.of(units)
        if not np.all(units.private_present):
            stored = stored.at(np.flatnonzero(units.private_present))
        return Piece(private, stored)

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
