"""Defaults, schedule and forecast of online-to-non-convex descent (O2NC).

    T = 300 steps (100 where a black box is called record by record), windows of M = 20 (T / 5 where T / 20 < 5)
    a_t   = (R / 4) (1 - t / T) + R / 200,  D_t = 2 a_t / (M + 1)          mode "practical": R a guess of the distance
    a_t   = the given radius                                               mode "guarantee"
    eta_t = 4 D_t / (sqrt(M) sqrt(G^2 + p sigma^2)),  G = 0.3 C            "guarantee": 2 D / (sqrt(M) sqrt(C^2 + ...))
    R     = sqrt(p) / row bound; 4 times that, and twice the step size, 4 times at little noise, for a user-written loss

with p parameters and sigma the noise of a released gradient. The points of a window lie within D (M + 1) / 2 of their
mean, hence D. The practical numbers were chosen by the loss on generated problems; those of user-written losses on the
first three of benchmarks/own_losses_data.py. Utility only.

Source:
    Kornowski, Liu, Talwar 2024, Algorithm 2 and Proposition 2.6, with steps twice as large for the same radius and
    eta = 2 D / (G sqrt(M)), since a window after the first starts anywhere in the ball of radius D.
"""

import math
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from privopt.planning import descent_theory
from privopt.planning.averaging import MOST_DIRECTIONS
from privopt.planning.goldstein_bounds import Oracle as BoundedOracle
from privopt.planning.goldstein_bounds import task_of, with_method_bounds, with_own_bound
from privopt.planning.goldstein_certificate import CERTIFICATE_SHARE
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.task import Forecast, Instance
from privopt.problems.black_box import BlackBox
from privopt.problems.losses import GLMLoss, Loss, RecordLoss
from privopt.problems.problem import Problem
from privopt.public import Public

if TYPE_CHECKING:
    from privopt.papers.single_pass_o2nc import SinglePassO2NC
    from privopt.papers.variance_reduced_o2nc import VarianceReducedO2NC
    from privopt.solvers.o2nc import O2NC
from numpy.typing import ArrayLike

STEPS, WINDOW = 300, 20
FEWEST_WINDOWS = 5
TAIL = 0.1  # of the steps, whose points are averaged
TYPICAL = 0.3  # of the clip: the mean gradient's length that the step size allows for
STEP_FACTOR, OWN_STEP_FACTOR, PROVED_STEP_FACTOR = 4.0, 8.0, 2.0
OWN_DISTANCE = 4.0  # of a user-written loss
LITTLE_NOISE = 0.004  # x below which steps of a user-written loss grow, to twice their size
SHORTENED, LEAST_SHORTENED, MOST_SHORTENED = 40.0, 0.01, 0.2  # of the units of a user-written loss, in x
GUARANTEE_RADIUS = 1.0 / 8.0  # of the distance
FAINT = 100.0  # p sigma^2 over C^2 M from which on steps say next to nothing

STEPS_BY_CALLS = 100  # of a black box that is called record by record, where steps are dear
SMOOTHING, SMOOTHING_OF_PLATEAUS = 1.0 / 64.0, 1.0 / 16.0  # of the distance
VALUE_SMOOTHING = 0.1  # of a parameter's scale

Returns = Literal["tail", "last", "random", "best"]
Oracle = Literal["gradients", "exact", "jitter", "values"]


def rounds(solver: "O2NC | SinglePassO2NC | VarianceReducedO2NC") -> int:
    """T: the number of steps, a multiple of the window."""
    return whole_blocks(solver.steps, solver.window)[0]


def radii(solver: "O2NC | SinglePassO2NC | VarianceReducedO2NC") -> NDArray[np.float64]:
    """a_t: how far the points of a window may be from their mean."""
    total = rounds(solver)
    if solver.mode == "guarantee":
        return np.full(total, float(solver.radius))
    left = 1.0 - np.arange(1, total + 1) / max(total, 1)
    return (solver.distance / 4.0) * left + solver.distance / 200.0


