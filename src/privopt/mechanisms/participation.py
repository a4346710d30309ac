"""In which items of a stream one unit may be, and how far it can then move all of them together.

A unit whose items are the set pi moves C u by at most the square root of the sum over j, j' in pi of |C^T C|_jj': the
norm of a sum of columns, each times a vector of length at most 1. The largest such number is the sensitivity of the
strategy C under a participation.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from privopt.mechanisms.strategies import Banded, Matrix, Strategy, bands_of, column_norms, divided

_MOST_SETS = 200_000  # participation sets that are looked at one by one
_COLUMNS_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class Participation:
    """A unit is in at most `most` items, any two of them at least `separation` apart.

    k epochs over the same b blocks, in the same order, are `Participation(separation=b, most=k)`.

    Attributes:
        separation: the least distance of two items of a unit, at least 1.
        most: how many items a unit may be in, at least 1.
    """

    separation: int = 1
    most: int = 1

    def __post_init__(self) -> None:
        for name, value in (("separation", self.separation), ("most", self.most)):
            if int(value) != value or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}.")

    def admits(self, items: frozenset[int]) -> bool:
        """Whether a unit may be in all of these items."""
        ordered = sorted(items)
        apart = all(later - item >= self.separation for item, later in pairwise(ordered))
        return len(ordered) <= self.most and apart

    def largest(self, items: int) -> int:
        """The most items of a stream of so many that one unit can be in."""
        return min(self.most, -(-items // self.separation))


ONCE = Participation()


def participation_sensitivity(strategy: Strategy, participation: Participation) -> float:
    """How far one unit can move C u, each of its items by at most 1: at least the exact number, nearly always it.

    Exact, up to signs, in these cases, in this order: a unit is in one item; items that a unit may share have no row of
    C in common (bands no wider than the separation); the first items, as close as allowed, are the worst in every pair
    (a Toeplitz strategy of falling entries, Kalinin and Lampert 2024, Theorem 2); or there are at most 200,000 sets of
    items, which are tried. Otherwise the smaller of two upper bounds: each pair of items by rank at its worst, and each
    item with the worst company. "Up to signs": where entries of C^T C are negative, their absolute values count, which
    is an upper bound. None of the strategies of this library but a weighted optimum has any.

    Args:
        strategy: C.
        participation: in which items a unit may be.
    """
    items, apart = len(strategy), participation.separation
    most = participation.largest(items)
    norms = column_norms(strategy)
    if most == 1:
        return float(norms.max())
    if _bandwidth(strategy) <= apart:
        return math.sqrt(_best_selection((norms**2)[:, None], apart, most)[0])
    moved = np.abs(_gram(strategy))
    closest = np.arange(most) * apart
    reached = float(moved[np.ix_(closest, closest)].sum())
    ranked = _bound_by_ranks(moved, apart, most)
    if ranked <= reached * (1 + 1e-12):
        return math.sqrt(ranked)
    if max(math.comb(items - (k - 1) * (apart - 1), k) for k in range(1, most + 1)) <= _MOST_SETS:
        return math.sqrt(_exhausted(moved, apart, most))
    return math.sqrt(min(ranked, _bound_by_rows(moved, apart, most)))


def unit_sensitivity(strategy: Strategy, participation: Participation) -> Strategy:
    """The strategy divided by its sensitivity under a participation, as `PrefixSum` wants it."""
    return divided(strategy, participation_sensitivity(strategy, participation))


def _bandwidth(strategy: Strategy) -> int:
    """How many diagonals have an entry other than zero."""
    stored = bands_of(strategy)
    for lag in range(stored - 1, 0, -1):
        diagonal = (
            strategy.diagonals[lag] if isinstance(strategy, Banded) else np.diagonal(strategy, offset=-lag)
        )
        if np.any(diagonal):
            return lag + 1
    return 1


def _gram(strategy: Strategy) -> Matrix:
    """C^T C."""
    if not isinstance(strategy, Banded):
        return strategy.T @ strategy
    items, diagonals = len(strategy), strategy.diagonals
    gram = np.zeros((items, items))
    for lag in range(strategy.bands):
        held = items - lag
        shared = np.einsum("kj,kj->j", diagonals[lag:, :held], diagonals[: strategy.bands - lag, lag:])
        where = np.arange(held)
        gram[where + lag, where] = gram[where, where + lag] = shared
    return gram


def _best_selection(weights: Matrix, apart: int, most: int) -> NDArray[np.float64]:
    """For every column, the largest sum of at most so many of its entries that are so far apart."""
    items, columns = weights.shape
    best = np.zeros((items + 1, most + 1, columns))  # among the first p entries, m of them taken
    for last in range(1, items + 1):
        best[last] = best[last - 1]
        taken = best[max(last - apart, 0), :-1] + weights[last - 1]
        np.maximum(best[last, 1:], taken, out=best[last, 1:])
    return best[items, most]


def _bound_by_ranks(moved: Matrix, apart: int, most: int) -> float:
    """The sum over pairs of ranks p <= q of the largest entry that the p-th and the q-th item of a unit can have.

    The p-th item is at least p * apart, and the q-th at least (q - p) * apart after it.
    """
    items = len(moved)
    from_right = np.maximum.accumulate(moved[:, ::-1], axis=1)[
        :, ::-1
    ]  # [i, c]: the largest of row i from c on
    total = 0.0
    for gap in range(most):
        held = items - gap * apart
        where = np.arange(held)
        largest = np.diagonal(moved) if gap == 0 else from_right[where, where + gap * apart]
        at_least = np.maximum.accumulate(largest[::-1])[::-1]
        ranks = np.arange(most - gap) * apart
        total += (1.0 if gap == 0 else 2.0) * float(at_least[ranks].sum())
    return total


def _bound_by_rows(moved: Matrix, apart: int, most: int) -> float:
    """The largest sum over a unit's items of what each of them can add together with the worst others."""
    items = len(moved)
    where = np.arange(items)
    company = np.where(np.abs(where[:, None] - where) >= apart, moved, 0.0)
    starts = range(0, items, _COLUMNS_AT_ONCE)
    others = [_best_selection(company[:, at : at + _COLUMNS_AT_ONCE], apart, most - 1) for at in starts]
    rows = np.diagonal(moved) + np.concatenate(others)
    return float(_best_selection(rows[:, None], apart, most)[0])


def _exhausted(moved: Matrix, apart: int, most: int) -> float:
    """The largest sum of entries among a unit's items, over all sets of items."""
    items = len(moved)
    members = np.arange(items)[:, None]
    sums = np.diagonal(moved).copy()
    best = float(sums.max())
    for _ in range(most - 1):
        grown, totals = [], []
        for item in range(apart, items):
            before = members[:, -1] <= item - apart
            if before.any():
                sets = members[before]
                grown.append(np.column_stack([sets, np.full(len(sets), item)]))
                totals.append(sums[before] + moved[item, item] + 2.0 * moved[item][sets].sum(axis=1))
        members, sums = np.concatenate(grown), np.concatenate(totals)
        best = max(best, float(sums.max()))
    return best
