"""The regularised sum of Huberised losses that objective and output perturbation minimise, from public numbers.

    J(w) = sum_i phi_c(<a_i, w>, y_i) + n sum_j lam_j w_j^2 / 2 + n r(w),   lam_j = max(own_j, ridge),

`own_j` the ridge weights of the problem's penalty and r the rest of it together with the set. Coordinates whose own
ridge is smaller get `ridge`, also those that the penalty leaves free, such as an intercept: the proofs need J to be
strongly convex in every direction. `certified_minimiser` finds its minimum, with a certificate.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privopt.later import Array, Float, jax, jnp
from privopt.problems.constraints import (
    Box,
    CentredBall,
    Constraint,
    L1Ball,
    L2Ball,
    Product,
    Simplex,
    Unconstrained,
)
from privopt.problems.losses import Huber, Logistic, Poisson, Quantile, ScalarLoss, SmoothedHinge, Squared
from privopt.problems.problem import Problem
from privopt.problems.regularisers import (
    L1,
    ElasticNet,
    GroupLasso,
    NoRegulariser,
    Ridge,
    SeparableRegulariser,
)
from privopt.proofs.huberised_sum import HuberisedSum, LossSum, gradient_rounding

Vector = NDArray[np.float64]
LEAST_CLIP = 1e-100  # so that no cap of a slope is subnormal, which is rounded too coarsely
LOSSES = (Logistic, Squared, Huber, SmoothedHinge, Quantile, Poisson)
_REGULARISERS = (NoRegulariser, Ridge, L1, ElasticNet, GroupLasso)
_SETS = (Unconstrained, L2Ball, CentredBall, L1Ball, Box, Simplex)


def obstacle(problem: Problem) -> str | None:
    """Why the proofs do not cover a problem, or None: they rest on the formulas of losses, penalties and sets.

    A loss, penalty or set of the user's own is refused: its convexity would be a claim, not a fact.
    """
    loss = problem.loss
    if loss.outputs > 1:
        return (
            f"{loss.name} has {loss.outputs} outputs, and its clipped gradient is not that of a convex loss"
        )
    if type(loss) not in LOSSES:
        known = ", ".join(kind.__name__ for kind in LOSSES)
        return f"the privacy proof needs a convex loss of the library ({known}), not {loss.name!r}"
    if not math.isfinite(loss.curvature):
        return f"the privacy proof needs a loss of bounded curvature, and {loss.name} has a kink: smooth it"
    if type(problem.regulariser) not in _REGULARISERS:
        return f"the privacy proof needs a convex penalty of the library, not {problem.regulariser!r}"
    if not _is_known(problem.constraint):
        return f"the privacy proof needs an exact projection onto a convex set, not {problem.constraint!r}"
    return None


def own_ridge(problem: Problem, d: int) -> Vector:
    """The ridge weights that the problem's penalty has already."""
    if not isinstance(problem.regulariser, SeparableRegulariser):
        return np.zeros(d)
    _, strength, weights = problem.regulariser.terms
    return strength * np.asarray(weights or (1.0,) * d, np.float64)


