"""Who takes part in a release, drawn exactly as it is priced, from a stream of random bits.

**Poisson.** Each unit takes part independently with the probability p that is priced, a float64 number taken as it
is. The gaps between those who do are independent, and geometric: at least j with probability (1 - p)^j. A gap is
drawn by inversion, floor(log U / log(1 - p)), U uniform in (0, 1) with infinitely many bits. 64 bits and float64 give
it where the error bound below leaves no integer in doubt; else decimal arithmetic and as many bits as it takes. So
nothing is left for delta: no unit takes part with a probability above p, not by 2^-53 either, as it would where
uniform float64 numbers are compared with p, and not by what a binomial number in floating point, as NumPy's, would be
off.

The bound. Let u = 2^-53, c the first 64 bits of U as an integer, y the quotient. What is not known of log U, for c
and its rounding to float64, is 1.1 (1 / c + u), which moves y by as much over |log(1 - p)|; two logarithms of the C
library, off by less than 4 units in the last place, 8 u, and a quotient move it by less than 18 u y. `_fill` allows
for twice as much.

**Fixed size.** NumPy's `Generator.choice` without replacement draws each place with bounded integers, by Floyd's
algorithm or the end of a Fisher-Yates shuffle, and `permutation` and `integers` do as well: such integers come from
random words by Lemire's method or by masking, with rejection of the surplus. So subsets, orders and integers are
exactly uniform. Blocks are told apart by such integers, see `data.blocks`.

The end of a shuffle takes memory for all positions, and NumPy turns to it where a batch is more than a fiftieth of
them. Above `_SHUFFLED` positions such a batch is drawn by selection, in memory for the batch alone: position i is taken
if an integer, uniform among as many as positions are left, is below the number of units still wanted. A subset S of
size b then comes out with probability 1 / C(n, b): the factors are w_i / (n - i) where i is in S and
1 - w_i / (n - i) where it is not; their numerators make up b! (n - b)!, in some order, and their denominators n!. The
integers are Lemire's with 64 bits of a word, the surplus rejected, so this is exact, too.

Source:
    Skips between those sampled, and selection (algorithm S of Knuth): Fan, Muller, Rezucha 1962; bounded integers:
    Lemire 2019; subsets: Bentley and Floyd 1987. Deciding by as many bits as it takes: Karney 2016.
"""

import decimal
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from privopt.ledger.sampling import EveryUnit, FixedSize, Poisson, Sampling
from privopt.mechanisms.compiled import compiled
from privopt.mechanisms.decimals import decimals

_U = 2.0**-53
_SHUFFLED = 2**22  # positions up to which NumPy may shuffle them all: 32 MB
_WORDS = 2**16  # random words that are held at a time
_HALF = np.uint64(32)
_LOW_HALF = np.uint64(2**32 - 1)


def takes_everybody(sampling: Sampling, n: int) -> bool:
    """Whether a sample is of all units, and priced as such; a drawn block may have more than n."""
    return isinstance(sampling, EveryUnit) or sampling == Poisson(1.0) or sampling == FixedSize(n, n)


def drawn_positions(
    sampling: Sampling, generator: np.random.Generator, *, n: int, private_count: int
) -> NDArray[np.int64]:
    """Draw the positions of the units that take part, in order. Independent of what the units hold.

    Args:
        sampling: Poisson draws each unit independently with probability `rate`; fixed-size draws `batch` of n positions
            without replacement, and an absent unit at one of them takes no part.
        generator: the secret stream for units.
        n: the public number of units.
        private_count: how many of them are there, at the first positions.
    Privacy:
        Exact, see the module.
    """
    if takes_everybody(sampling, n):
        return np.arange(private_count)
    if isinstance(sampling, FixedSize):
        private_draw = fixed_positions(sampling.batch, max(n, private_count), generator)
        return private_draw[private_draw < private_count]
    assert isinstance(sampling, Poisson)
    return poisson_positions(sampling.rate, private_count, generator)


