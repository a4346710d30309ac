"""The Goldstein norm estimated from values alone, for a function without a gradient."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.certify.goldstein_norm import NO_DIRECTION, GoldsteinNorm, search
from privopt.precision import double_precision


def goldstein_of_values(
    value: Callable[[NDArray[np.float64]], Any],
    x: ArrayLike,
    *,
    radius: float,
    smoothing: float | None = None,
    blocks: int = 50,
    seed: int = 0,
    rounds: int = 60,
) -> GoldsteinNorm:
    """Estimate how fast a function can still be improved around a point, from its values: not private, and no bound.

    In place of a gradient stands the average of `blocks` differences along all directions of random orthonormal bases,
    which estimates the gradient of F averaged over a ball of radius `smoothing`; points are taken in the ball of what
    is left of the radius. The chance in these estimates is not covered: the norm may come out too small or too large.

    Args:
        value: F, a point to a number.
        x: the point, an array of any shape.
        radius: of the ball, positive.
        smoothing: of the averages, positive and below the radius; a quarter of it by default.
        blocks: bases for each gradient; each takes 2 d values.
        seed: of the random points and bases.
        rounds: at most so many rounds of 12 gradients.
    Returns:
        The estimate; its `gradients` are estimates.
    Privacy:
        None: do not publish it.
    Raises:
        ValueError: a radius is not positive, the smoothing radius is not the smaller one, or a value is not finite.
    """
    at = np.asarray(x, np.float64)
    reach = radius / 4.0 if smoothing is None else smoothing
    if not (np.isfinite(radius) and 0.0 < reach < radius):
        raise ValueError(
            f"smoothing must lie between 0 and the radius, got {reach!r} and {radius!r}: gradients are estimated over "
            "balls of that radius, around points within the rest."
        )
    if blocks < 1:
        raise ValueError(f"blocks must be at least 1, got {blocks}: each is a basis of directions.")
    rng = np.random.default_rng([seed, 1])

    def number(point: NDArray[np.float64]) -> float:
        return float(np.asarray(value(point.reshape(at.shape))))

    def estimate(point: NDArray[np.float64]) -> NDArray[np.float64]:
        total = np.zeros(point.size)
        for _ in range(blocks):
            factor, triangle = np.linalg.qr(rng.normal(size=(point.size, point.size)))
            for direction in (factor * np.where(np.diag(triangle) < 0, -1.0, 1.0)).T:
                step = reach * direction
                total += (number(point + step) - number(point - step)) / (2.0 * reach) * direction
        return total / blocks

    with double_precision():
        points, weights, gradients = search(
            lambda rows: np.stack([estimate(row) for row in rows]),
            at.ravel(),
            radius=radius - reach,
            seed=seed,
            rounds=rounds,
            tolerance=0.0,
        )
        shortest = weights @ gradients
        norm = float(np.linalg.norm(shortest))
        decrease = None
        if norm > NO_DIRECTION * np.max(np.linalg.norm(gradients, axis=1)):
            decrease = number(at.ravel()) - number(at.ravel() - radius * shortest / norm)
    shape = (len(points), *at.shape)
    return GoldsteinNorm(
        norm, radius, points.reshape(shape), weights, gradients.reshape(shape), decrease, True
    )
