"""Noisy extragradient: both players look ahead along noisy gradients, and move by the gradients that they find there.

Source: Korpelevich 1976; Juditsky, Nemirovski, Tauvel 2011 (with noise); Boob, Guzman 2023 (private).
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from privopt.curator.base import Curator
from privopt.games.gradient_players import GradientPlayers
from privopt.games.gradients import Gradients, Strategy
from privopt.mechanisms.additive import Gaussian
from privopt.planning import game_forecast
from privopt.planning.forecast import Forecast
from privopt.planning.plan import Bound
from privopt.planning.sampled_dual_averaging import default_held, movers
from privopt.planning.task import Task
from privopt.problems.saddle import Game, Player, Who
from privopt.problems.vertices import set_of
from privopt.result import Outcome, Status

# ---- Defaults, forecast and bound of the noisy extragradient method, from public numbers. Utility only -----
# For a player of half-range L, curvature b (both by weights on vertices), largest entry R of a vertex, p coordinates:
#
#     clip    C = 0.3 sqrt(p) L / R: records' gradients are seldom as long as sqrt(p) L / R, the longest
#     step    eta = 0.5 R^2 / (b + L): L stands for how much the other player's move turns the gradient
#     steps   T = 24; noise is what ends a run, and more steps neither cost nor help much
#
# Bound. With D the diameter of a player's set, sigma^2 the mean squared length of a release's noise and steps at most
# 1 / (sqrt(3) times the Lipschitz constant of both gradients together):
#
#     E gap <= sum over players of 2 D^2 / (eta (T + 1)) + 3.5 eta sigma^2
#
# A step moves half the squared distance from any point u by at most
#
#     -eta <g, ahead - u> + eta^2 |g - g'|^2 / 2 - |ahead - origin|^2 / 2
#
# with g and g' the gradients ahead and at the origin. |g - g'|^2 is at most three times the squared change of the mean
# gradient, which the last term outweighs, and three times the squares of both noises: 3 eta sigma^2 of the bound. With
# linear weights the distances add up to D^2 / (eta (T + 1)) at most, and so do those of a second sequence, which bounds
# the products of the noise with the best answers at the price of another eta sigma^2 / 2.
#
# Source:
#     Juditsky, Nemirovski, Tauvel 2011, Theorem 1, with constants of ours for linear weights.
STEPS = 24
CLIP_SHARE = 0.3  # of the longest gradient; measured, as what follows
STEP_SHARE = 0.5


def default_clip(who: Who, task: Task[Game]) -> float:
    """C, infinite without noise: nothing is shortened there."""
    if not task.is_private:
        return math.inf
    player = task.problem.players[who]
    return CLIP_SHARE * math.sqrt(player.vertices.dimension) * player.half_range / player.vertices.largest


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

    def default_held(self, task: Task[Game]) -> bool:
        return default_held(self, task)

    def default_steps(self, task: Task[Game]) -> int:
        """T."""
        del task
        return STEPS

    def default_clip_x(self, task: Task[Game]) -> float:
        return default_clip("x", task)

    def default_clip_y(self, task: Task[Game]) -> float:
        return default_clip("y", task)

    def default_step(self, who: Who, task: Task[Game]) -> float:
        """eta."""
        player = task.problem.players[who]
        return STEP_SHARE * player.vertices.largest**2 / (player.curvature + player.half_range)

    def rounds_of_data(self) -> int:
        """Two gradients a step."""
        return 2 * self.steps

    def forecast(self, instance: Task[Game]) -> Forecast:
        """The typical gap of games that bend, and the bound."""
        gap = game_forecast.bent_gap(instance)
        return Forecast(
            excess=min(gap, game_forecast.trivial_gap(instance.problem)),
            meaning=game_forecast.TYPICAL.split(";")[0],
            bound=self._bound(instance),
            notices=tuple(game_forecast.game_notices(instance, gap)),
            measure=game_forecast.GAP,
        )

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

    def _bound(self, task: Task[Game]) -> Bound | None:
        """The sum over the players that the comment above the class states."""
        if not self.steps:
            return None
        return Bound(
            value=sum(self._part(player, task) for player in movers(task.problem).values()),
            probability=None,
            condition=(
                "for the expected gap of the game of these units, if it is convex in x and concave in y, no gradient "
                "is longer than the clip, and steps are at most 0.57 over the Lipschitz constant of the gradients; "
                "pessimistic"
            ),
            of=game_forecast.GAP,
        )

    def _part(self, player: Player, task: Task[Game]) -> float:
        clip, step = getattr(self, f"clip_{player.who}"), getattr(self, f"step_{player.who}")
        noise = getattr(self, f"noise_{player.who}")
        dimension = player.vertices.dimension
        diameter = set_of(player.vertices).diameter_in((dimension,))
        deviation = task.public.relation.factor * clip * noise / task.public.n if noise > 0 else 0.0
        return 2.0 * diameter**2 / (step * (self.steps + 1.0)) + 3.5 * step * dimension * deviation**2
