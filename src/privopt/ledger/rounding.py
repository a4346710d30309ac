"""What it costs that a run is not quite the run that is priced: a total variation distance, at every epsilon.

Let P and Q be the laws of a run on two neighbouring data sets, P' and Q' those of the ideal run, each within total
variation eta of the real one on the same data. If the ideal run is (epsilon, delta(epsilon))-private, then for any E

    P(E) <= P'(E) + eta <= e^epsilon Q'(E) + delta(epsilon) + eta
         <= e^epsilon (Q(E) + eta) + delta(epsilon) + eta = e^epsilon Q(E) + delta(epsilon) + (1 + e^epsilon) eta,

for both sides of the pair are off by eta, and one of them is multiplied by e^epsilon.

A run whose step t is, given what was released before, within eta_t of the ideal step is within sum eta_t of the ideal
run: couple the two step by step; while they agree, step t separates them with probability eta_t at most. The same
holds where eta_t depends on earlier releases, with the largest sum over all ways that the run may take. So distances
add up, under a filter too, and the sum is priced once, outside of everything else. Of disjoint blocks the dearest
counts: only steps on a unit's own block need be replaced by ideal ones, the others are the same for both data sets.

A run that is (epsilon, delta)-private is (larger, delta)-private, so the term does not grow with epsilon for ever: the
bound at a large epsilon is the least of those at smaller ones. delta(epsilon) is convex in e^epsilon, hence so is the
sum, and the least is found by a search.

Source:
    The two sides: Dwork, Roth 2014, lemma 3.17 (approximate max divergence), applied at one epsilon.
"""

import functools
import math
from collections.abc import Callable

_STEPS = 50
_GOLDEN = (math.sqrt(5.0) - 1) / 2


def rounding_delta(total_variation: float, epsilon: float) -> float:
    """What a total variation distance adds to delta at `epsilon`: (1 + e^epsilon) total_variation."""
    return (1 + math.exp(min(epsilon, 700.0))) * total_variation


def rounded_epsilon(
    ideal: Callable[[float], float], total_variation: float, delta: float, *, start: float = 0.0
) -> float:
    """The smallest epsilon of a run within `total_variation` of an ideal one.

    Args:
        ideal: the epsilon of the ideal run at a delta of at least 0, decreasing.
        total_variation: the distance.
        delta: what the run may spend in all.
        start: below the answer.

    Returns:
        An epsilon with ideal(delta - (1 + e^epsilon) total_variation) <= epsilon; infinity where none was found.
    """
    epsilon, slack = start, 0.0
    for _ in range(_STEPS):  # from below to the least fixed point, then a little above it
        left = delta - rounding_delta(total_variation, epsilon)
        needed = ideal(left) if left >= 0 else math.inf
        if needed <= epsilon or math.isinf(needed):
            return max(epsilon, needed)
        epsilon, slack = needed * (1 + slack), max(1e-15, 2 * slack)
    return math.inf


def rounded_delta(
    ideal: Callable[[float], float], total_variation: float, epsilon: float, *, start: float = 0.0
) -> float:
    """The smallest delta of a run within `total_variation` of an ideal one, at `epsilon` or between it and `start`.

    Args:
        ideal: the delta of the ideal run at an epsilon of at least 0, decreasing, a convex function of e^epsilon.
        total_variation: the distance, above 0.
        epsilon: at least `start`; infinity is allowed.
        start: at least 0.
    """

    @functools.cache
    def bound(at: float) -> float:
        return min(1.0, ideal(at) + rounding_delta(total_variation, at))

    # From the logarithm on at which the term is 1 nothing is gained; the golden section finds where the sum turns.
    low, high = start, max(start, math.log1p(1 / total_variation))
    while high - low > 1e-3 * high and low < epsilon:
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        low, high = (low, right) if bound(left) <= bound(right) else (left, high)
    return min(bound(start), bound(min(epsilon, low)), bound(min(epsilon, high)))
