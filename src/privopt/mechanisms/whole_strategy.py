"""Correlated noise on integers: a strategy whose entries are whole numbers, and why its noise is exact.

Let c be a lower-triangular matrix of integers, k_1, k_2, ... the places of a stream's items on their lattices (vectors
of integers, see `lattice`), and J_t = round(2^e N_t) with N_t exact standard normals. The noise of item t, and what is
published of the item, are the integers

    x_t = floor((J_t - sum_{j < t} c_tj x_j + h_t) / c_tt),    y_t = k_t + x_t,    h_t = floor(c_tt / 2).

Privacy: put x_j = y_j - k_j into the first, and note that k + floor(v) = floor(k + v) for an integer k. Then

    y_t = floor((r_t - sum_{j < t} c_tj y_j + h_t) / c_tt),    r_t = sum_{j <= t} c_tj k_j + J_t.

So y_1, ..., y_t are a function of r_1, ..., r_t, and since the sum in r_t is a vector of integers, r_t = round(sum_{j
<= t} c_tj k_j + 2^e N_t): row t of the Gaussian mechanism on c k over the real numbers, rounded. The whole stream is
post-processing of that mechanism. What moves c k: an item that a unit is not in has the same place on both sides,
since its spacing is the same and so is the item, to the last bit (it is computed from its block alone, in an order
that nobody else decides, see `curator.loops.compiles`); one that it is in moves by at most D, whatever its
sensitivity is, because its spacing follows its sensitivity (`lattice`, where D includes the rounding of all entries).
So c k moves by at most D times the sensitivity of c under the participation, which is computed from these integers,
and z times that is at most 2^e. Items and sensitivities may be chosen from what was published: given that, row t of c
k moves by a function of the past, and along every path the squares add up to at most the square of that bound.

Exact sums. The rows x are kept in float64, and added up by its products of matrices. All numbers in them are integers,
and where the sum of |c_tj| max |x_j| over j and of |J_t| is below 2^52 so is every partial sum, and none is rounded, in
whatever order they are added. `SolvedRows.next_whole` looks at that before each row and refuses to go on otherwise:
this depends on the noise alone, and e is chosen so that it takes some 64 standard deviations.
"""

import math
from dataclasses import dataclass

import numpy as np

from privopt.mechanisms.correlated_noise import WHOLE, largest_noise
from privopt.mechanisms.exact_noise import FINEST
from privopt.mechanisms.participation import Participation, participation_sensitivity
from privopt.mechanisms.strategies import Banded, Strategy, largest_row

ENTRY_BITS = 14  # of the largest entry
_DEVIATIONS = 64.0
_MARGIN = 1 + 2.0**-30  # more than the float64 operations that make up a sensitivity are off by


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeStrategy:
    """A strategy in whole numbers.

    Attributes:
        matrix: c, integers in float64.
        unit: what an entry of 1 became.
        sensitivity: of c under the participation, rounded up.
        largest_noise: on an item, see `correlated_noise`, of c / unit; infinite where there is a zero on the diagonal.
        finest: the largest exponent e at which its noise is drawn.
    """

    matrix: Strategy
    unit: float
    sensitivity: float
    largest_noise: float
    finest: int


def in_whole_numbers(strategy: Strategy, participation: Participation) -> WholeStrategy:
    """The strategy times a power of 2, rounded to integers of which the largest has 14 bits.

    Args:
        strategy: C, finite and lower triangular.
        participation: in which items a unit may be.
    """
    stored = strategy.diagonals if isinstance(strategy, Banded) else strategy
    _, exponent = math.frexp(float(np.abs(stored).max()))
    whole = np.rint(np.ldexp(stored, ENTRY_BITS - exponent))
    diagonal = whole[0] if isinstance(strategy, Banded) else np.diagonal(whole)
    matrix: Strategy = Banded(whole) if isinstance(strategy, Banded) else whole
    unit = math.ldexp(1.0, ENTRY_BITS - exponent)
    noise = largest_noise(matrix) if np.all(diagonal) else math.inf
    room = WHOLE / _DEVIATIONS / (noise * largest_row(matrix))
    return WholeStrategy(
        matrix=matrix,
        unit=unit,
        sensitivity=participation_sensitivity(matrix, participation) * _MARGIN,
        largest_noise=noise * unit,
        finest=min(FINEST, math.floor(math.log2(room))) if room >= 1.0 else 0,
    )
