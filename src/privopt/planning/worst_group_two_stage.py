"""Defaults and forecast of the two stages for the worst group on an l1 ball. Utility only.

Chosen on generated records (n = 20000, d = 600, epsilon 1): 20 selections, gradients balanced within 1.5 times the
steepest slope times the largest entry, 60 % of the budget for the selections and the weights beside them, then descent
on the columns that were selected.
"""

import math
from dataclasses import replace
from typing import Any

from privopt.ledger.gaussian_dp import part_of
from privopt.planning import worst_group_descent
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.planning.notices import NOISE_IS_OFF, large_delta
from privopt.problems.constraints import Box, Constraint, L1Ball, Product
from privopt.problems.problem import Problem
from privopt.problems.regularisers import NoRegulariser
from privopt.public import Public

SELECTION_STEPS, NOISELESS_STEPS = 20, 60
SELECTION_SHARE = 0.6


def selection_steps(solver: Any, instance: Instance) -> int:
    """How many columns are selected; some more than once."""
    del solver
    return SELECTION_STEPS if instance.is_private else NOISELESS_STEPS


def clip(solver: Any, instance: Instance) -> float:
    """C_inf: 1.5 times the steepest slope times the largest entry; infinite with the noise off."""
    if not instance.is_private:
        return math.inf
    return worst_group_descent.CLIP_SHARE * _slope(instance) * solver.entry_bound


def entry_bound(solver: Any, instance: Instance) -> float:
    """The largest entry of rows that fill their ball, R / sqrt(d); a guess where the rows are others."""
    del solver
    return instance.public.row_bound / math.sqrt(instance.public.d)


DEFAULTS = {
    "selection_steps": selection_steps,
    "entry_bound": entry_bound,
    "clip": clip,
    "group_share": worst_group_descent.group_share,
    "shares_share": worst_group_descent.shares_share,
}


def inner_instance(solver: Any, instance: Instance) -> Instance:
    """What the second stage plans for: as many columns as were selected at most, and its share of the budget."""
    width = min(solver.selection_steps + 1, instance.public.d)
    constraint = restricted(instance.problem.constraint, width, width)
    bound = solver.entry_bound * math.sqrt(width)
    return Instance(
        replace(instance.problem, constraint=constraint),
        replace(instance.public, d=width, row_bound=bound, sparse=False, row_entries=None),
        part_of(instance.budget, 1.0 - solver.selection_share),
    )


def ball_of(constraint: Constraint) -> tuple[L1Ball, int | None] | None:
    """The l1 ball, and how many of the first columns it holds (None for all); None for other sets."""
    if isinstance(constraint, L1Ball):
        return constraint, None
    if isinstance(constraint, Product) and len(constraint.parts) == 2:
        (first, size), (second, _) = constraint.parts
        if isinstance(first, L1Ball) and isinstance(second, Box):
            return first, size
    return None


def restricted(constraint: Constraint, selected: int, kept: int) -> Constraint:
    """The set of `kept` columns, of which the first `selected` are of the ball."""
    if isinstance(constraint, Product) and selected < kept:
        (ball, _), (box, _) = constraint.parts
        return Product(((ball, selected), (box, kept - selected)))
    found = ball_of(constraint)
    assert found is not None
    return found[0]


def obstacle(problem: Problem, public: Public) -> str | None:
    """An l1 ball, perhaps with an intercept beside it, and no penalty."""
    found = worst_group_descent.obstacle(problem, public)
    if found is not None:
        return found
    if ball_of(problem.constraint) is None:
        return (
            "its first stage moves between vertices of an l1 ball: use L1Ball(radius), or Product with a box"
        )
    if not isinstance(problem.regulariser, NoRegulariser):
        return "there is a penalty beside the l1 ball"
    return None


def forecast(solver: Any, instance: Instance) -> Forecast:
    """The notices of the second stage."""
    if not instance.is_private:
        return Forecast(meaning="no formula for the worst group", notices=(NOISE_IS_OFF,))
    return Forecast(
        meaning="no formula for the worst group",
        notices=large_delta(instance) + worst_group_descent.notices(solver.inner, instance),
    )


def _slope(instance: Instance) -> float:
    slope = worst_group_descent.grouped(instance.problem).lipschitz
    return slope if math.isfinite(slope) else 1.0
