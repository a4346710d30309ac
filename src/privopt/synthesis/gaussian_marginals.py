"""Gaussian noise on every marginal or query, and the table that fits them all best."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privopt.curator.base import Curator
from privopt.ledger.events import Event
from privopt.planning import cell_weights as planning
from privopt.planning.forecast import Forecast
from privopt.planning.synthesis import WorkloadTask, small_universe
from privopt.problems.workload import Workload
from privopt.public import Public
from privopt.queries.marginals import MarginalMeans
from privopt.queries.query_means import QueryMeans
from privopt.result import Outcome, Status
from privopt.solvers.fields import number
from privopt.synthesis.base import Synthesizer
from privopt.synthesis.histogram import Histogram
from privopt.synthesis.marginal_map import AnswerMap
from privopt.synthesis.mirror_fit import LeastSquares, MirrorFit
from privopt.synthesis.totals import total_weight


@dataclass(frozen=True, kw_only=True)
class GaussianMarginals(Synthesizer):
    """One Gaussian release of every answer; the cells' weights are fitted by least squares.

    Attributes:
        noise_multiplier: noise standard deviation over the l2 sensitivity of all answers together.
        iterations: mirror steps of the fit, at least 0.
    Guarantee:
        One Gaussian release: exact Gaussian differential privacy.
    Source:
        Spec of marginals as a matrix mechanism with the identity: Dwork, Roth 2014, section 3; the fit is ours.
    """

    name: ClassVar[str] = "gaussian-marginals"

    iterations: int = number(200, at_least=0)

    def applicable(self, problem: Workload, public: Public) -> str | None:
        """A coded table with few enough cells."""
        return super().applicable(problem, public) or small_universe(self, problem)

    def event(self, public: Public) -> Event:
        """The release."""
        del public
        return self.gaussian(1.0).event()

    def releases(self) -> int:
        """One."""
        return 1

    def forecast(self, instance: WorkloadTask) -> Forecast:
        """See `planning.cell_weights`."""
        return planning.gaussian_forecast(self, instance)

    def fit_seconds(self, workload: Workload) -> float:
        return planning.fit_seconds(self.iterations, workload)

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
