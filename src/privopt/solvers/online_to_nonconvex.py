"""Online-to-nonconvex conversion: steps of bounded length, chosen by projected online descent on released gradients.

    z_t = x_{t-1} + s_t Delta_t,   x_t = x_{t-1} + Delta_t,   Delta_1 = 0
    Delta_{t+1} = project(Delta_t - eta_t g_t, |.| <= D_t),   g_t a released gradient at z_t

The mean of the z's of a block of M steps is what is returned: the mean gradient over the block is small, so the mean of
the points is nearly stationary at the radius of the block. Whatever the g_t are, every point lies within the sum of
the D_t of the start. The solvers say what g_t is; here it is a public vector.

Source: Kornowski, Liu, Talwar 2024, Algorithm 2; Cutkosky, Mehta, Orabona 2023, Algorithm 1.
"""

import math
from typing import ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.curator.base import Curator
from privopt.later import Array, Bool, Float, Int, jax, jnp
from privopt.planning import descent_theory
from privopt.planning.task import Instance
from privopt.problems.black_box import BlackBox
from privopt.problems.losses import RecordLoss
from privopt.problems.problem import Problem
from privopt.problems.projections import project_l2_ball
from privopt.solvers.base import StepwiseSolver
from privopt.solvers.fields import guarded
from privopt.solvers.needs import Need, NoSet, SmoothPenalty

# ---- Windows: how many there are, how long their steps may be, and where on a step a gradient is taken ------
#     a_t   = (R / 4) (1 - t / T) + R / 200,  D_t = 2 a_t / (M + 1)          mode "practical": R a guess of the distance
#     a_t   = the given radius                                               mode "guarantee"
#     eta_t = f D_t / (sqrt(M) g)                                            g the norm of a gradient, noise included
#     R     = sqrt(p) / row bound; 4 times that for a user-written loss
#
# with p parameters. The points of a window lie within D (M + 1) / 2 of their mean, hence D.
# Source: Kornowski, Liu, Talwar 2024, section 2.2 and Algorithm 2; Cutkosky, Mehta, Orabona 2023. Utility only.
STEPS, WINDOW = 300, 20
FEWEST_WINDOWS = 5
TAIL = 0.1  # of the steps, whose points are averaged
TYPICAL = 0.3  # of the clip: the mean gradient's length that the step size allows for
STEP_FACTOR, PROVED_STEP_FACTOR = 4.0, 2.0
OWN_DISTANCE = 4.0  # of a user-written loss
GUARANTEE_RADIUS = 1.0 / 8.0  # of the distance
FAINT = 100.0  # p sigma^2 over C^2 M from which on steps say next to nothing

Mode = Literal["practical", "guarantee"]
Places = Literal["middle", "uniform"]
Returns = Literal["tail", "last", "random", "best"]
Vector = NDArray[np.float64]


