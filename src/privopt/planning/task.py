"""What a program plans for: a problem, what is public about the data, and a budget."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.planning.plan import Bound, Finding
from privopt.problems.growth import KL
from privopt.problems.losses import GLMLoss
from privopt.problems.problem import Problem
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


# ---- What a solver of a minimisation plans for: a task, and what its problem says --------------------------


@dataclass(frozen=True)
class Instance(Task[Problem]):
    """One minimisation at one price; everything in it is public."""

    @property
    def has_own_loss(self) -> bool:
        """Whether the loss was written by the user: nothing is known of it but what it states."""
        return not isinstance(self.problem.loss, GLMLoss)

    @property
    def parameters(self) -> int:
        """p, how many numbers are solved for."""
        return math.prod(self.problem.parameter_shape(self.public))

    @property
    def ridge(self) -> float:
        """lam, the strong convexity of the penalty."""
        return self.problem.regulariser.strong_convexity

    @property
    def penalty_smoothness(self) -> float:
        """The largest curvature of the penalty's smooth part."""
        return self.problem.regulariser.smoothness

    @property
    def known_smoothness(self) -> float:
        """The curvature of the objective as far as it is known: of the penalty, and of a loss that states its own."""
        loss = self.problem.loss_smoothness(self.public)
        return self.penalty_smoothness + (loss if math.isfinite(loss) else 0.0)

    @property
    def loss_at_zero(self) -> float | None:
        """A bound on the mean loss at zero, and so on the excess of a start there; None if nothing bounds it."""
        loss = self.problem.loss
        return loss.value_at_zero if isinstance(loss, GLMLoss) else None

    @property
    def growth(self) -> KL | None:
        """What is known of how fast the objective grows."""
        return self.problem.growth

    @property
    def gradient_bound(self) -> float:
        """A bound on the norm of one record's gradient by the loss's formula; infinite if not known."""
        return self.problem.gradient_bound(self.public)

    def capped(self, excess: float) -> float:
        """A predicted excess, no larger than the loss at zero where that is bounded."""
        return excess if self.loss_at_zero is None else min(excess, self.loss_at_zero)


# ---- What a solver says of its result before the data are read ---------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What can be expected of a configured solver, from public numbers.

    Attributes:
        excess: predicted excess of the objective over its non-private optimum; None where no formula applies.
        excess_range: (low, high), between which the excess ends in most cases, as `meaning` says; None if not known.
        meaning: what the prediction is and how far to trust it, or why there is none.
        bound: a bound on the excess; None where there is none.
        indicators: by name, public numbers that say what can be hoped of this solver.
        notices: sentences that a user should read.
        measure: what `excess` is: that of an objective, or the "duality gap" of a game.
        for_convex: whether `excess` and `bound` are those of convex losses, and say nothing of others.
    """

    excess: float | None = None
    excess_range: tuple[float, float] | None = None
    meaning: str = ""
    bound: Bound | None = None
    indicators: Mapping[str, Finding] = field(default_factory=dict[str, Finding])
    notices: tuple[str, ...] = ()
    measure: str = "excess"
    for_convex: bool = True

    def noting(self, *notices: str) -> "Forecast":
        """The same with further notices."""
        return replace(self, notices=(*self.notices, *notices))
