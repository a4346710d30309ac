"""Defaults, batches, correlated noise and forecast of single-pass O2NC.

Every unit is in one batch. With variance reduction S steps make a period: a gradient on a large batch, then changes of
it on small ones, all of a run's periods in one stream. Without, S = 1 and all batches are alike.

    P = ceil(T / S) periods,  B1 = floor(share n / P),  B2 = floor((n - P B1) / (T - P))
    s_1 = factor C / B1,      s_2 = factor c / B2,      c the longest change of a unit over a step of D_max

The strategy that correlates a period's noise is the optimum for items of sensitivities s_1, s_2, ..., s_2; only their
ratio enters. The changes' true sensitivities follow the realised, public, distances between points and are smaller.

Source:
    Kornowski, Liu, Talwar 2024, Algorithms 3 and 5; Denisov, McMahan, Rush, Smith, Thakurta 2022 (the strategy). The
    defaults were chosen on generated problems; utility only.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.mechanisms.correlated_noise import prefix_noise
from privopt.mechanisms.strategies import (
    Banded,
    Strategy,
    block_diagonal,
    dense_optimum,
    independent,
    square_root_toeplitz,
)
from privopt.planning import gradient_changes, o2nc
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.online_to_nonconvex import longest_move, step_length, whole_blocks
from privopt.planning.stationarity_forecast import with_method_bounds
from privopt.public import Public

STEPS = 60
PERIOD = 4
SMOOTHING = 1.0 / 64.0  # of the distance
REDUCED_SMOOTHING = 1.0 / 8.0  # likewise, with variance reduction, which needs changes shorter than gradients
LARGEST_OPTIMUM = 512  # items of a period


def rounds(solver: Any) -> int:
    """T, in whole windows."""
    return whole_blocks(solver.steps, solver.window)[0]


def batches(solver: Any, n: int) -> list[int]:
    """The number of units of each step's batch; the sum is at most n.

    Raises:
        ValueError: a batch of fewer than two units.
    """
    total, period = rounds(solver), solver.period
    periods = math.ceil(total / period) if total else 0
    later = total - periods
    first_size = math.floor((solver.share if later else 1.0) * n / periods) if periods else 2
    later_size = (n - periods * first_size) // later if later else 2
    if min(first_size, later_size) < 2:
        raise ValueError(
            f"{total} steps in periods of {period} leave batches of {min(first_size, later_size)} of the n = {n} "
            "units, and a batch needs at least 2: take fewer steps."
        )
    return [later_size if t % period else first_size for t in range(total)]


def longest_change(solver: Any, parameters: int) -> float:
    """c over C: how long a unit's change can be over the longest step, in clips."""
    window = whole_blocks(solver.steps, solver.window)[1]
    furthest = longest_move([step_length(a, window) for a in o2nc.radii(solver)], solver.places)
    clip = 1.0 if math.isinf(solver.clip) else solver.clip
    length = gradient_changes.length_of_change(
        solver.estimate,
        furthest,
        clip=clip,
        slope_clip=solver.slope_clip,
        smoothing=solver.smoothing,
        parameters=parameters,
    )
    return length / clip


def relative_sensitivities(solver: Any, n: int, parameters: int, length: int) -> NDArray[np.float64]:
    """The sensitivities of a period's items over that of the first, for the longest steps."""
    if length == 1:
        return np.ones(1)
    sizes = batches(solver, n)
    ratio = longest_change(solver, parameters) * sizes[0] / sizes[1]
    return np.append(1.0, np.full(length - 1, max(ratio, 1e-6)))


def period_strategy(solver: Any, n: int, parameters: int, length: int) -> Strategy:
    """C of a period: the weighted optimum, or an independent first item and a square root for the others."""
    if length <= LARGEST_OPTIMUM and solver.strategy == "optimum":
        return dense_optimum(relative_sensitivities(solver, n, parameters, length))
    later = [square_root_toeplitz(length - 1, unit_columns=True)] if length > 1 else []
    return block_diagonal(independent(1), *later)


def run_strategy(solver: Any, n: int, parameters: int) -> Strategy:
    """C of the whole run, a period after the other; the last one may be shorter."""
    total = rounds(solver)
    lengths = [min(solver.period, total - start) for start in range(0, total, solver.period)]
    return block_diagonal(*(as_bands(period_strategy(solver, n, parameters, length)) for length in lengths))


