"""The shortest vector of the convex hull of some vectors.

Source:
    Wolfe 1976, Finding the nearest point in a polytope. Corrals are solved by least squares on differences, so that
    vectors may coincide.
"""

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

_LEAST_WEIGHT = 1e-15
_GAP = 1e-14  # relative to the longest vector squared: when a point counts as the shortest


def wolfe_min_norm(
    vectors: Float[NDArray[np.float64], "k d"],
) -> tuple[Float[NDArray[np.float64], " d"], Float[NDArray[np.float64], " k"]]:
    """The shortest vector of the convex hull, and weights that give it.

    Args:
        vectors: finite, one a row, at least one.
    Returns:
        v and weights of sum 1, none negative, with `v = weights @ vectors`; `<g, v> >= |v|^2` for every row g, up to
        1e-14 of the longest row's square.
    """
    peak = float(np.max(np.abs(vectors)))
    weights = np.zeros(len(vectors))
    if peak == 0.0:
        weights[0] = 1.0
        return np.zeros(vectors.shape[1]), weights
    rows = vectors / peak
    rows /= np.max(np.linalg.norm(rows, axis=1))
    corral = [int(np.argmin(np.linalg.norm(rows, axis=1)))]
    shares = np.ones(1)
    shortest = rows[corral[0]]
    for _ in range(20 * sum(rows.shape)):
        along = rows @ shortest
        entering = int(np.argmin(along))
        length = float(shortest @ shortest)
        if length - float(along[entering]) <= _GAP or entering in corral:
            break
        candidate, kept = _shortest_of([*corral, entering], np.append(shares, 0.0), rows)
        found = candidate @ rows[kept]
        if not float(found @ found) < length:  # by rounding alone
            break
        corral, shares, shortest = kept, candidate, found
    weights[corral] = shares / shares.sum()
    return weights @ vectors, weights


def _shortest_of(
    corral: list[int], shares: NDArray[np.float64], rows: NDArray[np.float64]
) -> tuple[NDArray[np.float64], list[int]]:
    """Weights of the shortest vector of a corral's affine hull; rows leave it until all weights are positive."""
    while True:
        affine = _affine_weights(rows[corral])
        if np.all(affine > _LEAST_WEIGHT):
            return affine, corral
        leaving = affine <= _LEAST_WEIGHT
        step = float(np.min(shares[leaving] / np.maximum(shares[leaving] - affine[leaving], 1e-300)))
        moved = (1.0 - step) * shares + step * affine
        stay = moved > _LEAST_WEIGHT
        if np.all(stay):  # the row that reached zero did so up to rounding
            stay[int(np.argmin(moved))] = False
        corral = [row for row, kept in zip(corral, stay, strict=True) if kept]
        shares = moved[stay] / moved[stay].sum()


def _affine_weights(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weights of sum 1 of the shortest vector of the affine hull."""
    if len(rows) == 1:
        return np.ones(1)
    rest = np.linalg.lstsq((rows[1:] - rows[0]).T, -rows[0], rcond=None)[0]
    return np.concatenate([[1.0 - rest.sum()], rest])
