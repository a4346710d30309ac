"""Schedule, presets and forecast of sampled dual averaging. Utility only: the price is asked of the ledger.

A player with temperatures s t^p, t = 0, ..., T - 1, is moved in round t by softmax(-s t^p G_t), G_t the average of the
gradients before with weights w_r = r + 1. Constants marked *measured* are those of `python -m benchmarks games`.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from privopt.ledger import accounting
from privopt.ledger.calibration import calibrate
from privopt.ledger.composition import additive_cost, leaf_pure_epsilon, leaf_rho
from privopt.ledger.curves import zcdp_rho_budget
from privopt.mechanisms.vertex_stream import VertexSampler
from privopt.planning.averaging import FEWEST, balanced_sizes
from privopt.planning.task import Task
from privopt.problems.saddle import Game, Player, Who
from privopt.public import Public

if TYPE_CHECKING:
    from privopt.games.dual_averaging import DualAveraging

FEWEST_STEPS, MOST_STEPS, MOST_DRAWS = 4, 1000, 256
AIM = 0.7  # of the cap that the temperature reaches at the default number of steps; measured
NOISED_STEPS = 400  # where no player draws: more steps neither cost nor help
NOISED_GAIN, NOISED_CAPS = (
    0.8,
    4.0,
)  # of a noised player: scale times noise, and at most so many caps; measured
ONE_PASS_STEPS = 0.6  # of the steps with full batches; measured
TO_SPEND = 0.9  # of the cap, which draws are added to reach; measured


def step_weight(step: int) -> float:
    """w_t, of a round's play in the result and of its gradient in the averages."""
    return step + 1.0


def temperature(scale: float, step: int, power: float) -> float:
    """s t^p."""
    return scale * step**power


def movers(game: Game) -> dict[Who, Player]:
    """The players who have a choice."""
    return {who: player for who, player in game.players.items() if player.vertices.count > 1}


def cap(player: Player, steps: int, solver: "DualAveraging") -> float:
    """The largest scale: at the last step, kappa sqrt(2 log m T) / L."""
    return (
        solver.cap * math.sqrt(2.0 * math.log(player.vertices.count)) * steps ** (0.5 - solver.power)
        / player.half_range
    )  # fmt: skip


def price_shares(game: Game) -> dict[Who, float]:
    """How the price is divided: in proportion to (L log m)^(2/3), over the players who have a choice."""
    worth: dict[Who, float] = {
        who: (player.half_range * math.log(player.vertices.count)) ** (2.0 / 3.0)
        for who, player in movers(game).items()
    }
    return {who: one / sum(worth.values()) for who, one in worth.items()}


def batch_needs(steps: int, power: float) -> list[float]:
    """By batch r, the norm over the later rounds of what one of its units weighs: (t^p w_r / W_t)_t>r.

    With p = 1/2 and linear weights they are nearly equal.
    """
    before = [step * (step + 1) / 2.0 for step in range(steps)]  # W_t, of the rounds before t
    squares = [0.0] * (steps + 1)  # of t^p / W_t, summed from r + 1 on
    for t in range(steps - 1, 0, -1):
        squares[t] = squares[t + 1] + (t**power / before[t]) ** 2
    return [step_weight(r) * math.sqrt(squares[r + 1]) for r in range(steps - 1)]


def sampler(
    player: Player,
    *,
    steps: int,
    scale: float,
    power: float,
    draws: int,
    sizes: tuple[int, ...],
    public: Public,
) -> VertexSampler:
    """One player's draws, as the curator keeps them.

    Args:
        player: seen from outside.
        steps: T, at least 1.
        scale: s.
        power: p.
        draws: K, each round.
        sizes: of T - 1 disjoint batches; empty for all units in every round.
        public: of all units.
    """
    items = steps - 1
    batches = sizes or (public.n,) * items
    return VertexSampler.weighted_average(
        step_weights=[step_weight(t) for t in range(items)],
        inverse_temperatures=[temperature(scale, t, power) for t in range(steps)],
        draws=draws,
        half_range=player.half_range,
        sensitivities=[public.relation.factor * 2.0 * player.half_range / size for size in batches],
        participation=VertexSampler.one_item(items) if sizes else None,
    )


