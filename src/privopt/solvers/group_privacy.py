"""The baseline of user-level privacy: gradient descent that is private for every record, priced for whole users.

A user owns up to M records. Gradient descent with each record's gradient clipped to L0, made private for groups of M
records, *is* descent on users' averages with the clip L0: a user moves the mean by factor L0 / n, as a record of theirs
does the mean over records by M times factor L0 / (n M). Its error does not fall with M, which is what user-level
methods are measured against.

Source:
    Lowy, Liu, Asi 2024, section 1 (group privacy as the trivial method); that it is a clip, and its exact price, are
    ours.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Self

from privopt.curator.base import Curator
from privopt.later import Array
from privopt.ledger.events import Event
from privopt.planning.task import Instance
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.result import Outcome
from privopt.solvers.front_end import FrontEnd
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.needs import Need, Users


@dataclass(frozen=True, kw_only=True)
class GroupPrivacy(FrontEnd):
    """Gradient descent on users whose clip is the longest gradient of a record: a baseline, not a recommendation.

    Attributes:
        inner: the descent; its clip is the loss's bound unless it is given.
        noise_multiplier: of the descent.
    Guarantee:
        That of `GradientDescent`, for users.
    Source:
        See the module.
    """

    name: ClassVar[str] = "group-privacy"
    title_of: ClassVar[str] = name
    needs: ClassVar[tuple[Need, ...]] = (
        Users("a unit is a record, so that there are no groups to protect: use gradient descent"),
    )
    made_for_users: ClassVar[bool] = True

    inner: GradientDescent = field(default_factory=GradientDescent)

    def event(self, public: Public) -> Event:
        """What the descent releases."""
        return self._inner().event(public)

    def filled(self, instance: Instance) -> Self:
        """The clip that changes nothing, and the descent's own defaults for it."""
        self.check_applicable(instance.problem, instance.public)
        inner = self.inner
        if not inner.is_set("clip") and instance.is_private:
            inner = inner.with_(clip=instance.gradient_bound)
        return self.with_(inner=inner.filled(instance))

    def applicable(self, problem: Problem, public: Public) -> str | None:
        """Units that are users, and losses that say how long a record's gradient can be."""
        refused = super().applicable(problem, public)
        if refused is not None:
            return refused
        if not self.inner.is_set("clip") and math.isinf(problem.gradient_bound(public)):
            return f"the {problem.loss.name} loss has gradients of any length: give the inner descent a clip"
        return self.inner.applicable(problem, public)

    def run(self, curator: Curator, problem: Problem, start: Array) -> Outcome:
        """The descent."""
        return self._inner().run(curator, problem, start)

    def _inner(self) -> GradientDescent:
        return self.inner.with_(noise_multiplier=self.noise_multiplier)
