"""Uniform balls: how smooth an average over one is, and random points and directions of one. Public mathematics.

The average of an L-Lipschitz function over the ball of radius alpha around x is differentiable in x, with gradient
Lipschitz constant `smoothing_constant(d) L / alpha`. Random keys are those of `jax.random`.

Source:
    Kornowski, Liu, Talwar 2024, section 2 (ball averages), with exact constants in place of orders of magnitude.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special
from scipy.linalg import eigh_tridiagonal

from privopt.later import Array, Float, jax, jnp
from privopt.problems.bounded_losses import Capped
from privopt.problems.glm import GLMLoss, LossFacts, Values
from privopt.problems.pieces import Pieces

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


# ---- Averages of generalised-linear losses over a ball around the parameters, without its variance ---------
#     f_r(w) = E f(w + r z), z uniform in the unit ball of dimension d;  of phi(<a, w>, y):  E phi(<a, w> + r |a| T, y)
#
# T is the first coordinate of z, so that one record's average is an integral over one number. `reach` is r |a|. With
# `dimension=1` T is uniform on [-1, 1]: the average along the record's own row only (ridge smoothing), whose curvature
# is at most L / r whatever d; over the ball it is at most kappa_d L / r, about sqrt(2 d / pi) L / r.
#
# The average is a closed formula of the knots where phi' is piecewise linear (`pieces`), else a quadrature. A
# stationary point of the mean of losses averaged along their rows is stationary in a weaker sense than one averaged
# over balls: every record has a point of its own, and the norm of the mean of such gradients is at most that of
# Goldstein.
#
# Source:
#     Kornowski, Liu, Talwar 2024, section 2 and Definition B.1; closed formulas are ours.


_AVERAGE_NODES = 32  # of a quadrature: exact for polynomials of degree 63


def smoothed_slope(
    loss: GLMLoss, prediction: Values, target: Values, reach: Values | float, *, dimension: int
) -> Values:
    """`E phi'(t + reach T, y)`, elementwise; at a reach of 0 the slope itself.

    Args:
        loss: with one output.
        prediction: t.
        target: y.
        reach: r |a|, at least 0, of the targets' shape or a number.
        dimension: d of the ball; 1 for the average along the row.
    Raises:
        ValueError: the loss has several outputs, or the dimension is below 1.
    """
    if isinstance(loss, Capped) and loss.of == "squared" and loss.width > 0.0:
        # It is itself the average of a sharp loss over a box.
        sharp, width = replace(loss, width=0.0), loss.width
        ahead = smoothed_value(sharp, prediction + width, target, reach, dimension=dimension)
        behind = smoothed_value(sharp, prediction - width, target, reach, dimension=dimension)
        return (ahead - behind) / (2.0 * width)
    pieces = _pieces(loss, dimension)
    if pieces is None:
        return _quadrature(loss.slope, prediction, target, reach, dimension)
    at, rate = pieces.split(prediction, target)
    spread = jnp.abs(rate) * reach
    slope = jnp.full_like(at * spread, pieces.first)
    for position, jump, bend in pieces.knots:
        if jump:
            slope = slope + jump * _moments(at - position, spread, dimension)[0]
        if bend:
            slope = slope + bend * _moments(at - position, spread, dimension)[1]
    return rate * slope


def smoothed_value(
    loss: GLMLoss, prediction: Values, target: Values, reach: Values | float, *, dimension: int
) -> Values:
    """`E phi(t + reach T, y)`, the antiderivative of `smoothed_slope`; arguments as there."""
    pieces = _pieces(loss, dimension)
    if pieces is None:
        return _quadrature(loss.value, prediction, target, reach, dimension)
    at, rate = pieces.split(prediction, target)
    spread = jnp.abs(rate) * reach
    value = pieces.at_zero + pieces.first * (at + 0.0 * spread)
    for position, jump, bend in pieces.knots:
        _, ramp, square = _moments(at - position, spread, dimension)
        # psi is stated at 0: what the knot adds there is taken off.
        before = max(-position, 0.0)
        value = value + jump * (ramp - before) + bend * (square - 0.5 * before * before)
    return value


@dataclass(frozen=True)
class Smoothed(GLMLoss):
    """A loss averaged over predictions: that of a ball of parameters, for rows that are all of one length.

    Attributes:
        loss: of one output.
        radius: r, in units of the parameters.
        dimension: d of the ball; 1 for the average along each row.
        row_norm: the length that every row counts as.
    """

    loss: GLMLoss
    radius: float
    dimension: int = 1
    row_norm: float = 1.0

    def __post_init__(self) -> None:
        _pieces(self.loss, self.dimension)
        if not (0.0 < self.radius < math.inf and 0.0 < self.row_norm < math.inf):
            raise ValueError(
                f"radius and row_norm must be positive and finite, got {self.radius!r} and {self.row_norm!r}: the "
                "loss is averaged over predictions of their product on either side."
            )

    @property
    def reach(self) -> float:
        """Over how far predictions are averaged, on either side."""
        return self.radius * self.row_norm

    @property
    def facts(self) -> LossFacts:
        of_loss = self.loss.facts
        bound = smoothing_constant(self.dimension) * of_loss.lipschitz / self.reach
        at_zero = of_loss.value_at_zero
        if at_zero is not None:
            at_zero += of_loss.lipschitz * self.reach
        return LossFacts(
            name=f"smoothed {of_loss.name}",
            lipschitz=of_loss.lipschitz,
            curvature=min(of_loss.curvature, bound),
            convex=of_loss.convex,
            monotone=of_loss.monotone,
            value_at_zero=at_zero,
        )

    def value(self, prediction: Values, target: Values) -> Values:
        return smoothed_value(self.loss, prediction, target, self.reach, dimension=self.dimension)

    def slope(self, prediction: Values, target: Values) -> Values:
        return smoothed_slope(self.loss, prediction, target, self.reach, dimension=self.dimension)

    def predict_mean(self, prediction: Values) -> Values:
        return self.loss.predict_mean(prediction)


def _pieces(loss: GLMLoss, dimension: int) -> Pieces | None:
    if loss.outputs != 1:
        raise ValueError(
            f"the {loss.name} loss has {loss.outputs} outputs: averages over a ball are for losses of one prediction."
        )
    if dimension < 1:
        raise ValueError(f"dimension must be at least 1, got {dimension!r}: it is that of the ball.")
    return loss.pieces


def _moments(offset: Values, spread: Values, dimension: int) -> tuple[Array, Array, Array]:
    """`P(x + s T > 0)`, `E max(x + s T, 0)` and `E max(x + s T, 0)^2 / 2`; 1/2 at x = s = 0 for the first."""
    wide = spread > 0.0
    ratio = jnp.where(wide, offset / jnp.where(wide, spread, 1.0), 2.0 * jnp.sign(offset))
    inside = jnp.clip(ratio, -1.0, 1.0)
    room = 1.0 - inside * inside
    if dimension == 1:
        above, edge = 0.5 * (1.0 + inside), 0.25 * room
    else:
        above = first_coordinate_cdf(inside, dimension)
        edge = 0.5 * smoothing_constant(dimension) / (dimension + 1) * room ** (0.5 * (dimension + 1))
    ramp = offset * above + spread * edge
    second = (above - (dimension + 1) * inside * edge) / (dimension + 2)  # E[T^2; T > -x]
    square = 0.5 * (offset * offset * above + 2.0 * offset * spread * edge + spread * spread * second)
    beyond = jnp.maximum(offset, 0.0)
    # Above 1 the spread's own part of the square remains; below -1 nothing does.
    far = 0.5 * (beyond * beyond + jnp.where(offset > 0.0, spread * spread / (dimension + 2), 0.0))
    outside = jnp.abs(ratio) >= 1.0
    return above, jnp.where(outside, beyond, ramp), jnp.where(outside, far, square)


def _quadrature(
    function: Callable[[Values, Values], Values],
    prediction: Values,
    target: Values,
    reach: Values | float,
    dimension: int,
) -> Values:
    nodes, weights = _gegenbauer(dimension)
    spread = reach * jnp.ones_like(prediction * target)
    along = (*(1,) * spread.ndim, _AVERAGE_NODES)  # shapes are never promoted silently
    at = jnp.expand_dims(prediction + 0.0 * spread, -1) + jnp.expand_dims(spread, -1) * nodes.reshape(along)
    at_target = jnp.expand_dims(target + 0.0 * spread, -1) * jnp.ones(along)
    return jnp.sum(weights.reshape(along) * function(at, at_target), axis=-1)


@functools.cache
def _gegenbauer(dimension: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Nodes and weights for the law of T, density in proportion to (1 - t^2)^((d - 1) / 2).

    Source:
        Golub, Welsch 1969: eigenvalues of the matrix of the recurrence of Gegenbauer polynomials.
    """
    k = np.arange(1, _AVERAGE_NODES)
    half = 0.5 * dimension
    beside = k * (k + dimension - 1.0) / (4.0 * (k + half) * (k + half - 1.0))
    nodes, vectors = eigh_tridiagonal(np.zeros(_AVERAGE_NODES), np.sqrt(beside))
    return nodes, vectors[0] ** 2
