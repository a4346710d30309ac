"""Gradient descent in stages: an outer solver that calls another solver with a part of its budget.

    w <- GradientDescent_i(w) for i = 1, 2, ...,   each stage on its own part of the plan, or of a filter's cap.

Stages without momentum and averaging, of equal step size and noise, are one descent of all their steps.

Source:
    The shape of Menart et al. 2023, Algorithm 2 (proximal point method); its stages are Wang, Ye, Xu 2017, Algorithm 4.
"""

from dataclasses import dataclass

from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.events import Event, Sequence
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.result import Result
from privopt.solvers.gradient_descent import GradientDescent


@dataclass(frozen=True, kw_only=True)
class StagedDescent:
    """The solver of this file.

    Attributes:
        stages: configured inner solvers.
        shares: of the curator's cap, one a stage, under a filter; None under a declared plan, which is divided.
    Guarantee:
        That of the ledger: every release of a stage is charged to it, and a stage gets no more than its part.
    """

    stages: tuple[GradientDescent, ...]
    shares: tuple[float, ...] | None = None

    def event(self, public: Public) -> Event:
        return Sequence(tuple(stage.event(public) for stage in self.stages))

    def solve(self, curator: Curator, problem: Problem, start: Array) -> Result:
        params, status = start, None
        for number, stage in enumerate(self.stages):
            name = f"stage {number}"
            if self.shares is None:
                lent = curator.allot(name, plan=stage.event(curator.public))
            else:
                lent = curator.allot(name, share=self.shares[number])
            params, status, *_ = stage.solve(lent, problem, params)
        assert status is not None
        return Result(params, status, curator.transcript)
