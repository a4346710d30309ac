"""Continuous Spider: gradient descent on a running estimate of the gradient that every release improves.

Solves min_x F(x) + r(x) over a constraint set, F = (1/n) sum_i f(x, z_i). A step releases one vector, a mixture of the
gradient and of its change since the last point, whose sensitivity shrinks with the distance; nothing that was released
is thrown away, so that the last estimate is about as accurate as one gradient bought with the whole budget.
Source: Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 1, whose phases are dissolved here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from privopt.curator.base import Curator
from privopt.ledger.amounts import Budget
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_defaults
from privopt.planning.continuous_spider import SpiderFacts
from privopt.planning.coordinates import Coordinates
from privopt.planning.gradient_certificate import EstimateError, certificate, mixed
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.plan import Finding
from privopt.problems.constraints import Constraint, Unconstrained
from privopt.problems.growth import KL
from privopt.problems.losses import GLMLoss, RecordLoss
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Regulariser
from privopt.public import Public
from privopt.queries.gradient import ClippedGradient
from privopt.queries.mixed_gradient import MixedGradient
from privopt.result import Outcome, Status
from privopt.solvers.base import required
from privopt.solvers.stepwise import StepwiseSolver

Gain = Literal["optimal", "average"]
REACH = 10.0  # over R: how far the optimum is guessed to be
WHITENED_REACH = 5.0  # in coordinates in which predictions vary as much as parameters
WHITENED_STEPS = 100  # whitened problems are well conditioned
MOST_STEPS = 1_000
LEAST_WORK = 500.0  # L1 h below which noise decides and scheduled descent is better


class SpiderState(NamedTuple):
    """Where the descent stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]  # x_t
    at: Float[Array, " *shape"]  # w_t = x_t + b (x_t - x_{t-1}), where the next release is taken
    previous: Float[Array, " *shape"]  # where the last one was
    estimate: Float[Array, " *shape"]  # v, of the gradient of the mean loss at `previous`
    measures: Float[Array, " 4"]

    def numbers(self) -> tuple[float, float, float, float]:
        """|w_t - w_{t-1}|, sensitivity of the gradient at w_t, |x_t - w_{t-1}| / eta, and 1 if all is finite."""
        distance, sensitivity, slope, finite = np.asarray(self.measures).tolist()
        return distance, sensitivity, slope, finite


