"""Defaults, schedule and forecast of online-to-non-convex descent (O2NC).

    T = 300 steps, windows of M = 20 (T / 5 where T / 20 < 5)
    a_t   = (R / 4) (1 - t / T) + R / 200,  D_t = 2 a_t / (M + 1)          mode "practical": R a guess of the distance
    a_t   = the given radius                                               mode "guarantee"
    eta_t = 4 D_t / (sqrt(M) sqrt(G^2 + p sigma^2)),  G = 0.3 C            "guarantee": 2 D / (sqrt(M) sqrt(C^2 + ...))

with p parameters and sigma the noise of a released gradient. The points of a window lie within D (M + 1) / 2 of their
mean, hence D. The practical numbers were chosen on generated problems, by their loss; utility only.

Source:
    Kornowski, Liu, Talwar 2024, Algorithm 2 and Proposition 2.6, with steps twice as large for the same radius and
    eta = 2 D / (G sqrt(M)), since a window after the first starts anywhere in the ball of radius D.
"""

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from privopt.planning import descent_defaults
from privopt.planning.forecast import Forecast
from privopt.planning.goldstein_certificate import CERTIFICATE_SHARE
from privopt.planning.instance import Instance
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.online_to_nonconvex import step_length, whole_blocks
from privopt.planning.stationarity_forecast import task_of, with_method_bounds, with_own_bound
from privopt.public import Public

STEPS, WINDOW = 300, 20
FEWEST_WINDOWS = 5
TAIL = 0.1  # of the steps, whose points are averaged
TYPICAL = 0.3  # of the clip: the mean gradient's length that the step size allows for
STEP_FACTOR, PROVED_STEP_FACTOR = 4.0, 2.0
GUARANTEE_RADIUS = 1.0 / 8.0  # of the distance
FAINT = 100.0  # p sigma^2 over C^2 M from which on steps say next to nothing

Returns = Literal["tail", "last", "random", "best"]


def rounds(solver: Any) -> int:
    """T: the number of steps, a multiple of the window."""
    return whole_blocks(solver.steps, solver.window)[0]


def radii(solver: Any) -> NDArray[np.float64]:
    """a_t: how far the points of a window may be from their mean."""
    total = rounds(solver)
    if solver.mode == "guarantee":
        return np.full(total, float(solver.radius))
    left = 1.0 - np.arange(1, total + 1) / max(total, 1)
    return (solver.distance / 4.0) * left + solver.distance / 200.0


def schedule(
    solver: Any, *, parameters: int, stddev: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(D_t, eta_t) of a configured solver, one entry a step.

    Args:
        solver: the solver.
        parameters: p.
        stddev: sigma, of one coordinate of a released gradient.
    """
    _, window = whole_blocks(solver.steps, solver.window)
    longest = np.asarray([step_length(a, window) for a in radii(solver)])
    if solver.step_size is not None:
        return longest, np.full(len(longest), float(solver.step_size))
    length = math.hypot(solver.typical, math.sqrt(parameters) * stddev)
    factor = PROVED_STEP_FACTOR if solver.mode == "guarantee" else STEP_FACTOR
    return longest, factor * longest / (math.sqrt(window) * length)


def kept(solver: Any, chosen: int) -> tuple[int, int]:
    """(first, count) of the points that the result is made of; `chosen` is the number of a random window, from 0."""
    total, window = whole_blocks(solver.steps, solver.window)
    match solver.returns:
        case "tail":
            count = math.ceil(TAIL * total)
            return total - count, count
        case "last":
            return total - window, window
        case "random":
            return window * chosen, window
        case _:
            return 0, total  # which of the windows is known at the end


def steps(solver: Any, instance: Instance) -> int:
    """T."""
    del solver, instance
    return STEPS


def window(solver: Any, instance: Instance) -> int:
    """M."""
    del instance
    return WINDOW if solver.steps >= FEWEST_WINDOWS * WINDOW else max(1, solver.steps // FEWEST_WINDOWS)


def distance(solver: Any, instance: Instance) -> float:
    """R: sqrt(p), for a generalised-linear loss over the row bound."""
    del solver
    scale = 1.0 if instance.has_own_loss else instance.public.row_bound
    return math.sqrt(instance.parameters) / scale


def typical(solver: Any, instance: Instance) -> float:
    """G: 0.3 of the clip, or of a guessed one with the noise off; the whole clip where the bound is to hold."""
    clip = solver.clip
    if math.isinf(clip):
        clip = descent_defaults.guess(instance).slope * instance.public.row_bound
    return clip if solver.mode == "guarantee" else TYPICAL * clip


DEFAULTS = {
    "steps": steps,
    "window": window,
    "distance": distance,
    "radius": lambda solver, instance: solver.distance * GUARANTEE_RADIUS,
    "clip": lambda solver, instance: descent_defaults.default_clip(instance),
    "typical": typical,
    "returns": lambda solver, instance: "last" if solver.mode == "guarantee" else "tail",
    "certificate_share": lambda solver, instance: CERTIFICATE_SHARE if solver.mode == "guarantee" else 0.0,
}


def stddev(solver: Any, instance: Instance) -> float:
    """sigma of a configured solver: the noise of a coordinate of one released gradient."""
    if not instance.is_private:
        return 0.0
    return deviation(solver, instance.public)


def deviation(solver: Any, public: Public) -> float:
    """The same, from public sizes."""
    if solver.noise_multiplier == 0.0:
        return 0.0
    units = public.n * (solver.rate or 1.0) / solver.blocks
    return solver.noise_multiplier * public.relation.factor * solver.clip / units


def forecast(solver: Any, instance: Instance) -> Forecast:
    """No prediction of the excess, the bounds on how flat the result is, and notices."""
    if not instance.is_private:
        return Forecast(meaning="the method says how flat its result is", notices=(NOISE_IS_OFF,))
    found = large_delta(instance)
    noise = instance.parameters * stddev(solver, instance) ** 2
    if noise > FAINT * solver.clip**2 * solver.window:
        found += (
            "the noise of a window of steps is more than ten times the clip: the steps say next to nothing. More "
            "units, a larger epsilon or fewer parameters would help.",
        )
    if instance.has_own_loss:
        found += (
            "distance and clip of a user-written loss, where not given, are guesses from the number of parameters "
            "and the row bound.",
        )
    return bounded(
        solver,
        instance,
        Forecast(
            meaning="the method says how flat its result is, not how far it is from a minimum", notices=found
        ),
    )


def bounded(solver: Any, instance: Instance, found: Forecast) -> Forecast:
    """The forecast with what theorems say: of each method, and of this run where it meets their conditions."""
    lengths = {"clip": solver.clip, "radius": solver.radius, "distance": solver.distance}
    found = with_method_bounds(found, instance, **lengths)
    proved = (
        solver.mode == "guarantee"
        and solver.returns == "random"
        and solver.places == "uniform"
        and solver.step_size is None
        and solver.typical == solver.clip
        and solver.rate is None
        and solver.blocks == 1
    )
    if not proved:
        return found
    total, window = whole_blocks(solver.steps, solver.window)
    task = task_of(instance, **lengths)
    return with_own_bound(found, task, window=window, blocks=total // window, noise=stddev(solver, instance))
