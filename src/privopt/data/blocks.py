"""Disjoint blocks of units: drawn without looking at them, and told apart, so that the curator knows who is in what."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privopt.mechanisms.compiled import compiled
from privopt.public import Public, Relation

_DEALT = 2**19  # positions that are assigned at a time


@dataclass(frozen=True)
class Block:
    """Block `index` of the `count` disjoint ones that were made at once; `cut` numbers the call that made them."""

    cut: int
    index: int
    count: int


Lineage = tuple[Block, ...]  # the block, the block of that block, ...; () is everybody


def block_sizes(public: Public, sizes: int | Sequence[int]) -> list[int]:
    """The public size of each block, from the number of blocks of equal size or from the sizes themselves.

    Raises:
        ValueError: a block of fewer than two units, or more units than there are.
    """
    return _shares_and_sizes(public, sizes)[-1]


def block_assignment(
    public: Public, sizes: int | Sequence[int], generator: np.random.Generator | None, *, private_count: int
) -> list[tuple[NDArray[np.int64], int]]:
    """Assign unit positions to disjoint blocks, without looking at the units.

    Args:
        public: the public side of the data that is cut.
        sizes: how many blocks of equal size, or the public size of each; units that are left over are in none.
        generator: the secret stream for units; None cuts them in the order in which they are stored.
        private_count: how many units are there; asked under add-or-remove-one only.
    Returns:
        One (positions, public size) pair a block; the size is what the block's means divide by.
        Beside them it takes memory for half a million positions, and under add-or-remove-one for one block.
    Privacy:
        Under replace-one the positions are assigned at random, or as they are, from what is public: the replaced unit
        stays in its block, which is all that a price of disjoint blocks supposes. A user who is replaced may stand
        elsewhere in the order, and move others by one position; so users are assigned by a law that is the same
        whatever their order is, and there is one assignment, as likely, for which every other user stays in the block
        as well. Under add-or-remove-one each unit has
        a draw of its own and joins a block with probability size / n, exactly (`data.participants`): adding a unit
        moves no other. In a block of a block the units are those that earlier draws put there, so the same holds at
        every depth.
    Raises:
        ValueError: a block of fewer than two units, or more units than there are; or units without a public order.
    """
    shares, whole, sizes = _shares_and_sizes(public, sizes)
    if generator is None:
        require_order(public)
        edges = np.concatenate(([0], np.cumsum(sizes)))
        return [(np.arange(edges[b], edges[b + 1]), size) for b, size in enumerate(sizes)]
    if public.relation is Relation.ADD_OR_REMOVE_ONE:
        found = _joined(shares, whole, generator, private_count)
    elif public.unit == "record" or public.n <= _DEALT:
        found = _dealt(sizes, public.n, generator)
    else:
        found = _shuffled(sizes, public.n, generator)
    return list(zip(found, sizes, strict=True))


def _joined(
    shares: Sequence[int], whole: int, generator: np.random.Generator, private_count: int
) -> list[NDArray[np.int64]]:
    """The units that join each block, each by a draw of its own."""
    private_pieces: list[list[NDArray[np.int64]]] = [[np.zeros(0, np.int64)] for _ in shares]
    ends = np.cumsum(shares)
    for start in range(0, private_count, _DEALT):
        lots = generator.integers(0, whole, min(_DEALT, private_count - start))
        private_block = np.searchsorted(ends, lots, side="right")
        private_order = np.argsort(private_block, kind="stable")
        private_edges = np.searchsorted(private_block[private_order], np.arange(len(shares) + 1))
        for b, private_found in enumerate(private_pieces):
            private_found.append(start + private_order[private_edges[b] : private_edges[b + 1]])
    private_blocks: list[NDArray[np.int64]] = []
    for private_found in private_pieces:
        private_blocks.append(np.concatenate(private_found))
        private_found.clear()
    return private_blocks


def _dealt(sizes: Sequence[int], n: int, generator: np.random.Generator) -> list[NDArray[np.int64]]:
    """So many of n positions for each block, each part of positions dealt out by itself.

    Of a part each block gets the share that it has among all positions still to be dealt, rounded up or down by
    systematic sampling, and which ones is a uniformly random order of the part. So every position is in a block with
    probability size / n: the share of a block among the positions that are left is a martingale. Where there are
    several parts the blocks are stratified samples, whose means vary no more than those of simple ones but for the
    rounding; of one part they are slices of a random permutation.
    """
    left = np.array([*sizes, n - sum(sizes)], np.int64)
    blocks = [np.empty(size, np.int64) for size in sizes]
    filled = np.zeros(len(sizes), np.int64)
    for start in range(0, n, _DEALT):
        length, others = min(_DEALT, n - start), n - start
        edges = np.concatenate(([0], np.cumsum(left)))
        if length < others:
            edges = (length * edges + int(generator.integers(0, others))) // others
        order = start + generator.permutation(length)
        for b, block in enumerate(blocks):
            dealt = np.sort(order[edges[b] : edges[b + 1]])
            block[filled[b] : filled[b] + len(dealt)] = dealt
            filled[b] += len(dealt)
        left -= np.diff(edges)
    return blocks


def _shuffled(sizes: Sequence[int], n: int, generator: np.random.Generator) -> list[NDArray[np.int64]]:
    """So many of n positions for each block, all such assignments equally likely, in memory for a part of them.

    One position after the other goes to a block with probability w / m, of w positions that the block still wants and m
    that are left: an assignment comes out with probability (the product of all w_b!) / n!, in which blocks' sizes stand
    alone. A lot is an integer, exactly uniform below m.
    """
    left = np.array([*sizes, n - sum(sizes)], np.int64)
    pieces: list[list[NDArray[np.int64]]] = [[] for _ in sizes]
    for start in range(0, n, _DEALT):
        length = min(_DEALT, n - start)
        owners = _owners(generator.integers(0, np.arange(n - start, n - start - length, -1)), left)
        order = np.argsort(owners, kind="stable")
        edges = np.searchsorted(owners[order], np.arange(len(sizes) + 1))
        for b, found in enumerate(pieces):
            found.append(start + order[edges[b] : edges[b + 1]])
    return [np.concatenate(found) for found in pieces]


@compiled
def _owners(lots: NDArray[np.int64], left: NDArray[np.int64]) -> NDArray[np.int64]:
    """The block of each lot, a number below how many positions are left, of which `left` says how many each wants."""
    owners = np.empty(lots.shape[0], np.int64)
    for i in range(lots.shape[0]):
        lot, b = lots[i], 0
        while lot >= left[b]:
            lot -= left[b]
            b += 1
        left[b] -= 1
        owners[i] = b
    return owners


def require_order(public: Public) -> None:
    """Refuse to cut units in the order in which they are stored, where that tells of the data.

    Raises:
        ValueError: units come and go, or they are users, whose place follows from their records.
    """
    if public.relation is not Relation.REPLACE_ONE or public.unit != "record":
        raise ValueError(
            "blocks in order need records under replace-one: where a record may be absent, or units are users, a place "
            "in the order depends on the data. Cut at random (in_order=False)."
        )


def _shares_and_sizes(public: Public, sizes: int | Sequence[int]) -> tuple[list[int], int, list[int]]:
    """Each block's share and what the shares are parts of, and its public size."""
    if isinstance(sizes, int | np.integer):
        count = int(sizes)
        if not 1 <= count <= public.n // 2:
            raise ValueError(
                f"the number of blocks must be between 1 and n / 2 = {public.n // 2}, got {count}: a block needs at "
                "least 2 units."
            )
        small, larger = divmod(public.n, count)
        if public.relation is Relation.ADD_OR_REMOVE_ONE:
            larger = 0
        return [1] * count, count, [small + 1] * larger + [small] * (count - larger)
    given = [int(size) for size in sizes]
    if not given or min(given) < 2 or sum(given) > public.n:
        raise ValueError(
            f"each block needs at least 2 units, and all together at most n = {public.n}, got sizes {given}."
        )
    return given, public.n, given
