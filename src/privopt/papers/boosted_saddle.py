"""Boosting: several runs on disjoint units, and a private choice of the one with the smallest duality gap.

Source: Gonzalez, Guzman, Paquette 2024, Algorithm 4.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.curator.base import Curator
from privopt.games.base import GameSolver
from privopt.games.dual_averaging import SampledDualAveraging
from privopt.later import jnp
from privopt.ledger import accounting
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import BoundedRangeEvent, Event, Parallel
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.papers.variance_reduced_frank_wolfe import VarianceReducedFrankWolfe
from privopt.planning.plan import Finding
from privopt.planning.saddle import GAP, game_notices
from privopt.planning.task import Forecast, Instance, Task
from privopt.problems.constraints import Constraint, L1Ball, Polytope, Simplex
from privopt.problems.losses import RecordLoss
from privopt.problems.problem import Problem, PytreeLayout
from privopt.problems.saddle import BilinearGame, Game, Player, Who
from privopt.problems.vertices import CrossPolytopeVertices, ListedVertices, SimplexVertices, Vertices
from privopt.public import Public
from privopt.queries.payoffs import CandidateGaps, CandidatePayoffs
from privopt.result import Outcome
from privopt.solvers.base import Solver
from privopt.solvers.fields import derived, number
from privopt.solvers.frank_wolfe import FrankWolfe
from privopt.solvers.vertices import VertexSolver
from privopt.status import Status

# ---- How the boosted saddle point divides the units, its defaults and its forecast -------------------------
# Units are divided into equal groups: one for the candidates' runs, one for the answers to each player whose best
# answer no formula gives, one for the choice. With failure probability beta there are I = ceil(log2(4 / beta))
# candidates and J = ceil(log2(8 I / beta)) answers to each: a run that is good with probability 1/2 is so once in I
# with 1 - 2^-I.
#
# Source:
#     Gonzalez, Guzman, Paquette 2024, Algorithm 4, whose I and J are rounded up here.
FEWEST_UNITS = 2000  # of a part, unless it is forced

ONE_RUN_IS_BETTER = (
    "a run on all units is better in every measurement so far: it concentrates by itself (its gap varies by about 15 % "
    "of its mean between seeds), and each of these {} runs sees {:,} of {:,} units."
)
PART_OF_BUDGET = (
    "the plan costs epsilon {:.3g} of {:.3g}, as the runs inside it leave some of it unspent. An account pays for the "
    "plan only."
)


@dataclass(frozen=True)
class Division:
    """How many parts there are of each kind, and how many units each has.

    Attributes:
        runs: I.
        run_size: units of a candidate's run.
        answered: the players whose best answers are found by solvers.
        answers: J.
        answer_size: units of an answer's.
        choice_size: units that the choice looks at.
    """

    runs: int
    run_size: int
    answered: tuple[Who, ...]
    answers: int
    answer_size: int
    choice_size: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of all parts, in order."""
        answers = (self.answer_size,) * (self.runs * self.answers * len(self.answered))
        return (*((self.run_size,) * self.runs), *answers, self.choice_size)


def answered_players(players: Iterable[Player]) -> tuple[Who, ...]:
    """The players in whose strategy the payoff is not linear."""
    return tuple(player.who for player in players if player.curvature > 0)


def default_candidates(failure: float) -> int:
    """I, the smallest number of which one is good with probability 1 - failure / 4."""
    return math.ceil(math.log2(4.0 / failure))