@dataclass(frozen=True, kw_only=True)
class ContinuousSpider(StepwiseSolver):
    """Private descent with a running gradient estimate.

    Step t releases `q = (1 - u) mean clip(g, C) + u mean clip(g - h, C')`, g and h a unit's gradients at this and the
    last point, C' = min(2 C, c L1 |w_t - w_{t-1}|), and descends along v <- u v + q. The gain u makes the variance of v
    smallest, see `gradient_certificate`; where a change would be no less noisy than a gradient it is 0, which is a step
    of gradient descent.

    Attributes:
        steps: T releases and steps, at least 0; 0 returns the start and spends nothing.
        step_size: eta.
        clip: C (L_0), the largest norm of one unit's gradient.
        curvature: L1 of one record's loss; with `difference_clip` it sets C'. Utility only.
        difference_clip: c in (0, 2]. 1 clips no change if L1 is right, and gives the certificate. Less clips a change
            below its worst case, which biases v and makes it less noisy. Default 0.15 for generalised linear losses,
            whose gradients seldom change by more than that; else 1 if the loss states its curvature, and 0.5 if it does
            not. Utility only.
        smoothness: L of the objective, ridge included, if it is known better than by `curvature`. It only decides
            whether a step size is called too large.
        gain: "optimal", or "average": u = t / (t + 1).
        momentum: b in [0, 1), fixed. It saves passes, not privacy: a step counts as eta / (1 - b) in T. Default 0.8 for
            generalised linear losses, 0 for others.
        reach: guess of the distance from the start to the optimum, from which `steps` are derived.
        growth: the KL condition for predictions and findings; default that of the problem.
        most_steps: largest number of steps that is derived.
        failure: beta in (0, 1), with which the certificate may fail.
    Guarantee:
        T Gaussian releases of one fixed multiplier: exactly (epsilon, delta)-DP by Gaussian-DP composition, under the
        curator's relation, for any data, loss and parameters. The sensitivity of a release is (1 - u) times that of the
        clipped gradient plus u factor C' / n; u and C' are functions of earlier releases.
        Utility: the risk settles near gamma sqrt(p V) to the power kappa, with neither gamma nor kappa known, and V
        tends to the variance of one gradient bought with the whole budget.
    Differs from the paper:
        its phases, each an accurate gradient and then changes that are added to it, are dissolved into one estimate
        with the best gain at every step, which needs no growth condition. Its stated sensitivity L_0 / n is that of
        adding or removing a unit, while its data sets differ by a replacement; its loop buys one change a phase that no
        step uses.
    Source:
        Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 1.
    """

    step_size: float | None = None
    clip: float | None = None
    curvature: float | None = None
    difference_clip: float | None = None
    smoothness: float | None = None
    gain: Gain = "optimal"
    momentum: float | None = None
    reach: float | None = None
    growth: KL | None = None
    most_steps: int = MOST_STEPS
    failure: float = 0.1

    preconditions: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.difference_clip is not None and not 0.0 < self.difference_clip <= 2.0:
            raise ValueError(
                f"difference_clip must be in (0, 2], got {self.difference_clip!r}: it is a fraction of the change that "
                "the curvature allows; 1 clips nothing, and above 2 there is nothing to gain."
            )
        if self.gain not in ("optimal", "average"):
            raise ValueError(f"gain must be 'optimal' or 'average', got {self.gain!r}.")
        if self.momentum is not None and not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum must be in [0, 1), got {self.momentum!r}.")
        if not 0.0 < self.failure < 1.0:
            raise ValueError(f"failure must be in (0, 1), got {self.failure!r}: it is a probability.")
        if self.steps is not None and self.steps < 0:
            raise ValueError(f"steps must be at least 0, got {self.steps!r}.")
        if self.most_steps < 1:
            raise ValueError(f"most_steps must be at least 1, got {self.most_steps!r}.")
        for field in ("step_size", "clip", "curvature", "smoothness", "reach"):
            value = getattr(self, field)
            if value is not None and not value > 0.0:
                raise ValueError(f"{field} must be positive, got {value!r}.")

    @property
    def name(self) -> str:
        """The solver's name."""
        return "continuous-spider"

    def derived(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """Clip and curvature of `practical`, steps of size 1 / L, as many as `continuous_spider_settings` says."""
        curvature = descent_defaults.smoothness(problem, public) if self.curvature is None else self.curvature
        smoothness = curvature + problem.regulariser.smoothness
        chosen = replace(
            self,
            clip=descent_defaults.default_clip(problem, public, budget) if self.clip is None else self.clip,
            curvature=curvature,
            difference_clip=_default_difference_clip(problem)
            if self.difference_clip is None
            else self.difference_clip,
            step_size=1.0 / smoothness if self.step_size is None else self.step_size,
            momentum=_default_momentum(problem) if self.momentum is None else self.momentum,
            reach=REACH / public.row_bound if self.reach is None else self.reach,
            growth=problem.growth if self.growth is None else self.growth,
        )
        if self.steps is not None:
            return chosen
        facts = chosen.facts(problem, public, budget)
        # A change clipped on purpose biases the estimate, which the prediction knows nothing of.
        predictable = required(chosen.difference_clip, "difference_clip") >= 1.0
        return replace(chosen, steps=facts.steps(chosen.growth if predictable else None, self.most_steps))

    def facts(self, problem: Problem, public: Public, budget: Budget) -> SpiderFacts:
        """What plans need of this solver once its lengths are set."""
        clip, curvature = required(self.clip, "clip"), required(self.curvature, "curvature")
        steepest = problem.gradient_bound(public)
        gap = problem.loss.value_at_zero if isinstance(problem.loss, GLMLoss) else None
        return SpiderFacts(
            step_size=required(self.step_size, "step_size") / (1.0 - required(self.momentum, "momentum")),
            curvature=curvature,
            steepest=steepest if math.isfinite(steepest) else clip,
            slope_ratio=self._slope_clip() / clip,
            strong=problem.regulariser.strong_convexity,
            parameters=math.prod(problem.parameter_shape(public)),
            noise=descent_defaults.noise_of_one(public, budget, clip),
            reach=required(self.reach, "reach"),
            gap=math.inf if gap is None else gap,
        )

    def in_coordinates(self, coordinates: Coordinates) -> Self:
        """The same releases with the lengths of the other coordinates; gradients are clipped, never balanced.

        A row there is at most about sqrt(d) long, so one record's loss is at most about d times as curved as the mean.
        """
        width = len(coordinates.matrix)
        smoothness = coordinates.smoothness + coordinates.ridge_smoothness
        return replace(
            self,
            clip=coordinates.clip,
            curvature=coordinates.smoothness * width,
            smoothness=smoothness,
            step_size=1.0 / smoothness,
            reach=WHITENED_REACH if self.steps is None else self.reach,
            growth=None,  # that of the problem is in other units
            momentum=coordinates.momentum if self.momentum is None else self.momentum,
            most_steps=min(self.most_steps, WHITENED_STEPS),
        )

    def predicted_excess(self, problem: Problem, public: Public, budget: Budget) -> tuple[float | None, str]:
        """The least of the predictions from what is known: a growth, a ridge, a convex loss with an optimum near."""
        if not budget.is_private:
            return 0.0, "the noise is off"
        facts, steps = self.facts(problem, public, budget), required(self.steps, "steps")
        known: list[tuple[KL, str]] = []
        if self.growth is not None and self.growth.kappa <= 2.0:  # above, nothing is smooth
            known.append((self.growth, "a prediction, not a bound, from the known growth"))
        if isinstance(problem.loss, GLMLoss):
            near = KL(gamma=facts.reach, kappa=1.0, gap=facts.gap)  # convex: excess <= |gradient| distance
            known.append((near, f"an upper estimate for an optimum within {facts.reach:.3g} of the start"))
            if facts.strong > 0:
                known.append(
                    (KL.of_strong_convexity(facts.strong, facts.gap), "an upper estimate, from the ridge")
                )
        if not known or not steps:
            return None, "no formula where the growth of the objective is not known"
        return min((facts.predicted_excess(growth, steps), meaning) for growth, meaning in known)

    def notices(self, problem: Problem, public: Public, budget: Budget) -> tuple[str, ...]:
        """A budget that is too small for this method, a step size that is too large, guessed lengths."""
        if not budget.is_private:
            return (NOISE_IS_OFF,)
        found = large_delta(public, budget)
        facts = self.facts(problem, public, budget)
        work = facts.curvature * facts.horizon
        if work < LEAST_WORK:
            found += (
                f"curvature times horizon is {work:.3g}, below {LEAST_WORK:g}: noise decides before a running estimate "
                "pays. Gradient descent, scheduled or not, is recommended for a budget this small.",
            )
        smoothness = self.smoothness
        if smoothness is None:
            smoothness = facts.curvature + problem.regulariser.smoothness
        largest, step_size = 2.0 / smoothness, required(self.step_size, "step_size")
        if step_size > largest * (1.0 + 1e-9):
            found += (
                f"step_size {step_size:.3g} exceeds 2 / L = {largest:.3g}, L the curvature of the objective: "
                "descent may diverge. A step size of 1 / L is safe.",
            )
        if not isinstance(problem.loss, GLMLoss):
            found += (
                "clip and curvature of a user-written loss are guesses where neither it nor you state them.",
            )
        return found

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Release a mixture, update the estimate, descend along it."""
        multiplier = float(required(self.noise_multiplier, "noise_multiplier"))
        clip = float(required(self.clip, "clip"))
        step = partial(
            _step,
            step_size=float(required(self.step_size, "step_size")),
            momentum=float(required(self.momentum, "momentum")),
            clip=clip,
            loss=problem.loss,
            public=curator.public,
            regulariser=problem.regulariser,
            constraint=problem.constraint,
        )
        state = _start(start, clip=clip, loss=problem.loss, public=curator.public)
        error = EstimateError()
        for t in range(self.releases()):
            distance, sensitivity, _, _ = state.numbers()
            change_clip = self._change_clip(distance)
            fresh = _times(multiplier, sensitivity)
            change = _times(multiplier, curator.public.relation.factor * change_clip / curator.public.n)
            gain = 0.0 if multiplier == 0.0 else self._next_gain(t, error, fresh, change)
            released = curator.release(self._query(problem, state, gain, change_clip), Gaussian(multiplier))
            after = step(state, released, gain)
            if not after.numbers()[-1]:
                return Outcome(state.params, Status.DIVERGED)
            state, error = after, error.after(gain, mixed(gain, fresh, change))
        if not self.releases():
            return Outcome(state.params, Status.FINISHED)
        return Outcome(state.params, Status.FINISHED, self._findings(problem, curator.public, state, error))

    def _query(
        self, problem: Problem, state: SpiderState, gain: float, change_clip: float
    ) -> ClippedGradient | MixedGradient:
        """The gradient where nothing of the estimate is kept, else its mixture with the change."""
        clip = required(self.clip, "clip")
        if gain == 0.0:
            return ClippedGradient(loss=problem.loss, at=state.at, clip=clip)
        return MixedGradient(
            loss=problem.loss,
            at=state.at,
            previous=state.previous,
            clip=clip,
            change_clip=change_clip,
            gain=gain,
        )

    def _change_clip(self, distance: float) -> float:
        """C' = min(2 C, c L1 distance)."""
        if distance == 0.0:
            return 0.0
        return min(2.0 * required(self.clip, "clip"), self._slope_clip() * distance)

    def _slope_clip(self) -> float:
        """c L1."""
        return required(self.difference_clip, "difference_clip") * required(self.curvature, "curvature")

    def _next_gain(self, t: int, error: EstimateError, fresh: float, change: float) -> float:
        """u of release t, from the noise of a gradient and of a change."""
        return t / (t + 1.0) if self.gain == "average" else error.optimal_gain(fresh, change)

    def _findings(
        self, problem: Problem, public: Public, state: SpiderState, error: EstimateError
    ) -> Mapping[str, Finding]:
        """The estimate, its variance, and what they prove where no change is clipped on purpose."""
        plain = problem.regulariser.is_smooth and isinstance(problem.constraint, Unconstrained)
        curved = problem.smoothness(public) - problem.regulariser.smoothness
        allowed = self._slope_clip() * (1.0 + 1e-9)
        nothing_clipped = required(self.clip, "clip") >= problem.gradient_bound(public) and allowed >= curved
        return certificate(
            point=state.previous,
            estimate=state.estimate,
            slope=state.numbers()[2],
            error=error,
            failure=self.failure,
            clips_changes=required(self.difference_clip, "difference_clip") < 1.0,
            never_clipped=nothing_clipped,
            growth=self.growth if plain else None,
            of="gradient of the objective" if plain else "proximal gradient map of the objective",
        )


def _default_difference_clip(problem: Problem) -> float:
    """c: the least where rows of many features seldom lie along a step; 1 where L1 is known for sure."""
    if isinstance(problem.loss, GLMLoss):
        return 0.15
    return 1.0 if math.isfinite(problem.loss.curvature) else 0.5


def _default_momentum(problem: Problem) -> float:
    """b: a fifth of the passes where the loss is convex."""
    return 0.8 if isinstance(problem.loss, GLMLoss) else 0.0


def _times(multiplier: float, sensitivity: float) -> float:
    """Their product; 0 without noise, whatever the sensitivity."""
    return multiplier * sensitivity if multiplier > 0.0 else 0.0


def _sensitivity(at: Array, clip: float, loss: GLMLoss | RecordLoss, public: Public) -> Array:
    """That of the clipped gradient at a point."""
    return jnp.asarray(ClippedGradient(loss=loss, at=at, clip=clip).sensitivity(public), float)


@partial(jax.jit, static_argnames=("loss", "public"))
def _start(start: Array, *, clip: float, loss: GLMLoss | RecordLoss, public: Public) -> SpiderState:
    """Before the first release."""
    zero = jnp.zeros(())
    measures = jnp.stack([zero, _sensitivity(start, clip, loss, public), zero, zero + 1.0])
    return SpiderState(start, start, start, jnp.zeros_like(start), measures)


@partial(jax.jit, static_argnames=("loss", "public", "constraint"))
def _step(
    state: SpiderState,
    released: Array,
    gain: float,
    *,
    step_size: float,
    momentum: float,
    clip: float,
    loss: GLMLoss | RecordLoss,
    public: Public,
    regulariser: Regulariser,
    constraint: Constraint,
) -> SpiderState:
    """The estimate at w, a step along it x = prox(w - eta (v + grad r(w))), and the next w."""
    estimate = gain * state.estimate + released
    slope = estimate + regulariser.gradient(state.at)
    params = constraint.project(regulariser.prox(state.at - step_size * slope, step_size))
    at = params + momentum * (params - state.params)
    measures = jnp.stack(
        [
            _length(at - state.at),
            _sensitivity(at, clip, loss, public),
            _length(state.at - params) / step_size,
            jnp.asarray(jnp.all(jnp.isfinite(at)) & jnp.all(jnp.isfinite(estimate)), float),
        ]
    )
    return SpiderState(params=params, at=at, previous=state.at, estimate=estimate, measures=measures)


def _length(vector: Array) -> Array:
    return jnp.sqrt(jnp.sum(vector * vector))
