"""A factorisation of rank one: not convex, and well conditioned near a factor."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from privopt.problems.glm import RecordLoss
from privopt.problems.growth import KL
from privopt.zoo.problem import Vector, ZooProblem, require_dimension, require_positive, vector
from privopt.zoo.tilted import TiltedLoss, tilted_problem

# The least |grad F|^2 / (2 F) where |u - v| <= r, |v| = 1: a function of the two coordinates of u in the plane of u and
# v, minimised numerically and rounded down. For r = 1/2 it is 2 (1 - r)^2 exactly.
FACTORISATION_MU = {0.1: 0.980049, 0.25: 0.876943, 0.5: 0.5}


@dataclass(frozen=True)
class FactorisationLoss(TiltedLoss):
    """`|u u' - v v'|_F^2 / 4 + <x, u>` with v the first unit vector, by `|u|^4 - 2 <u, v>^2 + 1`."""

    def untilted(self, params: Float[Array, " d"]) -> Float[Array, ""]:
        """Without the tilt of a record."""
        square = jnp.sum(params * params)
        return 0.25 * (square * square - 2.0 * params[0] ** 2 + 1.0)


def factorisation(radius: float = 0.25, d: int = 10, *, noise: float = 1.0) -> ZooProblem:
    """F(u) = |u u' - v v'|_F^2 / 4 from a start at distance `radius` of v = (1, 0, ..., 0), at a right angle to it.

    kappa = 2 with mu = 0.98, 0.877 or 0.5 for the radius 0.1, 0.25 or 0.5; curvature at most 3 (1 + r)^2 - 1.

    Args:
        radius: r, one of 0.1, 0.25 and 0.5; the constants hold on the ball of this radius around v.
        d: the number of parameters, at least 2.
        noise: R, the norm of the records, which cancel in the mean.
    Raises:
        ValueError: a parameter is out of its range.
    """
    require_dimension(d - 1)
    require_positive("noise", noise, "the norm of a record")
    if radius not in FACTORISATION_MU:
        raise ValueError(
            f"radius must be one of {sorted(FACTORISATION_MU)}, got {radius!r}: mu is known there."
        )
    factor = np.zeros(d)
    factor[0] = 1.0
    start = factor.copy()
    start[1] = radius

    def objective(params: ArrayLike) -> float:
        point = vector(params)
        along, rest = point[0], float(np.sum(point[1:] ** 2))
        # (|u|^2 - 1)^2 + 2 |u|^2 - 2 <u, v>^2: sums of squares, no cancellation at the minimum
        past = (along - 1.0) * (along + 1.0) + rest
        return float(0.25 * (past * past + 2.0 * rest))

    def gradient(params: ArrayLike) -> Vector:
        point = vector(params)
        along, rest = point[0], point[1:]
        across = float(np.sum(rest**2))
        return np.concatenate(
            [[along * ((along - 1.0) * (along + 1.0) + across)], rest * (along**2 + across)]
        )

    # The curvature is at most 3 |u|^2 - 1 away from 1, the gradient its integral along the way from v.
    lipschitz = (1.0 + radius) * ((1.0 + radius) ** 2 - 1.0) + noise
    smoothness = 3.0 * (1.0 + radius) ** 2 - 1.0
    loss = RecordLoss(FactorisationLoss(), name="factorisation", lipschitz=lipschitz, curvature=smoothness)
    growth = KL.of_strong_convexity(FACTORISATION_MU[radius], gap=objective(start))
    return tilted_problem(
        name=f"factorisation(radius={radius:g}, d={d})",
        loss=loss,
        growth=growth,
        start=start,
        region=f"|u - v| <= {radius:g}",
        minimiser=factor,
        noise=noise,
        objective=objective,
        gradient=gradient,
    )
