"""A mixture of products fitted to released marginals: weighted least squares by Adam, from where the last fit ended."""

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from privopt.synthesis.product_mixture import Matrix, ProductMixture, column_places, row_products

MEMORY, SQUARE_MEMORY = 0.9, 0.99  # of Adam's averages of gradients and of their squares
FLOOR = 0.02  # weight of the uniform column in the logits that a fit starts from
SPREAD = 0.2  # standard deviation of the first logits, so that products can part


class Measured(NamedTuple):
    """A released marginal.

    Attributes:
        columns: which columns, the first running fastest.
        shares: its cells, as shares of the public n.
        precision: one over the variance of a cell, up to a factor common to all marginals.
    """

    columns: tuple[int, ...]
    shares: NDArray[np.float64]
    precision: float

    def joined(self, other: "Measured") -> "Measured":
        """Both measurements of the same columns as one."""
        total = self.precision + other.precision
        shares = (self.precision * self.shares + other.precision * other.shares) / total
        return Measured(self.columns, shares, total)


class Logits(NamedTuple):
    """The numbers that a fit moves: softmaxes of them are the model.

    Attributes:
        weights: (K,) of the products.
        shares: (K, D) of each product's columns.
    """

    weights: NDArray[np.float64]
    shares: Matrix

    def model(self, levels: tuple[int, ...]) -> ProductMixture:
        """The mixture."""
        return ProductMixture(levels, softmax(self.weights[None])[0], _softmaxes(self.shares, levels))


def first_logits(columns: Sequence[NDArray[np.float64]], components: int, rng: np.random.Generator) -> Logits:
    """Near the product of independent columns that are nearest to the released ones.

    Args:
        columns: released marginals of all columns one by one, as shares.
        components: K.
        rng: public randomness, which makes the products differ.
    """
    near = [np.log((1 - FLOOR) * nearest_shares(column) + FLOOR / len(column)) for column in columns]
    start = np.concatenate(near)
    return Logits(np.zeros(components), start + SPREAD * rng.standard_normal((components, len(start))))


def nearest_shares(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest point of the probability simplex.

    Source:
        Duchi, Shalev-Shwartz, Singer, Chandra 2008, figure 1.
    """
    ordered = np.sort(values)[::-1]
    excess = (np.cumsum(ordered) - 1) / np.arange(1, len(values) + 1)
    return np.maximum(values - excess[np.nonzero(ordered > excess)[0][-1]], 0.0)


@dataclass(frozen=True, kw_only=True)
class MixtureFit:
    """Minimise the mean over all measured cells of precision * (model - released)^2 over the logits.

    Few steps are enough, and many fit the noise: what was measured badly is left to what the model says.

    Attributes:
        steps: at least 0. The step length falls to 0 over the second half.
        rate: Adam's step length.
    Source:
        Kingma, Ba 2015, algorithm 1. The relaxed table of Aydore et al. 2021 is the case of equal weights.
    """

    steps: int
    rate: float = 0.05

    def fit(self, logits: Logits, levels: tuple[int, ...], measured: Sequence[Measured]) -> Logits:
        """The logits after the steps."""
        point = Logits(logits.weights.copy(), logits.shares.copy())
        if not measured:
            return point
        scale = math.fsum(one.precision * len(one.shares) for one in measured)
        gradients = [np.zeros_like(part) for part in point]
        squares = [np.zeros_like(part) for part in point]
        for step in range(self.steps):
            slopes = _slopes(point, levels, measured, scale)
            length = self.rate * min(1.0, 2.0 * (1.0 - step / self.steps))
            for part, slope, gradient, square in zip(point, slopes, gradients, squares, strict=True):
                gradient *= MEMORY
                gradient += (1 - MEMORY) * slope
                square *= SQUARE_MEMORY
                square += (1 - SQUARE_MEMORY) * slope * slope
                root = np.sqrt(square / (1 - SQUARE_MEMORY ** (step + 1))) + 1e-12
                part -= length * (gradient / (1 - MEMORY ** (step + 1))) / root
        return point


def _slopes(
    point: Logits, levels: tuple[int, ...], measured: Sequence[Measured], scale: float
) -> tuple[NDArray[np.float64], Matrix]:
    """The gradient of half of the weighted mean of squares in the logits."""
    model, places = point.model(levels), column_places(levels)
    weights, shares = model.weights, model.shares
    of_weights, of_shares = np.zeros_like(weights), np.zeros_like(shares)
    for one in measured:
        first = shares[:, places[one.columns[0]]]
        factors = [shares[:, places[column]] for column in one.columns[1:]]
        rows = row_products(factors, np.ones(len(weights)))
        weighted = rows * weights[:, None]
        residual = (weighted.T @ first - one.shares.reshape(-1, first.shape[1])) * (one.precision / scale)
        of_shares[:, places[one.columns[0]]] += weighted @ residual
        pulled = first @ residual.T
        of_weights += np.einsum("kc,kc->k", pulled, rows)
        if factors:
            pulled *= weights[:, None]
            for place, factor_slope in zip(one.columns[1:], _unproducts(factors, pulled), strict=True):
                of_shares[:, places[place]] += factor_slope
    of_shares *= shares
    for place in places:
        of_shares[:, place] -= shares[:, place] * of_shares[:, place].sum(axis=1, keepdims=True)
    return weights * (of_weights - float(weights @ of_weights)), of_shares


def _unproducts(factors: Sequence[Matrix], pulled: Matrix) -> list[Matrix]:
    """The gradient in each factor of `row_products`, from that in the products."""
    if len(factors) == 1:
        return [pulled]
    if len(factors) == 2:
        fast, slow = factors
        cells = pulled.reshape(len(pulled), slow.shape[1], fast.shape[1])
        return [np.matmul(slow[:, None, :], cells)[:, 0], np.matmul(cells, fast[:, :, None])[:, :, 0]]
    letters = string.ascii_lowercase[: len(factors)]  # the products' row axis is "z"
    cells = pulled.reshape(len(pulled), *(factor.shape[1] for factor in reversed(factors)))
    slopes: list[Matrix] = []
    for kept in range(len(factors)):
        others = [place for place in range(len(factors)) if place != kept]
        names = ",".join(["z" + letters[::-1], *("z" + letters[place] for place in others)])
        slopes.append(
            np.einsum(
                f"{names}->z{letters[kept]}", cells, *(factors[place] for place in others), optimize=True
            )
        )
    return slopes


def softmax(rows: Matrix) -> Matrix:
    """The softmax of each row."""
    masses = np.exp(rows - rows.max(axis=1, keepdims=True))
    return masses / masses.sum(axis=1, keepdims=True)


def _softmaxes(rows: Matrix, levels: tuple[int, ...]) -> Matrix:
    """The softmax of each column's part of each row."""
    shares = np.empty_like(rows)
    for place in column_places(levels):
        shares[:, place] = softmax(rows[:, place])
    return shares