def poisson_positions(rate: float, count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """Which of the positions 0, ..., count - 1 are in a sample that each joins independently with probability `rate`.

    Args:
        rate: in (0, 1].
        count: how many positions there are.
        generator: the secret stream for units.
    """
    if rate == 1.0:
        return np.arange(count)
    bits = generator.bit_generator
    places, found, after = np.empty(_likely(count * rate), np.int64), 0, 0
    while after < count:
        expected = (count - after) * rate
        words = np.asarray(bits.random_raw(_likely(expected)), np.uint64)
        used = 0
        while used < len(words) and after < count:
            if found == len(places):
                places = np.concatenate([places, np.empty(_likely((count - after) * rate), np.int64)])
            used, found, after, doubtful = _fill(words, used, rate, places, found, after, count)
            if doubtful:
                place = after + _settled(int(words[used]), rate, count, lambda: int(bits.random_raw()))
                used, after = used + 1, place + 1
                if place < count:  # there is room: what was full had room added before the gap was in doubt
                    places[found] = place
                    found += 1
    return places[:found].copy()


def _likely(expected: float) -> int:
    """Room for as many as are expected, and for as many more as they rarely are."""
    return int(expected + 5.0 * math.sqrt(expected)) + 4


def fixed_positions(batch: int, count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """A uniformly random subset of the positions 0, ..., count - 1, in order, in memory for `batch` of them.

    Args:
        batch: how many, at most `count`.
        count: how many positions there are.
        generator: the secret stream for units.
    """
    if count <= _SHUFFLED or batch <= count // 50:
        return np.sort(generator.choice(count, batch, replace=False, shuffle=False)).astype(np.int64)
    places, found, place = np.empty(batch, np.int64), 0, 0
    while found < batch:
        words = np.asarray(generator.bit_generator.random_raw(_WORDS), np.uint64)
        found, place = _select(words, places, found, place, count)
    return places


@compiled
def _select(
    words: NDArray[np.uint64], places: NDArray[np.int64], found: int, place: int, count: int
) -> tuple[int, int]:
    """Take positions or leave them, one word each, until those that are wanted are found or the words end.

    Args:
        words: 64 bits each.
        places: the positions that are taken, of room for all that are wanted.
        found: how many are.
        place: the position that is decided next.
        count: how many positions there are.
    Returns:
        (found, place).
    """
    for w in range(words.shape[0]):
        if found == places.shape[0]:
            break
        left = np.uint64(count - place)
        word_high, word_low = words[w] >> _HALF, words[w] & _LOW_HALF
        left_high, left_low = left >> _HALF, left & _LOW_HALF
        middle = word_high * left_low + (word_low * left_low >> _HALF)
        other = word_low * left_high + (middle & _LOW_HALF)
        high = word_high * left_high + (middle >> _HALF) + (other >> _HALF)
        low = words[w] * left  # of the product of both, modulo 2^64
        if low < left and low < (~left + np.uint64(1)) % left:  # the surplus: 2^64 modulo `left`
            continue
        if high < np.uint64(places.shape[0] - found):
            places[found] = place
            found += 1
        place += 1
    return found, place


@compiled
def _fill(
    words: NDArray[np.uint64],
    start: int,
    rate: float,
    places: NDArray[np.int64],
    found: int,
    after: int,
    count: int,
) -> tuple[int, int, int, bool]:
    """Go from one who takes part to the next, one word a gap, until positions or room end or a gap is in doubt.

    Args:
        words: 64 bits each.
        start: the first that is not used yet.
        rate: p, in (0, 1).
        places: the positions of those who take part; without room for one more it goes no further.
        found: how many there are.
        after: the position after the last of them; that of the end, or more, when no more are to come.
        count: how many positions there are.
    Returns:
        (words used, found, after, whether the next gap is one for `_settled`).
    """
    step = -math.log1p(-rate)
    for w in range(start, words.shape[0]):
        if found == places.shape[0]:
            return w, found, after, False
        c = np.float64(words[w])
        if c == 0.0:
            return w, found, after, True
        far = -math.log(c * 2.0**-64)
        slack = 2.2 * (1.0 / c + _U) + 36.0 * _U * far
        if far - slack >= step * count * (1.0 + 2.0**-40):
            return w + 1, found, count, False
        if slack >= 0.5 * step:  # also where the rate is so small that the gap is no float64 number
            return w, found, after, True
        gap, doubt = far / step, slack / step
        whole = math.floor(gap)
        if gap - whole <= doubt or gap - whole >= 1.0 - doubt:
            return w, found, after, True
        after += whole
        if after >= count:
            return w + 1, found, count, False
        places[found] = after
        found += 1
        after += 1
    return words.shape[0], found, after, False


def _settled(word: int, rate: float, most: int, take: Callable[[], int]) -> int:
    """A gap by decimal arithmetic, from the bits of a word and as many more as it takes."""
    bits, exact_rate = 64, Fraction(rate)
    places = len(str(exact_rate.denominator))
    while True:
        if word > 0:
            with decimal.localcontext(decimals(2 * bits // 3 + 60 + 2 * places)):
                stays = (
                    decimal.Decimal(exact_rate.denominator - exact_rate.numerator) / exact_rate.denominator
                )
                margin = decimal.Decimal(10) ** -(bits // 3 + 20)  # above what the steps round, and shrinks
                low, high = (
                    math.floor((decimal.Decimal(end) / (1 << bits)).ln() / stays.ln() + side)
                    for end, side in ((word + 1, -margin), (word, margin))
                )
            if max(low, 0) == high or low >= most:
                return min(max(low, 0), most)
        word, bits = word << 64 | take(), bits + 64
