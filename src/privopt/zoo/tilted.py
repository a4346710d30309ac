"""Objectives F that every record x tilts: losses `F(w) + <x, w>`, with records that cancel in the mean.

The records are pairs of opposite vectors, so the mean loss is F exactly whatever they are, while every record still has
a gradient of its own to hide.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike

from privopt.problems.glm import RecordLoss
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.zoo.problem import Records, Vector, ZooProblem


class TiltedLoss(ABC):
    """`F(w) + <x, w>`, where `untilted` is F."""

    @abstractmethod
    def untilted(self, params: Float[Array, " d"]) -> Float[Array, ""]:
        """F at some parameters."""

    def __call__(
        self, params: Float[Array, " d"], features: Float[Array, " d"], target: Float[Array, ""]
    ) -> Float[Array, ""]:
        """The loss of one record; the target plays no part."""
        del target
        return self.untilted(params) + jnp.sum(features * params)


def power_of_root(square: Float[Array, ""], p: float) -> Float[Array, ""]:
    """`square^(p / 2)` for p > 1, with derivative 0 where the square is 0: that of a power below 2 is not finite."""
    away = square > 0.0
    return jnp.where(away, jnp.where(away, square, 1.0) ** (p / 2.0), 0.0)


def tilted_problem(
    *,
    name: str,
    loss: RecordLoss,
    growth: KL,
    start: Vector,
    region: str,
    minimiser: Vector,
    noise: float,
    objective: Callable[[ArrayLike], float],
    gradient: Callable[[ArrayLike], Vector],
) -> ZooProblem:
    """The problem of minimising an F with least value 0, without constraints.

    Args:
        name: the problem and its parameters.
        loss: a `TiltedLoss`, with the bounds of one record's gradient and curvature on the region.
        growth: of F on the region.
        start: where the constants suppose that a run begins.
        region: where the constants hold, in words.
        minimiser: where F is 0.
        noise: the norm of the records.
        objective: F.
        gradient: the gradient of F.
    """
    return ZooProblem(
        name=name,
        problem=Problem(loss, growth=growth),
        start=start,
        region=region,
        lipschitz=loss.lipschitz,
        smoothness=loss.curvature,
        minimum=0.0,
        minimiser=minimiser,
        row_bound=noise,
        round=1,
        objective=objective,
        gradient=gradient,
        excess_of=objective,
        records_of=_antipodal_records(len(start), noise),
    )


def _antipodal_records(d: int, radius: float) -> Records:
    """Pairs of opposite vectors of norm `radius` in d dimensions, and one zero record where n is odd."""

    def records(n: int, seed: int) -> tuple[Vector, Vector]:
        directions = np.random.default_rng(seed).standard_normal((n // 2, d))
        lengths = np.linalg.norm(directions, axis=1, keepdims=True)
        half = directions * (radius * (1.0 - 1e-7) / lengths)  # inside the bound in float32 too
        return np.concatenate([half, -half, np.zeros((n % 2, d))]), np.zeros(n)

    return records
