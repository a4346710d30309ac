"""Continuous Spider: gradient descent on a running estimate of the gradient that every release improves.

Solves min_x F(x) + r(x) over a constraint set, F = (1/n) sum_i f(x, xi_i). A step releases one vector, a mixture of the
gradient and of its change since the last point, whose sensitivity shrinks with the distance; nothing that was released
is thrown away, so that the last estimate is about as accurate as one gradient bought with the whole budget.
Source: Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 1, whose phases are dissolved here.
"""

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from privopt.curator.base import Curator
from privopt.mechanisms.additive import Gaussian
from privopt.planning import continuous_spider as planning
from privopt.planning.coordinates import Coordinates
from privopt.planning.forecast import Forecast
from privopt.planning.gradient_certificate import EstimateError, mixed
from privopt.planning.instance import Instance
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.gradient import ClippedGradient
from privopt.queries.mixed_gradient import MixedGradient
from privopt.result import Outcome, Status
from privopt.solvers.base import Defaults
from privopt.solvers.fields import choice, derived, number, optional
from privopt.solvers.guarded import guarded
from privopt.solvers.stepwise import StepwiseSolver


class SpiderState(NamedTuple):
    """Where the descent stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]  # x_t
    at: Float[Array, " *shape"]  # w_t = x_t + b (x_t - x_{t-1}), where the next release is taken
    previous: Float[Array, " *shape"]  # where the last one was
    estimate: Float[Array, " *shape"]  # v, of the gradient of the mean loss at `previous`
    finite: Bool[Array, ""]


class Measures(NamedTuple):
    """What the run reads of a state, in one array."""

    distance: float  # |w_t - w_{t-1}|
    sensitivity: float  # of the gradient at w_t
    slope: float  # |x_t - w_{t-1}| / eta
    finite: float  # 1 if all is

    @classmethod
    def read(cls, measured: Float[Array, " 4"]) -> "Measures":
        """From `_measured`."""
        return cls(*np.asarray(measured).tolist())


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
        difference_clip: c, a fraction of the change that the curvature allows. 1 clips no change if L1 is right, and
            gives the certificate; above 2 there is nothing to gain. Less clips a change below its worst case, which
            biases v and makes it less noisy. Default 0.15 for generalised linear losses, whose gradients seldom change
            by more than that; else 1 if the loss states its curvature, and 0.5 if it does not. Utility only.
        smoothness: L of the objective, ridge included, if it is known better than by `curvature`. It only decides
            whether a step size is called too large.
        gain: "optimal", or "average": u = t / (t + 1).
        momentum: b in [0, 1), fixed. It saves passes, not privacy: a step counts as eta / (1 - b) in T. Default 0.8 for
            generalised linear losses, 0 for others.
        distance: guess of the distance from the start to the optimum, from which `steps` are derived.
        growth: the KL condition for predictions and findings; default that of the problem.
        most_steps: largest number of steps that is derived.
        failure: beta, the probability with which the certificate may fail.
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

    name: ClassVar[str] = "continuous-spider"
    preconditions: ClassVar[bool] = True
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    step_size: float = derived(above=0)
    clip: float = derived(above=0)
    curvature: float = derived(above=0)
    difference_clip: float = derived(above=0, at_most=2)
    smoothness: float | None = optional(above=0)
    gain: Literal["optimal", "average"] = choice("optimal")
    momentum: float = derived(at_least=0, below=1)
    distance: float = derived(above=0)
    growth: KL | None = None
    most_steps: int = number(1_000, at_least=1)
    failure: float = number(0.1, above=0, below=1)

    def longest_step(self, instance: Instance) -> float:
        """Of gradient steps."""
        return self.gradient_limit(instance)

    def forecast(self, instance: Instance) -> Forecast:
        return planning.forecast(self, instance)

    def in_coordinates(self, coordinates: Coordinates) -> Self:
        return self.with_(**planning.in_coordinates(self, coordinates))

    @property
    def slope_clip(self) -> float:
        """c L1, the clip of a change over the distance."""
        return self.difference_clip * self.curvature

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Release a mixture, update the estimate, descend along it."""
        public, noise = curator.public, Gaussian(self.noise_multiplier)
        lengths = {"step_size": self.step_size, "clip": self.clip, "problem": problem, "public": public}
        step = partial(_step, momentum=self.momentum, **lengths)
        state = SpiderState(start, start, start, jnp.zeros_like(start), jnp.asarray(True))
        seen, error = Measures.read(_measured(state, **lengths)), EstimateError()
        for t in range(self.steps):
            change_clip = self._change_clip(seen.distance)
            fresh = self._stddev(seen.sensitivity)
            change = self._stddev(public.relation.factor * change_clip / public.n)
            gain = self._next_gain(t, error, fresh, change)
            released = curator.release(self._query(problem, state, gain, change_clip), noise)
            state, measured = step(state, released, gain)
            seen, error = Measures.read(measured), error.after(gain, mixed(gain, fresh, change))
            if not seen.finite:
                return Outcome(state.params, Status.DIVERGED)
        if not self.steps:
            return Outcome(state.params, Status.FINISHED)
        found = planning.findings(
            self,
            problem,
            public,
            point=state.previous,
            estimate=state.estimate,
            slope=seen.slope,
            error=error,
        )
        return Outcome(state.params, Status.FINISHED, found)

    def _query(
        self, problem: Problem, state: SpiderState, gain: float, change_clip: float
    ) -> ClippedGradient | MixedGradient:
        """The gradient where nothing of the estimate is kept, else its mixture with the change."""
        if gain == 0.0:
            return ClippedGradient(loss=problem.loss, at=state.at, clip=self.clip)
        return MixedGradient(
            loss=problem.loss,
            at=state.at,
            previous=state.previous,
            clip=self.clip,
            change_clip=change_clip,
            gain=gain,
        )

    def _change_clip(self, distance: float) -> float:
        """C' = min(2 C, c L1 distance)."""
        return min(2.0 * self.clip, self.slope_clip * distance) if distance else 0.0

    def _stddev(self, sensitivity: float) -> float:
        """The noise of a release; 0 without noise, whatever the sensitivity."""
        return self.noise_multiplier * sensitivity if self.noise_multiplier else 0.0

    def _next_gain(self, t: int, error: EstimateError, fresh: float, change: float) -> float:
        """u of release t, from the noise of a gradient and of a change; without noise 0."""
        if not self.noise_multiplier:
            return 0.0
        return t / (t + 1.0) if self.gain == "average" else error.optimal_gain(fresh, change)


