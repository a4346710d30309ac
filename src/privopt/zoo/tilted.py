"""Objectives F that every record x tilts: losses `F(w) + <x, w>`, with records that cancel in the mean.

The records are pairs of opposite vectors, so the mean loss is F exactly whatever they are, while every record still has
a gradient of its own to hide.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from privopt.later import Array, Float, jnp
from privopt.problems.glm import RecordLoss
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.zoo.problem import Records, Vector, ZooProblem, require_dimension, require_positive, vector


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


# ---- A bowl with waves: not convex, and yet every stationary point is the minimum --------------------------


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


# ---- A flat direction beside curved ones: what momentum, phases and adaptive noise are tempted by ----------


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


# ---- A power of the norm: the KL condition with equality everywhere, for every exponent --------------------


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


# ---- A factorisation of rank one: not convex, and well conditioned near a factor ---------------------------


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
