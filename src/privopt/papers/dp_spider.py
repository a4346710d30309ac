"""DP-Spider: noisy gradients now and then, noisy differences in between, for a point where the gradient is small.

Solves min_w F(w) + r(w) over a constraint set to a small gradient, F = (1/n) sum_i f(w, xi_i), convex or not.
Source: Arora, Bassily, Gonzalez, Guzman, Menart, Ullah 2023, Algorithm 1 and Theorem 1.
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple

from privopt.curator.base import Curator
from privopt.later import Array, Bool, Float, jax, jnp
from privopt.ledger.events import Event, repeat, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_theory
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.plan import Finding
from privopt.planning.task import Forecast, Instance
from privopt.problems.constraints import Unconstrained
from privopt.problems.losses import GLMLoss
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.slopes import ClippedGradient, ClippedGradientDifference
from privopt.result import Outcome, ending
from privopt.solvers.base import StepwiseSolver
from privopt.solvers.fields import choice, derived, guarded, number, optional

# ---- Schedule, predicted gradient norm and notices of DP-Spider --------------------------------------------
# With W = 2 rho n^2 / factor^2, p parameters, clip C and an L-smooth objective that starts at most `gap` above its
# minimum:
#
#     steps       T = (L gap W^2 / (C p)^2)^(1/3), at most 4000
#     period      q T p = W, which keeps the noise of a period's differences from growing
#     step size   eta = 1 / (2 L)
#
# The gradient at a random iterate then has a root mean square norm of at most `sqrt(6 L gap / T)`. In general, with S2
# the noise variance of one released gradient and B the noise that a period's differences add for each unit of |v|^2, a
# step lowers the objective by at least `(eta/2) (|grad|^2 - |error|^2 + (1 - L eta) |v|^2)`, so if B <= 1 - L eta
#
#     mean |grad F(w_t)|^2 <= 2 gap / (eta T) + p S2.
#
# Source:
#     Arora, Bassily, Gonzalez, Guzman, Menart, Ullah 2023, Theorem 1, with constants worked out for exact composition.
MOST_STEPS = 4_000  # where the theorem's number of steps is above what passes over the data are worth


class SpiderSchedule(NamedTuple):
    """How many steps, and how often a gradient is released."""

    steps: int  # T
    period: int  # q


class SpiderState(NamedTuple):
    """Where the run stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]  # w_t
    previous: Float[Array, " *shape"]  # w_{t-1}
    estimate: Float[Array, " *shape"]  # of grad F(w_{t-1})
    flattest: Float[Array, " *shape"]  # the iterate with the shortest sum of estimate and penalty's gradient
    shortest: Float[Array, ""]  # the norm of that sum
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
        Utility, in expectation, if no gradient is clipped and c is 1: see the comment above.
    Differs from the paper:
        The constants of the schedule are worked out for exact Gaussian composition. The point with the shortest
        estimate is returned, not a random one. Steps are proximal where the penalty is not smooth.
    Source:
        Arora, Bassily, Gonzalez, Guzman, Menart, Ullah 2023, Algorithm 1 and Theorem 1. Fang, Li, Lin,
        Zhang 2018 (Spider).
    """

    name: ClassVar[str] = "dp-spider"

    period: int = derived(at_least=1)
    step_size: float = derived(above=0)
    clip: float = derived(above=0)
    curvature: float = derived(above=0)
    anchor_share: float = number(0.5, above=0, below=1)
    difference_clip: float = number(1.0, above=0)
    gap: float | None = optional(above=0)
    returns: Literal["flattest", "last"] = choice("flattest")

    def default_clip(self, instance: Instance) -> float:
        return descent_theory.default_clip(instance)

    def default_curvature(self, instance: Instance) -> float:
        return instance.problem.loss_smoothness(instance.public)

    def default_gap(self, instance: Instance) -> float | None:
        """What is known of the excess of the start; None if nothing is."""
        gap = self._start_gap(instance.problem)
        return gap if math.isfinite(gap) else None

    def default_steps(self, instance: Instance) -> int:
        """T."""
        return self._schedule(instance).steps if instance.is_private else descent_theory.NOISELESS_STEPS

    def default_period(self, instance: Instance) -> int:
        return self._schedule(instance).period

    def default_step_size(self, instance: Instance) -> float:
        return 0.5 / self._assumed_smoothness(instance)

    def longest_step(self, instance: Instance) -> float:
        """The stability limit of gradient steps."""
        return self.gradient_limit(instance)

    def forecast(self, instance: Instance) -> Forecast:
        """The predicted gradient norm, where there is one, or that the noise may build up."""
        norm = self.gradient_norm_bound(instance)
        indicators: dict[str, Finding] = {}
        if norm is not None:
            indicators["gradient_norm"] = Finding(
                norm,
                "bound on the gradient norm of a random iterate, root mean square, if no gradient and no change of one "
                "is clipped and the loss at the start is no larger than at 0",
            )
        if not instance.is_private:
            return Forecast(indicators=indicators, notices=(NOISE_IS_OFF,))
        found = Forecast(indicators=indicators, notices=large_delta(instance))
        if self.steps and norm is None:
            return found.noting(
                "the noise of the differences may build up within a period: a shorter `period` or fewer `steps` would "
                "be safer."
            )
        return found

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """A smooth loss, and a bound on the excess of the start where `steps` is not given."""
        del public
        if not (self.is_set("curvature") or math.isfinite(problem.loss.curvature)):
            return f"the {problem.loss.name} loss has no known bound on its curvature: give `curvature`"
        if not (self.is_set("steps") or math.isfinite(self._start_gap(problem))):
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

    def _schedule(self, instance: Instance) -> SpiderSchedule:
        """T and q, once clip, curvature and gap are set."""
        return planned_schedule(
            signal=(instance.mu * instance.public.n / instance.public.relation.factor) ** 2,
            clip=self.clip,
            smoothness=self._assumed_smoothness(instance),
            gap=self._start_gap(instance.problem),
            parameters=instance.parameters,
            steps=self.steps,
        )

    def _assumed_smoothness(self, instance: Instance) -> float:
        """L of the objective."""
        return self.curvature + instance.penalty_smoothness

    def _start_gap(self, problem: Problem) -> float:
        """The given gap, else the least of the problem's and the bound on the loss at 0; infinite if not known."""
        if self.gap is not None:
            return self.gap
        known = math.inf if problem.growth is None else problem.growth.gap
        at_zero = problem.loss.value_at_zero if isinstance(problem.loss, GLMLoss) else None
        return min(known, math.inf if at_zero is None else at_zero)

    def gradient_norm_bound(self, instance: Instance) -> float | None:
        """The bound of the first comment: on the root mean square of the gradient norm at the iterates, expected.

        None where the noise of the differences is too large, a penalty is not smooth, there is a set, or no gap is
        known.
        """
        problem, public, eta = instance.problem, instance.public, self.step_size
        gap = self._start_gap(problem)
        flows = problem.regulariser.is_smooth and isinstance(problem.constraint, Unconstrained)
        if self.steps == 0 or not (flows and math.isfinite(gap)):
            return None
        anchor, difference = self.mechanisms()
        factor = public.relation.factor / public.n
        slope = self.difference_clip * self.curvature * eta * factor * difference.noise_multiplier
        carried = min(self.period, self.steps) * instance.parameters * slope**2
        if carried > 1.0 - self._assumed_smoothness(instance) * eta:
            return None
        noise = factor * self.clip * anchor.noise_multiplier if anchor.noise_multiplier else 0.0
        return math.sqrt(2.0 * gap / (eta * self.steps) + instance.parameters * noise**2)


def planned_schedule(
    *, signal: float, clip: float, smoothness: float, gap: float, parameters: int, steps: int | None = None
) -> SpiderSchedule:
    """The schedule that balances what the steps gain and what the noise costs; see the comment at the top.

    Args:
        signal: W, infinite without noise.
        clip: C.
        smoothness: L.
        gap: a bound on the excess of the start.
        parameters: p.
        steps: T, where it is given.
    """
    if steps is None:
        steps = math.ceil(
            min((smoothness * gap * (signal / (clip * parameters)) ** 2) ** (1.0 / 3.0), MOST_STEPS)
        )
    period = signal / (max(steps, 1) * parameters)
    return SpiderSchedule(
        steps, int(max(1.0, min(math.floor(period) if math.isfinite(period) else steps, steps)))
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
