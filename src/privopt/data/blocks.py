"""Disjoint blocks of units: drawn without looking at them, and told apart, so that the curator knows who is in what."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privopt.data.block_counts import joining, shared_out, wanted
from privopt.data.places import DEALT, KEY_BYTES, Deal, DealtPlaces, GivenPlaces, Places, Stretch
from privopt.public import Public, Relation


@dataclass(frozen=True)
class Block:
    """Block `index` of the `count` disjoint ones that were made at once; `cut` numbers the call that made them."""

    cut: int
    index: int
    count: int


Assigned = list[tuple[Places, int]]  # of each block, who is in it and its public size
Lineage = tuple[Block, ...]  # the block, the block of that block, ...; () is everybody


def block_sizes(public: Public, sizes: int | Sequence[int]) -> list[int]:
    """The public size of each block, from the number of blocks of equal size or from the sizes themselves.

    Raises:
        ValueError: a block of fewer than two units, or more units than there are.
    """
    return _shares_and_sizes(public, sizes)[-1]


def block_assignment(
    public: Public, sizes: int | Sequence[int], generator: np.random.Generator | None, *, private_count: int
) -> Assigned:
    """Assign unit positions to disjoint blocks, without looking at the units.

    Args:
        public: the public side of the data that is cut.
        sizes: how many blocks of equal size, or the public size of each; units that are left over are in none.
        generator: the secret stream for units; None cuts them in the order in which they are stored.
        private_count: how many units are there; asked under add-or-remove-one only.
    Returns:
        One (places, public size) pair a block; the size is what the block's means divide by. Up to `DEALT` units the
        positions themselves; of more, for each `DEALT` of them, how many each block gets and the key of a secret order
        of them, from which its positions follow (`places.Deal`): 32 bytes, and 4 for each block.
    Privacy:
        Under replace-one the positions are assigned at random, or as they are, from what is public: the replaced unit
        stays in its block, which is all that a price of disjoint blocks supposes. A user who is replaced may stand
        elsewhere in the order, and move others by one position; so users are assigned by a law that is the same
        whatever their order is, and there is one assignment, as likely, for which every other user stays in the block
        as well. Under add-or-remove-one each unit has
        a draw of its own and joins a block with probability size / n, exactly (`data.participants`): adding a unit
        moves no other. In a block of a block the units are those that earlier draws put there, so the same holds at
        every depth.

        Both laws are drawn in two steps where there are more than `DEALT` units. By either, given how many of a hand of
        positions each block gets, all ways of giving them so many are equally likely, and hands are independent. So
        the numbers are drawn first, exactly (`block_counts`), and who it is follows from a uniform order of the hand,
        of which each block gets a slice. An order is drawn from a stream
        of its own, ChaCha20 under 32 bytes of the secret stream, so that it can be drawn again: to whoever does not
        have the key it is a uniform one, as all that is drawn from the secret stream is.
    Raises:
        ValueError: a block of fewer than two units, or more units than there are; or units without a public order.
    """
    shares, whole, sizes = _shares_and_sizes(public, sizes)
    if generator is None:
        require_order(public)
        stretches = itertools.pairwise([0, *itertools.accumulate(sizes)])
        return [(Stretch(start, stop), size) for (start, stop), size in zip(stretches, sizes, strict=True)]
    joins = public.relation is Relation.ADD_OR_REMOVE_ONE
    private_positions = private_count if joins else public.n
    if private_positions <= DEALT:
        if joins:
            private_order, private_edges = _ordered(_joined(shares, whole, generator, private_count), shares)
        else:
            private_order = generator.permutation(public.n)
            private_edges = np.concatenate(([0], np.cumsum(sizes)))
        found: list[Places] = [
            GivenPlaces(np.sort(private_order[start:stop]))
            for start, stop in itertools.pairwise(private_edges)
        ]
        return list(zip(found, sizes, strict=True))
    private_lengths = [min(DEALT, private_positions - start) for start in range(0, private_positions, DEALT)]
    if joins:
        private_sizes = joining(shares, whole, private_lengths, generator)
    elif public.unit == "record":
        private_sizes = shared_out(sizes, private_lengths, generator)
    else:
        private_sizes = wanted(sizes, private_lengths, generator)
    private_edges = np.zeros((len(private_sizes), len(sizes) + 1), np.uint32)
    np.cumsum(private_sizes, axis=1, out=private_edges[:, 1:])
    private_keys = [generator.bytes(KEY_BYTES) for _ in private_edges]
    deal = Deal(private_keys, private_edges, private_positions, DEALT)
    return [(DealtPlaces(deal, block), size) for block, size in enumerate(sizes)]


def _joined(
    shares: Sequence[int], whole: int, generator: np.random.Generator, units: int
) -> NDArray[np.int64]:
    """The block that each unit joins by a draw of its own; the number of blocks for none."""
    return np.searchsorted(np.cumsum(shares), generator.integers(0, whole, units), side="right")


def _ordered(
    private_owners: NDArray[np.int64], blocks: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Units block after block, and where each block begins and the last one ends."""
    private_order = np.argsort(private_owners, kind="stable")
    return private_order, np.searchsorted(private_owners[private_order], np.arange(len(blocks) + 1))


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
