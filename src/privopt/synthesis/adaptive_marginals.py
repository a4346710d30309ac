"""Adaptive marginals: measure every column, then in rounds the marginals that the model gets most wrong.

Source: McKenna, Mullins, Sheldon, Miklau 2022 (the rounds and the score), with a mixture of products for a model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from privopt.curator.base import Curator
from privopt.curator.handles import HiddenMean
from privopt.ledger.events import Event, Repeated
from privopt.ledger.events import Sequence as EventSequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning import adaptive_marginals as planning
from privopt.planning.adaptive_marginals import asked
from privopt.planning.forecast import Forecast
from privopt.planning.synthesis import NORMAL_MEAN, WorkloadTask
from privopt.problems.workload import Workload
from privopt.public import Public
from privopt.queries.held_marginal import HeldMarginal
from privopt.queries.marginal_errors import MarginalDistances
from privopt.queries.marginals import MarginalMeans
from privopt.result import Outcome, Status
from privopt.solvers.fields import derived, number
from privopt.solvers.program import Defaults
from privopt.synthesis.base import Synthesizer
from privopt.synthesis.mixture_fit import Logits, Measured, MixtureFit, first_logits, nearest_shares
from privopt.synthesis.product_mixture import ProductMixture
from privopt.synthesis.totals import total_weight


@dataclass(frozen=True, kw_only=True)
class AdaptiveMarginals(Synthesizer):
    """Choose marginals by how wrong the model is on them, measure them with Gaussian noise, fit a mixture of products.

    Attributes:
        noise_multiplier: z of the whole run, see `Synthesizer`.
        rounds: how often the model is fitted anew, at least 0; with 0 columns are independent.
        choices: marginals chosen a round, without replacement within one.
        start_share: of the budget, for the columns one by one.
        selection_share: of the rest, for choosing; what remains measures.
        components: K, the products of the mixture.
        steps: Adam's, a fit.
        penalty: what is taken off the score of a marginal of d cells, over sqrt(2 / pi) sigma d: the noise that
            measuring it would add. A model that shares cells averages much of it away, so less than 1 is better.
        columns: of the table.
        seed: of the public randomness of the fit.
    Guarantee:
        The columns are Gaussian releases, each choice is bounded range, each measurement Gaussian: (epsilon, delta)-DP
        by the best accountant for their composition, under the curator's relation. Everything else is post-processing.
    Differs from the paper:
        a mixture of products in place of Private-PGM; the number of rounds is fixed beforehand; several marginals are
        chosen a round; a column's share of the start grows with its cells.
    Source:
        McKenna, Mullins, Sheldon, Miklau 2022, algorithms 1 and 2.
    """

    name: ClassVar[str] = "adaptive-marginals"
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    rounds: int = derived(at_least=0)
    choices: int = derived(at_least=1)
    start_share: float = derived(above=0, at_most=1)
    selection_share: float = number(planning.SELECTION, above=0, below=1)
    components: int = number(200, at_least=1)
    steps: int = number(60, at_least=0)
    penalty: float = number(0.3, at_least=0)
    columns: int = derived(at_least=1)
    seed: int = number(0, at_least=0)

    def applicable(self, problem: Workload, public: Public) -> str | None:
        """Marginals of a coded table."""
        if problem.queries is not None:
            return "it models marginals, and the workload has queries; use query-game-ml"
        there = len(planning.candidates(problem))
        if self.rounds and self.choices and self.choices > there:
            return f"it is to choose {self.choices} marginals a round, and the workload has {there} of several columns"
        return super().applicable(problem, public) or planning.too_large(problem)

    def event(self, public: Public) -> Event:
        """The columns, then choices and measurements."""
        starts = [self.gaussian(share).event() for share in self._starts(public.levels)]
        if self.chosen == 0:
            return EventSequence(tuple(starts))
        choosing, measuring = planning.choice_shares(self)
        each = EventSequence((self.choice(choosing).event(), self.gaussian(measuring).event()))
        return EventSequence((*starts, Repeated(each, self.chosen)))

    @property
    def chosen(self) -> int:
        """How many marginals are chosen in all."""
        return self.rounds * self.choices if self.start_share < 1 else 0

    def releases(self) -> int:
        """One a column, two a choice."""
        return self.columns + 2 * self.chosen

    def forecast(self, instance: WorkloadTask) -> Forecast:
        """See `planning.adaptive_marginals`."""
        return planning.forecast(self, instance)

    def fit_seconds(self, workload: Workload) -> float:
        return planning.fit_seconds(self, workload)

    def run(self, curator: Curator, workload: Workload) -> Outcome:
        """Columns, then rounds of choices, measurements and fits."""
        held = asked(workload)
        mean = curator.hold_mean(MarginalMeans(workload=held))
        starts = [self.gaussian(share) for share in self._starts(workload.levels)]
        columns = [curator.release(HeldMarginal(mean=mean, place=i), noise) for i, noise in enumerate(starts)]
        released = [np.asarray(column, np.float64) for column in columns]
        total = total_weight(released, [_noise(mean, i, starts[i]) for i in range(len(starts))])
        measured = {
            i: Measured((i,), column / total, _precision(starts[i])) for i, column in enumerate(released)
        }
        if self.chosen == 0:
            alone = [nearest_shares(one.shares) for one in measured.values()]
            return Outcome(ProductMixture.independent(alone), Status.FINISHED)
        rng = np.random.default_rng(self.seed)
        logits = first_logits([one.shares for one in measured.values()], self.components, rng)
        logits = self._fit(logits, held, measured)
        for _ in range(self.rounds):
            curator.announce("choosing marginals")
            for place in self._choose(curator, mean, held, logits, total):
                one = self._measure(curator, mean, held, place, total)
                measured[place] = measured[place].joined(one) if place in measured else one
            logits = self._fit(logits, held, measured)
        return Outcome(logits.model(workload.levels), Status.FINISHED)

    def _starts(self, levels: Sequence[int]) -> tuple[float, ...]:
        return planning.start_shares(self, tuple(levels))

    def _choose(
        self, curator: Curator, mean: HiddenMean, held: Workload, logits: Logits, total: float
    ) -> list[int]:
        """The places of this round's marginals among those held."""
        choosing, measuring = planning.choice_shares(self)
        noise = _noise(mean, len(held.levels), self.gaussian(measuring)) * curator.public.n
        modelled = total * logits.model(held.levels).answers(held)
        left = list(range(len(held.levels), len(held.sets)))
        chosen: list[int] = []
        for _ in range(self.choices):
            penalties = np.array([self.penalty * NORMAL_MEAN * noise * held.cells[place] for place in left])
            scores = MarginalDistances(
                mean=mean, modelled=modelled, penalties=penalties, candidates=tuple(left)
            )
            chosen.append(left.pop(int(curator.release(scores, self.choice(choosing)))))
        return chosen

    def _measure(
        self, curator: Curator, mean: HiddenMean, held: Workload, place: int, total: float
    ) -> Measured:
        _, measuring = planning.choice_shares(self)
        noise = self.gaussian(measuring)
        cells = np.asarray(curator.release(HeldMarginal(mean=mean, place=place), noise), np.float64)
        return Measured(held.sets[place], cells / total, _precision(noise))

    def _fit(self, logits: Logits, held: Workload, measured: dict[int, Measured]) -> Logits:
        return MixtureFit(steps=self.steps).fit(logits, held.levels, list(measured.values()))


def _precision(noise: Gaussian) -> float:
    """One over the variance, in squares of the sensitivity that all marginals have; 1 without noise."""
    return 1.0 / noise.noise_multiplier**2 if noise.noise_multiplier > 0 else 1.0


def _noise(mean: HiddenMean, place: int, noise: Gaussian) -> float:
    """The standard deviation of a cell, as a share of n."""
    query: Any = HeldMarginal(mean=mean, place=place)
    return noise.noise_multiplier * float(query.sensitivity(mean.public))
