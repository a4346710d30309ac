"""Forecast of the noisy matrix, from public numbers."""

from typing import Any

from privopt.planning import game_forecast
from privopt.planning.forecast import Forecast
from privopt.planning.task import Task
from privopt.problems.saddle import BilinearGame, Game

LARGEST = 10_000_000  # cells


def obstacle(game: Game) -> str | None:
    """Why the payoffs of a game cannot be released, or None."""
    if not isinstance(game, BilinearGame):
        return "its payoffs are no matrix"
    if game.rows * game.columns > LARGEST:
        return f"its matrix has {game.rows * game.columns:,} entries, more than {LARGEST:,}"
    return None


def predicted(task: Task[Game]) -> float:
    """The typical gap; infinite where the method does not apply."""
    game = task.problem
    if obstacle(game) is not None or not isinstance(game, BilinearGame):
        return float("inf")
    return game_forecast.matrix_gap(task, game.payoff_radius)


def forecast(solver: Any, task: Task[Game]) -> Forecast:
    """The typical gap."""
    del solver
    gap = predicted(task)
    return Forecast(
        excess=min(gap, game_forecast.trivial_gap(task.problem)),
        meaning=game_forecast.TYPICAL.split(";")[0],
        notices=tuple(game_forecast.game_notices(task, gap)),
        measure=game_forecast.GAP,
    )
