"""Rows that are hostile to a sum, as units of every layout, and what counts as the same sum."""

from typing import Any

import numpy as np
from scipy import sparse

from privopt.data.units import Units
from privopt.problems import losses

ROWS, D = 300, 5
LOSSES = {
    "logistic": losses.logistic,
    "squared": losses.squared,
    "huber": losses.huber(0.5),
    "hinge": losses.smoothed_hinge(0.5),
    "quantile": losses.quantile(0.3),
    "smoothed quantile": losses.quantile(0.3, smoothing=0.2),
    "poisson": losses.poisson(2.0, 5.0),
    "softmax": losses.softmax(3),
}


class FixedChoice:
    """A source of units that is the same every time."""

    @property
    def units_generator(self) -> np.random.Generator:
        return np.random.default_rng(7)


def hostile_features() -> np.ndarray:
    """Ordinary rows, and empty, huge, tiny, NaN, infinite and repeated ones."""
    features = np.random.default_rng(0).normal(size=(ROWS, D))
    features[0], features[1], features[2] = 0.0, 1e300, 1e-30
    features[3, 1], features[4, 0] = np.nan, -np.inf
    features[5] = features[6] = features[7]
    return features


def units_for(loss: Any, layout: str) -> Units:
    generator = np.random.default_rng(1)
    targets: Any = generator.normal(size=ROWS)
    classes = None
    if loss.name in ("logistic", "smoothed hinge"):
        targets, classes = generator.integers(0, 2, ROWS), [0, 1]
    elif loss.name == "softmax":
        targets, classes = generator.integers(0, 3, ROWS), [0, 1, 2]
    elif loss.name == "poisson":
        targets = generator.poisson(2.0, ROWS)
    features: Any = hostile_features()
    users = np.minimum(generator.integers(0, 60, ROWS), 50) if "users" in layout else None
    return Units.from_arrays(
        sparse.csr_array(features) if "sparse" in layout else features,
        targets,
        row_bound=1.2,
        intercept=0.3,
        classes=classes,
        groups=users,
        max_records_per_user=8,
        user_weighting="sqrt",
        noise=FixedChoice(),
        storage="float64" if "float64" in layout else "float32",
    )


def close(found: Any, expected: Any, *, tolerance: float = 1e-10) -> None:
    assert np.shape(found) == np.shape(expected)
    assert np.all(np.isfinite(expected))
    assert np.linalg.norm(found - expected) <= tolerance * max(np.linalg.norm(expected), 1e-3)
