"""A warm start: the best of many public points is chosen privately, then a method runs from it.

For losses with several valleys or steps, in a few parameters, where a method that follows gradients stays where it is.

Source: Kornowski, Liu, Talwar 2024, Appendix B, with few well spread points in place of a net.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Self

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, sequence
from privopt.mechanisms.exponential import ExponentialMechanism
from privopt.planning import warm_start as planning
from privopt.planning.effort import records
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.problems.black_box import BlackBox
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.queries.candidate_values import CandidateValues
from privopt.result import Outcome
from privopt.solvers.base import Solver
from privopt.solvers.fields import derived, number
from privopt.solvers.o2nc import O2NC


@dataclass(frozen=True, kw_only=True)
class WarmStart(Solver):
    """A charged front end: the start is chosen among the points of a public box, by the mean of their clipped values.

    Attributes:
        inner: the method that goes on from there, with the rest of the budget.
        share: the choice's part of the budget, a fraction of rho.
        candidates: N, how many points are tried, the given start among them. Each costs a value of every record.
        reach: half the width of the box around the start; of a black box in units of its `scale`.
        low, high: the public range that values are moved into; default that of a black box, required for other losses.
        choice_range: the bounded range of the choice.
        noise_multiplier: 1 where there is noise, 0 where there is none: both parts state their own.
    Guarantee:
        One choice by the exponential mechanism (see `CandidateValues`; the penalty has no say), composed with what
        `inner` releases. The points are public random numbers.
    Source:
        See the module.
    """

    name: ClassVar[str] = "warm-start"
    by_values: ClassVar[bool] = True  # as far as the inner solver is, which is asked

    inner: Solver = field(default_factory=O2NC)
    share: float = number(planning.SHARE, above=0, below=1)
    candidates: int = number(planning.CANDIDATES, at_least=2)
    reach: float = number(1.0, above=0)
    low: float = derived()
    high: float = derived()
    choice_range: float = derived(above=0)

    def check(self) -> None:
        """The range is one."""
        if self.is_set("low") and self.is_set("high") and not self.low < self.high:
            raise ValueError(
                f"low must be below high, got {self.low!r} and {self.high!r}: values are moved between."
            )

    @property
    def title(self) -> str:
        """What runs inside, and that its start is chosen."""
        return f"{self.inner.title} from a warm start"

    @property
    def adaptive(self) -> bool:
        """As the inner solver."""
        return self.inner.adaptive

    @property
    def makes(self) -> frozenset[str]:
        """As the inner solver."""
        return self.inner.makes

    @property
    def rests_on_convexity(self) -> str:
        return self.inner.rests_on_convexity

    @property
    def choice(self) -> ExponentialMechanism:
        """Of the start."""
        return ExponentialMechanism(self.choice_range)

    def event(self, public: Public) -> Event:
        """The choice, then what the inner solver releases."""
        return sequence([self.choice.event(), self.inner.event(public)])

    def scaled(self, factor: float) -> Self:
        """All noise times `factor`."""
        return self.with_(
            noise_multiplier=self.noise_multiplier * factor,
            choice_range=self.choice_range / factor,
            inner=self.inner.scaled(factor),
        )

    def filled(self, instance: Instance) -> Self:
        """The range, and the inner solver's own settings for its part of the budget."""
        self.check_applicable(instance.problem, instance.public)
        ends = {name: planning.end(self, instance, name) for name in ("low", "high") if not self.is_set(name)}
        return self.with_(**ends, inner=self.inner.filled(planning.rest(instance, self.share)))

    def configure(self, instance: Instance) -> Self:
        """Derive what was left open; split the budget and calibrate both parts together."""
        solver = self.filled(instance)
        if solver.is_set("noise_multiplier"):
            return solver
        inner = solver.inner.configure(planning.rest(instance, self.share))
        split = solver.with_(
            noise_multiplier=1.0 if instance.is_private else 0.0,
            choice_range=planning.choice_range(self.share, instance),
            inner=inner,
        )
        if not instance.is_private:
            return split
        return split.scaled(
            calibrate(
                lambda z: split.scaled(z).event(instance.public), instance.budget, instance.public.relation
            )
        )

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """At most four parameters, a range of values, and what the inner solver asks for."""
        parameters = int(np.prod(problem.parameter_shape(public)))
        return planning.obstacle(self, problem, parameters) or self.inner.obstacle(problem, public)

    def releases(self) -> int:
        """The choice and the inner solver's."""
        return 1 + self.inner.releases()

    def passes(self) -> float:
        """One for the choice, and the inner solver's."""
        return 1.0 + self.inner.passes()

    def loss_values(self, problem: Problem, public: Public) -> float:
        """One for each candidate, and the inner solver's."""
        if not isinstance(problem.loss, BlackBox):
            return 0.0
        return self.candidates * float(records(public)) + self.inner.loss_values(problem, public)

    def matrix_seconds(self, public: Public) -> float:
        return self.inner.matrix_seconds(public)

    def forecast(self, instance: Instance) -> Forecast:
        return planning.forecast(self, instance)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Choose the start, then run the inner solver from it."""
        curator.announce("values at candidates")
        seed = curator.public_seed("candidates")
        points = planning.candidates(np.ravel(np.asarray(start)), self.reach, self.candidates, seed)
        inside = jnp.stack([problem.constraint.project(jnp.reshape(point, start.shape)) for point in points])
        values = CandidateValues(
            loss=problem.loss, candidates=inside.reshape(len(points), -1), low=self.low, high=self.high
        )
        chosen = int(curator.release(values, self.choice))
        return self.inner.run(curator, problem, inside[chosen])