def default_answers(candidates: int, failure: float) -> int:
    """J."""
    return math.ceil(math.log2(8.0 * candidates / failure))


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

    inner: GameSolver = field(default_factory=SampledDualAveraging)
    x_answers: Solver = field(default_factory=VarianceReducedFrankWolfe)
    y_answers: Solver = field(default_factory=VarianceReducedFrankWolfe)
    failure: float = number(0.05, above=0, below=1)
    candidates: int = derived(at_least=1)
    answers: int = derived(at_least=1)
    payoff_clip: float = derived(above=0, below=math.inf)
    forced: bool = False
    selection: float = derived(above=0)

    def default_candidates(self, task: Task[Game]) -> int:
        """I."""
        del task
        return default_candidates(self.failure)

    def default_answers(self, task: Task[Game]) -> int:
        del task
        return default_answers(self.candidates, self.failure)

    def default_payoff_clip(self, task: Task[Game]) -> float:
        """B: half the range of a record's payoff over both sets, by formula or by what the gradients allow."""
        game = task.problem
        if not isinstance(game, BilinearGame):
            return game.x.half_range + game.y.half_range
        low, high = game.entries
        corners = (low * low, low * high, high * high)
        spread = max(corners) - min(corners)
        return ((spread + 2.0 * (high - low)) / 2.0 if game.offsets else spread) / 2.0

    def default_selection(self, task: Task[Game]) -> float:
        """epsilon_0 of the choice, which may spend the whole budget on its own part."""
        if self.candidates == 1 or not task.is_private:
            return math.inf
        return 1.0 / calibrate(
            lambda noise: BoundedRangeEvent(1.0 / noise), task.budget, task.public.relation
        )

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
        return answered_players(self.players)

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
        """Any game that the runs inside can play, on units enough."""
        if self.candidates == 1:
            return self.inner.obstacle(problem, public)
        found = self.too_few_units(problem, public.n)
        part = self.division(problem.players.values(), public.n).run_size
        return found or self.inner.obstacle(problem, public.block(part))

    def calibrated(self, task: Task[Game]) -> Self:
        """The runs, the answers and the choice, each set to the whole budget on its part."""
        game, public = task.problem, task.public
        if self.candidates == 1:
            return self.with_(inner=self.inner.configure(task))
        parts = self._division(public)
        changes: dict[str, Any] = {
            "inner": self.inner.configure(replace(task, public=public.block(parts.run_size)))
        }
        for who in self.answered:
            instance = Instance(_any_answer(game, who), public.block(parts.answer_size), task.budget)
            changes[f"{who}_answers"] = self._bounded(who, game).configure(instance)
        return self.with_(**changes)

    def forecast(self, instance: Task[Game]) -> Forecast:
        if self.candidates == 1:
            return self.inner.forecast(instance)
        part = replace(instance, public=instance.public.block(self._division(instance.public).run_size))
        return self._forecast_of_candidates(instance, self.inner.forecast(part))

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
        return self.division(self.players, public.n)

    def _mechanism(self) -> ExponentialMechanism:
        return ExponentialMechanism(self.selection)

    def division(self, players: Iterable[Player], n: int) -> Division:
        """Of n units."""
        runs = self.candidates or default_candidates(self.failure)
        answers = self.answers or default_answers(runs, self.failure)
        answered = answered_players(players)
        group = n // (2 + len(answered))
        return Division(runs, group // runs, answered, answers, group // (runs * answers), group)

    def too_few_units(self, game: Game, n: int) -> str | None:
        """Why the parts are too small, or None."""
        parts = self.division(game.players.values(), n)
        smallest, needed = min(parts.sizes), 2 if self.forced else FEWEST_UNITS
        if smallest >= needed:
            return None
        advice = (
            "take fewer candidates"
            if self.forced
            else "use sampled-dual-averaging on all of them, or set forced=True"
        )
        return f"{n:,} units make {len(parts.sizes)} parts of {smallest:,} or more, and {needed:,} are needed: {advice}"

    def _forecast_of_candidates(self, task: Task[Game], of_run: Forecast) -> Forecast:
        """That of one candidate's run, which the choice hardly improves.

        Args:
            task: what is public.
            of_run: of the solver of a candidate, on its part.
        """
        public, budget = task.public, task.budget
        parts = self.division(task.problem.players.values(), public.n)
        gap = of_run.excess
        notices = [
            ONE_RUN_IS_BETTER.format(parts.runs, parts.run_size, public.n),
            *game_notices(task, 0.0 if gap is None else gap),
        ]
        if task.is_private:
            price = accounting.epsilon(self.event(public), budget.delta, public.relation, near=budget.epsilon)
            if price < 0.999 * budget.epsilon:
                notices.append(PART_OF_BUDGET.format(price, budget.epsilon))
        return Forecast(
            excess=gap,
            meaning=of_run.meaning if gap is None else "of one run on its part",
            notices=tuple(notices),
            measure=GAP,
        )


def _any_answer(game: Game, who: Who) -> Problem:
    """A player's problem as far as it is known beforehand: against the other's uniform strategy."""
    other = game.y if who == "x" else game.x
    return one_sided(game, who, other.vertices.mix(other.vertices.uniform()))


# ---- One player's problem while the other stands still: a minimisation over the player's set ---------------
@dataclass(frozen=True)
class OneSidedLoss:
    """What one player makes small, f or -f, against a fixed strategy of the other; equal by content.

    Attributes:
        game: the payoff of a record.
        who: the player who moves.
        fixed: the strategy of the other, in coordinates.
    """

    game: Game
    who: Who
    fixed: tuple[float, ...]

    def __call__(self, params: Any, features: Any, target: Any) -> Any:
        """The loss of one record."""
        other = jnp.asarray(self.fixed)
        if self.who == "x":
            return self.game.payoff(params, other, features, target)
        return -self.game.payoff(other, params, features, target)


def one_sided(game: Game, who: Who, fixed: ArrayLike) -> Problem:
    """The best answer of a player, as a problem.

    Args:
        game: the payoff.
        who: the player who answers.
        fixed: the strategy of the other, in coordinates.
    """
    vertices = game.players[who].vertices
    loss = OneSidedLoss(game, who, tuple(np.asarray(fixed, np.float64).tolist()))
    layout = PytreeLayout.of(np.zeros(vertices.dimension))
    return Problem(RecordLoss(loss), constraint=constraint_of(vertices), layout=layout)


def constraint_of(vertices: Vertices) -> Constraint:
    """The set that some vertices span.

    Raises:
        TypeError: they are of an unknown kind.
    """
    if isinstance(vertices, SimplexVertices):
        return Simplex(vertices.radius)
    if isinstance(vertices, CrossPolytopeVertices):
        return L1Ball(vertices.radius)
    if isinstance(vertices, ListedVertices):
        return Polytope(vertices.rows)
    raise TypeError(f"no set is known of {type(vertices).__name__}.")
