"""Each record's slope at the last point of a mixed pass, kept behind the door for the next pass."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.engine.mixed_kernel import BOTH, CARRIED, SAME

_NOTHING = np.empty(0)


class CarriedSlopes:
    """n numbers in place of half a pass: where a recursive estimator goes from point to point, each is met twice.

    The slopes that a pass computes at its point are those at the previous point of the next pass. They are used if that
    point and the formula are the same to the last bit, and the result is the same with and without them.
    """

    def __init__(self) -> None:
        self._key: tuple[Any, ...] | None = None
        self._private_slopes = _NOTHING
        self._private_spare = _NOTHING

    def open(
        self, points: NDArray[np.float64], formula: tuple[Any, ...], rows: int, *, still: bool
    ) -> tuple[int, NDArray[np.float64], NDArray[np.float64]]:
        """What a pass over all rows needs: where the slopes at `previous` come from, those kept, and room for new ones.

        Args:
            points: (2, d), at and previous.
            formula: the numbers that say which loss it is.
            rows: number of stored rows.
            still: whether the change counts for nothing, so that any finite one will do.
        """
        carried = self._key == (formula, points[1].tobytes()) and len(self._private_slopes) == rows
        self._key = None  # until the pass is through
        if len(self._private_spare) != rows:
            self._private_spare = np.empty(rows)
        source = SAME if still or points[0].tobytes() == points[1].tobytes() else CARRIED if carried else BOTH
        return source, self._private_slopes if source == CARRIED else _NOTHING, self._private_spare

    def close(self, points: NDArray[np.float64], formula: tuple[Any, ...]) -> None:
        """The pass is through: what it wrote are the slopes at its first point."""
        self._private_slopes, self._private_spare = self._private_spare, self._private_slopes
        self._key = (formula, points[0].tobytes())

    def __repr__(self) -> str:
        return "CarriedSlopes(<private>)"
