"""Mirror descent for games by sampled vertices, as the paper has it: for reproduction, and for streams of fresh data.

Source: Gonzalez, Guzman, Paquette 2024, Algorithm 1.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
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
from privopt.ledger import accounting
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import Event, NoEvent, Parallel, sequence
from privopt.mechanisms.vertex_stream import VertexSampler
from privopt.planning import saddle
from privopt.planning.averaging import FEWEST, balanced_sizes
from privopt.planning.plan import Bound, Finding
from privopt.planning.sampled_dual_averaging import is_pure, movers, price_shares, total_price
from privopt.planning.task import Forecast, Task
from privopt.problems.saddle import Game, Player, Who
from privopt.public import Public
from privopt.result import Outcome
from privopt.solvers.fields import choice, derived, number

# ---- Schedules, defaults and forecast of mirror descent by sampled vertices. Utility only ------------------
MOST_STEPS = 600


@dataclass(frozen=True)
class Schedule:
    """Which batch serves which step.

    Attributes:
        sizes: of the disjoint batches; empty where every step asks all units.
        served: by item, the number of its batch; as many items as there are steps but the last.
    """

    sizes: tuple[int, ...]
    served: tuple[int, ...]

    @property
    def participation(self) -> tuple[tuple[int, ...], ...] | None:
        """The items of each batch's units; None where every unit is in every item."""
        if not self.sizes:
            return None
        uses: list[list[int]] = [[] for _ in self.sizes]
        for item, batch in enumerate(self.served):
            uses[batch].append(item)
        return tuple(tuple(items) for items in uses)


