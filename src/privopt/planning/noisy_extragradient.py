"""Defaults, forecast and bound of the noisy extragradient method, from public numbers. Utility only.

For a player of half-range L, curvature b (both by weights on vertices), largest entry R of a vertex, p coordinates:

    clip    C = 0.3 sqrt(p) L / R: records' gradients are seldom as long as sqrt(p) L / R, the longest
    step    eta = 0.5 R^2 / (b + L): L stands for how much the other player's move turns the gradient
    steps   T = 24; noise is what ends a run, and more steps neither cost nor help much

Bound. With D the diameter of a player's set, sigma^2 the mean squared length of a release's noise and steps at most
1 / (sqrt(3) times the Lipschitz constant of both gradients together):

    E gap <= sum over players of 2 D^2 / (eta (T + 1)) + 3.5 eta sigma^2

A step moves half the squared distance from any point u by at most

    -eta <g, ahead - u> + eta^2 |g - g'|^2 / 2 - |ahead - origin|^2 / 2

with g and g' the gradients ahead and at the origin. |g - g'|^2 is at most three times the squared change of the mean
gradient, which the last term outweighs, and three times the squares of both noises: 3 eta sigma^2 of the bound. With
linear weights the distances add up to D^2 / (eta (T + 1)) at most, and so do those of a second sequence, which bounds
the products of the noise with the best answers at the price of another eta sigma^2 / 2.

Source:
    Juditsky, Nemirovski, Tauvel 2011, Theorem 1, with constants of ours for linear weights.
"""

import math
from typing import Any

from privopt.planning import game_forecast
from privopt.planning.forecast import Forecast
from privopt.planning.plan import Bound
from privopt.planning.sampled_dual_averaging import default_held, movers
from privopt.planning.task import Task
from privopt.problems.saddle import Game, Player, Who
from privopt.problems.vertices import set_of

STEPS = 24
CLIP_SHARE = 0.3  # of the longest gradient; measured, as what follows
STEP_SHARE = 0.5


def default_steps(solver: Any, task: Task[Game]) -> int:
    """T."""
    del solver, task
    return STEPS


def default_clip(who: Who, task: Task[Game]) -> float:
    """C, infinite without noise: nothing is shortened there."""
    if not task.is_private:
        return math.inf
    player = task.problem.players[who]
    return CLIP_SHARE * math.sqrt(player.vertices.dimension) * player.half_range / player.vertices.largest


def default_step(who: Who, task: Task[Game]) -> float:
    """eta."""
    player = task.problem.players[who]
    return STEP_SHARE * player.vertices.largest**2 / (player.curvature + player.half_range)


DEFAULTS = {
    "held": default_held,
    "steps": default_steps,
    "clip_x": lambda solver, task: default_clip("x", task),
    "clip_y": lambda solver, task: default_clip("y", task),
}


def forecast(solver: Any, task: Task[Game]) -> Forecast:
    """The typical gap of games that bend, and the bound."""
    gap = game_forecast.bent_gap(task)
    return Forecast(
        excess=min(gap, game_forecast.trivial_gap(task.problem)),
        meaning=game_forecast.TYPICAL.split(";")[0],
        bound=_bound(solver, task),
        notices=tuple(game_forecast.game_notices(task, gap)),
        measure=game_forecast.GAP,
    )


def _bound(solver: Any, task: Task[Game]) -> Bound | None:
    """The sum of the module's text."""
    if not solver.steps:
        return None
    return Bound(
        value=sum(_part(player, solver, task) for player in movers(task.problem).values()),
        probability=None,
        condition=(
            "for the expected gap of the game of these units, if it is convex in x and concave in y, no gradient is "
            "longer than the clip, and steps are at most 0.57 over the Lipschitz constant of the gradients; pessimistic"
        ),
        of=game_forecast.GAP,
    )


def _part(player: Player, solver: Any, task: Task[Game]) -> float:
    clip, step = getattr(solver, f"clip_{player.who}"), getattr(solver, f"step_{player.who}")
    noise = getattr(solver, f"noise_{player.who}")
    dimension = player.vertices.dimension
    diameter = set_of(player.vertices).diameter_in((dimension,))
    deviation = task.public.relation.factor * clip * noise / task.public.n if noise > 0 else 0.0
    return 2.0 * diameter**2 / (step * (solver.steps + 1.0)) + 3.5 * step * dimension * deviation**2
