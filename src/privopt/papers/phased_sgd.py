"""Phased stochastic gradient descent: one pass over the records in all, its averages released phase by phase.

Source: Feldman, Koren, Talwar 2020, Private stochastic convex optimization: optimal rates in linear time, Algorithm 2.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from privopt.curator.base import Curator
from privopt.later import Array
from privopt.ledger.events import Event, GaussianEvent, NoEvent, NonPrivateEvent, Parallel
from privopt.planning import huberised
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.task import Forecast, Instance
from privopt.problems.problem import Problem
from privopt.proofs import one_pass
from privopt.proofs.contraction import largest_step
from privopt.public import Public
from privopt.queries.minimisers import PassAverage
from privopt.result import Outcome, Status
from privopt.solvers.base import Solver
from privopt.solvers.fields import derived

# ---- Phases, defaults and forecast of phased stochastic gradient descent -----------------------------------
# With steps eta 4^-(i-1) and sizes n 2^-i the bounds of the phases add up to
#
#     W^2 / (n eta) + eta C^2 (2/3 + 64 d z^2 / n),
#
# W the distance from the start to the optimum and z the noise multiplier: each phase starts z 2 eta_{i-1} C sqrt(d)
# away from the average that it is compared with. The bound takes every gradient and every noise for as harmful as it
# can be; on four tables four times its best eta was better than that itself in most cells
# (docs/algorithms/phased-sgd.md), so that is the default, or the largest step that is private. The prediction is the
# bound at a quarter of eta.
MOST_PHASES = 5
STEP_FACTOR = 4.0  # see above
FEWEST_RECORDS = 100  # of the last phase


def phase_sizes(n: int, phases: int) -> list[int]:
    """floor(n 2^-i) records in phase i = 1, 2, ..., and in the last one all that are left."""
    sizes = [n >> i for i in range(1, phases)]
    return [*sizes, n - sum(sizes)] if phases else []


def _steepness(instance: Instance) -> float:
    """A gradient's length: the clip, or without noise what the formula says."""
    clip = huberised.default_clip(instance)
    bound = instance.gradient_bound
    return clip if math.isfinite(clip) else bound if math.isfinite(bound) else instance.public.row_bound


def _variance(instance: Instance) -> float:
    """n times the weight of eta C^2 in the bound."""
    inverse = 1.0 / instance.mu**2 if instance.is_private else 0.0
    return 2.0 * instance.public.n / 3.0 + 64.0 * instance.public.d * inverse


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
    in_secret_order: ClassVar[bool] = True

    phases: int = derived(at_least=0)
    clip: float = derived(above=0)
    step_size: float = derived(above=0)

    def default_clip(self, instance: Instance) -> float:
        return huberised.default_clip(instance)

    def default_phases(self, instance: Instance) -> int:
        """The most phases, five at most, that leave 100 records to the last one; one where none do."""
        fitting = [k for k in range(2, MOST_PHASES + 1) if instance.public.n >> k >= FEWEST_RECORDS]
        return max(fitting, default=1)

    def default_step_size(self, instance: Instance) -> float:
        """eta."""
        balanced = huberised.distance(instance) / (_steepness(instance) * math.sqrt(_variance(instance)))
        return min(largest_step(instance.problem, instance.public), STEP_FACTOR * balanced)

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
        """The sum of the phases' bounds, and what the last noise adds."""
        if not instance.is_private:
            return Forecast(excess=0.0, meaning="the noise is off", notices=(NOISE_IS_OFF,))
        far, eta, n = huberised.distance(instance), self.step_size / STEP_FACTOR, instance.public.n
        excess = far**2 / (n * eta) + eta * self.clip**2 * _variance(instance) / n
        last = 2.0 * self.step_size * 4.0 ** (1 - self.phases) * self.clip / instance.mu
        excess += 0.5 * huberised.hessian_trace(instance, huberised.least_ridge(instance)) * last**2
        return Forecast(
            excess=instance.capped(excess), meaning=huberised.meaning(instance), notices=large_delta(instance)
        )

    def step_sizes(self) -> list[float]:
        """eta_i = eta 4^-(i-1)."""
        return [self.step_size * 4.0**-i for i in range(self.phases)]

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 2: each phase starts from the answer of the last."""
        params = start
        sizes = phase_sizes(curator.public.n, self.phases)
        blocks = curator.blocks(sizes) if sizes else []
        for block, step_size in zip(blocks, self.step_sizes(), strict=True):  # lines 2-3
            # line 4
            average = PassAverage(problem=problem, clip=self.clip, start=params, step_size=step_size)
            params = block.release(average, average.mechanism(self.noise_multiplier, block.public))  # line 5
        return Outcome(problem.constraint.project(params), Status.FINISHED)
