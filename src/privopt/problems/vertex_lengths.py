"""How far the vertices of a polytope are from zero and from each other, in the l1 norm."""

from functools import cache

import numpy as np

from privopt.problems.vertices import ListedVertices, Vertices


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
