"""Plans of KL Spider: how far down, in which phases, at which price. Pure functions of public numbers.

Phase k takes the excess from a bound Phi_{k-1} to a bound Phi_k. With F (gamma, kappa)-KL and L-smooth, records' losses
L1-smooth with gradients of norm at most C, p parameters, D(r) = factor * r / n the sensitivity of a mean of vectors of
norm at most r, e the relative error allowed in a gradient, theta = 1 - 2 e and a = theta^2 / 2:

    gradient     G = Phi_k^(1/kappa) / gamma           above Phi_k the gradient is longer than this
    step length  l = theta G / L                       each step is that long
    threshold    (1 - e) G                             an estimate shorter than this ends the phase
    steps        T = ceil((Phi_{k-1} - Phi_k) L / (a G^2))
    difference   r = min(2 C, c L1 l)               how far a step may change one record's gradient
    price        (D(C) + (T - 1) D(r))^2 q^2 / (2 e^2 G^2),    q = sqrt(p) + sqrt(2 ln(N / beta))

Every step with an estimate above the threshold lowers F by at least a G^2 / L, so T of them suffice; an estimate below
it proves |grad F| <= G and with that the excess. Within a phase a release of sensitivity s gets variance s / (2 lam),
which costs lam s: the cheapest split for a given sum of variances, which is what the error of the last estimate is made
of. N is the number of error events that share the failure probability beta. The goals Phi_k fall geometrically, at a
ratio that is chosen with their number: later phases have smaller gradients and cost more, so the sum is dominated by
the last ones and does not grow with their number.

Source:
    Menart, Ullah, Arora, Bassily, Guzman 2023, Algorithm 1, Theorem 1 and Lemma 2 (the phases and their analysis).
    The price rule, the free ratio and the bisection for the lowest goal are ours.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privopt.problems.growth import KL

MOST_PHASES = 60
HALVINGS, DEPTH, LEAST_RATIO = 60, 60.0, 1.05  # bisection: goals from gap / e^60 to gap / 1.05
ROUNDING = 1e-9  # of a number of steps before it is rounded up

# One entry for every phase of every plan of 1, 2, ..., 60 phases.
_NUMBERS = np.arange(1, MOST_PHASES + 1)
_OF = np.repeat(_NUMBERS, _NUMBERS)
_STARTS = np.concatenate([[0], np.cumsum(_NUMBERS)[:-1]])
_SHARES = (np.arange(len(_OF)) - np.repeat(_STARTS, _NUMBERS) + 1.0) / _OF


class Phase(NamedTuple):
    """One phase; see the module.

    Attributes:
        goal: the bound Phi_k on the excess after it.
        steps: T, the most steps.
        threshold: an estimate of the gradient shorter than this ends the phase.
        length: of a step.
        radius: the clip of a difference between two points at that distance.
        anchor_cost: rho of the first release, of a gradient.
        difference_cost: rho of each later one.
    """

    goal: float
    steps: int
    threshold: float
    length: float
    radius: float
    anchor_cost: float
    difference_cost: float

    @property
    def cost(self) -> float:
        """The rho of a phase that takes all its steps."""
        return self.anchor_cost + (self.steps - 1) * self.difference_cost


class Descent(NamedTuple):
    """A plan of equal ratios: the last goal, the number of phases, the steps of all of them, and their price."""

    goal: float
    phases: int
    steps: int
    cost: float

    def fits(self, rho: float) -> bool:
        """Whether it is paid for; an infinite cost never is."""
        return math.isfinite(self.cost) and self.cost <= rho


@dataclass(frozen=True, kw_only=True)
class PhasePlanner:
    """The public numbers that plans are made from.

    Attributes:
        growth: the KL condition.
        clip: C, the largest norm of one unit's gradient.
        curvature: L1, of one record's loss.
        smoothness: L, of the objective.
        parameters: p.
        units: n.
        factor: 2 under replace-one, 1 under add-or-remove-one; 0 without noise.
        relative_error: e.
        failure: beta.
        difference_clip: c; below 1 differences may be clipped, which the bound does not cover.
        most_steps: of all phases together.
    """

    growth: KL
    clip: float
    curvature: float
    smoothness: float
    parameters: int
    units: int
    factor: int
    relative_error: float = 0.25
    failure: float = 0.1
    difference_clip: float = 1.0
    most_steps: int = 1_000_000

    @property
    def shortening(self) -> float:
        """theta = 1 - 2 e, a step's length over G / L."""
        return 1.0 - 2.0 * self.relative_error

    def sensitivity(self, radius: Any) -> Any:
        """D(r); 0 without noise."""
        return radius * (self.factor / self.units) if self.factor else 0.0 * np.minimum(radius, 1.0)

    def spread(self, events: Any) -> Any:
        """q: a Gaussian of p coordinates is longer in one of so many events with probability at most beta."""
        return math.sqrt(self.parameters) + np.sqrt(2.0 * np.log(np.maximum(events, 1) / self.failure))

    def phases(self, gap: float, goal: float, number: int, events: int | None = None) -> list[Phase]:
        """The phases from `gap` to `goal` by equal ratios.

        Args:
            gap: Phi_0.
            goal: Phi_K.
            number: K.
            events: N; default the number of steps.
        """
        shares = np.arange(1, number + 1) / number
        goals, gradients, steps = self._lengths(gap, goal, shares, np.asarray(number))
        radii, totals = self._totals(gradients, steps)
        errors = (
            self.relative_error * gradients / self.spread(steps.sum() if events is None else events)
        ) ** 2
        prices = totals / (2.0 * errors)  # lam, rho per unit of sensitivity
        return [
            Phase(
                goal=float(goals[k]),
                steps=int(steps[k]),
                threshold=float((1.0 - self.relative_error) * gradients[k]),
                length=float(self.shortening * gradients[k] / self.smoothness),
                radius=float(radii[k]),
                anchor_cost=float(prices[k] * self.sensitivity(self.clip)),
                difference_cost=float(prices[k] * self.sensitivity(radii[k])),
            )
            for k in range(number)
        ]

    def cheapest(
        self, gap: float, goal: float, events: int | None = None, most_steps: int | None = None
    ) -> Descent:
        """The number of phases, at most 60, with which this goal is cheapest; infinitely dear if it takes too long.

        Args:
            gap: Phi_0.
            goal: Phi_K.
            events: N; default the number of steps of each plan.
            most_steps: default that of the planner.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            _, gradients, steps = self._lengths(gap, goal, _SHARES, _OF)
            _, totals = self._totals(gradients, steps)
            taken = np.add.reduceat(steps, _STARTS)
            spread = self.spread(taken if events is None else events)
            costs = np.add.reduceat((totals / gradients) ** 2, _STARTS) * spread**2
            costs = costs / (2.0 * self.relative_error**2)
        allowed = taken <= (self.most_steps if most_steps is None else most_steps)
        costs = np.where(allowed & (costs >= 0), costs, np.inf)
        best = int(np.argmin(costs))
        return Descent(goal, best + 1, int(min(taken[best], 1e18)), float(costs[best]))

    def lowest(
        self, gap: float, rho: float, events: int | None = None, most_steps: int | None = None
    ) -> Descent | None:
        """The lowest goal that `rho` pays for, by bisection; None where not even gap / 1.05 is paid for.

        Args:
            gap: Phi_0.
            rho: the budget in zCDP; infinite without noise.
            events: see `cheapest`.
            most_steps: see `cheapest`.
        """
        highest = self.cheapest(gap, gap / LEAST_RATIO, events, most_steps)
        if not highest.fits(rho):
            return None
        low, high, best = math.log(gap) - DEPTH, math.log(gap / LEAST_RATIO), highest
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            found = self.cheapest(gap, math.exp(middle), events, most_steps)
            if found.fits(rho):
                high, best = middle, found
            else:
                low = middle
        return best

    def plan(
        self, gap: float, rho: float, events: int | None = None, most_steps: int | None = None
    ) -> list[Phase]:
        """The phases to the lowest goal; none where no goal is paid for."""
        best = self.lowest(gap, rho, events, most_steps)
        return [] if best is None else self.phases(gap, best.goal, best.phases, events)

    def first_plan(self, gap: float, rho: float) -> tuple[list[Phase], int]:
        """The phases of a run, and N, which their steps do not exceed: twice those of the plan that pays for its own.

        With N fixed more steps cost no more failure probability, so a new plan has more of them, and must be limited.
        """
        alone = self.lowest(gap, rho)
        if alone is None:
            return [], 0
        events = 2 * alone.steps
        return self.plan(gap, rho, events, min(events, self.most_steps)), events

    def plan_again(
        self, queue: list[Phase], gap: float, rho: float, events: int, most_steps: int
    ) -> list[Phase]:
        """The phases of a new plan, or those left of the old one if they end lower.

        Args:
            queue: what is left of the old plan; `rho` and `most_steps` suffice for it.
            gap: the bound proved so far.
            rho: what is left of the budget.
            events: N, fixed before the run.
            most_steps: how many may be taken so that there are no more events than N.
        """
        found = self.plan(gap, rho, events, most_steps)
        return queue if queue and (not found or found[-1].goal > queue[-1].goal) else found

    def units_needed(self, gap: float, rho: float) -> float:
        """The number of units from which this budget pays for any progress; infinite if it takes too many steps."""
        first = self.cheapest(gap, gap / LEAST_RATIO)
        scale = math.sqrt(first.cost / rho) if math.isfinite(first.cost) else math.inf
        return self.units * scale  # a price falls with the square of n

    def _lengths(
        self, gap: float, goal: float, shares: NDArray[np.float64], number: NDArray[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """The goals, gradients and steps of phases that have gone these shares of the way, in `number` phases."""
        way, kappa = math.log(gap / goal), self.growth.kappa
        goals = gap * np.exp(-way * shares)
        gradients = self.growth.gradient_at(gap) * np.exp((-way / kappa) * shares)
        descent = self.shortening**2 / 2.0
        falls = np.expm1(way / number) * goals
        steps = np.ceil(falls * self.smoothness / (descent * gradients**2) - ROUNDING)
        return goals, gradients, np.maximum(steps, 1.0)

    def _totals(
        self, gradients: NDArray[np.float64], steps: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The clips of differences, and the sum of the sensitivities of a phase."""
        slope = self.difference_clip * self.curvature * self.shortening / self.smoothness
        radii = np.minimum(2.0 * self.clip, slope * gradients)
        return radii, self.sensitivity(self.clip) + (steps - 1.0) * self.sensitivity(radii)
