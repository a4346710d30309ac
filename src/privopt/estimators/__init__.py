"""scikit-learn estimators: arguments in, solver called, attributes out. They hide no privacy choice."""

from privopt.estimators.classifiers import LinearSVC, LogisticRegression
from privopt.estimators.regressors import (
    HuberRegressor,
    LinearRegression,
    PoissonRegressor,
    QuantileRegressor,
    Ridge,
)

__all__ = [
    "HuberRegressor",
    "LinearRegression",
    "LinearSVC",
    "LogisticRegression",
    "PoissonRegressor",
    "QuantileRegressor",
    "Ridge",
]
