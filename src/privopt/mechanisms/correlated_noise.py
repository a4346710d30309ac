"""The correlated noise of a stream, row by row: C^{-1} Z as the items come, and what of it remains in the prefix sums.

Row t of C x = z says `x_t = (z_t - sum_{j < t} C_tj x_j) / C_tt`. Only as many earlier rows are kept as C has bands, so
a banded strategy needs memory for its bands, whatever the number of items.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.mechanisms.strategies import Matrix, Strategy, bands_of, row_of

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
