"""Online-to-nonconvex conversion: steps of bounded length, chosen by projected online descent on released gradients.

    z_t = x_{t-1} + s_t Delta_t,   x_t = x_{t-1} + Delta_t,   Delta_1 = 0
    Delta_{t+1} = project(Delta_t - eta_t g_t, |.| <= D_t),   g_t a released gradient at z_t

The mean of the z's of a block of M steps is what is returned: the mean gradient over the block is small, so the mean of
the points is nearly stationary at the radius of the block. Whatever the g_t are, every point lies within the sum of
the D_t of the start. The solvers say what g_t is; here it is a public vector.

Source: Kornowski, Liu, Talwar 2024, Algorithm 2; Cutkosky, Mehta, Orabona 2023, Algorithm 1.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import ArrayLike, NDArray

from privopt.curator.base import Curator
from privopt.planning.averaging import Estimate, directions
from privopt.planning.o2nc import Places, places_of
from privopt.problems.ball import haar_block
from privopt.problems.problem import Problem
from privopt.problems.projections import project_l2_ball
from privopt.queries.base import MeanQuery
from privopt.queries.slopes import ClippedGradient, ClippedGradientDifference
from privopt.queries.smoothed import (
    JitteredGradient,
    LuneDifference,
    SmoothedDifference,
    SmoothedGradient,
    TranslatedDifference,
)
from privopt.queries.values import PlacedValueDifference, PlacedValueGradient, ValueDifference, ValueGradient
from privopt.solvers.fields import guarded

if TYPE_CHECKING:
    from privopt.papers.single_pass_o2nc import SinglePassO2NC
    from privopt.papers.variance_reduced_o2nc import VarianceReducedO2NC


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


take_step = jax.jit(moved)  # for loops that run step by step


@jax.jit
def take_penalised_step(
    state: ConversionState, gradient: Float[Array, " *shape"], problem: Problem
) -> ConversionState:
    """The step on a released gradient of the mean loss, with that of the penalty added."""
    return moved(state, gradient + problem.regulariser.gradient(state.at))


def public_numbers(
    curator: Curator, *, steps: int, window: int, places: Places, of_window: bool
) -> tuple[NDArray[np.float64], int]:
    """(s_1, ..., s_T; the number of a random window, 0 unless `of_window`), drawn by public seeds."""
    chosen = 0
    if of_window:
        generator = np.random.default_rng(curator.public_seed("random window"))
        chosen = int(generator.integers(steps // window))
    if places == "middle":
        return places_of("middle", steps), chosen
    return places_of("uniform", steps, curator.public_seed("places on the steps")), chosen


def mean_of_points(state: ConversionState) -> Float[Array, " *shape"]:
    """The mean of the points that make the result; the start without any."""
    return jnp.mean(state.points, axis=0) if len(state.points) else state.params


def reach_of_points(state: ConversionState, centre: Float[Array, " *shape"]) -> Float[Array, ""]:
    """How far those points lie from a point, at most; 0 without any."""
    if not len(state.points):
        return jnp.zeros(())
    return jnp.sqrt(jnp.max(_squares(state.points - centre[None])))


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


# ---- The queries of variance-reduced methods: a gradient at a point, and its change between two points -----


@dataclass(frozen=True, kw_only=True)
class Estimates:
    """What to ask for; see `planning.averaging`.

    Attributes:
        kind: of the estimate.
        loss: of one record.
        smoothing: radius of the ball over which it is averaged.
        clip: C.
        slope_clip: H.
        draws: m, shifts of one unit.
        key: public randomness of the directions; None where there are none.
        placed: whether estimates from values are released in parameters, not along the directions.
    """

    kind: Estimate
    loss: Any
    smoothing: float
    clip: float
    slope_clip: float
    draws: int
    key: Array | None = None
    placed: bool = False

    @classmethod
    def of(
        cls, solver: "SinglePassO2NC | VarianceReducedO2NC", loss: Any, curator: Curator, *, placed: bool
    ) -> "Estimates":
        """Those of a configured solver; the curator draws what is random and public."""
        key = None
        if solver.estimate == "values":
            key = jax.random.key(curator.public_seed("directions"))
        return cls(
            kind=solver.estimate,
            loss=loss,
            smoothing=solver.smoothing,
            clip=solver.clip,
            slope_clip=solver.slope_clip,
            draws=solver.draws,
            key=key,
            placed=placed,
        )

    def gradient(self, at: Float[Array, " *shape"], turn: int) -> MeanQuery:
        """The query of step `turn` for the gradient."""
        match self.kind:
            case "plain":
                return ClippedGradient(loss=self.loss, at=at, clip=self.clip)
            case "exact":
                return SmoothedGradient(loss=self.loss, at=at, smoothing=self.smoothing, clip=self.clip)
            case "lune" | "translate":
                return JitteredGradient(loss=self.loss, at=at, smoothing=self.smoothing, clip=self.clip)
            case "values":
                return (PlacedValueGradient if self.placed else ValueGradient)(
                    loss=self.loss,
                    at=at,
                    directions=self._directions(at.size, turn),
                    smoothing=self.smoothing,
                    clip=self.clip,
                )

    def change(self, at: Float[Array, " *shape"], before: Float[Array, " *shape"], turn: int) -> MeanQuery:
        """The query of step `turn` for how the gradient changes from `before` to `at`."""
        places: dict[str, Any] = {"loss": self.loss, "at": at, "anchor": before}
        match self.kind:
            case "plain":
                return ClippedGradientDifference(
                    **places, slope_clip=self.slope_clip, gradient_clip=self.clip
                )
            case "exact":
                return SmoothedDifference(
                    **places, smoothing=self.smoothing, clip=self.clip, slope_clip=self.slope_clip
                )
            case "lune":
                return LuneDifference(**places, smoothing=self.smoothing, clip=self.clip)
            case "translate":
                return TranslatedDifference(
                    **places,
                    smoothing=self.smoothing,
                    clip=self.clip,
                    slope_clip=self.slope_clip,
                    draws=self.draws,
                )
            case "values":
                distance = float(jnp.sqrt(jnp.sum((at - before) ** 2)))
                slope = min(self.slope_clip, 2.0 * self.clip / distance) if distance > 0 else self.slope_clip
                return (PlacedValueDifference if self.placed else ValueDifference)(
                    **places,
                    directions=self._directions(at.size, turn),
                    smoothing=self.smoothing,
                    slope_clip=slope,
                )

    def read(self, query: MeanQuery, released: Array) -> Float[Array, " *shape"]:
        """The gradient, or its change, from what was released."""
        if isinstance(query, ValueGradient | ValueDifference) and not self.placed:
            return query.gradient(released)
        return released

    def _directions(self, parameters: int, turn: int) -> Float[Array, "k p"]:
        """The public orthonormal rows of step `turn`, the same at both points of a change."""
        assert self.key is not None
        return haar_block(jax.random.fold_in(self.key, turn), directions(parameters), parameters)
