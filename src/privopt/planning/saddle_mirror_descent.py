"""Schedules, defaults and forecast of mirror descent by sampled vertices. Utility only: the ledger states the price."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from privopt.ledger import accounting
from privopt.ledger.calibration import calibrate
from privopt.mechanisms.vertex_sampler import VertexSampler
from privopt.planning import game_forecast
from privopt.planning.balanced_batches import FEWEST, balanced_sizes
from privopt.planning.forecast import Forecast
from privopt.planning.plan import Bound
from privopt.planning.sampled_dual_averaging import is_pure, movers, price_shares, total_price
from privopt.planning.task import Task
from privopt.problems.saddle import Game, Player, Who
from privopt.public import Public

MOST_STEPS = 600


@dataclass(frozen=True)
class Schedule:
    """Which batch serves which step.

    Attributes:
        sizes: of the disjoint batches; empty where every step asks all units.
        served: by item, the number of its batch; as many items as there are steps but the last.
    """

    sizes: tuple[int, ...]
    served: tuple[int, ...]

    @property
    def participation(self) -> tuple[tuple[int, ...], ...] | None:
        """The items of each batch's units; None where every unit is in every item."""
        if not self.sizes:
            return None
        uses: list[list[int]] = [[] for _ in self.sizes]
        for item, batch in enumerate(self.served):
            uses[batch].append(item)
        return tuple(tuple(items) for items in uses)