def schedule(
    solver: "O2NC", *, parameters: int, stddev: float
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
    return longest, solver.step_factor * longest / (math.sqrt(window) * length)


def kept(solver: "O2NC | SinglePassO2NC | VarianceReducedO2NC", chosen: int) -> tuple[int, int]:
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


def oracle(solver: "O2NC", instance: Instance) -> Oracle:
    """Values of a black box, the closed average of a generalised-linear loss with kinks, else gradients."""
    loss = instance.problem.loss
    if isinstance(loss, BlackBox):
        return "values"
    if solver.smoothing == 0 or solver.mode == "guarantee":
        return "gradients"
    if isinstance(loss, GLMLoss) and loss.outputs == 1 and math.isinf(loss.curvature):
        return "exact"
    return "jitter" if solver.smoothing else "gradients"


def oracle_obstacle(solver: "O2NC", problem: Problem) -> str | None:
    """Why the loss cannot be asked in this way, or None if it can."""
    loss = problem.loss
    if isinstance(loss, BlackBox):
        if solver.oracle not in (None, "values"):
            return "the loss is a black box, known by its values only: use oracle='values'"
        if solver.rate is not None:
            return "values are not asked of samples: leave out `rate`"
        if solver.certificate_share:
            return "the loss is a black box, without the gradients that a certificate needs: use certificate_share=0"
    if solver.oracle == "exact" and not (isinstance(loss, GLMLoss) and loss.outputs == 1):
        return f"the {loss.name} loss has no closed average over a ball: use oracle='jitter'"
    return None


def smoothing(solver: "O2NC", instance: Instance) -> float:
    """alpha_s: a tenth of a parameter's scale for values, R / 64 for kinks, R / 16 for plateaus."""
    if solver.oracle == "gradients":
        return 0.0
    if solver.oracle == "values":
        return VALUE_SMOOTHING * (1.0 if isinstance(instance.problem.loss, BlackBox) else solver.distance)
    plateaus = _has_plateaus(instance.problem.loss)
    return solver.distance * (SMOOTHING_OF_PLATEAUS if plateaus else SMOOTHING)


def _has_plateaus(loss: Loss) -> bool:
    return loss.convex is False


def directions(solver: "O2NC", instance: Instance) -> int:
    """k of values."""
    del solver
    return min(instance.parameters, MOST_DIRECTIONS)


def clip(solver: "O2NC", instance: Instance) -> float:
    """C; of values as long as an estimate along one direction can be."""
    loss = instance.problem.loss
    if isinstance(loss, BlackBox) and instance.is_private:
        return (loss.high - loss.low) / (2.0 * solver.smoothing)
    return descent_theory.default_clip(instance)


def steps(solver: "O2NC", instance: Instance) -> int:
    """T."""
    loss = instance.problem.loss
    return STEPS_BY_CALLS if isinstance(loss, BlackBox) and loss.host else STEPS


def window(solver: "O2NC | SinglePassO2NC | VarianceReducedO2NC", instance: Instance) -> int:
    """M."""
    del instance
    return WINDOW if solver.steps >= FEWEST_WINDOWS * WINDOW else max(1, solver.steps // FEWEST_WINDOWS)


def distance(solver: "O2NC | SinglePassO2NC | VarianceReducedO2NC", instance: Instance) -> float:
    """R: sqrt(p) in units of one over the row bound, or of a black box's scale; four times that for a user's own."""
    del solver
    root, loss = math.sqrt(instance.parameters), instance.problem.loss
    if isinstance(loss, BlackBox):
        return root
    return root * (OWN_DISTANCE if isinstance(loss, RecordLoss) else 1.0) / instance.public.row_bound


def step_factor(solver: "O2NC", instance: Instance) -> float:
    """What the step size is in units of D / (sqrt(M) |g|); at little noise more of it for a user-written loss."""
    if solver.mode == "guarantee":
        return PROVED_STEP_FACTOR
    if not isinstance(instance.problem.loss, RecordLoss):
        return STEP_FACTOR
    noise = descent_theory.relative_noise(instance)
    return OWN_STEP_FACTOR * (2.0 if noise == 0 else min(max(LITTLE_NOISE / noise, 1.0), 2.0))


def own_quantile(instance: Instance) -> float:
    """The share of the units of a user-written loss whose gradients the clip is to leave as they are.

    A clip that shortens a fifth of them keeps its bias however large the budget is, so it shortens fewer where there is
    less noise.
    """
    return 1.0 - min(
        max(SHORTENED * descent_theory.relative_noise(instance), LEAST_SHORTENED), MOST_SHORTENED
    )


def typical(solver: "O2NC | SinglePassO2NC | VarianceReducedO2NC", instance: Instance) -> float:
    """G: 0.3 of the clip, or of a guessed one with the noise off; the whole clip where the bound is to hold."""
    clip = solver.clip
    if math.isinf(clip):
        clip = descent_theory.guess(instance).slope * instance.public.row_bound
    return clip if solver.mode == "guarantee" else TYPICAL * clip


def certificate_share(solver: "O2NC", instance: Instance) -> float:
    """A tenth of the budget where a guarantee is asked for and there are gradients."""
    by_gradients = not isinstance(instance.problem.loss, BlackBox)
    return CERTIFICATE_SHARE if solver.mode == "guarantee" and by_gradients else 0.0


def stddev(solver: "O2NC", instance: Instance) -> float:
    """sigma of a configured solver: the noise of a coordinate of one released gradient."""
    if not instance.is_private:
        return 0.0
    return deviation(solver, instance.public)


def deviation(solver: "O2NC", public: Public) -> float:
    """The same, from public sizes."""
    if solver.noise_multiplier == 0.0:
        return 0.0
    units = public.n * (solver.rate or 1.0) / solver.blocks
    return solver.noise_multiplier * public.relation.factor * solver.clip / units


def forecast(solver: "O2NC", instance: Instance) -> Forecast:
    """The bounds on how flat the result is, and notices; no prediction of the excess."""
    meaning = "the method says how flat its result is, not how far it is from a minimum"
    notices: tuple[str, ...] = ()
    if solver.oracle == "values" and solver.directions < instance.parameters:
        notices += (
            f"values are taken along {solver.directions} random directions a step of {instance.parameters} "
            "parameters: steps are noisier than with all of them. `directions` says how many.",
        )
    if not instance.is_private:
        return Forecast(meaning=meaning, notices=(NOISE_IS_OFF, *notices))
    notices = (*large_delta(instance), *notices)
    noise = stddev(solver, instance)
    parameters = solver.directions if solver.oracle == "values" else instance.parameters
    if parameters * noise**2 > FAINT * solver.clip**2 * solver.window:
        notices += (
            "the noise of a window of steps is more than ten times the clip: the steps say next to nothing. More "
            "units, a larger epsilon or fewer parameters would help.",
        )
    return bounded(solver, instance, Forecast(meaning=meaning, notices=notices))


def bounded(solver: "O2NC", instance: Instance, found: Forecast) -> Forecast:
    """The forecast with what theorems say: of each method, and of this run where it meets their conditions."""
    lengths = {"clip": solver.clip, "radius": solver.radius + solver.smoothing, "distance": solver.distance}
    by_values = solver.oracle == "values"
    found = with_method_bounds(found, instance, **lengths, values=by_values)
    proved = (
        solver.mode == "guarantee"
        and solver.returns == "random"
        and solver.places == "uniform"
        and solver.step_size is None
        and solver.typical == solver.clip
        and solver.rate is None
        and solver.blocks == 1
        and not (by_values and solver.directions < instance.parameters)
    )
    if not proved:
        return found
    total, window = whole_blocks(solver.steps, solver.window)
    oracle: BoundedOracle = "smoothed" if solver.oracle == "exact" else solver.oracle
    return with_own_bound(
        found,
        task_of(instance, **lengths),
        window=window,
        blocks=total // window,
        noise=stddev(solver, instance),
        smoothing=solver.smoothing,
        oracle=oracle,
    )


# ------------------------------------------------------------------------------------------------------------
# Public arithmetic of online-to-nonconvex conversion: whole blocks, lengths of steps, places of the
# gradients.
# Source: Kornowski, Liu, Talwar 2024, section 2.2 and Algorithm 2; Cutkosky, Mehta, Orabona 2023.


Places = Literal["middle", "uniform"]
Vector = NDArray[np.float64]


def whole_blocks(steps: int, window: int) -> tuple[int, int]:
    """(T, M): the window cut to the steps, and the steps cut to a multiple of the window."""
    window = max(1, min(window, steps))
    return window * (steps // window), window


def step_length(reach: float, window: int) -> float:
    """D = 2 reach / (M + 1): with no longer steps the points of a block of M lie within `reach` of their mean."""
    return 2.0 * reach / (window + 1)


def block_reach(radius: float, window: int, places: Places = "uniform") -> float:
    """How far the points of a block of M lie from their mean, at most, with steps no longer than D.

    Points k steps apart are at most k D apart in the middle of steps, (k + 1) D anywhere on them; averaged over the
    block that is D (M - 1) / 2 or less than D (M + 1) / 2.
    """
    return radius * (window - 1 if places == "middle" else window + 1) / 2.0


def places_of(places: Places, steps: int, seed: int | None = None) -> Vector:
    """s_t, where on its step each gradient is taken: in the middle, or uniformly on it by a public seed.

    Raises:
        ValueError: uniform places without a seed.
    """
    if places == "middle":
        return np.full(steps, 0.5)
    if seed is None:
        raise ValueError("uniform places on the steps are drawn by a public seed: give one.")
    return np.random.default_rng(seed).uniform(size=steps)


def longest_move(radii: ArrayLike, places: Places = "uniform") -> float:
    """The furthest that two points in a row can be apart, whatever the places: D (middle) or 2 D, for D the longest."""
    longest = float(np.max(np.asarray(radii, np.float64), initial=0.0))
    return longest if places == "middle" else 2.0 * longest
