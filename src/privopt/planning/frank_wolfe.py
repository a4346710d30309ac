"""Defaults and forecast of Frank-Wolfe on l1 balls, simplexes, polytopes, and products of balls, simplexes and boxes.

A set is a product of parts, each with vertices of its own that are chosen among privately: an l1 ball of p parameters
has 2 p, a simplex p, and a box two a coordinate. With radii R_k (half a side of a box) and m_k vertices the gap after T
steps is about

    8 L_B / (T + 2) + (S C / n) sum_k R_k z_k log m_k,

z_k the noise multiplier of the choices of part k, which cost 1 / (2 z_k^2) each. At a given total cost the sum is least
for costs in proportion to (R_k log m_k)^(2/3), which is how a step's cost is divided. Utility only.

A refit leaves `selection_share` of the cost to the choices; see `frank_wolfe_refit` for what the rest pays for.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Array
from numpy.typing import NDArray

from privopt.ledger.zcdp import zcdp_rho_budget
from privopt.planning import mirror_geometry
from privopt.planning.forecast import Forecast
from privopt.planning.instance import Instance
from privopt.problems.constraints import Box, Constraint, L1Ball, Polytope, Product, Simplex
from privopt.problems.problem import Problem

FEW_STEPS = 10
FEWEST_STEPS, MOST_STEPS = 20, 150
STEPS_SHARE = 0.05  # of the steps that minimise the bound, whose curvature is far above what data show
# Of data that state the bound on their entries. With an intercept beside the ball a clip at 0.3 of the slope is better
# where classes are balanced or lie apart; where they are unbalanced and overlap it moves the minimiser, on the parities
# of randhie to a loss above the constant's. Estimators know neither, so they take what fails nowhere; see
# docs/algorithms/frank-wolfe.md.
SAFE_SLOPE_SHARE, SAFE_STEPS_SHARE, SAFE_MOST_STEPS = 0.6, 0.1, 500
MOST_CHOICES = 20  # a step: each further one takes budget from the others


@dataclass(frozen=True, kw_only=True)
class Part:
    """Consecutive parameters among whose vertices one choice a step is made.

    Attributes:
        start: the first of the parameters.
        size: p, how many there are.
        signed: whether the vertices are centre + R e_j and centre - R e_j, 2 p of them; else R e_j, p of them.
        radius: R.
        centre: of an interval, 0 for balls and simplexes.
    """

    start: int
    size: int
    signed: bool
    radius: float
    centre: float = 0.0

    @property
    def vertices(self) -> int:
        """m, how many there are; 1 for an interval without length."""
        return max(1, (1 + self.signed) * self.size) if self.radius > 0 else 1

    @property
    def weight(self) -> float:
        """R log m: what noise of multiplier 1 on its choices costs, in units of S C / n."""
        return self.radius * math.log(self.vertices)

    def scores(self, parameters: int) -> tuple[tuple[int, int], ...]:
        """Where its vertices stand among the scores of +e_1, ..., +e_P, -e_1, ..., -e_P, as (first, end)."""
        ups = (self.start, self.start + self.size)
        downs = (parameters + ups[0], parameters + ups[1])
        return (ups, downs) if self.signed else (ups,)


def parts(constraint: Constraint, parameters: int) -> tuple[Part, ...] | None:
    """The parts of a set of so many parameters; None if it has other parts than balls, simplexes and bounded boxes."""
    blocks = constraint.parts if isinstance(constraint, Product) else ((constraint, parameters),)
    found: list[Part] = []
    start = 0
    for block, size in blocks:
        match block:
            case L1Ball(radius):
                found.append(Part(start=start, size=size, signed=True, radius=radius))
            case Simplex(radius):
                found.append(Part(start=start, size=size, signed=False, radius=radius))
            case Box():
                lows, highs = block.bounds((size,))
                if not (np.all(np.isfinite(lows)) and np.all(np.isfinite(highs))):
                    return None
                found += [
                    Part(
                        start=start + j, size=1, signed=True, radius=(high - low) / 2, centre=(low + high) / 2
                    )
                    for j, (low, high) in enumerate(zip(lows.tolist(), highs.tolist(), strict=True))
                ]
            case _:
                return None
        start += size
    return tuple(found)


def parts_of(problem: Problem, parameters: int) -> tuple[Part, ...]:
    """The parts of a problem's set; none for a polytope, which is one choice among its vertices."""
    return parts(problem.constraint, parameters) or ()


def intervals(product: Product, params: Array) -> NDArray[np.bool_]:
    """Which parameters are an interval of their own, in their shape."""
    alone = np.zeros(params.size, np.bool_)
    for part in parts(product, params.size) or ():
        alone[part.start] |= part.signed and part.size == 1
    return alone.reshape(params.shape)


def shares_of(found: tuple[Part, ...]) -> tuple[float, ...]:
    """What each part with a choice takes of a step's cost: in proportion to (R log m)^(2/3), see the module."""
    weights = [part.weight ** (2.0 / 3.0) for part in found if part.vertices > 1]
    return tuple(weight / sum(weights) for weight in weights)


