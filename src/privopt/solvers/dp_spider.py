"""DP-Spider: noisy gradients now and then, noisy differences in between, for a point where the gradient is small.

Solves min_w F(w) + r(w) over a constraint set to a small gradient, F = (1/n) sum_i f(w, z_i), convex or not.
Source: Arora, Bassily, Gonzalez, Guzman, Menart, Ullah 2023, Algorithm 1 and Theorem 1.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from privopt.curator.base import Curator
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Event, repeat, sequence
from privopt.ledger.gaussian_dp import gaussian_mu
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_defaults
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.plan import Finding
from privopt.problems.constraints import Constraint, Unconstrained
from privopt.problems.losses import GLMLoss
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Regulariser
from privopt.public import Public
from privopt.queries.gradient import ClippedGradient
from privopt.queries.gradient_difference import ClippedGradientDifference
from privopt.result import Outcome, ending
from privopt.solvers.base import required
from privopt.solvers.stepwise import StepwiseSolver

MOST_STEPS = 4_000  # where the theorem's number of steps is above what passes over the data are worth


class SpiderSchedule(NamedTuple):
    """How many steps, and how often a gradient is released."""

    steps: int  # T
    period: int  # q


@dataclass(frozen=True, kw_only=True)
class DPSpider(StepwiseSolver):
    """Recursive gradient estimates: a released gradient every `period` steps, released differences in between.

    Attributes:
        steps: T, at least 0; 0 returns the start and spends nothing.
        period: q, steps from one released gradient to the next.
        step_size: eta; default 1 / (2 L).
        clip: C, the largest norm of one unit's gradient.
        curvature: L' of one record's loss; utility only.
        anchor_share: share of the budget (of mu^2) that the gradients get, the differences get the rest.
        difference_clip: zeta, the clip of a difference over L' |w' - w|.
        gap: a bound on the excess of the start; default the bound on the loss at 0. It sets `steps`.
        output: what is returned: "flattest" (the iterate with the shortest estimate) or "last".
    Guarantee:
        Gaussian releases with fixed multipliers, one for gradients of sensitivity factor * C / n (or what the loss
        allows at the point), one for differences of sensitivity factor * min(2 C, zeta L' |w' - w|) / n, whatever
        the distances: exactly (epsilon, delta)-DP by Gaussian-DP composition, under the curator's relation, for any
        data, loss and parameters.
        Utility, in expectation, if no gradient is clipped and zeta is 1: see `gradient_norm_bound`.
    Differs from the paper:
        The constants of the schedule are worked out for exact Gaussian composition. The point with the shortest
        estimate is returned, not a random one. Steps are proximal where the penalty is not smooth.
    Source:
        Arora, Bassily, Gonzalez, Guzman, Menart, Ullah 2023, Algorithm 1 and Theorem 1. Fang, Li, Lin,
        Zhang 2018 (Spider).
    """

    period: int | None = None
    step_size: float | None = None
    clip: float | None = None
    curvature: float | None = None
    anchor_share: float = 0.5
    difference_clip: float = 1.0
    gap: float | None = None
    output: Literal["flattest", "last"] = "flattest"

    def __post_init__(self) -> None:
        if self.steps is not None and self.steps < 0:
            raise ValueError(f"steps must be at least 0, got {self.steps!r}.")
        if self.period is not None and self.period < 1:
            raise ValueError(
                f"period must be at least 1, got {self.period!r}: it is the number of steps from one released gradient "
                "to the next."
            )
        if not 0.0 < self.anchor_share < 1.0:
            raise ValueError(f"anchor_share must be between 0 and 1, got {self.anchor_share!r}.")
        if self.output not in ("flattest", "last"):
            raise ValueError(f"output must be 'flattest' or 'last', got {self.output!r}.")
        for name in ("step_size", "clip", "curvature", "difference_clip", "gap"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be positive, got {value!r}.")

    @property
    def name(self) -> str:
        """The solver's name."""
        return "dp-spider"

    @property
    def anchors(self) -> int:
        """How many gradients are released."""
        return math.ceil(required(self.steps, "steps") / required(self.period, "period"))

    def event(self, public: Public) -> Event:
        """The gradients, then the differences; their order is free."""
        del public
        anchor, difference = self.mechanisms()
        differences = required(self.steps, "steps") - self.anchors
        return sequence((repeat(anchor.event(), self.anchors), repeat(difference.event(), differences)))

    def mechanisms(self) -> tuple[Gaussian, Gaussian]:
        """The noise of a gradient and of a difference: together what one release of `noise_multiplier` costs."""
        multiplier = required(self.noise_multiplier, "noise_multiplier")
        differences = required(self.steps, "steps") - self.anchors
        share = self.anchor_share if differences else 1.0
        anchor = multiplier * math.sqrt(self.anchors / share)
        return Gaussian(anchor), Gaussian(multiplier * math.sqrt(differences / (1.0 - self.anchor_share)))

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """A smooth loss, and a bound on the excess of the start where `steps` is not given."""
        del public
        if self.curvature is None and not math.isfinite(problem.loss.curvature):
            return f"the {problem.loss.name} loss has no known bound on its curvature: give `curvature`"
        if self.steps is None and not math.isfinite(self._gap(problem)):
            return f"the {problem.loss.name} loss has no known bound on its value at 0: give `gap` or `steps`"
        return None

    def derived(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """The schedule of the theorem, within 4000 steps, where a field was left open."""
        self.check_applicable(problem, public)
        clip, curvature = self.clip, self.curvature
        if clip is None:
            clip = descent_defaults.default_clip(problem, public, budget)
        if curvature is None:
            curvature = problem.smoothness(public) - problem.regulariser.smoothness
        smoothness = curvature + problem.regulariser.smoothness
        steps, period = self.steps, self.period
        if steps is None and not budget.is_private:
            steps = descent_defaults.NOISELESS_STEPS
        if steps is None or period is None:
            schedule = planned_schedule(
                signal=_signal(public, budget),
                clip=clip,
                smoothness=smoothness,
                gap=self._gap(problem),
                parameters=math.prod(problem.parameter_shape(public)),
                steps=steps,
            )
            steps, period = schedule.steps, schedule.period if period is None else period
        return replace(
            self,
            steps=steps,
            period=period,
            clip=clip,
            curvature=curvature,
            step_size=0.5 / smoothness if self.step_size is None else self.step_size,
            gap=self._gap(problem) if self.gap is None and math.isfinite(self._gap(problem)) else self.gap,
        )

    def gradient_norm_bound(self, problem: Problem, public: Public) -> float | None:
        """A bound on the root mean square of the gradient norm over the iterates, in expectation.

        With S2 the noise variance of one released gradient, p parameters, and B the noise that a period's differences
        add for each unit of |v|^2, a step of size eta on an L-smooth objective lowers it by at least
        `(eta/2) (|grad|^2 - |error|^2 + (1 - L eta) |v|^2)`, so if B <= 1 - L eta

            mean |grad F(w_t)|^2 <= 2 gap / (eta T) + p S2.

        None where B is larger, or a penalty is not smooth, or there is a set, or no gap is known.
        """
        steps, period = required(self.steps, "steps"), required(self.period, "period")
        clip, curvature = required(self.clip, "clip"), required(self.curvature, "curvature")
        eta, gap = required(self.step_size, "step_size"), self._gap(problem)
        flows = problem.regulariser.is_smooth and isinstance(problem.constraint, Unconstrained)
        if steps == 0 or not (flows and math.isfinite(gap)):
            return None
        parameters = math.prod(problem.parameter_shape(public))
        anchor, difference = self.mechanisms()
        factor = public.relation.factor / public.n
        slope = self.difference_clip * curvature * eta * factor * difference.noise_multiplier
        carried = min(period, steps) * parameters * slope**2
        if carried > 1.0 - (curvature + problem.regulariser.smoothness) * eta:
            return None
        noise = factor * clip * anchor.noise_multiplier if anchor.noise_multiplier else 0.0
        return math.sqrt(2.0 * gap / (eta * steps) + parameters * noise**2)

    def indicators(self, problem: Problem, public: Public, budget: Budget) -> Mapping[str, Finding]:
        """The predicted gradient norm, where there is one."""
        del budget
        norm = self.gradient_norm_bound(problem, public)
        if norm is None:
            return {}
        meaning = (
            "bound on the gradient norm of a random iterate, root mean square, if no gradient and no change of one is "
            "clipped and the loss at the start is no larger than at 0"
        )
        return {"gradient_norm": Finding(norm, meaning)}

    def notices(self, problem: Problem, public: Public, budget: Budget) -> tuple[str, ...]:
        """What a user should be told."""
        if not budget.is_private:
            return (NOISE_IS_OFF,)
        found = large_delta(public, budget)
        if required(self.steps, "steps") and self.gradient_norm_bound(problem, public) is None:
            found += (
                "the noise of the differences may build up within a period: a shorter `period` or fewer `steps` would "
                "be safer.",
            )
        return found

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 1."""
        steps, period = required(self.steps, "steps"), required(self.period, "period")
        clip, slope_clip = (
            required(self.clip, "clip"),
            self.difference_clip * required(self.curvature, "curvature"),
        )
        anchor, difference = self.mechanisms()
        state = SpiderState.at(start)
        for t in range(steps):
            if t % period == 0:
                at_point = ClippedGradient(loss=problem.loss, at=state.params, clip=clip)
                estimate = curator.release(at_point, anchor)
            else:
                moved = jnp.sqrt(jnp.sum((state.params - state.previous) ** 2))
                if not math.isfinite(float(moved)):  # a step so long that nothing can be said of it
                    state = state._replace(finite=jnp.asarray(False))
                    break
                change = ClippedGradientDifference(
                    loss=problem.loss,
                    at=state.params,
                    anchor=state.previous,
                    slope_clip=jnp.minimum(slope_clip, 2.0 * clip / jnp.where(moved > 0, moved, 1.0)),
                )
                estimate = state.estimate + curator.release(change, difference)
            state = _step(
                state,
                estimate,
                step_size=required(self.step_size, "step_size"),
                regulariser=problem.regulariser,
                constraint=problem.constraint,
            )
        return Outcome(state.params if self.output == "last" else state.best, ending(state.finite))

    def _gap(self, problem: Problem) -> float:
        """The given gap, the problem's, or the bound on the loss at 0."""
        if self.gap is not None:
            return self.gap
        known = math.inf if problem.growth is None else problem.growth.gap
        at_zero = problem.loss.value_at_zero if isinstance(problem.loss, GLMLoss) else None
        return min(known, math.inf if at_zero is None else at_zero)


def planned_schedule(
    *, signal: float, clip: float, smoothness: float, gap: float, parameters: int, steps: int | None = None
) -> SpiderSchedule:
    """The schedule that balances what the steps gain and what the noise costs.

    With W = 2 rho n^2 / factor^2, p parameters, clip C and an L-smooth objective: `T = (L gap W^2 / (C p)^2)^(1/3)` and
    `q T p = W`, which keeps the noise of a period's differences from growing. A random iterate's gradient then has a
    root mean square norm of at most `sqrt(6 L gap / T)`.

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


def _signal(public: Public, budget: Budget) -> float:
    """2 rho (n / factor)^2."""
    if not budget.is_private:
        return math.inf
    return (gaussian_mu(budget.epsilon, budget.delta) * public.n / public.relation.factor) ** 2


class SpiderState(NamedTuple):
    """Where the run stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]  # w_t
    previous: Float[Array, " *shape"]  # w_{t-1}
    estimate: Float[Array, " *shape"]  # of grad F(w_{t-1})
    best: Float[Array, " *shape"]  # the iterate with the shortest estimate, the penalty's gradient included
    shortest: Float[Array, ""]
    finite: Array

    @classmethod
    def at(cls, start: Array) -> "SpiderState":
        """Before the first step."""
        return cls(start, start, jnp.zeros_like(start), start, jnp.asarray(math.inf), jnp.asarray(True))


@partial(jax.jit, static_argnames=("constraint",))
def _step(
    state: SpiderState,
    estimate: Array,
    *,
    step_size: float,
    regulariser: Regulariser,
    constraint: Constraint,
) -> SpiderState:
    """One step, and whether the point that it starts from is the flattest so far."""
    slope = estimate + regulariser.gradient(state.params)
    size = jnp.sqrt(jnp.sum(slope * slope))
    shorter = jnp.isfinite(size) & (size < state.shortest) & state.finite
    params = constraint.project(regulariser.prox(state.params - step_size * slope, step_size))
    finite = state.finite & jnp.all(jnp.isfinite(params)) & jnp.all(jnp.isfinite(estimate))
    return SpiderState(
        params=jnp.where(finite, params, state.params),
        previous=state.params,
        estimate=jnp.where(finite, estimate, state.estimate),
        best=jnp.where(shorter, state.params, state.best),
        shortest=jnp.where(shorter, size, state.shortest),
        finite=finite,
    )
