"""The course of online-to-non-convex descent: points, steps of bounded length, and the means of windows.

    s_t in [0, 1];  z_t = x_{t-1} + s_t Delta_t;  x_t = x_{t-1} + Delta_t
    g_t = released gradient at z_t;  Delta_{t+1} = project(Delta_t - eta_t g_t) onto the ball of radius D_t

All of it is arithmetic on releases and on public numbers.

Source:
    Kornowski, Liu, Talwar 2024, Algorithm 2 (from Cutkosky, Mehta, Orabona 2023).
"""

from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int
from numpy.typing import NDArray

from privopt.planning.o2nc import Schedule
from privopt.problems.problem import Problem
from privopt.solvers.guarded import guarded

NEVER = 1e300  # longer than any mean of released gradients that counts


class Course(NamedTuple):
    """Where the descent stands; every entry is a function of releases and of public random numbers."""

    origin: Float[Array, " *shape"]  # x_{t-1}
    move: Float[Array, " *shape"]  # Delta_t
    at: Float[Array, " *shape"]  # z_t, where the next gradient is taken
    time: Int[Array, ""]  # steps taken
    points: Float[Array, " kept *shape"]  # the z of the set that is being filled
    slope: Float[Array, " *shape"]  # sum of the gradients released at them
    chosen: Float[Array, " kept *shape"]  # the z whose mean is the result
    chosen_slope: Float[Array, " *shape"]  # mean of the gradients at them
    least: Float[Array, ""]  # its norm
    finite: Bool[Array, ""]  # whether every entry so far was; from the first that was not, nothing moves

    @classmethod
    def at_rest(cls, start: Array, kept: int) -> Self:
        """Before the first step."""
        still = jnp.zeros_like(start)
        rows = jnp.zeros((kept, *start.shape))
        return cls(
            origin=start,
            move=still,
            at=start,
            time=jnp.asarray(0),
            points=rows,
            slope=still,
            chosen=rows,
            chosen_slope=still,
            least=jnp.asarray(NEVER),
            finite=jnp.asarray(True),
        )

    @property
    def mean(self) -> Array:
        """The mean of the chosen points; where no set of them is whole, the last point."""
        return jnp.where(self.least < NEVER, jnp.mean(self.chosen, axis=0), self.at)


class Rows(NamedTuple):
    """The schedule as arrays, and the public s of the step after each one."""

    radius: Float[Array, " T"]
    step_size: Float[Array, " T"]
    place: Int[Array, " T"]
    ends: Bool[Array, " T"]
    ahead: Float[Array, " T"]  # s_{t+1}

    @classmethod
    def of(cls, schedule: Schedule, fractions: NDArray[np.float64]) -> Self:
        """The rows of a schedule, and the fractions s_1, ..., s_T; s_1 never counts, since Delta_1 = 0."""
        return cls(
            jnp.asarray(schedule.radius),
            jnp.asarray(schedule.step_size),
            jnp.asarray(schedule.place),
            jnp.asarray(schedule.ends),
            jnp.asarray(np.append(fractions[1:], 0.5)[: len(fractions)]),
        )


@jax.jit
@guarded
def advance(course: Course, gradient: Array, rows: Rows, problem: Problem) -> Course:
    """One step of Algorithm 2 along a released gradient of the mean loss."""
    time = course.time
    slope = gradient + problem.regulariser.gradient(course.at)
    place = rows.place[time]
    kept = place >= 0
    points = jnp.where(kept, course.points.at[jnp.maximum(place, 0)].set(course.at), course.points)
    sums = jnp.where(place == 0, 0.0, course.slope) + jnp.where(kept, slope, 0.0)
    mean = sums / course.points.shape[0]
    length = jnp.sqrt(jnp.sum(mean * mean))
    better = rows.ends[time] & (length < course.least)
    origin = course.origin + course.move
    move = within(course.move - rows.step_size[time] * slope, rows.radius[time])
    return Course(
        origin=origin,
        move=move,
        at=origin + rows.ahead[time] * move,
        time=time + 1,
        points=points,
        slope=sums,
        chosen=jnp.where(better, points, course.chosen),
        chosen_slope=jnp.where(better, mean, course.chosen_slope),
        least=jnp.where(better, length, course.least),
        finite=course.finite,
    )


def within(move: Array, radius: Array) -> Array:
    """A step no longer than the radius."""
    length = jnp.sqrt(jnp.sum(move * move))
    return jnp.where(length > radius, move * (radius / jnp.where(length > 0, length, 1.0)), move)
