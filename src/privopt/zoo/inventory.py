"""An inventory policy whose cost only a simulator knows: a black box in NumPy, and made-up demands for it.

A unit is one product, its record the demands of its 24 periods. A policy says for every season when to order (stock
below s) and up to what (S). The cost of a record is that of running the policy through its demands: it jumps where one
more order is placed, and has no derivative that means anything.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.zoo.problem import require_dimension

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Inventory:
    """The cost of an (s, S) policy on one record's demands: `inventory(params, demands, target)`.

    Parameters are s_0, ..., s_{q-1}, x_0, ..., x_{q-1} for q seasons; S_k = s_k + |x_k|. Period w of 24 is in season
    floor(w q / 24). The stock starts at S_0. A period with stock below s_k orders up to S_k at a cost of 4; then the
    demand is met as far as the stock goes, what is short is lost at 3 a unit, and what is left costs 0.2 a unit. The
    value is the mean over periods, at most 12.

    It is a function of the parameters and of one record alone: whatever is random lies in the demands, so all points
    meet the same. Equal when the number of seasons is.

    Attributes:
        seasons: q, a divisor of 24.
    Raises:
        ValueError: the seasons do not divide the periods.
    """

    periods: ClassVar[int] = 24
    order_cost: ClassVar[float] = 4.0
    holding_cost: ClassVar[float] = 0.2
    shortage_cost: ClassVar[float] = 3.0
    value_range: ClassVar[tuple[float, float]] = (0.0, 12.0)
    scale: ClassVar[float] = 15.0  # of a parameter: ten times the radius over which costs are compared

    seasons: int = 4

    def __post_init__(self) -> None:
        require_dimension(self.seasons)
        if self.periods % self.seasons:
            raise ValueError(f"seasons must divide {self.periods} periods, got {self.seasons!r}.")

    @property
    def dimension(self) -> int:
        """How many parameters there are."""
        return 2 * self.seasons

    @property
    def start(self) -> Vector:
        """A policy to begin with: order below 2, up to 5."""
        return np.repeat([2.0, 3.0], self.seasons)

    def __call__(self, params: ArrayLike, features: ArrayLike, target: object = None) -> Vector:
        """The cost of one record.

        Args:
            params: (..., 2 q): one policy, or any number of them at once.
            features: (24,), the demands; or (..., 24) with leading axes that broadcast against those of `params`.
            target: not used.
        Returns:
            The cost of each policy, (...,).
        """
        del target
        points, demands = np.asarray(params, np.float64), np.asarray(features, np.float64)
        low = points[..., : self.seasons]
        high = low + np.abs(points[..., self.seasons :])
        shape = np.broadcast_shapes(points.shape[:-1], demands.shape[:-1])
        stock, cost = np.broadcast_to(high[..., 0], shape), np.zeros(shape)
        for period in range(self.periods):
            season = period * self.seasons // self.periods
            orders = stock < low[..., season]
            left = np.where(orders, high[..., season], stock) - demands[..., period]
            stock = np.maximum(left, 0.0)
            cost = cost + self.order_cost * orders + self.holding_cost * stock
            cost = cost + self.shortage_cost * np.maximum(-left, 0.0)
        return np.minimum(cost / self.periods, self.value_range[1])

    def demands(self, units: int, seed: int) -> Vector:
        """Made-up records, (units, 24): Poisson demands with a season, a size of each unit's own, and rare bursts.

        Args:
            units: how many.
            seed: of NumPy's generator.
        """
        rng = np.random.default_rng(seed)
        size = 2.0 * np.exp(0.3 * rng.normal(size=(units, 1)))
        wave = 1.0 + 0.8 * np.sin(2.0 * np.pi * np.arange(self.periods) / self.periods)
        bursts = (rng.random((units, self.periods)) < 0.05) * rng.poisson(6.0, (units, self.periods))
        return (rng.poisson(size * wave) + bursts).astype(np.float64)

    def mean_cost(self, params: ArrayLike, demands: ArrayLike) -> float:
        """The mean cost of one policy over records."""
        return float(np.mean(self(np.asarray(params, np.float64), demands)))


def inventory(seasons: int = 4) -> Inventory:
    """The inventory problem: cost, made-up demands and a policy to start from.

    Args:
        seasons: q, a divisor of 24; there are 2 q parameters.
    """
    return Inventory(seasons)
