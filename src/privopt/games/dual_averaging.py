"""Dual averaging for games: what the drawn and the noised form share, from schedule to run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from privopt.curator.base import Curator
from privopt.games.gradients import Gradients
from privopt.games.moves import Drawn, Move, Noised
from privopt.games.rounds import (
    Alone,
    DrawnPlayer,
    Mover,
    NoisedPlayer,
    RoundSolver,
    outcome_of,
    play_rounds,
    stream_findings,
    uniform_outcome,
)
from privopt.ledger.events import Event, Parallel, repeat, sequence
from privopt.mechanisms.additive import Gaussian
from privopt.mechanisms.vertex_sampler import VertexSampler
from privopt.planning import game_forecast
from privopt.planning import sampled_dual_averaging as planning
from privopt.planning.forecast import Forecast
from privopt.planning.plan import Finding
from privopt.planning.task import Task
from privopt.problems.saddle import Game, Player, Who
from privopt.public import Public
from privopt.result import Outcome
from privopt.solvers.fields import choice, derived, number


@dataclass(frozen=True, kw_only=True)
class DualAveraging(RoundSolver):
    """Both players play softmax(-s t^p G_t), drawn or dense, G_t the average of their gradients so far.

    Attributes:
        batches: "full" asks every unit in every round, "one pass" each unit in one round.
        power: p, of the growth of the inverse temperatures.
        cap: kappa; s is at most kappa sqrt(2 log m) T^(1/2 - p) / L. Where it binds the plan costs less than the
            budget.
        sizes: of the T - 1 disjoint batches of one pass; empty with full batches.
    """

    batches: Literal["full", "one pass"] = choice("full")
    power: float = number(0.5, at_least=0, at_most=1)
    cap: float = number(5.0, above=0)
    sizes: tuple[int, ...] = derived()

    def default_held(self, task: Task[Game]) -> bool:
        return planning.default_held(self, task)

    def default_steps(self, task: Task[Game]) -> int:
        return planning.default_steps(self, task)

    def default_sizes(self, task: Task[Game]) -> tuple[int, ...]:
        return planning.default_sizes(self, task)

    def draws_vertices(self, who: Who) -> bool:
        """Whether this player's moves are drawn."""
        return isinstance(self.moves()[who], Drawn)

    def moving(self, moves: Mapping[Who, Move]) -> Self:
        """The same solver with other moves."""
        return self.with_(**moves)

    def applicable(self, problem: Game, public: Public) -> str | None:
        """Any game, with enough units for the batches."""
        fewest = (
            planning.FEWEST * self.rounds_of_data()
            if self.batches == "one pass" and self.is_set("steps")
            else 0
        )
        if public.n < fewest:
            return f"{self.rounds_of_data():,} disjoint batches need {fewest:,} units, and there are n = {public.n:,}"
        return super().applicable(problem, public)

    def filled(self, instance: Task[Game]) -> Self:
        """See `Program.filled`; a player's number of draws, or clip, follows once the schedule is known."""
        solver = super().filled(instance)
        moves: dict[Who, Any] = {}
        for who, move in solver.moves().items():
            if isinstance(move, Drawn):
                moves[who] = planning.drawn_defaults(move, who, solver, instance)
            else:
                moves[who] = planning.noised_defaults(move, who, instance)
        return solver.moving(moves)

    def calibrated(self, task: Task[Game]) -> Self:
        """Scales and noise set to the budget; less is spent where every player is at the cap."""
        return self.moving(planning.calibrated(self, task))

    def price(self, task: Task[Game]) -> float:
        """The epsilon of this configured solver at the budget's delta."""
        return planning.price(self, task)

    def sampler(self, who: Who, public: Public) -> VertexSampler:
        """The draws of one player, as the curator keeps them."""
        move: Any = self.moves()[who]
        return planning.sampler(
            self.player(who), steps=self.steps, scale=move.scale, power=self.power, draws=move.draws,
            sizes=self.sizes, public=public,
        )  # fmt: skip

    def player(self, who: Who) -> Player:
        """One player of the game that it was configured for."""
        return self.players[0 if who == "x" else 1]

    def choosing(self) -> list[Who]:
        """The players who have a choice."""
        return [one.who for one in self.players if one.vertices.count > 1] if self.steps > 0 else []

    def event(self, public: Public) -> Event:
        """Two streams of draws, or Gaussian releases, a player; batches that only feed streams are free."""
        streams = [self.sampler(who, public).event() for who in self.choosing() if self.draws_vertices(who)]
        releases = [
            Gaussian(move.noise_multiplier).event()
            for who in self.choosing()
            if isinstance(move := self.moves()[who], Noised)
        ]
        rounds = self.rounds_of_data()
        if not self.sizes:
            return sequence([*streams, *(repeat(event, rounds) for event in releases if rounds)])
        return sequence([*streams, Parallel((sequence(releases),) * rounds)])

    def releases(self) -> int:
        """A stream's opening and its draws, or the noisy gradients, for each player with a choice."""
        return sum(
            self.steps + 1 if self.draws_vertices(who) else self.rounds_of_data() for who in self.choosing()
        )

    def evaluations(self) -> float:
        """One for each player with a choice and round, each on all units or a batch of them."""
        times = len(self.choosing()) if self.players else 2
        return float(times) if self.sizes else float(times * self.rounds_of_data())

    def forecast(self, instance: Task[Game]) -> Forecast:
        return game_forecast.dual_averaging(self, instance)

    def run(self, curator: Curator, game: Game) -> Outcome:
        """Play, learn, average."""
        if self.steps == 0:
            return uniform_outcome(game)
        samplers: dict[Who, VertexSampler] = {
            who: self.sampler(who, curator.public) for who in self.choosing() if self.draws_vertices(who)
        }
        movers: dict[Who, Mover] = {}
        for who, player in game.players.items():
            movers[who] = self._mover(curator, player, samplers)
        answers = self._sources(curator, game)
        weights = [planning.step_weight(step) for step in range(self.steps)]
        played = play_rounds(game, movers, weights=weights, sources=answers)
        found: dict[str, Finding] = {}
        for who, sampler in samplers.items():
            found.update(stream_findings(who, sampler))
        return outcome_of(game, played, found, samplers)

    def _mover(self, curator: Curator, player: Player, samplers: Mapping[Who, VertexSampler]) -> Mover:
        move = self.moves()[player.who]
        if player.vertices.count == 1:
            return Alone()
        if isinstance(move, Drawn):
            sampler, size = samplers[player.who], player.vertices.count
            stream = curator.stream(f"vertices of {player.who}", sampler, (size,))
            return DrawnPlayer(player, stream, self.rounds_of_data())
        assert isinstance(move, Noised)
        scale, power = move.scale, self.power
        return NoisedPlayer(
            player,
            move.clip,
            move.noise_multiplier,
            temperature=lambda step: planning.temperature(scale, step, power),
            weight=planning.step_weight,
            steps=self.steps,
        )

    def _sources(self, curator: Curator, game: Game) -> Any:
        """By round, who answers: everybody, or a batch that serves once and is then let go."""
        rounds = self.rounds_of_data()
        if not self.sizes:
            gradients = Gradients.on(curator, game, hold=self.held) if rounds else Gradients(game)
            return lambda step: (curator, gradients) if step < rounds else None
        batches = curator.blocks(self.sizes)[::-1]

        def batch(step: int) -> tuple[Curator, Gradients] | None:
            if step >= rounds:
                return None
            block = batches.pop()
            return block, Gradients.on(block, game, hold=self.held)

        return batch
