"""Strategies: the lower-triangular matrices C that correlate the noise of a stream of prefix sums.

With A the lower triangle of ones, s_j the sensitivity of item j and Z independent normals, prefix t is released with
the noise (A diag(s) C^{-1} Z)_t / mu, see `prefix_sum`. A strategy is a dense matrix, or `Banded`, where only the bands
are stored: then the noise of a stream needs as many rows at a time as there are bands.
"""

from dataclasses import dataclass
from functools import lru_cache

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
