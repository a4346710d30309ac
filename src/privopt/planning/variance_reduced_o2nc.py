"""Defaults, budget and forecast of multi-pass O2NC with variance reduction.

Of T steps on all units P = ceil(T / S) release a gradient and Q = T - P the change of it since the last step. The
gradients have the share q of the budget, mu^2, in equal parts, the changes the rest:

    z_1 = z sqrt(P / q),   z_2 = z sqrt(Q / (1 - q))      with z = 1 / mu the noise multiplier of the whole

The released changes are added up within a period, so that their noise is, too.

Source:
    Kornowski, Liu, Talwar 2024, Algorithm 4, with a budget share in place of constants; utility only.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.planning import gradient_changes, o2nc
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.online_to_nonconvex import longest_move, step_length, whole_blocks
from privopt.planning.stationarity_forecast import with_method_bounds
from privopt.public import Public

SMOOTHING = 1.0 / 16.0  # of the distance


def counts(solver: Any) -> tuple[int, int]:
    """(P, Q): how many gradients and how many changes are released."""
    total = whole_blocks(solver.steps, solver.window)[0]
    gradients = math.ceil(total / solver.period)
    return gradients, total - gradients


def multipliers(solver: Any) -> tuple[float, float]:
    """(z_1, z_2): the noise multipliers of gradients and changes."""
    gradients, changes = counts(solver)
    share = solver.share if changes else 1.0
    first = solver.noise_multiplier * math.sqrt(gradients / share)
    return first, solver.noise_multiplier * math.sqrt(changes / (1.0 - share)) if changes else 0.0


def noise_of_steps(solver: Any, public: Public, parameters: int) -> NDArray[np.float64]:
    """The standard deviation of the noise in each coordinate of each step's gradient, for steps of full length."""
    total, window = whole_blocks(solver.steps, solver.window)
    if solver.noise_multiplier == 0.0:
        return np.zeros(total)
    first, later = multipliers(solver)
    unit = public.relation.factor / public.n
    variance, found = 0.0, np.zeros(total)
    for t, reach in enumerate(o2nc.radii(solver)):
        if t % solver.period == 0:
            variance = (first * unit * solver.clip) ** 2
        else:
            length = gradient_changes.length_of_change(
                solver.estimate,
                longest_move([step_length(reach, window)], solver.places),
                clip=solver.clip,
                slope_clip=solver.slope_clip,
                smoothing=solver.smoothing,
                parameters=parameters,
            )
            variance += (later * unit * length) ** 2
        found[t] = math.sqrt(variance)
    return found


def step_sizes(
    solver: Any, public: Public, parameters: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(D_t, eta_t), one entry a step."""
    window = whole_blocks(solver.steps, solver.window)[1]
    longest = np.asarray([step_length(a, window) for a in o2nc.radii(solver)])
    if solver.step_size is not None:
        return longest, np.full(len(longest), float(solver.step_size))
    noise = noise_of_steps(solver, public, parameters)
    length = np.sqrt(solver.typical**2 + parameters * noise**2)
    factor = o2nc.PROVED_STEP_FACTOR if solver.mode == "guarantee" else o2nc.STEP_FACTOR
    return longest, factor * longest / (math.sqrt(window) * length)


DEFAULTS = {
    "steps": lambda solver, instance: o2nc.STEPS,
    "window": o2nc.window,
    "distance": o2nc.distance,
    "radius": lambda solver, instance: solver.distance * o2nc.GUARANTEE_RADIUS,
    "smoothing": lambda solver, instance: gradient_changes.smoothing(solver, instance, SMOOTHING),
    "clip": gradient_changes.clip,
    "typical": o2nc.typical,
    "returns": lambda solver, instance: "last" if solver.mode == "guarantee" else "tail",
    "estimate": gradient_changes.estimate,
    "slope_clip": gradient_changes.slope_clip,
}


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
            "the noise of a window of steps is more than ten times the clip: the steps say next to nothing. More "
            "units, a larger epsilon or fewer parameters would help.",
        )
    found += ("without variance reduction (o2nc) the noise of a window of steps is never larger.",)
    return with_method_bounds(
        Forecast(meaning=meaning, notices=found),
        instance,
        clip=solver.clip,
        radius=solver.radius,
        distance=solver.distance,
        values=solver.estimate == "values",
    )
