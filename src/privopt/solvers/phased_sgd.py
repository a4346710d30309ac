"""Phased stochastic gradient descent: one pass over the records in all, its averages released phase by phase.

Source: Feldman, Koren, Talwar 2020, Private stochastic convex optimization: optimal rates in linear time, Algorithm 2.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.events import Event, GaussianEvent, NoEvent, NonPrivateEvent, Parallel
from privopt.planning import phased_sgd as planning
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.problems.problem import Problem
from privopt.proofs import one_pass
from privopt.public import Public
from privopt.queries.one_pass import PassAverage
from privopt.result import Outcome, Status
from privopt.solvers.base import Defaults, Solver
from privopt.solvers.fields import derived


@dataclass(frozen=True, kw_only=True)
class PhasedSGD(Solver):
    """Phased SGD, for convex generalised-linear losses of records.

    Attributes:
        phases: l; 0 returns the start and spends nothing.
        clip: C, the largest norm of one record's gradient.
        step_size: eta of the first phase, at most 2 / (L + mu); a quarter of it in each further one.
    Guarantee:
        A Gaussian release a phase, on disjoint records: the price of one. A phase's average moves by at most
        2 eta_i C, plus rounding, since no step moves two iterates apart: for any records, under replace-one, since
        losses are Huberised and rows bounded.
    Differs from the paper:
        Huberised losses in place of the Lipschitz assumption; an exact Gaussian price in place of its tail bound; at
        most five phases, the last of which takes all records that are left, in place of log2 n; the records in a random
        order.
    Source:
        Feldman, Koren, Talwar 2020, Algorithm 2 and Theorem 4.4.
    """

    name: ClassVar[str] = "phased-sgd"
    for_convex: ClassVar[str] = "its privacy and its bound"
    defaults: ClassVar[Defaults] = planning.DEFAULTS
    in_secret_order: ClassVar[bool] = True

    phases: int = derived(at_least=0)
    clip: float = derived(above=0)
    step_size: float = derived(above=0)

    def event(self, public: Public) -> Event:
        """One Gaussian release on each of disjoint blocks."""
        del public
        if not self.phases:
            return NoEvent()
        noise = self.noise_multiplier
        return Parallel((GaussianEvent(noise) if noise > 0 else NonPrivateEvent(),) * self.phases)

    def releases(self) -> int:
        """One a phase."""
        return self.phases

    def passes(self) -> float:
        """One in all."""
        return 1.0 if self.phases else 0.0

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Records that may be replaced, and formulas, penalties and sets that the proof covers."""
        return one_pass.obstacle(problem, public)

    def forecast(self, instance: Instance) -> Forecast:
        return planning.forecast(self, instance)

    def step_sizes(self) -> list[float]:
        """eta_i = eta 4^-(i-1)."""
        return [self.step_size * 4.0**-i for i in range(self.phases)]

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 2: each phase starts from the answer of the last."""
        params = start
        sizes = planning.phase_sizes(curator.public.n, self.phases)
        blocks = curator.blocks(sizes) if sizes else []
        for block, step_size in zip(blocks, self.step_sizes(), strict=True):  # lines 2-3
            average = PassAverage(
                problem=problem, clip=self.clip, start=params, step_size=step_size
            )  # line 4
            params = block.release(average, average.mechanism(self.noise_multiplier, block.public))  # line 5
        return Outcome(problem.constraint.project(params), Status.FINISHED)
