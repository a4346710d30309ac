"""Players of a game who see noisy gradients in coordinates: what the solvers that project steps have in common."""

import abc
import math
from dataclasses import dataclass
from typing import Self

from privopt.games.rounds import RoundSolver
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, repeat, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning import saddle_gradient_descent as planning
from privopt.planning.task import Task
from privopt.problems.saddle import Game, Who
from privopt.public import Public
from privopt.solvers.fields import derived


@dataclass(frozen=True, kw_only=True)
class GradientPlayers(RoundSolver):
    """A solver whose every use of the data is a Gaussian release of one player's clipped mean gradient.

    Attributes:
        clip_x, clip_y: C, the largest l2 norm of a unit's gradient in coordinates.
        step_x, step_y: lengths of the steps.
        noise_x, noise_y: standard deviation of each release over its sensitivity.
    """

    clip_x: float = derived(above=0)
    clip_y: float = derived(above=0)
    step_x: float = derived(above=0)
    step_y: float = derived(above=0)
    noise_x: float = derived(at_least=0, below=math.inf)
    noise_y: float = derived(at_least=0, below=math.inf)

    @abc.abstractmethod
    def default_step(self, who: Who, task: Task[Game]) -> float:
        """The length of a player's steps, once the noise is known."""

    def applicable(self, problem: Game, public: Public) -> str | None:
        """Sets that can be projected onto."""
        refused = [planning.obstacle(player) for player in problem.players.values()]
        return next((why for why in refused if why), None) or super().applicable(problem, public)

    def calibrated(self, task: Task[Game]) -> Self:
        """Noise set to the budget, and then the steps to the noise."""
        shares = planning.noise_shares(self, task)
        wanted: list[Who] = [who for who in shares if not self.is_set(f"noise_{who}")]

        def at(level: float) -> Self:
            noise = {f"noise_{who}": level * shares[who] for who in wanted}
            still = {
                f"noise_{who}": 0.0
                for who in ("x", "y")
                if who not in shares and not self.is_set(f"noise_{who}")
            }
            return self.with_(**noise, **still)

        if not wanted or not task.is_private or not self.rounds_of_data():
            solver = at(0.0)
        else:
            solver = at(
                calibrate(lambda level: at(level).event(task.public), task.budget, task.public.relation)
            )
        for who in task.problem.players:
            if not solver.is_set(f"step_{who}"):
                solver = solver.with_(**{f"step_{who}": solver.default_step(who, task)})
        return solver

    def choosing(self) -> list[Who]:
        """The players who have a choice."""
        return [one.who for one in self.players if one.vertices.count > 1]

    def event(self, public: Public) -> Event:
        """A Gaussian release for every gradient of a player with a choice."""
        del public
        rounds = self.rounds_of_data()
        if not rounds:
            return sequence([])
        noise: dict[Who, float] = {"x": self.noise_x, "y": self.noise_y}
        return sequence([repeat(Gaussian(noise[who]).event(), rounds) for who in self.choosing()])

    def releases(self) -> int:
        """One for every gradient of a player with a choice."""
        return self.rounds_of_data() * len(self.choosing())
