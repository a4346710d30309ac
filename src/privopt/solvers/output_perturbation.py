"""Output perturbation: compute without noise where the data are, then release the result with noise, once.

Source: Chaudhuri, Monteleoni, Sarwate 2011, Algorithm 1 (the minimiser); Zhang, Zheng, Mou, Wang 2017, Algorithm 1, and
Wu, Li, Kumar, Chaudhuri, Jha, Naughton 2017 (a number of steps).
"""

import math
from dataclasses import dataclass, replace
from typing import Literal, Self

from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Event, NoEvent
from privopt.ledger.gaussian_dp import gaussian_mu
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_defaults, huberised, notices
from privopt.problems.problem import Problem
from privopt.proofs.huberised_objective import own_ridge
from privopt.public import Public
from privopt.queries.minimiser import DescentEnd, HuberisedMinimiser, geometric_sum, largest_step
from privopt.result import Outcome, Status
from privopt.solvers.base import Solver, required

MOST_STEPS, NOISELESS_STEPS = 1_000, 5_000


@dataclass(frozen=True, kw_only=True)
class OutputPerturbation(Solver):
    """Output perturbation, for convex generalised-linear losses.

    Attributes:
        form: "steps", the last of T proximal gradient steps, or "minimiser", which needs a ridge in every direction.
        clip: C, the largest norm of one record's gradient.
        steps: T of the first form; 0 returns the start and spends nothing.
        step_size: eta of the first form, at most 2 / (L + mu) with L the smoothness including the ridge.
        ridge_total: lam of the second form, the least ridge weight of the mean objective.
    Guarantee:
        One Gaussian release. T steps move by at most `(factor C eta / n) (1 - (1 - eta mu)^T) / (eta mu)` and the
        minimiser by at most `factor C / (n lam)`, plus what the certificate and rounding leave open: for any records,
        under the curator's relation, since the losses are Huberised.
    Differs from the paper:
        Huberised losses in place of the Lipschitz assumption, exact Gaussian noise, and a smoothness that includes the
        ridge, without which a step need not contract.
    Source:
        Chaudhuri, Monteleoni, Sarwate 2011; Zhang, Zheng, Mou, Wang 2017; Wu et al. 2017.
    """

    form: Literal["steps", "minimiser"] = "steps"
    clip: float | None = None
    steps: int | None = None
    step_size: float | None = None
    ridge_total: float | None = None

    def __post_init__(self) -> None:
        if self.form not in ("steps", "minimiser"):
            raise ValueError(f"form must be 'steps' or 'minimiser', got {self.form!r}.")

    @property
    def name(self) -> str:
        """The solver's name."""
        return "output-perturbation"

    def event(self, public: Public) -> Event:
        """One Gaussian release."""
        del public
        if not self.releases():
            return NoEvent()
        return Gaussian(required(self.noise_multiplier, "noise_multiplier")).event()

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Records, and formulas that the proof covers."""
        return huberised.obstacle(problem, public)

    def derived(self, problem: Problem, public: Public, budget: Budget) -> Self:
        """Clip, steps and step size from public quantities.

        Raises:
            ValueError: the problem is not covered.
        """
        self.check_applicable(problem, public)
        clip = huberised.default_clip(problem, public, budget) if self.clip is None else self.clip
        step_size = largest_step(problem, public) if self.step_size is None else self.step_size
        steps = self.steps
        if steps is None:
            steps = _default_steps(problem, public, budget, clip, step_size)
        ridge = self.ridge_total
        if ridge is None:
            ridge = huberised.default_ridge(problem, public, budget, clip)
        return replace(self, clip=clip, step_size=step_size, steps=steps, ridge_total=ridge)

    def releases(self) -> int:
        """One, or none without steps."""
        return 1 if self.form == "minimiser" or required(self.steps, "steps") else 0

    def passes(self) -> float:
        """Two a step: predictions, then their products with the rows."""
        if self.form == "minimiser":
            return huberised.TYPICAL_PASSES
        return 2.0 * required(self.steps, "steps")

    def predicted_excess(self, problem: Problem, public: Public, budget: Budget) -> tuple[float | None, str]:
        """The noise times a bound on the trace of the Hessian, plus what the steps or the ridge leave."""
        if not budget.is_private:
            return 0.0, "the noise is off"
        radius = 10.0 / public.row_bound
        own = float(min(own_ridge(problem, public.d)))
        multiplier = 1.0 / gaussian_mu(budget.epsilon, budget.delta)
        pull = public.relation.factor * required(self.clip, "clip") / public.n
        if self.form == "minimiser":
            strength = max(own, required(self.ridge_total, "ridge_total"))
            left = 0.5 * (strength - own) * radius**2
            moved = pull / strength
        else:
            strength, eta, steps = own, required(self.step_size, "step_size"), required(self.steps, "steps")
            left = 0.5 * radius**2 / (eta * max(steps, 1)) * math.exp(-eta * own * steps)
            moved = pull * eta * geometric_sum(eta * own, steps)
        trace = problem.loss.curvature * public.row_bound**2 + public.d * strength
        excess = left + 0.5 * trace * (multiplier * moved) ** 2
        return excess, f"an upper estimate for an optimum within {radius:.3g} of zero"

    def notices(self, problem: Problem, public: Public, budget: Budget) -> tuple[str, ...]:
        """What a user should be told, from public quantities."""
        found: tuple[str, ...] = ()
        if self.form == "minimiser":
            ridge = required(self.ridge_total, "ridge_total")
            found = huberised.added_ridge(problem, public, ridge, needed_by="the minimiser")
        if not budget.is_private:
            return (*found, notices.NOISE_IS_OFF)
        if self.form == "minimiser":
            found += (huberised.RUNNING_TIME,)
        return found + notices.large_delta(public, budget)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """One release."""
        if not self.releases():
            return Outcome(start, Status.FINISHED)
        noise = Gaussian(required(self.noise_multiplier, "noise_multiplier"))
        return Outcome(curator.release(self._query(problem, start), noise), Status.FINISHED)

    def _query(self, problem: Problem, start: Array) -> HuberisedMinimiser | DescentEnd:
        clip = required(self.clip, "clip")
        if self.form == "minimiser":
            return HuberisedMinimiser(
                problem=problem, clip=clip, ridge=required(self.ridge_total, "ridge_total")
            )
        return DescentEnd(
            problem=problem,
            clip=clip,
            start=start,
            step_size=required(self.step_size, "step_size"),
            steps=required(self.steps, "steps"),
        )


def _default_steps(problem: Problem, public: Public, budget: Budget, clip: float, step_size: float) -> int:
    """T: least sum of `W^2 / (2 eta T)` and the noise's `tr(H) (s eta T)^2 / 2`, or where a ridge has settled it."""
    own = float(min(own_ridge(problem, public.d)))
    settled = 5.0 / (step_size * own) if own > 0.0 else math.inf
    if not budget.is_private:
        return math.ceil(min(6.0 * settled, NOISELESS_STEPS))
    noise = descent_defaults.noise_of_one(public, budget, clip)
    trace = problem.loss.curvature * public.row_bound**2 + public.d * own
    radius = 10.0 / public.row_bound
    balanced = (radius**2 / (2.0 * step_size**3 * trace * noise**2)) ** (1.0 / 3.0)
    return max(1, math.ceil(min(balanced, settled, MOST_STEPS)))
