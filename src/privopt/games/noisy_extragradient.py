"""Noisy extragradient: both players look ahead along noisy gradients, and move by the gradients that they find there.

Source: Korpelevich 1976; Juditsky, Nemirovski, Tauvel 2011 (with noise); Boob, Guzman 2023 (private).
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from privopt.curator.base import Curator
from privopt.games.gradient_players import GradientPlayers
from privopt.games.gradients import Gradients, Strategy
from privopt.mechanisms.additive import Gaussian
from privopt.planning import noisy_extragradient as planning
from privopt.planning.forecast import Forecast
from privopt.planning.sampled_dual_averaging import movers
from privopt.planning.task import Task
from privopt.problems.saddle import Game, Who
from privopt.problems.vertices import set_of
from privopt.result import Outcome, Status
from privopt.solvers.program import Defaults


@dataclass(frozen=True, kw_only=True)
class NoisyExtragradient(GradientPlayers):
    """Projected extragradient steps on noisy mean gradients of all units; an average of the points ahead is the result.

    For games that bend in both players' strategies: the noise of a step then moves the saddle point a little, where
    it would choose another vertex of a game that is linear.

    Attributes:
        steps: T, each with two gradients of each player; 0 returns the uniform strategies and spends nothing.
        clip_x, clip_y: C, the largest l2 norm of a unit's gradient in coordinates; the default shortens long ones.
    Guarantee:
        2 T Gaussian releases for each player with a choice, each of l2 sensitivity factor * C / n, because every
        unit's gradient is clipped to norm C; exactly priced, for any records and payoffs.
    Differs from the papers:
        Full batches, no Lipschitz assumption: gradients are clipped. Both points of a step have the same noise. Points
        are averaged with linear weights.
    Source:
        Juditsky, Nemirovski, Tauvel 2011, Algorithm 1, in the Euclidean norm.
    """

    name: ClassVar[str] = "noisy-extragradient"
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    def default_step(self, who: Who, task: Task[Game]) -> float:
        """See `planning.noisy_extragradient`."""
        return planning.default_step(who, task)

    def rounds_of_data(self) -> int:
        """Two gradients a step."""
        return 2 * self.steps

    def forecast(self, instance: Task[Game]) -> Forecast:
        return planning.forecast(self, instance)

    def run(self, curator: Curator, game: Game) -> Outcome:
        """Steps of both players from the same point: ahead, and from where they were by what was found ahead."""
        points: dict[Who, Strategy] = {
            who: player.vertices.mix(player.vertices.uniform()) for who, player in game.players.items()
        }
        averages, total = {who: point.copy() for who, point in points.items()}, 0.0
        gradients = Gradients.on(curator, game, hold=self.held) if self.steps else Gradients(game)
        for t in range(self.steps):
            ahead = self._moved(curator, game, gradients, points, points)
            points = self._moved(curator, game, gradients, points, ahead)
            total += t + 1.0
            for who in points:
                averages[who] = averages[who] + (ahead[who] - averages[who]) * ((t + 1.0) / total)
        return Outcome((averages["x"], averages["y"]), Status.FINISHED)

    def _moved(
        self,
        curator: Curator,
        game: Game,
        gradients: Gradients,
        origin: dict[Who, Strategy],
        at: dict[Who, Strategy],
    ) -> dict[Who, Strategy]:
        """Each player's projected step from `origin`, along the noisy gradient at `at`."""
        found = dict(origin)
        clips: dict[Who, float] = {"x": self.clip_x, "y": self.clip_y}
        steps: dict[Who, float] = {"x": self.step_x, "y": self.step_y}
        noise: dict[Who, float] = {"x": self.noise_x, "y": self.noise_y}
        for who in movers(game):
            query = gradients.in_coordinates(who, at["x"], at["y"], clips[who])
            released = np.asarray(curator.release(query, Gaussian(noise[who])))
            moved = origin[who] - steps[who] * released
            found[who] = np.asarray(set_of(game.players[who].vertices).project(jnp.asarray(moved)))
        return found
