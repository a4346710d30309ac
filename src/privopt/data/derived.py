"""How much room the units take that a run makes of its units: from public numbers alone.

A run may map the rows, as whitening does, and cut the units into blocks, both as deep as it likes. What that takes is
told a record of the whole, since a map has as many records as what it is made of, and blocks have no more together.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from privopt.data.places import DEALT, ORDER_BYTES
from privopt.data.storage import KEPT_BYTES, PARTED_BYTES
from privopt.public import Public

DENSE_VIEW_BYTES = 2**29  # a mapped sparse matrix up to this size is stored dense
_CONSTANT_BYTES = 8 + 4  # of one more entry of a CSR row
_ARRAYS = 8  # of a set of units, at most
_BOUNDARY, _PAGE = 64, 4096  # where an array begins, and where room of its own does


class Extra(NamedTuple):
    """What a run takes besides its units. Public.

    Attributes:
        record: bytes for each record of the whole.
        copies: how often the entries of all CSR rows are copied.
        sets: how many sets of units are made: each has arrays of its own, in every part.
        anew: bytes for each record of the whole, by which units that are stored in the place of those at hand take more
            than these while they are read.
        anew_copies: likewise, how often the entries of all CSR rows.
    """

    record: int = 0
    copies: int = 0
    sets: int = 0
    anew: int = 0
    anew_copies: int = 0

    def bytes(self, records: int, entry_bytes: int, parts: int) -> int:
        """All of it.

        Args:
            records: of the whole.
            entry_bytes: of all entries of its CSR rows; 0 of others.
            parts: of the whole.
        """
        return records * self.record + self.copies * entry_bytes + self.sets * _around(parts)

    def anew_bytes(self, records: int, entry_bytes: int, parts: int) -> int:
        """By how much the reading of units takes more that are stored in the place of those at hand, see `bytes`."""
        return records * self.anew + self.anew_copies * entry_bytes + _around(parts)


def _around(parts: int) -> int:
    """What the boundaries of a set of units take."""
    return spare_bytes() + parts * _ARRAYS * _PAGE


def spare_bytes() -> int:
    """What the boundaries take on which the arrays of a set of units begin, of so many parts as is usual."""
    return 128 * _ARRAYS * _BOUNDARY


class Derived:
    """Units, and what is made of them.

    Args:
        public: what is public about the units.
        computed: whether rows are CSR, or computed from CSR as they are asked for; default: as is public.
    """

    def __init__(self, public: Public, *, computed: bool | None = None) -> None:
        self.public = public
        self._computed = public.sparse if computed is None else computed
        self._views: list[Derived] = []
        self._cuts: list[list[Derived]] = []

    def view(self, public: Public) -> "Derived":
        """The same units with mapped rows."""
        self._views.append(Derived(public, computed=not stored_dense(public, computed=self._computed)))
        return self._views[-1]

    def cut(self, publics: Sequence[Public]) -> "list[Derived]":
        """Disjoint blocks of the units."""
        self._cuts.append([Derived(public, computed=self._computed) for public in publics])
        return self._cuts[-1]

    def anything(self, blocks: int, maps: int) -> None:
        """What is made where it cannot be known, in any order: sets of blocks, and maps no wider than the rows.

        Args:
            blocks: how often all units are cut into blocks.
            maps: how often the rows of all are mapped.
        """
        whole = self
        for _ in range(blocks):
            (whole,) = whole.cut([self.public])
        for _ in range(maps):
            whole.view(self.public.mapped(self.public.d, self.public.row_bound))

    def beyond(self, at_hand: Public) -> Extra:
        """What these units and all that is made of them take, beyond other units of the same records, at hand before.

        Args:
            at_hand: what is public about those; they are given back before these are stored.
        """
        extra, computed = self.extra(), self.public.sparse
        more = self.record_bytes - record_bytes(at_hand, computed=at_hand.sparse)
        constant, longer = (
            _CONSTANT_BYTES * computed,
            computed and _itemsize(self.public) > _itemsize(at_hand),
        )
        return Extra(
            record=max(0, more + extra.record + constant),
            copies=2 * extra.copies + 1 if longer else extra.copies,  # an entry takes 12 bytes in place of 8
            sets=extra.sets + 1,
            anew=max(0, more + 2 * constant),  # CSR rows of users are read, and copied to those that are kept
            anew_copies=2 * longer,
        )

    @property
    def record_bytes(self) -> int:
        """About how many bytes a record of these units takes; of CSR, without its entries."""
        return record_bytes(self.public, computed=self._computed)

    def extra(self) -> Extra:
        """What all that is made of them takes, were all of it there at once."""
        record = copies = sets = 0
        for view in self._views:
            more = view.extra()
            record += view.record_bytes + more.record
            copies += more.copies
            sets += 1 + more.sets
        for cut in self._cuts:
            mores = [block.extra() for block in cut]
            # A drawn block may have more units than its size, but never twice as many, where so many are cut.
            kept = ORDER_BYTES if self.public.n * (1 + self.public.drawn) > DEALT else 0
            record += self.record_bytes + kept + max(more.record for more in mores)
            copies += self._computed + max(more.copies for more in mores)
            sets += bool(kept) + sum(1 + more.sets for more in mores)
        return Extra(record, copies, sets)


def stored_dense(public: Public, *, computed: bool) -> bool:
    """Whether mapped rows, of which this is public, are stored, and not computed as they are asked for."""
    most_rows = public.n * public.records_per_unit
    return not computed or _itemsize(public) * most_rows * public.d <= DENSE_VIEW_BYTES


def record_bytes(public: Public, *, computed: bool) -> int:
    """About how many bytes a record takes with what is kept of it; of CSR, or computed from it, without entries."""
    stored = 0 if computed else _itemsize(public) * public.d
    return stored + KEPT_BYTES + PARTED_BYTES * (computed or public.by_user)


def greater(one: Extra, other: Extra) -> Extra:
    """Enough for either."""
    return Extra(*map(max, one, other))


def _itemsize(public: Public) -> int:
    return np.dtype(public.storage).itemsize
