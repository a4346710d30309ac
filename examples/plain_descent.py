"""Plain gradient descent, the smallest solver: one release over all units a step.

Minimises F(w) + r(w) over a set, F the mean loss of the units.
Source: Wang, Ye, Xu 2017, Algorithm 4.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from privopt.curator.base import Curator
from privopt.ledger.events import Event, Repeated
from privopt.mechanisms.additive import Gaussian
from privopt.planning.descent_theory import default_clip
from privopt.planning.task import Instance
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.slopes import ClippedGradient
from privopt.result import Outcome, ending
from privopt.solvers.base import Solver
from privopt.solvers.fields import derived, guarded, number


class DescentState(NamedTuple):
    """Where the descent stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]
    finite: Bool[Array, ""]  # whether every entry so far was; from the first that was not, nothing moves


@dataclass(frozen=True, kw_only=True)
class PlainDescent(Solver):
    """Full-batch private gradient descent, and nothing else.

    Attributes:
        steps: T, the number of releases.
        step_size: eta; default 1 / L, L the smoothness of the objective.
        clip: C, the largest norm of one unit's gradient.
    Guarantee:
        T Gaussian releases of sensitivity at most factor * C / n, composed exactly: for any data, loss and parameters,
        under the curator's relation.
    Differs from the paper:
        gradients are clipped in place of its Lipschitz assumption, and the noise is calibrated.
    Source:
        Wang, Ye, Xu 2017, Algorithm 4.
    """

    name: ClassVar[str] = "plain-descent"

    steps: int = number(20, at_least=0)
    step_size: float = derived(above=0)
    clip: float = derived(above=0)

    def default_step_size(self, instance: Instance) -> float:
        """1 / L."""
        return 1.0 / instance.problem.smoothness(instance.public)

    def default_clip(self, instance: Instance) -> float:
        return default_clip(instance)

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """The default step size needs a bound on the curvature."""
        if self.is_set("step_size") or math.isfinite(problem.smoothness(public)):
            return None
        return f"nothing bounds the curvature of the {problem.loss.name} loss: give `step_size`"

    def event(self, public: Public) -> Event:
        """T Gaussian releases."""
        del public
        return Repeated(Gaussian(self.noise_multiplier).event(), self.steps)

    def releases(self) -> int:
        """One a step."""
        return self.steps

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 4."""
        noise = Gaussian(self.noise_multiplier)
        state = DescentState(start, jnp.asarray(True))
        for _ in range(self.steps):
            query = ClippedGradient(loss=problem.loss, at=state.params, clip=self.clip)
            gradient = curator.release(query, noise)  # the only line that costs privacy
            state = _step(state, gradient, step_size=self.step_size, problem=problem)
        return Outcome(state.params, ending(state.finite))


@jax.jit
@guarded
def _step(state: DescentState, gradient: Array, *, step_size: float, problem: Problem) -> DescentState:
    """Take w <- prox(w - eta (g + grad r(w))) within the set."""
    return state._replace(params=problem.proximal_step(state.params, gradient, step_size))
