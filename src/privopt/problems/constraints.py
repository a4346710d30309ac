"""Constraint sets: public closed convex sets of parameters, with exact projections.

`project` is the Euclidean projection, `linear_minimiser` a point of the set (a vertex of a polytope) where a
linear function is least, `mirror(shape)` the set's mirror map. A matrix of parameters is treated as the vector
of its entries, row by row. All are hashable and static under `jit`.

Source:
    Duchi, Shalev-Shwartz, Singer, Chandra 2008 (simplex and l1 projections); Parikh and Boyd 2014, chapter 6.
"""

import abc
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from privopt.later import Array, Bool, Float, jnp
from privopt.problems.mirror_maps import (
    BallMirror,
    Bounds,
    BoxMirror,
    CrossPolytopeMirror,
    LpBallMirror,
    MirrorMap,
    ProductMirror,
    Shape,
    SimplexMirror,
    split,
)
from privopt.problems.projections import (
    l2_norm,
    project_l1_ball,
    project_l2_ball,
    project_lp_ball,
    project_polytope,
    project_simplex,
    scale_of,
)

LARGEST_RADIUS = 1e100  # of a set: beyond it squares of lengths leave float64
Params: TypeAlias = Float[Array, "..."]


class Constraint(abc.ABC):
    """A closed convex set of parameters."""

    @property
    @abc.abstractmethod
    def diameter(self) -> float:
        """Largest l2 distance of two points; infinite if unbounded, or if it depends on the dimension."""

    def diameter_in(self, shape: Shape) -> float:
        """The diameter for parameters of this shape, known for every bounded set."""
        del shape
        return self.diameter

    @abc.abstractmethod
    def project(self, params: Params) -> Params:
        """The nearest point of the set."""

    @abc.abstractmethod
    def contains(self, params: Params, tolerance: float = 1e-9) -> Bool[Array, ""]:
        """Whether the point is in the set, up to a relative tolerance."""

    @abc.abstractmethod
    def linear_minimiser(self, gradient: Params) -> Params | None:
        """A point of the set where `<gradient, .>` is least; None if the set is unbounded."""

    @abc.abstractmethod
    def mirror(self, shape: Shape) -> MirrorMap | None:
        """The mirror map for parameters of this shape; None if the set has none."""


@dataclass(frozen=True)
class Unconstrained(Constraint):
    """Everything."""

    @property
    def diameter(self) -> float:
        return math.inf

    def project(self, params: Params) -> Params:
        return params

    def contains(self, params: Params, tolerance: float = 1e-9) -> Bool[Array, ""]:
        return jnp.all(jnp.isfinite(params))

    def linear_minimiser(self, gradient: Params) -> Params | None:
        return None

    def mirror(self, shape: Shape) -> MirrorMap | None:
        return None


@dataclass(frozen=True)
class L2Ball(Constraint):
    """`||w||_2 <= radius`."""

    radius: float

    def __post_init__(self) -> None:
        _require_radius(self.radius)

    @property
    def diameter(self) -> float:
        return 2.0 * self.radius

    def project(self, params: Params) -> Params:
        return project_l2_ball(params, self.radius)

    def contains(self, params: Params, tolerance: float = 1e-9) -> Bool[Array, ""]:
        return l2_norm(params) <= self.radius * (1.0 + tolerance)

    def linear_minimiser(self, gradient: Params) -> Params | None:
        direction = gradient / scale_of(gradient)
        norm = l2_norm(direction)
        return -self.radius * direction / jnp.where(norm > 0.0, norm, 1.0)

    def mirror(self, shape: Shape) -> MirrorMap | None:
        return BallMirror(self.radius, shape)


@dataclass(frozen=True)
class CentredBall(Constraint):
    """`||w - centre||_2 <= radius`; the centre is the vector of the entries, row by row."""

    centre: tuple[float, ...]
    radius: float

    def __post_init__(self) -> None:
        _require_radius(self.radius)

    @property
    def diameter(self) -> float:
        return 2.0 * self.radius

    def project(self, params: Params) -> Params:
        middle = self._middle(params)
        offset = params - middle
        inside = project_l2_ball(offset, self.radius)
        return jnp.where(jnp.all(inside == offset), params, middle + inside)

    def contains(self, params: Params, tolerance: float = 1e-9) -> Bool[Array, ""]:
        slack = tolerance * (self.radius + math.hypot(*self.centre))
        return l2_norm(params - self._middle(params)) <= self.radius + slack

    def linear_minimiser(self, gradient: Params) -> Params | None:
        direction = gradient / scale_of(gradient)
        norm = l2_norm(direction)
        return self._middle(gradient) - self.radius * direction / jnp.where(norm > 0.0, norm, 1.0)

    def mirror(self, shape: Shape) -> MirrorMap | None:
        return None

    def _middle(self, params: Params) -> Params:
        if len(self.centre) != params.size:
            raise ValueError(f"the centre has {len(self.centre)} entries, the parameters {params.size}.")
        return jnp.asarray(self.centre, params.dtype).reshape(params.shape)


