"""Gradient descent in one pass over disjoint blocks of units, its noise correlated over the steps.

Minimises F(w) + r(w) over a set, F the mean loss of the units. The curator keeps the noise of all steps as the hidden
state of one stream, and adds it such that it nearly cancels in the sums of the gradients, which is where it hurts.
Source: Kairouz, McMahan, Song, Thakkar, Thakurta, Xu 2021, Algorithm 1 (DP-FTRL), in one pass.
"""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from privopt.curator.base import Curator
from privopt.ledger.events import Event, NoEvent, Parallel, Sequence
from privopt.mechanisms.prefix_sum import PrefixSum
from privopt.mechanisms.strategies import square_root_toeplitz
from privopt.planning.descent_theory import default_clip
from privopt.planning.task import Instance
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.slopes import ClippedGradient
from privopt.result import Outcome, ending
from privopt.solvers.base import Solver
from privopt.solvers.fields import derived, guarded, number


class StreamedState(NamedTuple):
    """Where the descent stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]
    prefix: Float[Array, " *shape"]  # the released sum of the gradients so far
    finite: Bool[Array, ""]  # whether every entry so far was; from the first that was not, nothing moves


@dataclass(frozen=True, kw_only=True)
class StreamedDescent(Solver):
    """One pass of private gradient descent, with correlated noise.

    Attributes:
        steps: T, the number of blocks and of steps.
        step_size: eta; 1 is right for a curvature of at most 1.
        clip: C, the largest norm of one unit's gradient.
    Guarantee:
        One Gaussian release: every unit is in one block, and every block in one item of one stream (see `PrefixSum`),
        for any data, loss and parameters, under the curator's relation.
    Differs from the paper:
        a matrix factorisation in place of the tree; penalty and set enter by proximal steps.
    Source:
        Kairouz et al. 2021, Algorithm 1; Denisov et al. 2022 for the factorisation.
    """

    name: ClassVar[str] = "streamed-descent"

    steps: int = number(50, at_least=1)
    step_size: float = number(1.0, above=0)
    clip: float = derived(above=0)

    def default_clip(self, instance: Instance) -> float:
        return default_clip(instance)

    # --8<-- [start:program]
    def stream(self) -> PrefixSum:
        """The mechanism with hidden state: the noise of all T sums."""
        return PrefixSum(strategy=square_root_toeplitz(self.steps), noise_multiplier=self.noise_multiplier)

    def event(self, public: Public) -> Event:
        """The stream, charged when it opens; the blocks that feed it cost nothing of their own."""
        del public
        return Sequence((self.stream().event(), Parallel((NoEvent(),) * self.steps)))

    def releases(self) -> int:
        """A sum a step, and the opening of the stream."""
        return self.steps + 1

    def passes(self) -> float:
        """One over all blocks."""
        return 1.0

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 1: the released sum of the gradients so far moves the iterate."""
        stream = curator.stream("gradient sums", self.stream(), start.shape)  # charges for all of it
        state = StreamedState(start, jnp.zeros_like(start), jnp.asarray(True))
        for block in curator.blocks(self.steps):
            query = ClippedGradient(loss=problem.loss, at=state.params, clip=self.clip)
            prefix = stream.ask("add", query, on=block)  # feeds one item, and releases the sum up to it
            state = _step(state, jnp.asarray(prefix), step_size=self.step_size, problem=problem)
        return Outcome(state.params, ending(state.finite))

    # --8<-- [end:program]


@jax.jit
@guarded
def _step(state: StreamedState, prefix: Array, *, step_size: float, problem: Problem) -> StreamedState:
    """Move along what the new item added to the sum; without penalty and set, w = w_0 - eta * prefix."""
    params = problem.proximal_step(state.params, prefix - state.prefix, step_size)
    return state._replace(params=params, prefix=prefix)
