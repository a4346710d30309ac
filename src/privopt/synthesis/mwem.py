"""MWEM: again and again measure the marginal that holds the cell which the model gets most wrong.

Source: Hardt, Ligett, McSherry 2012, with whole marginals, zCDP and least squares.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.curator.handles import HiddenMean
from privopt.ledger.events import Event, NoEvent, Repeated
from privopt.ledger.events import Sequence as EventSequence
from privopt.planning.cell_weights import (
    WorkloadTask,
    cell_finding,
    cell_noise,
    fit_seconds,
    loudness,
    parts,
)
from privopt.planning.plan import Finding
from privopt.planning.task import Forecast
from privopt.problems.workload import Workload
from privopt.public import Public
from privopt.queries.marginals import CellErrors, HeldAnswer, HeldMarginal, MarginalMeans, QueryMeans
from privopt.result import Outcome, Status
from privopt.solvers.fields import derived, number
from privopt.solvers.needs import Need
from privopt.synthesis.base import FewCells, Histogram, Synthesizer, total_weight
from privopt.synthesis.mirror_fit import AnswerMap, LeastSquares, MirrorFit

FINAL_ITERATIONS = 200  # of the last fit
ROUNDS_SLOPE = 1.4  # rounds, over the square root of the loudness


@dataclass(frozen=True, kw_only=True)
class MWEM(Synthesizer):
    """T rounds of: choose a cell by its error, measure its whole marginal (or query), refit the weights of all cells.

    Attributes:
        noise_multiplier: z of the whole run, see `Synthesizer`.
        rounds: T, at least 0; 0 returns the uniform table and spends nothing.
        selection_share: of the budget, for choosing.
        iterations: mirror steps after each round, from where the last ones ended.
    Guarantee:
        T choices of bounded range and T Gaussian releases: (epsilon, delta)-DP by the best accountant for them.
    Differs from the paper:
        a chosen cell's whole marginal is measured, since one record touches one cell of it; bounded-range choices and
        Gaussian noise in zCDP; all measurements are refitted by least squares; the last table is returned.
    Source:
        Hardt, Ligett, McSherry 2012, Figure 1.
    """

    name: ClassVar[str] = "mwem"
    needs: ClassVar[tuple[Need, ...]] = (FewCells(),)

    rounds: int = derived(at_least=0)
    selection_share: float = number(0.3, above=0, below=1)
    iterations: int = number(30, at_least=0)

    def default_rounds(self, task: WorkloadTask) -> int:
        """1.4 sqrt(kappa), kappa the loudness of the data: 40 to 80 for 20 000 units at epsilon 0.3 to 1.

        At most the number of marginals or queries.
        """
        return min(max(1, round(ROUNDS_SLOPE * math.sqrt(loudness(task)))), parts(task.problem))

    def event(self, public: Public) -> Event:
        """Choices and measurements."""
        del public
        if self.rounds == 0:
            return NoEvent()
        once = EventSequence((self._choosing().event(), self._measuring().event()))
        return Repeated(once, self.rounds)

    def releases(self) -> int:
        """Two a round."""
        return 2 * self.rounds

    def forecast(self, instance: WorkloadTask) -> Forecast:
        """The noise of a measurement, and how clearly the worst is told from the others."""
        if self.rounds == 0:
            return Forecast(meaning="no round: the uniform table, at no cost")
        noise = cell_noise(self.noise_multiplier, (1.0 - self.selection_share) / self.rounds, instance)
        public, per_unit = instance.public, self._choosing().epsilon
        blur = 2.0 * math.log(max(2, instance.problem.size)) / (per_unit * public.n * public.typical_weight)
        found = {
            "cell_noise": cell_finding(noise, "a chosen marginal"),
            "choice_blur": Finding(
                blur,
                "a chosen cell is about this much less wrong than the worst one, as a share of all units, at most",
            ),
        }
        return Forecast(
            meaning="there is no formula for the error of a model; see the indicators", indicators=found
        )

    def fit_seconds(self, workload: Workload) -> float:
        return fit_seconds(self.rounds * self.iterations + FINAL_ITERATIONS, workload)

    def run(self, curator: Curator, workload: Workload) -> Outcome:
        """Choose, measure, refit."""
        unstructured = workload.queries is not None
        mean = curator.hold_mean(
            QueryMeans(workload=workload) if unstructured else MarginalMeans(workload=workload)
        )
        answer_map, weights = AnswerMap(workload), Histogram.uniform(workload.levels).weights
        sums, precisions, total = np.zeros(workload.size), np.zeros(workload.size), 1.0
        starts = np.array([place.start for place in workload.slices])
        for _ in range(self.rounds):
            curator.announce("choosing marginals")
            answers = answer_map.answers(weights)
            modelled = answers - 0.5 if unstructured else total * answers
            chosen = int(curator.release(CellErrors(mean=mean, modelled=modelled), self._choosing()))
            if unstructured:
                here = slice(chosen, chosen + 1)
            else:
                here = workload.slices[int(np.searchsorted(starts, chosen, side="right")) - 1]
            sums[here] += self._measured(curator, mean, workload, here)
            precisions[here] += 1.0
            if not unstructured:
                total = self._total(mean, workload, sums, precisions)
            weights = self._fit(answer_map, sums / total, precisions, weights, self.iterations)
        if self.rounds:
            weights = self._fit(answer_map, sums / total, precisions, weights, FINAL_ITERATIONS)
        return Outcome(Histogram(workload.levels, weights), Status.FINISHED)

    def _choosing(self) -> Any:
        return self.choice(self.selection_share / self.rounds)

    def _measuring(self) -> Any:
        return self.gaussian((1.0 - self.selection_share) / self.rounds)

    def _measured(
        self, curator: Curator, mean: HiddenMean, workload: Workload, here: slice
    ) -> NDArray[np.float64]:
        """A released marginal, or a query's answer."""
        if workload.queries is not None:
            answer = curator.release(HeldAnswer(mean=mean, place=here.start), self._measuring())
            return np.asarray(answer, np.float64).reshape(1) + 0.5
        query = HeldMarginal(mean=mean, place=workload.slices.index(here))
        return np.asarray(curator.release(query, self._measuring()), np.float64)

    def _total(
        self,
        mean: HiddenMean,
        workload: Workload,
        sums: NDArray[np.float64],
        precisions: NDArray[np.float64],
    ) -> float:
        """The weight of the data by all marginals measured so far."""
        query = HeldMarginal(mean=mean, place=0)
        spread = self._measuring().noise_multiplier * float(query.sensitivity(mean.public))
        often = [float(precisions[place.start]) for place in workload.slices]
        places = [place for place, times in zip(workload.slices, often, strict=True) if times > 0]
        times = [float(precisions[place.start]) for place in places]
        marginals = [sums[place] / count for place, count in zip(places, times, strict=True)]
        return total_weight(marginals, [spread / count**0.5 for count in times])

    def _fit(
        self,
        answer_map: AnswerMap,
        sums: NDArray[np.float64],
        precisions: NDArray[np.float64],
        start: NDArray[np.float64],
        iterations: int,
    ) -> NDArray[np.float64]:
        """The weights that fit what was measured, repeated measurements averaged."""
        targets = sums / np.where(precisions > 0, precisions, 1.0)
        starts = [place.start for place in answer_map.workload.slices]
        measured = float(np.sum(precisions[starts] if starts else precisions))
        fit = MirrorFit(iterations=iterations, curvature=max(1.0, measured))
        return fit.fit(answer_map, LeastSquares(targets, precisions), start)
