"""Euclidean projections onto balls, simplices and polytopes: exact to rounding, and stable for huge points.

A matrix is projected as the vector of its entries.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from privopt.later import Array, Bool, Float, Int, jax, jnp

Bracket: TypeAlias = tuple[Float[Array, ""], Float[Array, ""], Int[Array, ""]]  # low, high, halvings
Weights: TypeAlias = Float[Array, " m"]
Passive: TypeAlias = Bool[Array, " m"]  # which weights may be positive
FURTHEST = (
    1e6  # radii of a polytope: from further away its projection depends on the direction alone, to rounding
)


def project_l2_ball(params: Float[Array, "..."], radius: float) -> Float[Array, "..."]:
    """The nearest point with `||u||_2 <= radius`: scale down."""
    scale = jnp.maximum(scale_of(params), radius)
    direction = params / scale
    squares = jnp.sum(direction**2)
    outside = squares > (radius / scale) ** 2
    return jnp.where(outside, direction * (radius / jnp.sqrt(jnp.where(outside, squares, 1.0))), params)


def project_simplex(params: Float[Array, "..."], radius: float) -> Float[Array, "..."]:
    """The nearest point with entries >= 0 that sum to `radius`, by the sorted threshold.

    Source:
        Held, Wolfe, Crowder 1974; Duchi, Shalev-Shwartz, Singer, Chandra 2008, figure 1. Shifting by the largest
        entry changes nothing, and entries `radius` below it end at 0: hence the two guards against huge points.
    """
    flat = params.reshape(-1)
    shifted = jnp.maximum(flat - jnp.max(flat), -radius)
    descending = jnp.flip(jnp.sort(shifted))
    counts = jnp.arange(1, flat.size + 1, dtype=flat.dtype)
    thresholds = (jnp.cumsum(descending) - radius) / counts
    support = jnp.sum(descending > thresholds)
    return jnp.maximum(shifted - thresholds[support - 1], 0.0).reshape(params.shape)


def project_l1_ball(params: Float[Array, "..."], radius: float) -> Float[Array, "..."]:
    """The nearest point with `||u||_1 <= radius`: the absolute values are projected onto the simplex."""
    magnitudes = jnp.abs(params)
    on_face = jnp.sign(params) * project_simplex(magnitudes, radius)
    return jnp.where(jnp.sum(magnitudes) <= radius, params, on_face)


def project_lp_ball(params: Float[Array, "..."], radius: float, p: float) -> Float[Array, "..."]:
    """The nearest point with `||u||_p <= radius`, 1 < p <= 2, to rounding. Not differentiable.

    Outside the ball `u + c u^(p-1) = |w|` entry by entry, for the one c > 0 with `||u||_p = radius`. Divided by the
    largest entry of `|w|`, with `u = r t` for r the radius over that entry: `r t + c t^(p-1) = magnitude` and
    `||t||_p = 1`. Bisection finds c, Newton's method `s = t^(p-1)`, whose equation
    `r s^(1/(p-1)) + c s = magnitude` is convex.
    """
    scale = scale_of(params)
    magnitudes, power = jnp.abs(params) / scale, 1.0 / (p - 1.0)
    limits = jnp.finfo(params.dtype)
    relative = jnp.maximum(radius / scale, float(limits.tiny) * 2.0**20)

    def entries(c: Float[Array, ""]) -> Float[Array, "..."]:
        def newton(_: Int[Array, ""] | int, s: Float[Array, "..."]) -> Float[Array, "..."]:
            excess = relative * s**power + c * s - magnitudes
            return jnp.maximum(s - excess / (relative * power * s ** (power - 1.0) + c), 0.0)

        above = jnp.minimum((magnitudes / relative) ** (p - 1.0), magnitudes / c)
        return jax.lax.fori_loop(0, 12, newton, above) ** power

    def halve(bracket: Bracket) -> Bracket:
        low, high, count = bracket
        middle = 0.5 * (low + high)
        too_long = jnp.sum(entries(middle) ** p) > 1.0
        return jnp.where(too_long, middle, low), jnp.where(too_long, high, middle), count + 1

    def is_open(bracket: Bracket) -> Bool[Array, ""]:
        low, high, count = bracket
        return (high - low > 2.0 * float(limits.eps) * high) & (count < 64)

    inside = jnp.sum((magnitudes / relative) ** p) <= 1.0
    q = p / (p - 1.0)
    largest_c = jnp.where(inside, 1.0, jnp.sum(magnitudes**q) ** (1.0 / q))
    shortest_c = jnp.where(inside, largest_c, 0.0)
    _, c, _ = jax.lax.while_loop(is_open, halve, (shortest_c, largest_c, jnp.zeros((), int)))
    return jnp.where(inside, params, radius * jnp.sign(params) * entries(c))


def project_polytope(params: Float[Array, "..."], vertices: NDArray[np.float64]) -> Float[Array, "..."]:
    """The nearest point of the convex hull of `vertices`, one a row: a mixture of at most p + 1 of them.

    With e_i the vertices seen from the point, `min |sum_i u_i e_i|^2 + (sum_i u_i - 1)^2` over `u >= 0` is least at
    `u = s lambda`, `s = 1 / (1 + distance^2)`, for the weights lambda of the nearest point: least squares with
    non-negative weights, which its active-set method solves in finitely many steps.

    Source:
        Lawson and Hanson 1974, chapter 23 (NNLS, and its use for the point of least distance).
    """
    middle = vertices.mean(axis=0)
    radius = float(np.sqrt(np.max(np.sum((vertices - middle) ** 2, axis=1))))
    if radius == 0.0:
        return jnp.broadcast_to(jnp.asarray(middle, params.dtype), middle.shape).reshape(params.shape)
    flat, corners = params.reshape(-1), jnp.asarray((vertices - middle) / radius, params.dtype)
    away = (flat - jnp.asarray(middle, flat.dtype)) / radius
    nearest, inside = _nearest_mixture(away, corners)
    moved = jnp.asarray(middle, flat.dtype) + radius * nearest
    return jnp.where(inside, flat, moved).reshape(params.shape)


@jax.jit
def _nearest_mixture(
    away: Float[Array, " p"], corners: Float[Array, "m p"]
) -> tuple[Float[Array, " p"], Bool[Array, ""]]:
    """The nearest point in the convex hull of corners within the unit ball, and whether it is `away` itself."""
    direction = away / scale_of(away)
    too_far = l2_norm(direction) > FURTHEST / scale_of(away)
    seen_from = jnp.where(too_far, direction * (FURTHEST / l2_norm(direction)), away)
    seen = corners - seen_from[None]
    columns = jnp.concatenate([seen.T / jnp.max(jnp.abs(seen)), jnp.ones((1, len(corners)), seen.dtype)])
    weights = non_negative_least_squares(columns, jnp.zeros(len(columns), seen.dtype).at[-1].set(1.0))
    nearest = (weights / jnp.sum(weights)) @ corners
    rounding = 16.0 * float(jnp.finfo(away.dtype).eps)
    return nearest, jnp.all(jnp.abs(nearest - away) <= rounding)


def non_negative_least_squares(columns: Float[Array, "k m"], target: Float[Array, " k"]) -> Weights:
    """The u >= 0 for which |columns @ u - target| is least.

    A weight joins the passive set where the error falls most, and all weights of the set are solved for; on the way
    there the first weight that reaches 0 leaves the set. It ends when no weight promises more than rounding.

    Source:
        Lawson and Hanson 1974, algorithm 23.10.
    """
    size = columns.shape[1]
    tolerance = 32.0 * float(jnp.finfo(columns.dtype).eps)

    def solved(passive: Passive) -> Weights:
        found = jnp.linalg.lstsq(jnp.where(passive[None], columns, 0.0), target)[0]
        return jnp.where(passive, found, 0.0)

    def gains(weights: Weights) -> Weights:
        return columns.T @ (target - columns @ weights)

    def blocked(state: tuple[Weights, Passive, Weights]) -> Bool[Array, ""]:
        _, passive, aim = state
        return jnp.any(passive & (aim <= 0.0))

    def move(state: tuple[Weights, Passive, Weights]) -> tuple[Weights, Passive, Weights]:
        weights, passive, aim = state
        falling = passive & (aim <= 0.0)
        shares = jnp.where(falling, weights / jnp.where(falling, weights - aim, 1.0), jnp.inf)
        shares = jnp.where(jnp.isnan(shares), 0.0, shares)  # a weight of 0 that stays 0
        moved = weights + jnp.min(shares) * (aim - weights)
        kept = passive & (moved > 0.0) & ~(falling & (shares <= jnp.min(shares)))
        return jnp.where(kept, moved, 0.0), kept, solved(kept)

    def step(
        state: tuple[Weights, Passive, Bool[Array, ""], Int[Array, ""]],
    ) -> tuple[Weights, Passive, Bool[Array, ""], Int[Array, ""]]:
        weights, passive, _, count = state
        promised = jnp.where(passive, -jnp.inf, gains(weights))
        joined = passive.at[jnp.argmax(promised)].set(True)
        _, kept, aim = jax.lax.while_loop(blocked, move, (weights, joined, solved(joined)))
        better = jnp.sum((columns @ aim - target) ** 2) < jnp.sum((columns @ weights - target) ** 2)
        useful = (jnp.max(promised) > tolerance) & better
        return jnp.where(useful, aim, weights), jnp.where(useful, kept, passive), useful, count + 1

    def goes_on(state: tuple[Weights, Passive, Bool[Array, ""], Int[Array, ""]]) -> Bool[Array, ""]:
        return state[2] & (state[3] < 3 * size + 10)

    nothing = jnp.zeros(size, columns.dtype), jnp.zeros(size, bool), jnp.asarray(True), jnp.zeros((), int)
    return jax.lax.while_loop(goes_on, step, nothing)[0]


# ---- Norms that neither overflow nor underflow, with a derivative at 0 -------------------------------------


def scale_of(params: Float[Array, "..."]) -> Float[Array, ""]:
    """A number to divide by so that the largest entry is about 1: its size, kept away from 0 and overflow.

    XLA multiplies by the reciprocal instead of dividing, and takes subnormal numbers for 0: a vector divided by a
    number beyond 4.5e307 would be zero. The margins leave room for that: the largest entry of the quotient is at most
    2^20, and about 1 or more unless the vector is below 2^20 times the smallest normal number. It is a constant
    to differentiation: use it where the result does not depend on it.
    """
    limits, largest = jnp.finfo(params.dtype), jnp.max(jnp.abs(params), initial=0.0)
    scale = jnp.clip(largest, float(limits.tiny) * 2.0**20, float(limits.max) * 2.0**-20)
    return jax.lax.stop_gradient(scale)


def scales_of(rows: Float[Array, "rows K"]) -> Float[Array, " rows"]:
    """`scale_of` of each row, in NumPy."""
    limits, largest = np.finfo(np.float64), np.max(np.abs(rows), axis=1, initial=0.0)
    return np.clip(largest, float(limits.tiny) * 2.0**20, float(limits.max) * 2.0**-20)


def l2_norm(params: Float[Array, "..."]) -> Float[Array, ""]:
    """The Euclidean norm of all entries; its derivative at 0 is 0."""
    scale = scale_of(params)
    squares = jnp.sum((params / scale) ** 2)
    present = squares > 0.0
    return jnp.where(present, scale * jnp.sqrt(jnp.where(present, squares, 1.0)), 0.0)