def unit_price(player: Player, solver: "DualAveraging", task: Task[Game]) -> float:
    """What one draw a round costs at scale 1: rho, which grows with scale^2, or pure epsilon, with scale."""
    return _unit_price(player, solver.steps, solver.power, solver.sizes, task.public, is_pure(task))


@functools.lru_cache(maxsize=64)
def _unit_price(
    player: Player, steps: int, power: float, sizes: tuple[int, ...], public: Public, pure: bool
) -> float:
    once = sampler(player, steps=steps, scale=1.0, power=power, draws=1, sizes=sizes, public=public)
    return additive_cost(once.event(), leaf_pure_epsilon if pure else leaf_rho) or 0.0


def is_pure(task: Task[Any]) -> bool:
    """Whether the budget is one of pure differential privacy."""
    return task.budget.delta == 0


def total_price(task: Task[Any]) -> float:
    """The budget, in the currency of `unit_price`."""
    if not task.is_private:
        return math.inf
    budget = task.budget
    return budget.epsilon if is_pure(task) else zcdp_rho_budget(budget.epsilon, budget.delta)


def affordable_scale(who: Who, solver: "DualAveraging", task: Task[Game]) -> float:
    """About the scale that the player's share pays for with one draw a round."""
    unit = unit_price(task.problem.players[who], solver, task)
    if unit == 0:
        return math.inf
    ratio = price_shares(task.problem)[who] * total_price(task) / unit
    return ratio if is_pure(task) else math.sqrt(ratio)


