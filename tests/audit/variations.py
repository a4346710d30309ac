"""Other queries of the same kind: at other points, near and far, with other clips."""

from dataclasses import fields, replace
from typing import Any

import numpy as np

from privopt.queries.base import Query

POINTS = {"at", "anchor", "previous", "points", "candidates", "models", "start", "gradient"}
CLIPS = {"clip", "slope_clip", "gradient_clip", "change_clip", "difference_clip", "payoff_clip", "bound"}
LEAST, MOST = 1e-95, 1e95  # of a clip: between `SMALLEST_RADIUS` and `LARGEST_RADIUS`, with room for a factor


def varied(query: Query, rng: np.random.Generator) -> Query:
    """The query as it is, or with other numbers in the fields that may hold any."""
    if rng.random() < 0.3:
        return query
    stretch = 10.0 ** rng.choice([0.0, 0.0, -3.0, 3.0, -30.0, 30.0, -90.0, 90.0])
    moved: dict[str, Any] = {}
    for one in fields(query):  # type: ignore[arg-type]  # every query is a dataclass
        value = getattr(query, one.name)
        if one.name in POINTS and isinstance(value, np.ndarray):
            moved[one.name] = another_point(value, rng)
        elif one.name in CLIPS and isinstance(value, float) and np.isfinite(value):
            moved[one.name] = float(np.clip(value * stretch, LEAST, MOST))
    return replace(query, **moved)  # type: ignore[type-var]


def another_point(point: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The point further out or in, another one, or the origin."""
    size = 10.0 ** rng.choice([0.0, 0.0, -3.0, 1.0, 6.0, 100.0, 200.0])
    return size * [point, rng.normal(size=point.shape), np.zeros_like(point)][int(rng.integers(3))]