@dataclass(frozen=True, kw_only=True)
class HuberisedObjective:
    """J, from public numbers.

    Attributes:
        problem: loss, penalty and set; without an `obstacle`.
        ridge: the least ridge weight, on the scale of the mean.
        clip: C, of one record's gradient by v; infinite only when privacy is switched off.
        units: n.
        width: d.
        row_bound: R.
        matrix: B of w = B v; None for the identity.
    Raises:
        ValueError: the proofs do not cover the problem, or a number is out of its range.
    """

    problem: Problem
    ridge: float
    clip: float
    units: int
    width: int
    row_bound: float
    matrix: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        found = obstacle(self.problem)
        if found is not None:
            raise ValueError(f"{found}.")
        if not 0.0 <= self.ridge < math.inf:
            raise ValueError(f"the ridge must be at least 0 and finite, got {self.ridge!r}.")
        if not self.clip >= LEAST_CLIP:
            raise ValueError(
                f"clip must be positive, {LEAST_CLIP:g} at least, got {self.clip!r}: it is the largest norm of a "
                "record's gradient."
            )
        if self.matrix is not None and self.matrix.shape != (self.width, self.width):
            raise ValueError(
                f"the coordinates' matrix must have shape {(self.width, self.width)}, got {self.matrix.shape}."
            )

    @property
    def loss(self) -> ScalarLoss:
        """The loss, which has one output."""
        assert isinstance(self.problem.loss, ScalarLoss)
        return self.problem.loss

    @cached_property
    def added(self) -> Vector:
        """The ridge weights beyond the penalty's own."""
        return np.maximum(0.0, self.ridge - own_ridge(self.problem, self.width))

    @cached_property
    def strength(self) -> float:
        """lam, the least ridge weight of the mean."""
        return float(np.min(own_ridge(self.problem, self.width) + self.added))

    @property
    def modulus(self) -> float:
        """Lam = n lam, strong convexity of the sum."""
        return self.units * self.strength

    @property
    def curvature(self) -> float:
        """beta, of one record's loss: `sup phi'' R^2`."""
        return self.loss.curvature * self.row_bound**2

    @property
    def volume_shift(self) -> float:
        """c = ln(1 + beta / Lam): how much one record changes the logarithm of a volume; Lam must be positive."""
        return math.log1p(self.curvature / self.modulus)

    @cached_property
    def smoothness(self) -> float:
        """L, of the sum with its ridges."""
        ridges = own_ridge(self.problem, self.width) + self.added
        return self.units * (self.curvature + float(np.max(ridges)))

    @cached_property
    def outward(self) -> float:
        """|B^-1|: how much longer a gradient can be by w than by v."""
        return 1.0 if self.matrix is None else float(np.linalg.norm(np.linalg.inv(self.matrix), 2))

    @property
    def gradient_bound(self) -> float:
        """Of one record's clipped gradient by w."""
        return min(self.loss.lipschitz * self.row_bound, self.clip * self.outward)

    def rounding(self, length: float) -> float:
        """A bound on the error of the computed gradient of the sum at points of norm `length`."""
        ridges = 16.0 * 2.0**-53 * self.smoothness * length
        return ridges + gradient_rounding(
            units=self.units,
            width=self.width,
            gradient_bound=self.gradient_bound,
            curvature=self.curvature,
            length=length,
        )

    def tolerance(self, tilt: float) -> float:
        """tau, on the scale of the sum: a residual that double precision reaches, whatever the records.

        Args:
            tilt: the largest norm of a linear term added to J.
        """
        least = float(np.linalg.norm(np.asarray(self.problem.constraint.project(jnp.zeros(self.width)))))
        pull = self.units * self.gradient_bound + tilt
        distance = (pull + self.smoothness * least) / self.modulus + least
        at_zero = self.loss.value_at_zero
        if least == 0.0 and at_zero is not None:  # J at its minimiser is at most J at zero
            distance = min(distance, 2.0 * tilt / self.modulus + math.sqrt(2.0 * at_zero / self.strength))
        rounding = self.rounding(distance) + 16.0 * 2.0**-53 * tilt
        return reachable(
            rounding,
            condition=self.smoothness / self.modulus,
            smooth=is_smooth(self.problem),
            dense=self.width <= DENSE_DIMENSION,
        )

    def over(self, private_features: Any, private_targets: NDArray[np.float64]) -> HuberisedSum:
        """The sum of the losses of some records."""
        return HuberisedSum(self.loss, self.clip, private_features, private_targets, self.matrix)

    def ridge_gradient(self, params: Vector) -> Vector:
        """The gradient of the ridges, on the scale of the sum."""
        return self.units * (own_ridge(self.problem, self.width) + self.added) * params

    def minimiser(
        self,
        private_sum: LossSum,
        tilt: Vector,
        tolerance: float,
        most_rounds: int | None = None,
    ) -> Vector:
        """The minimiser of `J(w) + <tilt, w>`, to a subgradient of norm at most `tolerance`.

        Args:
            private_sum: of the losses of all records, as `over` makes it of rows.
            tilt: the linear term.
            tolerance: see `tolerance`.
            most_rounds: see `certified_minimiser`.
        """
        # A random block may hold more than its public number.
        private_rows = max(self.units, private_sum.private_rows)
        ridges = self.units * (own_ridge(self.problem, self.width) + self.added)
        tilted = 16.0 * 2.0**-53 * float(np.linalg.norm(tilt))
        composite = Composite(
            gradient=lambda w: private_sum.gradient(w) + self.ridge_gradient(w) + tilt,
            hessian=lambda w: private_sum.hessian(w) + np.diag(ridges),
            hessian_product=lambda w: _plus_ridge(private_sum.hessian_product(w), ridges),
            problem=replace(
                self.problem, loss=Logistic()
            ),  # only penalty and set: one compilation for all losses
            weight=float(self.units),
            smoothness=self.smoothness * private_rows / self.units,
            modulus=self.modulus,
            rounding=lambda length: self.rounding(length) * private_rows / self.units + tilted,
        )
        with np.errstate(all="ignore"):  # a warning must not depend on the data
            return certified_minimiser(composite, np.zeros(self.width), tolerance, most_rounds)