@dataclass(frozen=True)
class L1Ball(Constraint):
    """`||w||_1 <= radius`; the linear minimiser is a vertex, at the first of the largest entries."""

    radius: float

    def __post_init__(self) -> None:
        _require_radius(self.radius)

    @property
    def diameter(self) -> float:
        return 2.0 * self.radius

    def project(self, params: Params) -> Params:
        return project_l1_ball(params, self.radius)

    def contains(self, params: Params, tolerance: float = 1e-9) -> Bool[Array, ""]:
        return jnp.sum(jnp.abs(params)) <= self.radius * (1.0 + tolerance)

    def linear_minimiser(self, gradient: Params) -> Params | None:
        flat = gradient.reshape(-1)
        index = jnp.argmax(jnp.abs(flat))
        length = jnp.where(flat[index] > 0.0, -self.radius, self.radius)
        return jnp.zeros_like(flat).at[index].set(length.astype(flat.dtype)).reshape(gradient.shape)

    def mirror(self, shape: Shape) -> MirrorMap | None:
        return CrossPolytopeMirror(self.radius, shape)


@dataclass(frozen=True)
class LpBall(Constraint):
    """`||w||_p <= radius`, 1 < p <= 2. The projection is iterative, exact to rounding."""

    radius: float
    p: float

    def __post_init__(self) -> None:
        _require_radius(self.radius)
        if not 1.0 < self.p <= 2.0:
            raise ValueError(f"p must lie in (1, 2], got {self.p!r}: use L1Ball for p = 1, Box for infinity.")

    @property
    def diameter(self) -> float:
        return 2.0 * self.radius

    def project(self, params: Params) -> Params:
        return project_lp_ball(params, self.radius, self.p)

    def contains(self, params: Params, tolerance: float = 1e-9) -> Bool[Array, ""]:
        return jnp.sum((jnp.abs(params) / self.radius) ** self.p) <= (1.0 + tolerance) ** self.p

    def linear_minimiser(self, gradient: Params) -> Params | None:
        unscaled = (jnp.abs(gradient) / scale_of(gradient)) ** (1.0 / (self.p - 1.0))
        norm = jnp.sum(unscaled**self.p) ** (1.0 / self.p)
        return -self.radius * jnp.sign(gradient) * unscaled / jnp.where(norm > 0.0, norm, 1.0)

    def mirror(self, shape: Shape) -> MirrorMap | None:
        return LpBallMirror(self.radius, self.p, shape)


