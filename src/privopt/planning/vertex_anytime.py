"""Defaults and forecast of vertex-anytime.

Steps come from the preset of Frank-Wolfe, T_FW of `vertex_methods`: twice as many with all units at every step, between
10 and 60 in one pass. The bound is Theorem B of `solvers.vertex_anytime` with its regret worked out. It takes every
gradient for as harmful as it can be, and temperatures are higher than would make it least, so that it seldom says more
than the start does; what is predicted is what was typical. Utility only.
"""

import math
from typing import Any

from privopt.planning import mirror_geometry, vertex_methods
from privopt.planning.balanced_batches import balanced_sizes
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.notices import NOISE_IS_OFF
from privopt.planning.plan import Bound

FEWEST_OF_ONE_PASS, MOST_OF_ONE_PASS = 10, 60
# Of a step. On generated signs and randhie's parities, epsilon 0.5 to 3, with all units and in one pass, 4 were better
# than 1 in 10 of 12 cells and little worse in two; 8 and 16 were no better on the whole.
DRAWS = 4
TYPICAL, TYPICAL_OF_ONE_PASS = 0.06, 0.1  # see `vertex_methods.typical`
REGRET = 1.42  # of the second term, for every T; its limit is 4/3


def default_steps(solver: Any, instance: Instance) -> int:
    """T: 2 T_FW, or T_FW between 10 and 60 and no more than there are blocks of two units."""
    fit = instance.public.n // 2 + 1
    if not instance.is_private:
        return min(MOST_OF_ONE_PASS, fit) if solver.single_pass else mirror_geometry.NOISELESS_STEPS
    steps = vertex_methods.frank_wolfe_steps(instance, solver.vertices.count)
    if not solver.single_pass:
        return 2 * steps
    return min(max(steps, FEWEST_OF_ONE_PASS), MOST_OF_ONE_PASS, fit)


def default_draws(solver: Any, instance: Instance) -> int:
    """K: 4, or 1 without noise and for a pure epsilon, which every draw takes its part of."""
    del solver
    return DRAWS if instance.is_private and instance.budget.delta > 0.0 else 1


DEFAULTS = {**vertex_methods.DEFAULTS, "steps": default_steps, "draws": default_draws}


def batch_sizes(n: int, steps: int) -> tuple[int, ...]:
    """The units of each step but the last, whose gradient is not used: what makes all batches cost about the same."""
    return balanced_sizes(need(steps), n)


def need(steps: int) -> list[float]:
    """sqrt(U2_r) of each item r: what one of its units moves all later scores by, were the batch one unit.

    U2_r = sum over t > r of (sqrt(t) w_r / W_{t-1})^2, with w_r = r + 1 and W_{t-1} = t (t + 1) / 2.
    """
    moved = [4.0 / (t * (t + 1.0) ** 2) for t in range(1, steps)]
    return [(r + 1.0) * math.sqrt(math.fsum(moved[r:])) for r in range(steps - 1)]


def inverse_temperature(solver: Any, instance: Instance, rho: float, draws: int) -> float:
    """s of beta_t = s sqrt(t), in one over the unit of slopes.

    Args:
        solver: with vertices, clip and steps.
        instance: what is public.
        rho: what all draws may cost.
        draws: K.
    """
    public, steps = instance.public, solver.steps
    moved = 2.0 * public.relation.factor * vertex_methods.half_range(solver) / public.n
    spread = math.fsum(need(steps)) if solver.single_pass else math.sqrt(steps * (steps - 1) / 2.0)
    return math.sqrt(8.0 * rho / draws) / (moved * spread)


def expected_gap(solver: Any, instance: Instance, rho: float, draws: int) -> float:
    """log m / (s sqrt T) + 1.42 s L^2 / sqrt T + 16 L1 R^2 / (K T), L the half-range: Theorem B; see there."""
    rough = 16.0 * vertex_methods.curvature(solver, instance) / (draws * max(solver.steps, 1))
    if solver.steps < 2 or math.isinf(rho):
        return rough
    s = inverse_temperature(solver, instance, rho, draws)
    regret = vertex_methods.log_count(solver.vertices.count) / s
    regret += REGRET * s * vertex_methods.half_range(solver) ** 2
    return regret / math.sqrt(solver.steps) + rough


def forecast(solver: Any, instance: Instance) -> Forecast:
    """What is typical, the bound where it says anything, and what to note."""
    notices = vertex_methods.missing_bound(solver, instance)
    if solver.steps == 1:
        notices += ("one step draws a vertex before any data was looked at: give it 10 steps or more.",)
    bound = expected_gap(solver, instance, vertex_methods.spent(solver), solver.draws)
    if not instance.is_private or solver.noise_multiplier == 0 or solver.still or solver.steps == 1:
        notices += () if instance.is_private else (NOISE_IS_OFF,)
        return Forecast(
            excess=instance.capped(bound),
            meaning="what Frank-Wolfe leaves after so many steps; pessimistic",
            notices=notices,
        )
    usual = TYPICAL_OF_ONE_PASS if solver.single_pass else TYPICAL
    return Forecast(
        excess=instance.capped(vertex_methods.typical(solver, instance, usual)),
        meaning=vertex_methods.TYPICAL_MEANING,
        bound=_stated(solver, instance, bound),
        notices=notices,
    )


def _stated(solver: Any, instance: Instance, mean: float) -> Bound | None:
    """What Markov's inequality makes of Theorem B, where it is below what the start leaves."""
    if solver.single_pass or not 2.0 * mean < (instance.loss_at_zero or 0.0):
        return None
    return Bound(
        value=2.0 * mean,
        probability=0.5,
        condition="the loss is convex and no gradient is longer than the clip",
    )
