"""Private stochastic gradient descent on sampled units: many cheap steps, amplified by secret sampling.

Source: Abadi et al. 2016, Algorithm 1; Song, Chaudhuri, Sarwate 2013.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, Self

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from privopt.curator.base import Curator
from privopt.curator.loops import ReleaseCall
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Event
from privopt.ledger.sampling import EveryUnit, FixedSize, Poisson, Sampling
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_defaults
from privopt.planning.coordinates import Coordinates
from privopt.problems.constraints import Constraint
from privopt.problems.losses import GLMLoss, RecordLoss
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Regulariser
from privopt.public import Public, Relation
from privopt.queries.gradient import ClippedGradient
from privopt.result import Outcome, ending
from privopt.solvers.base import required
from privopt.solvers.heavy_ball import heavy_ball_step
from privopt.solvers.stepwise import StepwiseSolver


class SampledState(NamedTuple):
    """Where the descent stands; every entry is a function of released values."""

    params: Float[Array, " *shape"]
    velocity: Float[Array, " *shape"]
    average: Float[Array, " *shape"]  # mean of the iterates of the last half
    time: Float[Array, ""]  # t
    step_size: Float[Array, ""]
    clip: Float[Array, ""]
    finite: Bool[
        Array, ""
    ]  # whether every iterate so far was finite; from the first that was not, nothing moves


@dataclass(frozen=True, kw_only=True)
class SampledStep:
    """One step, hashable by value so that equal configurations share one compiled loop."""

    loss: GLMLoss | RecordLoss
    regulariser: Regulariser
    constraint: Constraint
    noise: Gaussian
    sampling: Sampling
    momentum: float
    tail_start: int

    def __call__(self, state: SampledState, release: ReleaseCall) -> SampledState:
        """g = released mean over the sampled units; heavy ball; proximal step with eta / (1 - b)."""
        query = ClippedGradient(loss=self.loss, at=state.params, clip=state.clip)
        gradient = release(query, self.noise, self.sampling) + self.regulariser.gradient(state.params)
        velocity = self.momentum * state.velocity + gradient
        return heavy_ball_step(
            state,
            velocity,
            momentum=self.momentum,
            regulariser=self.regulariser,
            project=self.constraint.project,
            tail_start=self.tail_start,
        )


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

    rate: float | None = None
    sampler: Literal["poisson", "fixed-size"] = "poisson"
    step_size: float | None = None
    clip: float | None = None
    momentum: float = 0.9
    smoothness: float | None = None

    preconditions: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """The solver's name."""
        return "stochastic-gradient-descent"

    def sampling(self, public: Public) -> Sampling:
        """Who takes part in a step.

        Raises:
            ValueError: less than one unit is expected in a batch.
        """
        rate = required(self.rate, "rate")
        if not rate * public.n >= 1.0:
            raise ValueError(
                f"rate {rate!r} of n = {public.n} units is less than one unit a batch: give a rate of at least "
                f"1 / n = {1.0 / public.n:.3g}."
            )
        if rate >= 1.0:
            return EveryUnit()
        if self.sampler == "fixed-size":
            return FixedSize(max(1, round(rate * public.n)), public.n)
        return Poisson(rate)

    def step_event(self, public: Public) -> Event:
        """A Gaussian release on a sample."""
        event = super().step_event(public)
        return self.sampling(public).event(event)

    def derived(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """The practical setting of `practical`, where a field was left open."""
        setting = descent_defaults.sampled_setting(
            problem, public, budget, clip=self.clip, steps=self.steps, rate=self.rate, sampler=self.sampler
        )
        return replace(
            self,
            steps=setting.steps,
            clip=setting.clip,
            rate=setting.rate,
            step_size=setting.step_size if self.step_size is None else self.step_size,
        )

    def in_coordinates(self, coordinates: Coordinates) -> Self:
        """The same releases, with the clip and step size of the other coordinates; heavy ball stays as it is."""
        smoothness = coordinates.smoothness + coordinates.ridge_smoothness
        return replace(self, clip=coordinates.clip, step_size=1.0 / smoothness, smoothness=smoothness)

    def notices(self, problem: Problem, public: Public, budget: Budget) -> tuple[str, ...]:
        """A step size that is too large."""
        smoothness = self.smoothness
        if smoothness is None:
            smoothness = descent_defaults.smoothness(problem, public) + problem.regulariser.smoothness
        limit = 2.0 * (1.0 + self.momentum) / smoothness
        if self.step_size is None or self.step_size <= limit:
            return ()
        return (
            f"step_size {self.step_size:.3g} exceeds {limit:.3g}, the stability limit 2 (1 + momentum) / L of heavy "
            "ball, L the curvature of the objective: descent may diverge. A step size of 1 / L is safe.",
        )

    def passes(self) -> float:
        """A fraction `rate` of a pass a step."""
        return required(self.steps, "steps") * min(required(self.rate, "rate"), 1.0)

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Fixed-size batches have an accountant under replace-one only."""
        del problem
        if self.sampler == "fixed-size" and public.relation is not Relation.REPLACE_ONE:
            return "fixed-size sampling is priced under replace-one only: use sampler='poisson'"
        return None

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 1 with momentum, projection, prox and tail averaging, as one priced loop."""
        steps = required(self.steps, "steps")
        step = SampledStep(
            loss=problem.loss,
            regulariser=problem.regulariser,
            constraint=problem.constraint,
            noise=Gaussian(required(self.noise_multiplier, "noise_multiplier")),
            sampling=self.sampling(curator.public),
            momentum=self.momentum,
            tail_start=steps // 2,
        )
        state = SampledState(
            params=start,
            velocity=jnp.zeros_like(start),
            average=start,
            time=jnp.zeros(()),
            step_size=jnp.asarray(required(self.step_size, "step_size"), jnp.float64),
            clip=jnp.asarray(required(self.clip, "clip"), jnp.float64),
            finite=jnp.asarray(True),
        )
        state = curator.iterate(step, state, steps)
        return Outcome(state.average, ending(state.finite))
