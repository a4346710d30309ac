"""Snowball SGD: one pass with noise at every step and batches that grow; only the last iterate is released.

Source: Feldman, Koren, Talwar 2020, Private stochastic convex optimization: optimal rates in linear time, Algorithm 1.
"""

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Array

from privopt.curator.base import Curator
from privopt.ledger.events import Event, GaussianEvent, NonPrivateEvent
from privopt.planning import snowball_sgd as planning
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.problems.problem import Problem
from privopt.proofs import one_pass
from privopt.public import Public
from privopt.queries.one_pass import NoisyPass
from privopt.result import Outcome, Status
from privopt.solvers.base import Defaults, Solver
from privopt.solvers.fields import derived


@dataclass(frozen=True, kw_only=True)
class SnowballSGD(Solver):
    """Snowball SGD, for convex generalised-linear losses of records.

    Attributes:
        clip: C, the largest norm of one record's gradient.
        noise_ratio: standard deviation of a step's noise over C; the batches follow from it and the budget.
        step_size: eta of every step, at most 2 / (L + mu).
    Guarantee:
        One Gaussian release. A record of an early batch is hidden by the noise of all steps after it, one of a late
        batch by the size of the batch: for any records, under replace-one, since no step moves two iterates apart. See
        `proofs.one_pass`, where the price is shown to be that of Gaussian noise exactly.
    Differs from the paper:
        Huberised losses in place of the Lipschitz assumption; the exact Gaussian price in place of a Renyi bound;
        batches as small as that allows. The noise of a step is a little less than `noise_ratio` C where whole batches
        hide more than they must.
    Source:
        Feldman, Koren, Talwar 2020, Algorithm 1 and Theorem 3.2; Bok, Su, Altschuler 2024 (exact price).
    """

    name: ClassVar[str] = "snowball-sgd"
    for_convex: ClassVar[str] = "its privacy and its bound"
    defaults: ClassVar[Defaults] = planning.DEFAULTS
    in_secret_order: ClassVar[bool] = True

    clip: float = derived(above=0)
    noise_ratio: float = derived(above=0)
    step_size: float = derived(above=0)

    def event(self, public: Public) -> Event:
        """One Gaussian release."""
        del public
        noise = self.noise_multiplier
        return GaussianEvent(noise) if noise > 0 else NonPrivateEvent()

    def releases(self) -> int:
        """The last iterate."""
        return 1

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Records that may be replaced, and formulas, penalties and sets that the proof covers."""
        return one_pass.obstacle(problem, public)

    def forecast(self, instance: Instance) -> Forecast:
        return planning.forecast(self, instance)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 1, whole, in one release."""
        last = NoisyPass(
            problem=problem,
            clip=self.clip,
            start=start,
            step_size=self.step_size,
            noise_multiplier=self.noise_multiplier,
            batches=planning.growing_batches(curator.public.n, self.noise_multiplier, self.noise_ratio),
        )
        return Outcome(curator.release(last, last.mechanism(curator.public)), Status.FINISHED)
