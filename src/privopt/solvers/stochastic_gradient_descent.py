"""Private stochastic gradient descent on sampled units: many cheap steps, amplified by secret sampling.

Source: Abadi et al. 2016, Algorithm 1; Song, Chaudhuri, Sarwate 2013.
"""

import bisect
import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal, NamedTuple, Self

from privopt.curator.base import Curator
from privopt.curator.loops import ReleaseCall
from privopt.later import Array, Float, jax, jnp
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, EveryUnit, FixedSize, Poisson, Repeated, Sampling
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_theory
from privopt.planning.coordinates import Coordinates
from privopt.planning.task import Forecast, Instance
from privopt.problems.problem import Problem
from privopt.public import Public, Relation
from privopt.queries.slopes import ClippedGradient
from privopt.result import Outcome, ending
from privopt.solvers.base import StepwiseSolver
from privopt.solvers.fields import choice, derived, number, optional
from privopt.solvers.heavy_ball import HeavyBallState, heavy_ball_step

# ---- Defaults and forecast of sampled gradient descent -----------------------------------------------------
# Clip and step count are those of full-batch descent, but at least 200 steps, since each is cheap; steps have size
# 1 / (L + lam), and the rate is the smallest of 256 / n, 512 / n, ... that keeps the noise at 1.5 C or more: below it,
# sampling amplifies little. Utility only.
FEWEST_STEPS = 200
SMALLEST_BATCH = 256.0
LEAST_NOISE = 1.5  # standard deviation of a step's noise over its clip


def sampling_of(rate: float, sampler: str, public: Public) -> Sampling:
    """Who takes part in a step: a rate of 1 or more is everybody."""
    if rate >= 1.0:
        return EveryUnit()
    if sampler == "fixed-size":
        return FixedSize(max(1, round(rate * public.n)), public.n)
    return Poisson(rate)


class SampledState(NamedTuple):
    """Where the descent stands, and what one compiled loop serves for any value of."""

    descent: HeavyBallState  # a function of released values
    problem: Problem
    step_size: Float[Array, ""]
    clip: Float[Array, ""]


