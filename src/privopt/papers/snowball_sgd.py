"""Snowball SGD: one pass with noise at every step and batches that grow; only the last iterate is released.

Source: Feldman, Koren, Talwar 2020, Private stochastic convex optimization: optimal rates in linear time, Algorithm 1.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from privopt.curator.base import Curator
from privopt.later import Array
from privopt.ledger.events import Event, GaussianEvent, NonPrivateEvent
from privopt.papers.phased_sgd import STEP_FACTOR
from privopt.planning import huberised
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.planning.task import Forecast, Instance
from privopt.problems.problem import Problem
from privopt.proofs import one_pass
from privopt.proofs.contraction import largest_step
from privopt.proofs.one_pass import GrowingBatches
from privopt.public import Public
from privopt.queries.minimisers import NoisyPass
from privopt.result import Outcome, Status
from privopt.solvers.base import Solver
from privopt.solvers.fields import derived


# ---- Batches, defaults and forecast of snowball SGD --------------------------------------------------------
# The noise of a step is `noise_ratio` times the clip; the batches are as small as the price allows under that noise, so
# a larger ratio buys more and noisier steps. Steps of constant size eta leave
#
#     W^2 / (2 eta T) + eta (1 + ln T) (C^2 + d sigma^2) / 2
#
# at the last iterate (Shamir, Zhang 2013). The default eta is four times the least point of that, as in
# `phased_sgd`, or the largest step that is private; the prediction is the bound at a quarter of eta.
def growing_batches(n: int, noise_multiplier: float, noise_ratio: float) -> GrowingBatches:
    """B_t = ceil(2 z C / (sigma sqrt(T - t + 1))), sigma = noise_ratio C.

    With rho = 1 / (2 z^2) that is ceil(C sqrt(2) / (sigma sqrt(rho (T - t + 1)))).
    """
    return GrowingBatches(places=n, scale=2.0 * noise_multiplier / noise_ratio)


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
    in_secret_order: ClassVar[bool] = True

    clip: float = derived(above=0)
    noise_ratio: float = derived(above=0)
    step_size: float = derived(above=0)

    def default_clip(self, instance: Instance) -> float:
        return huberised.default_clip(instance)

    def default_noise_ratio(self, instance: Instance) -> float:
        """1 / sqrt(d): the noise of a step is about as long as a gradient."""
        return 1.0 / math.sqrt(instance.public.d)

    def default_step_size(self, instance: Instance) -> float:
        """eta."""
        far, second = huberised.distance(instance), self._second_moment(instance)
        steps = self._steps(instance)
        balanced = far / math.sqrt(second * steps * (1.0 + math.log(steps)))
        return min(largest_step(instance.problem, instance.public), STEP_FACTOR * balanced)

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
        """The bound on the last iterate."""
        if not instance.is_private:
            return Forecast(excess=0.0, meaning="the noise is off", notices=(NOISE_IS_OFF,))
        far, eta, steps = huberised.distance(instance), self.step_size / STEP_FACTOR, self._steps(instance)
        excess = far**2 / (2.0 * eta * steps)
        excess += 0.5 * eta * (1.0 + math.log(steps)) * self._second_moment(instance)
        return Forecast(
            excess=instance.capped(excess), meaning=huberised.meaning(instance), notices=large_delta(instance)
        )

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """Algorithm 1, whole, in one release."""
        last = NoisyPass(
            problem=problem,
            clip=self.clip,
            start=start,
            step_size=self.step_size,
            noise_multiplier=self.noise_multiplier,
            batches=growing_batches(curator.public.n, self.noise_multiplier, self.noise_ratio),
        )
        return Outcome(curator.release(last, last.mechanism(curator.public)), Status.FINISHED)

    def _steps(self, instance: Instance) -> int:
        multiplier = 1.0 / instance.mu if instance.is_private else 0.0
        return len(growing_batches(instance.public.n, multiplier, self.noise_ratio).sizes)

    def _second_moment(self, instance: Instance) -> float:
        """C^2 + d sigma^2; without noise what the formula says of the gradient."""
        clip = self.clip
        if not math.isfinite(clip):
            bound = instance.gradient_bound
            return (bound if math.isfinite(bound) else instance.public.row_bound) ** 2
        noisy = instance.public.d * self.noise_ratio**2 if instance.is_private else 0.0
        return clip**2 * (1.0 + noisy)
