"""The records of one part's users as they arrive: each once, in any order. PRIVATE."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privopt.data.user_parts import UserLayout, UserRecords, count_users, joined_records, lay_out_part, needed
from privopt.engine.on_ray.stored_rows import StoredRows

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