def obstacle(problem: Problem, parameters: int) -> str | None:
    """Why a set has no vertices that can be chosen among, or None if it has."""
    constraint = problem.constraint
    if not problem.regulariser.is_smooth:
        return mirror_geometry.not_smooth(problem)
    if isinstance(constraint, Polytope):
        size = len(constraint.vertices[0])
        return (
            None
            if size == parameters
            else f"its vertices have {size} entries, and there are {parameters} parameters"
        )
    found = parts(constraint, parameters)
    if found is None:
        return (
            "it moves between the vertices of an l1 ball, a simplex, a polytope, or a product of l1 balls, simplexes "
            f"and boxes, and the set is {constraint!r}: use L1Ball(radius)"
        )
    choices = len(shares_of(found))
    if not 1 <= choices <= MOST_CHOICES:
        return (
            f"it makes a choice a step for every ball, simplex and coordinate of a box, here {choices}, and takes 1 to "
            f"{MOST_CHOICES} of them: use accelerated mirror descent"
        )
    return None


def default_clip(solver: Any, instance: Instance) -> float:
    """C_inf: the slope that is clipped at times the largest entry of a row, or of half its range over a polytope."""
    if not instance.is_private:
        return math.inf
    constraint = instance.problem.constraint
    entries = mirror_geometry.largest_entry(instance, solver.entry_bound)
    if isinstance(constraint, Polytope):
        entries *= mirror_geometry.half_width(constraint)
    unsure = _states_entries(instance) and not isinstance(constraint, L1Ball)
    share = SAFE_SLOPE_SHARE if unsure else mirror_geometry.SLOPE_SHARE
    return mirror_geometry.default_slope(instance, share) * entries


def default_shares(solver: Any, instance: Instance) -> tuple[float, ...] | None:
    """How a step's cost is divided among the parts; None for one choice."""
    del solver
    shares = shares_of(parts_of(instance.problem, instance.parameters))
    return shares if len(shares) > 1 else None


def default_steps(solver: Any, instance: Instance) -> int:
    """A share of the T = (16 L_B / (k log 2p))^(2/3) that minimises 8 L_B / T + k sqrt(T) log 2p, within limits."""
    if not instance.is_private:
        return mirror_geometry.NOISELESS_STEPS
    rho = zcdp_rho_budget(instance.budget.epsilon, instance.budget.delta)
    rho *= solver.selection_share if solver.refit else 1.0
    public = instance.public
    noise = public.relation.factor * solver.clip * noise_weight(instance) / (public.n * math.sqrt(2.0 * rho))
    curvature = mirror_geometry.smoothness(instance, solver.entry_bound)
    best = (16.0 * curvature / noise) ** (2.0 / 3.0)
    share, most = (
        (SAFE_STEPS_SHARE, SAFE_MOST_STEPS) if _states_entries(instance) else (STEPS_SHARE, MOST_STEPS)
    )
    return mirror_geometry.clipped_steps(share * best, FEWEST_STEPS, most)


def _states_entries(instance: Instance) -> bool:
    """Whether the bound on entries belongs to the data, as that of features that were scaled by bounds."""
    return instance.public.entry_bound is not None


DEFAULTS = {"clip": default_clip, "shares": default_shares, "steps": default_steps}


def noise_weight(instance: Instance) -> float:
    """sum_k R_k log m_k z_k / z for the shares of a step's cost; log m for a polytope, whose scores hold its size."""
    constraint = instance.problem.constraint
    if isinstance(constraint, Polytope):
        return math.log(max(2, len(constraint.vertices)))
    chosen = [part for part in parts_of(instance.problem, instance.parameters) if part.vertices > 1]
    return sum(
        part.weight / math.sqrt(share) for part, share in zip(chosen, shares_of(tuple(chosen)), strict=True)
    )


def forecast(solver: Any, instance: Instance) -> Forecast:
    """The gap of the module, no more than the loss at zero; notices of few steps and of a missing entry bound."""
    public = instance.public
    excess = 8.0 * mirror_geometry.smoothness(instance, solver.entry_bound) / (solver.steps + 2)
    if solver.noise_multiplier > 0:
        score = public.relation.factor * solver.clip / public.n
        excess += solver.selection_multiplier * score * noise_weight(instance)
    notices: list[str] = []
    if 0 < solver.steps < FEW_STEPS:
        notices.append(
            f"{solver.steps} steps are few: the first goes all the way to a vertex, and {FEW_STEPS} or more are needed "
            "to come back."
        )
    if solver.refit:
        notices.append(
            "a refit wins where few features matter and they are weakly correlated, and can lose much where they are "
            "correlated; the prediction is for the parameters before it."
        )
    if solver.entry_bound is None and public.entry_bound is None and public.d > 1:
        notices.append(
            f"the entries of a row are bounded by the row bound {public.row_bound:.3g} only: state `entry_bound` if "
            "they are known to be smaller, since the noise is proportional to it."
        )
    return Forecast(
        excess=instance.capped(excess),
        meaning="a bound for convex losses, if few gradients are clipped; pessimistic",
        notices=tuple(notices),
    )
