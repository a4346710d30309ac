"""What a solver of a minimisation plans for: a task, and what its problem says."""

import math
from dataclasses import dataclass

from privopt.planning.task import Task
from privopt.problems.growth import KL
from privopt.problems.losses import GLMLoss
from privopt.problems.problem import Problem


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
