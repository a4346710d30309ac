"""The regularised sum of Huberised losses that objective and output perturbation minimise, from public numbers.

    J(w) = sum_i phi_c(<a_i, w>, y_i) + n sum_j lam_j w_j^2 / 2 + n r(w),   lam_j = max(own_j, ridge),

`own_j` the ridge weights of the problem's penalty and r the rest of it together with the set. Coordinates whose own
ridge is smaller get `ridge`, also those that the penalty leaves free, such as an intercept: the proofs need J to be
strongly convex in every direction.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

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
from privopt.proofs.certified_minimiser import (
    DENSE_DIMENSION,
    Composite,
    certified_minimiser,
    is_smooth,
    reachable,
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
        private_rows = max(
            self.units, private_sum.private_rows
        )  # a random block may hold more than its public number
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
