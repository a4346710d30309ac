"""Disjoint blocks of units: drawn without looking at them, and told apart, so that the curator knows who is in what."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privopt.data.participants import fixed_positions
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
        as well. Under add-or-remove-one each unit has a draw of its own and joins a block with probability size / n,
        exactly (`data.participants`): adding a unit moves no other. In a block of a block the units are those that
        earlier draws put there, so the same holds at every depth.

        Both laws are drawn in two steps where there are more than `DEALT` units. By either, given how many of a hand of
        positions each block gets, all ways of giving them so many are equally likely, and hands are independent. So
        the numbers are drawn first, exactly (`joining`, `wanted`), and who it is follows from a uniform order of the
        hand, of which each block gets a slice. An order is drawn from a stream of its own, ChaCha20 under 32 bytes of
        the secret stream, so that it can be drawn again: to whoever does not have the key it is a uniform one, as all
        that is drawn from the secret stream is.
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


# ---- How many of each hand of positions each block gets, drawn exactly, without a lot for each position ----
_LOTS = 2**14  # positions up to which each has a lot of its own
_ORDERED = 2**19  # positions up to which they are put in order
_WORD = 64


def joining(
    shares: Sequence[int], whole: int, lengths: Sequence[int], generator: np.random.Generator
) -> NDArray[np.int64]:
    """How many of each hand join each block, each unit by itself with probability share / whole: (hands, blocks)."""
    everybody = [*shares, whole - sum(shares)]
    private_counts = [_multinomial(length, everybody, generator) for length in lengths]
    return np.array(private_counts)[:, : len(shares)]


def shared_out(
    sizes: Sequence[int], lengths: Sequence[int], generator: np.random.Generator
) -> NDArray[np.int64]:
    """How many of each hand each block gets, so many of all positions: (hands, blocks).

    Of a hand each block gets the share that it has among all positions still to be dealt, rounded up or down by
    systematic sampling, and which ones is a uniformly random order of the hand. So every position is in a block with
    probability size / n, of n in all: the share of a block among the positions that are left is a martingale. The
    blocks are stratified samples, whose means vary no more than those of simple ones but for the rounding.
    """
    left = np.array([*sizes, sum(lengths) - sum(sizes)], np.int64)
    dealt = list[NDArray[np.int64]]()
    for length in lengths:
        edges, others = np.concatenate(([0], np.cumsum(left))), int(left.sum())
        if length < others:
            edges = (length * edges + int(generator.integers(0, others))) // others
        dealt.append(np.diff(edges))
        left -= dealt[-1]
    return np.array(dealt)[:, : len(sizes)]


def wanted(sizes: Sequence[int], lengths: Sequence[int], generator: np.random.Generator) -> NDArray[np.int64]:
    """How many of each hand each block gets, all assignments equally likely: (hands, blocks)."""
    everybody = [*sizes, sum(lengths) - sum(sizes)]
    return _hypergeometric(np.array(lengths, np.int64), everybody, generator)[:, : len(sizes)]


def successes(count: int, share: int, whole: int, generator: np.random.Generator) -> int:
    """How many of `count` independent events of probability share / whole come true, exactly.

    An event does where a number U, uniform in [0, 1), is below share / whole. Both are compared bit by bit, all that
    are undecided at once: of them a binomial number with probability a half has 0 for the next bit of U, as many as are
    set among random bits. About two bits an event decide all.
    """
    if share >= whole:
        return count
    found, undecided, rest = 0, count, share
    while undecided and rest:  # of the quotient's bits nothing but zeros remains: U is not below it
        rest *= 2
        private_zeros = _halves(undecided, generator)
        if rest >= whole:
            rest -= whole
            found += private_zeros
            undecided -= private_zeros
        else:
            undecided = private_zeros
    return found


def _halves(count: int, generator: np.random.Generator) -> int:
    """How many of so many random bits are set."""
    words = np.asarray(generator.bit_generator.random_raw(-(-count // _WORD)), np.uint64)
    words[-1] >>= np.uint64(-count % _WORD)
    return int(np.bitwise_count(words).sum(dtype=np.int64))


def _multinomial(count: int, shares: Sequence[int], generator: np.random.Generator) -> NDArray[np.int64]:
    """How many of `count` fall to each share, each by itself: first to the one half of the shares or the other."""
    whole = sum(shares)
    if len(shares) == 1 or count == 0:
        return np.array([count, *[0] * (len(shares) - 1)])
    if count <= _LOTS:
        private_lots = generator.integers(0, whole, count)
        return np.bincount(
            np.searchsorted(np.cumsum(shares), private_lots, side="right"), minlength=len(shares)
        )
    middle = len(shares) // 2
    left = successes(count, sum(shares[:middle]), whole, generator)
    return np.concatenate(
        [
            _multinomial(left, shares[:middle], generator),
            _multinomial(count - left, shares[middle:], generator),
        ]
    )


def _hypergeometric(
    counts: NDArray[np.int64], sizes: Sequence[int], generator: np.random.Generator
) -> NDArray[np.int64]:
    """How many of each hand each block gets of positions that are dealt out whole, all ways equally likely.

    The one half of the blocks gets a uniform subset of `left` positions: each is in with probability left / total, by
    itself; then as many as are too many, uniform among those that are in, go out, or as many as are missing come in.
    Given how many they are, those that are in are a uniform subset before, and so they are after.

    Args:
        counts: positions of each hand.
        sizes: of each block; together as many as positions.
        generator: the secret stream for units.
    """
    total, middle = int(counts.sum()), len(sizes) // 2
    if len(sizes) == 1:
        return counts[:, None]
    if total <= _ORDERED:
        private_hands = generator.permutation(np.repeat(np.arange(len(counts)), counts))
        private_blocks = np.repeat(np.arange(len(sizes)), sizes)
        private_cells = np.bincount(
            private_hands * len(sizes) + private_blocks, minlength=len(counts) * len(sizes)
        )
        return private_cells.reshape(len(counts), len(sizes))
    left = sum(sizes[:middle])
    private_in = np.array([successes(int(count), left, total, generator) for count in counts])
    surplus = int(private_in.sum()) - left
    if surplus > 0:
        private_in -= _some(private_in, surplus, generator)
    elif surplus < 0:
        private_in += _some(counts - private_in, -surplus, generator)
    return np.hstack(
        [
            _hypergeometric(private_in, sizes[:middle], generator),
            _hypergeometric(counts - private_in, sizes[middle:], generator),
        ]
    )


def _some(counts: NDArray[np.int64], batch: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """How many of each hand are among `batch` of all its positions, a uniform subset."""
    private_ends = np.cumsum(counts)
    private_positions = fixed_positions(batch, int(private_ends[-1]), generator)
    return np.bincount(np.searchsorted(private_ends, private_positions, side="right"), minlength=len(counts))