def schedule(name: str, steps: int, epochs: int, n: int) -> Schedule:
    """The batches of a schedule for n units.

    Args:
        name: "paper" (T batches, the last for nothing), "single" (T - 1), "decreasing" (T - 1 that cost the same),
            "epochs" (T / epochs batches, each in so many steps) or "full".
        steps: T, at least 1.
        epochs: how often a batch serves in "epochs".
        n: the public number of units.
    Raises:
        ValueError: there are too few units.
    """
    items = steps - 1
    if name == "full" or items == 0:
        return Schedule((), tuple(range(items)))
    if name == "decreasing":
        return Schedule(
            balanced_sizes([math.sqrt(steps - r) for r in range(1, steps)], n), tuple(range(items))
        )
    parts = {"paper": steps, "single": items, "epochs": max(1, steps // epochs)}[name]
    kept = min(parts, items)
    if n // parts < FEWEST:
        raise ValueError(
            f"{parts} batches of at least {FEWEST} units need more than n = {n} units: take fewer steps, or full "
            "batches."
        )
    return Schedule((n // parts,) * kept, tuple(item % kept for item in range(items)))


def sampler(player: Player, solver: Any, step: float, public: Public) -> VertexSampler:
    """One player's draws: softmax of minus `step` times the sum of the gradients so far."""
    plan = schedule(solver.schedule, solver.steps, solver.epochs, public.n)
    sizes = [plan.sizes[batch] if plan.sizes else public.n for batch in plan.served]
    return VertexSampler.weighted_average(
        step_weights=[1.0] * len(sizes),
        inverse_temperatures=[step * t for t in range(solver.steps)],
        draws=solver.draws + (solver.output == "fresh"),
        half_range=player.half_range,
        sensitivities=[public.relation.factor * 2.0 * player.half_range / size for size in sizes],
        participation=plan.participation,
    )


def uses(name: str, steps: int, epochs: int) -> float:
    """sum over draws of (what a unit weighs in the sum of gradients, times n)^2: rho = this (2 c L tau / n)^2 / 8."""
    if name == "full":
        return (steps - 1) * steps * (2 * steps - 1) / 6.0
    if name == "paper":
        return (steps - 1) * steps**2
    if name == "single":
        return (steps - 1) ** 3
    if name == "decreasing":
        return sum(math.sqrt(j) for j in range(1, steps)) ** 2
    return steps**3 * (1.0 + 1.0 / epochs) * (1.0 + 0.5 / epochs) / 3.0


def paper_step(steps: int, draws: int, half_range: float, n: int, epsilon: float, delta: float) -> float:
    """The step of the paper: B epsilon / (16 L sqrt(T (K + 1) log(1 / delta))), B = n / T."""
    return n / steps * epsilon / (16.0 * half_range * math.sqrt(steps * (draws + 1) * math.log(1.0 / delta)))


def largest_step(player: Player, game: Game, steps: int) -> float:
    """sqrt(2 l / (5 T)) / L, l = log m_x + log m_y: more helps no bound."""
    return math.sqrt(2.0 * _logs(game) / (5.0 * max(steps, 1))) / player.half_range


def _logs(game: Game) -> float:
    return sum(math.log(player.vertices.count) for player in movers(game).values())


def affordable_step(who: Who, solver: Any, task: Task[Game], steps: int, draws: int) -> float:
    """About the step that a player's share pays for."""
    player = task.problem.players[who]
    unit = 2.0 * task.public.relation.factor * player.half_range / task.public.n
    released = draws + (solver.output == "fresh")
    share = price_shares(task.problem)[who] * total_price(task)
    if is_pure(task):  # the ranges add up instead of their squares: at most by Cauchy and Schwarz
        spent = math.sqrt(max(steps - 1, 1) * uses(solver.schedule, max(steps, 2), solver.epochs))
        return share / (released * unit * spent)
    return math.sqrt(8.0 * share / (released * uses(solver.schedule, max(steps, 2), solver.epochs))) / unit


def bound(solver: Any, task: Task[Game], steps: int, draws: int, step: dict[Who, float]) -> float:
    """The bound of the paper's Theorem 3.1 with its constants put right; of Theorem A for played averages."""
    game, total = task.problem, 0.0
    if steps < 2:
        return game_forecast.trivial_gap(game)
    for who, player in movers(game).items():
        logs, length, tau = math.log(player.vertices.count), player.half_range, step[who]
        if tau == 0:
            return game_forecast.trivial_gap(game)
        if solver.output == "played":
            total += logs / (tau * steps) + tau * length**2 / 2.0 + 4.0 * player.curvature / draws
        else:
            total += 2.0 * logs / (tau * steps) + 2.5 * tau * length**2
            total += player.curvature * (
                4.0 / steps + 4.0 * math.sqrt(_logs(game) / steps) + 22.7 / math.sqrt(draws)
            )
        if solver.schedule != "full":
            batch = task.public.n / max(steps - 1, 1)
            spread = min(4.0, 2.0 * (1.0 + math.log(2.0 * player.vertices.count)) / batch)
            total += length * math.sqrt(2.0 * logs * spread / steps)
    return total


def steps_of(solver: Any, task: Task[Game], steps: int, draws: int) -> dict[Who, float]:
    """Both players' steps, as far as they are open: affordable, and no longer than the bound wants."""
    found: dict[Who, float] = {}
    for who, player in movers(task.problem).items():
        given = solver.step_x if who == "x" else solver.step_y
        affordable = affordable_step(who, solver, task, steps, draws)
        found[who] = min(affordable, largest_step(player, task.problem, steps)) if given is None else given
    return found


def _candidates(solver: Any, task: Task[Game]) -> Iterator[tuple[int, int]]:
    """Steps and draws on a geometric grid."""
    most = MOST_STEPS if solver.schedule == "full" else min(MOST_STEPS, task.public.n // FEWEST)
    counts = [solver.steps] if solver.is_set("steps") else []
    steps = 2
    while not counts or (not solver.is_set("steps") and steps <= most):
        counts.append(steps)
        steps = max(steps + 1, round(1.25 * steps))
    whole = {max(solver.epochs, count // solver.epochs * solver.epochs) for count in counts}
    for count in sorted(whole if solver.schedule == "epochs" and not solver.is_set("steps") else counts):
        draws = 1
        while draws <= max(1, min(count, 256)):
            yield count, solver.draws if solver.is_set("draws") else draws
            draws *= 2


def best(solver: Any, task: Task[Game]) -> tuple[int, int]:
    """The steps and draws with the least bound."""
    if not movers(task.problem):
        return (2, 1)
    return min(
        _candidates(solver, task),
        key=lambda pair: bound(solver, task, *pair, steps_of(solver, task, *pair)),
    )


def default_steps(solver: Any, task: Task[Game]) -> int:
    """T."""
    return best(solver, task)[0]


def default_draws(solver: Any, task: Task[Game]) -> int:
    """K, for the steps."""
    return best(solver, task)[1]


def calibrated(solver: Any, task: Task[Game]) -> Any:
    """The solver with both steps set to the budget, or to the paper's formula.

    Args:
        solver: with everything else set.
        task: what is to be solved, at which price.
    """
    game, budget = task.problem, task.budget
    choosing = movers(game)
    still = {f"step_{who}": 0.0 for who in ("x", "y") if who not in choosing}
    solver = solver.with_(**{name: value for name, value in still.items() if not solver.is_set(name)})
    wanted: list[Who] = [who for who in choosing if not solver.is_set(f"step_{who}")]
    if not wanted:
        return solver
    if solver.calibration == "paper" and task.is_private:
        return solver.with_(
            **{
                f"step_{who}": paper_step(
                    max(solver.steps, 1),
                    solver.draws,
                    choosing[who].half_range,
                    task.public.n,
                    budget.epsilon,
                    budget.delta,
                )
                for who in wanted
            }
        )

    return _within(solver, task, wanted, frozenset[Who]())


def _within(solver: Any, task: Task[Game], wanted: list[Who], capped: frozenset[Who]) -> Any:
    """The solver with the wanted steps set to the budget, some of them as long as they may be."""
    game = task.problem
    once = {who: affordable_step(who, solver, task, solver.steps, solver.draws) for who in wanted}
    longest = {who: largest_step(game.players[who], game, solver.steps) for who in wanted}

    def at(noise: float, fixed: frozenset[Who]) -> Any:
        return solver.with_(
            **{f"step_{who}": longest[who] if who in fixed else once[who] / noise for who in wanted}
        )

    if capped >= frozenset(wanted) or not task.is_private or solver.steps < 2:
        return at(1.0, frozenset(wanted))
    noise = calibrate(lambda level: at(level, capped).event(task.public), task.budget, task.public.relation)
    over: list[Who] = [who for who in wanted if who not in capped and once[who] / noise > longest[who]]
    return _within(solver, task, wanted, capped | set(over)) if over else at(noise, capped)


def price(solver: Any, task: Task[Game]) -> float:
    """The epsilon of a configured solver at the budget's delta."""
    return accounting.epsilon(solver.event(task.public), task.budget.delta, task.public.relation)


def forecast(solver: Any, task: Task[Game]) -> Forecast:
    """The bound, and what else a user should know."""
    notices = game_forecast.game_notices(task, 0.0)
    notices += game_forecast.spending_notices(solver, task, "steps are no longer than the bound wants")
    if solver.steps < 2:
        return Forecast(meaning="nothing is learnt", notices=tuple(notices), measure=game_forecast.GAP)
    steps: dict[Who, float] = {"x": solver.step_x, "y": solver.step_y}
    return Forecast(
        meaning="only the bound; SampledDualAveraging was better on every game that was measured",
        bound=Bound(
            value=bound(solver, task, solver.steps, solver.draws, steps),
            probability=None,
            condition=(
                "if the game is convex in x and concave in y and no gradient is longer than its half-range; pessimistic"
            ),
            of=game_forecast.GAP,
        ),
        notices=tuple(notices),
        measure=game_forecast.GAP,
    )