def _plus_ridge(product: Any, ridges: Vector) -> Any:
    return lambda vector: product(vector) + ridges * vector


def _is_known(constraint: Constraint) -> bool:
    if isinstance(constraint, Product):
        return type(constraint) is Product and all(_is_known(part) for part, _ in constraint.parts)
    return type(constraint) in _SETS


# ---- A minimiser, with a certificate, of a strongly convex function plus a convex one with a proximal map --
# For `F = f + r`, f strongly convex with modulus Lam and smooth with constant L, the returned w has a subgradient of F
# of norm at most the tolerance, hence lies within `tolerance / Lam` of the minimiser. Nothing here gives up: every
# round makes at least a proximal gradient step, which contracts the distance to the minimiser by `1 - Lam / L`, and
# mostly a Newton step, which is far better. How many rounds it takes depends on the data.
#
# The merit of a point w is the length of its gradient mapping, `L |w - prox(w - grad f(w) / L)|`; without r it is the
# length of the gradient. A proximal gradient step multiplies it by at most `1 - Lam / L`, since `w -> prox(w - grad
# f(w) / L)` contracts by that factor. A Newton step is taken only where it lowers the merit.
#
# Source:
#     Nesterov 2013, Gradient methods for minimizing composite functions (gradient mapping); Lee, Sun, Saunders 2014
#     (proximal Newton); O'Donoghue, Candes 2015 (restarted acceleration).
DENSE_DIMENSION = 300  # up to here the Hessian is formed
ACCELERATED_ROUNDS = 10_000  # from here on plain steps where Newton's do not help
_INNER_ROUNDS = 5_000
_INNER_ACCURACY = 1e-3
_UNPROTECTED_ACCURACY = 1e-11


@dataclass(frozen=True)
class Composite:
    """What is minimised.

    Attributes:
        gradient: of f.
        hessian: a generalised Hessian of f, (d, d).
        hessian_product: at a point, the map from v to Hessian times v.
        problem: whose non-smooth penalty and set, times `weight`, are r.
        weight: see `problem`.
        smoothness: L.
        modulus: Lam, positive.
        rounding: a bound on the error of a computed gradient at points of a given length.
    """

    gradient: Callable[[Vector], Vector]
    hessian: Callable[[Vector], NDArray[np.float64]]
    hessian_product: Callable[[Vector], Callable[[Vector], Vector]]
    problem: Problem
    weight: float
    smoothness: float
    modulus: float
    rounding: Callable[[float], float]


class Point(NamedTuple):
    """A point, the gradient there, the step's end, and its merit."""

    params: Vector
    gradient: Vector
    stepped: Vector  # prox(w - grad f(w) / L)
    merit: float


