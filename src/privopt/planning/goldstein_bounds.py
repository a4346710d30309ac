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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from privopt.planning.goldstein_errors import (
    METHODS,
    Method,
    Numbers,
    Oracle,
    Settings,
    StationarityTask,
    estimation_error,
    longest_step,
    squared_error,
)
from privopt.planning.plan import Bound, Finding, figure
from privopt.problems.ball import smoothing_constant

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

    @property
    def finding(self) -> Finding:
        """The bound in words."""
        if self.vacuous:
            return Finding(
                self.value, "vacuous at this budget: every point has a mean gradient as short as that"
            )
        period = f", a fresh gradient every {self.period:,} steps" if self.period > 1 else ""
        return Finding(
            self.value,
            f"the mean gradient's norm in expectation, in {self.steps:,} steps, {self.window:,} to a block{period}",
        )


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


def method_findings(
    task: StationarityTask, *, oracle: Oracle = "gradients", most_steps: int | None = None
) -> Mapping[str, Finding]:
    """The bound of every method at its best setting, "vacuous at this budget" where it is: for a plan's indicators."""
    return {
        f"{method} bound": predict(method, task, oracle=oracle, most_steps=most_steps).finding
        for method in METHODS
    }


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