def as_bands(strategy: Strategy) -> Banded:
    """A strategy, stored as its diagonals."""
    if isinstance(strategy, Banded):
        return strategy
    return Banded(np.stack([np.pad(np.diagonal(strategy, -lag), (0, lag)) for lag in range(len(strategy))]))


def noise_of_steps(solver: Any, public: Public, parameters: int) -> NDArray[np.float64]:
    """The standard deviation of the noise in each coordinate of each step's gradient, for the longest steps."""
    total = rounds(solver)
    if solver.noise_multiplier == 0.0 or not total:
        return np.zeros(total)
    first = public.relation.factor * solver.clip / batches(solver, public.n)[0]
    relative = relative_sensitivities(solver, public.n, parameters, solver.period)
    scales = prefix_noise(period_strategy(solver, public.n, parameters, solver.period), relative)
    return solver.noise_multiplier * first * np.resize(scales, total)


def step_sizes(
    solver: Any, public: Public, parameters: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(D_t, eta_t), one entry a step."""
    window = whole_blocks(solver.steps, solver.window)[1]
    longest = np.asarray([step_length(a, window) for a in o2nc.radii(solver)])
    if solver.step_size is not None:
        return longest, np.full(len(longest), float(solver.step_size))
    noise = noise_of_steps(solver, public, parameters)
    typical = np.sqrt(solver.typical**2 + parameters * np.mean(noise**2)) if len(noise) else solver.typical
    factor = o2nc.PROVED_STEP_FACTOR if solver.mode == "guarantee" else o2nc.STEP_FACTOR
    return longest, factor * longest / (math.sqrt(window) * typical)


def steps(solver: Any, instance: Instance) -> int:
    """T: few, since the units are shared among them."""
    return min(STEPS, instance.public.n // (4 if solver.variance_reduction else 2))


def smoothing(solver: Any, instance: Instance) -> float:
    """The radius of the ball over which the loss is averaged."""
    share = REDUCED_SMOOTHING if solver.variance_reduction else SMOOTHING
    return gradient_changes.smoothing(solver, instance, share)


def period(solver: Any, instance: Instance) -> int:
    """S: 4, or 1 where a change can be no shorter than a gradient."""
    if not solver.variance_reduction:
        return 1
    return PERIOD if longest_change(solver, instance.parameters) < 1.0 else 1


DEFAULTS = {
    "steps": steps,
    "window": o2nc.window,
    "distance": o2nc.distance,
    "radius": lambda solver, instance: solver.distance * o2nc.GUARANTEE_RADIUS,
    "smoothing": smoothing,
    "clip": gradient_changes.clip,
    "typical": o2nc.typical,
    "returns": lambda solver, instance: "last" if solver.mode == "guarantee" else "tail",
    "places": lambda solver, instance: "middle" if solver.variance_reduction else "uniform",
    "estimate": gradient_changes.estimate,
    "slope_clip": gradient_changes.slope_clip,
    "period": period,
}


def asked(solver: Any, n: int) -> int:
    """How often a unit's gradient is asked for, over units and points."""
    sizes = batches(solver, n)
    return sum(size * (2 if t % solver.period else 1) for t, size in enumerate(sizes))


def forecast(solver: Any, instance: Instance) -> Forecast:
    """The theorems' bounds and notices; no prediction of the excess."""
    meaning = "the method says where the loss is flat, not how far the result is from a minimum"
    found = gradient_changes.few_directions(solver, instance)
    if not instance.is_private:
        return Forecast(meaning=meaning, notices=(NOISE_IS_OFF, *found))
    found = (*large_delta(instance), *found)
    noise = noise_of_steps(solver, instance.public, instance.parameters)
    squares = instance.parameters * float(np.mean(noise**2)) if len(noise) else 0.0
    if squares > o2nc.FAINT * solver.clip**2 * solver.window:
        found += (
            "the noise of a window of steps is more than ten times the clip: one pass over so few units says next to "
            "nothing. A method that passes over the data many times (o2nc) has far less noise.",
        )
    if solver.variance_reduction and solver.period == 1:
        found += (
            "at this smoothing the gradient can change by as much as its own length in one step, so every step takes a "
            "gradient and none a difference: a larger `smoothing` or a smaller radius would change that.",
        )
    return with_method_bounds(
        Forecast(meaning=meaning, notices=found),
        instance,
        clip=solver.clip,
        radius=solver.radius,
        distance=solver.distance,
        values=solver.estimate == "values",
    )
