"""Vertices drawn from the softmax of hidden scores: every probability is exact up to a tiny relative rounding.

Logits s_1, ..., s_d are drawn from in two levels, a block of about sqrt(d) vertices and then a vertex in it. Let u be
2^-53, F = 64 log 2, and l_i = max(s_i - max s, -F), in exact arithmetic.

**Claim.** Vertex i is drawn with a probability proportional to exp(l_i + r_i), where |r_i| <= `RELATIVE_ROUNDING`.

1. fl(s_i - max s) is within a factor 1 +- u of the difference, and rounding and clipping are monotone, so what is
   exponentiated is within F u <= 45 u of l_i. NumPy's exponential errs by less than four units in the last place, 8 u
   (its vector kernels promise that, libm one). Every mass m_i is therefore within 54 u of exp(l_i) in the logarithm,
   at most 1 and at least 2^-65, so it is a whole multiple of 2^-120.
2. The mass of a block is added up in two stages of at most 512 terms each. All terms are positive, so in whatever order
   they are added, the sum is within 1024 u of the sum of the masses in the logarithm.
3. From weights w_k, whole multiples of 2^-120, an index is drawn with whole numbers: cumulative sums C_k and a uniform
   number U of N = 212 bits give the index with C_(k-1) <= floor(U C / 2^N) < C_k, C the total. Of the 2^N numbers,
   2^N w_k / C fall on k, up to one. As C / w_k <= 2^36 2^65, that is a relative error of 2^-111: far below u.
4. So p_i = (m_B / sum of all m_B) (m_i / sum of m_j in B), up to 2^-110, with B the block of i, and
   r_i = 54 u + 1024 u + u at most.

What does not have the same sign or size on both data sets is never a loop's length, an exception or a warning: numbers
that are not finite count as the least.

**Privacy of a draw.** If a unit moves s by a vector v, then it moves s - max s by v - c with min v <= c <= max v, whose
entries lie in an interval of length range(v) that holds 0. Clipping from below moves every entry between 0 and what it
was: l moves within that interval too. So log p moves within an interval of length range(v) + 4 RELATIVE_ROUNDING, up to
a constant for the normaliser: the draw, as it is carried out, is (range(v) + 4 RELATIVE_ROUNDING)-bounded range. No
part of delta is spent on rounding, and delta may be 0. The floor costs utility only: vertices further than F below the
best are drawn as if they were F below, all together with a probability of at most d 2^-64.

Source:
    Devroye 1986, section III.2 (inversion). Two levels cost d + draws sqrt(d). Bounded range: Dong et al. 2020.
    Summation of positive terms: Higham 2002, section 4.2. The relative bound, and putting it into the range, is ours.
"""

import math
from bisect import bisect_right
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

RELATIVE_ROUNDING = 1100 * 2.0**-53
WORDS = 4  # words of 53 bits that make one number of 212 bits
MOST_VERTICES = 2**36

_FLOOR = -64 * math.log(2.0)
_SCALE = 2.0**120
_BITS = 53 * WORDS


def softmax_draws(private_logits: NDArray[np.float64], words: NDArray[np.int64]) -> NDArray[np.int64]:
    """Draw vertices with probability proportional to the exponentials of their logits.

    Args:
        private_logits: one a vertex.
        words: independent integers, uniform on 0, ..., 2^53 - 1, shape (draws, 2, WORDS).
    Privacy:
        See the module.
    """
    with np.errstate(all="ignore"):  # a warning must not depend on the data
        private_masses = _masses(private_logits)
        private_blocks = _whole_numbers(private_masses.sum(axis=-1).sum(axis=-1))
    private_within: dict[int, list[int]] = {}
    width = private_masses.shape[1] * private_masses.shape[2]
    indices = np.empty(len(words), dtype=np.int64)
    for draw, (first, second) in enumerate(_numbers(words)):
        block = _inverse_cdf(private_blocks, first)
        if block not in private_within:
            private_within[block] = _whole_numbers(private_masses[block].ravel())
        indices[draw] = block * width + _inverse_cdf(private_within[block], second)
    return indices


def chosen_below(words: NDArray[np.int64], counts: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Which of so many released plays, for words as in `softmax_draws`. All of them may be seen: it hides nothing."""
    return (words * 2.0**-53 * counts).astype(np.int64)


def _masses(private_logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """exp(max(logit - largest, -F)), laid out as (blocks, side, side) with zeros at the end."""
    size = len(private_logits)
    side = math.ceil(size**0.25 - 1e-9)
    blocks = -(-size // side**2)
    private_laid = np.zeros(blocks * side**2)
    private_used = private_laid[:size]
    np.subtract(private_logits, np.fmax.reduce(private_logits), out=private_used)
    np.fmax(private_used, _FLOOR, out=private_used)  # of a number and NaN, the number
    np.exp(private_used, out=private_used)
    return private_laid.reshape(blocks, side, side)


def _whole_numbers(private_weights: NDArray[np.float64]) -> list[int]:
    """Cumulative sums of weights, in units of 2^-120: exact."""
    return list(accumulate(int(weight) for weight in (private_weights * _SCALE).tolist()))


def _numbers(words: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Two uniform numbers of 212 bits for each draw."""
    return [(_joined(first), _joined(second)) for first, second in words.tolist()]


def _joined(words: list[int]) -> int:
    number = 0
    for word in words:
        number = (number << 53) | word
    return number


def _inverse_cdf(private_cumulative: list[int], number: int) -> int:
    """The index on which a uniform number falls; never one of weight 0."""
    return bisect_right(private_cumulative, (number * private_cumulative[-1]) >> _BITS)
