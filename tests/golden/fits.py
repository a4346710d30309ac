"""Golden fits of estimators: one for each way in which a fit can go, five of them over several lanes of a kernel."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import sparse
from tests.golden.comparing import Line
from tests.golden.transcripts import line_of_run, recorded

import privopt

BUDGET: Mapping[str, Any] = {"epsilon": 2.0, "delta": 1e-6}
SEED = 5
ROWS, WIDTH = 600, 4
MANY = 30_000  # rows of five columns: more than 2^16 entries, so that a pass has more than one lane, and several blocks
SCHEMA: Mapping[str, Any] = {
    "target": "ill",
    "user": "person",
    "columns": {
        "age": {"kind": "num", "low": 0, "high": 100},
        "sex": {"kind": "cat", "levels": ["f", "m"]},
        "smoker": {"kind": "flag"},
        "person": {"kind": "id"},
        "ill": {"kind": "flag"},
    },
}


class Fit(NamedTuple):
    """An estimator by name, its arguments, and the form of the data."""

    kind: str
    arguments: Mapping[str, Any] = {}
    rows: int = ROWS
    classes: int = 2
    users: int = 0  # records of each; 0 where a record is the unit
    form: str = "dense"  # or "sparse", "missing", "table", "table of users"
    search: Mapping[str, Any] | None = None

    @property
    def predicts_numbers(self) -> bool:
        """Whether the target is a number, a count among them."""
        return self.kind.endswith("Regressor") or self.kind in ("LinearRegression", "Ridge")


FITS: Mapping[str, Fit] = {
    "logistic": Fit("LogisticRegression"),
    "logistic, add or remove one": Fit("LogisticRegression", {"relation": "add-or-remove-one", "n": ROWS}),
    "logistic, without a constant, rows of unit length": Fit(
        "LogisticRegression", {"fit_intercept": False, "row_bound": "unit"}
    ),
    "logistic, three classes": Fit("LogisticRegression", classes=3),
    "logistic, users": Fit("LogisticRegression", {"max_records_per_user": 3}, users=4),
    "logistic, sparse": Fit("LogisticRegression", form="sparse"),
    "logistic, missing cells": Fit(
        "LogisticRegression", {"missing": "indicator", "indicator": [1]}, form="missing"
    ),
    "logistic, loose bounds": Fit("LogisticRegression", {"bounds": None, "loose_bounds": (-1000.0, 1000.0)}),
    "logistic, a chosen penalty": Fit("LogisticRegression", {"alpha": "private", "alphas": [1e-3, 1e-1]}),
    "logistic, a search": Fit("LogisticRegression", search={"penalty": [None, "l2"]}),
    "logistic, elastic net": Fit("LogisticRegression", {"penalty": "elasticnet"}),
    "logistic, table": Fit("LogisticRegression", form="table"),
    "logistic, table of users": Fit("LogisticRegression", {"max_records_per_user": 3}, form="table of users"),
    "support vectors": Fit("LinearSVC"),
    "support vectors, sampled": Fit("LinearSVC", {"solver": "stochastic-gradient-descent"}),
    "least squares": Fit("LinearRegression"),
    "ridge": Fit("Ridge"),
    "ridge, missing targets count as nothing": Fit("Ridge", {"missing": "zero"}, form="missing"),
    "huber": Fit("HuberRegressor"),
    "quantile": Fit("QuantileRegressor", {"quantile": 0.8}),
    "counts": Fit("PoissonRegressor"),
    "robust classes": Fit("RobustClassifier"),
    "robust numbers": Fit("RobustRegressor"),
    "lasso, classes": Fit("LassoClassifier", {"radius": 2.0}),
    "lasso, numbers, refitted": Fit("LassoRegressor", {"radius": 2.0, "refit": True}),
    "fair": Fit(
        "FairClassifier", {"sensitive_values": ["a", "b"], "shares": "private", "report_groups": 0.1}
    ),
    "large, logistic": Fit("LogisticRegression", rows=MANY),
    "large, ridge of eight bits": Fit("Ridge", {"storage": "int8"}, rows=MANY),
    "large, three classes": Fit("LogisticRegression", {"solver": "gradient-descent"}, rows=MANY, classes=3),
    "large, users": Fit("LogisticRegression", {"max_records_per_user": 3}, rows=MANY, users=4),
    "large, variance-reduced": Fit("LogisticRegression", {"solver": "svrg"}, rows=MANY),
}


def fit_runs() -> Iterator[tuple[str, Callable[[], Line]]]:
    """Every fit."""
    for name, fit in FITS.items():
        yield name, partial(_fitted, fit)


def _fitted(fit: Fit) -> Line:
    model, private_data = _model(fit), _data(fit)
    with recorded() as releases, tempfile.TemporaryDirectory() as folder:
        if fit.form.startswith("table"):
            model.fit(_table(Path(folder)), **({"groups": "person"} if "users" in fit.form else {}))
        else:
            model.fit(*private_data[:2], **private_data[2])
    fitted = model if fit.search is None else model.best_estimator_
    return line_of_run(
        releases, model.plan_, [fitted.coef_, fitted.intercept_], {"report": str(model.privacy_)}
    )


def _model(fit: Fit) -> Any:
    """The estimator, with everything that it requires."""
    known: dict[str, Any] = {}
    if not fit.form.startswith("table"):
        known["bounds"] = (-1.0, 1.0)
        known |= (
            {"target_bounds": (0.0, 6.0)} if fit.predicts_numbers else {"classes": list(range(fit.classes))}
        )
    make, given = getattr(privopt, fit.kind), {**BUDGET, "random_state": SEED}
    if fit.search is None:
        return make(**(given | known | fit.arguments))
    return privopt.PrivateSearchCV(make(**(known | fit.arguments)), fit.search, **given)


def _data(fit: Fit) -> tuple[Any, Any, dict[str, Any]]:
    """Features in [-1, 1], targets of the right sort, and what else `fit` takes."""
    draw = np.random.default_rng(7)
    features = draw.uniform(-1, 1, (fit.rows, WIDTH))
    score = features @ np.array([2.0, -1.0, 0.5, 0.0]) + 0.3 * draw.normal(size=fit.rows)
    targets = np.digitize(score, np.linspace(-1, 1, fit.classes + 1)[1:-1]).astype(np.int64)
    if fit.predicts_numbers:
        targets = np.clip(3 + score, 0, 6)
    if fit.kind == "PoissonRegressor":
        targets = np.minimum(draw.poisson(np.exp(score / 2)), 6).astype(np.float64)
    more: dict[str, Any] = {"groups": np.arange(fit.rows) // fit.users} if fit.users else {}
    if fit.kind == "FairClassifier":
        more["sensitive_features"] = np.where(features[:, 3] > 0.3, "a", "b")
    if fit.form == "missing":
        features[draw.uniform(size=features.shape) < 0.1] = np.nan
    if fit.form == "sparse":
        features[np.abs(features) < 0.5] = 0.0
        return sparse.csr_array(features), targets, more
    return features, targets, more


def _table(folder: Path) -> privopt.Table:
    """A table of users' records in a file, some cells of which cannot be read."""
    draw = np.random.default_rng(7)
    age, smoker = draw.uniform(-5, 105, ROWS), draw.integers(0, 2, ROWS)
    lean = age / 50 - 1 + smoker + draw.normal(0, 0.5, ROWS)
    records = pd.DataFrame(
        {
            "age": age,
            "sex": draw.choice(["f", "m", "", "n"], ROWS),
            "smoker": smoker,
            "person": [f"p{row // 3}" for row in range(ROWS)],
            "ill": (lean > 0.5).astype(int),
        }
    )
    records.to_csv(folder / "records.csv", index=False)
    return privopt.Table.open(folder / "records.csv", SCHEMA)
