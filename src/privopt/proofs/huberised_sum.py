"""The sum over records of Huberised generalised-linear losses: gradient and Hessian, block by block in float64.

`sum_i phi_c(<a_i, w>, y_i)`, `phi_c` the loss whose slope is clipped at `c_i = C / |B^T a_i|`, so that one record's
gradient has norm at most C in the coordinates `w = B v` (B the identity unless given). See `glm.py`.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from privopt.later import Array, Float, jax, jnp
from privopt.problems.glm import ScalarLoss
from privopt.problems.losses import Logistic, SmoothedHinge

Vector = NDArray[np.float64]
BLOCK_ROWS = (
    1024  # rows whose float64 copy exists at a time, and whose products are added one after the other
)
_BLOCK_ENTRIES = 2**16
_COMPILED_ROWS = (
    2**14
)  # of one call of a compiled function, filled up: its shape does not say how many there are
_INWARDS = 1.0 - 1e-9  # more than the rounding of a norm and a product, also for 10^6 columns
_UNIT_ROUNDOFF = 2.0**-53


class LossSum(Protocol):
    """The sum over records of a smooth loss, wherever they are. Everything it returns is private."""

    @property
    def private_rows(self) -> int:
        """How many rows there are; more than n only in a block drawn at random."""
        ...

    def gradient(self, at: Vector) -> Vector:
        """The gradient of the sum, (d,)."""
        ...

    def hessian(self, at: Vector) -> NDArray[np.float64]:
        """A generalised Hessian, (d, d); for speed only."""
        ...

    def hessian_product(self, at: Vector) -> Callable[[Vector], Vector]:
        """The map from v to Hessian times v; for speed only."""
        ...


class HuberisedSum:
    """The sum over some records, which are held here; see `LossSum`.

    Args:
        loss: the formula.
        clip: C, the largest norm of one record's gradient by v; infinite for no clip.
        private_features: (rows, d): an array, CSR, or an object with `shape` and `take(slice)`.
        private_targets: (rows,).
        matrix: B (d, d), public or released; None for the identity.
    Privacy:
        At any w the clipped gradient of one record, times B^T, has norm at most `clip`, whatever the record. Targets
        of margin losses are clipped to [-1, 1]: there the slope keeps the sign of the target and the curvature its
        bound, for any target.
    """

    def __init__(
        self,
        loss: ScalarLoss,
        clip: float,
        private_features: Any,
        private_targets: NDArray[np.float64],
        matrix: NDArray[np.float64] | None = None,
    ) -> None:
        self._loss = loss
        self._private_features = private_features
        self._rows, self._width = int(private_features.shape[0]), int(private_features.shape[1])
        self._length = min(BLOCK_ROWS, max(64, _BLOCK_ENTRIES // self._width))
        self._private_sparse = _sparse_blocks(private_features, self._length)
        margin = isinstance(loss, Logistic | SmoothedHinge)
        self._private_targets = np.clip(private_targets, -1.0, 1.0) if margin else private_targets
        private_norms = np.zeros(self._rows)
        aim = clip * _INWARDS
        with np.errstate(all="ignore"):  # a warning must not depend on the data
            for place, private_block in self._blocks():
                private_norms[place] = _norms(private_block, matrix)
            private_some = private_norms > 0
            self._private_caps = np.where(private_some, aim / np.where(private_some, private_norms, 1.0), 0.0)

    @property
    def private_rows(self) -> int:
        """See `LossSum.private_rows`."""
        return self._rows

    def gradient(self, at: Vector) -> Vector:
        """See `LossSum.gradient`."""
        private_slopes, _ = self._derivatives(at)
        with np.errstate(all="ignore"):
            private_parts = [
                private_block.T @ private_slopes[place] for place, private_block in self._blocks()
            ]
        if not private_parts:  # a block that nobody was drawn into
            return np.zeros(self._width)
        return _pairwise(np.stack(private_parts))

    def hessian(self, at: Vector) -> NDArray[np.float64]:
        """See `LossSum.hessian`."""
        _, private_bends = self._derivatives(at)
        total = np.zeros((self._width, self._width))
        for place, private_block in self._blocks():
            total += _weighted_gram(private_block, private_bends[place])
        return total

    def hessian_product(self, at: Vector) -> Callable[[Vector], Vector]:
        """See `LossSum.hessian_product`."""
        _, private_bends = self._derivatives(at)

        def product(vector: Vector) -> Vector:
            total = np.zeros(self._width)
            for place, private_block in self._blocks():
                total += private_block.T @ (private_bends[place] * (private_block @ vector))
            return total

        return product

    def _derivatives(self, at: Vector) -> tuple[Vector, Vector]:
        private_predictions = np.empty(self._rows)
        with np.errstate(all="ignore"):  # a warning must not depend on the data
            for place, private_block in self._blocks():
                private_predictions[place] = private_block @ at
        private_found = np.empty((2, self._rows))
        for start in range(0, max(self._rows, 1), _COMPILED_ROWS):
            private_piece = slice(start, min(start + _COMPILED_ROWS, self._rows))
            private_columns = (private_predictions, self._private_targets, self._private_caps)
            private_filled = np.zeros((3, _COMPILED_ROWS))
            private_count = private_piece.stop - start
            for private_row, private_column in zip(private_filled, private_columns, strict=True):
                private_row[:private_count] = private_column[private_piece]
            found = _clipped_derivatives(self._loss, *private_filled)
            private_found[:, private_piece] = [np.asarray(each)[:private_count] for each in found]
        return private_found[0], private_found[1]

    def _blocks(self) -> Iterator[tuple[slice, Any]]:
        """Rows in float64, a block at a time."""
        for number, start in enumerate(range(0, self._rows, self._length)):
            place = slice(start, min(start + self._length, self._rows))
            if self._private_sparse is not None:
                yield place, self._private_sparse[number]
            elif isinstance(self._private_features, np.ndarray):
                yield place, np.asarray(self._private_features[place], np.float64)
            else:
                yield place, np.asarray(self._private_features.take(place), np.float64)


def gradient_rounding(
    *, units: int, width: int, gradient_bound: float, curvature: float, length: float
) -> float:
    """How far the computed gradient of the sum can be from the exact one, in l2 norm.

    Every product passes at most `BLOCK_ROWS` additions within its block and one for each level of the pairwise sum of
    the blocks, of one part of the records or of all; sums of parts are added as integers, which costs four roundings
    (`rounding.rounding_bound`). A prediction is off by at most (d + 8) u |a| |w|, which the slope multiplies by its
    curvature, and the slope itself by a few u.

    Args:
        units: number of records at most.
        width: d.
        gradient_bound: of one record's gradient by w.
        curvature: of one record's loss by w, `phi'' |a|^2`.
        length: |w|.
    Source:
        Higham 2002, Accuracy and Stability of Numerical Algorithms, sections 3.1 and 4.2.
    """
    depth = min(BLOCK_ROWS, max(units, 1)) + math.log2(max(units, 2)) + 40
    return _UNIT_ROUNDOFF * units * (depth * gradient_bound + (width + 8) * curvature * length)


@partial(jax.jit, static_argnames=("loss",))
def _clipped_derivatives(
    loss: ScalarLoss,
    private_predictions: Float[Array, " n"],
    private_targets: Float[Array, " n"],
    private_caps: Float[Array, " n"],
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    private_slopes = loss.huberised_slope(private_predictions, private_targets, private_caps)
    private_bends = loss.huberised_second_derivative(private_predictions, private_targets, private_caps)
    return _finite(private_slopes), _finite(private_bends)


def _finite(private_numbers: Float[Array, " n"]) -> Float[Array, " n"]:
    return jnp.where(jnp.isfinite(private_numbers), private_numbers, jnp.zeros_like(private_numbers))


def _sparse_blocks(private_features: Any, length: int) -> list[Any] | None:
    if not sparse.issparse(private_features):
        return None
    starts = range(0, private_features.shape[0], length)
    return [private_features[start : start + length].astype(np.float64) for start in starts]


def _norms(private_block: Any, matrix: NDArray[np.float64] | None) -> Vector:
    """The norms of `B^T a`, rounded up.

    No square underflows beside the slack: a stored row is zero or has an entry of 1e-24 (`clip_rows`), and B is
    divided by its largest entry first.
    """
    private_lengths = np.sqrt(np.asarray((private_block * private_block).sum(axis=1), np.float64).reshape(-1))
    if matrix is None:
        return private_lengths * (1.0 + 1e-12)
    largest = float(np.max(np.abs(matrix)))
    unit = matrix / (largest or 1.0)
    private_mapped = np.asarray(private_block @ unit, np.float64)
    slack = 8.0 * (len(unit) + 8) * _UNIT_ROUNDOFF * float(np.linalg.norm(unit))
    private_unit_norms = np.sqrt(np.sum(private_mapped**2, axis=1)) * (1.0 + 1e-12) + slack * private_lengths
    return largest * private_unit_norms


def _weighted_gram(private_block: Any, private_weights: Vector) -> NDArray[np.float64]:
    if sparse.issparse(private_block):
        return np.asarray((private_block.T @ (sparse.diags_array(private_weights) @ private_block)).toarray())
    return (private_block * private_weights[:, None]).T @ private_block


def _pairwise(private_parts: NDArray[np.float64]) -> Vector:
    """The sum over the first axis, by halves."""
    while len(private_parts) > 1:
        if len(private_parts) % 2:
            private_parts = np.concatenate([private_parts, np.zeros_like(private_parts[:1])])
        private_parts = private_parts[0::2] + private_parts[1::2]
    return private_parts[0]
