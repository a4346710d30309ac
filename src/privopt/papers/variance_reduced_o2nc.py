"""Variance-reduced O2NC on all units: a released gradient every few steps, and released changes of it between.

Minimises F(x) + r(x), F = (1/n) sum_i f(x, xi_i), r smooth. It is here to reproduce a paper and to compare with:
averaged over a window, its noise is never below that of plain O2NC, which averages fresh gradients of the whole budget.

Source: Kornowski, Liu, Talwar 2024, Algorithms 2 and 4, and the first-order analogue that they leave out.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.ledger.events import Event, NoEvent, repeat, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning import averaging, o2nc
from privopt.planning.averaging import Estimate, two_point_values
from privopt.planning.goldstein_bounds import with_method_bounds
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.o2nc import Places, longest_move, step_length, whole_blocks
from privopt.planning.task import Forecast, Instance
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.result import Outcome, ending
from privopt.solvers.base import StepwiseSolver
from privopt.solvers.fields import choice, derived, number, optional
from privopt.solvers.needs import Need
from privopt.solvers.o2nc import O2NC
from privopt.solvers.online_to_nonconvex import (
    Estimates,
    opened,
    public_numbers,
    result,
    schedule,
    take_penalised_step,
)

# ---- Defaults, budget and forecast of multi-pass O2NC with variance reduction ------------------------------
# Of T steps on all units P = ceil(T / S) release a gradient and Q = T - P the change of it since the last step. The
# gradients have the share q of the budget, mu^2, in equal parts, the changes the rest:
#
#     z_1 = z sqrt(P / q),   z_2 = z sqrt(Q / (1 - q))      with z = 1 / mu the noise multiplier of the whole
#
# The released changes are added up within a period, so that their noise is, too.
#
# Source:
#     Kornowski, Liu, Talwar 2024, Algorithm 4, with a budget share in place of constants; utility only.
SMOOTHING = 1.0 / 16.0  # of the distance


@dataclass(frozen=True, kw_only=True)
class VarianceReducedO2NC(StepwiseSolver):
    """O2NC on all units, with gradients at the starts of short periods and changes of them between.

    Attributes:
        noise_multiplier: 1 / mu of the whole run; gradients and changes have `multipliers` times as much.
        steps: T, rounded down to whole windows; 0 returns the start and spends nothing.
        window: M, over how many steps gradients and points are averaged; at most T.
        period: S, steps from one gradient to the next; 1 is plain O2NC on smoothed gradients.
        share: q, the part of mu^2 that the gradients get.
        estimate: what is asked for: "plain" gradients of the loss as it is, gradients of its average over a ball
            ("exact" where it has a closed formula, "lune" and "translate" from random points of each unit), or
            "values" of the loss only. See `planning.averaging`.
        smoothing: radius of that ball, parameter units.
        mode: "practical": the radius falls from a quarter of the distance; "guarantee": it is constant.
        distance: R, a guess of how far a good point is from the start; sets the radii of the practical mode.
        radius: a of the guarantee mode: the points of a window lie this close to their mean.
        clip: C, the largest norm of one unit's gradient.
        slope_clip: H, of one unit's change of gradient over the distance; "lune" has none.
        draws: m, random shifts of one unit ("translate").
        typical: G, the norm of a mean gradient that the step size allows for, beside the noise.
        step_size: eta, the same at every step; by default the schedule of `planning.o2nc`.
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
    needs: ClassVar[tuple[Need, ...]] = O2NC.needs
    by_values: ClassVar[bool] = True

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

    def default_steps(self, instance: Instance) -> int:
        del instance
        return o2nc.STEPS

    def default_window(self, instance: Instance) -> int:
        return o2nc.window(self, instance)

    def default_distance(self, instance: Instance) -> float:
        return o2nc.distance(self, instance)

    def default_radius(self, instance: Instance) -> float:
        del instance
        return self.distance * o2nc.GUARANTEE_RADIUS

    def default_smoothing(self, instance: Instance) -> float:
        return averaging.smoothing(self, instance, SMOOTHING)

    def default_clip(self, instance: Instance) -> float:
        return averaging.clip(self, instance)

    def default_typical(self, instance: Instance) -> float:
        return o2nc.typical(self, instance)

    def default_returns(self, instance: Instance) -> o2nc.Returns:
        del instance
        return "last" if self.mode == "guarantee" else "tail"

    def default_estimate(self, instance: Instance) -> Estimate:
        return averaging.estimate(self, instance)

    def default_slope_clip(self, instance: Instance) -> float:
        return averaging.slope_clip(self, instance)

    def forecast(self, instance: Instance) -> Forecast:
        """The theorems' bounds and notices; no prediction of the excess."""
        meaning = "the method says where the loss is flat, not how far the result is from a minimum"
        found = averaging.few_directions(self, instance)
        if not instance.is_private:
            return Forecast(meaning=meaning, notices=(NOISE_IS_OFF, *found))
        found = (*large_delta(instance), *found)
        noise = self.noise_of_steps(instance.public, instance.parameters)
        squares = instance.parameters * float(np.mean(noise**2)) if len(noise) else 0.0
        if squares > o2nc.FAINT * self.clip**2 * self.window:
            found += (
                "the noise of a window of steps is more than ten times the clip: the steps say next to nothing. More "
                "units, a larger epsilon or fewer parameters would help.",
            )
        found += ("without variance reduction (o2nc) the noise of a window of steps is never larger.",)
        return with_method_bounds(
            Forecast(meaning=meaning, notices=found),
            instance,
            clip=self.clip,
            radius=self.radius,
            distance=self.distance,
            values=self.estimate == "values",
        )

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Smooth penalties, no constraint set, and a loss that has such estimates."""
        return super().applicable(problem, public) or averaging.obstacle(self.estimate, problem.loss)

    def event(self, public: Public) -> Event:
        """Gradients and changes."""
        del public
        noises = zip(self.multipliers(), self.counts(), strict=True)
        events = [repeat(Gaussian(multiplier).event(), count) for multiplier, count in noises if count]
        return sequence(events) if events else NoEvent()

    def releases(self) -> int:
        """One a step, in whole windows."""
        return sum(self.counts())

    def passes(self) -> float:
        """A gradient a step, and one more where it is a change."""
        gradients, changes = self.counts()
        return float(gradients + 2 * changes)

    def loss_values(self, problem: Problem, public: Public) -> float:
        """Of estimates from values, two along each direction for every record of a pass."""
        if self.estimate != "values":
            return 0.0
        directions = averaging.directions(int(np.prod(problem.parameter_shape(public))))
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
        longest, step_sizes = self.lengths_and_steps(curator.public, start.size)
        first, count = o2nc.kept(self, chosen)
        state = opened(start, schedule(longest, step_sizes, places), window=window, first=first, kept=count)
        of_gradients, of_changes = (Gaussian(multiplier) for multiplier in self.multipliers())
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

    def counts(self) -> tuple[int, int]:
        """(P, Q): how many gradients and how many changes are released."""
        total = whole_blocks(self.steps, self.window)[0]
        gradients = math.ceil(total / self.period)
        return gradients, total - gradients

    def multipliers(self) -> tuple[float, float]:
        """(z_1, z_2): the noise multipliers of gradients and changes."""
        gradients, changes = self.counts()
        share = self.share if changes else 1.0
        first = self.noise_multiplier * math.sqrt(gradients / share)
        return first, self.noise_multiplier * math.sqrt(changes / (1.0 - share)) if changes else 0.0

    def noise_of_steps(self, public: Public, parameters: int) -> NDArray[np.float64]:
        """The standard deviation of the noise in each coordinate of each step's gradient, for steps of full length."""
        total, window = whole_blocks(self.steps, self.window)
        if self.noise_multiplier == 0.0:
            return np.zeros(total)
        first, later = self.multipliers()
        unit = public.relation.factor / public.n
        variance, found = 0.0, np.zeros(total)
        for t, reach in enumerate(o2nc.radii(self)):
            if t % self.period == 0:
                variance = (first * unit * self.clip) ** 2
            else:
                length = averaging.length_of_change(
                    self.estimate,
                    longest_move([step_length(reach, window)], self.places),
                    clip=self.clip,
                    slope_clip=self.slope_clip,
                    smoothing=self.smoothing,
                    parameters=parameters,
                )
                variance += (later * unit * length) ** 2
            found[t] = math.sqrt(variance)
        return found

    def lengths_and_steps(
        self, public: Public, parameters: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(D_t, eta_t), one entry a step."""
        window = whole_blocks(self.steps, self.window)[1]
        longest = np.asarray([step_length(a, window) for a in o2nc.radii(self)])
        if self.step_size is not None:
            return longest, np.full(len(longest), float(self.step_size))
        noise = self.noise_of_steps(public, parameters)
        length = np.sqrt(self.typical**2 + parameters * noise**2)
        factor = o2nc.PROVED_STEP_FACTOR if self.mode == "guarantee" else o2nc.STEP_FACTOR
        return longest, factor * longest / (math.sqrt(window) * length)
