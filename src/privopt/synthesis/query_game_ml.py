"""The query game with a likelihood refit: drawn queries are measurements, and the table makes them likely."""

from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from privopt.curator.base import Curator
from privopt.ledger.events import Event, NoEvent
from privopt.mechanisms.vertex_table import VertexTable
from privopt.planning import query_games as planning
from privopt.planning.cell_weights import fit_seconds
from privopt.planning.forecast import Forecast
from privopt.planning.synthesis import WorkloadTask
from privopt.problems.workload import Workload
from privopt.public import Public
from privopt.queries.marginal_errors import SignedErrors
from privopt.queries.marginals import MarginalMeans
from privopt.queries.query_means import QueryMeans
from privopt.result import Outcome, Status
from privopt.solvers.fields import derived, number
from privopt.solvers.needs import Need
from privopt.synthesis.base import FewCells, Synthesizer
from privopt.synthesis.histogram import Histogram
from privopt.synthesis.marginal_map import AnswerMap
from privopt.synthesis.mirror_fit import Draws, Likelihood, MirrorFit

FINAL_ITERATIONS = 200  # of the last fit


@dataclass(frozen=True, kw_only=True)
class QueryGameML(Synthesizer):
    """Draw queries by the current table's errors, then refit the table by the likelihood of all draws.

    A draw's probability depends on the data through the answers alone, and its logarithm is concave in them. So T
    rounds draw K signed queries from softmax(beta * error of the table), and the next table is the maximiser of the
    likelihood of all draws less `entropy` times sum x log x.

    Attributes:
        noise_multiplier: z of the whole run, see `Synthesizer`.
        rounds: T, at least 0; 0 returns the uniform table and spends nothing.
        draws: K a round.
        entropy: lam of the refit, above 0.
        iterations: mirror steps of a refit, from where the last one ended.
    Guarantee:
        K T draws of bounded range: (epsilon, delta)-DP, delta may be 0. The table is a function of the draws.
    Source:
        Ours; the draws are those of Gonzalez, Guzman, Paquette 2024, Theorem 1.1, without their history.
    """

    name: ClassVar[str] = "query-game-ml"
    needs: ClassVar[tuple[Need, ...]] = (FewCells(),)

    rounds: int = number(planning.LIKELIHOOD_ROUNDS, at_least=0)
    draws: int = derived(at_least=1)
    entropy: float = number(0.3, above=0)
    iterations: int = number(30, at_least=0)

    def default_draws(self, task: WorkloadTask) -> int:
        return planning.default_likelihood_draws(self, task)

    def filled(self, instance: WorkloadTask) -> Self:
        """See `Program`; draws need a temperature, so privacy cannot be switched off."""
        planning.check_noise(self, instance)
        return super().filled(instance)

    def sampler(self, public: Public) -> VertexTable:
        """The stream: the draws of round t see item t alone."""
        weight = planning.likelihood_temperature(self, public) * planning.item_range(public)
        return VertexTable(
            weights=tuple(((t, weight),) for t in range(self.rounds)),
            draws=(self.draws,) * self.rounds,
            participation=VertexTable.every_item(self.rounds),
            largest_item=2.0 / planning.item_range(public),
        )

    def event(self, public: Public) -> Event:
        """The stream."""
        return self.sampler(public).event() if self.rounds else NoEvent()

    def releases(self) -> int:
        """The opening of the stream, and the draws of each round."""
        return 1 + self.rounds if self.rounds else 0

    def forecast(self, instance: WorkloadTask) -> Forecast:
        """See `planning.query_games`."""
        return planning.likelihood_forecast(self, instance)

    def fit_seconds(self, workload: Workload) -> float:
        likelihoods = 4e-8 * self.rounds**2 * self.iterations * workload.size
        return fit_seconds(self.rounds * self.iterations + FINAL_ITERATIONS, workload) + likelihoods

    def run(self, curator: Curator, workload: Workload) -> Outcome:
        """Draw, refit."""
        weights = Histogram.uniform(workload.levels).weights
        if self.rounds == 0:
            return Outcome(Histogram(workload.levels, weights), Status.FINISHED)
        unstructured = workload.queries is not None
        mean = curator.hold_mean(
            QueryMeans(workload=workload) if unstructured else MarginalMeans(workload=workload)
        )
        stream = curator.stream("drawn queries", self.sampler(curator.public), (2 * workload.size,))
        curator.announce("drawing queries")
        answer_map, beta = AnswerMap(workload), planning.likelihood_temperature(self, curator.public)
        rounds: list[Draws] = []
        for t in range(self.rounds):
            base = answer_map.answers(weights)
            stream.ask("add", SignedErrors(mean=mean, modelled=base - 0.5 if unstructured else base))
            # Smaller scores are likelier, so the first half, held - modelled, stands for the negative queries.
            drawn = (np.asarray(stream.ask("draw"), np.int64) + workload.size) % (2 * workload.size)
            rounds.append(Draws(base, beta, drawn))
            last = t + 1 == self.rounds
            fit = MirrorFit(
                iterations=FINAL_ITERATIONS if last else self.iterations,
                curvature=beta**2 * self.draws * (t + 1),
                entropy=self.entropy,
            )
            weights = fit.fit(answer_map, Likelihood(rounds), weights)
        return Outcome(Histogram(workload.levels, weights), Status.FINISHED)
