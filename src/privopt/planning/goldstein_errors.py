"""How far released gradients are from the gradients that they estimate, for each method of finding a stationary point.

G0^2, the mean squared error of one released gradient in d parameters, from public numbers: the noise that the budget
asks for, and the chance in the estimate itself.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from privopt.problems.ball import moved_share

Numbers = NDArray[np.float64]
Oracle = Literal["gradients", "jitter", "smoothed", "values"]
Method = Literal[
    "plain",
    "plain single-pass",
    "variance-reduced",
    "variance-reduced single-pass",
    "Zhang et al. single-pass",
]
METHODS: tuple[Method, ...] = (
    "plain",
    "plain single-pass",
    "variance-reduced",
    "variance-reduced single-pass",
    "Zhang et al. single-pass",
)
LARGEST_PERIOD = 2**14  # S, one fresh gradient in so many steps


@dataclass(frozen=True, kw_only=True)
class StationarityTask:
    """What the bounds depend on, all of it public.

    Attributes:
        n: units.
        d: parameters.
        mu: of the whole budget, in Gaussian differential privacy; infinite without noise.
        lipschitz: L, the longest gradient of a unit, and the clip.
        drop: Phi, a bound on the objective at the start above its infimum.
        radius: a, around the result.
        factor: 2 where a unit is replaced, 1 where one is added or removed.
    """

    n: int
    d: int
    mu: float
    lipschitz: float = 1.0
    drop: float = 1.0
    radius: float = 1.0
    factor: int = 2

    def __post_init__(self) -> None:
        for name in ("n", "d", "mu", "lipschitz", "radius"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)!r}.")
        if not self.drop >= 0:
            raise ValueError(
                f"drop must be at least 0, got {self.drop!r}: the start is no better than the infimum."
            )

    @property
    def noise_of_sum(self) -> float:
        """Standard deviation of a coordinate of one clipped sum bought with the whole budget: factor L / mu."""
        return self.factor * self.lipschitz / self.mu

    def variance(self, oracle: Oracle) -> float:
        """The mean squared error of one unit's estimate, and for values of the mean of all: they share directions."""
        if oracle == "values":
            return self.lipschitz**2 * (self.d / (self.d - 1) if self.d > 1 else 1.0)
        return self.lipschitz**2 if oracle == "jitter" else 0.0


@dataclass(frozen=True)
class Settings:
    """Settings of a method, arrays that broadcast: M, K, S, share of fresh gradients, alpha_s."""

    window: Numbers
    blocks: Numbers
    period: Numbers
    share: Numbers
    smoothing: Numbers

    @property
    def steps(self) -> Numbers:
        return self.window * self.blocks


def longest_step(task: StationarityTask, at: Settings) -> Numbers:
    """D."""
    return 2.0 * (task.radius - at.smoothing) / (at.window + 1.0)


def _plain_error(task: StationarityTask, at: Settings, oracle: Oracle) -> Numbers:
    noise = task.noise_of_sum * np.sqrt(at.steps) / task.n
    return task.d * noise**2 + estimation_error(task, oracle, float(task.n))


def _single_pass_error(task: StationarityTask, at: Settings, oracle: Oracle) -> Numbers:
    batch = np.floor(task.n / at.steps)
    noise = task.noise_of_sum / batch
    return task.d * noise**2 + task.lipschitz**2 / batch + estimation_error(task, oracle, batch)


def estimation_error(task: StationarityTask, oracle: Oracle, units: Any) -> Any:
    """The error of the estimates themselves: draws of units average out over them, shared directions do not."""
    variance = task.variance(oracle)
    return variance if oracle == "values" else variance / units


def _change(task: StationarityTask, at: Settings, oracle: Oracle) -> Numbers:
    """The longest difference of one unit's estimates at successive points, at most D apart."""
    step = longest_step(task, at)
    if oracle == "values":
        ratio = math.sqrt(task.d) * step / at.smoothing
    else:
        ratio = 2.0 * np.asarray(moved_share(step / at.smoothing, 1.0, task.d))
    return task.lipschitz * np.minimum(ratio, 2.0)


def _variance_reduced_error(task: StationarityTask, at: Settings, oracle: Oracle) -> Numbers:
    fresh = np.ceil(at.steps / at.period)
    changes = at.steps - fresh
    share = np.where(changes > 0, at.share, 1.0)
    change = _change(task, at, oracle)
    of_fresh = (task.noise_of_sum / task.n) ** 2 * fresh / share
    ratio = change / task.lipschitz
    of_change = (task.noise_of_sum * ratio / task.n) ** 2 * changes / np.maximum(1.0 - share, 1e-300)
    of_change = np.where(changes > 0, of_change, 0.0)
    unit = max(task.variance(oracle), task.lipschitz**2)
    return (
        task.d * (of_fresh + (at.period - 1.0) * of_change)
        + unit / task.n
        + (at.period - 1.0) * change**2 / task.n
    )


def _single_pass_reduced_error(
    task: StationarityTask, at: Settings, oracle: Oracle, *, zhang: bool = False
) -> Numbers:
    """Fresh batches of B1 units and batches of B2 for the changes; their noise is a stream of prefix sums."""
    fresh = np.ceil(at.steps / at.period)
    changes = at.steps - fresh
    share = np.where(changes > 0, at.share, 1.0)
    first = np.floor(share * task.n / fresh)
    later = np.where(changes > 0, np.floor((1.0 - share) * task.n / np.maximum(changes, 1.0)), 1.0)
    unit = task.noise_of_sum  # of a contribution of length L
    if zhang:
        # d independent directions, each clipped alone: d L, and d L D / alpha, at worst.
        stretch, relative = float(task.d), task.d * longest_step(task, at) / at.smoothing
        spread = task.d * (task.lipschitz * longest_step(task, at) / at.smoothing) ** 2
        variance = task.variance("values")
    else:
        stretch, relative = 1.0, _change(task, at, oracle) / task.lipschitz
        spread, variance = (task.lipschitz * relative) ** 2, max(task.variance(oracle), task.lipschitz**2)
    of_fresh = unit * stretch / first
    of_change = np.where(changes > 0, unit * relative / later, 0.0)
    prefix = _prefix_noise()[np.minimum(at.period.astype(int) - 1, len(_prefix_noise()) - 1)]
    return (
        variance / first
        + (at.period - 1.0) * spread / later
        + task.d * (of_fresh**2 + (of_change * prefix) ** 2)
    )


def _zhang_error(task: StationarityTask, at: Settings, oracle: Oracle) -> Numbers:
    return _single_pass_reduced_error(task, at, oracle, zhang=True)


_OF_METHOD: Mapping[str, Callable[[StationarityTask, Settings, Oracle], Numbers]] = {
    "plain": _plain_error,
    "plain single-pass": _single_pass_error,
    "variance-reduced": _variance_reduced_error,
    "variance-reduced single-pass": _single_pass_reduced_error,
    "Zhang et al. single-pass": _zhang_error,
}


@cache
def _prefix_noise() -> Numbers:
    """Largest standard deviation of the first S prefix sums under the square-root strategy, S = 0, 1, ..., 2^13."""
    items = np.arange(1, int(LARGEST_PERIOD))
    coefficients = np.cumprod(np.concatenate([[1.0], 1.0 - 1.0 / (2.0 * items)]))
    return np.concatenate([[0.0], np.cumsum(coefficients**2)])


def squared_error(method: str, task: StationarityTask, at: Settings, oracle: Oracle) -> Numbers:
    """G0^2 of a method at some settings."""
    return _OF_METHOD[method](task, at, oracle)
