"""A flat direction beside curved ones: what momentum, phases and adaptive noise are tempted by."""

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
class ValleyLoss(TiltedLoss):
    """`|w_1|^p / p + (h / 2) |w_rest|^2 + <x, w>`."""

    p: float
    curvature: float

    def untilted(self, params: Float[Array, " d"]) -> Float[Array, ""]:
        """Without the tilt of a record."""
        along, rest = power_of_root(params[0] ** 2, self.p), params[1:]
        return along / self.p + 0.5 * self.curvature * jnp.sum(rest * rest)


def valley(
    p: float = 4.0,
    d: int = 10,
    *,
    curvature: float = 1.0,
    length: float = 1.0,
    width: float = 1.0,
    noise: float = 1.0,
) -> ZooProblem:
    """F(w) = |w_1|^p / p + (h/2) |w_rest|^2 from w_1 = `length` and |w_rest| = `width`.

    kappa = p / (p - 1) of the flat direction, and `gamma^kappa = 2^(1 - kappa/2) max(1/p, (2 h)^(-kappa/2) Q^(1 -
    kappa/2))` where the quadratic part is at most Q.

    Args:
        p: the exponent along the valley, at least 2.
        d: the number of parameters, at least 2.
        curvature: h, across the valley.
        length: w_1 at the start; the constants hold where |w_1| is at most that.
        width: |w_rest| at the start; the constants hold where |w_rest| is at most that.
        noise: R, the norm of the records, which cancel in the mean.
    Raises:
        ValueError: a parameter is out of its range.
    """
    require_dimension(d - 1)
    for name, number, meaning in (
        ("curvature", curvature, "the curvature across the valley"),
        ("length", length, "the first coordinate of the start"),
        ("width", width, "the norm of the other coordinates of the start"),
        ("noise", noise, "the norm of a record"),
    ):
        require_positive(name, number, meaning)
    if not 2.0 <= p < math.inf:
        raise ValueError(f"p must be at least 2 and finite, got {p!r}: the valley would be sharp, not flat.")
    kappa, most = p / (p - 1.0), 0.5 * curvature * width**2
    across = (2.0 * curvature) ** (-kappa / 2.0) * most ** (1.0 - kappa / 2.0)
    gamma = (2.0 ** (1.0 - kappa / 2.0) * max(1.0 / p, across)) ** (1.0 / kappa)
    lipschitz = math.hypot(length ** (p - 1.0), curvature * width) + noise
    smoothness = max((p - 1.0) * length ** (p - 2.0), curvature)

    def objective(params: ArrayLike) -> float:
        point = vector(params)
        return float(abs(point[0]) ** p / p + 0.5 * curvature * np.sum(point[1:] ** 2))

    def gradient(params: ArrayLike) -> Vector:
        point = vector(params)
        along = np.sign(point[0]) * abs(point[0]) ** (p - 1.0)
        return np.concatenate([[along], curvature * point[1:]])

    start = np.full(d, width / math.sqrt(d - 1))
    start[0] = length
    loss = RecordLoss(
        ValleyLoss(p, curvature), name=f"valley {p:g}", lipschitz=lipschitz, curvature=smoothness
    )
    return tilted_problem(
        name=f"valley(p={p:g}, d={d})",
        loss=loss,
        growth=KL(gamma=gamma, kappa=kappa, gap=objective(start)),
        start=start,
        region=f"|w_1| <= {length:g} and |w_rest| <= {width:g}",
        minimiser=np.zeros(d),
        noise=noise,
        objective=objective,
        gradient=gradient,
    )