def certified_minimiser(
    composite: Composite, start: Vector, tolerance: float, most_rounds: int | None = None
) -> Vector:
    """A point with a subgradient of norm at most `tolerance`.

    Args:
        composite: what is minimised.
        start: where to begin.
        tolerance: above the rounding bound at the minimiser, see `reachable`.
        most_rounds: where to stop without a certificate, or earlier where nothing lowers the merit or it is 1e-11 of
            the first; only for results that nobody promised to protect.
    """
    smooth = is_smooth(composite.problem)
    point = _at(composite, start)
    if most_rounds is not None:
        tolerance = max(tolerance, _UNPROTECTED_ACCURACY * point.merit)
    for round_number in itertools.count():
        residual = _residual_bound(composite, point) if most_rounds is None else point.merit
        if residual <= tolerance or (most_rounds is not None and round_number >= most_rounds):
            return point.params if smooth else point.stepped
        found = None
        if smooth or len(start) <= DENSE_DIMENSION:
            found = _newton(composite, point, smooth=smooth)
        if found is None and round_number < ACCELERATED_ROUNDS:
            found = _accelerated(composite, point)
        if found is None and most_rounds is not None:
            return point.params if smooth else point.stepped
        point = _at(composite, point.stepped) if found is None else found
    raise AssertionError("the loop ends only by returning")


def _residual_bound(composite: Composite, point: Point) -> float:
    """A bound on the norm of a subgradient of F: at the point without r, at its step's end with it."""
    long = float(np.linalg.norm(point.params))
    if is_smooth(composite.problem):
        return point.merit + composite.rounding(long)
    # At u = prox(w - grad f(w) / L) a subgradient is grad f(u) - grad f(w) + L (w - u), at most 2 L |w - u| long.
    short = float(np.linalg.norm(point.stepped))
    lost = 8.0 * 2.0**-53 * composite.smoothness * (long + short)  # in the proximal map and in w - u
    return 2.0 * point.merit + composite.rounding(long) + composite.rounding(short) + lost


def is_smooth(problem: Problem) -> bool:
    """Whether there is neither a non-smooth penalty nor a set."""
    return problem.regulariser.is_smooth and isinstance(problem.constraint, Unconstrained)


def reachable(rounding: float, *, condition: float, smooth: bool, dense: bool) -> float:
    """A tolerance that double precision reaches, for a gradient off by at most `rounding`.

    After a last (proximal) Newton step a subgradient is as long as the error of the gradient before it plus that of the
    gradient after it; the rounding of w itself is below the rounding of the predictions, which the bound counts d + 8
    times. The merit is at most the length of any subgradient. Steps that lower the merit by less than a tenth are not
    taken, and the certificate adds the bound once more: 4 times the bound without r, 7 times with it (twice the merit,
    and the bound at both ends of the step), and half as much again for records at the kinks of their losses. Without
    Newton steps, proximal steps end within `rounding / Lam` of the minimiser, where the merit is at most `L / Lam`
    times the bound.

    Args:
        rounding: a bound on the error of a gradient wherever the minimiser can lie.
        condition: L / Lam.
        smooth: see `is_smooth`.
        dense: whether the dimension is at most `DENSE_DIMENSION`.
    """
    if smooth:
        return 6.0 * rounding
    return rounding * (12.0 if dense else max(12.0, 6.0 * condition))


def _at(composite: Composite, params: Vector) -> Point:
    gradient = composite.gradient(params)
    if is_smooth(composite.problem):
        stepped = params - gradient / composite.smoothness
        return Point(params, gradient, stepped, float(np.linalg.norm(gradient)))
    step = 1.0 / composite.smoothness
    stepped = np.asarray(_prox(composite.problem, params - step * gradient, step * composite.weight))
    merit = composite.smoothness * float(np.linalg.norm(params - stepped))
    return Point(params, gradient, stepped, merit)


def _newton(composite: Composite, point: Point, *, smooth: bool) -> Point | None:
    """The first of ten halved Newton steps that lowers the merit; None if none does."""
    if smooth and len(point.params) > DENSE_DIMENSION:
        direction = _conjugate_gradients(composite.hessian_product(point.params), -point.gradient)
    else:
        hessian = composite.hessian(point.params)
        if smooth:
            direction = _solved(hessian, -point.gradient)
        else:
            direction = _model_minimiser(composite, point, hessian) - point.params
    for length in 2.0 ** -np.arange(10.0):
        trial = _at(composite, point.params + length * direction)
        if trial.merit < (1.0 - 0.1 * length) * point.merit:
            return trial
    return None


