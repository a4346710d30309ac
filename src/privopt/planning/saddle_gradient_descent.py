"""Defaults and forecast of private descent and ascent, from public numbers. Utility only."""

import math
from typing import TYPE_CHECKING

from privopt.planning import game_forecast
from privopt.planning.forecast import Forecast
from privopt.planning.sampled_dual_averaging import price_shares
from privopt.planning.task import Task
from privopt.problems.saddle import Game, Player, Who
from privopt.problems.vertices import set_of

if TYPE_CHECKING:
    from privopt.games.gradient_players import GradientPlayers
    from privopt.games.saddle_gradient_descent import SaddleGradientDescent

STEPS = 150
MEAN_SHARE = 0.1  # of the clip that a mean gradient is long; measured
STEP_GAIN = 2.0  # of the step that the bound of descent asks for; measured


def default_clip(who: Who, task: Task[Game]) -> float:
    """C, from which on no gradient whose entries keep to the half-range is shortened."""
    player = task.problem.players[who]
    return player.half_range * math.sqrt(player.vertices.count)


def noise_shares(solver: "GradientPlayers", task: Task[Game]) -> dict[Who, float]:
    """By player, what the common noise multiplier is multiplied by: the dearer player's is smaller."""
    shares = price_shares(task.problem)
    uses = max(1, solver.rounds_of_data())
    return {who: math.sqrt(uses / (2.0 * share)) for who, share in shares.items()}


def default_step(who: Who, solver: "SaddleGradientDescent", task: Task[Game]) -> float:
    """D / (sqrt(T) g), D the set's diameter and g the length of a noisy mean gradient."""
    player = task.problem.players[who]
    clip = getattr(solver, f"clip_{who}")
    diameter = set_of(player.vertices).diameter_in((player.vertices.dimension,))
    sigma = getattr(solver, f"noise_{who}") * task.public.relation.factor * clip / task.public.n
    length = math.hypot(MEAN_SHARE * clip, sigma * math.sqrt(player.vertices.dimension))
    return STEP_GAIN * diameter / (math.sqrt(max(solver.steps, 1)) * length)


def obstacle(player: Player) -> str | None:
    """Why a player's set cannot be projected onto, or None."""
    try:
        set_of(player.vertices)
    except TypeError as refused:
        return str(refused).rstrip(".")
    return None


def forecast(solver: "SaddleGradientDescent", task: Task[Game]) -> Forecast:
    """About that of noisy exponentiated gradient."""
    del solver
    gap = game_forecast.noised_gap(task)
    return Forecast(
        excess=min(gap, game_forecast.trivial_gap(task.problem)),
        meaning=game_forecast.TYPICAL.split(";")[0],
        notices=tuple(game_forecast.game_notices(task, gap)),
        measure=game_forecast.GAP,
    )
