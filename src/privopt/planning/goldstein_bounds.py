"""How short a mean gradient the theorems on private non-smooth non-convex descent promise, before any data are read.

O2NC (online-to-non-convex conversion) takes T = K M steps in K blocks of M. The mean of a block's points is returned,
and the mean of the gradients at its points, all within a of it, is what the theorem bounds in expectation over the
noise and a uniformly random choice of the block. With a = a_M + alpha_s, D = 2 a_M / (M + 1) the longest step, and
Phi at least the objective at the start above its infimum,

    unbiased estimates   (Phi + L alpha_s) (M + 1) / (2 a_M T) + 2 G1 / sqrt(M) + G0 / sqrt(M)
    any estimates        (Phi + L alpha_s) (M + 1) / (2 a_M T) + 2 G1 / sqrt(M) + 2 G0 + kappa_d L D / (4 alpha_s)

for gradients no longer than L, where G0^2 bounds the mean squared error of one released gradient and G1^2 = L^2 + G0^2.
A bound of L or more says nothing: that much holds of every point.

Source:
    Kornowski, Liu, Talwar 2024, Algorithm 2 and Proposition 2.6 with corrected constants: a block's points lie within
    D (M + 1) / 2 of their mean; blocks after the first start anywhere in the ball of steps, hence 2 G1; an error of the
    gradient acts on two steps, hence 2 G0; and errors that are unbiased given the past average out over a block, hence
    G0 / sqrt(M). The last is what makes plain noisy gradients better than the paper's variance reduction.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from privopt.planning.plan import Bound, Finding, figure
from privopt.planning.task import Forecast, Instance
from privopt.problems.ball import moved_share, smoothing_constant
from privopt.problems.black_box import BlackBox
from privopt.problems.regularisers import NoRegulariser

# ------------------------------------------------------------------------------------------------------------
# How far released gradients are from the gradients that they estimate, for each method of finding a
# stationary point.
# G0^2, the mean squared error of one released gradient in d parameters, from public numbers: the noise that the budget
# asks for, and the chance in the estimate itself.


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


# ------------------------------------------------------------------------------------------------------------
# How short a mean gradient the theorems on private non-smooth non-convex descent promise, before any data
# are read.


# Of a method that may take as many steps as it wants.
_MOST_STEPS = {"plain": 2_000_000, "variance-reduced": 10_000_000}
# Of the radius, for smoothing; and of the units or the budget, for fresh gradients.
_SHARES = np.array([0.2, 0.35, 0.5, 0.65, 0.8])
_PERIODS: Numbers = np.asarray(4.0 ** np.arange(8), float)  # up to LARGEST_PERIOD
_NEAR = np.geomspace(0.5, 2.0, 7)  # times the best number of a coarse grid


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The bound of one method at the setting that makes it smallest.

    Attributes:
        method: which.
        value: the bound.
        window: M.
        blocks: K.
        period: S, one fresh gradient in so many steps; 1 without variance reduction.
        share: of the units, or of the budget, for fresh gradients.
        smoothing: alpha_s.
        lipschitz: L.
    """

    method: Method
    value: float
    window: int
    blocks: int
    period: int
    share: float
    smoothing: float
    lipschitz: float

    @property
    def steps(self) -> int:
        """T."""
        return self.window * self.blocks

    @property
    def vacuous(self) -> bool:
        """Whether it says no more than that gradients are no longer than L."""
        return not self.value < self.lipschitz


def predict(
    method: Method,
    task: StationarityTask,
    *,
    oracle: Oracle = "gradients",
    smoothing: float | None = None,
    most_steps: int | None = None,
) -> Prediction:
    """The smallest bound of a method over a grid of its settings.

    Args:
        method: one of `METHODS`.
        task: the public numbers.
        oracle: what is asked at a point. Variance reduction smooths in any case; by values its differences are coarser,
            and its bound is that of directions of its own for every unit.
        smoothing: alpha_s of the plain methods; default 0, for "values" and "jitter" the best share of the radius.
        most_steps: T at most; default as many as improve it, up to two million (variance reduction: ten).
    """
    _check_method(method)
    single = method.endswith("single-pass")
    most = task.n if single else _MOST_STEPS[method]
    most = most if most_steps is None else min(most, most_steps)
    plain = method.startswith("plain")
    shares = _SHARES * task.radius
    if plain and smoothing is not None:
        shares = np.array([smoothing])
    elif plain and oracle in ("gradients", "smoothed"):
        shares = np.zeros(1)
    window, blocks = _steps(most, 120 if plain else 30)
    coarse = _crossed(
        window,
        blocks,
        period=np.ones(1) if plain else _PERIODS[most >= _PERIODS],
        share=np.ones(1) if plain else _SHARES,
        smoothing=shares,
    )
    value, near = _smallest(method, task, coarse, oracle)
    if not plain:
        value, near = min(
            (value, near), _smallest(method, task, _around(near, task, most), oracle), key=lambda one: one[0]
        )
    return Prediction(
        method=method,
        value=value,
        window=int(near[0]),
        blocks=int(near[1]),
        period=int(near[2]),
        share=near[3],
        smoothing=near[4],
        lipschitz=task.lipschitz,
    )


