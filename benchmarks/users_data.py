"""Tables whose records belong to people, cut by people: real ones by their public schemas, and generated ones."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from benchmarks.datasets import load
from privopt import LinearRegression, LogisticRegression, PoissonRegressor

Kind = Literal["logistic", "squared", "counts"]

MOVIES, RANDHIE, FEW, SPENDING, VISITS = (
    "movietweetings",
    "randhie",
    "few",
    "randhie-lnmeddol",
    "randhie-mdvis",
)
HELD_OUT = (MOVIES, RANDHIE, FEW)
OTHER_LOSSES = (SPENDING, VISITS)
ESTIMATORS: Mapping[Kind, Any] = {
    "logistic": LogisticRegression,
    "squared": LinearRegression,
    "counts": PoissonRegressor,
}
TINY_PENALTY = 1e-6  # of the reference, so that it exists
FEW_SEED, FEW_USERS, FEW_WIDTH, FEW_CAP = 7, 1000, 40, 200
SYNTHETIC_WIDTH, SYNTHETIC_LENGTH = 20, 2.0
SYNTHETIC_BOUND = 5.8  # a row is seldom longer
SYNTHETIC_DELTA = 1e-6
POPULATION = 200_000  # fresh records, one a user, that stand for the population
QUICK_ROWS = 4_000


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class UserTable:
    """Records of people, some of whom are held out.

    Attributes:
        name: what it is called.
        kind: the loss.
        rows: float64 features of the training records.
        targets: class codes 0 and 1, or numbers.
        groups: one integer a training record, its user.
        test_rows: features of the records of people held out.
        test_targets: their targets.
        arguments: of the estimator: bounds, labels, rows' lengths.
        delta: of the privacy budget.
        reference: mean loss on the held-out records without privacy.
        zero: the same of the model that is zero.
    """

    name: str
    kind: Kind
    rows: NDArray[np.float64]
    targets: NDArray[Any]
    groups: NDArray[np.int64]
    test_rows: NDArray[np.float64]
    test_targets: NDArray[Any]
    arguments: Mapping[str, Any]
    delta: float
    reference: float = field(init=False)
    zero: float = field(init=False)

    def __post_init__(self) -> None:
        design, test = self.design(self.rows), self.design(self.test_rows)
        population = self.name.startswith("synthetic")
        fitted = (test, self.test_targets) if population else (design, self.targets)
        best = fit_without_privacy(self.kind, *fitted)
        object.__setattr__(self, "reference", mean_loss(self.kind, test @ best, self.test_targets))
        zero = np.zeros(len(test))
        object.__setattr__(self, "zero", mean_loss(self.kind, zero, self.test_targets))

    @property
    def users(self) -> int:
        """How many people are trained on."""
        return len(np.unique(self.groups))

    @property
    def median_records(self) -> float:
        """The median number of training records of a person."""
        return float(np.median(np.unique(self.groups, return_counts=True)[1]))

    def design(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Rows as the model sees them, up to the scale of a column where no row is divided by its length."""
        if not self.arguments.get("fit_intercept", True):
            seen = rows
        else:
            seen = np.concatenate([rows, np.ones((len(rows), 1))], axis=1)
        if self.kind != "logistic":
            return seen
        lengths = np.linalg.norm(seen, axis=1, keepdims=True)
        bound = self.arguments.get("row_bound", "unit")
        return seen / (lengths if bound == "unit" else np.maximum(lengths / bound, 1.0))

    def loss(self, model: Any) -> float:
        """Mean loss of a fitted estimator on the held-out records."""
        if self.kind == "logistic":
            return mean_loss("logistic", model.decision_function(self.test_rows), self.test_targets)
        found = model.predict(self.test_rows)
        return mean_loss(self.kind, np.log(found) if self.kind == "counts" else found, self.test_targets)


def mean_loss(kind: Kind, scores: NDArray[np.float64], targets: NDArray[Any]) -> float:
    """Log-loss, half the squared error, or half the Poisson deviance without its constant."""
    if kind == "logistic":
        return float(np.mean(np.logaddexp(0.0, (1.0 - 2.0 * targets) * scores)))
    if kind == "squared":
        return float(np.mean(0.5 * (scores - targets) ** 2))
    return float(np.mean(np.exp(scores) - targets * scores))


