"""How far a float64 sum of clipped contributions can be from the exact one: a number the sensitivity is raised by.

Every path of the engine (compiled kernel, NumPy blocks, JAX chunks, compiled loops) sums alike: at most `BLOCK_ROWS`
contributions, in any order, make one block sum; the block sums of at most `PART_UNITS` units are added up to the sum of
a part; part sums meet in an `exact_sum.ExactSum`, which adds integers. So the bound per unit does not grow with n.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK_ROWS = 4096  # contributions added before their sum is set aside; chunks of every path divide it
PART_UNITS = 2**19  # units whose block sums are added in float64; `BLOCK_ROWS` divides it
_UNIT_ROUNDOFF = 2.0**-53
_HEADROOM = 2.0  # a random block of an add-or-remove data set may hold more positions than its nominal size


def rounding_bound(radius: Any, units: int) -> Any:
    """Bound the l2 distance between the engine's float64 sum and the exact sum of the same clipped contributions.

    A contribution v_i is a real vector with norm at most C = `radius`: the product of a stored row and a float64
    coefficient, before that product is rounded, or a clipped float64 vector. Entry j of a part's computed sum is
    a tree of additions whose every leaf v_ij passes at most `h` roundings: one for its product, fewer than
    BLOCK_ROWS inside its block whatever the order, at most one for each of the part's block sums, which are
    PART_UNITS / BLOCK_ROWS = 128 or n / BLOCK_ROWS, whichever are fewer, and one for each of the 16 lanes, at most,
    that threads share. Part sums are added exactly but for the two terms below. By the standard error analysis
    (|fl - exact| of a sum is at most gamma_h sum_i |v_ij|, gamma_h = h u / (1 - h u), u = 2^-53) for each part, and the
    triangle inequality over parts and i,

        |error|_2 <= gamma_h |(sum_i |v_ij|)_j|_2 <= gamma_h sum_i |v_i|_2 <= gamma_h n C,

    and alike in the l1 and l_inf norms; h = BLOCK_ROWS + 128 + 64 leaves 47 roundings to spare. An `ExactSum` of K > 1
    parts adds to this

    * at most four roundings of the total, whose entries are at most n C in all: among those to spare;
    * at most 2^-76 C for each part with units and each of p entries, K p 2^-76 C in the l1 norm and less in the
      others. A block whose units stay in the parts that they were in may have as many of them as units, so that is
      p 2^-76 n C at most.

    The bound returned is twice h u n C: it absorbs the denominator of gamma_h, the last term for any p up to 2^34
    (p 2^-76 is then 2^-42 at most, and h u is above 2^-41), and blocks of an add-or-remove data set that hold more than
    their nominal number of units. The bound is about 2e-7 C for n = 200 000 and 1e-3 C for n = 10^9, against a
    sensitivity of 2 C. Subnormal numbers, which some processors flush to zero, move a sum by less than n 1e-307, which
    is below the bound unless C is below 1e-290.

    Args:
        radius: C, at least 0; a float, or traced inside a compiled loop.
        units: the public number n of units; a sampled sum has no more.
    Returns:
        The bound, in the units of the query. Two data sets' computed sums differ by at most this much twice, more
        than their exact sums do.
    Source:
        Higham 2002, Accuracy and Stability of Numerical Algorithms, section 4.2.
    """
    blocks = min(-(-units // BLOCK_ROWS), PART_UNITS // BLOCK_ROWS)
    roundings = BLOCK_ROWS + blocks + 64
    return radius * (_HEADROOM * roundings * _UNIT_ROUNDOFF * units)


class BlockedSum:
    """Adds up a part's chunk sums as `rounding_bound` supposes: within a block of `BLOCK_ROWS` units, then blocks."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._total = np.zeros(shape)
        self._block = np.zeros(shape)
        self._units = 0

    def add(self, private_chunk: NDArray[np.float64], units: int) -> None:
        """Add the sum of a chunk of `units` contributions, at most `BLOCK_ROWS`."""
        if self._units + units > BLOCK_ROWS:
            self._set_aside()
        self._block += private_chunk
        self._units += units

    def total(self) -> NDArray[np.float64]:
        """The sum so far."""
        return self._total + self._block

    def _set_aside(self) -> None:
        self._total += self._block
        self._block[...] = 0.0
        self._units = 0
