"""Which units are in a block: their positions, found a stretch at a time, so that nobody holds all. PRIVATE."""

import abc
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from privopt.data.room import Room
from privopt.mechanisms.noise import repeated_draws

DEALT = 2**19  # positions of a hand
KEY_BYTES = 32
ORDER_BYTES = 4  # of a position, in an order that is kept
_ORDERS = 16  # that are remembered, where none are kept
_ASKED = 4  # lists of positions, asked again for each block: those before which its units are counted

Ranges = tuple[tuple[int, int], ...]  # positions of the first unit of each part, and of the first not in it


class Places(abc.ABC):
    """Positions of units, ascending. Private: who is in which block is decided by a secret draw."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """How many there are, units that are absent included."""

    @abc.abstractmethod
    def within(self, start: int, stop: int) -> NDArray[np.int64]:
        """Those from `start` to `stop - 1`, ascending."""

    @abc.abstractmethod
    def before(self, edges: Sequence[int]) -> NDArray[np.int64]:
        """How many lie before each of some positions, which ascend."""

    def near(self, start: int, stop: int) -> "Places":
        """The same from `start` to `stop - 1`, with little that tells others: for who holds these units."""
        del start, stop
        return self

    def hold(self, room: Room, count: int) -> None:
        """Keep in a room what is asked again for each block of the cut, of the first `count` positions."""
        del room, count


class GivenPlaces(Places):
    """Positions one by one.

    Args:
        private_positions: ascending.
    Raises:
        ValueError: they do not ascend.
    """

    def __init__(self, private_positions: NDArray[np.int64]) -> None:
        self._private_positions = np.asarray(private_positions, np.int64)
        if np.any(np.diff(self._private_positions) <= 0):
            raise ValueError(
                "the positions of units must ascend: a unit has one place, and blocks keep the order."
            )

    def __len__(self) -> int:
        return len(self._private_positions)

    def within(self, start: int, stop: int) -> NDArray[np.int64]:
        """See `Places.within`."""
        return self._private_positions[slice(*self.before([start, stop]))]

    def before(self, edges: Sequence[int]) -> NDArray[np.int64]:
        """See `Places.before`."""
        return np.searchsorted(self._private_positions, edges).astype(np.int64)

    def near(self, start: int, stop: int) -> "GivenPlaces":
        """See `Places.near`: those in between alone."""
        return GivenPlaces(self.within(start, stop).copy())


@dataclass(frozen=True)
class Stretch(Places):
    """All positions from `start` to `stop - 1`."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def within(self, start: int, stop: int) -> NDArray[np.int64]:
        """See `Places.within`."""
        return np.arange(max(start, self.start), max(min(stop, self.stop), self.start, start))

    def before(self, edges: Sequence[int]) -> NDArray[np.int64]:
        """See `Places.before`."""
        return np.clip(np.asarray(edges, np.int64), self.start, self.stop) - self.start