def default_steps(solver: "DualAveraging", task: Task[Game]) -> int:
    """T at which the affordable temperature is about `AIM` of its cap, for the player who reaches it first."""
    drawing: dict[Who, Player] = {
        who: player for who, player in movers(task.problem).items() if solver.draws_vertices(who)
    }
    wanted = float(MOST_STEPS if drawing else NOISED_STEPS)
    n, factor, shares = task.public.n, task.public.relation.factor, price_shares(task.problem)
    for who, player in drawing.items():
        aim = AIM * solver.cap * math.sqrt(2.0 * math.log(player.vertices.count))  # of s L, at p = 1/2
        share = shares[who] * total_price(task)
        # The price of one draw a round, full batches and p = 1/2: rho = (2 c s L / n)^2 T^2 / 16, epsilon = (2 c s L /
        # n) (2 / 3) T^(3 / 2).
        reached = (
            (3.0 * n * share / (4.0 * factor * aim)) ** (2.0 / 3.0)
            if is_pure(task)
            else 2.0 * n * math.sqrt(share) / (factor * aim)
        )
        wanted = min(wanted, reached)
    if solver.batches == "one pass":
        wanted = min(ONE_PASS_STEPS * wanted, n // FEWEST + 1)
    return round(min(max(wanted, FEWEST_STEPS), MOST_STEPS))


def default_sizes(solver: "DualAveraging", task: Task[Game]) -> tuple[int, ...]:
    """Batches that cost the same, and use up the units; none where every round uses all of them."""
    if solver.batches == "full" or solver.steps < 2:
        return ()
    needs = batch_needs(solver.steps, solver.power)
    if not solver.default_held(task):
        # A batch length is a program to compile: a few lengths are enough.
        largest = max(needs)
        needs = [largest * math.ceil(4.0 * need / largest) / 4.0 for need in needs]
    return balanced_sizes(needs, task.public.n)


def drawn_defaults(move: Any, who: Who, solver: "DualAveraging", task: Task[Game]) -> Any:
    """K: as many draws as spend what one draw at the cap would leave over."""
    if move.draws is not None:
        return move
    player = task.problem.players[who]
    if player.vertices.count == 1:
        return replace(move, draws=1)
    reached = affordable_scale(who, solver, task) / cap(player, solver.steps, solver)
    ratio = min(reached / TO_SPEND, float(MOST_DRAWS))
    return replace(move, draws=max(1, min(MOST_DRAWS, math.floor(ratio if is_pure(task) else ratio**2))))


def noised_defaults(move: Any, who: Who, task: Task[Game]) -> Any:
    """The clip that no gradient needs."""
    player = task.problem.players[who]
    clip = player.half_range * math.sqrt(player.vertices.count)
    return move if move.clip is not None else replace(move, clip=clip)


def at_noise(
    solver: "DualAveraging", task: Task[Game], noise: float, capped: frozenset[Who]
) -> dict[Who, Any]:
    """Both moves with their open prices set: shares of rho 1 / noise^2, or of epsilon 1 / noise; some at the cap."""
    return {
        who: _priced(move, who, solver, task, noise, who in capped) for who, move in solver.moves().items()
    }


def _priced(
    move: Any, who: Who, solver: "DualAveraging", task: Task[Game], noise: float, capped: bool
) -> Any:
    player = task.problem.players[who]
    if player.vertices.count == 1:
        still = {name: 0.0 for name in ("scale", "noise_multiplier") if name in move.open_fields}
        return replace(move, **still)
    if solver.draws_vertices(who):
        if move.scale is not None:
            return move
        at_cap = capped or noise == 0 or solver.steps < 2
        return replace(
            move,
            scale=cap(player, solver.steps, solver) if at_cap else _once(move, who, solver, task) / noise,
        )
    if move.noise_multiplier is None:
        uses = max(1, solver.rounds_of_data() if solver.batches == "full" else 1)
        multiplier = noise * math.sqrt(uses / (2.0 * price_shares(task.problem)[who]))
        move = replace(move, noise_multiplier=multiplier)
    return move if move.scale is not None else replace(move, scale=noised_scale(move, player, solver, task))


def _once(move: Any, who: Who, solver: "DualAveraging", task: Task[Game]) -> float:
    """The scale at noise 1."""
    price = move.draws * unit_price(task.problem.players[who], solver, task)
    share = price_shares(task.problem)[who]
    return share / price if is_pure(task) else math.sqrt(share / price)


def noised_scale(move: Any, player: Player, solver: "DualAveraging", task: Task[Game]) -> float:
    """The scale at which the noise of one gradient moves the logits of the first round by `NOISED_GAIN`."""
    top = NOISED_CAPS * cap(player, solver.steps, solver)
    deviation = noise_deviation(move, solver, task.public)
    return min(top, NOISED_GAIN / deviation) if deviation > 0 else top


def noise_deviation(move: Any, solver: "DualAveraging", public: Public) -> float:
    """sigma, of the noise in one released gradient."""
    size = public.n if not solver.sizes else sum(solver.sizes) / len(solver.sizes)
    return move.noise_multiplier * public.relation.factor * move.clip / size


def calibrated(
    solver: "DualAveraging", task: Task[Game], capped: frozenset[Who] = frozenset[Who]()
) -> Mapping[Who, Any]:
    """The moves whose price is the budget, or less where every player is at the cap.

    Where only one player is at the cap, the other has what is left.

    Args:
        solver: with everything set but scales and noise.
        task: what is to be solved, at which price.
        capped: players that are held at the cap.
    """
    choosing = movers(task.problem)
    still_open: list[Who] = [who for who in choosing if who not in capped and _is_open(solver.moves()[who])]
    if not still_open or not task.is_private or solver.steps < 2:
        return at_noise(solver, task, 0.0, capped)
    noise = calibrate(
        lambda level: solver.moving(at_noise(solver, task, level, capped)).event(task.public),
        task.budget,
        task.public.relation,
    )
    drawing: list[Who] = [who for who in still_open if solver.draws_vertices(who)]
    over: list[Who] = [
        who
        for who in drawing
        if _once(solver.moves()[who], who, solver, task) / noise > cap(choosing[who], solver.steps, solver)
    ]
    return calibrated(solver, task, capped | set(over)) if over else at_noise(solver, task, noise, capped)


def _is_open(move: Any) -> bool:
    """Whether what sets the price is."""
    return ("scale" if hasattr(move, "draws") else "noise_multiplier") in move.open_fields


def price(solver: "DualAveraging", task: Task[Game]) -> float:
    """The epsilon of a configured solver at the budget's delta."""
    return accounting.epsilon(solver.event(task.public), task.budget.delta, task.public.relation)
