"""What to expect of solvers of games, from public numbers: what is typical, what is proved, and what to say of both.

The typical gaps are fits to the generated games of `python -m benchmarks games`: records of signs, n = 1250 to 80 000,
10 to 1000 vertices a player. On other games that of drawn vertices can be ten times too small, see
docs/benchmarks-games.md. Utility only.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from privopt.ledger.curves import zcdp_rho_budget
from privopt.planning.plan import Bound
from privopt.planning.sampled_dual_averaging import (
    default_steps,
    movers,
    noise_deviation,
    price_shares,
    step_weight,
)
from privopt.planning.task import Forecast, Task
from privopt.problems.ball import smoothing_constant
from privopt.problems.saddle import BilinearGame, Game, Player, Who
from privopt.public import Public

if TYPE_CHECKING:
    from privopt.games.dual_averaging import DualAveraging
    from privopt.papers.saddle_mirror_descent import SaddleMirrorDescent

GAP = "duality gap"
DRAWN, NOISED, MATRIX = 0.13, 1.5, 1.8  # measured
BENT = 0.1  # of the typical gap of noisy gradients, where the game bends in both strategies; measured
TYPICAL = "typical of generated games with payoffs as large as the game allows; the bound is what is proved"
FAR = 2.0  # times the default number of steps, or as much less: beyond, nothing was measured


def equivalent_rho(task: Task[Game]) -> float:
    """The budget in zero-concentrated privacy; of a pure one, as epsilon^2 / 8, which one draw would cost."""
    budget = task.budget
    if not task.is_private:
        return math.inf
    return zcdp_rho_budget(budget.epsilon, budget.delta) if budget.delta > 0 else budget.epsilon**2 / 8.0


def drawn_rho(solver: "DualAveraging", task: Task[Game]) -> float:
    """What a configured solver's draws spend, over the share of the price that is theirs.

    With delta = 0 ranges add up, and this is far less than `equivalent_rho`.
    """
    if not task.is_private or solver.steps < 2:
        return equivalent_rho(task)
    shares = price_shares(task.problem)
    drawing: list[Who] = [who for who in shares if solver.draws_vertices(who)]
    spent = sum(solver.sampler(who, task.public).rho() for who in drawing)
    return spent / sum(shares[who] for who in drawing) if drawing else equivalent_rho(task)


def strength(task: Task[Game], rho: float | None = None) -> float:
    """n sqrt(rho), of as many units as would be moved as far under replace-one; rho is the budget's unless said."""
    spent = equivalent_rho(task) if rho is None else rho
    return 2.0 * task.public.n / task.public.relation.factor * math.sqrt(spent)


def trivial_gap(game: Game) -> float:
    """What the gap of the uniform strategies is at most: 2 max L."""
    return 2.0 * max(player.half_range for player in game.players.values())


def drawn_gap(task: Task[Game], rho: float | None = None) -> float:
    """Of sampled dual averaging: 0.13 L l^(3/4) / (n sqrt(rho))^(1/2), l = log m_x + log m_y."""
    choosing = movers(task.problem).values()
    if not choosing or not task.is_private:
        return 0.0
    logs = sum(math.log(player.vertices.count) for player in choosing)
    longest = max(player.half_range for player in choosing)
    informed = strength(task, rho)
    return DRAWN * longest * logs**0.75 / math.sqrt(informed) if informed > 0 else math.inf


def noised_gap(task: Task[Game]) -> float:
    """Of noisy exponentiated gradient: 1.5 c L sqrt(2 m log m) / (n sqrt(2 rho)), averaged over the players."""
    choosing = movers(task.problem).values()
    if not choosing or not task.is_private:
        return 0.0
    size = sum(
        player.half_range * math.sqrt(2.0 * player.vertices.count * math.log(player.vertices.count))
        for player in choosing
    )
    return NOISED * 2.0 * size / len(choosing) / (math.sqrt(2.0) * strength(task))


def bent_gap(task: Task[Game]) -> float:
    """Of the noisy extragradient method on a game that bends: a tenth of `noised_gap`."""
    return BENT * noised_gap(task)