@dataclass(frozen=True)
class Box(Constraint):
    """`low <= w <= high` entry by entry; numbers, or tuples with one number per coordinate (row of a matrix)."""

    low: float | Bounds
    high: float | Bounds

    def __post_init__(self) -> None:
        lows, highs = np.atleast_1d(np.asarray(self.low, float)), np.atleast_1d(np.asarray(self.high, float))
        if len({len(lows), len(highs)} - {1}) > 1 or not np.all(lows <= highs):
            raise ValueError(
                f"low must be at most high, coordinate by coordinate, got low={self.low!r}, high={self.high!r}."
            )

    @property
    def diameter(self) -> float:
        tuples = [bounds for bounds in (self.low, self.high) if isinstance(bounds, tuple)]
        return self.diameter_in((len(tuples[0]),)) if tuples else math.inf

    def diameter_in(self, shape: Shape) -> float:
        low, high = self.bounds(shape)
        return float(np.linalg.norm(high - low))

    def project(self, params: Params) -> Params:
        low, high = self.bounds(params.shape)
        return jnp.clip(params, jnp.asarray(low, params.dtype), jnp.asarray(high, params.dtype))

    def contains(self, params: Params, tolerance: float = 1e-9) -> Bool[Array, ""]:
        low, high = self.bounds(params.shape)
        below = jnp.asarray(low - tolerance * np.maximum(1.0, np.abs(low)), params.dtype)
        above = jnp.asarray(high + tolerance * np.maximum(1.0, np.abs(high)), params.dtype)
        return jnp.all((params >= below) & (params <= above))

    def linear_minimiser(self, gradient: Params) -> Params | None:
        low, high = self.bounds(gradient.shape)
        if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high))):
            return None
        return jnp.where(gradient > 0.0, jnp.asarray(low, gradient.dtype), jnp.asarray(high, gradient.dtype))

    def mirror(self, shape: Shape) -> MirrorMap | None:
        low, high = self.bounds(shape)
        if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high))):
            return None
        return BoxMirror(tuple(low.ravel().tolist()), tuple(high.ravel().tolist()), shape)

    def bounds(self, shape: Shape) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(low, high), of this shape.

        Raises:
            ValueError: the box has another number of coordinates.
        """
        column = (-1,) + (1,) * (len(shape) - 1)
        lows, highs = (np.asarray(bounds, float).reshape(column) for bounds in (self.low, self.high))
        for bounds in (lows, highs):
            if bounds.size not in (1, shape[0]):
                raise ValueError(f"the box has {bounds.size} coordinates, the parameters {shape[0]}.")
        return np.broadcast_to(lows, shape), np.broadcast_to(highs, shape)


@dataclass(frozen=True)
class Simplex(Constraint):
    """Entries `>= 0` that sum to `radius`; the linear minimiser is the vertex of the first least entry."""

    radius: float = 1.0

    def __post_init__(self) -> None:
        _require_radius(self.radius)

    @property
    def diameter(self) -> float:
        return math.sqrt(2.0) * self.radius

    def project(self, params: Params) -> Params:
        return project_simplex(params, self.radius)

    def contains(self, params: Params, tolerance: float = 1e-9) -> Bool[Array, ""]:
        slack = tolerance * self.radius
        return jnp.all(params >= -slack) & (jnp.abs(jnp.sum(params) - self.radius) <= slack)

    def linear_minimiser(self, gradient: Params) -> Params | None:
        flat = gradient.reshape(-1)
        return jnp.zeros_like(flat).at[jnp.argmin(flat)].set(self.radius).reshape(gradient.shape)

    def mirror(self, shape: Shape) -> MirrorMap | None:
        return SimplexMirror(self.radius, shape)


@dataclass(frozen=True)
class Polytope(Constraint):
    """The convex hull of given points; the linear minimiser is the first of the best of them.

    Args:
        vertices: (m, p) numbers, a point a row, kept as tuples. Points inside the hull of the others are allowed.
    """

    vertices: Any

    def __post_init__(self) -> None:
        rows = np.asarray(self.vertices, np.float64)
        if rows.ndim != 2 or not rows.size or not np.all(np.isfinite(rows)):
            raise ValueError(
                f"vertices must be a matrix of finite numbers with a point a row, got one of shape {rows.shape}."
            )
        object.__setattr__(self, "vertices", tuple(tuple(row) for row in rows.tolist()))

    def __repr__(self) -> str:
        return f"Polytope({len(self.vertices)} vertices in {len(self.vertices[0])} dimensions)"

    @cached_property
    def matrix(self) -> NDArray[np.float64]:
        """(m, p), a vertex a row."""
        return np.asarray(self.vertices, np.float64)

    @cached_property
    def diameter(self) -> float:  # pyright: ignore[reportIncompatibleMethodOverride]
        return max(float(np.max(np.linalg.norm(self.matrix - row, axis=1))) for row in self.matrix)

    def project(self, params: Params) -> Params:
        self._check_size(params)
        return project_polytope(params, self.matrix)

    def contains(self, params: Params, tolerance: float = 1e-9) -> Bool[Array, ""]:
        slack = tolerance * float(np.max(np.linalg.norm(self.matrix, axis=1)))
        return l2_norm(params - self.project(params)) <= slack

    def linear_minimiser(self, gradient: Params) -> Params | None:
        self._check_size(gradient)
        rows = jnp.asarray(self.matrix, gradient.dtype)
        return rows[jnp.argmin(rows @ gradient.reshape(-1))].reshape(gradient.shape)

    def mirror(self, shape: Shape) -> MirrorMap | None:
        return None

    def _check_size(self, params: Params) -> None:
        if params.size != len(self.vertices[0]):
            raise ValueError(
                f"the vertices have {len(self.vertices[0])} entries, the parameters {params.size}."
            )


@dataclass(frozen=True)
class Product(Constraint):
    """Consecutive blocks of entries, each in a set of its own: `parts` holds pairs (constraint, size)."""

    parts: tuple[tuple[Constraint, int], ...]

    def __post_init__(self) -> None:
        if not self.parts or any(size < 1 for _, size in self.parts):
            raise ValueError(f"parts must be pairs (constraint, size >= 1), got {self.parts!r}.")

    @property
    def diameter(self) -> float:
        return math.hypot(*(part.diameter_in((size,)) for part, size in self.parts))

    def project(self, params: Params) -> Params:
        blocks = [part.project(block) for part, block in self._blocks(params)]
        return jnp.concatenate(blocks).reshape(params.shape)

    def contains(self, params: Params, tolerance: float = 1e-9) -> Bool[Array, ""]:
        return jnp.all(jnp.stack([part.contains(block, tolerance) for part, block in self._blocks(params)]))

    def linear_minimiser(self, gradient: Params) -> Params | None:
        points = [part.linear_minimiser(block) for part, block in self._blocks(gradient)]
        found = [point for point in points if point is not None]
        return jnp.concatenate(found).reshape(gradient.shape) if len(found) == len(points) else None

    def mirror(self, shape: Shape) -> MirrorMap | None:
        maps = [part.mirror((size,)) for part, size in self.parts]
        found = tuple(each for each in maps if each is not None)
        sizes = tuple(size for _, size in self.parts)
        return ProductMirror(found, sizes, shape) if len(found) == len(maps) else None

    def _blocks(self, params: Params) -> list[tuple[Constraint, Params]]:
        blocks = split(params, tuple(size for _, size in self.parts))
        return [(part, block) for (part, _), block in zip(self.parts, blocks, strict=True)]


def _require_radius(radius: float) -> None:
    if not (0.0 < radius <= LARGEST_RADIUS):
        raise ValueError(
            f"radius must be positive and at most {LARGEST_RADIUS:g}, got {radius!r}: use Unconstrained() for none."
        )
