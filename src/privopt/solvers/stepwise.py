"""What solvers have in common whose every step is one release over the data."""

from dataclasses import dataclass

from privopt.ledger.events import Event, Repeated
from privopt.mechanisms.additive import Gaussian
from privopt.public import Public
from privopt.solvers.base import Solver, required


@dataclass(frozen=True, kw_only=True)
class StepwiseSolver(Solver):
    """A solver of `steps` steps, each from one release of the same price: by default a Gaussian one over all units."""

    steps: int | None = None

    def step_event(self, public: Public) -> Event:
        """What one step releases."""
        del public
        return Gaussian(required(self.noise_multiplier, "noise_multiplier")).event()

    def event(self, public: Public) -> Event:
        """One release a step."""
        return Repeated(self.step_event(public), required(self.steps, "steps"))

    def releases(self) -> int:
        """One a step."""
        return int(required(self.steps, "steps"))

    def passes(self) -> float:
        """One a step."""
        return float(required(self.steps, "steps"))
