"""How far a run of adaptive descent has come, what it has left to spend, and one step of it."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Bool, Float

from privopt.problems.problem import Problem
from privopt.result import Status
from privopt.solvers.guarded import guarded
from privopt.solvers.norm_tracking import Vector
from privopt.solvers.stationary_selection import FlattestPoints


class DescentState(NamedTuple):
    """Where the descent stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]  # w_t
    finite: Bool[Array, ""]  # whether every iterate so far was


@dataclass
class Course:
    """How far a run has come: functions of releases."""

    state: DescentState
    rho: float  # the whole budget
    left: float  # of it
    flat: FlattestPoints
    norm: float = math.inf
    steps: int = 0
    status: Status = Status.FINISHED
    last: bool = False
    weights: float = 0.0
    average: Vector | float = 0.0

    @property
    def params(self) -> Array:
        return self.state.params

    @property
    def goes_on(self) -> bool:
        return self.status is Status.FINISHED

    @property
    def used(self) -> float:
        return 0.0 if math.isinf(self.rho) else 1.0 - self.left / self.rho

    def dries_up(self, multiplier: float) -> bool:
        """Whether what is left buys only a release of more than twice the noise; then that is the end."""
        if self.left * 8.0 * multiplier**2 >= 1.0:  # 1 / sqrt(2 left) <= 2 multiplier
            return False
        self.status = Status.BUDGET_SPENT
        return True

    def charge(self, multiplier: float) -> float:
        """Take the price off what is left, or all of it; the noise multiplier that this buys."""
        cost = 0.5 / multiplier**2
        self.last = cost >= self.left
        if self.last:
            multiplier, cost = 1.0 / math.sqrt(2.0 * self.left), self.left
        self.left -= cost
        return multiplier

    def advance(self, norm: float, moved: DescentState, weight: float = 0.0) -> None:
        """One step: `norm` belongs to the point that is left, `moved` has the next one, averaged in if weighed."""
        self.flat.add(norm, self.params)
        self.norm, self.steps, self.state = norm, self.steps + 1, moved
        if not np.asarray(moved.finite):  # half the time of asking the array of JAX
            self.status = Status.DIVERGED
            return
        if self.last:
            self.status = Status.BUDGET_SPENT
        if weight > 0.0:
            self.weights += weight
            self.average = self.average + weight / self.weights * (np.asarray(self.params) - self.average)


@jax.jit
def step_from(
    state: DescentState, gradient: Array, *, step_size: float, problem: Problem
) -> tuple[Array, DescentState]:
    """The slope g + grad r, and the state after x = prox(x - eta slope)."""
    slope = gradient + problem.regulariser.gradient(state.params)
    return slope, _moved(state, gradient, step_size=step_size, problem=problem)


@guarded
def _moved(state: DescentState, gradient: Array, *, step_size: float, problem: Problem) -> DescentState:
    return state._replace(params=problem.proximal_step(state.params, gradient, step_size))


@jax.jit
def let_through(params: Array, slope: Array, *, step_size: float, problem: Problem) -> Array:
    """The gradient mapping (x - prox(x - eta slope)) / eta."""
    return (params - problem.prox(params - step_size * slope, step_size)) / step_size
