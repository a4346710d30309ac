"""Defaults and forecast of vertex-anytime.

Steps come from the preset of Frank-Wolfe, T_FW of `vertex_methods`: twice as many with all units at every step, between
10 and 60 in one pass. The bound is Theorem B of `solvers.vertex_anytime` with its regret worked out; it takes every
gradient for as harmful as it can be and is 10 to 20 times what is seen. Utility only.
"""

import math
from typing import Any

from privopt.planning import mirror_geometry, vertex_methods
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.notices import NOISE_IS_OFF
from privopt.planning.plan import Bound

FEWEST_OF_ONE_PASS, MOST_OF_ONE_PASS = 10, 60
# Of a step. On generated signs and randhie's parities, epsilon 0.5 to 3, with all units and in one pass, 4 were better
# than 1 in 10 of 12 cells and little worse in two; 8 and 16 were no better on the whole.
DRAWS = 4
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
    wanted = need(steps)
    if not wanted:
        return ()
    low, high = 0.0, n / max(wanted)
    for _ in range(80):
        middle = 0.5 * (low + high)
        filled = sum(max(2, math.ceil(middle * one)) for one in wanted) <= n
        low, high = (middle, high) if filled else (low, middle)
    return tuple(max(2, math.ceil(low * one)) for one in wanted)


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
    """The bound, and what to note."""
    notices: tuple[str, ...] = ()
    if solver.steps == 1:
        notices = ("one step draws a vertex before any data was looked at: give it 10 steps or more.",)
    if solver.entry_bound is None and instance.public.d > 1:
        notices += (vertex_methods.NO_ENTRY_BOUND.format(instance.public.row_bound),)
    if not instance.is_private:
        notices += (NOISE_IS_OFF,)
    gap = expected_gap(solver, instance, vertex_methods.spent(solver), solver.draws)
    bound = None
    if not solver.single_pass and solver.steps > 1 and gap < (instance.loss_at_zero or math.inf):
        bound = Bound(
            value=2.0 * gap,
            probability=0.5,
            condition="the loss is convex and no gradient is longer than the clip",
        )
    return Forecast(
        excess=instance.capped(gap),
        meaning="the bound of theory on the mean, if few gradients are clipped; 10 to 20 times what is seen",
        bound=bound,
        notices=notices,
    )
