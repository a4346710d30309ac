"""Every estimator, configured for small data, and the data it is tried on."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privopt.estimators.lasso import LassoClassifier, LassoRegressor
from privopt.estimators.linear import (
    HuberRegressor,
    LinearRegression,
    LinearSVC,
    LogisticRegression,
    PoissonRegressor,
    QuantileRegressor,
    Ridge,
    RobustClassifier,
    RobustRegressor,
)
from privopt.solvers.gradient_descent import GradientDescent

PENALISED_CLASSIFIERS = [LogisticRegression, LinearSVC, RobustClassifier]
PENALISED_REGRESSORS = [
    *(LinearRegression, Ridge, HuberRegressor, QuantileRegressor, PoissonRegressor, RobustRegressor)
]
PENALISED = [*PENALISED_CLASSIFIERS, *PENALISED_REGRESSORS]
CLASSIFIERS = [*PENALISED_CLASSIFIERS, LassoClassifier]
REGRESSORS = [*PENALISED_REGRESSORS, LassoRegressor]
EVERY_ESTIMATOR = [*CLASSIFIERS, *REGRESSORS]
ROWS, WIDTH = 240, 3  # one shape, so that compiled steps are shared
FEW_STEPS = GradientDescent(steps=20)


def configured(kind: Any, **changes: Any) -> Any:
    """An estimator with everything it requires and little to compute."""
    arguments: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "bounds": (-1.0, 1.0), "solver": FEW_STEPS}
    if kind in CLASSIFIERS:
        arguments["classes"] = [0, 1]
    else:
        arguments["target_bounds"] = (0.0, 6.0)
    return kind(**(arguments | changes))


def toy_data(kind: Any = LogisticRegression) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Features in [-1, 1] and a target of the right sort for an estimator."""
    generator = np.random.default_rng(5)
    features = generator.uniform(-1, 1, (ROWS, WIDTH))
    score = features @ np.array([2.0, -1.0, 0.0])
    if kind in CLASSIFIERS:
        return features, (score + 0.3 * generator.normal(size=ROWS) > 0).astype(np.int64)
    if kind is PoissonRegressor:
        return features, np.minimum(generator.poisson(np.exp(0.5 * score)), 6).astype(np.float64)
    return features, np.clip(3 + score + 0.2 * generator.normal(size=ROWS), 0, 6)
