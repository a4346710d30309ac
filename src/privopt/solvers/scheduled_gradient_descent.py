"""Full-batch private gradient descent whose noise falls geometrically: a baseline for the methods with a KL condition.

Solves min_x F(x) + r(x) over a constraint set, F = (1/n) sum_i f(x, xi_i), by T plain steps and returns the last
iterate. `planning.scheduled_gradient_descent` has how T and the schedule follow from public numbers.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.events import Event
from privopt.planning import scheduled_gradient_descent as planning
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.result import Outcome
from privopt.solvers.base import Defaults
from privopt.solvers.fields import derived, number
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.stepwise import StepwiseSolver


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
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    step_size: float = derived(above=0)
    clip: float = derived(above=0)
    ratio: float = number(30.0, at_least=1, below=math.inf)
    distance: float = derived(above=0, below=math.inf)
    curvature: float = derived(above=0)
    most_steps: int = number(1000, at_least=1)
    growth: KL | None = None

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
            contraction=planning.contraction(self.ratio, self.steps),
            noise_multiplier=self.noise_multiplier,
        )

    def longest_step(self, instance: Instance) -> float:
        """Of gradient steps."""
        return self.gradient_limit(instance)

    def forecast(self, instance: Instance) -> Forecast:
        return planning.forecast(self, instance)

    def event(self, public: Public) -> Event:
        """T Gaussian releases."""
        return self.descent.event(public)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Plain steps x = prox(x - eta (g + grad r(x))) with less noise from step to step."""
        return self.descent.run(curator, problem, start)