def whole_blocks(steps: int, window: int) -> tuple[int, int]:
    """(T, M): the window cut to the steps, and the steps cut to a multiple of the window."""
    window = max(1, min(window, steps))
    return window * (steps // window), window


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


class Schedule(NamedTuple):
    """What is fixed beforehand of each of T steps; independent of the data."""

    radii: Float[Array, " T"]  # D_t, parameter units, positive
    step_sizes: Float[Array, " T"]  # eta_t, parameter^2 / objective units
    places: Float[Array, " T"]  # s_t in [0, 1]


class ConversionState(NamedTuple):
    """Where the conversion stands; every entry is a function of released and public values."""

    schedule: Schedule
    params: Float[Array, " *shape"]  # x_{t-1}
    step: Float[Array, " *shape"]  # Delta_t
    at: Float[Array, " *shape"]  # z_t, where the next gradient is taken
    before: Float[Array, " *shape"]  # z_{t-1}; the start at the first step
    taken: Int[Array, ""]  # t - 1
    first: Int[Array, ""]  # how many steps come before those whose points are kept
    points: Float[Array, "kept ..."]  # the z's that the result is made of
    means: Float[Array, "K ..."]  # of the z's of each block
    gradients: Float[Array, "K ..."]  # mean of the released gradients of each block
    finite: Bool[Array, ""]  # whether every entry so far was; from the first that was not, nothing moves


def schedule(radii: ArrayLike, step_sizes: ArrayLike, places: ArrayLike) -> Schedule:
    """A schedule from one entry a step; a single number serves all steps."""
    columns = np.broadcast_arrays(*(np.asarray(one, np.float64) for one in (radii, step_sizes, places)))
    return Schedule(*(jnp.asarray(np.atleast_1d(one), jnp.float64) for one in columns))


def opened(
    start: Float[Array, " *shape"],
    plan: Schedule,
    *,
    window: int,
    first: int | None = None,
    kept: int | None = None,
) -> ConversionState:
    """The state before the first step.

    Args:
        start: x_0.
        plan: one entry a step.
        window: M, steps of a block.
        first: how many steps come before the points that make the result; by default those of the last block do.
        kept: how many points make it; by default M.
    Raises:
        ValueError: the steps are not a multiple of the window, or there are no such points.
    """
    steps = len(plan.radii)
    if window < 1 or steps % window:
        raise ValueError(
            f"{steps} steps are no whole number of blocks of {window}: cut them by whole_blocks(steps, window)."
        )
    kept = min(window, steps) if kept is None else kept
    first = steps - kept if first is None else first
    if not 0 <= first <= first + kept <= steps:
        raise ValueError(f"points {first} to {first + kept} are not among those of {steps} steps.")
    shape = jnp.shape(start)
    blocks = jnp.zeros((steps // window, *shape), jnp.float64)
    return ConversionState(
        schedule=plan,
        params=start,
        step=jnp.zeros_like(start),
        at=start,
        before=start,
        taken=jnp.asarray(0),
        first=jnp.asarray(first),
        points=jnp.zeros((kept, *shape), jnp.float64),
        means=blocks,
        gradients=blocks,
        finite=jnp.asarray(True),
    )


@guarded
def moved(state: ConversionState, gradient: Float[Array, " *shape"]) -> ConversionState:
    """The state after the step on a released gradient at `state.at`; pure JAX, at most T times."""
    steps, blocks = len(state.schedule.radii), len(state.means)
    window, t = steps // blocks, state.taken
    aim = state.step - state.schedule.step_sizes[t] * gradient
    step = project_l2_ball(aim, state.schedule.radii[t])  # type: ignore[arg-type]  # a traced number
    params = state.params + state.step
    points = state.points
    if len(points):
        row = jnp.clip(t - state.first, 0, len(points) - 1)
        points = points.at[row].set(jnp.where(t - state.first == row, state.at, points[row]))
    return state._replace(
        params=params,
        step=step,
        at=params + state.schedule.places[jnp.minimum(t + 1, steps - 1)] * step,
        before=state.at,
        taken=t + 1,
        points=points,
        means=state.means.at[t // window].add(state.at / window),
        gradients=state.gradients.at[t // window].add(gradient / window),
    )


@jax.jit
def take_penalised_step(
    state: ConversionState, gradient: Float[Array, " *shape"], problem: Problem
) -> ConversionState:
    """The step on a released gradient of the mean loss, with that of the penalty added."""
    return moved(state, gradient + problem.regulariser.gradient(state.at))


def mean_of_points(state: ConversionState) -> Float[Array, " *shape"]:
    """The mean of the points that make the result; the start without any."""
    return jnp.mean(state.points, axis=0) if len(state.points) else state.params


def flattest_block(state: ConversionState) -> Int[Array, ""]:
    """The number of the block whose mean released gradient is shortest."""
    return jnp.argmin(_squares(state.gradients))


def result(state: ConversionState, *, flattest: bool) -> Float[Array, " *shape"]:
    """The mean of the points; of those of the flattest block, if it is asked for and all of them were kept.

    After a gradient that was not finite it is the last point.
    """
    if not bool(state.finite):
        return state.at
    if flattest and len(state.points):
        window = len(state.points) // len(state.means)
        first = window * int(flattest_block(state))
        state = state._replace(points=state.points[first : first + window])
    return mean_of_points(state)


def _squares(rows: Float[Array, "K ..."]) -> Float[Array, " K"]:
    return jnp.sum(rows * rows, axis=tuple(range(1, rows.ndim)))


class Windows(NamedTuple):
    """The windows of a run, from public numbers."""

    steps: int  # T, in whole windows
    window: int  # M
    reaches: Vector  # a_t, how far the points of the window of step t may be from their mean, (T,)

    @property
    def longest(self) -> Vector:
        """D_t, (T,)."""
        return 2.0 * self.reaches / (self.window + 1)

    def kept(self, returns: Returns, chosen: int) -> tuple[int, int]:
        """(first, count) of the points that make the result; `chosen` is the number of a random window, from 0."""
        match returns:
            case "tail":
                count = math.ceil(TAIL * self.steps)
                return self.steps - count, count
            case "last":
                return self.steps - self.window, self.window
            case "random":
                return self.window * chosen, self.window
            case _:
                return 0, self.steps  # which of the windows is known at the end


class PublicNumbers(NamedTuple):
    """What a run draws by public seeds."""

    places: Vector  # s_1, ..., s_T
    chosen: int  # the number of a random window, from 0; 0 unless one is returned
    seed: int | None  # of the places; None where they are in the middle


class WindowedSolver(StepwiseSolver):
    """A solver by online-to-nonconvex conversion. The fields are declared by the subclasses."""

    needs: ClassVar[tuple[Need, ...]] = (
        NoSet("its points move in balls around each other and cannot be kept in a set: leave the set out"),
        SmoothPenalty("it adds the penalty's gradient, and the penalty has none: use a ridge or no penalty"),
    )
    by_values: ClassVar[bool] = True

    window: int
    mode: Mode
    distance: float
    radius: float
    clip: float
    typical: float
    step_size: float | None
    places: Places
    returns: Returns

    def default_steps(self, instance: Instance) -> int:
        """T."""
        del instance
        return STEPS

    def default_window(self, instance: Instance) -> int:
        """M: 20, or a fifth of fewer than 100 steps."""
        del instance
        return WINDOW if self.steps >= FEWEST_WINDOWS * WINDOW else max(1, self.steps // FEWEST_WINDOWS)

    def default_distance(self, instance: Instance) -> float:
        """R: sqrt(p) in units of 1 / row bound, or of a black box's scale; four times that for a user's own loss."""
        root, loss = math.sqrt(instance.parameters), instance.problem.loss
        if isinstance(loss, BlackBox):
            return root
        return root * (OWN_DISTANCE if isinstance(loss, RecordLoss) else 1.0) / instance.public.row_bound

    def default_radius(self, instance: Instance) -> float:
        del instance
        return self.distance * GUARANTEE_RADIUS

    def default_returns(self, instance: Instance) -> Returns:
        del instance
        return "last" if self.mode == "guarantee" else "tail"

    def usual_gradient(self, instance: Instance) -> float:
        """G: 0.3 of the clip, or of a guessed one with the noise off; the whole clip where the bound is to hold."""
        clip = self.clip
        if math.isinf(clip):
            clip = descent_theory.guess(instance).slope * instance.public.row_bound
        return clip if self.mode == "guarantee" else TYPICAL * clip

    @property
    def windows(self) -> Windows:
        """T, M and the a_t of the filled solver."""
        steps, window = whole_blocks(self.steps, self.window)
        if self.mode == "guarantee":
            return Windows(steps, window, np.full(steps, float(self.radius)))
        left = 1.0 - np.arange(1, steps + 1) / max(steps, 1)
        return Windows(steps, window, (self.distance / 4.0) * left + self.distance / 200.0)

    def step_sizes(self, factor: float, norm: float | Vector) -> Vector:
        """eta_t, (T,): the given one, or `factor` D_t / sqrt(M) over the norm of a gradient, noise included."""
        windows = self.windows
        if self.step_size is not None:
            return np.full(windows.steps, float(self.step_size))
        return factor * windows.longest / (math.sqrt(windows.window) * norm)

    def public_numbers(self, curator: Curator) -> PublicNumbers:
        """The places on the steps, and the number of a random window where one is returned."""
        windows, chosen = self.windows, 0
        if self.returns == "random":
            generator = np.random.default_rng(curator.public_seed("random window"))
            chosen = int(generator.integers(windows.steps // windows.window))
        seed = None if self.places == "middle" else curator.public_seed("places on the steps")
        return PublicNumbers(places_of(self.places, windows.steps, seed), chosen, seed)

    def opened(self, start: Array, step_sizes: Vector, drawn: PublicNumbers) -> ConversionState:
        """The state before the first step, which keeps the points that make the result."""
        windows = self.windows
        first, kept = windows.kept(self.returns, drawn.chosen)
        plan = schedule(windows.longest, step_sizes, drawn.places)
        return opened(start, plan, window=windows.window, first=first, kept=kept)
