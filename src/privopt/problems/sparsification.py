"""Maurey's sparsification: a point of a polytope as the average of few drawn vertices, and what that costs.

Source:
    Gonzalez, Guzman, Paquette 2024, section 2 (Corollaries 2.3, 2.4, 2.6, Lemma 2.10 corrected: its first line leaves
    out the factor 2 of E X^2 = integral of 2 b P(X >= b), which doubles both of its terms, and it needs 3 functions).
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray


class MaureyBound(NamedTuple):
    """How far a smooth function, and its gradient along vertices, move by a sparsification.

    Attributes:
        value: |E F(average) - F(point)| is at most this.
        gradient: so is the largest entry of |E grad F(average) - grad F(point)|.
        gradient_moment: so is the mean square of the largest entry of grad F(average) - grad F(point).
    """

    value: float
    gradient: float
    gradient_moment: float


def maurey(
    weights: ArrayLike, draws: int, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw `draws` vertices, each with the probability of its weight.

    The average of the drawn vertices has the point of the weights as its mean and at most `draws` non-zero weights.

    Args:
        weights: at least 0, not all of them 0; a mixed strategy, for instance.
        draws: K, at least 1.
        generator: of the draws.
    Returns:
        The vertices that were drawn, in increasing order, and how often; the counts sum to `draws`.
    Privacy:
        Arithmetic on released weights. Drawn from weights that are secret the indices are releases, and cost what
        `VertexSampler` charges.
    Raises:
        ValueError: the weights are no distribution up to a factor, or `draws` is less than 1.
    """
    given = np.asarray(weights, np.float64)
    if given.ndim != 1 or not np.all(given >= 0) or not 0 < np.sum(given) < math.inf:
        raise ValueError(
            "weights must be a vector of finite numbers of at least 0 that are not all 0: the weights of a point on "
            "the vertices."
        )
    if draws < 1:
        raise ValueError(f"draws must be at least 1, got {draws!r}: it is how many vertices are averaged.")
    counts = generator.multinomial(draws, given / np.sum(given))
    indices = np.flatnonzero(counts)
    return indices.astype(np.int64), counts[indices].astype(np.int64)


def maurey_bound(
    draws: int | ArrayLike,
    vertices: int,
    *,
    curvature: float,
    third: float = math.inf,
    slope: float = math.inf,
) -> MaureyBound:
    """What averaging drawn vertices changes, for a function on a simplex of `vertices` weights.

    With s = 1 / K (or the sum of the squares of the weights of a mean of drawn points), L0 `slope`, L1 `curvature`,
    L2 `third` and d `vertices`: 2 L1 s; min(2 L2 s, 4 L1 sqrt(s)); and the smallest of 16 L2^2 s^2 + 16 L1^2 l s,
    32 L1 sqrt(L1^2 s^2 + L0^2 l s) and 4 L1^2, where l = 4 + log(max(d, 3)).

    Args:
        draws: K, or the weights, of sum 1, with which drawn points are averaged, each drawn from its own distribution.
        vertices: d.
        curvature: L1: the largest |grad F(w) - grad F(w')|_inf / |w - w'|_1.
        third: L2: the same of every entry of the gradient; infinite where it has none.
        slope: L0: the largest entry of a gradient; infinite where unknown.
    Guarantee:
        For `third` infinite, the function must be as smooth a little outside of the simplex.
    """
    if np.ndim(np.asarray(draws)) == 0:
        spread = 1.0 / float(np.asarray(draws))
    else:
        spread = float(np.sum(np.asarray(draws, np.float64) ** 2))
    entries = 4.0 + math.log(max(vertices, 3))
    by_third = 16.0 * third**2 * spread**2 + 16.0 * curvature**2 * entries * spread
    by_slope = math.inf
    if math.isfinite(slope):
        by_slope = 32.0 * curvature * math.sqrt(curvature**2 * spread**2 + slope**2 * entries * spread)
    return MaureyBound(
        value=2.0 * curvature * spread,
        gradient=min(2.0 * third * spread, 4.0 * curvature * math.sqrt(spread)),
        gradient_moment=min(by_third, by_slope, 4.0 * curvature**2),
    )
