"""Single-pass O2NC: near-stationary points of losses that need be neither smooth nor convex, every unit read once.

Minimises F(x) + r(x), F the mean loss of the units and r smooth. Every step has a batch of its own. With variance
reduction a step asks for the change of the gradient since the last one, and the sums of these changes carry noise that
is correlated over a period of steps; all periods share one stream, charged as one release.

Source: Kornowski, Liu, Talwar 2024, Algorithms 2, 3 and 5.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.events import Event, NoEvent, Parallel, Sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.drawable import require_drawable_sums
from privopt.mechanisms.prefix_sum import PrefixSum
from privopt.planning import gradient_changes, o2nc
from privopt.planning import single_pass_o2nc as planning
from privopt.planning.effort import two_point_values
from privopt.planning.forecast import Forecast
from privopt.planning.gradient_changes import Estimate
from privopt.planning.instance import Instance
from privopt.planning.online_to_nonconvex import Places, whole_blocks
from privopt.planning.plan import Plan
from privopt.problems.constraints import Unconstrained
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.result import Outcome, ending
from privopt.solvers.base import Defaults
from privopt.solvers.fields import choice, derived, number, optional
from privopt.solvers.gradient_estimates import Estimates
from privopt.solvers.online_to_nonconvex import (
    opened,
    public_numbers,
    result,
    schedule,
    take_penalised_step,
)
from privopt.solvers.stepwise import StepwiseSolver


@dataclass(frozen=True, kw_only=True)
class SinglePassO2NC(StepwiseSolver):
    """O2NC in one pass over disjoint random batches.

    Attributes:
        steps: T, rounded down to whole windows; 0 returns the start and spends nothing.
        window: M, over how many steps gradients and points are averaged; at most T.
        variance_reduction: whether steps within a period ask for changes of the gradient; by default every step asks
            for a gradient, which was better in most measurements.
        period: S, steps of a period; 1 without variance reduction.
        share: part of the units in the batches at the periods' starts.
        estimate: what is asked for: "plain" gradients of the loss as it is, gradients of its average over a ball
            ("exact" where it has a closed formula, "lune" and "translate" from random points of each unit), or
            "values" of the loss only. See `planning.gradient_changes`.
        smoothing: radius of that ball, parameter units.
        mode: "practical": the radius falls from a quarter of the distance; "guarantee": it is constant.
        distance: R, a guess of how far a good point is from the start; sets the radii of the practical mode.
        radius: a of the guarantee mode: the points of a window lie this close to their mean.
        clip: C, the largest norm of one unit's gradient.
        slope_clip: H, of one unit's change of gradient over the distance; "lune" has none.
        draws: m, random shifts of one unit ("translate").
        typical: G, the norm of a mean gradient that the step size allows for, beside the noise.
        step_size: eta, the same at every step; default the schedule of `planning.single_pass_o2nc`.
        places: where on each step the gradient is taken: "uniform" (anywhere, by public chance) or in its "middle",
            which halves the longest change.
        returns: "tail" (mean of the last tenth of the points), "last" (of the last window), "random" (of a uniformly
            random window) or "best" (of the window whose released gradients have the shortest mean).
        strategy: how the noise of a period is correlated: "optimum", or "blocks" (an independent first item, then a
            square root).
    Guarantee:
        One Gaussian release, for any data, loss and parameters, under the curator's relation: every unit is in one
        batch. With variance reduction every batch is an item of one stream whose strategy is lower triangular with
        unit columns, see `PrefixSum`; without, batches are disjoint and each has one release. Sensitivities follow the
        released points; places and directions are public random numbers.
    Differs from the paper:
        clips in place of bounds that hold with high probability; factorised noise in place of a tree that, as printed,
        releases the last item of a period without noise; see docs/algorithms/single-pass-o2nc.md.
    Source:
        Kornowski, Liu, Talwar 2024, Algorithm 3 (values) and Algorithm 5 (gradients).
    """

    name: ClassVar[str] = "single-pass-o2nc"
    by_values: ClassVar[bool] = True
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    window: int = derived(at_least=1)
    variance_reduction: bool = False
    period: int = derived(at_least=1)
    share: float = number(0.6, above=0, below=1)
    estimate: Estimate = derived()
    smoothing: float = derived(above=0)
    mode: Literal["practical", "guarantee"] = choice("practical")
    distance: float = derived(above=0)
    radius: float = derived(above=0)
    clip: float = derived(above=0)
    slope_clip: float = derived(above=0)
    draws: int = number(4, at_least=1)
    typical: float = derived(above=0)
    step_size: float | None = optional(above=0)
    places: Places = derived()
    returns: o2nc.Returns = derived()
    strategy: Literal["optimum", "blocks"] = choice("optimum")

    def check(self) -> None:
        """A period of several steps is variance reduction."""
        if self.is_set("period") and self.period > 1 and not self.variance_reduction:
            raise ValueError(
                f"period={self.period} releases changes of gradients: give variance_reduction=True with it, or "
                "leave it out."
            )

    def forecast(self, instance: Instance) -> Forecast:
        return planning.forecast(self, instance)

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Smooth penalties, no constraint set, and a loss that has such estimates."""
        if not isinstance(problem.constraint, Unconstrained):
            return "its points move in balls around each other and cannot be kept in a set: leave the set out"
        if not problem.regulariser.is_smooth:
            return "it adds the penalty's gradient, and the penalty has none: use a ridge or no penalty"
        if self.is_set("steps") and public.n < 2 * self.steps:
            return f"{self.steps} batches of n = {public.n} units have less than two units each: take fewer steps"
        return gradient_changes.obstacle(self.estimate, problem.loss)

    @property
    def rounds(self) -> int:
        """T in whole windows."""
        return planning.rounds(self)

    @property
    def reduces(self) -> bool:
        """Whether any step asks for a change."""
        return self.period > 1 and self.rounds > 1

    def stream(self, n: int, parameters: int) -> PrefixSum:
        """The noise of all periods, one after the other."""
        strategy = planning.run_strategy(self, n, parameters)
        return PrefixSum(strategy=strategy, noise_multiplier=self.noise_multiplier)

    def plan(self, instance: Instance) -> Plan:
        """The plan, refused where there is no room for the noise of the sums."""
        solver, n = self.configure(instance), instance.public.n
        entries = math.prod(instance.problem.parameter_shape(instance.public))
        if solver.reduces:
            require_drawable_sums(solver.noise_multiplier, entries, lambda: solver.stream(n, entries))
        return super().plan(instance)

    def event(self, public: Public) -> Event:
        """The stream, charged when it opens, and blocks that feed it; or a release on every block."""
        total, once = self.rounds, Gaussian(self.noise_multiplier).event()
        if not total:
            return NoEvent()
        planning.batches(self, public.n)  # refuses those of fewer than two units
        if not self.reduces:
            return Parallel((once,) * total)
        return Sequence((once, Parallel((NoEvent(),) * total)))

    def releases(self) -> int:
        """One a step, and the opening of the stream if there is one."""
        return self.rounds + (1 if self.rounds and self.reduces else 0)

    def passes(self) -> float:
        """One over all batches, at two points where there are changes."""
        if not self.rounds:
            return 0.0
        return 2.0 - self.share if self.reduces else 1.0

    def loss_values(self, problem: Problem, public: Public) -> float:
        """Of estimates from values, two along each direction for every record that a step asks."""
        if self.estimate != "values" or not self.rounds:
            return 0.0
        directions = gradient_changes.directions(int(np.prod(problem.parameter_shape(public))))
        return two_point_values(public, directions, planning.asked(self, public.n) / public.n)

    def estimates(self, curator: Curator, problem: Problem) -> Estimates:
        """What the steps ask for."""
        return Estimates.of(self, problem.loss, curator, placed=self.reduces)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 2 with the oracle of Algorithms 3 and 5."""
        total, window = whole_blocks(self.steps, self.window)
        if not total:
            return Outcome(start, ending(jnp.asarray(True)))
        places, chosen = public_numbers(
            curator, steps=total, window=window, places=self.places, of_window=self.returns == "random"
        )
        estimates = self.estimates(curator, problem)
        longest, step_sizes = planning.step_sizes(self, curator.public, start.size)
        first, count = o2nc.kept(self, chosen)
        state = opened(start, schedule(longest, step_sizes, places), window=window, first=first, kept=count)
        noise, stream = Gaussian(self.noise_multiplier), None
        if self.reduces:
            stream = curator.stream(
                "sums of gradient changes", self.stream(curator.public.n, start.size), start.shape
            )
        prefix = earlier = jnp.zeros_like(start)
        for turn, batch in enumerate(curator.blocks(planning.batches(self, curator.public.n))):
            opens = turn % self.period == 0
            query = (
                estimates.gradient(state.at, turn)
                if opens
                else estimates.change(state.at, state.before, turn)
            )
            if stream is None:
                gradient = estimates.read(query, batch.release(query, noise))
            else:
                earlier = prefix if opens else earlier  # the sum of all earlier periods, as released
                prefix = jnp.asarray(stream.ask("add", query, on=batch))
                gradient = prefix - earlier
            state = take_penalised_step(state, gradient, problem)
        return Outcome(result(state, flattest=self.returns == "best"), ending(state.finite))