def fit_without_privacy(
    kind: Kind, design: NDArray[np.float64], targets: NDArray[Any]
) -> NDArray[np.float64]:
    """The least mean loss over records, all but unpenalised."""
    rows = len(design)
    if kind == "squared":
        moment = design.T @ design / rows + TINY_PENALTY * np.eye(design.shape[1])
        return np.asarray(np.linalg.solve(moment, design.T @ targets / rows), np.float64)

    def value(params: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        scores = design @ params
        slopes = expit(scores) - targets if kind == "logistic" else np.exp(scores) - targets
        loss = mean_loss(kind, scores, targets) + 0.5 * TINY_PENALTY * float(params @ params)
        return loss, design.T @ slopes / rows + TINY_PENALTY * params

    options = {"maxiter": 2000, "maxfun": 4000, "ftol": 1e-13, "gtol": 1e-8}
    found = minimize(value, np.zeros(design.shape[1]), jac=True, method="L-BFGS-B", options=options)
    return np.asarray(found.x)


def user_table(name: str, seed: int, shared: Path, *, quick: bool = False) -> UserTable:
    """One cut of a table.

    Args:
        name: one of `HELD_OUT` or `OTHER_LOSSES`, or "synthetic n=1000 m=10 h=0".
        seed: of the cut, and of the records of a synthetic table.
        shared: the folder of the shared data.
        quick: fewer people.
    """
    if name == FEW:
        return few(seed, users=200 if quick else FEW_USERS)
    if name.startswith("synthetic"):
        settings = dict(part.split("=") for part in name.split()[1:])
        n, m = int(settings["n"]), int(settings["m"])
        return synthetic(n, m, float(settings["h"]), seed, population=5_000 if quick else POPULATION)
    return _real(name, seed, shared, QUICK_ROWS if quick else None)


def _real(name: str, seed: int, shared: Path, rows: int | None) -> UserTable:
    """A shared data set, by its schema's public ranges."""
    data, _, target = name.partition("-")
    wanted = "binexp" if name == RANDHIE else target or None
    X, y, X_test, y_test, info = load(data, shared, target=wanted, seed=seed, train=rows, sparse_output=False)
    assert info.groups_train is not None
    kind: Kind = "counts" if name == VISITS else "squared" if name == SPENDING else "logistic"
    outcome: dict[str, Any] = {"target_bounds": info.bounds}
    if info.classes is not None:
        outcome = {"classes": list(info.classes), "row_bound": "unit"}
    return UserTable(
        name=name,
        kind=kind,
        rows=np.asarray(X, np.float64),
        targets=y,
        groups=info.groups_train,
        test_rows=np.asarray(X_test, np.float64),
        test_targets=y_test,
        arguments={"bounds": (-1, 1), **outcome},
        delta=1.0 / len(np.unique(info.groups_train)) ** 2,
    )


def few(seed: int, *, users: int = FEW_USERS) -> UserTable:
    """A thousand people with 1 to 200 records each, who differ in their features and in what follows from them."""
    rng = np.random.default_rng(FEW_SEED)
    counts = np.minimum(1 + rng.geometric(0.02, users), FEW_CAP)
    offsets = rng.normal(size=(users, FEW_WIDTH)) * 0.5
    centre = rng.normal(size=FEW_WIDTH + 1) * 10.0 / math.sqrt(FEW_WIDTH + 1)
    groups = np.repeat(np.arange(users), counts)
    wide = rng.normal(size=(len(groups), FEW_WIDTH)) + offsets[groups]
    rows = np.concatenate([wide, np.ones((len(groups), 1))], axis=1)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    own = centre + rng.normal(size=(users, FEW_WIDTH + 1))
    odds = 2.0 * np.einsum("ij,ij->i", rows, own[groups])
    targets = (rng.random(len(odds)) < expit(odds)).astype(np.int64)
    chosen = np.isin(groups, np.random.default_rng(seed).permutation(users)[: round(0.8 * users)])
    return UserTable(
        name=FEW,
        kind="logistic",
        rows=rows[chosen],
        targets=targets[chosen],
        groups=groups[chosen],
        test_rows=rows[~chosen],
        test_targets=targets[~chosen],
        arguments={"bounds": (-1, 1), "classes": [0, 1], "fit_intercept": False},
        delta=1.0 / len(np.unique(groups[chosen])) ** 2,
    )


def synthetic(n: int, m: int, h: float, seed: int, *, population: int = POPULATION) -> UserTable:
    """n people with m records each of a logistic model: 20 features of variances 1 / i that sum to 20, |w| = 2.

    People differ by `w_j = w + 2 h N(0, I / 20)`. What is held out is a large sample of the population, and the
    reference is the least loss on it.
    """
    rng = np.random.default_rng([seed, n, m, round(100 * h)])
    variances = 1.0 / np.arange(1, SYNTHETIC_WIDTH + 1)
    scales = np.sqrt(variances * SYNTHETIC_WIDTH / variances.sum())
    signs = np.where(np.arange(SYNTHETIC_WIDTH) % 2 == 0, 1.0, -1.0)
    centre = SYNTHETIC_LENGTH * signs / math.sqrt(SYNTHETIC_WIDTH)

    def records(groups: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        people = int(groups[-1]) + 1
        own = centre + SYNTHETIC_LENGTH * h * rng.normal(size=(people, SYNTHETIC_WIDTH)) / math.sqrt(
            SYNTHETIC_WIDTH
        )
        rows = rng.normal(size=(len(groups), SYNTHETIC_WIDTH)) * scales
        odds = np.einsum("ij,ij->i", rows, own[groups])
        return rows / SYNTHETIC_BOUND, (rng.random(len(odds)) < expit(odds)).astype(np.int64)

    groups = np.repeat(np.arange(n), m)
    rows, targets = records(groups)
    test_rows, test_targets = records(np.arange(population))
    return UserTable(
        name=f"synthetic n={n} m={m} h={h:g}",
        kind="logistic",
        rows=rows,
        targets=targets,
        groups=groups,
        test_rows=test_rows,
        test_targets=test_targets,
        arguments={"bounds": (-1, 1), "classes": [0, 1], "fit_intercept": False, "row_bound": 1.0},
        delta=SYNTHETIC_DELTA,
    )
