"""What solvers have in common whose every step is one release over the data."""

from dataclasses import dataclass

from privopt.ledger.events import Event, Repeated
from privopt.mechanisms.gaussian import Gaussian
from privopt.public import Public
from privopt.solvers.base import Solver
from privopt.solvers.fields import derived


@dataclass(frozen=True, kw_only=True)
class StepwiseSolver(Solver):
    """A solver of `steps` steps, each from one release of the same price: by default a Gaussian one over all units.

    Attributes:
        steps: T, the number of releases and steps; 0 returns the start and spends nothing.
    """

    steps: int = derived(at_least=0)

    def step_event(self, public: Public) -> Event:
        """What one step releases."""
        del public
        return Gaussian(self.noise_multiplier).event()

    def event(self, public: Public) -> Event:
        """One release a step."""
        return Repeated(self.step_event(public), self.steps)

    def releases(self) -> int:
        """One a step."""
        return self.steps
