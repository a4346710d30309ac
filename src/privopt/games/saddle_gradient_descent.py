"""Private gradient descent and ascent for games: the classical baseline.

Source: Yang, Lei, Li, Rafique, Zhu 2022; Boob, Guzman 2023 (private stochastic gradient descent ascent).
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Self

import jax.numpy as jnp
import numpy as np

from privopt.curator.base import Curator
from privopt.games.gradients import Gradients
from privopt.games.rounds import RoundSolver
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, repeat, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning import saddle_gradient_descent as planning
from privopt.planning.forecast import Forecast
from privopt.planning.sampled_dual_averaging import movers
from privopt.planning.task import Task
from privopt.problems.saddle import Game, Player, Who
from privopt.problems.vertices import set_of
from privopt.public import Public
from privopt.result import Outcome, Status
from privopt.solvers.fields import derived
from privopt.solvers.program import Defaults


@dataclass(frozen=True, kw_only=True)
class SaddleGradientDescent(RoundSolver):
    """Both players take projected steps along noisy mean gradients of all units; a weighted average is the result.

    A baseline. With few coordinates, and gradients that are short in l2, it is a good choice.

    Attributes:
        clip_x, clip_y: C, the largest l2 norm of a unit's gradient in coordinates; the default shortens none.
        step_x, step_y: lengths of the steps.
        noise_x, noise_y: standard deviation of each release over its sensitivity.
        players: of the game that it was configured for.
    Guarantee:
        Gaussian releases, for any records and payoffs; exactly priced.
    Differs from the papers:
        Full batches; iterates averaged with linear weights; each player's own clip, step and share of the price.
    """

    name: ClassVar[str] = "saddle-gradient-descent"
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    clip_x: float = derived(above=0)
    clip_y: float = derived(above=0)
    step_x: float = derived(above=0)
    step_y: float = derived(above=0)
    noise_x: float = derived(at_least=0, below=math.inf)
    noise_y: float = derived(at_least=0, below=math.inf)
    players: tuple[Player, ...] = field(default=(), repr=False)

    def applicable(self, problem: Game, public: Public) -> str | None:
        """Sets that can be projected onto; once configured, the game that it was configured for."""
        if self.players and self.players != (problem.x, problem.y):
            return "it was configured for another game; configure it for this one"
        refused = [planning.obstacle(player) for player in problem.players.values()]
        return next((why for why in refused if why), None) or super().applicable(problem, public)

    def filled(self, instance: Task[Game]) -> Self:
        """See `Program.filled`."""
        return super().filled(instance).with_(players=(instance.problem.x, instance.problem.y))

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

        if not wanted or not task.is_private or self.steps < 2:
            solver = at(0.0)
        else:
            solver = at(
                calibrate(lambda level: at(level).event(task.public), task.budget, task.public.relation)
            )
        for who in task.problem.players:
            if not solver.is_set(f"step_{who}"):
                solver = solver.with_(**{f"step_{who}": planning.default_step(who, solver, task)})
        return solver

    def choosing(self) -> list[Who]:
        """The players who have a choice."""
        return [one.who for one in self.players if one.vertices.count > 1]

    def event(self, public: Public) -> Event:
        """A Gaussian release a step and player with a choice."""
        del public
        rounds = self.rounds_of_data()
        if not rounds:
            return sequence([])
        noise: dict[Who, float] = {"x": self.noise_x, "y": self.noise_y}
        return sequence([repeat(Gaussian(noise[who]).event(), rounds) for who in self.choosing()])

    def releases(self) -> int:
        """A step and player with a choice."""
        return self.rounds_of_data() * len(self.choosing())

    def forecast(self, instance: Task[Game]) -> Forecast:
        return planning.forecast(self, instance)

    def run(self, curator: Curator, game: Game) -> Outcome:
        """Steps of both players from the same point, projected."""
        points = {who: player.vertices.mix(player.vertices.uniform()) for who, player in game.players.items()}
        averages, total = {who: point.copy() for who, point in points.items()}, 0.0
        clips: dict[Who, float] = {"x": self.clip_x, "y": self.clip_y}
        steps: dict[Who, float] = {"x": self.step_x, "y": self.step_y}
        noise: dict[Who, float] = {"x": self.noise_x, "y": self.noise_y}
        choosing = list(movers(game))
        gradients = Gradients.on(curator, game, hold=self.held) if self.steps > 1 else Gradients(game)
        for t in range(self.steps):
            total += t + 1.0
            for who in points:
                averages[who] = averages[who] + (points[who] - averages[who]) * ((t + 1.0) / total)
            if t == self.steps - 1:
                break
            x, y = points["x"], points["y"]
            for who in choosing:
                query = gradients.in_coordinates(who, x, y, clips[who])
                released = np.asarray(curator.release(query, Gaussian(noise[who])))
                moved = points[who] - steps[who] * released
                points[who] = np.asarray(set_of(game.players[who].vertices).project(jnp.asarray(moved)))
        return Outcome((averages["x"], averages["y"]), Status.FINISHED)
