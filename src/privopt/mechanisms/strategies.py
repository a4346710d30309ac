"""Strategies: the lower-triangular matrices C that correlate the noise of a stream of prefix sums.

With A the lower triangle of ones, s_j the sensitivity of item j and Z independent normals, prefix t is released with
the noise (A diag(s) C^{-1} Z)_t / mu, see `prefix_sum`. A strategy is a dense matrix, or `Banded`, where only the bands
are stored: then the noise of a stream needs as many rows at a time as there are bands.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

Matrix = NDArray[np.float64]
LARGEST_DENSE = 512  # some 40 eigendecompositions: about half a minute at 512, computed once a process


@dataclass(frozen=True, eq=False, repr=False)
class Banded:
    """A lower-triangular matrix that is zero but on its first diagonals.

    Attributes:
        diagonals: (bands, items); entry [k, j] is C[j + k, j], and zero where row j + k is beyond the last.
    """

    diagonals: Matrix

    def __post_init__(self) -> None:
        diagonals = np.array(self.diagonals, dtype=np.float64)
        if diagonals.ndim != 2 or not 1 <= diagonals.shape[0] <= diagonals.shape[1]:
            raise ValueError(
                f"the diagonals must be (bands, items) with 1 to {diagonals.shape[-1]} bands, got shape "
                f"{diagonals.shape}."
            )
        items = diagonals.shape[1]
        for lag in range(1, len(diagonals)):
            diagonals[lag, items - lag :] = 0.0
        diagonals.flags.writeable = False
        object.__setattr__(self, "diagonals", diagonals)

    def __len__(self) -> int:
        return self.diagonals.shape[1]

    def __repr__(self) -> str:
        return f"Banded(items={len(self)}, bands={self.bands})"

    @property
    def bands(self) -> int:
        """How many diagonals there are, the main one included."""
        return self.diagonals.shape[0]

    def dense(self) -> Matrix:
        """The whole matrix."""
        matrix = np.zeros((len(self), len(self)))
        for lag, diagonal in enumerate(self.diagonals):
            held = len(self) - lag
            matrix[np.arange(held) + lag, np.arange(held)] = diagonal[:held]
        return matrix


Strategy = Matrix | Banded


def bands_of(strategy: Strategy) -> int:
    """How many diagonals of the matrix may be other than zero; of a dense one, all."""
    return strategy.bands if isinstance(strategy, Banded) else len(strategy)


def row_of(strategy: Strategy, item: int) -> NDArray[np.float64]:
    """C[t, t], C[t, t - 1], ...: row t from the diagonal backwards, as far as the bands reach."""
    if not isinstance(strategy, Banded):
        return strategy[item, item::-1]
    lags = np.arange(min(item + 1, strategy.bands))
    return strategy.diagonals[lags, item - lags]


def column_norms(strategy: Strategy) -> NDArray[np.float64]:
    """The l2 norm of every column."""
    stored = strategy.diagonals if isinstance(strategy, Banded) else strategy
    return np.linalg.norm(stored, axis=0)


def largest_row(strategy: Strategy) -> float:
    """The largest l1 norm of a row."""
    return max(float(np.abs(row_of(strategy, item)).sum()) for item in range(len(strategy)))


def divided(strategy: Strategy, norms: float | NDArray[np.float64]) -> Strategy:
    """The strategy with its columns divided by these numbers, or all by one."""
    if isinstance(strategy, Banded):
        return Banded(strategy.diagonals / norms)
    return strategy / norms


def independent(items: int) -> Matrix:
    """Independent noise on every item: C = I."""
    return np.eye(checked_items(items))


def binary_tree(items: int) -> Matrix:
    """The binary tree as a square matrix: prefix t has the noise of the dyadic nodes that make up [1, t].

    Row t is `h^{-1/2}` on the items of the largest node that ends at t, h = floor(log2 items) + 1 the most nodes that
    one item is in.

    Source:
        Kornowski, Liu, Talwar 2024, Algorithm 1, corrected: as printed, the sum of the first 2^q items is released with
        the same noise as that of one item fewer, and so the last item without any.
    """
    height = checked_items(items).bit_length()
    strategy = np.zeros((items, items))
    for last in range(1, items + 1):
        strategy[last - 1, last - (last & -last) : last] = height**-0.5
    return strategy


def square_root_toeplitz(items: int, *, unit_columns: bool = False) -> Matrix:
    """The square root of the lower triangle of ones, scaled.

    Args:
        items: how many.
        unit_columns: divide every column by its own norm, which costs nothing and leaves less noise; else all by the
            largest, so that the matrix stays Toeplitz.
    Source:
        Fichtenberger, Henzinger, Upadhyay 2023: C is Toeplitz in f_0 = 1, f_k = f_{k-1} (1 - 1/(2k)), and C C = A.
    """
    column = _square_root_column(checked_items(items))
    strategy = np.zeros((items, items))
    for start in range(items):
        strategy[start:, start] = column[: items - start]
    norms = column_norms(strategy)
    return strategy / (norms if unit_columns else norms.max())


def banded(items: int, bands: int) -> Banded:
    """The square root of the lower triangle of ones, cut to its first diagonals, every column of norm 1.

    Items that are `bands` or more apart share no row of C, so a unit may be in k such items for sqrt(k) times the
    sensitivity of one, the least that is possible.

    Args:
        items: how many.
        bands: how many diagonals are kept, the main one included; more than there are items is all.
    Source:
        Choquette-Choo, Ganesh, McKenna, McMahan, Rush, Thakurta, Xu 2023 (banded factorisations); Kalinin and Lampert
        2024 for the cut square root. Unit columns are ours.
    """
    if bands < 1:
        raise ValueError(f"a strategy needs at least 1 band, got {bands}: with 1 the noise is independent.")
    bands = min(bands, checked_items(items))
    column = _square_root_column(bands)
    diagonals = Banded(np.repeat(column[:, None], items, axis=1))
    return Banded(diagonals.diagonals / column_norms(diagonals))


def block_diagonal(*blocks: Strategy) -> Strategy:
    """Strategies one after the other, each with its own noise: for items of very different sensitivity.

    Dense ones give a dense matrix; with one that is banded among them, the whole is stored as bands.
    """
    items = checked_items(sum(len(block) for block in blocks))
    if any(isinstance(block, Banded) for block in blocks):
        parts = [_diagonals(block) for block in blocks]
        bands = max(len(part) for part in parts)
        return Banded(
            np.concatenate([np.pad(part, ((0, bands - len(part)), (0, 0))) for part in parts], axis=1)
        )
    strategy = np.zeros((items, items))
    start = 0
    for block in blocks:
        assert not isinstance(block, Banded)
        strategy[start : start + len(block), start : start + len(block)] = block
        start += len(block)
    return strategy


def dense_optimum(sensitivities: ArrayLike) -> Matrix:
    """The strategy of least total squared error for items of these relative sensitivities (at most 512 items).

    With W = A diag(s), the fixed point of `v <- diag((V^{1/2} W^T W V^{1/2})^{1/2})`, V = diag(v), gives
    `X = V^{-1/2} (V^{1/2} W^T W V^{1/2})^{1/2} V^{-1/2}`, of unit diagonal; C is its reversed Cholesky factor,
    C^T C = X. It is the best for units that are in one item each.

    Raises:
        ValueError: more than 512 items, or a sensitivity that is not positive and finite.
    Source:
        Denisov, McMahan, Rush, Smith, Thakurta 2022, Theorem 3.2 (fixed point).
    """
    weights = np.asarray(sensitivities, dtype=np.float64)
    if weights.ndim != 1 or not 1 <= weights.size <= LARGEST_DENSE:
        raise ValueError(
            f"dense_optimum needs the sensitivities of 1 to {LARGEST_DENSE} items, got shape {weights.shape}: "
            "use square_root_toeplitz or banded for more."
        )
    if not bool(np.all((weights > 0) & np.isfinite(weights))):
        raise ValueError("every item's sensitivity must be positive and finite.")
    return _dense_optimum(tuple((weights / weights.max()).tolist()))


@lru_cache(maxsize=16)
def _dense_optimum(weights: tuple[float, ...]) -> Matrix:
    workload = np.tril(np.ones((len(weights), len(weights)))) * np.asarray(weights)
    gram = workload.T @ workload
    tolerance = 1e-11 if len(weights) <= 64 else 1e-6  # the error's excess is of second order in it
    v = np.diag(_square_root(gram)).copy()
    for _ in range(60):
        root = np.sqrt(v)
        ratio = np.diag(_square_root(root[:, None] * gram * root)) / v
        v = (
            v * ratio**1.7
        )  # over-relaxed: the map's slowest directions have eigenvalue 0.75 to 0.9, none is negative
        if float(np.max(np.abs(ratio - 1))) < tolerance:
            break
    root = np.sqrt(v)
    optimum = _square_root(root[:, None] * gram * root) / root[:, None] / root
    reversed_factor = np.linalg.cholesky((optimum + optimum.T)[::-1, ::-1] / 2)
    factor = np.tril(reversed_factor.T[::-1, ::-1])
    strategy = factor / np.linalg.norm(factor, axis=0)
    strategy.flags.writeable = False
    return strategy


def checked_items(items: int) -> int:
    """The number of items, refused below 1."""
    if items < 1:
        raise ValueError(f"a stream needs at least 1 item, got {items}.")
    return items


def _diagonals(block: Strategy) -> Matrix:
    """A strategy as `Banded` stores it."""
    if isinstance(block, Banded):
        return block.diagonals
    items = len(block)
    diagonals = np.zeros((items, items))
    for lag in range(items):
        diagonals[lag, : items - lag] = np.diagonal(block, -lag)
    return diagonals


def _square_root_column(length: int) -> NDArray[np.float64]:
    """f_0 = 1, f_k = f_{k-1} (1 - 1/(2k))."""
    lags = np.arange(1, length)
    return np.concatenate(([1.0], np.cumprod(1 - 1 / (2 * lags))))


def _square_root(matrix: Matrix) -> Matrix:
    """The symmetric square root of a positive semi-definite matrix."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T


