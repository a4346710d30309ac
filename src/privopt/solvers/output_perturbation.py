"""Output perturbation: compute without noise where the data are, then release the result with noise, once.

Source: Chaudhuri, Monteleoni, Sarwate 2011, Algorithm 1 (the minimiser); Zhang, Zheng, Mou, Wang 2017, Algorithm 1, and
Wu, Li, Kumar, Chaudhuri, Jha, Naughton 2017 (a number of steps).
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.events import Event, NoEvent
from privopt.mechanisms.additive import Gaussian
from privopt.planning import huberised
from privopt.planning import output_perturbation as planning
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.minimiser import DescentEnd, HuberisedMinimiser
from privopt.result import Outcome, Status
from privopt.solvers.base import Defaults, Solver
from privopt.solvers.fields import choice, derived


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
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    form: Literal["steps", "minimiser"] = choice("steps")
    clip: float = derived(above=0)
    steps: int = derived(at_least=0)
    step_size: float = derived(above=0)
    ridge_total: float = derived(at_least=0, below=math.inf)

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
        return planning.forecast(self, instance)

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
