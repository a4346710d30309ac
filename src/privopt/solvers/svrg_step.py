"""One inner step of variance-reduced descent, and what it carries; arithmetic on releases."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.curator.loops import ReleaseCall
from privopt.ledger.sampling import Sampling
from privopt.mechanisms.gaussian import Gaussian
from privopt.problems.problem import Problem
from privopt.queries.gradient import ClippedGradient
from privopt.queries.gradient_difference import ClippedGradientDifference
from privopt.solvers.heavy_ball import HeavyBallState, heavy_ball_step


class SVRGState(NamedTuple):
    """Where an epoch stands, and what one compiled loop serves for any value of; all of it is public."""

    descent: HeavyBallState  # x; its average is of this epoch's iterates, its time within the epoch
    anchor: Float[Array, " *shape"]  # x~, where the snapshot was taken
    snapshot: Float[Array, " *shape"]  # released gradient at x~
    tail_start: Float[Array, ""]
    step_size: Float[Array, ""]
    clip: Float[Array, ""]
    slope_clip: Float[Array, ""]  # c L
    radius: Float[Array, ""]
    problem: Problem


@dataclass(frozen=True, kw_only=True)
class SVRGStep:
    """One inner step, hashable by value so that equal configurations share one compiled loop.

    Attributes:
        snapshot_noise: of the snapshot that every step of the paper's variant releases anew; None where it is reused.
    """

    noise: Gaussian
    sampling: Sampling
    momentum: float
    snapshot_noise: Gaussian | None = None

    def __call__(self, state: SVRGState, release: ReleaseCall) -> SVRGState:
        """v = released difference + snapshot; heavy ball; proximal step."""
        snapshot, loss = state.snapshot, state.problem.loss
        if self.snapshot_noise is not None:
            at_anchor = ClippedGradient(loss=loss, at=state.anchor, clip=state.clip)
            snapshot = release(at_anchor, self.snapshot_noise)
        moved = ClippedGradientDifference(
            loss=loss,
            at=state.descent.params,
            anchor=state.anchor,
            slope_clip=state.slope_clip,
            gradient_clip=state.clip,
        )
        change = release(moved, self.noise, self.sampling)
        return state._replace(descent=_step(state, change + snapshot, momentum=self.momentum))


@partial(jax.jit, static_argnames=("momentum",))
def _step(state: SVRGState, gradient: Array, *, momentum: float) -> HeavyBallState:
    """Algorithm 1, lines 7 and 8, with momentum: x = prox(x - eta u), u = b u + v + grad r(x), near the snapshot."""
    descent, problem = state.descent, state.problem
    velocity = momentum * descent.velocity + gradient + problem.regulariser.gradient(descent.params)
    return heavy_ball_step(
        descent,
        velocity,
        problem=problem,
        step_size=state.step_size,
        momentum=momentum,
        tail_start=state.tail_start,
        keep=lambda params: _within(params, state.anchor, state.radius),
    )


def _within(params: Array, anchor: Array, radius: Array) -> Array:
    """The point nearest to `params` within `radius` of the anchor; it stays in a convex set that holds both."""
    away = params - anchor
    distance = jnp.sqrt(jnp.sum(away * away))
    inside = ~(distance > radius)
    return jnp.where(inside, params, anchor + away * (radius / jnp.where(inside, 1.0, distance)))


def barzilai_borwein(state: SVRGState, previous: SVRGState, longest: float) -> Array:
    """|dx|^2 / <dx, dG + d grad r> between two snapshots, within [0.1, 1] `longest`: arithmetic on releases."""
    regulariser = state.problem.regulariser
    moved = state.anchor - previous.anchor
    slope = regulariser.gradient(state.anchor) - regulariser.gradient(previous.anchor)
    curved = jnp.sum(moved * (state.snapshot - previous.snapshot + slope))
    ratio = jnp.sum(moved * moved) / jnp.where(curved > 0, curved, 1.0)
    return jnp.where(curved > 0, jnp.clip(ratio, 0.1 * longest, longest), longest)
