"""Output perturbation: compute without noise where the data are, then release the result with noise, once.

Source: Chaudhuri, Monteleoni, Sarwate 2011, Algorithm 1 (the minimiser); Zhang, Zheng, Mou, Wang 2017, Algorithm 1, and
Wu, Li, Kumar, Chaudhuri, Jha, Naughton 2017 (a number of steps).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from privopt.curator.base import Curator
from privopt.later import Array
from privopt.ledger.events import Event, NoEvent
from privopt.mechanisms.additive import Gaussian
from privopt.planning import descent_theory, huberised
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.task import Forecast, Instance
from privopt.problems.problem import Problem
from privopt.proofs.contraction import geometric_sum, largest_step
from privopt.public import Public
from privopt.queries.minimisers import DescentEnd, HuberisedMinimiser
from privopt.result import Outcome, Status
from privopt.solvers.base import Solver
from privopt.solvers.fields import choice, derived

# ---- Defaults and forecast of output perturbation. Utility only --------------------------------------------
# More steps bring the optimum nearer, and the end of a neighbour's descent farther away.
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

    name: ClassVar[str] = "output-perturbation"
    for_convex: ClassVar[str] = "its privacy and its bound"

    form: Literal["steps", "minimiser"] = choice("steps")
    clip: float = derived(above=0)
    steps: int = derived(at_least=0)
    step_size: float = derived(above=0)
    ridge_total: float = derived(at_least=0, below=math.inf)

    def default_clip(self, instance: Instance) -> float:
        return huberised.default_clip(instance)

    def default_step_size(self, instance: Instance) -> float:
        return largest_step(instance.problem, instance.public)

    def default_steps(self, instance: Instance) -> int:
        """T: least sum of `W^2 / (2 eta T)` and the noise's `tr(H) (s eta T)^2 / 2`, or where a ridge settled it."""
        own = huberised.least_ridge(instance)
        settled = 5.0 / (self.step_size * own) if own > 0.0 else math.inf
        if not instance.is_private:
            return math.ceil(min(6.0 * settled, NOISELESS_STEPS))
        noise = descent_theory.noise_of_one(instance, self.clip)
        trace, distance = huberised.hessian_trace(instance, own), huberised.distance(instance)
        balanced = (distance**2 / (2.0 * self.step_size**3 * trace * noise**2)) ** (1.0 / 3.0)
        return max(1, math.ceil(min(balanced, settled, MOST_STEPS)))

    def default_ridge_total(self, instance: Instance) -> float:
        return huberised.default_ridge(instance, self.clip)

    def event(self, public: Public) -> Event:
        """One Gaussian release."""
        del public
        return Gaussian(self.noise_multiplier).event() if self.releases() else NoEvent()

    def releases(self) -> int:
        """One, or none without steps."""
        return 1 if self.form == "minimiser" or self.steps else 0

    def passes(self) -> float:
        """Two a step: predictions, then their products with the rows."""
        return huberised.TYPICAL_PASSES if self.form == "minimiser" else 2.0 * self.steps

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Records, and formulas that the proof covers."""
        return huberised.obstacle(problem, public)

    def forecast(self, instance: Instance) -> Forecast:
        """The noise times a bound on the trace of the Hessian, plus what the steps or the ridge leave."""
        minimiser = self.form == "minimiser"
        notices: tuple[str, ...] = ()
        if minimiser:
            notices = huberised.added_ridge(instance, self.ridge_total, needed_by="the minimiser")
        if not instance.is_private:
            return Forecast(excess=0.0, meaning="the noise is off", notices=(*notices, NOISE_IS_OFF))
        if minimiser:
            notices += (huberised.RUNNING_TIME,)
        return Forecast(
            excess=self._predicted_excess(instance),
            meaning=huberised.meaning(instance),
            notices=notices + large_delta(instance),
        )

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """One release."""
        if not self.releases():
            return Outcome(start, Status.FINISHED)
        noise = Gaussian(self.noise_multiplier)
        return Outcome(curator.release(self._query(problem, start), noise), Status.FINISHED)

    def _query(self, problem: Problem, start: Array) -> HuberisedMinimiser | DescentEnd:
        if self.form == "minimiser":
            return HuberisedMinimiser(problem=problem, clip=self.clip, ridge=self.ridge_total)
        return DescentEnd(
            problem=problem, clip=self.clip, start=start, step_size=self.step_size, steps=self.steps
        )

    def _predicted_excess(self, instance: Instance) -> float:
        own, public = huberised.least_ridge(instance), instance.public
        far = huberised.distance(instance) ** 2
        pull = public.relation.factor * self.clip / public.n
        if self.form == "minimiser":
            strength = max(own, self.ridge_total)
            left, moved = 0.5 * (strength - own) * far, pull / strength
        else:
            strength, eta, steps = own, self.step_size, self.steps
            left = 0.5 * far / (eta * max(steps, 1)) * math.exp(-eta * own * steps)
            moved = pull * eta * geometric_sum(eta * own, steps)
        return left + 0.5 * huberised.hessian_trace(instance, strength) * (1.0 / instance.mu * moved) ** 2