@dataclass(frozen=True, kw_only=True)
class StochasticGradientDescent(StepwiseSolver):
    """Private gradient descent on secretly sampled units.

    Attributes:
        steps: T, at least 0.
        rate: q, the expected fraction of the units in a batch, at least 1 / n; 1 or more is everybody, priced as such.
            Default: as small as possible with a noise of at least 1.5 C, below which sampling amplifies little.
        sampler: "poisson" (each unit independently) or "fixed-size" (replace-one only).
        step_size: eta, not divided by 1 - b.
        clip: C, the largest norm of one unit's gradient.
        momentum: heavy-ball b in [0, 1).
        smoothness: L of the objective, ridge included, if it is known better than by the loss and the row bound. It
            only decides whether a step size is called too large.
    Guarantee:
        T sampled Gaussian releases priced by numerical accounting (privacy-loss distributions for Poisson sampling,
        Renyi for fixed-size batches); the sample is drawn by the curator from secret randomness. With everybody in
        every batch, the exact price of T Gaussian releases.
    Source:
        Abadi et al. 2016, Algorithm 1. Tail averaging and calibrated noise are ours.
    """

    name: ClassVar[str] = "stochastic-gradient-descent"
    preconditions: ClassVar[bool] = True

    rate: float = derived(above=0)
    sampler: Literal["poisson", "fixed-size"] = choice("poisson")
    step_size: float = derived(above=0)
    clip: float = derived(above=0)
    momentum: float = number(0.9, at_least=0, below=1)
    smoothness: float | None = optional(above=0)

    def default_steps(self, instance: Instance) -> int:
        """Those of full-batch descent, and more where they are few."""
        return max(descent_theory.descent_setting(instance, clip=self.clip).steps, FEWEST_STEPS)

    def default_clip(self, instance: Instance) -> float:
        return descent_theory.default_clip(instance)

    def default_rate(self, instance: Instance) -> float:
        """q."""
        if not instance.is_private:
            return 1.0
        public = instance.public
        doublings = max(0, math.ceil(math.log2(public.n / SMALLEST_BATCH)))
        rates = [SMALLEST_BATCH * 2.0**k / public.n for k in range(doublings)]

        def noise(tried: float) -> float:
            sampling = sampling_of(tried, self.sampler, public)
            needed = calibrate(
                lambda z: Repeated(sampling.event(Gaussian(z).event()), self.steps),
                instance.budget,
                public.relation,
            )
            return needed * public.relation.factor

        # A larger sample needs more noise, so the first of the rates that need enough is found by halving.
        found = bisect.bisect_left(rates, LEAST_NOISE, key=noise)
        return rates[found] if found < len(rates) else 1.0

    def default_step_size(self, instance: Instance) -> float:
        """1 / (L + lam)."""
        return descent_theory.descent_setting(instance).step_size / descent_theory.STEP_FACTOR

    def longest_step(self, instance: Instance) -> float:
        """Of heavy ball."""
        return self.gradient_limit(instance, momentum=self.momentum)

    def forecast(self, instance: Instance) -> Forecast:
        """No prediction; a notice where the step size is too large."""
        smoothness = self.smoothness
        if smoothness is None:
            smoothness = descent_theory.smoothness(instance) + instance.penalty_smoothness
        limit = 2.0 * (1.0 + self.momentum) / smoothness
        if self.step_size <= limit:
            return Forecast()
        return Forecast().noting(
            f"step_size {self.step_size:.3g} exceeds {limit:.3g}, the stability limit 2 (1 + momentum) / L of heavy "
            "ball, L the curvature of the objective: descent may diverge. A step size of 1 / L is safe."
        )

    def in_coordinates(self, coordinates: Coordinates) -> Self:
        """Clip and step size of other coordinates; heavy ball stays as it is."""
        smoothness = coordinates.smoothness + coordinates.ridge_smoothness
        return self.with_(clip=coordinates.clip, step_size=1.0 / smoothness, smoothness=smoothness)

    def sampling(self, public: Public) -> Sampling:
        """Who takes part in a step.

        Raises:
            ValueError: less than one unit is expected in a batch.
        """
        if not self.rate * public.n >= 1.0:
            raise ValueError(
                f"rate {self.rate!r} of n = {public.n} units is less than one unit a batch: give a rate of at least "
                f"1 / n = {1.0 / public.n:.3g}."
            )
        return sampling_of(self.rate, self.sampler, public)

    def step_event(self, public: Public) -> Event:
        """A Gaussian release on a sample."""
        return self.sampling(public).event(super().step_event(public))

    def passes(self) -> float:
        """A fraction `rate` of a pass a step."""
        return self.steps * min(self.rate, 1.0)

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Fixed-size batches have an accountant under replace-one only."""
        del problem
        if self.sampler == "fixed-size" and public.relation is not Relation.REPLACE_ONE:
            return "fixed-size sampling is priced under replace-one only: use sampler='poisson'"
        return None

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 1 with momentum, projection, prox and tail averaging, as one priced loop."""
        step = SampledStep(
            noise=Gaussian(self.noise_multiplier),
            sampling=self.sampling(curator.public),
            momentum=self.momentum,
            tail_start=self.steps // 2,
        )
        state = SampledState(
            descent=HeavyBallState.at(start),
            problem=problem,
            step_size=jnp.asarray(self.step_size, jnp.float64),
            clip=jnp.asarray(self.clip, jnp.float64),
        )
        descent = curator.iterate(step, state, self.steps).descent
        return Outcome(descent.average, ending(descent.finite))


@dataclass(frozen=True, kw_only=True)
class SampledStep:
    """One step, hashable by value so that equal configurations share one compiled loop."""

    noise: Gaussian
    sampling: Sampling
    momentum: float
    tail_start: int

    def __call__(self, state: SampledState, release: ReleaseCall) -> SampledState:
        """g = released mean over the sampled units, then a step along it."""
        query = ClippedGradient(loss=state.problem.loss, at=state.descent.params, clip=state.clip)
        gradient = release(query, self.noise, self.sampling)
        moved = _step(state, gradient, momentum=self.momentum, tail_start=self.tail_start)
        return state._replace(descent=moved)


@partial(jax.jit, static_argnames=("momentum",))
def _step(state: SampledState, gradient: Array, *, momentum: float, tail_start: int) -> HeavyBallState:
    """u = b u + g + grad r(x), x = prox(x - eta u)."""
    descent, problem = state.descent, state.problem
    slope = gradient + problem.regulariser.gradient(descent.params)
    return heavy_ball_step(
        descent,
        momentum * descent.velocity + slope,
        problem=problem,
        step_size=state.step_size,
        momentum=momentum,
        tail_start=tail_start,
    )