# ------------------------------------------------------------------------------------------------------------
# The correlated noise of a stream, row by row: C^{-1} Z as the items come, and what of it remains in the
# prefix sums.
# Row t of C x = z says `x_t = (z_t - sum_{j < t} C_tj x_j) / C_tt`. Only as many earlier rows are kept as C has bands,
# so a banded strategy needs memory for its bands, whatever the number of items.


WHOLE = 2.0**52  # sums of integers below it are exact in float64, in whatever order they are added
_SIGNS = 8


class SolvedRows:
    """The rows of C^{-1} Z, one after the other.

    Args:
        strategy: C.
        size: entries of a row of Z.
    """

    __slots__ = ("_earlier", "_largest", "_strategy", "count")

    def __init__(self, strategy: Strategy, size: int) -> None:
        self._strategy = strategy
        self._earlier = np.zeros((bands_of(strategy) - 1, size))  # row j stands at j modulo how many are kept
        self._largest = np.zeros(len(self._earlier))  # of integer rows: the largest entry of each
        self.count = 0

    def next(self, independent_row: NDArray[np.float64]) -> NDArray[np.float64]:
        """Row t of C^{-1} Z for row t of Z, (size,)."""
        diagonal, weights = self._turn()
        row = (independent_row - weights @ self._earlier) / diagonal
        self._enter(row)
        return row

    def next_whole(self, independent_row: NDArray[np.int64]) -> NDArray[np.int64]:
        """Row t rounded to integers, for a row of integers and a strategy of integers: exactly, see `whole_strategy`.

        Raises:
            OverflowError: float64 may not hold a sum, which depends on the noise alone.
        """
        diagonal, weights = self._turn()
        if not np.abs(weights) @ self._largest + _largest_of(independent_row) < WHOLE - abs(diagonal):
            raise OverflowError("correlated noise grew beyond the integers that float64 holds.")
        row = weights @ self._earlier
        np.subtract(independent_row, row, out=row)
        row += diagonal // 2
        # The quotient is an integer, or at least 1 / c_tt from any, and rounded by half of that at most, below 2^52:
        # its floor is that of the exact quotient.
        row /= diagonal
        np.floor(row, out=row)
        if len(self._largest):
            self._largest[self.count % len(self._largest)] = _largest_of(row)
        self._enter(row)
        return row.astype(np.int64)

    def _turn(self) -> tuple[float, NDArray[np.float64]]:
        """C_tt, and the weights of the rows that are kept."""
        kept, coefficients = len(self._earlier), row_of(self._strategy, self.count)
        weights = np.zeros(kept)
        places = (self.count - np.arange(1, len(coefficients))) % max(kept, 1)
        weights[places] = coefficients[1:]
        return float(coefficients[0]), weights

    def _enter(self, row: NDArray[np.float64]) -> None:
        if len(self._earlier):
            self._earlier[self.count % len(self._earlier)] = row
        self.count += 1


