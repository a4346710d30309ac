"""How far a run of adaptive descent has come, what it has left to spend, and one step of it."""

import math
from dataclasses import dataclass
from functools import partial

import jax
import numpy as np
from jaxtyping import Array

from privopt.problems.constraints import Constraint
from privopt.problems.regularisers import Regulariser
from privopt.result import Status
from privopt.solvers.norm_tracking import Vector
from privopt.solvers.stationary_selection import FlattestPoints


@dataclass
class Course:
    """How far a run has come: functions of releases."""

    params: Array
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

    def advance(self, norm: float, moved: Array, weight: float = 0.0) -> None:
        """One step: `norm` belongs to the point that is left, `moved` is the next one, averaged in by its weight."""
        self.flat.add(norm, self.params)
        self.norm, self.steps = norm, self.steps + 1
        if self.last:
            self.status = Status.BUDGET_SPENT
        if np.all(np.isfinite(np.asarray(moved))):
            self.params = moved
            if weight > 0.0:
                self.weights += weight
                self.average = self.average + weight / self.weights * (np.asarray(moved) - self.average)
        else:
            self.status = Status.DIVERGED


@partial(jax.jit, static_argnames=("constraint",))
def step_from(
    params: Array, gradient: Array, step_size: float, regulariser: Regulariser, constraint: Constraint
) -> tuple[Array, Array]:
    """The slope g + grad r, and x = prox(x - eta slope) projected."""
    slope = gradient + regulariser.gradient(params)
    return slope, constraint.project(regulariser.prox(params - step_size * slope, step_size))


@partial(jax.jit, static_argnames=("constraint",))
def let_through(
    params: Array, slope: Array, step_size: float, regulariser: Regulariser, constraint: Constraint
) -> Array:
    """The gradient mapping (x - prox(x - eta slope)) / eta."""
    reached = constraint.project(regulariser.prox(params - step_size * slope, step_size))
    return (params - reached) / step_size
