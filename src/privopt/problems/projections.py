"""Euclidean projections onto balls and simplices: exact, and stable for huge points.

A matrix is projected as the vector of its entries.
"""

from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from privopt.problems.norms import scale_of

Bracket: TypeAlias = tuple[Float[Array, ""], Float[Array, ""], Int[Array, ""]]  # low, high, halvings


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
