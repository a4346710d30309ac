"""Defaults and forecast of best responses, from public numbers. Utility only."""

import math
from typing import Any

from privopt.planning import game_forecast
from privopt.planning.forecast import Forecast
from privopt.planning.sampled_dual_averaging import default_held, movers, price_shares
from privopt.planning.task import Task
from privopt.problems.saddle import Game, Who

FEWEST, MOST = 10, 1000
AIM = 2.0  # of 2 log m over the temperature that the average gradient is drawn at; measured


def default_steps(solver: Any, task: Task[Game]) -> int:
    """T at which the inverse temperature of a choice, (n / (2 c L)) sqrt(8 rho / T), is AIM 2 log m sqrt(T) / L."""
    del solver
    choosing = movers(task.problem)
    if not task.is_private or not choosing:
        return MOST
    rho, public = game_forecast.equivalent_rho(task), task.public
    shares = price_shares(task.problem)
    wanted = min(
        public.n * math.sqrt(8.0 * rho * shares[who])
        / (2.0 * public.relation.factor * AIM * 2.0 * math.log(player.vertices.count))
        for who, player in choosing.items()
    )  # fmt: skip
    return round(min(max(wanted, FEWEST), MOST))


def ranges(task: Task[Game]) -> dict[Who, float]:
    """By player, the bounded range of a choice at noise 1: the dearer player's is larger."""
    return {who: math.sqrt(share) for who, share in price_shares(task.problem).items()}


DEFAULTS = {"held": default_held, "steps": default_steps}


def forecast(solver: Any, task: Task[Game]) -> Forecast:
    """Nothing is known but what a user should read."""
    del solver
    return Forecast(
        meaning="none was fitted for this baseline",
        notices=tuple(game_forecast.game_notices(task, 0.0)),
        measure=game_forecast.GAP,
    )
