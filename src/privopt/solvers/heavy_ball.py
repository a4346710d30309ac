"""The step of sampled and variance-reduced descent: heavy ball, proximal, and the mean of the last iterates."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from privopt.problems.regularisers import Regulariser
from privopt.solvers.averaging import halted_at_divergence


def heavy_ball_step(
    state: Any,
    velocity: Array,
    *,
    momentum: float,
    regulariser: Regulariser,
    project: Callable[[Array], Array],
    tail_start: Array | int,
) -> Any:
    """x = project(prox(x - eta u)), and the running mean of the iterates from `tail_start` on.

    Args:
        state: a NamedTuple with fields `params`, `velocity`, `average`, `time`, `step_size` and `finite`.
        velocity: u, the new one.
        momentum: b, with which the velocity was made.
        regulariser: its proximal map is taken; its gradient is part of the velocity.
        project: keeps the iterate in a set.
        tail_start: the first t whose iterate counts in the mean.
    Returns:
        The next state; from the first iterate on that is not finite, the old one, marked.
    """
    # With heavy ball the fixed point is the prox's for the step eta / (1 - b), not eta.
    proximal = regulariser.prox(state.params - state.step_size * velocity, state.step_size / (1.0 - momentum))
    params = project(proximal)
    age = jnp.maximum(state.time - tail_start, 0.0) + 1.0
    moved = state._replace(
        params=params,
        velocity=velocity,
        average=state.average + (params - state.average) / age,
        time=state.time + 1.0,
        finite=state.finite & jnp.all(jnp.isfinite(params)),
    )
    return halted_at_divergence(moved, state)
