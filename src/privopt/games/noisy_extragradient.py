"""Noisy extragradient: both players look ahead along noisy gradients, and move by the gradients that they find there.

Source: Korpelevich 1976; Juditsky, Nemirovski, Tauvel 2011 (with noise); Boob, Guzman 2023 (private).
"""

import abc
import math
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from privopt.curator.base import Curator
from privopt.games.gradients import Gradients, Strategy
from privopt.games.rounds import RoundSolver
from privopt.later import jnp
from privopt.ledger.events import Event, repeat, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.planning import saddle
from privopt.planning.plan import Bound
from privopt.planning.sampled_dual_averaging import movers, price_shares
from privopt.planning.task import Forecast, Task
from privopt.problems.saddle import Game, Player, Who
from privopt.problems.vertices import set_of
from privopt.public import Public
from privopt.result import Outcome, Status
from privopt.solvers.fields import derived

# ------------------------------------------------------------------------------------------------------------
# Players of a game who see noisy gradients in coordinates: what the solvers that project steps have in
# common.


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

    def default_clip_x(self, task: Task[Game]) -> float:
        return self.default_clip(task, task.problem.x)

    def default_clip_y(self, task: Task[Game]) -> float:
        return self.default_clip(task, task.problem.y)

    @abc.abstractmethod
    def default_clip(self, task: Task[Game], player: Player) -> float:
        """C of a player."""

    @abc.abstractmethod
    def default_step(self, who: Who, task: Task[Game]) -> float:
        """The length of a player's steps, once the noise is known."""

    def applicable(self, problem: Game, public: Public) -> str | None:
        """Sets that can be projected onto."""
        try:
            for player in problem.players.values():
                set_of(player.vertices)
        except TypeError as refused:
            return str(refused).rstrip(".")
        return super().applicable(problem, public)

    def calibrated(self, task: Task[Game]) -> Self:
        """Noise set to the budget, and then the steps to the noise."""
        uses = max(1, self.rounds_of_data())
        # What the common noise multiplier is multiplied by: the dearer player's is smaller.
        shares: dict[Who, float] = {
            who: math.sqrt(uses / (2.0 * share)) for who, share in price_shares(task.problem).items()
        }
        wanted: list[Who] = [who for who in shares if not self.is_set(f"noise_{who}")]

        def at(level: float) -> Self:
            noise = {f"noise_{who}": level * shares[who] for who in wanted}
            still = {
                f"noise_{who}": 0.0
                for who in ("x", "y")
                if who not in shares and not self.is_set(f"noise_{who}")
            }
            return self.with_(**noise, **still)

        priced = wanted and task.is_private and self.rounds_of_data()
        solver = self.to_budget(task, at) if priced else at(0.0)
        for who in task.problem.players:
            if not solver.is_set(f"step_{who}"):
                solver = solver.with_(**{f"step_{who}": solver.default_step(who, task)})
        return solver

    def event(self, public: Public) -> Event:
        """A Gaussian release for every gradient of a player with a choice."""
        del public
        rounds = self.rounds_of_data()
        if not rounds:
            return sequence([])
        noise: dict[Who, float] = {"x": self.noise_x, "y": self.noise_y}
        return sequence([repeat(Gaussian(noise[who]).event(), rounds) for who in self.choosing()])

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


# ------------------------------------------------------------------------------------------------------------
# Noisy extragradient: both players look ahead along noisy gradients, and move by the gradients that they
# find there.


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

    def default_steps(self, task: Task[Game]) -> int:
        """T."""
        del task
        return STEPS

    def default_clip(self, task: Task[Game], player: Player) -> float:
        """C, infinite without noise: nothing is shortened there."""
        if not task.is_private:
            return math.inf
        return CLIP_SHARE * math.sqrt(player.vertices.dimension) * player.half_range / player.vertices.largest

    def default_step(self, who: Who, task: Task[Game]) -> float:
        """eta."""
        player = task.problem.players[who]
        return STEP_SHARE * player.vertices.largest**2 / (player.curvature + player.half_range)

    def rounds_of_data(self) -> int:
        """Two gradients a step."""
        return 2 * self.steps

    def forecast(self, instance: Task[Game]) -> Forecast:
        """The typical gap of games that bend, and the bound."""
        return saddle.typical(instance, saddle.bent_gap(instance), self._bound(instance))

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
            of=saddle.GAP,
        )

    def _part(self, player: Player, task: Task[Game]) -> float:
        clip, step = getattr(self, f"clip_{player.who}"), getattr(self, f"step_{player.who}")
        noise = getattr(self, f"noise_{player.who}")
        dimension = player.vertices.dimension
        diameter = set_of(player.vertices).diameter_in((dimension,))
        deviation = task.public.relation.factor * clip * noise / task.public.n if noise > 0 else 0.0
        return 2.0 * diameter**2 / (step * (self.steps + 1.0)) + 3.5 * step * dimension * deviation**2


# ---- Private gradient descent and ascent for games: the classical baseline ---------------------------------
# Source: Yang, Lei, Li, Rafique, Zhu 2022; Boob, Guzman 2023 (private stochastic gradient descent ascent). The numbers
# are for utility only.
BASELINE_STEPS = 150
MEAN_SHARE = 0.1  # of the clip that a mean gradient is long; measured
STEP_GAIN = 2.0  # of the step that the bound of descent asks for; measured


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

    def default_steps(self, task: Task[Game]) -> int:
        del task
        return BASELINE_STEPS

    def default_clip(self, task: Task[Game], player: Player) -> float:
        """C, from which on no gradient whose entries keep to the half-range is shortened."""
        del task
        return player.half_range * math.sqrt(player.vertices.count)

    def default_step(self, who: Who, task: Task[Game]) -> float:
        """D / (sqrt(T) g), D the set's diameter and g the length of a noisy mean gradient."""
        player = task.problem.players[who]
        clip = getattr(self, f"clip_{who}")
        diameter = set_of(player.vertices).diameter_in((player.vertices.dimension,))
        sigma = getattr(self, f"noise_{who}") * task.public.relation.factor * clip / task.public.n
        length = math.hypot(MEAN_SHARE * clip, sigma * math.sqrt(player.vertices.dimension))
        return STEP_GAIN * diameter / (math.sqrt(max(self.steps, 1)) * length)

    def forecast(self, instance: Task[Game]) -> Forecast:
        """About that of noisy exponentiated gradient."""
        return saddle.typical(instance, saddle.noised_gap(instance))

    def run(self, curator: Curator, game: Game) -> Outcome:
        """Steps of both players from the same point, projected."""
        points: dict[Who, Strategy] = {
            who: player.vertices.mix(player.vertices.uniform()) for who, player in game.players.items()
        }
        averages, total = {who: point.copy() for who, point in points.items()}, 0.0
        gradients = Gradients.on(curator, game, hold=self.held) if self.steps > 1 else Gradients(game)
        for t in range(self.steps):
            total += t + 1.0
            for who in points:
                averages[who] = averages[who] + (points[who] - averages[who]) * ((t + 1.0) / total)
            if t == self.steps - 1:
                break
            points = self._moved(curator, game, gradients, points, points)
        return Outcome((averages["x"], averages["y"]), Status.FINISHED)
