"""Boosting: several runs on disjoint units, and a private choice of the one with the smallest duality gap.

Source: Gonzalez, Guzman, Paquette 2024, Algorithm 4.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from privopt.curator.base import Curator
from privopt.games.base import GameSolver
from privopt.games.sampled_dual_averaging import SampledDualAveraging
from privopt.ledger.events import Event, Parallel
from privopt.mechanisms.exponential import ExponentialMechanism
from privopt.planning import boosted_saddle as planning
from privopt.planning.boosted_saddle import Division
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.plan import Finding
from privopt.planning.task import Task
from privopt.problems.one_sided import one_sided
from privopt.problems.problem import Problem
from privopt.problems.saddle import Game, Player, Who
from privopt.public import Public
from privopt.queries.candidate_payoffs import CandidateGaps, CandidatePayoffs
from privopt.result import Outcome
from privopt.solvers.base import Solver
from privopt.solvers.fields import derived, number
from privopt.solvers.frank_wolfe import FrankWolfe
from privopt.solvers.program import Defaults
from privopt.solvers.variance_reduced_frank_wolfe import VarianceReducedFrankWolfe
from privopt.solvers.vertex_solver import VertexSolver
from privopt.status import Status

Strategies = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class BoostedSaddle(GameSolver):
    """The best of several runs, chosen by the exponential mechanism on their duality gaps on units kept for that.

    A candidate's gap needs each player's best answer to it. Against a player in whose strategy the payoff is linear it
    is the best vertex, on the very units of the choice; for others, solvers on further disjoint units find answers.

    Attributes:
        inner: plays for a candidate.
        x_answers: finds answers of x, where the payoff is bent in x.
        y_answers: likewise for y.
        failure: beta, the probability with which no candidate need be good; it sets the two numbers below.
        candidates: I; 1 is one run on all units.
        answers: J, to each candidate and player.
        payoff_clip: B, the largest half-range of a unit's payoffs over candidates and answers. Enforced.
        forced: whether parts may have fewer than 2000 units.
        selection: epsilon_0, the bounded range of the choice.
        players: of the game that it was configured for.
    Guarantee:
        All parts are disjoint, drawn without looking at the units, and each may spend the whole budget: the dearest is
        charged, under the curator's relation, for any data and payoff. Later parts see what earlier ones released. See
        `CandidateGaps` for the sensitivity of the choice.
    Differs from the paper:
        payoffs linear in a player's strategy need no sub-solver for their answers, matrix games none at all, and the
        units are then divided among fewer groups; a unit's payoffs are centred; bounded range, not pure epsilon.
    Source:
        Gonzalez, Guzman, Paquette 2024, Algorithm 4.
    """

    name: ClassVar[str] = "boosted-saddle"
    defaults: ClassVar[Defaults] = planning.DEFAULTS

    inner: GameSolver = field(default_factory=SampledDualAveraging)
    x_answers: Solver = field(default_factory=VarianceReducedFrankWolfe)
    y_answers: Solver = field(default_factory=VarianceReducedFrankWolfe)
    failure: float = number(0.05, above=0, below=1)
    candidates: int = derived(at_least=1)
    answers: int = derived(at_least=1)
    payoff_clip: float = derived(above=0, below=math.inf)
    forced: bool = False
    selection: float = derived(above=0)
    players: tuple[Player, ...] = field(default=(), repr=False)

    @property
    def title(self) -> str:
        """With what it boosts."""
        return f"boosted {self.inner.title}"

    @property
    def adaptive(self) -> bool:
        """As the runs inside."""
        return self.inner.adaptive

    @property
    def makes(self) -> tuple[int, int]:
        """What the inner solver makes, of blocks."""
        blocks, maps = self.inner.makes
        return blocks + 1, maps

    @property
    def answered(self) -> tuple[Who, ...]:
        """The players whose answers solvers find."""
        return planning.answered_players(self.players)

    def answering(self, who: Who) -> Solver:
        """What finds a player's answers."""
        return self.x_answers if who == "x" else self.y_answers

    def event(self, public: Public) -> Event:
        """Every part by itself: the candidates' runs, the answers, the choice."""
        if self.candidates == 1:
            return self.inner.event(public)
        parts = self._division(public)
        runs = (self.inner.event(public.block(parts.run_size)),) * parts.runs
        answers = [
            self.answering(who).event(public.block(parts.answer_size))
            for who in self.answered
            for _ in range(parts.runs * parts.answers)
        ]
        return Parallel((*runs, *answers, self._mechanism().event()))

    def releases(self) -> int:
        """Those of all runs, and one choice."""
        if self.candidates == 1:
            return self.inner.releases()
        answers = sum(self.answering(who).releases() for who in self.answered)
        return self.candidates * (self.inner.releases() + self.answers * answers) + 1

    def passes(self) -> float:
        """Of a group of the units, as many as a run makes of its part; and one for the choice."""
        if self.candidates == 1:
            return self.inner.passes()
        answers = sum(self.answering(who).passes() for who in self.answered)
        return (self.inner.passes() + answers + 1.0) / (2 + len(self.answered))

    def seconds(self, problem: Game, public: Public) -> float:
        """Those of all runs, and of the choice."""
        if self.candidates == 1:
            return self.inner.seconds(problem, public)
        parts = self._division(public)
        runs = parts.runs * self.inner.seconds(problem, public.block(parts.run_size))
        answers = [
            self.answering(who).seconds(_any_answer(problem, who), public.block(parts.answer_size))
            for who in self.answered
        ]
        return runs + parts.runs * parts.answers * sum(answers)

    def applicable(self, problem: Game, public: Public) -> str | None:
        """Any game that the runs inside can play, on units enough; once configured, the game it was configured for."""
        if self.players and self.players != (problem.x, problem.y):
            return "it was configured for another game; configure it for this one"
        if self.candidates == 1:
            return self.inner.applicable(problem, public)
        found = planning.obstacle(self, problem, public.n)
        part = planning.division(self, problem.players.values(), public.n).run_size
        return found or self.inner.applicable(problem, public.block(part))

    def calibrated(self, task: Task[Game]) -> Self:
        """The runs, the answers and the choice, each set to the whole budget on its part."""
        game, public = task.problem, task.public
        solver = self.with_(players=(game.x, game.y))
        if self.candidates == 1:
            return solver.with_(inner=self.inner.configure(task))
        parts = solver._division(public)
        changes: dict[str, Any] = {
            "inner": self.inner.configure(replace(task, public=public.block(parts.run_size)))
        }
        for who in solver.answered:
            instance = Instance(_any_answer(game, who), public.block(parts.answer_size), task.budget)
            changes[f"{who}_answers"] = self._bounded(who, game).configure(instance)
        return solver.with_(**changes)

    def forecast(self, instance: Task[Game]) -> Forecast:
        if self.candidates == 1:
            return self.inner.forecast(instance)
        part = replace(instance, public=instance.public.block(self._division(instance.public).run_size))
        return planning.forecast(self, instance, self.inner.forecast(part))

    def run(self, curator: Curator, game: Game) -> Outcome:
        """Algorithm 4."""
        if self.candidates == 1:
            return self.inner.run(curator, game)
        parts = self._division(curator.public)
        blocks = iter(curator.blocks(parts.sizes))
        outcomes = [self.inner.run(next(blocks), game) for _ in range(parts.runs)]
        x, y = (np.stack([np.asarray(one.params[side]) for one in outcomes]) for side in (0, 1))
        found: dict[Who, Strategies] = {
            "x": self._answers("x", game, y, parts, blocks),
            "y": self._answers("y", game, x, parts, blocks),
        }
        judge = next(blocks)
        payoffs = CandidatePayoffs(
            game=game,
            x=jnp.asarray(x),
            y=jnp.asarray(y),
            x_answers=jnp.asarray(found["x"]),
            y_answers=jnp.asarray(found["y"]),
            payoff_clip=self.payoff_clip,
        )
        chosen = int(judge.release(CandidateGaps(mean=judge.hold_mean(payoffs)), self._mechanism()))
        best = outcomes[chosen]
        findings = {
            **best.findings,
            "candidate": Finding(chosen, f"which of {parts.runs} runs was chosen, counted from 0"),
        }
        return Outcome(best.params, Status.FINISHED, findings)

    def _answers(
        self, who: Who, game: Game, against: Strategies, parts: Division, blocks: Iterator[Curator]
    ) -> Strategies:
        """Answers to every candidate of the other player, (candidates, answers, coordinates); none where not needed."""
        dimension = game.players[who].vertices.dimension
        if who not in self.answered:
            return np.zeros((parts.runs, 0, dimension))
        found = np.zeros((parts.runs, parts.answers, dimension))
        start = jnp.asarray(game.players[who].vertices.mix(game.players[who].vertices.uniform()))
        for i in range(parts.runs):
            problem = one_sided(game, who, against[i])
            for j in range(parts.answers):
                found[i, j] = np.asarray(self.answering(who).run(next(blocks), problem, start).params)
        return found

    def _bounded(self, who: Who, game: Game) -> Solver:
        """The answering solver with the clip that goes with the player's half-range, if it has one that is open."""
        solver, player = self.answering(who), game.players[who]
        if isinstance(solver, FrankWolfe | VertexSolver) and not solver.is_set("clip"):
            return solver.with_(clip=player.half_range / player.vertices.largest)
        return solver

    def _division(self, public: Public) -> Division:
        return planning.division(self, self.players, public.n)

    def _mechanism(self) -> ExponentialMechanism:
        return ExponentialMechanism(self.selection)


def _any_answer(game: Game, who: Who) -> Problem:
    """A player's problem as far as it is known beforehand: against the other's uniform strategy."""
    other = game.y if who == "x" else game.x
    return one_sided(game, who, other.vertices.mix(other.vertices.uniform()))
