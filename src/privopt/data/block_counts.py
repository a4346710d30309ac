"""How many of each hand of positions the blocks of a cut get, drawn exactly and without a lot for each position."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from privopt.data.participants import fixed_positions

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
