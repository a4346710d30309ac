"""Settings of mirror descent and Frank-Wolfe from public quantities.

Lengths are measured in the body B of the constraint set: |.|_B is its Minkowski norm around its centre, h_B the dual
norm (the support function). With n units, S = 2 (replace-one) or 1, budget mu, clip C:

    smoothness   L_B = curvature * (largest h_B of a row)^2, plus a ridge's
    noise        s = S C / (n mu), the standard deviation of one gradient bought with the whole budget
    width        E h_B(G)^2, G standard normal: what noise costs in this geometry

All of it concerns utility only.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from privopt.planning import descent_theory
from privopt.planning.task import Instance
from privopt.problems.constraints import (
    Box,
    Constraint,
    L1Ball,
    L2Ball,
    LpBall,
    Polytope,
    Product,
    Simplex,
)
from privopt.problems.mirror_maps import MirrorMap
from privopt.problems.problem import Problem
from privopt.public import Public

if TYPE_CHECKING:
    from privopt.papers.mirror_descent import MirrorDescent
    from privopt.solvers.accelerated_mirror_descent import AcceleratedMirrorDescent

# Clip over the largest slope of the loss: most slopes are smaller, and noise grows with the clip. On four sparse
# problems at epsilon 0.3 to 3, on l1 balls, it was mostly better than 0.5 and 1, for both solvers.
SLOPE_SHARE = 0.3
SMALLEST_SMOOTHNESS = 1e-30  # of a linear loss: steps are then as long as the noise allows
NOISELESS_STEPS = 1_000  # with the noise off every step helps


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """A body with a problem on it, in the body's norm.

    Attributes:
        mirror: the mirror map.
        smoothness: L_B.
        divergence: the largest Bregman divergence from the start.
        width: E h_B(G)^2, or a bound on it.
    """

    mirror: MirrorMap
    smoothness: float
    divergence: float
    width: float


def geometry(instance: Instance, entry_bound: float | None) -> Geometry:
    """The geometry of a problem whose constraint set has a mirror map.

    Args:
        instance: the problem and what is public about the data.
        entry_bound: public bound on the entries of a row; None for what is public about the data.
    Raises:
        ValueError: the set has no mirror map.
    """
    mirror = mirror_of(instance.problem, instance.problem.parameter_shape(instance.public))
    return Geometry(
        mirror=mirror,
        smoothness=smoothness(instance, entry_bound),
        divergence=mirror.divergence_bound,
        width=mirror.support_moments[1],
    )


def mirror_of(problem: Problem, shape: tuple[int, ...]) -> MirrorMap:
    """The mirror map of a problem's constraint set, for parameters of this shape.

    Raises:
        ValueError: the set has none.
    """
    mirror = problem.constraint.mirror(shape)
    if mirror is None:
        raise ValueError(
            f"{problem.constraint!r} has no mirror map: use a bounded set, such as L1Ball(radius)."
        )
    return mirror


def smoothness(instance: Instance, entry_bound: float | None) -> float:
    """L_B, a bound (a guess for losses without one) on the objective's curvature in the norm of the body."""
    problem, public = instance.problem, instance.public
    shape, body = problem.parameter_shape(public), problem.constraint
    flatness = 1.0  # largest entry over largest norm of a row
    if not instance.has_own_loss:
        flatness = min(1.0, largest_entry(instance, entry_bound) / public.row_bound)
    loss = descent_theory.smoothness(instance) * longest(body, shape, flatness) ** 2
    ridge = instance.penalty_smoothness * longest(body, shape, 1.0) ** 2
    return max(loss + ridge, SMALLEST_SMOOTHNESS)


def longest(body: Constraint, shape: tuple[int, ...], flatness: float) -> float:
    """A bound on h_B of vectors with l2 norm at most 1 and entries at most `flatness`."""
    match body:
        case L2Ball(radius):
            return radius
        case L1Ball(radius) | Simplex(radius):
            return radius * flatness
        case LpBall(radius, p):
            # |a|_q <= |a|_2^(2/q) |a|_inf^(1 - 2/q), q = p / (p - 1) >= 2.
            return radius * flatness ** (1.0 - 2.0 * (p - 1.0) / p)
        case Box():
            low, high = body.bounds(shape)
            return min(0.5 * body.diameter_in(shape), 0.5 * flatness * float(np.sum(high - low)))
        case Polytope():
            return min(0.5 * body.diameter, flatness * half_width(body))
        case Product(parts):
            return math.hypot(*(longest(part, (size,), flatness) for part, size in parts))
        case _:
            return 0.5 * body.diameter_in(shape)


def half_width(polytope: Polytope) -> float:
    """A bound on half the range of <v_i, a> over the vertices, for any a with entries of size at most 1.

    It is max_i |v_i - c|_1, c the middle of the vertices' bounding box.
    """
    rows = polytope.matrix
    middle = (rows.min(axis=0) + rows.max(axis=0)) / 2
    return float(np.max(np.sum(np.abs(rows - middle), axis=1)))


def largest_entry(instance: Instance, entry_bound: float | None) -> float:
    """A bound on the entries of a row: the one given, or what is public about the data."""
    public = instance.public
    return public.largest_entry if entry_bound is None else min(entry_bound, public.row_bound)


def default_clip(instance: Instance) -> float:
    """C: the slope that is clipped at times the row bound; infinite with the noise off."""
    return default_slope(instance) * instance.public.row_bound if instance.is_private else math.inf


def default_slope(instance: Instance, share: float = SLOPE_SHARE) -> float:
    """The slope that is clipped at: that of gradient descent; on sets with corners this share of the loss's largest."""
    guessed = descent_theory.guess(instance).slope
    if not isinstance(instance.problem.constraint, L1Ball | Simplex | Polytope | Product):
        return guessed
    lipschitz = math.inf if instance.has_own_loss else instance.problem.loss.lipschitz
    return min(guessed, share * lipschitz)


def noise_square(
    solver: "AcceleratedMirrorDescent | MirrorDescent", instance: Instance, body: Geometry
) -> float:
    """E h_B(b)^2 of the noise b on each gradient of a solver with clip and steps; by its multiplier if that is set."""
    if not solver.is_set("noise_multiplier"):
        stddev = descent_theory.noise_of_one(instance, solver.clip) * math.sqrt(solver.steps)
    elif solver.noise_multiplier == 0:
        stddev = 0.0
    else:
        public = instance.public
        stddev = solver.noise_multiplier * public.relation.factor * solver.clip / public.n
    return stddev**2 * body.width


def clipped_steps(steps: float, fewest: int, most: int) -> int:
    """A number of steps between two limits; the larger one for anything not finite."""
    return int(np.clip(math.ceil(min(steps, float(most))) if math.isfinite(steps) else most, fewest, most))


def not_smooth(problem: Problem) -> str | None:
    """Why a penalty has no steps in a geometry of its own, or None if it has."""
    if problem.regulariser.is_smooth:
        return None
    return (
        f"{problem.regulariser!r} is not smooth, and its steps would not be exact in this geometry: use Ridge or "
        "no penalty (the constraint set already bounds the parameters), or gradient descent"
    )


def obstacle(problem: Problem, public: Public) -> str | None:
    """Why the geometry does not fit a problem, or None if it does."""
    if not problem.regulariser.is_smooth:
        return not_smooth(problem)
    if problem.constraint.mirror(problem.parameter_shape(public)) is None:
        return (
            f"it needs a bounded constraint set, and {problem.constraint!r} is not one: use L1Ball(radius) (sparse "
            "parameters), L2Ball(radius), LpBall(radius, p), Box(low, high) or Simplex()"
        )
    return None