class PrefixScales:
    """The standard deviation of the noise on each released prefix, as the sensitivities of the items become known.

    Args:
        strategy: C.
        noise_multiplier: 1 / mu.
    """

    __slots__ = ("_multiplier", "_rows", "_total")

    def __init__(self, strategy: Strategy, noise_multiplier: float) -> None:
        self._rows, self._multiplier = SolvedRows(strategy, len(strategy)), noise_multiplier
        self._total = np.zeros(len(strategy))  # of row t of A diag(s) C^{-1}

    def next(self, sensitivity: float) -> float:
        """That of the prefix which ends with an item of this sensitivity."""
        if self._multiplier == 0.0:
            return 0.0
        unit = np.zeros(len(self._total))
        unit[self._rows.count] = 1.0
        self._total += sensitivity * self._rows.next(unit)
        return self._multiplier * float(np.linalg.norm(self._total))


def largest_noise(strategy: Strategy) -> float:
    """About the largest standard deviation of an entry of C^{-1} Z, for independent Z of variance 1.

    A few vectors of random signs tell it, to a factor of two or so, at the price of as many columns of noise.
    """
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (len(strategy), _SIGNS))
    rows, squares = SolvedRows(strategy, _SIGNS), 0.0
    with np.errstate(all="ignore"):
        for row in signs:
            squares = np.maximum(squares, np.mean(rows.next(row) ** 2))  # what is no number stays none
        return float(np.sqrt(squares))


