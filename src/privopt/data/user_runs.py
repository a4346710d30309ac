"""Records of users outside of memory: in sorted runs, of which those of some users are read together. PRIVATE."""

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from privopt.data.room import Room
from privopt.data.user_digests import Digests
from privopt.data.user_parts import UserRecords, count_users, joined_records, needed, part_starts

AT_ONCE = 2**18  # records that are sorted or laid out together
_RECORD_BYTES = 8 + 8 + 8 + 8 + 1


class UserRuns:
    """Records in runs, each sorted by digest, so that any users' records lie together in each run.

    Args:
        rows: the most records that are appended.
        cap: M, the most that a user keeps.
        room: where they lie.
    """

    def __init__(self, rows: int, cap: int, room: Room) -> None:
        self._cap, self._room = cap, room.another(_RECORD_BYTES * rows)
        self._private_all = UserRecords(
            self._room.zeros(rows, np.uint64),
            self._room.zeros(rows, np.uint64),
            self._room.zeros(rows, np.int64),
            self._room.zeros(rows, np.float64),
            self._room.zeros(rows, np.bool_),
        )
        self._private_edges = [0]

    def append(self, private_records: UserRecords) -> None:
        """Put a run of what may matter of some records behind the others."""
        private_run = private_records.taken(needed(private_records, self._cap))
        start = self._private_edges[-1]
        for private_column, private_values in zip(self._private_all, private_run, strict=True):
            self._room.write(private_column, start, private_values)
        self._private_edges.append(start + len(private_run.private_places))

    def count(self) -> int:
        """How many users there are."""
        return sum(count_users(private_bucket) for private_bucket in self.buckets(0, 1))

    def buckets(self, part: int, parts: int) -> Iterator[UserRecords]:
        """The records of a part, about `AT_ONCE` at a time, each user's together.

        Of a user there are no more than M + 1 from each run, so that a bucket does not grow with what one user has.
        """
        private_each = max(1, -(-self._private_edges[-1] // (AT_ONCE * parts)))
        first = private_each * part
        private_starts = part_starts(private_each * parts)[first : first + private_each + 1]
        private_cuts = [self._cuts(run, private_starts) for run in itertools.pairwise(self._private_edges)]
        for k in range(private_each):
            yield joined_records([self._copied(slice(*cuts[k : k + 2])) for cuts in private_cuts])

    def _cuts(self, run: tuple[int, int], private_starts: Digests) -> NDArray[np.int64]:
        """Where the digests from each start on begin in a run, and where the run ends."""
        self._room.trim()  # a search touches pages all over the run
        private_digests = self._private_all.private_digests[slice(*run)]
        return np.append(np.searchsorted(private_digests, private_starts), len(private_digests)) + run[0]

    def _copied(self, where: slice) -> UserRecords:
        """A copy of some records, of which no page stays in memory."""
        return UserRecords(
            *(
                self._room.read(private_column, where.start, where.stop)
                for private_column in self._private_all
            )
        )
