"""Differentially private optimization: private models with a guarantee that the code enforces.

What a user types; everything else is imported from its own file. Estimators, encoder and report load scikit-learn and
pandas, so they are loaded when first named.
"""

import importlib
from importlib import metadata
from typing import TYPE_CHECKING, Any

from privopt.data import Units
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget
from privopt.precision import double_precision
from privopt.problems import constraints, losses, regularisers
from privopt.problems.problem import Problem
from privopt.public import Relation
from privopt.solve import (
    minimize,
    plan,
)  # after every import of the module `privopt.plan`, whose name it takes
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.stochastic_gradient_descent import StochasticGradientDescent

if TYPE_CHECKING:
    from privopt.estimators.classifiers import LinearSVC, LogisticRegression
    from privopt.estimators.regressors import (
        HuberRegressor,
        LinearRegression,
        PoissonRegressor,
        QuantileRegressor,
        Ridge,
    )
    from privopt.estimators.selection import PrivateSearchCV
    from privopt.report.report import PrivacyReport
    from privopt.tables.encoder import TabularEncoder

__version__ = metadata.version("privopt")

__all__ = [
    "Account",
    "Budget",
    "GradientDescent",
    "HuberRegressor",
    "LinearRegression",
    "LinearSVC",
    "LogisticRegression",
    "PoissonRegressor",
    "PrivacyReport",
    "PrivateSearchCV",
    "Problem",
    "QuantileRegressor",
    "Relation",
    "Ridge",
    "StochasticGradientDescent",
    "TabularEncoder",
    "Units",
    "__version__",
    "constraints",
    "double_precision",
    "losses",
    "minimize",
    "plan",
    "regularisers",
]

_LOADED_LATE = {
    "HuberRegressor": "privopt.estimators.regressors",
    "LinearRegression": "privopt.estimators.regressors",
    "LinearSVC": "privopt.estimators.classifiers",
    "LogisticRegression": "privopt.estimators.classifiers",
    "PoissonRegressor": "privopt.estimators.regressors",
    "PrivacyReport": "privopt.report.report",
    "PrivateSearchCV": "privopt.estimators.selection",
    "QuantileRegressor": "privopt.estimators.regressors",
    "Ridge": "privopt.estimators.regressors",
    "TabularEncoder": "privopt.tables.encoder",
}


def __getattr__(name: str) -> Any:
    if name not in _LOADED_LATE:
        raise AttributeError(f"module 'privopt' has no attribute {name!r}")
    value = getattr(importlib.import_module(_LOADED_LATE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
