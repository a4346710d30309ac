"""Sums of losses over units in parts, for queries that minimise them: each part for itself, then an `ExactSum`."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from privopt.data.room import MEMORY
from privopt.data.units import Units
from privopt.engine.parts import total_of_parts
from privopt.proofs.huberised_objective import HuberisedObjective
from privopt.proofs.huberised_sum import LossSum

Vector = NDArray[np.float64]


class LossSumOverParts:
    """The sum over all parts, see `LossSum`.

    Args:
        objective: whose losses are added up.
        private_parts: the sums over the parts.
    Privacy:
        The bounds of one record's part in each sum, from which their grids follow, are public or follow from the point
        that is asked about. `gradient_rounding` covers the grid of the gradients: it allows 40 roundings more than
        there are, and a grid of K parts adds K d 2^-76 times the bound at most.
    """

    def __init__(self, objective: HuberisedObjective, private_parts: Sequence[LossSum]) -> None:
        self._objective, self._private_parts = objective, private_parts

    @property
    def private_rows(self) -> int:
        """See `LossSum.private_rows`."""
        return sum(private_part.private_rows for private_part in self._private_parts)

    def gradient(self, at: Vector) -> Vector:
        """See `LossSum.gradient`."""
        bound = self._objective.gradient_bound
        return total_of_parts((private_part.gradient(at) for private_part in self._private_parts), bound)

    def hessian(self, at: Vector) -> NDArray[np.float64]:
        """See `LossSum.hessian`."""
        bound = self._objective.curvature
        return total_of_parts((private_part.hessian(at) for private_part in self._private_parts), bound)

    def hessian_product(self, at: Vector) -> Callable[[Vector], Vector]:
        """See `LossSum.hessian_product`."""
        private_products = [private_part.hessian_product(at) for private_part in self._private_parts]

        def product(vector: Vector) -> Vector:
            bound = product_bound(self._objective, vector)
            return total_of_parts((private_product(vector) for private_product in private_products), bound)

        return product


class PassingLossSum:
    """A sum that keeps nothing of the size of the records: what follows from them is computed whenever it is asked.

    Args:
        make: makes the sum.
        private_rows: how many records there are.
    """

    def __init__(self, make: Callable[[], LossSum], private_rows: int) -> None:
        self._make, self._private_rows = make, private_rows

    @property
    def private_rows(self) -> int:
        """See `LossSum.private_rows`."""
        return self._private_rows

    def gradient(self, at: Vector) -> Vector:
        """See `LossSum.gradient`."""
        return self._make().gradient(at)

    def hessian(self, at: Vector) -> NDArray[np.float64]:
        """See `LossSum.hessian`."""
        return self._make().hessian(at)

    def hessian_product(self, at: Vector) -> Callable[[Vector], Vector]:
        """See `LossSum.hessian_product`."""
        return lambda vector: self._make().hessian_product(at)(vector)


def product_bound(objective: HuberisedObjective, vector: Vector) -> float:
    """How long one record's Hessian times a vector can be."""
    return objective.curvature * float(np.linalg.norm(vector))


def loss_sum(objective: HuberisedObjective, private_parts: Sequence[Units]) -> LossSum:
    """The sum over the units of parts, at least one; of one part as it is, since it is no sum of parts.

    Some numbers of every record are kept where the rows are in memory, and nowhere else.
    """
    private_sums = [_sum_of_part(objective, private_part) for private_part in private_parts]
    return private_sums[0] if len(private_sums) == 1 else LossSumOverParts(objective, private_sums)


def _sum_of_part(objective: HuberisedObjective, private_part: Units) -> LossSum:
    make = partial(objective.over, private_part.private_features, private_part.private_targets)
    return make() if private_part.room is MEMORY else PassingLossSum(make, private_part.private_count)
