"""Regularisers: public penalties of the parameters, with exact proximal maps.

A regulariser is a smooth, ridge-like part, whose gradient is added to the loss's, plus a non-smooth remainder
handled by its proximal map `prox(w, step) = argmin_u ||u - w||^2 / 2 + step * remainder(u)`. With heavy-ball
momentum beta the step of the proximal map is `step_size / (1 - beta)`, otherwise the fixed point is wrong.

Parameters are a vector (d,) or a matrix (d, K), one column per output. Per-coordinate `weights` (d of them, one
per row of a matrix) multiply the strength; 0 leaves a coordinate unpenalised. All are hashable and static
under `jit`.

Source:
    Parikh and Boyd 2014, Proximal algorithms, chapter 6.
"""

import abc
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from privopt.later import Array, Float, jax, jnp
from privopt.precision import arrays_of

Weights: TypeAlias = tuple[float, ...]
Step: TypeAlias = Float[Array, ""] | float


class Regulariser(abc.ABC):
    """A convex penalty: ridge part plus non-smooth remainder.

    A subclass is a constant of compiled programs, unless it is made with `is_static=False` and registers its arrays.
    """

    def __init_subclass__(cls, *, is_static: bool = True, **options: Any) -> None:
        super().__init_subclass__(**options)
        if is_static:
            jax.tree_util.register_static(cls)

    @property
    @abc.abstractmethod
    def strong_convexity(self) -> float:
        """Largest `mu` for which the penalty minus `mu/2 ||w||^2` is convex in every direction."""

    @property
    @abc.abstractmethod
    def smoothness(self) -> float:
        """Lipschitz constant of `gradient`."""

    @property
    @abc.abstractmethod
    def is_smooth(self) -> bool:
        """Whether there is no non-smooth remainder: `prox` is then the identity."""

    @abc.abstractmethod
    def value(self, params: Float[Array, "..."]) -> Float[Array, ""]:
        """The whole penalty."""

    @abc.abstractmethod
    def gradient(self, params: Float[Array, "..."]) -> Float[Array, "..."]:
        """The gradient of the smooth part only."""

    @abc.abstractmethod
    def prox(self, params: Float[Array, "..."], step: Step) -> Float[Array, "..."]:
        """The proximal map of `step` times the non-smooth remainder."""

    @abc.abstractmethod
    def full_prox(self, params: Float[Array, "..."], step: Step) -> Float[Array, "..."]:
        """The proximal map of `step` times the whole penalty."""


class SeparableRegulariser(Regulariser):
    """`sum_j v_j (l1 |w_j| + l2 w_j^2 / 2)`, v the weights (all 1 if None).

    Its whole proximal map is `soft(w, step l1 v) / (1 + step l2 v)`, `soft` the soft threshold.
    """

    @property
    @abc.abstractmethod
    def terms(self) -> tuple[float, float, Weights | None]:
        """`(l1, l2, v)`."""

    @cached_property
    def _different_weights(self) -> frozenset[float]:
        """The numbers among v: mostly one or two, however many coordinates there are."""
        weights = self.terms[2]
        return frozenset((1.0,) if weights is None else weights)

    @property
    def strong_convexity(self) -> float:
        return self.terms[1] * min(self._different_weights)

    @property
    def smoothness(self) -> float:
        return self.terms[1] * max(self._different_weights)

    def _check_weights(self) -> None:
        different = self._different_weights
        if not (different and all(0.0 <= weight < math.inf for weight in different)):
            weights = self.terms[2]
            raise ValueError(
                f"weights must be a non-empty tuple of finite numbers >= 0, got {weights!r}: 0 means unpenalised."
            )

    @property
    def is_smooth(self) -> bool:
        return self.terms[0] == 0.0

    def value(self, params: Float[Array, "..."]) -> Float[Array, ""]:
        l1, l2, weights = self.terms
        total = jnp.zeros((), params.dtype)
        if l1 > 0.0:
            total += l1 * jnp.sum(_column(weights, params) * jnp.abs(params))
        if l2 > 0.0:
            total += 0.5 * l2 * jnp.sum(_column(weights, params) * params**2)
        return total

    def gradient(self, params: Float[Array, "..."]) -> Float[Array, "..."]:
        _, l2, weights = self.terms
        return l2 * (_column(weights, params) * params) if l2 > 0.0 else arrays_of(params).zeros_like(params)

    def prox(self, params: Float[Array, "..."], step: Step) -> Float[Array, "..."]:
        l1, _, weights = self.terms
        return soft_threshold(params, (step * l1) * _column(weights, params)) if l1 > 0.0 else params

    def full_prox(self, params: Float[Array, "..."], step: Step) -> Float[Array, "..."]:
        _, l2, weights = self.terms
        shrunk = self.prox(params, step)
        return shrunk / (1.0 + (step * l2) * _column(weights, params)) if l2 > 0.0 else shrunk