def plain_bound(
    task: StationarityTask,
    *,
    window: int,
    blocks: int,
    smoothing: float = 0.0,
    oracle: Oracle = "gradients",
    noise: float | None = None,
) -> float:
    """The bound of the plain method at one setting.

    Args:
        task: the public numbers.
        window: M.
        blocks: K.
        smoothing: alpha_s, below the radius.
        oracle: what is released.
        noise: standard deviation of a coordinate of one release; default that of the whole budget over K M releases of
            all units.
    """
    ones = [np.asarray([float(number)]) for number in (window, blocks, 1, 1, smoothing)]
    settings = Settings(*ones)
    error = None
    if noise is not None:
        error = task.d * noise**2 + estimation_error(task, oracle, float(task.n))
    return float(_bound("plain", task, settings, oracle, error)[0])


def plan_bound(
    task: StationarityTask,
    *,
    window: int,
    blocks: int,
    smoothing: float = 0.0,
    oracle: Oracle = "gradients",
    noise: float | None = None,
) -> tuple[Bound | None, tuple[str, ...]]:
    """The bound of a configured plain run for its plan, or a notice that it is vacuous. Arguments as `plain_bound`."""
    value = plain_bound(task, window=window, blocks=blocks, smoothing=smoothing, oracle=oracle, noise=noise)
    if not value < task.lipschitz:
        return None, (
            f"The theorem's bound on the mean gradient around the result, {figure(value)}, is vacuous at this budget: "
            f"gradients are no longer than {figure(task.lipschitz)} anywhere. What the run reaches it will certify.",
        )
    smoothed = f", smoothed over balls of radius {figure(smoothing)}" if smoothing > 0 else ""
    condition = (
        f"no unit's gradient is longer than {figure(task.lipschitz)} and the start is at most {figure(task.drop)} "
        "above the infimum; over the noise and a random choice of the block that is returned"
    )
    of = f"norm of an average of the mean loss's gradients{smoothed} within {figure(task.radius)} of the result"
    return Bound(value, None, condition, of), ()


def _bound(
    method: Method,
    task: StationarityTask,
    at: Settings,
    oracle: Oracle,
    error: float | None = None,
) -> Numbers:
    """The bounds at some settings, infinite where one is impossible; `error` is G0^2 where it is known."""
    drop, longest = task.drop, task.lipschitz
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        averaged = task.radius - at.smoothing
        squared = squared_error(method, task, at, oracle) if error is None else np.asarray(error)
        wrong, length = np.sqrt(squared), np.sqrt(longest**2 + squared)
        value = (drop + longest * at.smoothing) * (at.window + 1.0) / (2.0 * averaged * at.steps)
        value = value + 2.0 * length / np.sqrt(at.window)
        if method.startswith("plain"):
            value = value + wrong / np.sqrt(at.window)
        else:
            midpoint = smoothing_constant(task.d) * longest * longest_step(task, at) / (4.0 * at.smoothing)
            value = value + 2.0 * wrong + midpoint
    return np.where(np.isfinite(value) & (averaged > 0), value, math.inf)


def _smallest(
    method: Method, task: StationarityTask, at: Settings, oracle: Oracle
) -> tuple[float, tuple[float, float, float, float, float]]:
    """The smallest bound among some settings, and (M, K, S, share, alpha_s) of it."""
    values = _bound(method, task, at, oracle)
    best = int(np.argmin(values))
    parts = (at.window, at.blocks, at.period, at.share, at.smoothing)
    window, blocks, period, share, smoothing = (float(part[best]) for part in parts)
    return float(values[best]), (window, blocks, period, share, smoothing)


def _crossed(
    window: Numbers, blocks: Numbers, *, period: Numbers, share: Numbers, smoothing: Numbers
) -> Settings:
    """Every pair (M, K) with every period, share and radius of smoothing, as flat arrays."""
    grid: tuple[Any, ...] = np.meshgrid(np.arange(len(window)), period, share, smoothing, indexing="ij")
    index, *others = (one.ravel() for one in grid)
    return Settings(window[index], blocks[index], *others)


