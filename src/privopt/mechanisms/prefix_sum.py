"""Prefix sums with correlated noise (matrix factorisation), and the strategies that correlate it.

A strategy is a lower-triangular matrix C whose columns have norm at most 1. With A the lower triangle of ones, s_j the
sensitivity of item j and Z independent normals, prefix t is released with the noise (A diag(s) C^{-1} Z)_t / mu.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar, SupportsFloat

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import solve_triangular

from privopt.ledger.events import Event, GaussianEvent, NonPrivateEvent
from privopt.mechanisms.base import (
    HiddenState,
    Request,
    Sensitivity,
    StreamMechanism,
    check_multiplier,
    host_release,
    traced_release,
)
from privopt.mechanisms.noise import Noise, Shape

Matrix = NDArray[np.float64]
_LARGEST_DENSE = 512  # some 40 eigendecompositions: about half a minute at 512, computed once a process


def independent(items: int) -> Matrix:
    """Independent noise on every item: C = I."""
    return np.eye(_checked_items(items))


def square_root_toeplitz(items: int) -> Matrix:
    """The square root of the lower triangle of ones, columns scaled by the largest column norm.

    Source:
        Fichtenberger, Henzinger, Upadhyay 2023: C is Toeplitz in f_0 = 1, f_k = f_{k-1} (1 - 1/(2k)), and C C = A.
    """
    lags = np.arange(1, _checked_items(items))
    column = np.concatenate(([1.0], np.cumprod(1 - 1 / (2 * lags))))
    strategy = np.zeros((items, items))
    for start in range(items):
        strategy[start:, start] = column[: items - start]
    return _within_unit_columns(strategy)


def block_diagonal(*blocks: Matrix) -> Matrix:
    """Strategies one after the other, each with its own noise: for items of very different sensitivity."""
    items = sum(len(block) for block in blocks)
    strategy = np.zeros((_checked_items(items), items))
    start = 0
    for block in blocks:
        strategy[start : start + len(block), start : start + len(block)] = block
        start += len(block)
    return strategy


def dense_optimum(sensitivities: ArrayLike) -> Matrix:
    """The strategy of least total squared error for items of these relative sensitivities (at most 512 items).

    With W = A diag(s), the fixed point of `v <- diag((V^{1/2} W^T W V^{1/2})^{1/2})`, V = diag(v), gives
    `X = V^{-1/2} (V^{1/2} W^T W V^{1/2})^{1/2} V^{-1/2}`, of unit diagonal; C is its reversed Cholesky factor,
    C^T C = X.

    Raises:
        ValueError: more than 512 items, or a sensitivity that is not positive and finite.
    Source:
        Denisov, McMahan, Rush, Smith, Thakurta 2022, Theorem 3.2 (fixed point).
    """
    weights = np.asarray(sensitivities, dtype=np.float64)
    if weights.ndim != 1 or not 1 <= weights.size <= _LARGEST_DENSE:
        raise ValueError(
            f"dense_optimum needs the sensitivities of 1 to {_LARGEST_DENSE} items, got shape {weights.shape}: "
            "use square_root_toeplitz for more."
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


def prefix_noise(strategy: Matrix, sensitivities: ArrayLike = 1.0) -> NDArray[np.float64]:
    """The standard deviation of the noise on every prefix, for noise multiplier 1.

    Args:
        strategy: the matrix C.
        sensitivities: of the items, or one for all.
    """
    items = len(strategy)
    weights = np.broadcast_to(np.asarray(sensitivities, dtype=np.float64), (items,))
    inverse = solve_triangular(strategy, np.eye(items), lower=True)
    return np.linalg.norm(np.cumsum(weights[:, None] * inverse, axis=0), axis=1)


class PrefixSumState(HiddenState):
    """The correlated noise of every item, the released prefix, and how many items have entered it."""

    __slots__ = ("correlated_noise", "count", "prefix")

    def __init__(self, correlated_noise: NDArray[np.float64], prefix: NDArray[np.float64]) -> None:
        self.correlated_noise = correlated_noise
        self.prefix = prefix
        self.count = 0


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PrefixSum(StreamMechanism):
    """Release every prefix sum of a stream of private items, with noise correlated over the stream.

    Item j is released as `(item_j / s_j + noise_multiplier * (C^{-1} Z)_j) * s_j` and added up: the noise of the items
    nearly cancels in the sums. Noise multiplier 0 releases the exact sums.

    Args:
        strategy: C, lower triangular with column norms at most 1, one row an item; see the functions of this file.
        noise_multiplier: 1 / mu, the noise on one item over its l2 sensitivity if C were the identity.
    Privacy:
        Every unit is in **at most one item**, and moves that item by at most its sensitivity in the l2 norm. The stream
        is a fixed function of C u + Z / mu with u_j = item_j / s_j. C is lower triangular, so given the earlier
        releases row t of C u moves by C_tj Delta u_j even if items and sensitivities were chosen from them; column j
        has norm at most 1: the whole stream is one Gaussian release, mu-GDP. There is no amplification by sampling.
    Source:
        Denisov, McMahan, Rush, Smith, Thakurta 2022, Theorem 2.1 (adaptive streams); Kornowski, Liu, Talwar 2024,
        Algorithm 1, where the printed tree releases some items without noise.
    """

    requests: ClassVar[Mapping[str, Request]] = MappingProxyType(
        {"add": Request(fed=True, arguments=frozenset({"item_index"}))}
    )

    strategy: Matrix
    noise_multiplier: float

    def __post_init__(self) -> None:
        check_multiplier(self.noise_multiplier)
        strategy = np.array(self.strategy, dtype=np.float64)
        if strategy.ndim != 2 or strategy.shape[0] != strategy.shape[1] or not strategy.size:
            raise ValueError(
                f"the strategy must be a square matrix, one row for each item, got shape {strategy.shape}."
            )
        if not np.all(np.isfinite(strategy)) or np.any(np.triu(strategy, 1)) or not np.all(np.diag(strategy)):
            raise ValueError(
                "the strategy must be finite and lower triangular, with no zero on its diagonal."
            )
        longest = float(np.linalg.norm(strategy, axis=0).max())
        if longest > 1 + 1e-12:
            raise ValueError(
                f"the strategy's columns must have norm at most 1, got {longest!r}: divide it by that."
            )
        strategy.flags.writeable = False
        object.__setattr__(self, "strategy", strategy)

    def __repr__(self) -> str:
        return f"PrefixSum(items={self.items}, noise_multiplier={self.noise_multiplier!r})"

    @property
    def items(self) -> int:
        """How many items the stream holds."""
        return len(self.strategy)

    def event(self) -> Event:
        """The whole stream, charged once when it opens."""
        return GaussianEvent(self.noise_multiplier) if self.noise_multiplier > 0 else NonPrivateEvent()

    def admits(self, items: frozenset[int]) -> bool:
        """One item a unit."""
        return len(items) <= 1

    def draw(self, noise: Noise, shape: Shape) -> NDArray[np.float64]:
        """The correlated noise C^{-1} Z, `(items, *shape)`; row j is what `combine` adds to an item of this shape."""
        if self.noise_multiplier == 0:
            return np.zeros((self.items, *shape))
        independent_noise = noise.normal((self.items, *shape)).reshape(self.items, -1)
        return solve_triangular(self.strategy, independent_noise, lower=True).reshape(self.items, *shape)

    def combine(
        self, private_item: jax.Array, sensitivity: Sensitivity, correlated_noise: jax.Array
    ) -> jax.Array:
        """What item j adds to the released prefix, in pure JAX inside `jax.enable_x64(True)`."""
        return traced_release(private_item, sensitivity, self.noise_multiplier, correlated_noise)

    def open(self, noise: Noise, shape: Shape) -> PrefixSumState:
        """Draw the noise of the whole stream, for items of this shape."""
        return PrefixSumState(self.draw(noise, shape), np.zeros(shape))

    def add(
        self,
        state: PrefixSumState,
        noise: Noise,
        private_item: ArrayLike,
        sensitivity: SupportsFloat,
        *,
        item_index: int | None = None,
    ) -> NDArray[np.float64]:
        """Enter an item and release the prefix sum up to and including it.

        Args:
            state: from `open`; it moves on by one item.
            noise: not read: the noise of the whole stream was drawn when it opened.
            private_item: the item, of the shape the stream was opened for.
            sensitivity: l2 sensitivity of the item. Public; it may depend on earlier releases; 0 adds the item exactly.
            item_index: 0, 1, 2, ...; if given, it is checked against the items entered so far.
        Raises:
            ValueError: the stream is full, or the item's index, shape or sensitivity is wrong.
        """
        del noise
        index = state.count
        if index >= self.items or item_index not in (None, index):
            raise ValueError(
                f"items enter once, in turn: {index} of {self.items} have entered, got item {item_index}."
            )
        if np.shape(private_item) != state.prefix.shape:
            raise ValueError(
                f"the stream holds items of shape {state.prefix.shape}, got {np.shape(private_item)}."
            )
        row = state.correlated_noise[index]
        state.prefix = state.prefix + host_release(private_item, sensitivity, self.noise_multiplier, row)
        state.count += 1
        return state.prefix.copy()


def _checked_items(items: int) -> int:
    if items < 1:
        raise ValueError(f"a stream needs at least 1 item, got {items}.")
    return items


def _within_unit_columns(strategy: Matrix) -> Matrix:
    return strategy / np.linalg.norm(strategy, axis=0).max()


def _square_root(matrix: Matrix) -> Matrix:
    """The symmetric square root of a positive semi-definite matrix."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
