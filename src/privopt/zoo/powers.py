"""A power of the norm: the KL condition with equality everywhere, for every exponent."""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from privopt.problems.glm import RecordLoss
from privopt.problems.growth import KL
from privopt.zoo.problem import Vector, ZooProblem, require_dimension, require_positive, vector
from privopt.zoo.tilted import TiltedLoss, power_of_root, tilted_problem


@dataclass(frozen=True)
class PowerLoss(TiltedLoss):
    """`|w|^p / p + <x, w>`, differentiable at 0 for p > 1."""

    p: float

    def untilted(self, params: Float[Array, " d"]) -> Float[Array, ""]:
        """Without the tilt of a record."""
        return power_of_root(jnp.sum(params * params), self.p) / self.p


def power(p: float = 2.0, d: int = 10, *, radius: float = 1.0, noise: float = 1.0) -> ZooProblem:
    """F(w) = |w|^p / p from a start of norm `radius`, with records that add `<x, w>`, |x| <= `noise`.

    kappa = p / (p - 1) and gamma = p^(-1/kappa), with equality everywhere: 2 for p = 2 (strongly convex), 4/3 for p = 4
    (flat), 3 for p = 3/2 (sharp, not smooth at 0).

    Args:
        p: the exponent, above 1.
        d: the number of parameters.
        radius: B, the norm of the start; the constants hold on the ball of this radius around 0.
        noise: R, the norm of the records, which cancel in the mean.
    Raises:
        ValueError: a parameter is out of its range.
    """
    require_dimension(d)
    require_positive("radius", radius, "the norm of the start")
    require_positive("noise", noise, "the norm of a record")
    if not 1.0 < p < math.inf:
        raise ValueError(
            f"p must be above 1 and finite, got {p!r}: |w|^p / p has no gradient at 0 otherwise."
        )
    kappa = p / (p - 1.0)
    growth = KL(gamma=p ** (-1.0 / kappa), kappa=kappa, gap=radius**p / p)
    lipschitz = radius ** (p - 1.0) + noise
    smoothness = (p - 1.0) * radius ** (p - 2.0) if p >= 2.0 else math.inf
    loss = RecordLoss(PowerLoss(p), name=f"power {p:g}", lipschitz=lipschitz, curvature=smoothness)

    def objective(params: ArrayLike) -> float:
        return float(np.linalg.norm(vector(params)) ** p / p)

    def gradient(params: ArrayLike) -> Vector:
        point = vector(params)
        norm = float(np.linalg.norm(point))
        return point * norm ** (p - 2.0) if norm > 0.0 else np.zeros_like(point)

    return tilted_problem(
        name=f"power(p={p:g}, d={d})",
        loss=loss,
        growth=growth,
        start=np.full(d, radius / math.sqrt(d)),
        region=f"|w| <= {radius:g}",
        minimiser=np.zeros(d),
        noise=noise,
        objective=objective,
        gradient=gradient,
    )