def _largest_of(row: NDArray[np.float64] | NDArray[np.int64]) -> float:
    return max(float(row.max(initial=0)), -float(row.min(initial=0)))


def prefix_noise(strategy: Strategy, sensitivities: ArrayLike = 1.0) -> NDArray[np.float64]:
    """The standard deviation of the noise on every prefix, for noise multiplier 1.

    Args:
        strategy: the matrix C.
        sensitivities: of the items, or one for all.
    """
    items = len(strategy)
    weights = np.broadcast_to(np.asarray(sensitivities, dtype=np.float64), (items,))
    scales = PrefixScales(strategy, 1.0)
    return np.array([scales.next(float(weight)) for weight in weights])


def prefix_map(strategy: Strategy, sensitivities: ArrayLike = 1.0) -> Matrix:
    """B with B Z / mu the noise of all prefixes: A diag(s) C^{-1}."""
    items = len(strategy)
    weights = np.broadcast_to(np.asarray(sensitivities, dtype=np.float64), (items,))
    rows = SolvedRows(strategy, items)
    return np.cumsum(weights[:, None] * np.stack([rows.next(unit) for unit in np.eye(items)]), axis=0)


# ---- In which items of a stream one unit may be, and how far it can then move all of them together ---------
# A unit whose items are the set pi moves C u by at most the square root of the sum over j, j' in pi of |C^T C|_jj': the
# norm of a sum of columns, each times a vector of length at most 1. The largest such number is the sensitivity of the
# strategy C under a participation.


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
