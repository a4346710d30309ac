"""A synthesizer: the marginal of every column, with Gaussian noise; rows are drawn column by column, independently."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from privopt.curator.base import Curator
from privopt.ledger.events import Event
from privopt.problems.workload import Workload
from privopt.public import Public
from privopt.queries.marginals import MarginalMeans
from privopt.result import Outcome, Status
from privopt.solvers.fields import number
from privopt.solvers.needs import Need
from privopt.synthesis.base import FewCells, Histogram, Synthesizer


@dataclass(frozen=True, kw_only=True)
class IndependentColumns(Synthesizer):
    """The product of noisy marginals of single columns.

    Attributes:
        noise_multiplier: noise standard deviation over the l2 sensitivity of all marginals together.
        cut: noisy shares below this many standard deviations of their noise count as 0.
    Guarantee:
        One Gaussian release.
    """

    name: ClassVar[str] = "independent-columns"
    needs: ClassVar[tuple[Need, ...]] = (FewCells(),)

    cut: float = number(1.0, at_least=0)

    def event(self, public: Public) -> Event:
        """One Gaussian release."""
        del public
        return self.gaussian(1.0).event()

    def releases(self) -> int:
        """One."""
        return 1

    def fit_seconds(self, workload: Workload) -> float:
        """A product over all cells."""
        return 1e-8 * workload.universe

    def run(self, curator: Curator, workload: Workload) -> Outcome:
        """Release the marginals, and multiply them."""
        columns = Workload(workload.levels, sets=tuple((column,) for column in range(len(workload.levels))))
        query, noise = MarginalMeans(workload=columns), self.gaussian(1.0)
        released = np.asarray(curator.release(query, noise), np.float64)
        stddev = noise.noise_multiplier * float(
            query.sensitivity(curator.public)
        )  # of the noise in each entry
        weights = np.ones(1)
        for _, shares in columns.marginals(released):
            kept = np.where(shares > self.cut * stddev, shares, 0.0)
            kept = kept / kept.sum() if kept.sum() > 0 else np.full(len(kept), 1.0 / len(kept))
            weights = np.outer(kept, weights).ravel()  # the first column runs fastest
        return Outcome(Histogram(workload.levels, weights), Status.FINISHED)
