"""A bowl with waves: not convex, and yet every stationary point is the minimum."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from privopt.problems.glm import RecordLoss
from privopt.problems.growth import KL
from privopt.zoo.problem import Vector, ZooProblem, require_dimension, require_positive, vector
from privopt.zoo.tilted import TiltedLoss, tilted_problem

SINE_MU = (
    0.1755309858797317  # the least g'(w)^2 / (2 g(w)), g = w^2 + 3 sin(w)^2, attained at w = 2.2017091764
)


@dataclass(frozen=True)
class SineLoss(TiltedLoss):
    """`sum_j w_j^2 + 3 sin(w_j)^2 + <x, w>`."""

    def untilted(self, params: Float[Array, " d"]) -> Float[Array, ""]:
        """Without the tilt of a record."""
        waves = jnp.sin(params)
        return jnp.sum(params * params + 3.0 * waves * waves)


def sine(d: int = 10, *, radius: float = 3.0, noise: float = 1.0) -> ZooProblem:
    """F(w) = sum_j w_j^2 + 3 sin(w_j)^2 from the start (radius, ..., radius), with records that add `<x, w>`.

    kappa = 2 with mu = 0.17553 (the constant 1/32 that is often quoted is loose; sums over separate coordinates keep
    it), curvature at most 8 and down to -4.

    Args:
        d: the number of parameters.
        radius: B, every coordinate of the start; the bound on gradients holds where |w_j| <= B, the rest everywhere.
        noise: R, the norm of the records, which cancel in the mean.
    Raises:
        ValueError: a parameter is out of its range.
    """
    require_dimension(d)
    require_positive("radius", radius, "every coordinate of the start")
    require_positive("noise", noise, "the norm of a record")

    def objective(params: ArrayLike) -> float:
        point = vector(params)
        return float(np.sum(point**2 + 3.0 * np.sin(point) ** 2))

    def gradient(params: ArrayLike) -> Vector:
        point = vector(params)
        return 2.0 * point + 3.0 * np.sin(2.0 * point)

    start = np.full(d, radius)
    lipschitz = math.sqrt(d) * (2.0 * radius + 3.0) + noise
    growth = KL.of_strong_convexity(SINE_MU, gap=objective(start))
    loss = RecordLoss(SineLoss(), name="sine", lipschitz=lipschitz, curvature=8.0)
    return tilted_problem(
        name=f"sine(d={d})",
        loss=loss,
        growth=growth,
        start=start,
        region=f"|w_j| <= {radius:g}",
        minimiser=np.zeros(d),
        noise=noise,
        objective=objective,
        gradient=gradient,
    )
