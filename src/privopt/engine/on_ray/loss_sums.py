"""The sum of an objective's losses over records that workers hold: only sums over their parts travel."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from privopt.engine.exact_sum import ExactSum
from privopt.engine.loss_sums import product_bound
from privopt.engine.on_ray.fleet import Call, Fleet
from privopt.engine.on_ray.shard import LossQuestion
from privopt.proofs.huberised_objective import HuberisedObjective

Vector = NDArray[np.float64]
_NONE = np.zeros(0)


class RemoteLossSum:
    """The sum over all workers, see `LossSum`; its numbers are those of `LossSumOverParts`, to the last bit.

    Args:
        fleet: the workers.
        known_as: what they know the units by.
        objective: whose losses are added up.
        private_rows: how many records there are.
        parts: of each worker, by its number.

    Privacy:
        The points that are asked about travel to the workers. They depend on the records, and are as private as rows.
    """

    def __init__(
        self,
        fleet: Fleet,
        known_as: int,
        objective: HuberisedObjective,
        private_rows: int,
        parts: Mapping[int, Sequence[int]],
    ) -> None:
        from ray.cloudpickle import cloudpickle  # late: an extra

        self._fleet, self._known_as, self._objective = fleet, known_as, objective
        self._form, self._private_rows, self._parts = cloudpickle.dumps(objective), private_rows, parts

    @property
    def private_rows(self) -> int:
        """See `LossSum.private_rows`."""
        return self._private_rows

    def gradient(self, at: Vector) -> Vector:
        """See `LossSum.gradient`."""
        return self._total("gradient", at, _NONE, self._objective.gradient_bound)

    def hessian(self, at: Vector) -> NDArray[np.float64]:
        """See `LossSum.hessian`."""
        return self._total("hessian", at, _NONE, self._objective.curvature)

    def hessian_product(self, at: Vector) -> Callable[[Vector], Vector]:
        """See `LossSum.hessian_product`."""
        return lambda vector: self._total("product", at, vector, product_bound(self._objective, vector))

    def _total(
        self, what: Literal["gradient", "hessian", "product"], at: Vector, vector: Vector, bound: float
    ) -> NDArray[np.float64]:
        asked = LossQuestion(self._form, what, np.asarray(at), np.asarray(vector), bound)
        one = sum(map(len, self._parts.values())) == 1
        if (
            math.isinf(bound) and not one
        ):  # privacy is off: no grid forgets the order, so it is that of the parts
            private_sums = self._in_order(asked)
            return np.array(sum(private_sums[1:], start=private_sums[0]), np.float64)
        calls: dict[int, Call] = {k: ("loss_sum", (asked, parts)) for k, parts in self._parts.items()}
        private_total = self._fleet.total(self._known_as, calls)
        return np.array(private_total.plain if one else private_total.value(bound), np.float64)

    def _in_order(self, asked: LossQuestion) -> list[NDArray[np.float64]]:
        answers = list[ExactSum]()
        for k, parts in self._parts.items():
            for part in parts:
                answers += self._fleet.ask(self._known_as, {k: ("loss_sum", (asked, [part]))})
        return [answer.plain for answer in answers]
