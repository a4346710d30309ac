"""Variance-reduced O2NC on all units: a released gradient every few steps, and released changes of it between.

Minimises F(x) + r(x), F = (1/n) sum_i f(x, xi_i), r smooth. It is here to reproduce a paper and to compare with:
averaged over a window, its noise is never below that of plain O2NC, which averages fresh gradients of the whole budget.

Source: Kornowski, Liu, Talwar 2024, Algorithms 2 and 4, and the first-order analogue that they leave out.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.events import Event, NoEvent, repeat, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning import gradient_changes, o2nc
from privopt.planning import variance_reduced_o2nc as planning
from privopt.planning.effort import two_point_values
from privopt.planning.forecast import Forecast
from privopt.planning.gradient_changes import Estimate
from privopt.planning.instance import Instance
from privopt.planning.online_to_nonconvex import Places, whole_blocks
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
class VarianceReducedO2NC(StepwiseSolver):
    """O2NC on all units, with gradients at the starts of short periods and changes of them between.

    Attributes:
        noise_multiplier: 1 / mu of the whole run; gradients and changes have `planning.multipliers` times as much.
        steps: T, rounded down to whole windows; 0 returns the start and spends nothing.
        window: M, over how many steps gradients and points are averaged; at most T.
        period: S, steps from one gradient to the next; 1 is plain O2NC on smoothed gradients.
        share: q, the part of mu^2 that the gradients get.
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
        step_size: eta, the same at every step; default the schedule of `planning.variance_reduced_o2nc`.
        places: where on each step the gradient is taken: in its "middle", or "uniform".
        returns: "tail" (mean of the last tenth of the points), "last" (of the last window), "random" (of a uniformly
            random window) or "best" (of the window whose released gradients have the shortest mean).
    Guarantee:
        T Gaussian releases with fixed multipliers, the changes of a sensitivity that follows the released distance
        between points: exactly (epsilon, delta)-DP by Gaussian-DP composition, under the curator's relation, for any
        data, loss and parameters. A change between equal points is nothing and is released as it is.
    Differs from the paper:
        clips in place of bounds that hold with high probability, which its choice of the number of directions does not
        imply; the budget is a share of mu^2; see docs/algorithms/single-pass-o2nc.md.
    Source:
        Kornowski, Liu, Talwar 2024, Algorithm 4.
    """

    name: ClassVar[str] = "variance-reduced-o2nc"
    by_values: ClassVar[bool] = True
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    window: int = derived(at_least=1)
    period: int = number(2, at_least=1)
    share: float = number(0.8, above=0, below=1)
    estimate: Estimate = derived()
    mode: Literal["practical", "guarantee"] = choice("practical")
    distance: float = derived(above=0)
    radius: float = derived(above=0)
    smoothing: float = derived(above=0)
    clip: float = derived(above=0)
    slope_clip: float = derived(above=0)
    draws: int = number(4, at_least=1)
    typical: float = derived(above=0)
    step_size: float | None = optional(above=0)
    places: Places = choice("middle")
    returns: o2nc.Returns = derived()

    def forecast(self, instance: Instance) -> Forecast:
        return planning.forecast(self, instance)

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Smooth penalties, no constraint set, and a loss that has such estimates."""
        del public
        if not isinstance(problem.constraint, Unconstrained):
            return "its points move in balls around each other and cannot be kept in a set: leave the set out"
        if not problem.regulariser.is_smooth:
            return "it adds the penalty's gradient, and the penalty has none: use a ridge or no penalty"
        return gradient_changes.obstacle(self.estimate, problem.loss)

    def event(self, public: Public) -> Event:
        """Gradients and changes."""
        del public
        noises = zip(planning.multipliers(self), planning.counts(self), strict=True)
        events = [repeat(Gaussian(multiplier).event(), count) for multiplier, count in noises if count]
        return sequence(events) if events else NoEvent()

    def releases(self) -> int:
        """One a step, in whole windows."""
        return sum(planning.counts(self))

    def passes(self) -> float:
        """A gradient a step, and one more where it is a change."""
        gradients, changes = planning.counts(self)
        return float(gradients + 2 * changes)

    def loss_values(self, problem: Problem, public: Public) -> float:
        """Of estimates from values, two along each direction for every record of a pass."""
        if self.estimate != "values":
            return 0.0
        directions = gradient_changes.directions(int(np.prod(problem.parameter_shape(public))))
        return two_point_values(public, directions, self.passes())

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 2 with the oracle of Algorithm 4."""
        total, window = whole_blocks(self.steps, self.window)
        if not total:
            return Outcome(start, ending(jnp.asarray(True)))
        places, chosen = public_numbers(
            curator, steps=total, window=window, places=self.places, of_window=self.returns == "random"
        )
        estimates = Estimates.of(self, problem.loss, curator, placed=False)
        longest, step_sizes = planning.step_sizes(self, curator.public, start.size)
        first, count = o2nc.kept(self, chosen)
        state = opened(start, schedule(longest, step_sizes, places), window=window, first=first, kept=count)
        of_gradients, of_changes = (Gaussian(multiplier) for multiplier in planning.multipliers(self))
        gradient = jnp.zeros_like(start)
        for turn in range(total):
            if turn % self.period == 0:
                query = estimates.gradient(state.at, turn)
                gradient = estimates.read(query, curator.release(query, of_gradients))
            else:
                query = estimates.change(state.at, state.before, turn)
                gradient = gradient + estimates.read(query, curator.release(query, of_changes))
            state = take_penalised_step(state, gradient, problem)
        return Outcome(result(state, flattest=self.returns == "best"), ending(state.finite))
