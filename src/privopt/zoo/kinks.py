"""Objectives with kinks: the largest of linear functions, and phase retrieval by absolute residuals."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from privopt.later import Array, Float, jnp
from privopt.problems.glm import RecordLoss
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.zoo.linear_models import repeated_records
from privopt.zoo.problem import Vector, ZooProblem, require_dimension, require_positive, vector
from privopt.zoo.tilted import TiltedLoss, tilted_problem


@dataclass(frozen=True)
class LargestEntryLoss(TiltedLoss):
    """`max_j |w_j| + <x, w>`."""

    def untilted(self, params: Float[Array, " d"]) -> Float[Array, ""]:
        """Without the tilt of a record."""
        return jnp.max(jnp.abs(params))


def max_linear(d: int = 10, *, radius: float = 1.0, noise: float = 1.0) -> ZooProblem:
    """F(w) = max_j |w_j|, the largest of the 2 d linear functions +-w_j, with records that add `<x, w>`.

    Convex, with a kink wherever two entries are the largest: gradients of length 1 nearly everywhere, of 1 / sqrt(d) at
    the least where entries tie. So the excess is at most `radius d |grad F|^2` where no entry is above `radius`.

    Args:
        d: the number of parameters.
        radius: B, the first entry of the start, and the largest entry in the region of the constants.
        noise: R, the norm of the records, which cancel in the mean.
    Raises:
        ValueError: a parameter is out of its range.
    """
    require_dimension(d)
    require_positive("radius", radius, "the largest entry of the start")
    require_positive("noise", noise, "the norm of a record")

    def objective(params: ArrayLike) -> float:
        return float(np.max(np.abs(vector(params))))

    def gradient(params: ArrayLike) -> Vector:
        point = vector(params)
        largest = np.abs(point) == np.max(np.abs(point))
        return np.sign(point) * largest / np.sum(largest)

    start = vector(radius * 0.9 ** np.arange(d))
    growth = KL(gamma=math.sqrt(radius * d), kappa=2.0, gap=radius)
    loss = RecordLoss(LargestEntryLoss(), name="largest entry", lipschitz=1.0 + noise, convex=True)
    return tilted_problem(
        name=f"max_linear(d={d})",
        loss=loss,
        growth=growth,
        start=start,
        region=f"|w_j| <= {radius:g}",
        minimiser=np.zeros(d),
        noise=noise,
        objective=objective,
        gradient=gradient,
    )


@dataclass(frozen=True)
class PhaseLoss:
    """`|<x, w>^2 - y|`: what is left of a measurement that has lost its sign."""

    def __call__(
        self, params: Float[Array, " d"], features: Float[Array, " d"], target: Float[Array, ""]
    ) -> Float[Array, ""]:
        """The loss of one record."""
        return jnp.abs(jnp.sum(features * params) ** 2 - target)


def phase_retrieval(
    d: int = 5, *, table: int = 100, truth_norm: float = 1.0, apart: float = 0.5, seed: int = 0
) -> ZooProblem:
    """Phase retrieval from exact measurements: F(w) = mean |<x, w>^2 - <x, w*>^2|, neither smooth nor convex.

    Two minimisers, w* and -w*, with least value 0; at 0 the gradient vanishes too. Weakly convex, and sharp around
    the minimisers, with no constant that is known in closed form. One record's gradient is at most `2 |x|^2 |w|` long.

    Args:
        d: the number of parameters.
        table: how many different records there are, more than d; rows are of norm 1.
        truth_norm: |w*|; the bound on gradients holds where |w| is at most twice that.
        apart: how far the start is from w*, in units of |w*|, below 1.
        seed: of the table.
    Raises:
        ValueError: a parameter is out of its range.
    """
    require_dimension(d)
    require_positive("truth_norm", truth_norm, "the norm of the minimiser")
    require_positive("apart", apart, "the distance of the start from w* over the norm of w*")
    if apart >= 1.0:
        raise ValueError(
            f"apart must be below 1, got {apart!r}: further off, -w* may be the nearer minimiser."
        )
    if table <= d:
        raise ValueError(f"table must be above d = {d}, got {table!r}: it is a number of records.")
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((table, d))
    features *= (1.0 - 1e-6) / np.linalg.norm(features, axis=1, keepdims=True)
    features = features.astype(np.float32).astype(np.float64)  # storage changes no record
    truth, away = rng.standard_normal((2, d))
    truth *= truth_norm / np.linalg.norm(truth)
    targets = (features @ truth) ** 2

    def objective(params: ArrayLike) -> float:
        return float(np.mean(np.abs((features @ vector(params)) ** 2 - targets)))

    def gradient(params: ArrayLike) -> Vector:
        predictions = features @ vector(params)
        return features.T @ (2.0 * predictions * np.sign(predictions**2 - targets)) / table

    loss = RecordLoss(PhaseLoss(), name="phase retrieval", lipschitz=4.0 * truth_norm, convex=False)
    return ZooProblem(
        name=f"phase_retrieval(d={d})",
        problem=Problem(loss),
        start=truth + apart * truth_norm * away / np.linalg.norm(away),
        region=f"|w| <= {2.0 * truth_norm:g}",
        lipschitz=loss.lipschitz,
        smoothness=math.inf,
        minimum=0.0,
        minimiser=truth,
        row_bound=1.0,
        round=table,
        objective=objective,
        gradient=gradient,
        excess_of=objective,
        records_of=repeated_records(features, targets),
    )
