"""Differentially private optimization: private models with a guarantee that the code enforces.

What a user types; everything else is imported from its own file. A name is loaded when it is first used, so that
`import privopt` and the command line start at once.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from privopt import certify, papers, solvers
    from privopt.curator.journals import resumable
    from privopt.data.units import Units
    from privopt.estimators.fair import FairClassifier
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
    from privopt.estimators.saving import load
    from privopt.estimators.selection import PrivateSearchCV
    from privopt.estimators.synthetic_data import SyntheticData
    from privopt.ledger.account import Account
    from privopt.ledger.amounts import Budget
    from privopt.mean_of_users import user_mean
    from privopt.planning.users import clip_from
    from privopt.precision import double_precision
    from privopt.problems import constraints, losses, regularisers
    from privopt.problems.black_box import BlackBox
    from privopt.problems.grouped_loss import GroupedLoss
    from privopt.problems.growth import KL
    from privopt.problems.problem import Problem
    from privopt.problems.saddle import BilinearGame, SaddleProblem
    from privopt.public import Relation
    from privopt.report.report import PrivacyReport
    from privopt.solve import minimize, plan
    from privopt.solve_games import minimax
    from privopt.solvers.stationary_selection import select_stationary
    from privopt.tables.encoder import TabularEncoder
    from privopt.tables.table import Table

    __version__: str

__all__ = [
    "KL",
    "Account",
    "BilinearGame",
    "BlackBox",
    "Budget",
    "FairClassifier",
    "GroupedLoss",
    "HuberRegressor",
    "LassoClassifier",
    "LassoRegressor",
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
    "RobustClassifier",
    "RobustRegressor",
    "SaddleProblem",
    "SyntheticData",
    "Table",
    "TabularEncoder",
    "Units",
    "__version__",
    "certify",
    "clip_from",
    "constraints",
    "double_precision",
    "load",
    "losses",
    "minimax",
    "minimize",
    "papers",
    "plan",
    "regularisers",
    "resumable",
    "select_stationary",
    "solvers",
    "user_mean",
]

_HOME = {
    "certify": "privopt",
    "clip_from": "privopt.planning.users",
    "select_stationary": "privopt.solvers.stationary_selection",
    "Account": "privopt.ledger.account",
    "BilinearGame": "privopt.problems.saddle",
    "BlackBox": "privopt.problems.black_box",
    "Budget": "privopt.ledger.amounts",
    "FairClassifier": "privopt.estimators.fair",
    "GroupedLoss": "privopt.problems.grouped_loss",
    "HuberRegressor": "privopt.estimators.linear",
    "KL": "privopt.problems.growth",
    "LassoClassifier": "privopt.estimators.lasso",
    "LassoRegressor": "privopt.estimators.lasso",
    "LinearRegression": "privopt.estimators.linear",
    "LinearSVC": "privopt.estimators.linear",
    "LogisticRegression": "privopt.estimators.linear",
    "PoissonRegressor": "privopt.estimators.linear",
    "PrivacyReport": "privopt.report.report",
    "PrivateSearchCV": "privopt.estimators.selection",
    "Problem": "privopt.problems.problem",
    "QuantileRegressor": "privopt.estimators.linear",
    "Relation": "privopt.public",
    "Ridge": "privopt.estimators.linear",
    "RobustClassifier": "privopt.estimators.linear",
    "RobustRegressor": "privopt.estimators.linear",
    "SaddleProblem": "privopt.problems.saddle",
    "minimax": "privopt.solve_games",
    "SyntheticData": "privopt.estimators.synthetic_data",
    "Table": "privopt.tables.table",
    "TabularEncoder": "privopt.tables.encoder",
    "Units": "privopt.data.units",
    "constraints": "privopt.problems",
    "solvers": "privopt",
    "papers": "privopt",
    "double_precision": "privopt.precision",
    "load": "privopt.estimators.saving",
    "losses": "privopt.problems",
    "minimize": "privopt.solve",
    "plan": "privopt.solve",
    "resumable": "privopt.curator.journals",
    "regularisers": "privopt.problems",
    "user_mean": "privopt.mean_of_users",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib import metadata

        value: Any = metadata.version("privopt")
    elif name in _HOME:
        is_module = _HOME[name] in ("privopt", "privopt.problems")
        value = (
            importlib.import_module(f"{_HOME[name]}.{name}")
            if is_module
            else getattr(importlib.import_module(_HOME[name]), name)
        )
    else:
        from privopt import papers, solvers

        homes = (room.__name__ for room in (solvers, papers) if name in room.__all__)
        moved = next((f": it is {home}.{name}" for home in homes), "")
        raise AttributeError(f"module 'privopt' has no attribute {name!r}{moved}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return list(__all__)
