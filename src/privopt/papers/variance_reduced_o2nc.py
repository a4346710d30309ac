"""Variance-reduced O2NC on all units: a released gradient every few steps, and released changes of it between.

Minimises F(x) + r(x), F = (1/n) sum_i f(x, xi_i), r smooth. It is here to reproduce a paper and to compare with:
averaged over a window, its noise is never below that of plain O2NC, which averages fresh gradients of the whole budget.

Source: Kornowski, Liu, Talwar 2024, Algorithms 2 and 4, and the first-order analogue that they leave out.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.later import Array, jnp
from privopt.ledger.events import Event, NoEvent, repeat, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.papers.reduced_o2nc import Estimate, Estimates, ReducedO2NC
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.base import MeanQuery
from privopt.solvers.fields import choice, derived, number, optional
from privopt.solvers.online_to_nonconvex import Mode, Places, Returns, longest_move


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
@dataclass(frozen=True, kw_only=True)
class VarianceReducedO2NC(ReducedO2NC):
    """O2NC on all units, with gradients at the starts of short periods and changes of them between.

    Attributes:
        noise_multiplier: 1 / mu of the whole run; gradients and changes have `multipliers` times as much.
        steps: T, rounded down to whole windows; 0 returns the start and spends nothing.
        window: M, over how many steps gradients and points are averaged; at most T.
        period: S, steps from one gradient to the next; 1 is plain O2NC on smoothed gradients.
        share: q, the part of mu^2 that the gradients get.
        estimate: what is asked for: "plain" gradients of the loss as it is, gradients of its average over a ball
            ("exact" where it has a closed formula, "lune" and "translate" from random points of each unit), or
            "values" of the loss only. See `papers.reduced_o2nc`.
        smoothing: radius of that ball, parameter units.
        mode: "practical": the radius falls from a quarter of the distance; "guarantee": it is constant.
        distance: R, a guess of how far a good point is from the start; sets the radii of the practical mode.
        radius: a of the guarantee mode: the points of a window lie this close to their mean.
        clip: C, the largest norm of one unit's gradient.
        slope_clip: H, of one unit's change of gradient over the distance; "lune" has none.
        draws: m, random shifts of one unit ("translate").
        typical: G, the norm of a mean gradient that the step size allows for, beside the noise.
        step_size: eta, the same at every step; by default the schedule of `solvers.online_to_nonconvex`.
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
    faint_advice: ClassVar[str] = (
        "the steps say next to nothing. More units, a larger epsilon or fewer parameters would help."
    )

    window: int = derived(at_least=1)
    period: int = number(2, at_least=1)
    share: float = number(0.8, above=0, below=1)
    estimate: Estimate = derived()
    mode: Mode = choice("practical")
    distance: float = derived(above=0)
    radius: float = derived(above=0)
    smoothing: float = derived(above=0)
    clip: float = derived(above=0)
    slope_clip: float = derived(above=0)
    draws: int = number(4, at_least=1)
    typical: float = derived(above=0)
    step_size: float | None = optional(above=0)
    places: Places = choice("middle")
    returns: Returns = derived()

    @property
    def smoothing_share(self) -> float:
        """The radius of the smoothing ball over the distance R."""
        return 1.0 / 16.0

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Smooth penalties, no constraint set, and a loss that has such estimates."""
        return super().applicable(problem, public) or self.estimate_obstacle(problem.loss)

    def own_notices(self) -> tuple[str, ...]:
        """That plain gradients are no noisier."""
        return ("without variance reduction (o2nc) the noise of a window of steps is never larger.",)

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

    def asked(self, n: int) -> float:
        """The passes."""
        del n
        return self.passes()

    def gradients(
        self, curator: Curator, estimates: Estimates, start: Array
    ) -> Callable[[MeanQuery, int], Array]:
        """A gradient where a period opens, else the last one and the released change of it (Algorithm 4)."""
        of_gradients, of_changes = (Gaussian(multiplier) for multiplier in self.multipliers())
        gradient = jnp.zeros_like(start)

        def released(query: MeanQuery, turn: int) -> Array:
            nonlocal gradient
            opens = turn % self.period == 0
            answer = estimates.read(query, curator.release(query, of_gradients if opens else of_changes))
            gradient = answer if opens else gradient + answer
            return gradient

        return released

    def counts(self) -> tuple[int, int]:
        """(P, Q): how many gradients and how many changes are released."""
        total = self.windows.steps
        gradients = math.ceil(total / self.period)
        return gradients, total - gradients

    def multipliers(self) -> tuple[float, float]:
        """(z_1, z_2): the noise multipliers of gradients and changes."""
        gradients, changes = self.counts()
        share = self.share if changes else 1.0
        first = self.noise_multiplier * math.sqrt(gradients / share)
        return first, self.noise_multiplier * math.sqrt(changes / (1.0 - share)) if changes else 0.0

    def noise_of_steps(self, public: Public, parameters: int) -> NDArray[np.float64]:
        """The standard deviation of the noise per coordinate of each step's gradient, (T,), for the longest steps."""
        windows = self.windows
        if self.noise_multiplier == 0.0:
            return np.zeros(windows.steps)
        first, later = self.multipliers()
        unit = public.relation.factor / public.n
        variance, found = 0.0, np.zeros(windows.steps)
        for t, longest in enumerate(windows.longest):
            if t % self.period == 0:
                variance = (first * unit * self.clip) ** 2
            else:
                farthest = longest_move([longest], self.places)
                variance += (later * unit * self.length_of_change(farthest, parameters, self.clip)) ** 2
            found[t] = math.sqrt(variance)
        return found

    def noise_square(self, noise: NDArray[np.float64]) -> NDArray[np.float64]:
        """Of each step."""
        return noise**2
