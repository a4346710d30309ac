"""The vertices of a polytope, and averages of them: what players of a game and vertex methods draw from.

A point is written by its weights on the vertices, w in the simplex of m numbers, or by K drawn indices, whose average
has at most K non-zero weights. Public mathematics; everything works on NumPy float64 arrays.
"""

import abc
import itertools
import math
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privopt.later import jnp
from privopt.problems.constraints import Box, Constraint, L1Ball, Polytope, Simplex

MOST_VERTICES = 1_000_000  # of a box, whose vertices are listed
Vector = NDArray[np.float64]


class Vertices(abc.ABC):
    """The m vertices of a polytope in p coordinates."""

    @property
    @abc.abstractmethod
    def count(self) -> int:
        """m."""

    @property
    @abc.abstractmethod
    def dimension(self) -> int:
        """p."""

    @property
    @abc.abstractmethod
    def largest(self) -> float:
        """The largest entry of a vertex, in absolute value."""

    @abc.abstractmethod
    def along(self, direction: Any) -> Any:
        """`<v_i, direction>` of every vertex, (p,) -> (m,); traces under JAX."""

    @abc.abstractmethod
    def mix(self, weights: ArrayLike) -> Vector:
        """The point of some weights, (m,) -> (p,)."""

    def shares(self, indices: ArrayLike) -> Vector:
        """The weights of the average of drawn vertices, (K,) indices -> (m,)."""
        drawn = np.asarray(indices, np.int64)
        return np.bincount(drawn, minlength=self.count) / len(drawn)

    def average(self, indices: ArrayLike) -> Vector:
        """The average of drawn vertices, (K,) indices -> (p,)."""
        return self.mix(self.shares(indices))

    def uniform(self) -> Vector:
        """Equal weights."""
        return np.full(self.count, 1.0 / self.count)


@dataclass(frozen=True)
class SimplexVertices(Vertices):
    """R e_1, ..., R e_p."""

    size: int
    radius: float = 1.0

    @property
    def count(self) -> int:
        return self.size

    @property
    def dimension(self) -> int:
        return self.size

    @property
    def largest(self) -> float:
        return self.radius

    def along(self, direction: Any) -> Any:
        return self.radius * direction

    def mix(self, weights: ArrayLike) -> Vector:
        return self.radius * np.asarray(weights, np.float64)


@dataclass(frozen=True)
class CrossPolytopeVertices(Vertices):
    """R e_1, ..., R e_p, -R e_1, ..., -R e_p: the l1 ball of radius R."""

    size: int
    radius: float

    @property
    def count(self) -> int:
        return 2 * self.size

    @property
    def dimension(self) -> int:
        return self.size

    @property
    def largest(self) -> float:
        return self.radius

    def along(self, direction: Any) -> Any:
        scaled = self.radius * direction
        concatenate = np.concatenate if isinstance(scaled, np.ndarray) else jnp.concatenate
        return concatenate([scaled, -scaled])

    def mix(self, weights: ArrayLike) -> Vector:
        given = np.asarray(weights, np.float64)
        return self.radius * (given[: self.size] - given[self.size :])


@dataclass(frozen=True, eq=False)
class ListedVertices(Vertices):
    """Vertices that are rows of a matrix, (m, p); equal by content."""

    rows: Vector = field(repr=False)

    def __post_init__(self) -> None:
        rows = np.array(self.rows, np.float64)
        if rows.ndim != 2 or not rows.size or not np.all(np.isfinite(rows)):
            raise ValueError(
                f"vertices must be a matrix of finite numbers, a row a vertex, got shape {rows.shape}."
            )
        rows.setflags(write=False)
        object.__setattr__(self, "rows", rows)

    @property
    def count(self) -> int:
        return len(self.rows)

    @property
    def dimension(self) -> int:
        return self.rows.shape[1]

    @property
    def largest(self) -> float:
        return float(np.max(np.abs(self.rows)))

    def along(self, direction: Any) -> Any:
        return self.rows @ direction

    def mix(self, weights: ArrayLike) -> Vector:
        return np.asarray(weights, np.float64) @ self.rows

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ListedVertices) and np.array_equal(self.rows, other.rows)

    def __hash__(self) -> int:
        return hash((self.rows.shape, self.rows.tobytes()))


def vertices_of(constraint: Constraint, size: int) -> Vertices:
    """The vertices of a set of `size` coordinates.

    Raises:
        ValueError: the set is no polytope with a list of vertices, or is one of another size, or has too many.
    """
    if isinstance(constraint, Simplex):
        return SimplexVertices(size, constraint.radius)
    if isinstance(constraint, L1Ball):
        return CrossPolytopeVertices(size, constraint.radius)
    if isinstance(constraint, Box):
        return _corners(constraint, size)
    if isinstance(constraint, Polytope):
        if constraint.matrix.shape[1] != size:
            raise ValueError(
                f"the vertices have {constraint.matrix.shape[1]} coordinates, and the set is one of {size}."
            )
        return ListedVertices(constraint.matrix)
    raise ValueError(
        f"a set of strategies must have vertices to draw, and {constraint!r} lists none: use Simplex(), "
        "L1Ball(radius), Polytope(vertices), or a Box of few coordinates."
    )


def set_of(vertices: Vertices) -> Constraint:
    """The convex hull of vertices, as a set that projects onto itself.

    Raises:
        TypeError: the vertices are of a class of somebody's own.
    """
    if isinstance(vertices, SimplexVertices):
        return Simplex(vertices.radius)
    if isinstance(vertices, CrossPolytopeVertices):
        return L1Ball(vertices.radius)
    if isinstance(vertices, ListedVertices):
        return Polytope(vertices.rows)
    raise TypeError(
        f"no projection onto the hull of {type(vertices).__name__} is known: list the vertices in a Polytope."
    )


def _corners(box: Box, size: int) -> Vertices:
    """All corners of a small box."""
    if size > math.log2(MOST_VERTICES):
        raise ValueError(
            f"a box of {size} coordinates has 2^{size} vertices, and at most {MOST_VERTICES:,} are listed: use "
            "Simplex(), L1Ball(radius) or Polytope(vertices)."
        )
    low, high = (np.broadcast_to(np.asarray(end, np.float64), (size,)) for end in (box.low, box.high))
    if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high))):
        raise ValueError(f"a set of strategies must be bounded, got {box!r}.")
    corners = itertools.product(*zip(low.tolist(), high.tolist(), strict=True))
    return ListedVertices(np.array(list(corners), np.float64).reshape(-1, size))


# ---- How far the vertices of a polytope are from zero and from each other, in the l1 norm ------------------


@cache
def longest(vertices: Vertices) -> float:
    """S, the largest l1 norm of a vertex."""
    if not isinstance(vertices, ListedVertices):
        return vertices.largest
    return float(np.max(np.sum(np.abs(vertices.rows), axis=1)))


@cache
def reach(vertices: Vertices) -> float:
    """D, at least half the largest distance of two vertices; 1 where there is only one point.

    Of listed vertices it is the largest distance from zero, or from the middle of their coordinates if that is smaller.
    """
    if not isinstance(vertices, ListedVertices):
        return vertices.largest
    middle = 0.5 * (np.max(vertices.rows, axis=0) + np.min(vertices.rows, axis=0))
    far = min(longest(vertices), float(np.max(np.sum(np.abs(vertices.rows - middle), axis=1))))
    return far * (1.0 + 2.0**-40) if far > 0 else 1.0  # a sum of entries, rounded up
