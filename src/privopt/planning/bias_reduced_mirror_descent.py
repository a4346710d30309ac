"""The schedule, the defaults and the forecast of mirror descent with bias-reduced gradients.

Levels N are drawn before the data are read, from P[N = k] = 2^-k / C_M for k = 0, ..., M, C_M = 2 - 2^-M. A step of
level N draws 2^(N + 1) vertices a player, and one unit of its batch of B moves the later scores by a vector of range at
most c 2 H_N / B, H_N = C_M 2^N C_d + L. With tau the inverse temperature, l = log d_x + log d_y and L2 how much
entries of the gradient bend,

    gap <= about l / (tau T) + tau C / 2 + 4 L2 / 2^M,    C a second moment of the gradients,

which sets M, T and tau's cap by trying them out. Utility only: what a schedule costs is counted for that schedule.

Source:
    Gonzalez, Guzman, Paquette 2024, Theorem 3.14 (its levels, log2 U rounded down, and its stopping rule).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from privopt.ledger import accounting
from privopt.ledger.zcdp import zcdp_rho_budget
from privopt.planning.balanced_batches import FEWEST, balanced_sizes
from privopt.planning.forecast import Forecast
from privopt.planning.game_forecast import GAP, game_notices, trivial_gap
from privopt.planning.task import Task
from privopt.problems.saddle import Game

HIGHEST_LEVEL = 8  # that is tried
LEAST_EFFORT, MOST_EFFORT = 4.0, 2048.0
DIFFERENCE_CLIP = 0.3  # of the half-range: the best of those measured, for halves of both signs
_GRID = 2.0  # between efforts that are tried

NEVER_THE_BEST = (
    "in every measurement so far sampled dual averaging with 4 draws or more a step ended closer to the saddle point: "
    "use it unless the analysis at the hidden strategies is what you want."
)
TEMPERATURE_CAPPED = (
    "the plan costs epsilon {:.3g} of {:.3g}: colder draws than its steps can use would not help. An account pays for "
    "the plan only."
)


@dataclass(frozen=True)
class Schedule:
    """What a run does, drawn before data is read.

    Attributes:
        levels: N of every step.
        highest: M.
        sizes: units of the batch of every step but the last.
    """

    levels: tuple[int, ...]
    highest: int
    sizes: tuple[int, ...]

    @property
    def draws(self) -> tuple[int, ...]:
        """Vertices a player draws at each step."""
        return tuple(2 ** (level + 1) for level in self.levels)

    @property
    def steps(self) -> int:
        """T."""
        return len(self.levels)

    def gain(self, step: int) -> float:
        """C_M 2^N."""
        return mass(self.highest) * 2.0 ** self.levels[step]


def mass(highest: int) -> float:
    """C_M, the sum of 2^-k."""
    return 2.0 - 2.0**-highest


def draw_levels(effort: float, highest: int, seed: int) -> tuple[int, ...]:
    """Levels while the past ones' 2^N sum to at most U - 2^M, so that all of them sum to at most U.

    There are two of them or more if 2^M is at most half of U.
    """
    uniforms = np.random.default_rng([seed, highest]).random(math.floor(effort) + 1)
    levels = np.minimum(np.searchsorted(np.cumsum(_chances(highest)), uniforms, side="right"), highest)
    spent = np.concatenate(([0.0], np.cumsum(2.0**levels)))
    return tuple(levels[: int(np.sum(spent[:-1] <= effort - 2**highest))].tolist())


def _chances(highest: int) -> list[float]:
    return [2.0**-k / mass(highest) for k in range(highest + 1)]


def weights_of_batches(levels: Sequence[int], highest: int, difference_clip: float) -> list[float]:
    """H_N sqrt(later draws) of each step but the last: by how much its batch would cost, were it one unit."""
    later = np.cumsum([2.0 ** (level + 1) for level in reversed(levels)])[::-1]
    return [
        (mass(highest) * 2.0**level * difference_clip + 1.0) * math.sqrt(after)
        for level, after in zip(levels[:-1], later[1:].tolist(), strict=True)
    ]


@cache
def schedule(effort: float, highest: int, seed: int, difference_clip: float, n: int) -> Schedule:
    """The schedule of some fields on n units."""
    levels = draw_levels(effort, highest, seed)
    return Schedule(levels, highest, balanced_sizes(weights_of_batches(levels, highest, difference_clip), n))


def schedule_of(solver: Any, n: int) -> Schedule:
    """The schedule of a filled solver."""
    return schedule(
        float(solver.effort),
        int(solver.highest_level),
        int(solver.schedule_seed),
        float(solver.difference_clip),
        n,
    )


def obstacle(solver: Any, n: int) -> str | None:
    """Why there are too few units for the schedule, or None; None too where it is not set yet."""
    if not (solver.is_set("effort") and solver.is_set("highest_level")):
        return None if n >= 2 * FEWEST else f"{n} units are too few for two batches of {FEWEST}"
    if 2**solver.highest_level > solver.effort / 2:
        return (
            f"highest_level {solver.highest_level} alone takes 2^{solver.highest_level} of the effort "
            f"{solver.effort:g}, so that hardly a step fits: raise the effort to {2 ** (solver.highest_level + 1)}, or "
            "lower the level"
        )
    steps = len(draw_levels(float(solver.effort), int(solver.highest_level), int(solver.schedule_seed)))
    if FEWEST * (steps - 1) <= n:
        return None
    return (
        f"its schedule has {steps:,} steps with a batch of fresh units each, and there are {n:,} units: lower the "
        f"effort to {max(LEAST_EFFORT, n / 4):g} or less"
    )


def default_difference_clip(solver: Any, task: Task[Game]) -> float:
    """0.3, or what curvatures that are stated allow if it is less; 2 without the second half, where it may be full."""
    known = _curvature(task.problem)
    measured = DIFFERENCE_CLIP if solver.differences == "both halves" else 2.0
    return min(measured, known) if known > 0 else measured


def default_highest_level(solver: Any, task: Task[Game]) -> int:
    """M of the smallest prediction; the paper's floor(log2 sqrt(U)) where the effort is given."""
    if solver.is_set("effort"):
        return max(0, math.floor(0.5 * math.log2(solver.effort)))
    return _best(solver, task)[1]


