"""Private gradient descent and ascent for games: the classical baseline.

Source: Yang, Lei, Li, Rafique, Zhu 2022; Boob, Guzman 2023 (private stochastic gradient descent ascent).
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from privopt.curator.base import Curator
from privopt.games.gradient_players import GradientPlayers
from privopt.games.gradients import Gradients
from privopt.mechanisms.additive import Gaussian
from privopt.planning import saddle_gradient_descent as planning
from privopt.planning.forecast import Forecast
from privopt.planning.sampled_dual_averaging import default_held, movers
from privopt.planning.task import Task
from privopt.problems.saddle import Game, Who
from privopt.problems.vertices import set_of
from privopt.result import Outcome, Status


@dataclass(frozen=True, kw_only=True)
class SaddleGradientDescent(GradientPlayers):
    """Both players take projected steps along noisy mean gradients of all units; a weighted average is the result.

    A baseline. With few coordinates, and gradients that are short in l2, it is a good choice.

    Attributes:
        clip_x, clip_y: C, the largest l2 norm of a unit's gradient in coordinates; the default shortens none.
    Guarantee:
        Gaussian releases, for any records and payoffs; exactly priced.
    Differs from the papers:
        Full batches; iterates averaged with linear weights; each player's own clip, step and share of the price.
    """

    name: ClassVar[str] = "saddle-gradient-descent"

    def default_held(self, task: Task[Game]) -> bool:
        return default_held(self, task)

    def default_steps(self, task: Task[Game]) -> int:
        del task
        return planning.STEPS

    def default_clip_x(self, task: Task[Game]) -> float:
        return planning.default_clip("x", task)

    def default_clip_y(self, task: Task[Game]) -> float:
        return planning.default_clip("y", task)

    def default_step(self, who: Who, task: Task[Game]) -> float:
        """See `planning.saddle_gradient_descent`."""
        return planning.default_step(who, self, task)

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