@dataclass(frozen=True)
class NoRegulariser(SeparableRegulariser):
    """The penalty 0."""

    @property
    def terms(self) -> tuple[float, float, Weights | None]:
        return 0.0, 0.0, None


@dataclass(frozen=True)
class Ridge(SeparableRegulariser):
    """`strength/2 * sum_j v_j w_j^2`: smooth, so `prox` is the identity and `gradient` is all of it."""

    strength: float
    weights: Weights | None = None

    def __post_init__(self) -> None:
        _check("strength", self.strength)
        self._check_weights()

    @property
    def terms(self) -> tuple[float, float, Weights | None]:
        return 0.0, self.strength, self.weights


@dataclass(frozen=True)
class L1(SeparableRegulariser):
    """`strength * sum_j v_j |w_j|`: the lasso."""

    strength: float
    weights: Weights | None = None

    def __post_init__(self) -> None:
        _check("strength", self.strength)
        self._check_weights()

    @property
    def terms(self) -> tuple[float, float, Weights | None]:
        return self.strength, 0.0, self.weights


@dataclass(frozen=True)
class ElasticNet(SeparableRegulariser):
    """`sum_j v_j (l1 |w_j| + l2 w_j^2 / 2)`; the square is the smooth part."""

    l1: float
    l2: float
    weights: Weights | None = None

    def __post_init__(self) -> None:
        _check("l1", self.l1)
        _check("l2", self.l2)
        self._check_weights()

    @property
    def terms(self) -> tuple[float, float, Weights | None]:
        return self.l1, self.l2, self.weights


@dataclass(frozen=True)
class GroupLasso(Regulariser):
    """`sum_g strength sqrt|g| ||w_g||_2 + l1 sum_j |w_j|`: whole groups vanish together.

    A group is a tuple of coordinates; of a matrix (d, K), of rows, with the Frobenius norm over all columns.
    Groups are disjoint; a coordinate in no group is free of the first term. The second (`l1`, default 0)
    makes it the sparse-group lasso, whose proximal map is the soft threshold, then the block one.

    Source:
        Yuan and Lin 2006; Friedman, Hastie, Tibshirani 2010 (order of the two thresholds).
    """

    strength: float
    groups: tuple[tuple[int, ...], ...]
    l1: float = 0.0

    def __post_init__(self) -> None:
        _check("strength", self.strength)
        _check("l1", self.l1)
        members = [j for group in self.groups for j in group]
        if not all(self.groups) or len(set(members)) < len(members) or min(members, default=0) < 0:
            raise ValueError(
                f"groups must be disjoint non-empty tuples of coordinates >= 0, got {self.groups!r}: "
                "list every coordinate once, or leave it out to keep it unpenalised."
            )

    @property
    def strong_convexity(self) -> float:
        return 0.0

    @property
    def smoothness(self) -> float:
        return 0.0

    @property
    def is_smooth(self) -> bool:
        return (self.strength == 0.0 or not self.groups) and self.l1 == 0.0

    def value(self, params: Float[Array, "..."]) -> Float[Array, ""]:
        scale, norms = self._scaled_norms(params)
        roots = jnp.asarray(self._root_sizes, params.dtype)
        return self.strength * jnp.sum(roots * scale * norms) + self.l1 * jnp.sum(jnp.abs(params))

    def gradient(self, params: Float[Array, "..."]) -> Float[Array, "..."]:
        return jnp.zeros_like(params)

    def prox(self, params: Float[Array, "..."], step: Step) -> Float[Array, "..."]:
        kept = soft_threshold(params, step * self.l1) if self.l1 > 0.0 else params
        scale, norms = self._scaled_norms(kept)
        threshold = (step * self.strength) * jnp.asarray(self._root_sizes, params.dtype) / scale
        positive = norms > 0.0
        factors = jnp.where(
            positive, jnp.maximum(1.0 - threshold / jnp.where(positive, norms, 1.0), 0.0), 0.0
        )
        return kept * _by_row(jnp.append(factors, 1.0)[self._group_of_row(kept.shape[0])], kept)

    def full_prox(self, params: Float[Array, "..."], step: Step) -> Float[Array, "..."]:
        return self.prox(params, step)

    @property
    def _root_sizes(self) -> np.ndarray:
        return np.sqrt([float(len(group)) for group in self.groups])

    def _group_of_row(self, rows: int) -> np.ndarray:
        """Each row's group; the number of groups for a row in none."""
        members = [j for group in self.groups for j in group]
        if max(members, default=-1) >= rows:
            raise ValueError(f"groups name coordinate {max(members)}, but there are {rows}: count from 0.")
        numbers = np.full(rows, len(self.groups), dtype=np.int32)
        for number, group in enumerate(self.groups):
            numbers[list(group)] = number
        return numbers

    def _scaled_norms(self, params: Float[Array, "..."]) -> tuple[Float[Array, " g"], Float[Array, " g"]]:
        """Each group's largest entry (1 if all are zero), and its l2 norm in units of it."""
        rows, count = self._group_of_row(params.shape[0]), len(self.groups)
        flat = params.reshape(params.shape[0], -1)
        largest = jax.ops.segment_max(jnp.max(jnp.abs(flat), axis=1), rows, num_segments=count + 1)
        scale = jnp.where(largest > 0.0, largest, 1.0)
        squares = jax.ops.segment_sum(jnp.sum((flat / scale[rows][:, None]) ** 2, axis=1), rows, count + 1)
        positive = squares > 0.0
        return scale[:count], jnp.where(positive, jnp.sqrt(jnp.where(positive, squares, 1.0)), 0.0)[:count]


