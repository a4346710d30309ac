"""Mirror descent for games by sampled vertices, as the paper has it: for reproduction, and for streams of fresh data.

Source: Gonzalez, Guzman, Paquette 2024, Algorithm 1.
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self

from privopt.curator.base import Curator
from privopt.games.gradients import Gradients
from privopt.games.rounds import (
    Alone,
    DrawnPlayer,
    Mover,
    RoundSolver,
    outcome_of,
    play_rounds,
    stream_findings,
    uniform_outcome,
)
from privopt.ledger.events import Event, NoEvent, Parallel, sequence
from privopt.mechanisms.vertex_sampler import VertexSampler
from privopt.planning import saddle_mirror_descent as planning
from privopt.planning.forecast import Forecast
from privopt.planning.plan import Finding
from privopt.planning.sampled_dual_averaging import default_held
from privopt.planning.task import Task
from privopt.problems.saddle import Game, Player, Who
from privopt.public import Public
from privopt.result import Outcome
from privopt.solvers.fields import choice, derived, number
from privopt.solvers.program import Defaults


@dataclass(frozen=True, kw_only=True)
class SaddleMirrorDescent(RoundSolver):
    """Both players play averages of vertices drawn from softmax(-tau times the sum of their gradients so far).

    Attributes:
        schedule: which units serve which step: "paper" (T batches of n / T, the last for nothing), "single" (T - 1
            batches), "decreasing" (T - 1 batches, the later the smaller, as fewer draws follow them), "epochs" (T /
            epochs batches, each as often as there are epochs) or "full" (all units at every step).
        output: "played" averages what was played; "fresh" averages a further draw a step, as the paper does.
        calibration: "exact" sets the steps tau to the budget; "paper" takes the paper's formula, for comparison: it is
            valid, and costs a small part of the budget.
        epochs: of the schedule "epochs"; T is a multiple of it.
        draws: K, vertices that are played a step and player.
        step_x, step_y: tau of each player.
        players: of the game that it was configured for.
    Guarantee:
        Every draw is a selection of bounded range, for any records and payoffs: see `VertexSampler`, which prices each
        player's stream before the first draw.
    Differs from the paper:
        Both players descend, y on -f (the paper's signs let the maximising player descend f); draws are priced by
        bounded range, of the steps that have seen data; the hidden constants of Theorem 3.1 are replaced by a search
        for the least bound with its constants put right.
    Source:
        Gonzalez, Guzman, Paquette 2024, Algorithm 1 and Theorem 3.1.
    """

    name: ClassVar[str] = "saddle-mirror-descent"
    defaults: ClassVar[Defaults] = {
        "held": default_held,
        "steps": planning.default_steps,
        "draws": planning.default_draws,
    }

    schedule: Literal["paper", "single", "decreasing", "epochs", "full"] = choice("full")
    output: Literal["played", "fresh"] = choice("played")
    calibration: Literal["exact", "paper"] = choice("exact")
    epochs: int = number(2, at_least=1)
    draws: int = derived(at_least=1)
    step_x: float = derived(at_least=0, below=math.inf)
    step_y: float = derived(at_least=0, below=math.inf)
    players: tuple[Player, ...] = field(default=(), repr=False)

    def check(self) -> None:
        """See `Program.check`."""
        if self.schedule == "epochs" and self.is_set("steps") and self.steps % self.epochs:
            raise ValueError(f"steps must be a multiple of epochs = {self.epochs}, got {self.steps}.")

    def applicable(self, problem: Game, public: Public) -> str | None:
        """Any game, with enough units for the batches; once configured, the game that it was configured for."""
        if self.players and self.players != (problem.x, problem.y):
            return "it was configured for another game; configure it for this one"
        if self.is_set("steps") and self.steps > 1:
            try:
                planning.schedule(self.schedule, self.steps, self.epochs, public.n)
            except ValueError as refused:
                return str(refused).rstrip(".")
        return super().applicable(problem, public)

    def filled(self, instance: Task[Game]) -> Self:
        """See `Program.filled`."""
        game = instance.problem
        return super().filled(instance).with_(players=(game.x, game.y))

    def calibrated(self, task: Task[Game]) -> Self:
        """Steps set to the budget; less is spent where longer ones would help no bound."""
        return planning.calibrated(self, task)

    def price(self, task: Task[Game]) -> float:
        """The epsilon of this configured solver at the budget's delta."""
        return planning.price(self, task)

    def choosing(self) -> list[Player]:
        """The players who have a choice."""
        return [one for one in self.players if one.vertices.count > 1] if self.steps > 0 else []

    def sampler(self, player: Player, public: Public) -> VertexSampler:
        """The draws of one player, as the curator keeps them."""
        return planning.sampler(player, self, self.step_x if player.who == "x" else self.step_y, public)

    def event(self, public: Public) -> Event:
        """Two streams of draws; the batches that feed them are free."""
        streams = [self.sampler(player, public).event() for player in self.choosing()]
        if self.steps < 2:
            return sequence(streams)
        sizes = planning.schedule(self.schedule, self.steps, self.epochs, public.n).sizes
        return sequence([*streams, *([Parallel((NoEvent(),) * len(sizes))] if sizes else [])])

    def releases(self) -> int:
        """A stream's opening and its draws, for each player with a choice."""
        return (self.steps + 1) * len(self.choosing())

    def evaluations(self) -> float:
        """One for each player and step, on all units or a batch of them."""
        times = 2.0 * self.rounds_of_data()
        if self.schedule == "full" or self.steps < 2:
            return times
        batches = {"paper": self.steps, "epochs": max(1, self.steps // self.epochs)}
        return times / batches.get(self.schedule, self.rounds_of_data())

    def forecast(self, instance: Task[Game]) -> Forecast:
        return planning.forecast(self, instance)

    def run(self, curator: Curator, game: Game) -> Outcome:
        """Algorithm 1."""
        if self.steps == 0:
            return uniform_outcome(game)
        found: dict[str, Finding] = {}
        movers: dict[Who, Mover] = {}
        samplers: dict[Who, VertexSampler] = {}
        for who, player in game.players.items():
            if player.vertices.count == 1:
                movers[who] = Alone()
                continue
            sampler = samplers[who] = self.sampler(player, curator.public)
            found.update(stream_findings(who, sampler))
            stream = curator.stream(f"vertices of {who}", sampler, (player.vertices.count,))
            movers[who] = DrawnPlayer(player, stream, self.rounds_of_data(), fresh=self.output == "fresh")
        played = play_rounds(
            game, movers, weights=[1.0 / self.steps] * self.steps, sources=self._sources(curator, game)
        )
        return outcome_of(game, played, found, samplers)

    def _sources(self, curator: Curator, game: Game) -> Any:
        """By step, whose gradients are asked for."""
        rounds = self.rounds_of_data()
        plan = planning.schedule(self.schedule, self.steps, self.epochs, curator.public.n)
        if not plan.sizes:
            everybody = Gradients.on(curator, game, hold=self.held) if rounds else Gradients(game)
            return lambda step: (curator, everybody) if step < rounds else None
        blocks = dict(enumerate(curator.blocks(plan.sizes)))
        held: dict[int, Gradients] = {}

        def batch(step: int) -> tuple[Curator, Gradients] | None:
            if step >= rounds:
                return None
            number = plan.served[step]
            if number not in held:
                held[number] = Gradients.on(blocks[number], game, hold=self.held)
            answer = blocks[number], held[number]
            if number not in plan.served[step + 1 :]:
                del blocks[number], held[number]  # it has served
            return answer

        return batch
