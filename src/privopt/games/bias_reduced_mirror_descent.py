"""Mirror descent through drawn vertices, on gradients whose bias is reduced by more draws at random levels.

Solves min over x, max over y of a mean payoff on two polytopes. Never the default: see the class.
Source: Gonzalez, Guzman, Paquette 2024, Algorithms 2 and 3.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.games.base import GameSolver
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, NoEvent, Parallel, Sequence
from privopt.mechanisms.vertex_sampler import VertexSampler
from privopt.planning import bias_reduced_mirror_descent as planning
from privopt.planning.bias_reduced_mirror_descent import Schedule
from privopt.planning.forecast import Forecast
from privopt.planning.task import Task
from privopt.problems.saddle import Game, Player, Who
from privopt.problems.vertices import Vertices
from privopt.public import Public
from privopt.queries.bias_reduced_gradient import BiasReducedGradient
from privopt.result import Outcome
from privopt.solvers.fields import choice, derived, number
from privopt.solvers.program import Defaults
from privopt.status import Status

Points = dict[Who, NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class BiasReducedMirrorDescent(GameSolver):
    """Bias-reduced mirror descent: one pass over disjoint batches, a step of level N on 2^(N + 1) draws a player.

    The levels are drawn, from public randomness, before any data is read: the loop has a known length, every batch a
    known size, and the temperature is what this very schedule allows. Both players draw at the same inverse
    temperature in the unit of their half-ranges, so that each pays one half.

    Attributes:
        players: vertices and half-ranges of the game that it is configured for, as (count, half-range).
        differences: of which gradients a step takes the scaled difference from that at the average of all draws:
            "both halves" of the draws, whose mean cancels what is linear in them, or "first half" as in the paper.
        difference_clip: C_d, to which a record's difference is clipped, in units of the player's half-range; 2 is never
            active if the half-range is right. Enforced.
        effort: U, at least 4; the 2^N of all steps sum to at most U.
        highest_level: M; the bias that is left is that of 2^(M + 1) draws a step.
        schedule_seed: of the levels; public, and any number protects the data as well as another.
        temperature: tau, the inverse temperature in units of one over the half-range.
    Guarantee:
        For every schedule, two streams of draws, each priced whole by `VertexSampler`, under the curator's relation,
        for any data and payoff. See `BiasReducedGradient` for the sensitivity.
    Differs from the paper:
        the schedule and its price are fixed beforehand, in place of an adaptive count; C_M multiplies the difference,
        as an unbiased estimate asks; y descends on -f; sensitivities hold what is computed, not (4 + 2^-N); batches
        are sized by what they reveal; the averages of the played vertices are the result, so that no further draw is
        needed; gradients and differences are centred and clipped.
    Source:
        Gonzalez, Guzman, Paquette 2024, Algorithms 2 and 3, Theorem 3.14.
    """

    name: ClassVar[str] = "bias-reduced-mirror-descent"
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    players: tuple[tuple[int, float], ...] = derived()
    differences: Literal["both halves", "first half"] = choice("both halves")
    difference_clip: float = derived(above=0, below=math.inf)
    highest_level: int = derived(at_least=0, at_most=20)
    effort: float = derived(at_least=planning.LEAST_EFFORT, below=math.inf)
    schedule_seed: int = number(0, at_least=0)
    temperature: float = derived(above=0, below=math.inf)

    def schedule(self, public: Public) -> Schedule:
        """What a run does on such units."""
        return planning.schedule_of(self, public.n)

    def stream(self, public: Public, half_range: float) -> VertexSampler:
        """One player's draws of all steps; the last step's gradient is not used."""
        plan = self.schedule(public)
        items = plan.steps - 1
        largest = [self._half_range(plan, step) * half_range for step in range(items)]
        ranges = [
            public.relation.factor * 2.0 * entry / size
            for entry, size in zip(largest, plan.sizes, strict=True)
        ]
        return VertexSampler(
            item_weights=tuple(ranges),
            temperatures=(self.temperature / half_range,) * plan.steps,
            draws=plan.draws,
            participation=VertexSampler.one_item(items),
            largest_item=max(entry / moved for entry, moved in zip(largest, ranges, strict=True)),
        )

    def event(self, public: Public) -> Event:
        """Both players' streams, charged when they open; the batches that feed them cost nothing of their own."""
        steps = self.schedule(public).steps
        streams = (
            [self.stream(public, half_range).event() for half_range in self._drawing()] if steps > 1 else []
        )
        if not streams:
            return NoEvent()
        return Sequence((*streams, Parallel((NoEvent(),) * (steps - 1))))

    def releases(self) -> int:
        """The opening of each player's stream, and the draws of each step."""
        levels = planning.draw_levels(self.effort, self.highest_level, self.schedule_seed)
        return len(self._drawing()) * (len(levels) + 1) if len(levels) > 1 else 0

    def passes(self) -> float:
        """One, with three or four gradients of every record for each player."""
        points = 4.0 if self.differences == "both halves" else 3.0
        return 2.0 * points if self.releases() else 0.0

    def applicable(self, problem: Game, public: Public) -> str | None:
        """Whatever can be played, on units enough for the batches."""
        return super().applicable(problem, public) or planning.obstacle(self, public.n)

    def filled(self, instance: Task[Game]) -> Self:
        """Every field but the temperature.

        Raises:
            ValueError: there are too few units for so many batches.
        """
        players = [instance.problem.x, instance.problem.y]
        seen = tuple((player.vertices.count, player.half_range) for player in players)
        solver = super(BiasReducedMirrorDescent, self.with_(players=seen)).filled(instance)
        solver.check_applicable(instance.problem, instance.public)
        return solver

    def calibrated(self, task: Task[Game]) -> Self:
        """The coldest draws that the budget allows, but no colder than the steps can use."""
        if self.is_set("temperature"):
            return self
        steps = self.schedule(task.public).steps
        coldest = planning.cap(self, task.problem, steps)
        if not task.is_private or steps < 2 or not self._drawing():
            return self.with_(temperature=coldest)
        scale = calibrate(
            lambda noise: self.with_(temperature=1.0 / noise).event(task.public),
            task.budget,
            task.public.relation,
        )
        return self.with_(temperature=min(coldest, 1.0 / scale))

    def forecast(self, instance: Task[Game]) -> Forecast:
        return planning.forecast(self, instance)

    def run(self, curator: Curator, game: Game) -> Outcome:
        """Algorithm 3 over the schedule: draw, average, and add the bias-reduced gradients to the hidden scores."""
        plan, players = self.schedule(curator.public), game.players
        sets = {who: player.vertices for who, player in players.items()}
        if plan.steps < 2:
            return Outcome(tuple(one.mix(one.uniform()) for one in sets.values()), Status.FINISHED)
        streams = {
            who: curator.stream(
                f"draws of {who}", self.stream(curator.public, player.half_range), (player.vertices.count,)
            )
            for who, player in players.items()
            if player.vertices.count > 1
        }
        batches = curator.blocks(plan.sizes) if streams else []
        shares = {who: np.zeros(vertices.count) for who, vertices in sets.items()}
        for t in range(plan.steps):
            drawn = {who: np.zeros(plan.draws[t], np.int64) for who in players}
            drawn |= {who: np.asarray(stream.ask("draw")) for who, stream in streams.items()}
            for who, vertices in sets.items():
                shares[who] += (vertices.shares(drawn[who]) - shares[who]) / (t + 1)
            if t < plan.steps - 1:
                points: Points = {who: self._points(sets[who], drawn[who]) for who in players}
                for who, stream in streams.items():
                    stream.ask("add", self._gradient(game, players[who], points, plan.gain(t)), on=batches[t])
        return Outcome(tuple(sets[who].mix(shares[who]) for who in players), Status.FINISHED)

    def _points(self, vertices: Vertices, drawn: NDArray[np.int64]) -> NDArray[np.float64]:
        """The average of all draws, the first of them, and the averages of the halves that are subtracted."""
        half = len(drawn) // 2
        rows = [drawn, drawn[:1], drawn[:half], drawn[half:]]
        if self.differences == "first half":
            rows = rows[:3]
        return np.stack([vertices.average(indices) for indices in rows])

    def _gradient(self, game: Game, player: Player, points: Points, gain: float) -> BiasReducedGradient:
        """Algorithm 2, of one player."""
        return BiasReducedGradient(
            game=game,
            who=player.who,
            x=jnp.asarray(points["x"]),
            y=jnp.asarray(points["y"]),
            gain=gain,
            difference_clip=self.difference_clip * player.half_range,
            half_range=player.half_range,
        )

    def _half_range(self, plan: Schedule, step: int) -> float:
        """H_N of a step, in units of a player's."""
        return plan.gain(step) * self.difference_clip + 1.0

    def _drawing(self) -> list[float]:
        """The half-ranges of the players who have a choice."""
        return [half_range for count, half_range in self.players if count > 1]