@dataclass(eq=False, repr=False)
class Deal:
    """How positions are dealt out to blocks, one hand of them after the other.

    A hand, `length` positions or what is left of them, is in a secret order, of which the first `edges[k, 1]` are the
    first block's, the next up to `edges[k, 2]` the second's, and so on; what remains is nobody's.

    Attributes:
        private_keys: (hands,) 32 secret bytes each, from which a hand's order follows.
        private_edges: (hands, blocks + 1) uint32.
        count: how many positions there are.
        length: of a hand, but maybe the last.
        first: which hand the first of these is, where some are left out.
    """

    private_keys: list[bytes]
    private_edges: NDArray[np.uint32]
    count: int
    length: int
    first: int = 0
    _private_orders: NDArray[np.uint32] | None = field(default=None, init=False)
    _kept: set[int] = field(default_factory=set[int], init=False)
    _private_counted: dict[tuple[int, ...], NDArray[np.int64]] = field(
        default_factory=dict[tuple[int, ...], NDArray[np.int64]], init=False
    )

    @property
    def hands(self) -> range:
        """The numbers of those that are at hand."""
        return range(self.first, self.first + len(self.private_keys))

    def order(self, hand: int) -> NDArray[np.uint32]:
        """The order of a hand, of positions counted from its first."""
        start, length = self.length * hand, min(self.length, self.count - self.length * hand)
        key = self.private_keys[hand - self.first]
        if self._private_orders is None or start + length > len(self._private_orders):
            return _remembered_order(key, length)
        private_order = self._private_orders[start : start + length]
        if hand not in self._kept:
            private_order[:] = _order(key, length)
            self._kept.add(hand)
        return private_order

    def dealt(self, hand: int, block: int) -> NDArray[np.int64]:
        """The positions of one hand that are a block's, ascending."""
        private_edges = self.private_edges[hand - self.first]
        private_own = self.order(hand)[private_edges[block] : private_edges[block + 1]]
        return self.length * hand + np.sort(private_own).astype(np.int64)

    def before(self, edges: Sequence[int]) -> NDArray[np.int64]:
        """How many of each block lie before each of some ascending positions: (edges, blocks)."""
        asked = tuple(int(edge) for edge in edges)
        if asked not in self._private_counted:
            for earlier in list(self._private_counted)[: 1 - _ASKED]:
                del self._private_counted[earlier]
            self._private_counted[asked] = self._before(asked)
        return self._private_counted[asked]

    def hold(self, room: Room, count: int) -> None:
        """Keep orders in a room, of the hands that lie whole before so many: they take `ORDER_BYTES` a position."""
        if self._private_orders is None and self.first == 0:
            kept = self.count if count >= self.count else count // self.length * self.length
            self._private_orders = room.another(kept * ORDER_BYTES).zeros(kept, np.uint32)

    def with_some_of(self, start: int, stop: int) -> range:
        """The hands that the positions from `start` to `stop - 1` are in; none where there are no such positions."""
        low = min(max(start // self.length, self.first), self.hands.stop)
        high = min(-(-stop // self.length), self.hands.stop) if start < stop else low
        return range(low, max(low, high))

    def near(self, start: int, stop: int, block: int) -> "Deal":
        """What tells one block's positions from `start` to `stop - 1`: of the hands that these are in."""
        hands = self.with_some_of(start, stop)
        here = slice(hands.start - self.first, hands.stop - self.first)
        return Deal(
            self.private_keys[here],
            self.private_edges[here, block : block + 2].copy(),
            self.count,
            self.length,
            first=hands.start,
        )

    def __reduce__(self) -> tuple[type["Deal"], tuple[list[bytes], NDArray[np.uint32], int, int, int]]:
        return Deal, (self.private_keys, self.private_edges, self.count, self.length, self.first)

    def _before(self, edges: Sequence[int]) -> NDArray[np.int64]:
        private_sizes = np.diff(self.private_edges.astype(np.int64), axis=1)
        private_sums = np.concatenate([np.zeros_like(private_sizes[:1]), np.cumsum(private_sizes, axis=0)])
        private_found = np.empty((len(edges), private_sizes.shape[1]), np.int64)
        for k, edge in enumerate(edges):
            place = min(max(edge, self.length * self.first), self.count)
            hand = min(place // self.length, self.hands.stop)
            private_found[k] = private_sums[hand - self.first]
            if hand in self.hands and place > self.length * hand:
                private_earlier = self.order(hand) < place - self.length * hand
                private_up_to = np.concatenate([[0], np.cumsum(private_earlier)])
                private_found[k] += np.diff(private_up_to[self.private_edges[hand - self.first]])
        return private_found


@dataclass(frozen=True, eq=False, repr=False)
class DealtPlaces(Places):
    """The positions that one block was dealt."""

    deal: Deal
    block: int

    def __len__(self) -> int:
        private_edges = self.deal.private_edges
        return int((private_edges[:, self.block + 1] - private_edges[:, self.block]).sum(dtype=np.int64))

    def within(self, start: int, stop: int) -> NDArray[np.int64]:
        """See `Places.within`."""
        private_dealt = (self.deal.dealt(hand, self.block) for hand in self.deal.with_some_of(start, stop))
        private_all = np.concatenate([np.zeros(0, np.int64), *private_dealt])
        return private_all[slice(*np.searchsorted(private_all, [start, stop]))]

    def before(self, edges: Sequence[int]) -> NDArray[np.int64]:
        """See `Places.before`."""
        return self.deal.before(edges)[:, self.block]

    def near(self, start: int, stop: int) -> "DealtPlaces":
        """See `Places.near`: the keys of the hands that these are in, which tell who else is in the block there."""
        return DealtPlaces(self.deal.near(start, stop, self.block), 0)

    def hold(self, room: Room, count: int) -> None:
        """See `Places.hold`."""
        self.deal.hold(room, count)


def ranges_among(ranges: Sequence[tuple[int, int]], places: Places) -> Ranges:
    """Where each part begins and ends among units at some places, part after part, which stay in their parts."""
    private_ends = places.before([stop for _, stop in ranges]).tolist()
    return tuple(itertools.pairwise([0, *private_ends]))


def pieces(places: Places, count: int) -> Iterator[NDArray[np.int64]]:
    """Those below `count`, in order, of a stretch of `DEALT` positions at a time."""
    for start in range(0, count, DEALT):
        yield places.within(start, min(start + DEALT, count))


def _order(key: bytes, length: int) -> NDArray[np.uint32]:
    return repeated_draws(key, 0).permutation(np.arange(length, dtype=np.uint32))


@lru_cache(_ORDERS)
def _remembered_order(key: bytes, length: int) -> NDArray[np.uint32]:
    return _order(key, length)
