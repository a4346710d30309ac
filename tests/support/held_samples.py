"""Points of the reference values, and neighbouring sets of points to search for the largest moves."""

import numpy as np

K, D = 40, 3


def reference_points():
    """The points of reference value R2: a curve, and two outliers."""
    j = np.arange(K)
    points = np.stack([0.3 * np.cos(1 + j), 0.2 * np.sin(2 * j), 0.1 * np.cos(3 * j + 0.5)], axis=1)
    points[38], points[39] = (2, 1, -1), (-5, 0.5, 3)
    return points


def neighbouring(rng, count, points, *, radius):
    """`count` sets of `points + 1` points; a set and its neighbour are all but the last, and all but the first.

    Clusters at critical distances, points on the edge of each other's balls, scattered points, far points.
    """
    shapes = (count, points + 1)
    kind = rng.integers(0, 5, (count, 1))
    line = rng.choice([-2.0, -1.0, 0.0, 1.0, 2.0, 40.0], shapes)
    two = np.where(
        rng.random(shapes) < rng.uniform(0.05, 0.5, (count, 1)), rng.uniform(0.5, 2.0, (count, 1)), 0.0
    )
    edge = rng.choice([0.0, 0.95, -0.95, 1.0, -1.0], shapes, p=[0.6, 0.1, 0.1, 0.1, 0.1])
    cloud = rng.normal(size=shapes) * rng.choice([0.2, 0.4, 0.8], (count, 1))
    far = np.where(
        rng.random(shapes) < 0.2, rng.choice([1e4, -1e4, 1e15], shapes), 0.3 * rng.normal(size=shapes)
    )
    first = np.select([kind == 0, kind == 1, kind == 2, kind == 3], [line, two, edge, cloud], far)
    second = np.where(rng.random((count, 1)) < 0.5, 0.0, 0.4 * rng.normal(size=shapes))
    return radius * np.stack([first, second], axis=2)
