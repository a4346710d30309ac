"""Full-batch private gradient descent whose noise falls geometrically: a baseline for the methods with a KL condition.

Solves min_x F(x) + r(x) over a constraint set, F = (1/n) sum_i f(x, xi_i), by T plain steps and returns the last
iterate. The comment below has how T and the schedule follow from public numbers.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from privopt.curator.base import Curator
from privopt.later import Array
from privopt.ledger.events import Event
from privopt.planning import descent_theory
from privopt.planning.descent_theory import budget_shares, predicted_path, trace_ratio
from privopt.planning.kl_theory import horizon
from privopt.planning.notices import long_steps
from privopt.planning.task import Forecast, Instance
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.result import Outcome
from privopt.solvers.base import StepwiseSolver
from privopt.solvers.fields import derived, number
from privopt.solvers.gradient_descent import GradientDescent

# ---- Steps, schedule and prediction of gradient descent whose noise falls geometrically --------------------
# With R_w a guess of how far the solution is, p parameters, and s the noise of one gradient that the whole budget
# bought,
#
#     step size   eta = 1 / (L1 + lambda)
#     horizon     h = R_w / (2 sqrt(p) s): a longer path mostly fits noise
#     steps       T = h / eta, between 10 and `most_steps`
#     budget      step t gets the share q^t / sum_s q^s of rho, q = ratio^(1 / (T - 1))
#
# For a mode of curvature c the final variance is least for shares proportional to (1 - eta c)^(T-1-t): an early step's
# noise has shrunk by the end. Equal shares pay about ln(F_0 / F_T) / 4 times as much, F_0 / F_T the mode's contraction.
# Utility only.
FEWEST_STEPS = 10
DISTANCE = 10.0  # R_w times the row bound R, for features of about the row bound's size
FLAT = 1.05  # fewer passes are taken where they are predicted to cost at most this factor of the excess


def contraction(ratio: float, steps: int) -> float:
    """a of `budget_shares`, whose shares grow by 1 / sqrt(a) a step."""
    return 1.0 if steps < 2 else ratio ** (-2.0 / (steps - 1))


@dataclass(frozen=True, kw_only=True)
class ScheduledGradientDescent(StepwiseSolver):
    """Full-batch private gradient descent with geometrically falling noise.

    Attributes:
        steps: T, at least 0; 0 returns the start and spends nothing.
        step_size: eta, in params^2 / objective units.
        clip: C, the largest norm of one unit's gradient.
        ratio: the last step's share of the budget over the first's, at least 1; 1 is equal noise.
        distance: R_w, a guess of the distance from the start to the solution; default 10 / R, R the row bound.
        curvature: L1, the largest curvature of one record's loss; default that of the loss, or a guess. Utility only.
        most_steps: T is at most this.
        growth: the KL condition of the objective; default that of the problem. With it, T is the least one whose
            predicted excess is within 5 % of the best, and the plan has a prediction.
    Guarantee:
        That of `GradientDescent`: T Gaussian releases of fixed multipliers, exactly (epsilon, delta)-DP.
    Differs from the paper:
        few steps from the horizon and falling noise, in place of constant noise and a step count from the analysis.
    Source:
        Wang, Ye, Xu 2017, Algorithm 4; Menart, Ullah, Arora, Bassily, Guzman 2023 compare with it.
    """

    name: ClassVar[str] = "scheduled-gradient-descent"

    step_size: float = derived(above=0)
    clip: float = derived(above=0)
    ratio: float = number(30.0, at_least=1, below=math.inf)
    distance: float = derived(above=0, below=math.inf)
    curvature: float = derived(above=0)
    most_steps: int = number(1000, at_least=1)
    growth: KL | None = None

    def default_clip(self, instance: Instance) -> float:
        return descent_theory.default_clip(instance)

    def default_curvature(self, instance: Instance) -> float:
        return descent_theory.smoothness(instance)

    def default_step_size(self, instance: Instance) -> float:
        return 1.0 / self.assumed_smoothness(instance)

    def default_distance(self, instance: Instance) -> float:
        return DISTANCE / instance.public.row_bound

    def default_growth(self, instance: Instance) -> KL | None:
        return instance.growth

    def default_steps(self, instance: Instance) -> int:
        """T of the horizon rule, or the fewest steps with nearly the best prediction."""
        if not instance.is_private:
            return self.most_steps
        noise = descent_theory.noise_of_one(instance, self.clip)
        longest = horizon(self.distance, instance.parameters, noise)
        by_horizon = math.ceil(min(longest / self.step_size, self.most_steps))
        candidates = sorted(
            {round(1.15**k) for k in range(200) if 1.15**k < self.most_steps} | {self.most_steps}
        )
        predicted = {t: self.predicted_excess(instance, t) for t in candidates}
        known = {t: excess for t, excess in predicted.items() if excess is not None}
        if not known:
            return min(max(by_horizon, FEWEST_STEPS), self.most_steps)
        best = min(known.values())
        return next(t for t, excess in known.items() if excess <= FLAT * best)

    @property
    def descent(self) -> GradientDescent:
        """The gradient descent that it is: no momentum, the last iterate, geometric shares."""
        return GradientDescent(
            steps=self.steps,
            step_size=self.step_size,
            clip=self.clip,
            momentum=0.0,
            returns="last",
            shares="geometric",
            contraction=contraction(self.ratio, self.steps),
            noise_multiplier=self.noise_multiplier,
        )

    def longest_step(self, instance: Instance) -> float:
        """Of gradient steps."""
        return self.gradient_limit(instance)

    def forecast(self, instance: Instance) -> Forecast:
        """The recursion of `predicted_path`, where the growth is known."""
        plain = descent_theory.forecast(instance, steps=self.steps, clip=self.clip)
        plain = plain.noting(*long_steps(self.step_size, self.assumed_smoothness(instance)))
        excess = self.predicted_excess(instance, self.steps) if self.steps else None
        if excess is None:
            meaning = (
                "no formula without a KL condition of kappa up to 2 and a bound on the excess of the start"
            )
        else:
            meaning = "expected under the KL condition, while no gradient is clipped and eta <= 2 / L"
        return replace(plain, excess=excess, meaning=meaning, for_convex=False)

    def event(self, public: Public) -> Event:
        """T Gaussian releases."""
        return self.descent.event(public)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Plain steps x = prox(x - eta (g + grad r(x))) with less noise from step to step."""
        return self.descent.run(curator, problem, start)

    def assumed_smoothness(self, instance: Instance) -> float:
        """L1 + lambda, of the objective."""
        return self.curvature + instance.penalty_smoothness

    def predicted_excess(self, instance: Instance, steps: int) -> float | None:
        """The recursion of `predicted_path` for T steps; None without a KL condition and a finite gap."""
        growth, clip = self.growth, self.clip
        if growth is None or growth.kappa > 2.0 or not math.isfinite(growth.gap_within(clip)):
            return None  # above 2 no objective is smooth, which the recursion takes it to be
        noise = descent_theory.noise_of_one(instance, clip)
        shares = budget_shares("geometric", steps, contraction(self.ratio, steps))
        curved = self.assumed_smoothness(instance)
        return predicted_path(
            growth,
            gap=growth.gap_within(clip),
            step_size=self.step_size,
            smoothness=curved,
            trace=curved * trace_ratio(instance.problem, instance.public),
            noises=noise / np.sqrt(shares),
        )
