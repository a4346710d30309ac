"""Full-batch private gradient descent whose noise falls geometrically: a baseline for the methods with a KL condition.

Solves min_x F(x) + r(x) over a constraint set, F = (1/n) sum_i f(x, z_i), by T plain steps x <- x - eta g and returns
the last iterate. With R_w a guess of how far the solution is, p parameters, and s the noise of one gradient that the
whole budget bought,

    step size   eta = 1 / (L1 + lambda)
    horizon     h = R_w / (2 sqrt(p) s): a longer path mostly fits noise
    steps       T = h / eta, between 10 and `most_steps`
    budget      step t gets the share q^t / sum_s q^s of rho, q = ratio^(1 / (T - 1))

For a mode of curvature c the final variance is least for shares proportional to (1 - eta c)^(T-1-t): an early step's
noise has shrunk by the end. Equal shares pay about ln(F_0 / F_T) / 4 times as much, F_0 / F_T the mode's contraction.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from privopt.ledger.amounts import Budget
from privopt.planning import descent_defaults
from privopt.planning.descent_theory import Shares, budget_shares, predicted_path, trace_ratio
from privopt.planning.kl_theory import horizon
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.solvers.base import required
from privopt.solvers.gradient_descent import GradientDescent, Output

FEWEST_STEPS = 10
REACH = 10.0  # R_w times the row bound R, for features of about the row bound's size
FLAT = 1.05  # fewer passes are taken where they are predicted to cost at most this factor of the excess


@dataclass(frozen=True, kw_only=True)
class ScheduledGradientDescent(GradientDescent):
    """Full-batch private gradient descent with geometrically falling noise.

    The fields of `GradientDescent`, with other defaults (no momentum, the last iterate, geometric shares), and:

    Attributes:
        ratio: the last step's share of the budget over the first's, at least 1; 1 is equal noise.
        reach: R_w, a guess of the distance from the start to the solution; default 10 / R, R the row bound.
        curvature: L1, the largest curvature of one record's loss; default that of the loss, or a guess. Utility only.
        most_steps: T is at most this.
        growth: the KL condition of the objective; default that of the problem. With it, T is the least one whose
            predicted excess is within 5 % of the best, and the plan has a prediction.
    Guarantee:
        As `GradientDescent`: T Gaussian releases of fixed multipliers, exactly (epsilon, delta)-DP.
    Differs from the paper:
        few steps from the horizon and falling noise, in place of constant noise and a step count from the analysis.
    Source:
        Wang, Ye, Xu 2017, Algorithm 4; Menart, Ullah, Arora, Bassily, Guzman 2023 compare with it.
    """

    momentum: float | None = 0.0
    average: Output = "last"
    shares: Shares = "geometric"
    ratio: float = 30.0
    reach: float | None = None
    curvature: float | None = None
    most_steps: int = 1000
    growth: KL | None = None

    preconditions: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not (1.0 <= self.ratio < math.inf):
            raise ValueError(
                f"ratio must be at least 1 and finite, got {self.ratio!r}: the last step's budget over the first's."
            )
        if self.reach is not None and not (0.0 < self.reach < math.inf):
            raise ValueError(
                f"reach must be positive and finite, got {self.reach!r}: it is a guess of the way to the solution."
            )
        if self.most_steps < 1:
            raise ValueError(f"most_steps must be at least 1, got {self.most_steps!r}.")

    @property
    def name(self) -> str:
        """The solver's name."""
        return "scheduled-gradient-descent"

    def derived(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """The rules of the module, where a field was left open."""
        clip = descent_defaults.default_clip(problem, public, budget) if self.clip is None else self.clip
        curvature = descent_defaults.smoothness(problem, public) if self.curvature is None else self.curvature
        step_size = self.step_size
        if step_size is None:
            step_size = 1.0 / (curvature + problem.regulariser.smoothness)
        solver = replace(
            self,
            clip=clip,
            curvature=curvature,
            step_size=step_size,
            smoothness=curvature + problem.regulariser.smoothness
            if self.smoothness is None
            else self.smoothness,
            reach=REACH / public.row_bound if self.reach is None else self.reach,
            growth=problem.growth if self.growth is None else self.growth,
        )
        steps = solver._default_steps(problem, public, budget) if self.steps is None else self.steps
        contraction = self._contraction(steps) if self.contraction is None else self.contraction
        solver = replace(solver, steps=steps, contraction=contraction)
        return super(ScheduledGradientDescent, solver).derived(problem, public, budget)

    def predicted_excess(self, problem: Problem, public: Public, budget: Budget) -> tuple[float | None, str]:
        """The recursion of `predicted_path`, where the growth is known."""
        steps = required(self.steps, "steps")
        excess = self._predicted(problem, public, budget, steps) if steps else None
        if excess is None:
            return (
                None,
                "no formula without a KL condition of kappa up to 2 and a bound on the excess of the start",
            )
        return excess, "expected under the KL condition, while no gradient is clipped and eta <= 2 / L"

    def _default_steps(self, problem: Problem, public: Public, budget: Budget) -> int:
        """T of the horizon rule, or the fewest steps with nearly the best prediction."""
        if not budget.is_private:
            return self.most_steps
        longest = self._horizon(problem, public, self._noise_of_one(public, budget))
        by_horizon = math.ceil(min(longest / required(self.step_size, "step_size"), self.most_steps))
        steps = min(max(by_horizon, FEWEST_STEPS), self.most_steps)
        candidates = sorted(
            {round(1.15**k) for k in range(200) if 1.15**k < self.most_steps} | {self.most_steps}
        )
        predicted = {t: self._predicted(problem, public, budget, t) for t in candidates}
        known = {t: excess for t, excess in predicted.items() if excess is not None}
        if not known:
            return steps
        best = min(known.values())
        return next(t for t, excess in known.items() if excess <= FLAT * best)

    def _predicted(self, problem: Problem, public: Public, budget: Budget, steps: int) -> float | None:
        """The prediction for T steps; None without a KL condition and a finite gap."""
        growth = problem.growth if self.growth is None else self.growth
        clip = required(self.clip, "clip")
        smoothness = required(self.smoothness, "smoothness")
        if growth is None or growth.kappa > 2.0 or not math.isfinite(growth.gap_within(clip)):
            return None  # above 2 no objective is smooth, which the recursion takes it to be
        noise = self._noise_of_one(public, budget)
        contraction = self._contraction(steps) if self.contraction is None else self.contraction
        shares = budget_shares(self.shares, steps, contraction)
        return predicted_path(
            growth,
            gap=growth.gap_within(clip),
            step_size=required(self.step_size, "step_size"),
            smoothness=smoothness,
            trace=smoothness * trace_ratio(problem, public),
            noises=noise / np.sqrt(shares),
        )

    def _contraction(self, steps: int) -> float:
        """a of `budget_shares`, whose shares grow by 1 / sqrt(a) a step."""
        return 1.0 if steps < 2 else self.ratio ** (-2.0 / (steps - 1))

    def _noise_of_one(self, public: Public, budget: Budget) -> float:
        """s."""
        return descent_defaults.noise_of_one(public, budget, required(self.clip, "clip"))

    def _horizon(self, problem: Problem, public: Public, noise: float) -> float:
        """h."""
        return horizon(required(self.reach, "reach"), math.prod(problem.parameter_shape(public)), noise)