def matrix_gap(task: Task[Game], radius: float) -> float:
    """Of the noisy matrix: 1.8 times the noise in an entry, c radius / (n sqrt(2 rho))."""
    return MATRIX * 2.0 * radius / (math.sqrt(2.0) * strength(task)) if task.is_private else 0.0


def typical(task: Task[Game], gap: float, bound: Bound | None = None) -> Forecast:
    """The forecast of a solver whose typical gap is known."""
    return Forecast(
        excess=min(gap, trivial_gap(task.problem)),
        meaning=TYPICAL.split(";")[0],
        bound=bound,
        notices=tuple(game_notices(task, gap)),
        measure=GAP,
    )


def dual_averaging(solver: "DualAveraging", task: Task[Game]) -> Forecast:
    """Of a configured dual averaging, drawn, noised or both."""
    trivial = trivial_gap(task.problem)
    gap = _typical_gap(solver, task)
    notices = [*game_notices(task, 0.0 if gap is None else gap), *spending_notices(solver, task)]
    return Forecast(
        excess=None if gap is None else min(gap, trivial),
        meaning=(
            f"{solver.steps} steps are far from the default of {default_steps(solver, task)}, near which it was "
            "measured"
            if gap is None
            else "of the uniform strategies, at most"
            if solver.steps < 2 and gap > 0
            else TYPICAL
        ),
        bound=_bound(solver, task),
        notices=tuple(notices),
        measure=GAP,
    )


def _typical_gap(solver: "DualAveraging", task: Task[Game]) -> float | None:
    """None where the number of steps is far from those that were measured; without data the trivial gap."""
    kinds = [solver.draws_vertices(who) for who in movers(task.problem)]
    if not kinds:
        return 0.0
    if solver.steps < 2:
        return trivial_gap(task.problem)
    usual = default_steps(solver, task)
    if solver.steps * FAR < usual or (any(kinds) and solver.steps > FAR * usual):
        return None
    rho = drawn_rho(solver, task)
    return sum(drawn_gap(task, rho) if drawn else noised_gap(task) for drawn in kinds) / len(kinds)


def game_notices(task: Task[Game], gap: float) -> list[str]:
    """What a user of any solver of games should know."""
    notices: list[str] = []
    game, public = task.problem, task.public
    trivial = trivial_gap(game)
    if task.is_private and gap >= trivial:
        notices.append(
            f"the budget is too small: the typical gap {gap:.2g} is no better than {trivial:.2g}, a bound on that of "
            "the uniform strategies, which SaddleMirrorDescent(steps=0) returns at no cost. More units or a larger "
            "epsilon would help."
        )
    if isinstance(game, BilinearGame) and public.row_bound < game.row_bound * (1.0 - 1e-6):
        notices.append(
            f"rows longer than the row bound {public.row_bound:.4g} are shortened before the game sees them, and rows "
            f"with entries within {game.entries} may be {game.row_bound:.4g} long: give row_bound=game.row_bound."
        )
    if not task.is_private:
        notices.append("epsilon is infinite: nothing is noised, and the result is not private.")
    return notices


def spending_notices(
    solver: "DualAveraging | SaddleMirrorDescent",
    task: Task[Game],
    why: str = "temperatures are at their cap, or whole numbers of draws leave a rest",
) -> list[str]:
    """A price below the budget, and why; and steps that learn nothing."""
    notices: list[str] = []
    if solver.steps < 2:
        notices.append(
            f"{solver.steps} steps learn nothing of the data: the uniform strategies, or vertices drawn from them, are "
            "returned, and nothing is spent."
        )
        return notices
    if not task.is_private:
        return notices
    from_plan = solver.price(task)
    if from_plan < 0.999 * task.budget.epsilon:
        notices.append(
            f"the plan costs epsilon {from_plan:.3g} of {task.budget.epsilon:.3g}: {why}. An account pays for the plan "
            "only."
        )
    return notices


def _bound(solver: "DualAveraging", task: Task[Game]) -> Bound | None:
    """Theorem A, and follow-the-regularised-leader; see `SampledDualAveraging`."""
    if solver.steps < 2:
        return None
    value = sum(_player_bound(player, solver, task.public) for player in movers(task.problem).values())
    fresh = bool(solver.sizes)
    where = "of the population that the units are drawn from" if fresh else "of the game of these units"
    return Bound(
        value=value,
        probability=None,
        condition=(
            f"for the gap {where}, if it is convex in x and concave in y and no gradient is longer than its half-range "
            "or clip; pessimistic"
        ),
        of=GAP,
    )