def default_effort(solver: Any, task: Task[Game]) -> float:
    """U of the smallest prediction at this M."""
    return _best(solver, task)[0]


DEFAULTS = {
    "difference_clip": default_difference_clip,
    "highest_level": default_highest_level,
    "effort": default_effort,
}


def cap(solver: Any, game: Game, steps: int) -> float:
    """tau L that minimises l / (tau T) + tau C / 2."""
    log_sizes = _log_sizes(game)
    moment = second_moment(solver, game, int(solver.highest_level))
    return math.sqrt(2.0 * max(log_sizes, 0.5) / (max(steps, 1) * moment))


def second_moment(solver: Any, game: Game, highest: int) -> float:
    """C over L^2: one, and that of the scaled difference, which clip or curvature bounds."""
    bend = _curvature(game) or 1.0
    clipped = mass(highest) * solver.difference_clip**2 * (2.0 ** (highest + 1) - 1.0)
    smooth = bend**2 if solver.differences == "both halves" else bend**2 * (1.0 + highest * _log_sizes(game))
    return 1.0 + min(clipped, smooth)


def expected_gap(solver: Any, task: Task[Game], effort: float, highest: int) -> float:
    """The prediction of the module, in units of the half-range; infinite where the schedule does not fit."""
    public = task.public
    trial = solver.with_(effort=effort, highest_level=highest)
    if obstacle(trial, public.n) is not None:
        return math.inf
    plan = schedule_of(trial, public.n)
    tau = min(affordable(trial, task, plan), cap(trial, task.problem, plan.steps))
    bend = _curvature(task.problem)
    return (
        _log_sizes(task.problem) / (tau * plan.steps)
        + tau * second_moment(trial, task.problem, highest) / 2.0
        + 4.0 * bend / 2.0**highest
    )


def affordable(solver: Any, task: Task[Game], plan: Schedule) -> float:
    """tau L that the budget pays for, but for the rounding of scores."""
    if not task.is_private:
        return math.inf
    later = np.cumsum(plan.draws[::-1])[::-1][1:]
    moved = [
        2.0 * task.public.relation.factor * (plan.gain(t) * solver.difference_clip + 1.0) / size
        for t, size in enumerate(plan.sizes)
    ]
    players = sum(player.vertices.count > 1 for player in task.problem.players.values())
    if task.budget.delta == 0:
        ranges = max(e * float(after) for e, after in zip(moved, later, strict=True))
        return task.budget.epsilon / (max(players, 1) * ranges)
    unit = max(e**2 * float(after) for e, after in zip(moved, later, strict=True)) / 8.0
    return math.sqrt(zcdp_rho_budget(task.budget.epsilon, task.budget.delta) / (max(players, 1) * unit))


def forecast(solver: Any, task: Task[Game]) -> Forecast:
    """The prediction in the unit of the payoffs, and what to note."""
    game, trivial = task.problem, trivial_gap(task.problem)
    largest = max(player.half_range for player in game.players.values())
    gap = largest * expected_gap(solver, task, solver.effort, solver.highest_level)
    notices = [NEVER_THE_BEST, *game_notices(task, gap)]
    if task.is_private:
        budget = task.budget
        price = accounting.epsilon(
            solver.event(task.public), budget.delta, task.public.relation, near=budget.epsilon
        )
        if price < 0.999 * budget.epsilon:
            notices.append(TEMPERATURE_CAPPED.format(price, budget.epsilon))
    return Forecast(
        excess=min(gap, trivial),
        meaning="by the form of the bound, for curvatures as they are stated; pessimistic",
        notices=tuple(notices),
        measure=GAP,
    )


def _best(solver: Any, task: Task[Game]) -> tuple[float, int]:
    """The effort and level of the smallest prediction."""
    most = min(MOST_EFFORT, max(LEAST_EFFORT, task.public.n / 2.0))
    efforts = [LEAST_EFFORT]
    while efforts[-1] * _GRID <= most:
        efforts.append(efforts[-1] * _GRID)
    levels = [solver.highest_level] if solver.is_set("highest_level") else range(HIGHEST_LEVEL + 1)
    candidates = [(effort, int(level)) for effort in efforts for level in levels]
    return min(candidates, key=lambda one: expected_gap(solver, task, *one))


def _curvature(game: Game) -> float:
    """The larger stated curvature over its half-range; 0 where both are taken as linear."""
    return max(player.curvature / player.half_range for player in game.players.values())


def _log_sizes(game: Game) -> float:
    return sum(math.log(player.vertices.count) for player in game.players.values())
