"""Accelerated stochastic approximation (AC-SA): Nesterov's two sequences, for gradients with noise.

Minimises a function h, mu-strongly convex with a Lipschitz gradient, plus a simple penalty over a closed convex set,
from one unbiased gradient a step. With D the distance from the start to the minimum and V^2 the mean squared noise of a
gradient,

    E h(average) - min h <= 2 L D^2 / (T (T + 1)) + 8 V^2 / (mu (T + 1)).

Source:
    Ghadimi, Lan 2012, sections 2.2 and 3; their step sizes for strongly convex functions.
"""

import math
from typing import NamedTuple, Self

from privopt.later import Array, Bool, Float, jax, jnp
from privopt.problems.problem import Problem
from privopt.solvers.fields import guarded


class ACSAState(NamedTuple):
    """Where AC-SA stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]  # x, moves by long steps
    average: Float[Array, " *shape"]  # x_ag, what is returned
    time: Float[Array, ""]  # t, steps taken
    finite: Bool[Array, ""]  # whether every entry so far was; from the first that was not, nothing moves

    @classmethod
    def at(cls, params: Float[Array, " *shape"]) -> Self:
        """Before the first step."""
        return cls(params, params, jnp.zeros(()), jnp.asarray(True))

    def restarted(self) -> Self:
        """A new run that begins where this one ended."""
        return self._replace(params=self.average, time=jnp.zeros_like(self.time))


@jax.jit
def gradient_point(
    state: ACSAState, *, strong_convexity: Array, smoothness: Array
) -> Float[Array, " *shape"]:
    """x_md, where the next gradient is taken.

    Args:
        state: where AC-SA stands.
        strong_convexity: mu.
        smoothness: L.
    """
    alpha, gamma = _step_sizes(state.time + 1.0, smoothness)
    mu = strong_convexity
    to_average, to_params = (1.0 - alpha) * (mu + gamma), alpha * ((1.0 - alpha) * mu + gamma)
    return (to_average * state.average + to_params * state.params) / (gamma + (1.0 - alpha**2) * mu)


@jax.jit
@guarded
def ac_sa_step(
    state: ACSAState,
    middle: Array,
    gradient: Array,
    *,
    problem: Problem,
    strong_convexity: Array,
    smoothness: Array,
) -> ACSAState:
    """x and x_ag after a gradient at x_md.

    Args:
        state: where AC-SA stands.
        middle: x_md.
        gradient: G, of everything but the problem's non-smooth penalty.
        problem: its proximal map is taken.
        strong_convexity: mu.
        smoothness: L.
    """
    alpha, gamma = _step_sizes(state.time + 1.0, smoothness)
    mu = strong_convexity
    kept = (1.0 - alpha) * mu + gamma
    moved = (alpha * mu * middle + kept * state.params - alpha * gradient) / (mu + gamma)
    params = problem.prox(moved, alpha / (mu + gamma))
    return ACSAState(
        params=params,
        average=alpha * params + (1.0 - alpha) * state.average,
        time=state.time + 1.0,
        finite=state.finite,
    )


def _step_sizes(t: Array, smoothness: Array) -> tuple[Array, Array]:
    """alpha_t = 2 / (t + 1) and gamma_t = 4 L / (t (t + 1))."""
    return 2.0 / (t + 1.0), 4.0 * smoothness / (t * (t + 1.0))


def stage_lengths(
    *, smoothness: float, strong_convexity: float, variance: float, gap: float, stages: int
) -> tuple[int, ...]:
    """N_k = ceil(max(4 sqrt(L / mu), 32 V^2 / (mu gap_(k-1)))), which halves the bound on the gap every time.

    Args:
        smoothness: L.
        strong_convexity: mu.
        variance: V^2, the mean squared norm of a gradient's noise.
        gap: a bound on the gap at the start.
        stages: how many.
    """
    least = 4.0 * math.sqrt(smoothness / strong_convexity)
    return tuple(
        math.ceil(max(least, 32.0 * variance / (strong_convexity * gap * 0.5**k))) for k in range(stages)
    )


def gap_bound(
    *, smoothness: float, strong_convexity: float, distance: float, variance: float, steps: int
) -> float:
    """2 L D^2 / (T (T + 1)) + 8 V^2 / (mu (T + 1)), the expected gap of one run of AC-SA.

    Args:
        smoothness: L.
        strong_convexity: mu.
        distance: D, from the start to the minimum.
        variance: V^2.
        steps: T, at least 1.
    """
    optimisation = 2.0 * smoothness * distance**2 / (steps * (steps + 1))
    return optimisation + 8.0 * variance / (strong_convexity * (steps + 1))
