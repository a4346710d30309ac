"""How the boosted saddle point divides the units, its defaults and its forecast.

Units are divided into equal groups: one for the candidates' runs, one for the answers to each player whose best answer
no formula gives, one for the choice. With failure probability beta there are I = ceil(log2(4 / beta)) candidates and
J = ceil(log2(8 I / beta)) answers to each: a run that is good with probability 1/2 is so once in I with 1 - 2^-I.

Source:
    Gonzalez, Guzman, Paquette 2024, Algorithm 4, whose I and J are rounded up here.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from privopt.ledger import accounting
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import BoundedRangeEvent
from privopt.planning.forecast import Forecast
from privopt.planning.game_forecast import GAP, game_notices
from privopt.planning.task import Task
from privopt.problems.saddle import BilinearGame, Game, Player, Who

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


def division(solver: Any, players: Iterable[Player], n: int) -> Division:
    """Of n units."""
    runs = solver.candidates or default_candidates(solver)
    answers = solver.answers or default_answers(runs, solver.failure)
    answered = answered_players(players)
    group = n // (2 + len(answered))
    return Division(runs, group // runs, answered, answers, group // (runs * answers), group)


def obstacle(solver: Any, game: Game, n: int) -> str | None:
    """Why the parts are too small, or None."""
    parts = division(solver, game.players.values(), n)
    smallest, needed = min(parts.sizes), 2 if solver.forced else FEWEST_UNITS
    if smallest >= needed:
        return None
    advice = (
        "take fewer candidates"
        if solver.forced
        else "use sampled-dual-averaging on all of them, or set forced=True"
    )
    return f"{n:,} units make {len(parts.sizes)} parts of {smallest:,} or more, and {needed:,} are needed: {advice}"


def default_candidates(solver: Any) -> int:
    """I."""
    return math.ceil(math.log2(4.0 / solver.failure))


def default_answers(candidates: int, failure: float) -> int:
    """J."""
    return math.ceil(math.log2(8.0 * candidates / failure))


def default_payoff_clip(solver: Any, task: Task[Game]) -> float:
    """B: half the range of a record's payoff over both sets, by formula or by what the gradients allow."""
    del solver
    game = task.problem
    if not isinstance(game, BilinearGame):
        return game.x.half_range + game.y.half_range
    low, high = game.entries
    corners = (low * low, low * high, high * high)
    spread = max(corners) - min(corners)
    return ((spread + 2.0 * (high - low)) / 2.0 if game.offsets else spread) / 2.0


def default_selection(solver: Any, task: Task[Game]) -> float:
    """epsilon_0 of the choice, which may spend the whole budget on its own part."""
    if solver.candidates == 1 or not task.is_private:
        return math.inf
    return 1.0 / calibrate(lambda noise: BoundedRangeEvent(1.0 / noise), task.budget, task.public.relation)


DEFAULTS = {
    "candidates": lambda solver, task: default_candidates(solver),
    "answers": lambda solver, task: default_answers(solver.candidates, solver.failure),
    "payoff_clip": default_payoff_clip,
    "selection": default_selection,
}


def forecast(solver: Any, task: Task[Game], of_run: Forecast) -> Forecast:
    """That of one candidate's run, which the choice hardly improves.

    Args:
        solver: configured.
        task: what is public.
        of_run: of the solver of a candidate, on its part.
    """
    public, budget = task.public, task.budget
    parts = division(solver, task.problem.players.values(), public.n)
    gap = of_run.excess
    notices = [
        ONE_RUN_IS_BETTER.format(parts.runs, parts.run_size, public.n),
        *game_notices(task, 0.0 if gap is None else gap),
    ]
    if task.is_private:
        price = accounting.epsilon(solver.event(public), budget.delta, public.relation, near=budget.epsilon)
        if price < 0.999 * budget.epsilon:
            notices.append(PART_OF_BUDGET.format(price, budget.epsilon))
    return Forecast(
        excess=gap,
        meaning=of_run.meaning if gap is None else "of one run on its part",
        notices=tuple(notices),
        measure=GAP,
    )
