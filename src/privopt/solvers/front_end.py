"""Front ends: solvers that run another solver on a changed problem, or after releases of their own."""

import abc
import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_budget
from privopt.ledger.events import Event
from privopt.planning.task import Forecast, Instance
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.solvers.base import Solver


@dataclass(frozen=True, kw_only=True)
class FrontEnd(Solver):
    """A solver around `inner`: where a subclass says nothing else, a run releases and takes what that of `inner` does.

    Attributes:
        inner: the solver that runs.
    """

    title_of: ClassVar[str]  # of the front end, with "{}" for that of the inner solver
    own_releases: ClassVar[int] = 0  # before `inner` runs, each of one pass over the data

    inner: Solver

    @property
    def title(self) -> str:
        """What the front end does, and what runs inside."""
        return self.title_of.format(self.inner.title)

    @property
    def running(self) -> Solver:
        """The solver that what a run takes is said of: `inner`, or what is planned of it."""
        return self.inner

    @property
    def adaptive(self) -> bool:
        """As the inner solver."""
        return self.inner.adaptive

    @property
    def makes(self) -> tuple[int, int]:
        """As the inner solver."""
        return self.inner.makes

    @property
    def rests_on_convexity(self) -> str:
        """`for_convex`; where it is empty, as the inner solver."""
        return self.for_convex or self.inner.rests_on_convexity

    def event(self, public: Public) -> Event:
        """What the inner solver releases."""
        return self.inner.event(public)

    def scaled(self, factor: float) -> Self:
        """All noise times `factor`."""
        inner = self.inner.scaled(factor) if self.inner.is_set("noise_multiplier") else self.inner
        return self.with_(noise_multiplier=self._scaled_noise(factor), inner=inner)

    def releases(self) -> int:
        """Its own, and the inner solver's."""
        return self.own_releases + self.running.releases()

    def passes(self) -> float:
        """One for each of its own releases, and the inner solver's."""
        return self.own_releases + self.running.passes()

    def loss_values(self, problem: Problem, public: Public) -> float:
        """The inner solver's."""
        return self.running.loss_values(problem, public)

    def matrix_seconds(self, public: Public) -> float:
        """The inner solver's."""
        return self.running.matrix_seconds(public)

    def forecast(self, instance: Instance) -> Forecast:
        """The inner solver's."""
        return self.running.forecast(instance)


class FilteredFrontEnd(FrontEnd):
    """A front end after whose release `inner` runs under a filter that holds the rest of the budget.

    How often `inner` releases, and with which noise, may follow that release. It is paid by one Gaussian release of the
    noise multiplier `remainder`, which a Gaussian filter holds. The fields are declared by the subclasses.
    """

    own_releases = 1

    share: float  # of the budget, for the release
    remainder: float
    delta: float  # of the budget, at which the remainder is handed to `inner`
    planned: Solver  # `inner` as the plan supposes that it runs

    def default_delta(self, instance: Instance) -> float:
        return instance.budget.delta

    def default_remainder(self, instance: Instance) -> float:
        """The noise multiplier of the release that pays for the rest, before both parts are calibrated together."""
        return 1.0 / (instance.mu * math.sqrt(1.0 - self.share)) if instance.is_private else 0.0

    @property
    def running(self) -> Solver:
        """What is planned."""
        return self.planned

    @property
    def adaptive(self) -> bool:
        """Noise and number of releases may follow what was released."""
        return True

    @property
    def makes(self) -> tuple[int, int]:
        """As any solver."""
        return 1, 1

    def scaled(self, factor: float) -> Self:
        """All noise times `factor`."""
        return self.with_(noise_multiplier=self.noise_multiplier * factor, remainder=self.remainder * factor)

    @abc.abstractmethod
    def split(self, instance: Instance) -> Self:
        """With the noise of both parts, before they are calibrated together."""

    def configure(self, instance: Instance) -> Self:
        """Split the budget, calibrate both parts together, and plan what `inner` does."""
        if self.is_set("noise_multiplier"):
            solver = self
        elif instance.is_private:
            solver = self.split(instance).to_budget(instance)
        else:
            solver = self.with_(noise_multiplier=0.0)
        solver = solver.filled(instance)
        solver.check_applicable(instance.problem, instance.public)  # now that it is known what would run
        return solver

    def rest(self) -> Budget:
        """The remainder as an (epsilon, delta); where epsilon would be 0 at this delta, at a smaller one."""
        if self.remainder == 0.0:
            return Budget(math.inf, self.delta)
        return gaussian_budget(1.0 / self.remainder, self.delta)

    def forecast(self, instance: Instance) -> Forecast:
        """That of what is planned."""
        return replace(self.planned.forecast(replace(instance, budget=self.rest())), bound=None)


def choice_range(share: float, instance: Instance) -> float:
    """e of an exponential mechanism that has a share of rho: e^2 / 8 = share mu^2 / 2; infinite without noise."""
    return 2.0 * instance.mu * math.sqrt(share) if instance.is_private else math.inf