def soft_threshold(
    params: Float[Array, "..."], threshold: Float[Array, "..."] | float
) -> Float[Array, "..."]:
    """Move every entry towards 0 by its threshold, and no further."""
    return jnp.sign(params) * jnp.maximum(jnp.abs(params) - threshold, 0.0)


def _by_row(numbers: Float[Array, " d"], params: Float[Array, "..."]) -> Float[Array, "..."]:
    """One number per row of the parameters, shaped to multiply them."""
    if len(numbers) != params.shape[0]:
        raise ValueError(f"got {len(numbers)} weights for {params.shape[0]} coordinates: give one for each.")
    return numbers.reshape((-1,) + (1,) * (params.ndim - 1))


def _column(weights: Weights | None, params: Float[Array, "..."]) -> Float[Array, "..."] | float:
    return 1.0 if weights is None else _by_row(arrays_of(params).asarray(weights, params.dtype), params)


def _check(name: str, strength: float) -> None:
    if not (0.0 <= strength < math.inf):
        raise ValueError(f"{name} must be at least 0 and finite, got {strength!r}.")


def leaves_free(regulariser: Regulariser, column: int) -> bool:
    """Whether the penalty does not depend on the coefficient of a column; False where that is not known."""
    match regulariser:
        case SeparableRegulariser():
            l1, l2, weights = regulariser.terms
            return l1 == l2 == 0.0 or (weights is not None and weights[column : column + 1] == (0.0,))
        case GroupLasso():
            return regulariser.l1 == 0.0 and all(column not in group for group in regulariser.groups)
        case _:
            return False


# ---- A ridge on w = B v, as a penalty of v: what a ridge becomes in other coordinates ----------------------


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class MappedRidge(Regulariser, is_static=False):
    """`strength/2 * sum_j u_j (B v)_j^2`.

    Attributes:
        matrix: B, (d, d), public or released.
        strengths: strength * u, (d,).
    """

    matrix: Float[Array, "d d"]
    strengths: Float[Array, " d"]

    @property
    def strong_convexity(self) -> float:
        """The smallest eigenvalue of `B^T diag(strengths) B`."""
        return max(0.0, float(jnp.linalg.eigvalsh(self._form())[0]))

    @property
    def smoothness(self) -> float:
        """The largest eigenvalue of `B^T diag(strengths) B`."""
        return float(jnp.linalg.eigvalsh(self._form())[-1])

    @property
    def is_smooth(self) -> bool:
        """Always."""
        return True

    def value(self, params: Float[Array, "..."]) -> Float[Array, ""]:
        """The ridge of `B params`."""
        return 0.5 * jnp.sum(params * self.gradient(params))

    def gradient(self, params: Float[Array, "..."]) -> Float[Array, "..."]:
        """`B^T (strengths * B params)`, for a vector or a matrix with one column an output."""
        mapped = self.matrix @ params
        strengths = self.strengths if params.ndim == 1 else self.strengths[:, None]
        return self.matrix.T @ (strengths * mapped)

    def prox(self, params: Float[Array, "..."], step: Step) -> Float[Array, "..."]:
        """The identity: there is no non-smooth part."""
        del step
        return params

    def full_prox(self, params: Float[Array, "..."], step: Step) -> Float[Array, "..."]:
        """`(I + step B^T diag(strengths) B)^-1 params`."""
        return jnp.linalg.solve(jnp.eye(len(self.strengths)) + step * self._form(), params)

    def _form(self) -> Float[Array, "d d"]:
        return self.matrix.T @ (self.strengths[:, None] * self.matrix)


def strongest(regulariser: Regulariser) -> float:
    """The largest strength on a coordinate of w of a ridge in other coordinates; 0 for no penalty."""
    return float(np.max(np.asarray(regulariser.strengths))) if isinstance(regulariser, MappedRidge) else 0.0
