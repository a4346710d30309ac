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

Source:
    Skips between those sampled: Fan, Muller, Rezucha 1962; bounded integers: Lemire 2019; subsets: Bentley and Floyd
    1987. Deciding by as many bits as it takes: Karney 2016.
"""

import decimal
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from privopt.ledger.sampling import EveryUnit, FixedSize, Sampling
from privopt.mechanisms.compiled import compiled
from privopt.mechanisms.decimals import decimals

_U = 2.0**-53


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
    if isinstance(sampling, EveryUnit):
        return np.arange(private_count)
    if isinstance(sampling, FixedSize):
        if sampling.batch == n:  # priced as everybody, of whom a drawn block may have more
            return np.arange(private_count)
        private_draw = generator.choice(max(n, private_count), sampling.batch, replace=False, shuffle=False)
        return np.sort(private_draw[private_draw < private_count]).astype(np.int64)
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
    places, found, after = np.empty(count, np.int64), 0, 0
    while after < count:
        expected = (count - after) * rate
        words = np.asarray(bits.random_raw(int(expected + 5.0 * math.sqrt(expected)) + 4), np.uint64)
        used = 0
        while used < len(words) and after < count:
            used, found, after, doubtful = _fill(words, used, rate, places, found, after)
            if doubtful:
                place = after + _settled(int(words[used]), rate, count, lambda: int(bits.random_raw()))
                used, after = used + 1, place + 1
                if place < count:
                    places[found] = place
                    found += 1
    return places[:found].copy()


@compiled
def _fill(
    words: NDArray[np.uint64], start: int, rate: float, places: NDArray[np.int64], found: int, after: int
) -> tuple[int, int, int, bool]:
    """Go from one who takes part to the next, one word a gap, until the positions end or a gap is in doubt.

    Args:
        words: 64 bits each.
        start: the first that is not used yet.
        rate: p, in (0, 1).
        places: the positions of those who take part, of room for all.
        found: how many there are.
        after: the position after the last of them; that of the end, or more, when no more are to come.
    Returns:
        (words used, found, after, whether the next gap is one for `_settled`).
    """
    count = places.shape[0]
    step = -math.log1p(-rate)
    for w in range(start, words.shape[0]):
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
