"""The step of sampled and variance-reduced descent: heavy ball, proximal, and the mean of the last iterates."""

from collections.abc import Callable
from typing import NamedTuple, Self

from privopt.later import Array, Bool, Float, jnp
from privopt.problems.problem import Problem
from privopt.solvers.fields import guarded


class HeavyBallState(NamedTuple):
    """Where a descent with heavy ball stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]  # x
    velocity: Float[Array, " *shape"]  # u
    average: Float[Array, " *shape"]  # mean of the iterates from the first that counts
    time: Float[Array, ""]  # t
    finite: Bool[Array, ""]  # whether every entry so far was; from the first that was not, nothing moves

    @classmethod
    def at(cls, params: Float[Array, " *shape"]) -> Self:
        """At rest."""
        return cls(params, jnp.zeros_like(params), params, jnp.zeros(()), jnp.asarray(True))


@guarded
def heavy_ball_step(
    state: HeavyBallState,
    velocity: Array,
    *,
    problem: Problem,
    step_size: Array,
    momentum: float,
    tail_start: Array | int,
    keep: Callable[[Array], Array] = lambda params: params,
) -> HeavyBallState:
    """x = keep(prox(x - eta u)), and the running mean of the iterates from `tail_start` on.

    Args:
        state: where the descent stands.
        velocity: u, the new one; the gradient of the penalty is part of it.
        problem: its proximal map is taken.
        step_size: eta.
        momentum: b, with which the velocity was made.
        tail_start: the first t whose iterate counts in the mean.
        keep: a last map of the iterate, onto a set that the solver adds.
    """
    # With heavy ball the fixed point is the prox's for the step eta / (1 - b), not eta.
    params = keep(problem.prox(state.params - step_size * velocity, step_size / (1.0 - momentum)))
    age = jnp.maximum(state.time - tail_start, 0.0) + 1.0
    return HeavyBallState(
        params=params,
        velocity=velocity,
        average=state.average + (params - state.average) / age,
        time=state.time + 1.0,
        finite=state.finite,
    )
