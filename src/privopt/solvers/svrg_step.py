"""One inner step of variance-reduced descent, and what it carries; arithmetic on releases."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from privopt.curator.loops import ReleaseCall
from privopt.ledger.sampling import Sampling
from privopt.mechanisms.additive import Gaussian
from privopt.problems.constraints import Constraint
from privopt.problems.losses import GLMLoss, RecordLoss
from privopt.problems.regularisers import Regulariser
from privopt.queries.gradient import ClippedGradient
from privopt.queries.gradient_difference import ClippedGradientDifference
from privopt.solvers.heavy_ball import heavy_ball_step


class SVRGState(NamedTuple):
    """Where the descent stands; every entry is public or a function of released values."""

    params: Float[Array, " *shape"]  # x
    anchor: Float[Array, " *shape"]  # x~, where the snapshot was taken
    snapshot: Float[Array, " *shape"]  # released gradient at x~
    velocity: Float[Array, " *shape"]
    average: Float[Array, " *shape"]  # mean of this epoch's iterates from `tail_start` on
    time: Float[Array, ""]  # t, within the epoch
    tail_start: Float[Array, ""]
    step_size: Float[Array, ""]
    clip: Float[Array, ""]
    slope_clip: Float[Array, ""]
    reach: Float[Array, ""]
    regulariser: Regulariser
    finite: Bool[
        Array, ""
    ]  # whether every iterate so far was finite; from the first that was not, nothing moves


@dataclass(frozen=True, kw_only=True)
class SVRGStep:
    """One inner step, hashable by value so that equal configurations share one compiled loop.

    Attributes:
        snapshot_noise: of the snapshot that every step of the paper's design releases anew; None where it is reused.
    """

    loss: GLMLoss | RecordLoss
    constraint: Constraint
    noise: Gaussian
    sampling: Sampling
    momentum: float
    snapshot_noise: Gaussian | None = None

    def __call__(self, state: SVRGState, release: ReleaseCall) -> SVRGState:
        """v = released difference + snapshot; heavy ball; proximal step."""
        snapshot = state.snapshot
        if self.snapshot_noise is not None:
            at_anchor = ClippedGradient(loss=self.loss, at=state.anchor, clip=state.clip)
            snapshot = release(at_anchor, self.snapshot_noise)
        moved = ClippedGradientDifference(
            loss=self.loss,
            at=state.params,
            anchor=state.anchor,
            slope_clip=state.slope_clip,
            gradient_clip=state.clip,
        )
        change = release(moved, self.noise, self.sampling)
        return _advanced(state, change + snapshot, momentum=self.momentum, constraint=self.constraint)


@partial(jax.jit, static_argnames=("momentum", "constraint"))
def _advanced(state: SVRGState, gradient: Array, *, momentum: float, constraint: Constraint) -> SVRGState:
    """Algorithm 1, lines 7 and 8, with momentum: x = prox(x - eta u), u = b u + v + grad r(x)."""
    velocity = momentum * state.velocity + gradient + state.regulariser.gradient(state.params)
    return heavy_ball_step(
        state,
        velocity,
        momentum=momentum,
        regulariser=state.regulariser,
        project=lambda proximal: _within(constraint.project(proximal), state.anchor, state.reach),
        tail_start=state.tail_start,
    )


def _within(params: Array, anchor: Array, reach: Array) -> Array:
    """The point nearest to `params` within `reach` of the anchor; it stays in a convex set that holds both."""
    away = params - anchor
    distance = jnp.sqrt(jnp.sum(away * away))
    inside = ~(distance > reach)
    return jnp.where(inside, params, anchor + away * (reach / jnp.where(inside, 1.0, distance)))


def barzilai_borwein(state: SVRGState, previous: SVRGState, longest: Array) -> Array:
    """|dx|^2 / <dx, dG + d grad r> between two snapshots, within [0.1, 1] `longest`: arithmetic on releases."""
    moved = state.anchor - previous.anchor
    slope = state.regulariser.gradient(state.anchor) - state.regulariser.gradient(previous.anchor)
    curved = jnp.sum(moved * (state.snapshot - previous.snapshot + slope))
    ratio = jnp.sum(moved * moved) / jnp.where(curved > 0, curved, 1.0)
    return jnp.where(curved > 0, jnp.clip(ratio, 0.1 * longest, longest), longest)
