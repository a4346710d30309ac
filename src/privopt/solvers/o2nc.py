"""Online-to-non-convex descent (O2NC): near-stationary points of losses that need be neither smooth nor convex.

Minimises F(x) + r(x), F = (1/n) sum_i f(x, xi_i), r smooth. Noise of the steps is averaged over windows of points that
lie within a small ball, so that the mean of the released gradients shows how flat F is near their mean.
Source: Kornowski, Liu, Talwar 2024, Algorithm 2, with the plain oracle on all units in place of theirs.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.curator.loops import ReleaseCall
from privopt.ledger.events import Event, NoEvent, Parallel, Repeated, repeat
from privopt.ledger.sampling import EveryUnit, Poisson, Sampling
from privopt.mechanisms.additive import Gaussian
from privopt.planning import o2nc as planning
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.problems.ball import ball_point
from privopt.problems.constraints import Unconstrained
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.gradient import ClippedGradient
from privopt.result import Outcome, ending
from privopt.solvers.base import Defaults
from privopt.solvers.fields import choice, derived, number, optional
from privopt.solvers.o2nc_course import Course, Rows, advance
from privopt.solvers.stepwise import StepwiseSolver

START_JITTER = 1e-3  # of the first step's longest length


@dataclass(frozen=True, kw_only=True)
class O2NC(StepwiseSolver):
    """Online-to-non-convex descent on private gradients.

    Attributes:
        steps: T, rounded down to whole windows; 0 returns the start and spends nothing.
        window: M, over how many steps gradients and points are averaged; at most T.
        mode: "practical": the radius falls from a quarter of the distance; "guarantee": it is constant, as the bound
            supposes.
        distance: R, a guess of how far a good point is from the start; sets the radii of the practical mode.
        radius: a of the guarantee mode: the points of a window lie this close to their mean.
        clip: C, the largest norm of one unit's gradient.
        typical: G, the norm of a mean gradient that the step size allows for, beside the noise.
        step_size: eta, the same at every step; default the schedule of `planning.o2nc`.
        fractions: s_t, where on a step the gradient is taken: "uniform", drawn anew, or "mid", its middle.
        returns: "tail" (mean of the last tenth of the points), "last" (of the last window), "random" (of a uniformly
            random window) or "best" (of the window whose released gradients have the shortest mean).
        rate: q, each step on a secret Poisson sample of so large a part of the units; default everybody.
        blocks: each step on the next of so many disjoint random parts of the units, in turns; 1 is everybody.
    Guarantee:
        T Gaussian releases, of sensitivity factor * C / n or what the loss allows at the point if that is less (see
        `ClippedGradient`), with fixed multipliers: exactly (epsilon, delta)-DP by Gaussian-DP composition, under the
        curator's relation, for any data, loss and parameters. Samples are priced by numerical accounting; of disjoint
        parts the one that is used most often is charged. The fractions and where the start is moved to are public
        random numbers.
    Differs from the paper:
        all units at every step, no differences of gradients: less noise, and a better bound by d^(1/4); radius
        D (M + 1) / 2 in place of D M; see docs/algorithms/o2nc.md for the errata.
    Source:
        Kornowski, Liu, Talwar 2024, Algorithm 2.
    """

    name: ClassVar[str] = "o2nc"
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    window: int = derived(at_least=1)
    mode: Literal["practical", "guarantee"] = choice("practical")
    distance: float = derived(above=0)
    radius: float = derived(above=0)
    clip: float = derived(above=0)
    typical: float = derived(above=0)
    step_size: float | None = optional(above=0)
    fractions: Literal["uniform", "mid"] = choice("uniform")
    returns: planning.Returns = derived()
    rate: float | None = optional(above=0, at_most=1)
    blocks: int = number(1, at_least=1)

    def check(self) -> None:
        """Samples or parts, not both."""
        if self.rate is not None and self.blocks > 1:
            raise ValueError(
                f"rate={self.rate!r} draws secret samples and blocks={self.blocks!r} takes parts in turns: give one "
                "of them."
            )

    def forecast(self, instance: Instance) -> Forecast:
        return planning.forecast(self, instance)

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Smooth penalties and no constraint set."""
        if not isinstance(problem.constraint, Unconstrained):
            return "its points move in balls around each other and cannot be kept in a set: leave the set out"
        if not problem.regulariser.is_smooth:
            return "it adds the penalty's gradient, and the penalty has none: use a ridge or no penalty"
        if self.blocks > 1 and public.n < 2 * self.blocks:
            return f"{self.blocks} parts of n = {public.n} units have less than two units each: use fewer"
        return None

    def sampling(self) -> Sampling:
        """Who takes part in a step."""
        return EveryUnit() if self.rate is None or self.rate >= 1.0 else Poisson(self.rate)

    def step_event(self, public: Public) -> Event:
        """A Gaussian release, on a sample if there is one."""
        return self.sampling().event(super().step_event(public))

    def event(self, public: Public) -> Event:
        """One release a step; of disjoint parts each is asked in its turn."""
        total = self.releases()
        if self.blocks == 1 or not total:
            return Repeated(self.step_event(public), total)
        once = self.step_event(public)
        turns = [len(range(part, total, self.blocks)) for part in range(self.blocks)]
        return Parallel(tuple(repeat(once, times) if times else NoEvent() for times in turns))

    def releases(self) -> int:
        """One a step, in whole windows."""
        return planning.rounds(self)

    def passes(self) -> float:
        """A sample or a part a step, else a pass."""
        return self.releases() * (self.rate or 1.0) / self.blocks

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 2."""
        total = self.releases()
        if not total:
            return Outcome(start, ending(jnp.asarray(True)))
        schedule = planning.schedule(
            self,
            parameters=start.size,
            stddev=self._stddev(curator.public),
            chosen=self._chosen_window(curator, total),
        )
        start, fractions = self._random(curator, start, total, schedule.radius[0])
        rows = Rows.of(schedule, fractions)
        course = Course.at_rest(start, schedule.kept)
        noise = Gaussian(self.noise_multiplier)
        if isinstance(self.sampling(), EveryUnit):
            curators = curator.blocks(self.blocks) if self.blocks > 1 else [curator]
            for turn in range(total):
                query = ClippedGradient(loss=problem.loss, at=course.at, clip=self.clip)
                gradient = curators[turn % self.blocks].release(query, noise)
                course = advance(course, gradient, rows, problem)
        else:
            step = SampledStep(noise=noise, sampling=self.sampling())
            state = SampledState(course, rows, problem, jnp.asarray(self.clip, jnp.float64))
            course = curator.iterate(step, state, total).course
        return Outcome(course.mean, ending(course.finite))

    def _stddev(self, public: Public) -> float:
        """sigma, of a coordinate of one released gradient."""
        if self.noise_multiplier == 0.0:
            return 0.0
        units = public.n * (self.rate or 1.0) / self.blocks
        return self.noise_multiplier * public.relation.factor * self.clip / units

    def _chosen_window(self, curator: Curator, total: int) -> int:
        """The window that is returned, where it is a random one."""
        if self.returns != "random":
            return 0
        windows = total // min(self.window, total)
        return int(np.random.default_rng(curator.public_seed("random window")).integers(windows))

    def _random(
        self, curator: Curator, start: Array, total: int, longest: float
    ) -> tuple[Array, NDArray[np.float64]]:
        """The start, moved off a kink that it may sit on, and s_1, ..., s_T."""
        if self.fractions == "mid":
            return start, np.full(total, 0.5)
        seed = curator.public_seed("fractions of steps")
        point = ball_point(jax.random.key(seed), start.size).reshape(start.shape)
        return start + START_JITTER * longest * point, np.random.default_rng(seed).uniform(size=total)


class SampledState(NamedTuple):
    """Where the descent stands, and what one compiled loop serves for any value of."""

    course: Course  # a function of released values
    rows: Rows
    problem: Problem
    clip: Float[Array, ""]


@dataclass(frozen=True, kw_only=True)
class SampledStep:
    """One step, hashable by value so that equal configurations share one compiled loop."""

    noise: Gaussian
    sampling: Sampling

    def __call__(self, state: SampledState, release: ReleaseCall) -> SampledState:
        """g = released mean over the sampled units, then a step along it."""
        query = ClippedGradient(loss=state.problem.loss, at=state.course.at, clip=state.clip)
        gradient = release(query, self.noise, self.sampling)
        return state._replace(course=advance(state.course, gradient, state.rows, state.problem))
