"""Uniform balls: how smooth an average over one is, and random points and directions of one. Public mathematics.

The average of an L-Lipschitz function over the ball of radius alpha around x is differentiable in x, with gradient
Lipschitz constant `smoothing_constant(d) L / alpha`. Random keys are those of `jax.random`.

Source:
    Kornowski, Liu, Talwar 2024, section 2 (ball averages), with exact constants in place of orders of magnitude.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import ArrayLike, NDArray
from scipy import special

_NODES = 64
_DEVIATIONS = 9.0  # beyond which nothing of a coordinate's law is left in double precision
_PROPOSALS = 8  # of a point of a lune; the last one serves where none is accepted


def smoothing_constant(dimension: int) -> float:
    """kappa_d: the gradient of a ball average of an L-Lipschitz function is `kappa_d L / radius`-Lipschitz; tight.

    It is `2 Gamma(d/2 + 1) / (sqrt(pi) Gamma((d + 1)/2))`, 1 for d = 1 and at most sqrt(d).

    Raises:
        ValueError: the dimension is below 1.
    """
    if dimension < 1:
        raise ValueError(f"a ball has a dimension of at least 1, got {dimension}.")
    logarithm = math.lgamma(dimension / 2 + 1) - math.lgamma((dimension + 1) / 2)
    return 2.0 * math.exp(logarithm) / math.sqrt(math.pi)


def moved_share(distance: ArrayLike, radius: float, dimension: int) -> NDArray[np.float64]:
    """p(r): the share of a ball that is outside of an equal ball whose centre is `distance` away.

    Gradients of ball averages at the two centres differ by at most `2 L p(r) <= kappa_d L r / radius`.

    Args:
        distance: r, at least 0.
        radius: of the balls, positive.
        dimension: d, at least 1.
    """
    half = np.minimum(1.0, np.asarray(distance, np.float64) / (2.0 * radius))
    return np.asarray(special.betainc(0.5, (dimension + 1) / 2, half * half))


def first_coordinate_cdf(position: Any, dimension: int) -> Array:
    """P(T <= t) for the first coordinate T of a uniform point of the unit ball; pure JAX, elementwise.

    With t = sin(u) it is 1/2 plus the integral of cos^d from 0 to u over that from -pi/2 to pi/2, here by a fixed
    number of nodes. JAX's `betainc` goes on until the slowest of all its arguments has converged: the last bits of one,
    and the running time, would follow the others.
    """
    inside = jnp.clip(jnp.asarray(position, float), -1.0, 1.0)
    nodes, weights = _legendre()
    furthest = min(math.pi / 2, _DEVIATIONS / math.sqrt(dimension))
    end = jnp.minimum(jnp.arcsin(jnp.abs(inside)), furthest)
    along = (*(1,) * end.ndim, _NODES)  # shapes are never promoted silently
    places = jnp.expand_dims(end, -1) * nodes.reshape(along)
    part = end * jnp.sum(_cosine_power(places, dimension, jnp) * weights.reshape(along), axis=-1)
    whole = furthest * float(np.sum(_cosine_power(furthest * nodes, dimension, np) * weights))
    return 0.5 + 0.5 * jnp.sign(inside) * jnp.minimum(part / whole, 1.0)


def _cosine_power(angle: Any, power: int, xp: Any) -> Any:
    """cos(u)^d, whose rounding does not grow with d."""
    return xp.exp(power * xp.log1p(-2.0 * xp.sin(0.5 * angle) ** 2))


@functools.cache
def _legendre() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Nodes and weights of the Gauss-Legendre rule on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return 0.5 * (nodes + 1.0), 0.5 * weights


def haar_block(key: Array, rows: int, dimension: int) -> Float[Array, "rows d"]:
    """Orthonormal rows, each of them uniform on the sphere: the first rows of a Haar-distributed rotation.

    Args:
        key: public randomness.
        rows: k, from 1 to d.
        dimension: d.
    Source:
        Mezzadri 2007: QR of a Gaussian matrix, columns signed by the diagonal of R.
    """
    gaussian = jax.random.normal(key, (dimension, rows), jnp.float64)
    factor, triangle = jnp.linalg.qr(gaussian)
    signs = jnp.where(jnp.diagonal(triangle) < 0, -1.0, 1.0)
    return (factor * signs[None, :]).T


def ball_point(key: Array, dimension: int) -> Float[Array, " d"]:
    """A uniform point of the unit ball; pure JAX."""
    for_direction, for_length = jax.random.split(key)
    direction = _direction(for_direction, dimension)
    length = jax.random.uniform(for_length, (), jnp.float64) ** (1.0 / dimension)
    return length * direction


def lune_points(
    key: Array, at: Float[Array, " d"], anchor: Float[Array, " d"], radius: float
) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """(u, v): u uniform in the ball around `at` outside of the one around `anchor`, v its mirror image; pure JAX.

    With `p = moved_share(|at - anchor|, radius, d)` and h_r the ball average,
    `grad h_r(at) - grad h_r(anchor) = p E[grad h(u) - grad h(v)]`. A fixed number of proposals is drawn, the first that
    is accepted is taken, else the last: still such a pair, and the law is off by little. Equal points are returned as
    they are.

    Args:
        key: the randomness, public or of one unit.
        at: a centre.
        anchor: the other.
        radius: of both balls, positive.
    """
    dimension = at.shape[0]
    apart = at - anchor
    distance = jnp.sqrt(jnp.sum(apart * apart))
    axis = apart / jnp.where(distance > 0, distance, 1.0)
    for_across, for_length, for_test, for_place = jax.random.split(key, 4)
    if dimension == 1:
        across, lengths = jnp.zeros((1,)), jnp.zeros((_PROPOSALS,))
    else:
        drawn = jax.random.normal(for_across, (dimension,), jnp.float64)
        drawn = drawn - jnp.sum(drawn * axis) * axis
        across = drawn / jnp.maximum(jnp.sqrt(jnp.sum(drawn * drawn)), 1e-300)
        uniform = jax.random.uniform(for_length, (_PROPOSALS,), jnp.float64)
        lengths = radius * uniform ** (1.0 / (dimension - 1))
    halves = jnp.sqrt(jnp.maximum(radius * radius - lengths * lengths, 0.0))  # half a chord along the axis
    widths = jnp.minimum(distance, 2.0 * halves)  # of the part of the chord that the other ball leaves out
    tests = jax.random.uniform(for_test, (_PROPOSALS,), jnp.float64)
    accepted = tests * jnp.minimum(distance, 2.0 * radius) < widths
    first = jnp.where(jnp.any(accepted), jnp.argmax(accepted), _PROPOSALS - 1)
    along = halves[first] - jax.random.uniform(for_place, (), jnp.float64) * widths[first]
    sideways = lengths[first] * across
    inside = distance > 0
    return (
        jnp.where(inside, at + sideways + along * axis, at),
        jnp.where(inside, anchor + sideways - along * axis, anchor),
    )


def _direction(key: Array, dimension: int) -> Float[Array, " d"]:
    drawn = jax.random.normal(key, (dimension,), jnp.float64)
    return drawn / jnp.maximum(jnp.sqrt(jnp.sum(drawn * drawn)), 1e-300)