def schedule(name: str, steps: int, epochs: int, n: int) -> Schedule:
    """The batches of a schedule for n units.

    Args:
        name: "paper" (T batches, the last for nothing), "single" (T - 1), "decreasing" (T - 1 that cost the same),
            "epochs" (T / epochs batches, each in so many steps) or "full".
        steps: T, at least 1.
        epochs: how often a batch serves in "epochs".
        n: the public number of units.
    Raises:
        ValueError: there are too few units.
    """
    items = steps - 1
    if name == "full" or items == 0:
        return Schedule((), tuple(range(items)))
    if name == "decreasing":
        return Schedule(
            balanced_sizes([math.sqrt(steps - r) for r in range(1, steps)], n), tuple(range(items))
        )
    parts = {"paper": steps, "single": items, "epochs": max(1, steps // epochs)}[name]
    kept = min(parts, items)
    if n // parts < FEWEST:
        raise ValueError(
            f"{parts} batches of at least {FEWEST} units need more than n = {n} units: take fewer steps, or full "
            "batches."
        )
    return Schedule((n // parts,) * kept, tuple(item % kept for item in range(items)))


def uses(name: str, steps: int, epochs: int) -> float:
    """sum over draws of (what a unit weighs in the sum of gradients, times n)^2: rho = this (2 c L tau / n)^2 / 8."""
    if name == "full":
        return (steps - 1) * steps * (2 * steps - 1) / 6.0
    if name == "paper":
        return (steps - 1) * steps**2
    if name == "single":
        return (steps - 1) ** 3
    if name == "decreasing":
        return sum(math.sqrt(j) for j in range(1, steps)) ** 2
    return steps**3 * (1.0 + 1.0 / epochs) * (1.0 + 0.5 / epochs) / 3.0


def paper_step(steps: int, draws: int, half_range: float, n: int, epsilon: float, delta: float) -> float:
    """The step of the paper: B epsilon / (16 L sqrt(T (K + 1) log(1 / delta))), B = n / T."""
    return n / steps * epsilon / (16.0 * half_range * math.sqrt(steps * (draws + 1) * math.log(1.0 / delta)))


def largest_step(player: Player, game: Game, steps: int) -> float:
    """sqrt(2 l / (5 T)) / L, l = log m_x + log m_y: more helps no bound."""
    return math.sqrt(2.0 * _logs(game) / (5.0 * max(steps, 1))) / player.half_range


def _logs(game: Game) -> float:
    return sum(math.log(player.vertices.count) for player in movers(game).values())


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

    schedule: Literal["paper", "single", "decreasing", "epochs", "full"] = choice("full")
    output: Literal["played", "fresh"] = choice("played")
    calibration: Literal["exact", "paper"] = choice("exact")
    epochs: int = number(2, at_least=1)
    draws: int = derived(at_least=1)
    step_x: float = derived(at_least=0, below=math.inf)
    step_y: float = derived(at_least=0, below=math.inf)

    def default_steps(self, task: Task[Game]) -> int:
        """T."""
        return self.best(task)[0]

    def default_draws(self, task: Task[Game]) -> int:
        """K, for the steps."""
        return self.best(task)[1]

    def check(self) -> None:
        """See `Program.check`."""
        if self.schedule == "epochs" and self.is_set("steps") and self.steps % self.epochs:
            raise ValueError(f"steps must be a multiple of epochs = {self.epochs}, got {self.steps}.")

    def applicable(self, problem: Game, public: Public) -> str | None:
        """Any game, with enough units for the batches."""
        if self.is_set("steps") and self.steps > 1:
            try:
                schedule(self.schedule, self.steps, self.epochs, public.n)
            except ValueError as refused:
                return str(refused).rstrip(".")
        return super().applicable(problem, public)

    def calibrated(self, task: Task[Game]) -> Self:
        """The solver with both steps set to the budget, or to the paper's formula.

        Args:
            task: what is to be solved, at which price.
        """
        game, budget = task.problem, task.budget
        choosing = movers(game)
        still = {f"step_{who}": 0.0 for who in ("x", "y") if who not in choosing}
        moved = self.with_(**{name: value for name, value in still.items() if not self.is_set(name)})
        wanted: list[Who] = [who for who in choosing if not moved.is_set(f"step_{who}")]
        if not wanted:
            return moved
        if moved.calibration == "paper" and task.is_private:
            return moved.with_(
                **{
                    f"step_{who}": paper_step(
                        max(moved.steps, 1),
                        moved.draws,
                        choosing[who].half_range,
                        task.public.n,
                        budget.epsilon,
                        budget.delta,
                    )
                    for who in wanted
                }
            )
        return moved._within(task, wanted, frozenset[Who]())

    def price(self, task: Task[Game]) -> float:
        """The epsilon of a configured solver at the budget's delta."""
        return accounting.epsilon(self.event(task.public), task.budget.delta, task.public.relation)

    def sampler(self, player: Player, public: Public) -> VertexSampler:
        """One player's draws: softmax of minus `step` times the sum of the gradients so far."""
        step = self.step_x if player.who == "x" else self.step_y
        plan = schedule(self.schedule, self.steps, self.epochs, public.n)
        sizes = [plan.sizes[batch] if plan.sizes else public.n for batch in plan.served]
        return VertexSampler.weighted_average(
            step_weights=[1.0] * len(sizes),
            inverse_temperatures=[step * t for t in range(self.steps)],
            draws=self.draws + (self.output == "fresh"),
            half_range=player.half_range,
            sensitivities=[public.relation.factor * 2.0 * player.half_range / size for size in sizes],
            participation=plan.participation,
        )

    def event(self, public: Public) -> Event:
        """Two streams of draws; the batches that feed them are free."""
        streams = [self.sampler(self.player(who), public).event() for who in self.choosing()]
        if self.steps < 2:
            return sequence(streams)
        sizes = schedule(self.schedule, self.steps, self.epochs, public.n).sizes
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
        """The bound, and what else a user should know."""
        notices = saddle.game_notices(instance, 0.0)
        notices += saddle.spending_notices(self, instance, "steps are no longer than the bound wants")
        if self.steps < 2:
            return Forecast(meaning="nothing is learnt", notices=tuple(notices), measure=saddle.GAP)
        steps: dict[Who, float] = {"x": self.step_x, "y": self.step_y}
        return Forecast(
            meaning="only the bound; SampledDualAveraging was better on every game that was measured",
            bound=Bound(
                value=self.bound(instance, self.steps, self.draws, steps),
                probability=None,
                condition=(
                    "if the game is convex in x and concave in y and no gradient is longer than its half-range; "
                    "pessimistic"
                ),
                of=saddle.GAP,
            ),
            notices=tuple(notices),
            measure=saddle.GAP,
        )

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
        plan = schedule(self.schedule, self.steps, self.epochs, curator.public.n)
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

    def _affordable_step(self, who: Who, task: Task[Game], steps: int, draws: int) -> float:
        """About the step that a player's share pays for."""
        player = task.problem.players[who]
        unit = 2.0 * task.public.relation.factor * player.half_range / task.public.n
        released = draws + (self.output == "fresh")
        share = price_shares(task.problem)[who] * total_price(task)
        if is_pure(task):  # the ranges add up instead of their squares: at most by Cauchy and Schwarz
            spent = math.sqrt(max(steps - 1, 1) * uses(self.schedule, max(steps, 2), self.epochs))
            return share / (released * unit * spent)
        return math.sqrt(8.0 * share / (released * uses(self.schedule, max(steps, 2), self.epochs))) / unit

    def bound(self, task: Task[Game], steps: int, draws: int, step: dict[Who, float]) -> float:
        """The bound of the paper's Theorem 3.1 with its constants put right; of Theorem A for played averages."""
        game, total = task.problem, 0.0
        if steps < 2:
            return saddle.trivial_gap(game)
        for who, player in movers(game).items():
            logs, length, tau = math.log(player.vertices.count), player.half_range, step[who]
            if tau == 0:
                return saddle.trivial_gap(game)
            if self.output == "played":
                total += logs / (tau * steps) + tau * length**2 / 2.0 + 4.0 * player.curvature / draws
            else:
                total += 2.0 * logs / (tau * steps) + 2.5 * tau * length**2
                total += player.curvature * (
                    4.0 / steps + 4.0 * math.sqrt(_logs(game) / steps) + 22.7 / math.sqrt(draws)
                )
            if self.schedule != "full":
                batch = task.public.n / max(steps - 1, 1)
                spread = min(4.0, 2.0 * (1.0 + math.log(2.0 * player.vertices.count)) / batch)
                total += length * math.sqrt(2.0 * logs * spread / steps)
        return total

    def steps_of(self, task: Task[Game], steps: int, draws: int) -> dict[Who, float]:
        """Both players' steps, as far as they are open: affordable, and no longer than the bound wants."""
        found: dict[Who, float] = {}
        for who, player in movers(task.problem).items():
            if self.is_set(f"step_{who}"):
                found[who] = self.step_x if who == "x" else self.step_y
                continue
            affordable = self._affordable_step(who, task, steps, draws)
            found[who] = min(affordable, largest_step(player, task.problem, steps))
        return found

    def _candidates(self, task: Task[Game]) -> Iterator[tuple[int, int]]:
        """Steps and draws on a geometric grid."""
        most = MOST_STEPS if self.schedule == "full" else min(MOST_STEPS, task.public.n // FEWEST)
        counts = [self.steps] if self.is_set("steps") else []
        steps = 2
        while not counts or (not self.is_set("steps") and steps <= most):
            counts.append(steps)
            steps = max(steps + 1, round(1.25 * steps))
        whole = {max(self.epochs, count // self.epochs * self.epochs) for count in counts}
        for count in sorted(whole if self.schedule == "epochs" and not self.is_set("steps") else counts):
            draws = 1
            while draws <= max(1, min(count, 256)):
                yield count, self.draws if self.is_set("draws") else draws
                draws *= 2

    def best(self, task: Task[Game]) -> tuple[int, int]:
        """The steps and draws with the least bound."""
        if not movers(task.problem):
            return 2, 1
        return min(
            self._candidates(task),
            key=lambda pair: self.bound(task, *pair, self.steps_of(task, *pair)),
        )

    def _within(self, task: Task[Game], wanted: list[Who], capped: frozenset[Who]) -> Self:
        """The solver with the wanted steps set to the budget, some of them as long as they may be."""
        game = task.problem
        once = {who: self._affordable_step(who, task, self.steps, self.draws) for who in wanted}
        longest = {who: largest_step(game.players[who], game, self.steps) for who in wanted}

        def at(noise: float, fixed: frozenset[Who]) -> Self:
            return self.with_(
                **{f"step_{who}": longest[who] if who in fixed else once[who] / noise for who in wanted}
            )

        if capped >= frozenset(wanted) or not task.is_private or self.steps < 2:
            return at(1.0, frozenset(wanted))
        noise = calibrate(
            lambda level: at(level, capped).event(task.public), task.budget, task.public.relation
        )
        over: list[Who] = [who for who in wanted if who not in capped and once[who] / noise > longest[who]]
        return self._within(task, wanted, capped | set(over)) if over else at(noise, capped)