def _accelerated(composite: Composite, point: Point) -> Point | None:
    """A run of accelerated proximal steps with restarts; None if it does not lower the merit."""
    condition = composite.smoothness / composite.modulus
    momentum = (math.sqrt(condition) - 1.0) / (math.sqrt(condition) + 1.0)
    step = 1.0 / composite.smoothness
    current = probe = point.stepped
    for _ in range(int(min(200.0, 10.0 + 3.0 * math.sqrt(condition)))):
        slope = composite.gradient(probe)
        moved = np.asarray(_prox(composite.problem, probe - step * slope, step * composite.weight))
        onwards = float((probe - moved) @ (moved - current)) <= 0.0
        probe = moved + (momentum if onwards else 0.0) * (moved - current)
        current = moved
    trial = _at(composite, current)
    return trial if trial.merit < (1.0 - 1.0 / condition) * point.merit else None


def _solved(hessian: NDArray[np.float64], vector: Vector) -> Vector:
    try:
        return np.asarray(np.linalg.solve(hessian, vector), np.float64)
    except np.linalg.LinAlgError:  # singular to working precision: the round falls back on a gradient step
        return np.zeros_like(vector)


def _conjugate_gradients(product: Callable[[Vector], Vector], vector: Vector) -> Vector:
    """Solve a positive definite system to a tenth of the right-hand side."""
    solution, residual = np.zeros_like(vector), vector
    direction, size = residual, float(residual @ residual)
    aim = 0.01 * size
    for _ in range(min(10 * len(vector), 1000)):
        if size <= aim:
            break
        mapped = product(direction)
        ratio = size / float(direction @ mapped)
        solution, residual = solution + ratio * direction, residual - ratio * mapped
        size, before = float(residual @ residual), size
        direction = residual + (size / before) * direction
    return solution


def _model_minimiser(composite: Composite, point: Point, hessian: NDArray[np.float64]) -> Vector:
    """The minimiser of the quadratic model of f plus r, to a part of the merit."""
    largest = float(np.linalg.norm(hessian, 2))
    aim = _INNER_ACCURACY * point.merit
    ratio = math.sqrt(min(1.0, composite.modulus / largest))
    momentum = (1.0 - ratio) / (1.0 + ratio)
    found = _model_descent(
        composite.problem,
        point.params,
        point.gradient,
        hessian,
        composite.weight,
        largest,
        momentum,
        aim,
    )
    return np.asarray(found)


@partial(jax.jit, static_argnames=("problem",))
def _prox(problem: Problem, params: Float[Array, " d"], step: float) -> Float[Array, " d"]:
    return problem.prox(params, step)


@partial(jax.jit, static_argnames=("problem",))
def _model_descent(
    problem: Problem,
    params: Float[Array, " d"],
    gradient: Float[Array, " d"],
    hessian: Float[Array, "d d"],
    weight: float,
    largest: float,
    momentum: float,
    aim: float,
) -> Float[Array, " d"]:
    """Accelerated proximal descent on `<g, u - w> + (u - w)^T H (u - w) / 2 + r(u)`."""

    def unfinished(state: tuple[Array, Array, Array, Array]) -> Array:
        _, _, size, count = state
        return (size > aim) & (count < _INNER_ROUNDS)

    def advance(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        current, probe, _, count = state
        slope = gradient + hessian @ (probe - params)
        moved = problem.prox(probe - slope / largest, weight / largest)
        size = largest * jnp.linalg.norm(probe - moved)
        return moved, moved + momentum * (moved - current), size, count + 1

    start = (params, params, jnp.asarray(jnp.inf, params.dtype), jnp.asarray(0))
    return jax.lax.while_loop(unfinished, advance, start)[0]
