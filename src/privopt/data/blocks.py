"""Disjoint blocks of units: drawn without looking at them, and told apart, so that the curator knows who is in what."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privopt.public import Public, Relation


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
    Privacy:
        Under replace-one the blocks are slices of a random permutation of the positions, or of the positions as they
        are: the replaced unit stays in its block. Under add-or-remove-one each unit has a draw of its own and joins a
        block with probability size / n, exactly (`data.participants`): adding a unit moves no other. In a block of a
        block the units are those that earlier draws put there, so the same holds at every depth.
    Raises:
        ValueError: a block of fewer than two units, or more units than there are; or units without a public order.
    """
    shares, whole, sizes = _shares_and_sizes(public, sizes)
    if generator is None:
        require_order(public)
    elif public.relation is Relation.ADD_OR_REMOVE_ONE:
        lots = generator.integers(0, whole, private_count)
        block = np.searchsorted(np.cumsum(shares), lots, side="right")
        return [(np.flatnonzero(block == b), size) for b, size in enumerate(sizes)]
    edges = np.concatenate(([0], np.cumsum(sizes)))
    order = np.arange(public.n) if generator is None else generator.permutation(public.n)
    return [(np.sort(order[edges[b] : edges[b + 1]]), size) for b, size in enumerate(sizes)]


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
