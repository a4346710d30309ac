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
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privopt.planning import descent_defaults
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.notices import NOISE_IS_OFF, large_delta

STEPS, WINDOW = 300, 20
FEWEST_WINDOWS = 5
TAIL = 0.1  # of the steps, whose points are averaged
TYPICAL = 0.3  # of the clip: the mean gradient's length that the step size allows for
STEP_FACTOR, PROVED_STEP_FACTOR = 4.0, 2.0
GUARANTEE_RADIUS = 1.0 / 8.0  # of the distance
FAINT = 100.0  # p sigma^2 over C^2 M from which on steps say next to nothing

Returns = Literal["tail", "last", "random", "best"]


class Schedule(NamedTuple):
    """What every step is told, one entry a step; all of it is fixed before data is read."""

    radius: NDArray[np.float64]  # D_t: the longest step
    step_size: NDArray[np.float64]  # eta_t
    place: NDArray[np.int64]  # where the step's point is kept among those that may be averaged; -1: it is not
    ends: NDArray[np.bool_]  # whether a set of kept points is whole after the step
    kept: int  # how many points a set has


def rounds(solver: Any) -> int:
    """T: the number of steps, a multiple of the window."""
    window = min(solver.window, solver.steps)
    return window * (solver.steps // window) if window else 0


def radii(solver: Any) -> NDArray[np.float64]:
    """a_t: how far the points of a window may be from their mean."""
    total = rounds(solver)
    if solver.mode == "guarantee":
        return np.full(total, float(solver.radius))
    left = 1.0 - np.arange(1, total + 1) / max(total, 1)
    return (solver.distance / 4.0) * left + solver.distance / 200.0


def schedule(solver: Any, *, parameters: int, stddev: float, chosen: int = 0) -> Schedule:
    """The schedule of a configured solver.

    Args:
        solver: the solver.
        parameters: p.
        stddev: sigma, of one coordinate of a released gradient.
        chosen: the window that "random" returns, from 0.
    """
    total = rounds(solver)
    window = min(solver.window, total) or 1
    radius = 2.0 * radii(solver) / (window + 1.0)
    if solver.step_size is None:
        length = math.hypot(solver.typical, math.sqrt(parameters) * stddev)
        factor = PROVED_STEP_FACTOR if solver.mode == "guarantee" else STEP_FACTOR
        step_size = factor * radius / (math.sqrt(window) * length)
    else:
        step_size = np.full(total, float(solver.step_size))
    place, ends = np.full(total, -1), np.zeros(total, bool)
    first, kept = 0, window
    match solver.returns:
        case "tail":
            kept = math.ceil(TAIL * total)
            first = total - kept
        case "last":
            first = total - window
        case "random":
            first = window * chosen
        case _:
            place, ends = np.arange(total) % window, np.arange(1, total + 1) % window == 0
    if solver.returns != "best" and total:
        place[first : first + kept] = np.arange(kept)
        ends[first + kept - 1] = True
    return Schedule(radius, step_size, place, ends, max(kept, 1))


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
}


def stddev(solver: Any, instance: Instance) -> float:
    """sigma of a configured solver: the noise of a coordinate of one released gradient."""
    if not instance.is_private:
        return 0.0
    public = instance.public
    return solver.noise_multiplier * public.relation.factor * solver.clip / public.n


def forecast(solver: Any, instance: Instance) -> Forecast:
    """No prediction of the excess, and notices."""
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
    return Forecast(
        meaning="the method says how flat its result is, not how far it is from a minimum", notices=found
    )
