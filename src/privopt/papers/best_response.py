"""Private best responses for games: fictitious play with privately chosen vertices.

Source: Brown 1951 (fictitious play); Frank, Wolfe 1956. With private choices: McSherry, Talwar 2007.
"""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from privopt.curator.base import Curator
from privopt.games.gradients import Gradients
from privopt.games.rounds import RoundSolver, Weights, outcome_of, uniform_outcome
from privopt.ledger.events import Event, repeat, sequence
from privopt.mechanisms.choice import ExponentialMechanism
from privopt.planning import saddle
from privopt.planning.sampled_dual_averaging import movers, price_shares
from privopt.planning.task import Forecast, Task
from privopt.problems.saddle import Game, Who
from privopt.public import Public
from privopt.result import Outcome
from privopt.solvers.fields import derived

# ---- Defaults and forecast of best responses, from public numbers. Utility only ----------------------------
FEWEST, MOST = 10, 1000
AIM = 2.0  # of 2 log m over the temperature that the average gradient is drawn at; measured


def choice_ranges(task: Task[Game]) -> dict[Who, float]:
    """By player, the bounded range of a choice at noise 1: the dearer player's is larger."""
    return {who: math.sqrt(share) for who, share in price_shares(task.problem).items()}


@dataclass(frozen=True, kw_only=True)
class BestResponse(RoundSolver):
    """Each step both players choose a vertex that answers well to the other's average so far, and mix it in.

    A baseline. Choices look at one gradient each, so every one is drawn anew from all the data: T choices a player
    cost T selections, where dual averaging's share what the scores remember.

    Attributes:
        range_x, range_y: the bounded range of each choice; infinite takes the best vertex, and protects nobody.
    Guarantee:
        Selections by the exponential mechanism, for any records and payoffs.
    """

    name: ClassVar[str] = "best-response"

    range_x: float = derived(above=0)
    range_y: float = derived(above=0)

    def default_steps(self, task: Task[Game]) -> int:
        """T at which the inverse temperature of a choice, (n / (2 c L)) sqrt(8 rho / T), is AIM 2 log m sqrt(T) / L."""
        choosing = movers(task.problem)
        if not task.is_private or not choosing:
            return MOST
        rho, public = saddle.equivalent_rho(task), task.public
        shares = price_shares(task.problem)
        wanted = min(
            public.n * math.sqrt(8.0 * rho * shares[who])
            / (2.0 * public.relation.factor * AIM * 2.0 * math.log(player.vertices.count))
            for who, player in choosing.items()
        )  # fmt: skip
        return round(min(max(wanted, FEWEST), MOST))

    def calibrated(self, task: Task[Game]) -> Self:
        """Ranges set to the budget."""
        ranges = choice_ranges(task)
        wanted: list[Who] = [who for who in ranges if not self.is_set(f"range_{who}")]

        def at(level: float) -> Self:
            chosen = {f"range_{who}": ranges[who] / level for who in wanted}
            still = {
                f"range_{who}": 1.0
                for who in ("x", "y")
                if who not in ranges and not self.is_set(f"range_{who}")
            }
            return self.with_(**chosen, **still)

        if not task.is_private:
            return self.with_(**{f"range_{who}": math.inf for who in wanted})
        if not wanted or self.steps < 1:
            return at(1.0)
        return self.to_budget(task, at)

    def rounds_of_data(self) -> int:
        """All: the first answers to the uniform strategy."""
        return self.steps

    def event(self, public: Public) -> Event:
        """A selection a step and player with a choice."""
        del public
        if not self.steps:
            return sequence([])
        ranges: dict[Who, float] = {"x": self.range_x, "y": self.range_y}
        return sequence(
            [repeat(ExponentialMechanism(ranges[who]).event(), self.steps) for who in self.choosing()]
        )

    def forecast(self, instance: Task[Game]) -> Forecast:
        """Nothing is known but what a user should read."""
        return Forecast(
            meaning="none was fitted for this baseline",
            notices=tuple(saddle.game_notices(instance, 0.0)),
            measure=saddle.GAP,
        )

    def run(self, curator: Curator, game: Game) -> Outcome:
        """Average the answers with linear weights."""
        if self.steps == 0:
            return uniform_outcome(game)
        players = game.players
        weights: dict[Who, Weights] = {who: player.vertices.uniform() for who, player in players.items()}
        ranges: dict[Who, float] = {"x": self.range_x, "y": self.range_y}
        gradients = Gradients.on(curator, game, hold=self.held)
        for t in range(self.steps):
            x, y = (player.vertices.mix(weights[who]) for who, player in players.items())
            chosen: dict[Who, Weights] = {}
            for who, player in movers(game).items():
                index = np.asarray(
                    curator.release(gradients.scores(who, x, y), ExponentialMechanism(ranges[who]))
                )
                chosen[who] = player.vertices.shares(np.ravel(index)[:1])
            for who, answer in chosen.items():
                weights[who] = weights[who] + (answer - weights[who]) * (2.0 / (t + 2.0))
        return outcome_of(game, weights)
