"""Mirror descent through drawn vertices, on gradients whose bias is reduced by more draws at random levels.

Solves min over x, max over y of a mean payoff on two polytopes. Never the default: see the class.
Source: Gonzalez, Guzman, Paquette 2024, Algorithms 2 and 3.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.curator.handles import Stream
from privopt.games.base import GameSolver
from privopt.games.rounds import Weights, outcome_of, stream_findings, uniform_outcome
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, NoEvent, Parallel, sequence
from privopt.mechanisms.vertex_sampler import VertexSampler
from privopt.planning import bias_reduced_mirror_descent as planning
from privopt.planning.bias_reduced_mirror_descent import Schedule
from privopt.planning.forecast import Forecast
from privopt.planning.plan import Finding
from privopt.planning.task import Task
from privopt.problems.saddle import Game, Player, Who
from privopt.public import Public
from privopt.queries.bias_reduced_gradient import BiasReducedGradient
from privopt.result import Outcome
from privopt.solvers.fields import choice, derived, number
from privopt.solvers.program import Defaults


@dataclass(frozen=True, kw_only=True)
class BiasReducedMirrorDescent(GameSolver):
    """Bias-reduced mirror descent: one pass over disjoint batches, a step of level N on 2^(N + 1) draws a player.

    The levels are drawn, from public randomness, before any data is read: the loop has a known length, every batch a
    known size, and the temperature is what this very schedule allows. Both players draw at the same inverse
    temperature in the unit of their half-ranges, so that each pays one half.

    Attributes:
        differences: of which gradients a step takes the scaled difference from that at the average of all draws:
            "both halves" of the draws, whose mean cancels what is linear in them, or "first half" as in the paper.
        difference_clip: C_d, to which a record's difference is clipped, in units of the player's half-range; 2 is never
            active if the half-range is right. Enforced.
        effort: U, at least 4; the 2^N of all steps sum to at most U.
        highest_level: M; the bias that is left is that of 2^(M + 1) draws a step.
        schedule_seed: of the levels; public, and any number protects the data as well as another.
        temperature: tau, the inverse temperature in units of one over the half-range.
        players: of the game that it was configured for.
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

    differences: Literal["both halves", "first half"] = choice("both halves")
    difference_clip: float = derived(above=0, below=math.inf)
    highest_level: int = derived(at_least=0, at_most=20)
    effort: float = derived(at_least=planning.LEAST_EFFORT, below=math.inf)
    schedule_seed: int = number(0, at_least=0)
    temperature: float = derived(above=0, below=math.inf)
    players: tuple[Player, ...] = field(default=(), repr=False)

    def schedule(self, public: Public) -> Schedule:
        """What a run does on such units."""
        return planning.schedule_of(self, public.n)

    def sampler(self, player: Player, public: Public) -> VertexSampler:
        """One player's draws of all steps; the last step's gradient is not used."""
        plan = self.schedule(public)
        items = plan.steps - 1
        largest = [
            (plan.gain(step) * self.difference_clip + 1.0) * player.half_range for step in range(items)
        ]
        ranges = [
            public.relation.factor * 2.0 * entry / size
            for entry, size in zip(largest, plan.sizes, strict=True)
        ]
        return VertexSampler(
            item_weights=tuple(ranges),
            temperatures=(self.temperature / player.half_range,) * plan.steps,
            draws=plan.draws,
            participation=VertexSampler.one_item(items),
            largest_item=max(entry / moved for entry, moved in zip(largest, ranges, strict=True)),
        )

    def choosing(self) -> list[Player]:
        """The players who have a choice."""
        return [player for player in self.players if player.vertices.count > 1]

    def event(self, public: Public) -> Event:
        """Both players' streams, charged when they open; the batches that feed them cost nothing of their own."""
        steps = self.schedule(public).steps
        if not self.choosing():
            return NoEvent()
        streams = [self.sampler(player, public).event() for player in self.choosing()]
        return sequence([*streams, Parallel((NoEvent(),) * (steps - 1))])

    def releases(self) -> int:
        """The opening of each player's stream, and the draws of each step."""
        levels = planning.draw_levels(self.effort, self.highest_level, self.schedule_seed)
        return len(self.choosing()) * (len(levels) + 1)

    def passes(self) -> float:
        """One for each player."""
        return float(len(self.choosing()))

    def evaluations(self) -> float:
        """Gradients at three or four points in a pass."""
        return self.passes() * (4.0 if self.differences == "both halves" else 3.0)

    def applicable(self, problem: Game, public: Public) -> str | None:
        """Any game, with units enough for the batches; once configured, the game that it was configured for."""
        if self.players and self.players != (problem.x, problem.y):
            return "it was configured for another game; configure it for this one"
        return super().applicable(problem, public) or planning.obstacle(self, public.n)

    def filled(self, instance: Task[Game]) -> Self:
        """Every field but the temperature.

        Raises:
            ValueError: there are too few units for so many batches.
        """
        solver = super().filled(instance)
        solver.check_applicable(instance.problem, instance.public)
        return solver.with_(players=(instance.problem.x, instance.problem.y))

    def calibrated(self, task: Task[Game]) -> Self:
        """The coldest draws that the budget allows, but no colder than the steps can use."""
        if self.is_set("temperature"):
            return self
        steps = self.schedule(task.public).steps
        coldest = planning.cap(self, task.problem, steps)
        if not task.is_private or not self.choosing():
            return self.with_(temperature=coldest)
        noise = calibrate(
            lambda noise: self.with_(temperature=1.0 / noise).event(task.public),
            task.budget,
            task.public.relation,
        )
        return self.with_(temperature=min(coldest, 1.0 / noise))

    def forecast(self, instance: Task[Game]) -> Forecast:
        return planning.forecast(self, instance)

    def run(self, curator: Curator, game: Game) -> Outcome:
        """Algorithm 3 over the schedule: draw, average, and add the bias-reduced gradients to the hidden scores."""
        plan = self.schedule(curator.public)
        if not self.choosing():
            return uniform_outcome(game)
        streams: dict[Who, Stream] = {}
        found: dict[str, Finding] = {}
        for player in self.choosing():
            who, sampler = player.who, self.sampler(player, curator.public)
            found.update(stream_findings(who, sampler))
            streams[who] = curator.stream(f"vertices of {who}", sampler, (player.vertices.count,))
        batches = curator.blocks(plan.sizes)
        average: dict[Who, Weights] = {who: np.zeros(one.vertices.count) for who, one in game.players.items()}
        for t in range(plan.steps):
            drawn: dict[Who, NDArray[np.int64]] = {}
            for who, player in game.players.items():
                alone = who not in streams
                drawn[who] = np.zeros(1, np.int64) if alone else np.asarray(streams[who].ask("draw"))
                average[who] += (player.vertices.shares(drawn[who]) - average[who]) / (t + 1)
            if t < plan.steps - 1:
                x, y = self._points(game.x, drawn["x"]), self._points(game.y, drawn["y"])
                for who, stream in streams.items():
                    stream.ask("add", self._gradient(game, who, x, y, plan.gain(t)), on=batches[t])
        return outcome_of(game, average, found)

    def _points(self, player: Player, drawn: NDArray[np.int64]) -> NDArray[np.float64]:
        """The average of all draws, the first of them, and the averages of the halves that are subtracted."""
        half = max(1, len(drawn) // 2)
        rows = [drawn, drawn[:1], drawn[:half], drawn[-half:]]
        if self.differences == "first half":
            rows = rows[:3]
        return np.stack([player.vertices.average(indices) for indices in rows])

    def _gradient(
        self, game: Game, who: Who, x: NDArray[np.float64], y: NDArray[np.float64], gain: float
    ) -> BiasReducedGradient:
        """Algorithm 2, of one player."""
        half_range = game.players[who].half_range
        return BiasReducedGradient(
            game=game,
            who=who,
            x=jnp.asarray(x),
            y=jnp.asarray(y),
            gain=gain,
            difference_clip=self.difference_clip * half_range,
            half_range=half_range,
        )
