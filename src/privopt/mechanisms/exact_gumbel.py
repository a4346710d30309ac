"""Gumbel noise on integers: round(2^s G), exactly, by inversion with as many random bits as it takes.

V is an infinite sequence of random bits, uniform in (0, 1). G = -log(-log V) is a Gumbel variable, P(G <= x) =
exp(-exp(-x)), and increases with V. So the first bits of V give an interval for 2^s G; where both of its ends round
to one integer, that is the draw, and else more bits are read. 64 bits and float64 logarithms, whose error is bounded,
do for nearly all draws; decimal arithmetic of any precision for the others. Every stage gives the answer that real
arithmetic gives.

The first stage. Let v be the first 64 bits as an integer, c the smaller of v and 2^64 - 1 - v, u = 2^-53. Then E =
-log V is computed from c alone: -log(c 2^-64) where V < 1/2, -log1p(-c 2^-64) where V >= 1/2 and 1 - V is from c to c
+ 1 units of 2^-64. What is not known of c, 1 of it and u of it when it becomes a float64, moves log E by at most 1.45
(1 / c + u), since |d log E / d log c| <= 1.45 on either side (it is largest at V = 1/2). A logarithm of the C library
is off by less than 4 units in the last place, 8 u: twice that is allowed for both. All together, G is known to

    1.2 * 1.45 (1 / c + u) + 1.2 * 16 u + 16 u |G|  <=  3 / c + 2^-48 (1 + |G|),

where the factor 1.2 takes log(1 + x) for its argument, |x| <= 1/4, which c >= 1024 gives. A draw is left to decimals
where 2^s G may be that close to a half.

Source:
    Inversion, Devroye 1986, section II.2; deciding by as many bits as it takes, Karney 2016. The bounds are ours.
"""

import decimal
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from privopt.mechanisms.compiled import compiled
from privopt.mechanisms.decimals import decimals

_LEAST = 1024  # of c
_DOUBT = 2.0**-48


@compiled
def fill_gumbel(
    words: NDArray[np.uint64], start: int, scale: float, doubt: float, out: NDArray[np.int64], done: int
) -> tuple[int, int, bool]:
    """Fill `out` from its place `done` with round(scale * G), one word a draw from `start` on.

    Args:
        words: 64-bit words.
        start: the first that is not used yet.
        scale: 2^s.
        doubt: a factor of at least 1 on the error bound; a larger one changes no draw.
        out: what is filled.
        done: how many there are.
    Returns:
        (words used, draws made, whether the next is one for `settled_gumbel`).
    """
    w, n = start, out.shape[0]
    while done < n and w < words.shape[0]:
        word = words[w]
        upper = word >> np.uint64(63) == np.uint64(1)
        c = np.float64(~word if upper else word)
        if c < _LEAST:
            return w, done, True
        e = -math.log1p(-c * 2.0**-64) if upper else -math.log(c * 2.0**-64)
        g = -math.log(e)
        y = scale * g
        nearest = np.rint(y)
        if abs(y - nearest) + doubt * scale * (3.0 / c + _DOUBT * (1.0 + abs(g))) >= 0.5:
            return w, done, True
        out[done] = np.int64(nearest)
        done += 1
        w += 1
    return w, done, False


def settled_gumbel(take: Callable[[], int], exponent: int) -> int:
    """The draw by exact arithmetic, from the word that `fill_gumbel` left and as many more as it takes.

    Args:
        take: gives the next word.
        exponent: s.
    """
    v, bits = take(), 64
    while True:
        if 0 < v < (1 << bits) - 1:
            low, high = (_bound(end, bits, exponent, side) for end, side in ((v, -1), (v + 1, 1)))
            if low == high:
                return low
        v, bits = v << 64 | take(), bits + 64


def _bound(v: int, bits: int, exponent: int, side: int) -> int:
    """round(2^s G) at v 2^-bits, from below (-1) or above (1).

    Steps round correctly; V may be 2^-bits from 0 and 1, which costs bits / 3.3 digits, so what is left is right to
    10^-(bits / 3 + 40). The margin is above that, and shrinks with the bits, so that some number of them decides.
    """
    with decimal.localcontext(decimals(2 * bits // 3 + 60)):
        exponential = -(decimal.Decimal(v) / (1 << bits)).ln()
        scaled = -exponential.ln() * decimal.Decimal(2) ** exponent
        margin = side * decimal.Decimal(10) ** -(bits // 3 + 20)
        return math.floor(scaled + decimal.Decimal("0.5") + margin)
