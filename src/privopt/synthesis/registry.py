"""Every synthesizer by name, the default choice, and the plainest one: Gaussian noise on every answer."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privopt import papers
from privopt.curator.base import Curator
from privopt.ledger.events import Event
from privopt.planning.cell_weights import (
    MOST_CELLS,
    NORMAL_MEAN,
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
from privopt.queries.marginals import MarginalMeans, QueryMeans
from privopt.result import Outcome, Status
from privopt.solvers.fields import number
from privopt.solvers.needs import Need
from privopt.solvers.program import Choice, Registry
from privopt.synthesis.adaptive_marginals import AdaptiveMarginals
from privopt.synthesis.base import FewCells, Histogram, Synthesizer, total_weight
from privopt.synthesis.mirror_fit import AnswerMap, LeastSquares, MirrorFit
from privopt.synthesis.mwem import MWEM
from privopt.synthesis.query_game import QueryGame, QueryGameML


# ---- Gaussian noise on every marginal or query, and the table that fits them all best ----------------------
@dataclass(frozen=True, kw_only=True)
class GaussianMarginals(Synthesizer):
    """One Gaussian release of every answer; the cells' weights are fitted by least squares.

    Attributes:
        noise_multiplier: noise standard deviation over the l2 sensitivity of all answers together.
        iterations: mirror steps of the fit, at least 0.
    Guarantee:
        One Gaussian release: exact Gaussian differential privacy.
    Source:
        Dwork, Roth 2014, section 3: marginals by a matrix mechanism with the identity. The fit is ours.
    """

    name: ClassVar[str] = "gaussian-marginals"
    needs: ClassVar[tuple[Need, ...]] = (FewCells(),)

    iterations: int = number(200, at_least=0)

    def event(self, public: Public) -> Event:
        """The release."""
        del public
        return self.gaussian(1.0).event()

    def releases(self) -> int:
        """One."""
        return 1

    def forecast(self, instance: WorkloadTask) -> Forecast:
        """The noise of every answer before the fit."""
        share = 1.0 / parts(instance.problem)
        noise = cell_noise(self.noise_multiplier, share, instance)
        if instance.problem.queries is None:
            found = {"cell_noise": cell_finding(noise, "every marginal")}
        else:
            meaning = "the standard deviation of the noise on a query, at most"
            found = {"answer_noise": Finding(noise / 2.0, meaning)}
        return Forecast(
            meaning="the fit averages much of the noise away; see the indicators", indicators=found
        )

    def fit_seconds(self, workload: Workload) -> float:
        return fit_seconds(self.iterations, workload)

    def run(self, curator: Curator, workload: Workload) -> Outcome:
        """Release, then fit."""
        noise = self.gaussian(1.0)
        uniform = Histogram.uniform(workload.levels)
        if workload.queries is not None:
            means = QueryMeans(workload=workload)
            targets = np.asarray(curator.release(means, noise), np.float64) + 0.5
        else:
            counts = MarginalMeans(workload=workload)
            released = np.asarray(curator.release(counts, noise), np.float64)
            spread = noise.noise_multiplier * float(counts.sensitivity(curator.public))
            marginals = [cells for _, cells in workload.marginals(released)]
            targets = released / total_weight(marginals, [spread] * len(marginals))
        answer_map = AnswerMap(workload)
        fit = MirrorFit(iterations=self.iterations, curvature=float(answer_map.parts))
        misfit = LeastSquares(targets, np.ones(workload.size))
        return Outcome(
            Histogram(workload.levels, fit.fit(answer_map, misfit, uniform.weights)), Status.FINISHED
        )


SYNTHESIZERS: dict[str, Callable[[], Synthesizer]] = {
    "adaptive-marginals": AdaptiveMarginals,
    "gaussian-marginals": GaussianMarginals,
    "mwem": MWEM,
    "query-game-ml": QueryGameML,
    "query-game": QueryGame,
}
REGISTRY = Registry(
    Synthesizer, "method", "a synthesizer", ("mwem", "MWEM()"), SYNTHESIZERS, papers.SYNTHESIZERS
)
NAMES, named = REGISTRY.names, REGISTRY.named
FAINT = 0.03  # mean total variation of a marginal by noise on all of them
SMALL_MARGINALS = 16.0  # cells, on average
MANY_SLOPE = 10.0  # marginals, over the square root of the loudness


def choose_synthesizer(method: Synthesizer | str, task: WorkloadTask) -> Choice[Synthesizer]:
    """The synthesizer meant by a name, an instance, or "auto", see `automatic_synthesizer`.

    Raises:
        TypeError: it is neither a name nor a synthesizer.
        ValueError: an unknown name, or a synthesizer that cannot model such a table.
    """
    choice = REGISTRY.chosen(method, lambda: automatic_synthesizer(task))
    choice.solver.check_applicable(task.problem, task.public)
    return choice


def all_noise(task: WorkloadTask) -> float:
    """The mean total variation of a marginal that Gaussian noise on all of them causes, before the fit."""
    sets = parts(task.problem)
    return NORMAL_MEAN / 2.0 * (task.problem.size / sets) * math.sqrt(sets) / loudness(task)


def automatic_synthesizer(task: WorkloadTask) -> Choice[Synthesizer]:
    """The default choice, from public numbers.

    Queries that are no marginals: Gaussian noise on all of them where it is faint (0.03 of their range), else the game
    with a likelihood refit. Marginals of a table whose cells can all be weighed: Gaussian noise on all of them, where
    that noise is faint (a mean total variation of 0.03) or marginals are small (16 cells on average) and not many
    (10 sqrt(kappa)); MWEM for many small ones. Everything else: adaptive marginals. Measured: `docs/synthetic-data.md`.
    """
    workload = task.problem
    if workload.queries is not None:
        noise = math.sqrt(workload.size) / loudness(task)
        if noise <= FAINT:
            reason = f"noise on all {workload.size:,} queries is faint, {noise:.2g} of a query's range"
            return Choice(GaussianMarginals(), reason)
        return Choice(
            QueryGameML(),
            f"noise on all {workload.size:,} queries would be loud, {noise:.2g} of a query's range",
        )
    if workload.universe > MOST_CELLS:
        return Choice(
            AdaptiveMarginals(), f"the joint table has {workload.universe:.2g} cells, too many to weigh each"
        )
    sets, noise = parts(workload), all_noise(task)
    if noise <= FAINT:
        reason = f"noise on all {sets:,} marginals is faint, a mean total variation of {noise:.2g}"
        return Choice(GaussianMarginals(), reason)
    if workload.size > SMALL_MARGINALS * sets:
        reason = f"noise on all {sets:,} marginals would be loud, a mean total variation of {noise:.2g}"
        return Choice(AdaptiveMarginals(), reason)
    if sets <= MANY_SLOPE * math.sqrt(loudness(task)):
        return Choice(GaussianMarginals(), f"the {sets:,} marginals are small and not many")
    return Choice(MWEM(), f"the {sets:,} marginals are small and many")