@partial(jax.jit, static_argnames=("public",))
def _measured(
    state: SpiderState, *, step_size: float, clip: float, problem: Problem, public: Public
) -> Float[Array, " 4"]:
    """The entries of `Measures`."""
    gradient = ClippedGradient(loss=problem.loss, at=state.at, clip=clip)
    return jnp.stack(
        [
            _length(state.at - state.previous),
            jnp.asarray(gradient.sensitivity(public), float),
            _length(state.previous - state.params) / step_size,
            jnp.asarray(state.finite, float),
        ]
    )


@partial(jax.jit, static_argnames=("public",))
def _step(
    state: SpiderState,
    released: Array,
    gain: float,
    *,
    momentum: float,
    step_size: float,
    clip: float,
    problem: Problem,
    public: Public,
) -> tuple[SpiderState, Float[Array, " 4"]]:
    """The next state, and what the run reads of it."""
    moved = _moved(state, released, gain, momentum=momentum, step_size=step_size, problem=problem)
    return moved, _measured(moved, step_size=step_size, clip=clip, problem=problem, public=public)


@guarded
def _moved(
    state: SpiderState, released: Array, gain: float, *, momentum: float, step_size: float, problem: Problem
) -> SpiderState:
    """The estimate at w, a step along it x = prox(w - eta (v + grad r(w))), and the next w."""
    estimate = gain * state.estimate + released
    params = problem.proximal_step(state.at, estimate, step_size)
    at = params + momentum * (params - state.params)
    return SpiderState(params=params, at=at, previous=state.at, estimate=estimate, finite=state.finite)


def _length(vector: Array) -> Array:
    return jnp.sqrt(jnp.sum(vector * vector))