def _player_bound(player: Player, solver: "DualAveraging", public: Public) -> float:
    """One player's part: regret, what draws add, and the noise of fresh batches."""
    move: Any = solver.moves()[player.who]
    steps, logs = solver.steps, math.log(player.vertices.count)
    if move.scale == 0:
        return 2.0 * player.half_range
    rates = [_rate(move.scale, max(t, 1), solver.power) for t in range(steps)]
    weights = [step_weight(t) for t in range(steps)]
    total = sum(weights)
    length, extra = player.half_range, 0.0
    if solver.draws_vertices(player.who):
        extra = 4.0 * player.curvature / move.draws
    else:
        sigma = noise_deviation(move, solver, public)
        length += sigma * math.sqrt(2.0 * math.log(2.0 * player.vertices.count) + 2.0)
        extra = sigma * math.sqrt(8.0 * logs / (3.0 * steps))
    regret = (
        logs / rates[-1]
        + sum(rate * weight**2 for rate, weight in zip(rates, weights, strict=True)) * length**2 / 2.0
    ) / total
    if solver.sizes:
        spread = sum(
            weight**2 / size for weight, size in zip(weights, (*solver.sizes, solver.sizes[-1]), strict=True)
        )
        extra += player.half_range * math.sqrt(2.0 * logs * spread) / total
    return regret + extra


def _rate(scale: float, step: int, power: float) -> float:
    """The learning rate beta_t / W_t = s t^p / (t (t + 1) / 2)."""
    return 2.0 * scale * step**power / (step * (step + 1.0))


# ------------------------------------------------------------------------------------------------------------
# How far gradients of the data's mean loss can be from those of the distribution that the records come
# from.


def generalization_gap(
    *, n: int, d: int, lipschitz: float, reach: float, smoothing: float, failure: float
) -> float:
    """How far the gradients of the smoothed mean loss over n records can be from those of their distribution's mean.

    With probability at least 1 - zeta, at all points within R of the start at once,

        min over nu of (L / sqrt(n)) (1 + sqrt(2 (d ln(1 + 2 R / nu) + ln(1 / zeta)))) + 2 kappa_d L nu / alpha.

    So a point that is (alpha, b)-stationary for the smoothed loss of the data is (2 alpha, b + gap)-stationary for the
    mean loss of the population. Proof: bounded differences at one point, a net of width nu, and both gradients
    kappa_d L / alpha-Lipschitz. It needs alpha > 0. The paper's Proposition 5.1, which does without smoothing, is false
    for Lipschitz losses in general: let f(x; record) be the integral of independent signs, +1 with probability 3/4, on
    cells of width alpha 4^-n / n of the line. The population's slope is 1/2, yet some cell of every ball has only signs
    of -1 in the data, and the Goldstein norm of the data's mean loss is 0.

    Args:
        n: records, drawn independently.
        d: parameters.
        lipschitz: L of one record's loss.
        reach: R, at least the sum of all steps' lengths.
        smoothing: alpha, the radius of the smoothing ball, positive.
        failure: zeta in (0, 1).
    Source:
        Ours, in place of Kornowski, Liu, Talwar 2024, Proposition 5.1.
    """
    if not (smoothing > 0 and reach >= 0 and 0 < failure < 1):
        raise ValueError(
            f"smoothing must be positive, reach at least 0 and failure in (0, 1), got {smoothing!r}, {reach!r} and "
            f"{failure!r}: without smoothing no such bound holds for Lipschitz losses."
        )
    kappa = smoothing_constant(d)
    widths = smoothing / (kappa * math.sqrt(n)) * np.geomspace(1e-3, 1e3, 4001)
    spread = 2.0 * (d * np.log1p(2.0 * reach / widths) + math.log(1.0 / failure))
    gaps = lipschitz / math.sqrt(n) * (1.0 + np.sqrt(spread)) + 2.0 * kappa * lipschitz * widths / smoothing
    return float(np.min(gaps))