def _around(near: tuple[float, ...], task: StationarityTask, most: int) -> Settings:
    """Settings near one."""
    window, blocks = (np.unique(np.maximum(1.0, np.round(number * _NEAR))) for number in near[:2])
    pairs = np.meshgrid(window, blocks, indexing="ij")
    kept = pairs[0] * pairs[1] <= max(most, 1)
    share, smoothing = near[3], near[4] / task.radius
    return _crossed(
        pairs[0][kept],
        pairs[1][kept],
        period=np.unique(np.clip(np.round(near[2] * _NEAR), 1.0, _PERIODS[-1])),
        share=np.clip(share + np.linspace(-0.1, 0.1, 5), 0.05, 0.95),
        smoothing=task.radius * np.clip(smoothing + np.linspace(-0.1, 0.1, 5), 0.05, 0.95),
    )


def _steps(most: int, points: int) -> tuple[Numbers, Numbers]:
    """Windows and numbers of blocks whose product is at most `most`, on a log grid of whole numbers."""
    grid = np.unique(np.round(np.geomspace(1, max(most, 1), points)))
    window, blocks = np.meshgrid(grid, grid, indexing="ij")
    kept = window * blocks <= max(most, 1)
    return window[kept], blocks[kept]


def _check_method(method: str) -> None:
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}.")


# ------------------------------------------------------------------------------------------------------------
# What theorems say in a plan: the bound of a run that meets their conditions, and what each method could
# promise.


START_MOVED = 1e-3  # of the radius, at most: how far a start is moved off a kink that it may sit on


def task_of(instance: Instance, *, clip: float, radius: float, distance: float) -> StationarityTask | None:
    """The numbers of the bounds; None where there is no bound: a penalty whose gradient nothing bounds, no clip.

    Args:
        instance: the problem and the budget.
        clip: C, taken for L.
        radius: a, around the result.
        distance: R, a guess of how far a good point is; with C it bounds what can be gained where the loss at the
            start has no bound of its own.
    """
    plain = isinstance(instance.problem.regulariser, NoRegulariser)
    if not (plain and math.isfinite(clip) and clip > 0 and instance.public.n > 0):
        return None
    loss, known = instance.problem.loss, instance.loss_at_zero
    drop = clip * distance if known is None else known
    if isinstance(loss, BlackBox):
        drop = min(drop, loss.high - loss.low)
    return StationarityTask(
        n=instance.public.n,
        d=instance.parameters,
        mu=instance.mu,
        lipschitz=clip,
        drop=drop + START_MOVED * clip * radius,
        radius=radius,
        factor=instance.public.relation.factor,
    )


def with_method_bounds(
    found: Forecast, instance: Instance, *, clip: float, radius: float, distance: float, values: bool = False
) -> Forecast:
    """The forecast with what each method could promise for the budget, in one indicator.

    Args:
        found: the forecast so far.
        instance: see `task_of`.
        clip: likewise.
        radius: likewise.
        distance: likewise.
        values: whether gradients are estimated from values.
    """
    task = task_of(instance, clip=clip, radius=radius, distance=distance)
    found = replace(found, for_convex=False)
    if task is None:
        return found
    oracle: Oracle = "values" if values else "gradients"
    plain, *others = (_predicted(method, task, oracle) for method in METHODS)
    told = "; ".join(f"{one.method} {_in_short(one)}" for one in others)
    meaning = (
        f"what a theorem bounds the norm of an average gradient within {figure(task.radius)} of the result by, in "
        f"expectation, for plain steps ({_in_short(plain)}); {told}. If no gradient is longer than "
        f"{figure(task.lipschitz)} and the start at most {figure(task.drop)} above the infimum"
    )
    return replace(
        found, indicators={**found.indicators, "stationarity_bound": Finding(plain.value, meaning)}
    )


def with_own_bound(
    found: Forecast,
    task: StationarityTask | None,
    *,
    window: int,
    blocks: int,
    noise: float,
    smoothing: float = 0.0,
    oracle: Oracle = "gradients",
) -> Forecast:
    """The forecast with the bound of a run that meets the theorem's conditions, or a notice that it is vacuous.

    The conditions: all units in every step; steps of `2 D / (sqrt(M) G1)` with D constant; places drawn uniformly on
    the steps; a random block is returned.

    Args:
        found: the forecast so far.
        task: see `task_of`.
        window: M.
        blocks: K.
        noise: standard deviation of a coordinate of one release.
        smoothing: alpha_s.
        oracle: what is released.
    """
    if task is None or blocks < 1:
        return found
    bound, notices = plan_bound(
        task, window=window, blocks=blocks, smoothing=smoothing, oracle=oracle, noise=noise
    )
    return replace(found, bound=bound).noting(*notices)


def _in_short(one: Prediction) -> str:
    if one.vacuous:
        return f"{figure(one.value)}, vacuous at this budget"
    return f"{figure(one.value)} in {one.steps:,} steps of windows of {one.window:,}"


@cache
def _predicted(method: Method, task: StationarityTask, oracle: Oracle) -> Prediction:
    return predict(method, task, oracle=oracle)
