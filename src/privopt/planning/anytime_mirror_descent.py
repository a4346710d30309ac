"""Settings of anytime mirror descent by the theory of its paper.

With m vertices, l = log m, and half the largest slope L of a record along them:

    smooth to the second order    T = n epsilon / (l sqrt(log 1/delta)), q = sqrt(T / l), K = T / q
    smooth to the first order     T = (n epsilon)^(4/5) / (l log 1/delta)^(2/5), q = sqrt(T) / l, K = T / l
    step                          tau = min(what privacy allows, sqrt(2 l / T) / L, 1 / (4 q L))

T is cut to what fits and to a multiple of q, all are at least 1. Utility only.

Source:
    Gonzalez, Guzman, Paquette 2024, Theorem 4.2 and its proof.
"""

import math
from typing import Any

from privopt.planning import vertex_methods
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.notices import NOISE_IS_OFF
from privopt.public import Public

MOST_STEPS = 2_000  # each is a look at a batch, however small
NOISELESS_STEPS = 200


def paper_steps(solver: Any, instance: Instance) -> float:
    """T of the paper, before it is cut to what fits; at least 1."""
    budget, n = instance.budget, instance.public.n
    if not instance.is_private:
        return min(NOISELESS_STEPS, n // 2 + 1)
    chance = math.log(1.0 / budget.delta) if budget.delta > 0.0 else 2.0 * math.log(n)
    logarithm = vertex_methods.log_count(solver.vertices.count)
    if solver.smooth == "second order":
        steps = n * budget.epsilon / (logarithm * math.sqrt(chance))
    else:
        steps = (n * budget.epsilon) ** 0.8 / (logarithm * chance) ** 0.4
    return max(1.0, min(steps, MOST_STEPS, n // 2 + 1))


def default_interval(solver: Any, instance: Instance) -> int:
    """q."""
    steps = paper_steps(solver, instance) if solver.steps is None else max(solver.steps, 1)
    logarithm = vertex_methods.log_count(solver.vertices.count)
    by_order = (
        math.sqrt(steps / logarithm) if solver.smooth == "second order" else math.sqrt(steps) / logarithm
    )
    return max(1, round(by_order))


def default_steps(solver: Any, instance: Instance) -> int:
    """T, a multiple of q: then the last draw is one that is made anyway."""
    steps = int(paper_steps(solver, instance))
    return max(1, steps // solver.interval) * solver.interval if steps >= solver.interval else steps


def default_draws(solver: Any, instance: Instance) -> int:
    """K."""
    del instance
    logarithm = vertex_methods.log_count(solver.vertices.count)
    by_order = solver.interval if solver.smooth == "second order" else logarithm
    return max(1, round(solver.steps / by_order))


DEFAULTS = {
    **vertex_methods.DEFAULTS,
    "interval": default_interval,
    "steps": default_steps,
    "draws": default_draws,
}


def schedule(steps: int, interval: int, draws: int) -> tuple[int, ...]:
    """How many vertices each step draws: K at the first q, at every q-th, and at the last, whose average comes out."""
    return tuple(
        draws if t <= interval or t % interval == 0 or t == steps else 0 for t in range(1, steps + 1)
    )


def batch_size(n: int, steps: int) -> int:
    """The units of each step but the last, whose gradient is not used."""
    return n // max(steps - 1, 1)


def longest_step(solver: Any) -> float:
    """What theory allows tau times L to be: min(sqrt(2 l / T), 1 / (4 q))."""
    logarithm = vertex_methods.log_count(solver.vertices.count)
    return min(math.sqrt(2.0 * logarithm / max(solver.steps, 1)), 0.25 / solver.interval)


def step_of(solver: Any, public: Public, rho: float) -> float:
    """tau times L, from what all draws cost: rho = N (2 c tau L / B)^2 / 8, N draws after the first look."""
    after = sum(schedule(solver.steps, solver.interval, solver.draws)[1:])
    batch = batch_size(public.n, solver.steps)
    return batch * math.sqrt(8.0 * rho / max(after, 1)) / (2.0 * public.relation.factor)


def least_multiplier(solver: Any, public: Public) -> float:
    """The noise multiplier with which the step is the longest that theory allows; 0 where nothing is drawn of data."""
    if solver.steps < 2 or solver.vertices.count == 1:
        return 0.0
    return step_of(solver, public, 0.5) / longest_step(solver)


def forecast(solver: Any, instance: Instance) -> Forecast:
    """log m / (tau T) + tau L^2 / 2 + 8 L1 R^2 / sqrt(K), and what to note."""
    public, notices = instance.public, (vertex_methods.WORSE_THAN_VERTEX_ANYTIME,)
    notices += vertex_methods.missing_bound(solver, instance)
    if not instance.is_private:
        notices = (NOISE_IS_OFF,)
    gap = 8.0 * vertex_methods.curvature(solver, instance) / math.sqrt(solver.draws)
    if solver.noise_multiplier > 0 and solver.steps > 1 and solver.vertices.count > 1:
        step, half = step_of(solver, public, vertex_methods.spent(solver)), vertex_methods.half_range(solver)
        gap += half * (vertex_methods.log_count(solver.vertices.count) / (step * solver.steps) + 0.5 * step)
        if solver.noise_multiplier <= least_multiplier(solver, public) * (1.0 + 1e-9):
            notices += (
                f"theory allows no step longer than {longest_step(solver):.3g} / L, which costs less than the budget: "
                "what is left is not spent.",
            )
    return Forecast(
        excess=instance.capped(gap), meaning="terms of the theory on the mean; pessimistic", notices=notices
    )
