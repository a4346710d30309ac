"""What a program plans for: a problem, what is public about the data, and a budget."""

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

from privopt.ledger.amounts import Budget
from privopt.ledger.gaussian_dp import gaussian_mu
from privopt.public import Public

P = TypeVar("P")


@dataclass(frozen=True)
class Task(Generic[P]):
    """One problem to solve at one price; everything in it is public.

    Attributes:
        problem: what is to be solved: a minimisation, a game, a workload of queries.
        public: sizes, bounds and relation of the data.
        budget: the (epsilon, delta) of the whole solve.
    """

    problem: P
    public: Public
    budget: Budget

    @property
    def is_private(self) -> bool:
        """Whether there is any noise: not for an infinite epsilon."""
        return self.budget.is_private

    @property
    def mu(self) -> float:
        """The budget as the parameter of Gaussian differential privacy; infinite without noise."""
        return gaussian_mu(self.budget.epsilon, self.budget.delta) if self.is_private else math.inf
