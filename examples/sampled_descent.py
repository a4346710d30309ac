"""Stochastic gradient descent on secretly sampled units: many cheap steps, priced as one loop.

Minimises F(w) + r(w) over a set, F the mean loss of the units.
Source: Abadi et al. 2016, Algorithm 1.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from privopt.curator.base import Curator
from privopt.curator.loops import ReleaseCall
from privopt.ledger.events import Event, Poisson, Repeated
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


class LoopState(NamedTuple):
    """What the loop carries: the descent, and settings of which one compiled loop serves any value."""

    descent: DescentState
    problem: Problem
    step_size: Float[Array, ""]
    clip: Float[Array, ""]


@dataclass(frozen=True, kw_only=True)
class SampledDescent(Solver):
    """Private gradient descent on Poisson batches.

    Attributes:
        steps: T, the number of releases.
        rate: q, the probability with which each unit is in a batch, independently.
        step_size: eta; 1 is right for a curvature of at most 1.
        clip: C, the largest norm of one unit's gradient.
    Guarantee:
        T Gaussian releases on secret Poisson samples, priced by numerical accounting: for any data, loss and
        parameters, under the curator's relation.
    Differs from the paper:
        calibrated noise.
    Source:
        Abadi et al. 2016, Algorithm 1.
    """

    name: ClassVar[str] = "sampled-descent"

    steps: int = number(300, at_least=0)
    rate: float = derived(above=0, at_most=1)
    step_size: float = number(1.0, above=0)
    clip: float = derived(above=0)

    def default_rate(self, instance: Instance) -> float:
        """Some 256 units a batch; without noise everybody, since a batch would only add variance."""
        return min(1.0, 256.0 / instance.public.n) if instance.is_private else 1.0

    def default_clip(self, instance: Instance) -> float:
        return default_clip(instance)

    # --8<-- [start:program]
    def event(self, public: Public) -> Event:
        """T Gaussian releases, each on a sample."""
        del public
        return Repeated(Poisson(self.rate).event(Gaussian(self.noise_multiplier).event()), self.steps)

    def releases(self) -> int:
        """One a step."""
        return self.steps

    def passes(self) -> float:
        """A fraction q of the units a step."""
        return self.steps * self.rate

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 1: all T steps are priced, then run as one compiled loop."""
        step = SampledStep(Gaussian(self.noise_multiplier), Poisson(self.rate))
        state = LoopState(
            descent=DescentState(start, jnp.asarray(True)),
            problem=problem,
            step_size=jnp.asarray(self.step_size, jnp.float64),
            clip=jnp.asarray(self.clip, jnp.float64),
        )
        descent = curator.iterate(step, state, self.steps).descent
        return Outcome(descent.params, ending(descent.finite))

    # --8<-- [end:program]


# --8<-- [start:step]
@dataclass(frozen=True)
class SampledStep:
    """One step; equal by value, so that equal configurations share one compiled loop."""

    noise: Gaussian
    sampling: Poisson

    def __call__(self, state: LoopState, release: ReleaseCall) -> LoopState:
        """Release the mean over a fresh sample, then move along it."""
        query = ClippedGradient(loss=state.problem.loss, at=state.descent.params, clip=state.clip)
        gradient = release(query, self.noise, self.sampling)  # the only line that touches data
        moved = _move(state.descent, gradient, step_size=state.step_size, problem=state.problem)
        return state._replace(descent=moved)


@jax.jit
@guarded
def _move(state: DescentState, gradient: Array, *, step_size: Array, problem: Problem) -> DescentState:
    """Take w <- prox(w - eta (g + grad r(w))) within the set."""
    return state._replace(params=problem.proximal_step(state.params, gradient, step_size))


# --8<-- [end:step]
