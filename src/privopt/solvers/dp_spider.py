"""DP-Spider: noisy gradients now and then, noisy differences in between, for a point where the gradient is small.

Solves min_w F(w) + r(w) over a constraint set to a small gradient, F = (1/n) sum_i f(w, xi_i), convex or not.
Source: Arora, Bassily, Gonzalez, Guzman, Menart, Ullah 2023, Algorithm 1 and Theorem 1.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from privopt.curator.base import Curator
from privopt.ledger.events import Event, repeat, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning import dp_spider as planning
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.gradient import ClippedGradient
from privopt.queries.gradient_difference import ClippedGradientDifference
from privopt.result import Outcome, ending
from privopt.solvers.base import Defaults
from privopt.solvers.fields import choice, derived, number, optional
from privopt.solvers.guarded import guarded
from privopt.solvers.stepwise import StepwiseSolver


class SpiderState(NamedTuple):
    """Where the run stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]  # w_t
    previous: Float[Array, " *shape"]  # w_{t-1}
    estimate: Float[Array, " *shape"]  # of grad F(w_{t-1})
    flattest: Float[
        Array, " *shape"
    ]  # the iterate with the shortest estimate, the penalty's gradient included
    shortest: Float[Array, ""]  # that estimate's norm
    moved: Float[Array, ""]  # |w_t - w_{t-1}|
    finite: Bool[Array, ""]


@dataclass(frozen=True, kw_only=True)
class DPSpider(StepwiseSolver):
    """Recursive gradient estimates: a released gradient every `period` steps, released differences in between.

    Attributes:
        steps: T, at least 0; 0 returns the start and spends nothing.
        period: q, steps from one released gradient to the next.
        step_size: eta; default 1 / (2 L).
        clip: C, the largest norm of one unit's gradient.
        curvature: L1 of one record's loss; utility only.
        anchor_share: share of the budget (of mu^2) that the gradients get, the differences get the rest.
        difference_clip: c, the clip of a difference as a fraction of L1 |w' - w|, which the curvature allows.
        gap: a bound on the excess of the start; default the bound on the loss at 0. It sets `steps`.
        returns: which point: "flattest" (the iterate with the shortest estimate) or "last".
    Guarantee:
        Gaussian releases with fixed multipliers, one for gradients of sensitivity factor * C / n (or what the loss
        allows at the point), one for differences of sensitivity factor * min(2 C, c L1 |w' - w|) / n, whatever
        the distances: exactly (epsilon, delta)-DP by Gaussian-DP composition, under the curator's relation, for any
        data, loss and parameters.
        Utility, in expectation, if no gradient is clipped and c is 1: see `planning.dp_spider`.
    Differs from the paper:
        The constants of the schedule are worked out for exact Gaussian composition. The point with the shortest
        estimate is returned, not a random one. Steps are proximal where the penalty is not smooth.
    Source:
        Arora, Bassily, Gonzalez, Guzman, Menart, Ullah 2023, Algorithm 1 and Theorem 1. Fang, Li, Lin,
        Zhang 2018 (Spider).
    """

    name: ClassVar[str] = "dp-spider"
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    period: int = derived(at_least=1)
    step_size: float = derived(above=0)
    clip: float = derived(above=0)
    curvature: float = derived(above=0)
    anchor_share: float = number(0.5, above=0, below=1)
    difference_clip: float = number(1.0, above=0)
    gap: float | None = optional(above=0)
    returns: Literal["flattest", "last"] = choice("flattest")

    def longest_step(self, instance: Instance) -> float:
        """Of gradient steps."""
        return self.gradient_limit(instance)

    def forecast(self, instance: Instance) -> Forecast:
        return planning.forecast(self, instance)

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """A smooth loss, and a bound on the excess of the start where `steps` is not given."""
        del public
        if not (self.is_set("curvature") or math.isfinite(problem.loss.curvature)):
            return f"the {problem.loss.name} loss has no known bound on its curvature: give `curvature`"
        if not (self.is_set("steps") or math.isfinite(planning.start_gap(self, problem))):
            return f"the {problem.loss.name} loss has no known bound on its value at 0: give `gap` or `steps`"
        return None

    @property
    def anchors(self) -> int:
        """How many gradients are released."""
        return math.ceil(self.steps / self.period)

    def mechanisms(self) -> tuple[Gaussian, Gaussian]:
        """The noise of a gradient and of a difference: together what one release of `noise_multiplier` costs."""
        differences = self.steps - self.anchors
        share = self.anchor_share if differences else 1.0
        anchor = self.noise_multiplier * math.sqrt(self.anchors / share)
        difference = self.noise_multiplier * math.sqrt(differences / (1.0 - self.anchor_share))
        return Gaussian(anchor), Gaussian(difference)

    def event(self, public: Public) -> Event:
        """The gradients, then the differences; their order is free."""
        del public
        anchor, difference = self.mechanisms()
        differences = self.steps - self.anchors
        return sequence((repeat(anchor.event(), self.anchors), repeat(difference.event(), differences)))

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 1."""
        anchor, difference = self.mechanisms()
        step = partial(_step, step_size=self.step_size, problem=problem)
        zero = jnp.zeros_like(start)
        state = SpiderState(
            start, start, zero, start, jnp.asarray(math.inf), jnp.zeros(()), jnp.asarray(True)
        )
        for t in range(self.steps):
            if t % self.period == 0:
                gradient = ClippedGradient(loss=problem.loss, at=state.params, clip=self.clip)
                state = step(state._replace(estimate=zero), curator.release(gradient, anchor))
            else:
                state = step(state, curator.release(self._change(problem, state), difference))
        return Outcome(state.params if self.returns == "last" else state.flattest, ending(state.finite))

    def _change(self, problem: Problem, state: SpiderState) -> ClippedGradientDifference:
        """The change of the gradient in the last step, clipped to min(2 C, c L1 |w' - w|)."""
        moved = float(state.moved)
        allowed = self.difference_clip * self.curvature
        return ClippedGradientDifference(
            loss=problem.loss,
            at=state.params,
            anchor=state.previous,
            slope_clip=min(allowed, 2.0 * self.clip / moved) if moved > 0.0 else allowed,
        )


@jax.jit
@guarded
def _step(state: SpiderState, released: Array, *, step_size: float, problem: Problem) -> SpiderState:
    """One step along the estimate, and whether the point that it starts from is the flattest so far."""
    estimate = state.estimate + released
    slope = estimate + problem.regulariser.gradient(state.params)
    size = jnp.sqrt(jnp.sum(slope * slope))
    shorter = size < state.shortest
    params = problem.proximal_step(state.params, estimate, step_size)
    return SpiderState(
        params=params,
        previous=state.params,
        estimate=estimate,
        flattest=jnp.where(shorter, state.params, state.flattest),
        shortest=jnp.where(shorter, size, state.shortest),
        moved=jnp.sqrt(jnp.sum((params - state.params) ** 2)),
        finite=state.finite,
    )
