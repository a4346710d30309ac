"""A warm start: the best of many public points is chosen privately, then a method runs from it.

For black boxes with several valleys or steps, in a few parameters, where a method that descends stays where it is.

Source: Kornowski, Liu, Talwar 2024, Appendix B, with few well spread points in place of a net.
"""

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.stats import qmc

from privopt.curator.base import Curator
from privopt.later import Array, jnp
from privopt.ledger.curves import part_of
from privopt.ledger.events import Event, sequence
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.planning.averaging import records
from privopt.planning.task import Forecast, Instance
from privopt.problems.black_box import BlackBox
from privopt.problems.glm import Loss
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.values import CandidateValues
from privopt.result import Outcome
from privopt.solvers.base import Solver
from privopt.solvers.fields import derived, number
from privopt.solvers.front_end import FrontEnd, choice_range
from privopt.solvers.o2nc import O2NC

# ---- How a budget is split around a private choice of the start, and the candidates to choose among --------
#     N points of a scrambled Sobol sequence in the box start +- reach,  N = 1024, reach = 1 in units of `scale`
#     rho of the choice = e^2 / 8 = share * mu^2 / 2,  share = 0.2
#
# In more than four parameters so few points say next to nothing about a box, and the method that follows does better
# with the whole budget. Utility only.
#
# Source:
#     Kornowski, Liu, Talwar 2024, Appendix B, where the net has exponentially many points.
SHARE = 0.2
CANDIDATES = 1024
REACH = 1.0
MOST_PARAMETERS = 4


def rest(instance: Instance, share: float) -> Instance:
    """What the inner solver plans for."""
    return replace(instance, budget=part_of(instance.budget, 1.0 - share))


def candidates(centre: NDArray[np.float64], reach: float, count: int, seed: int) -> NDArray[np.float64]:
    """`centre` and well spread points of the box around it, (count, p).

    Args:
        centre: flat parameters, one of the candidates.
        reach: half the width of the box.
        count: how many, at least 1.
        seed: public randomness of the scrambling.
    """
    sobol = qmc.Sobol(len(centre), scramble=True, rng=np.random.default_rng(seed))
    spread = sobol.random_base2(max(0, math.ceil(math.log2(count))))[:count]
    points = centre + reach * (2.0 * spread - 1.0)
    points[0] = centre
    return points


@dataclass(frozen=True, kw_only=True)
class WarmStart(FrontEnd):
    """A charged front end: the start is chosen among the points of a public box, by the mean of their clipped values.

    `BlackBox(..., warm_start=N)` puts it in front of whatever solver is asked for.

    Attributes:
        inner: the method that goes on from there, with the rest of the budget.
        share: the choice's part of the budget, a fraction of rho.
        candidates: N, how many points are tried, the given start among them. Each costs a value of every record.
        choice_range: the bounded range of the choice.
        noise_multiplier: 1 where there is noise, 0 where there is none: both parts state their own.
    Guarantee:
        One choice by the exponential mechanism (see `CandidateValues`; the penalty has no say), composed with what
        `inner` releases. The points are public random numbers.
    Source:
        See the module.
    """

    name: ClassVar[str] = "warm-start"
    title_of: ClassVar[str] = "{} from a warm start"
    own_releases: ClassVar[int] = 1
    by_values: ClassVar[bool] = True  # as far as the inner solver is, which is asked

    inner: Solver = field(default_factory=O2NC)
    share: float = number(SHARE, above=0, below=1)
    candidates: int = number(CANDIDATES, at_least=2)
    choice_range: float = derived(above=0)

    @property
    def choice(self) -> ExponentialMechanism:
        """Of the start."""
        return ExponentialMechanism(self.choice_range)

    def event(self, public: Public) -> Event:
        """The choice, then what the inner solver releases."""
        return sequence([self.choice.event(), self.inner.event(public)])

    def scaled(self, factor: float) -> Self:
        """All noise times `factor`."""
        return super().scaled(factor).with_(choice_range=self.choice_range / factor)

    def configure(self, instance: Instance) -> Self:
        """Configure the inner solver for its part of the budget, then calibrate both parts together."""
        self.check_applicable(instance.problem, instance.public)
        inner = self.inner.configure(rest(instance, self.share))
        if self.is_set("noise_multiplier"):
            return self.with_(inner=inner)
        split = self.with_(
            noise_multiplier=1.0 if instance.is_private else 0.0,
            choice_range=choice_range(self.share, instance),
            inner=inner,
        )
        return split.to_budget(instance) if instance.is_private else split

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """At most four parameters of a black box, and what the inner solver asks for."""
        if not isinstance(problem.loss, BlackBox):
            return f"a warm start is for a black box, whose values have a range, not for the {problem.loss.name} loss"
        parameters = int(np.prod(problem.parameter_shape(public)))
        if parameters > MOST_PARAMETERS:
            return (
                f"{self.candidates} candidates say next to nothing about a box in {parameters} parameters (limit: "
                f"{MOST_PARAMETERS}): leave the warm start out"
            )
        return self.inner.obstacle(problem, public)

    def loss_values(self, problem: Problem, public: Public) -> float:
        """One for each candidate, and the inner solver's."""
        return self.candidates * float(records(public)) + super().loss_values(problem, public)

    def forecast(self, instance: Instance) -> Forecast:
        """The inner solver's with its part of the budget; its bound supposes another start."""
        return replace(self.inner.forecast(rest(instance, self.share)), bound=None)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Choose the start, then run the inner solver from it."""
        loss = problem.loss
        assert isinstance(loss, BlackBox)
        curator.announce("values at candidates")
        seed = curator.public_seed("candidates")
        points = candidates(np.ravel(np.asarray(start)), REACH, self.candidates, seed)
        inside = jnp.stack([problem.constraint.project(jnp.reshape(point, start.shape)) for point in points])
        values = CandidateValues(
            loss=loss, candidates=inside.reshape(len(points), -1), low=loss.low, high=loss.high
        )
        chosen = int(curator.release(values, self.choice))
        return self.inner.run(curator, problem, inside[chosen])


def with_warm_start(solver: Solver, loss: Loss) -> Solver:
    """The solver; for a black box that asks for a warm start, behind one."""
    if not isinstance(loss, BlackBox) or not loss.warm_start or isinstance(solver, WarmStart):
        return solver
    return WarmStart(inner=solver, candidates=loss.warm_start)
