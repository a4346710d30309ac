"""Penalties and the l1 ball: the right optimum, exact zeros, groups by name, and a free intercept."""

import math
import pickle
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn import linear_model
from sklearn.base import clone
from tests.support.configured_estimators import PENALISED, ROWS, WIDTH, configured, toy_data

from privopt.estimators.linear import LinearRegression, LogisticRegression, Ridge
from privopt.estimators.penalties import groups_of
from privopt.estimators.records import Shape
from privopt.estimators.selection import PrivateSearchCV
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.planning import descent_theory
from privopt.planning.task import Instance
from privopt.problems.constraints import Box, L1Ball, Product, Unconstrained
from privopt.problems.regularisers import L1, ElasticNet, GroupLasso, NoRegulariser
from privopt.problems.regularisers import Ridge as RidgePenalty
from privopt.solvers.gradient_descent import GradientDescent

GROUPS = [[0], [1, 2]]
FREE = (1.0, 1.0, 1.0, 0.0)  # the intercept is not penalised


def setup_for(model: Any, **options: Any) -> Any:
    return model._setup(Shape(width=WIDTH, n=ROWS, by_user=False, **options), None)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, RidgePenalty(0.1 / ROWS, FREE)),
        ({"alpha": 0.5, "fit_intercept": False}, RidgePenalty(0.5)),
        ({"alpha": 0.0}, NoRegulariser()),
        ({"penalty": None}, NoRegulariser()),
        ({"penalty": "l1", "alpha": 0.1}, L1(0.1, FREE)),
        ({"penalty": "elasticnet", "alpha": 0.1, "l1_ratio": 0.75}, ElasticNet(0.1 * 0.75, 0.1 * 0.25, FREE)),
        ({"penalty": "group", "alpha": 0.1, "feature_groups": GROUPS}, GroupLasso(0.1, ((0,), (1, 2)))),
        ({"l1_radius": 3.0}, NoRegulariser()),
    ],
)
def test_arguments_become_a_penalty_on_the_weights_alone(change: Any, expected: Any) -> None:
    assert setup_for(configured(LogisticRegression, **change)).problem.regulariser == expected


def test_the_l1_ball_holds_the_weights_and_a_box_the_intercept() -> None:
    binary = configured(LogisticRegression, l1_radius=2.0)
    assert setup_for(binary).problem.constraint == Product(((L1Ball(2.0), 3), (Box(-2.0, 2.0), 1)))
    three = clone(binary).set_params(classes=[0, 1, 2])
    assert setup_for(three).problem.constraint == Product(((L1Ball(2.0), 9), (Box(-2.0, 2.0), 3)))
    through_zero = clone(binary).set_params(fit_intercept=False)
    assert setup_for(through_zero).problem.constraint == L1Ball(2.0)
    assert setup_for(configured(LogisticRegression)).problem.constraint == Unconstrained()


def test_the_default_strength_of_a_sparse_penalty_is_the_noise_of_one_gradient() -> None:
    sparse_model = configured(LogisticRegression, penalty="l1")
    budget = Budget(1.0, 1e-6)
    setup = setup_for(sparse_model, budget=budget)
    clip = descent_theory.default_clip(Instance(setup.problem, setup.public, budget))
    assert setup.alpha == pytest.approx(2.0 * clip / (ROWS * gaussian_mu(1.0, 1e-6)))
    assert setup_for(sparse_model, budget=Budget(math.inf, 0.0)).alpha == pytest.approx(1 / ROWS)
    assert setup_for(sparse_model).alpha == pytest.approx(1 / ROWS)


def as_scikit_learn_sees(X: NDArray[np.float64], y: Any) -> Any:
    return X, (y - 3.0) / 3.0


@pytest.mark.later("1.0")
@pytest.mark.parametrize("ratio", [1.0, 0.4])
def test_without_noise_the_elastic_net_is_scikit_learns(ratio: float) -> None:
    X, y = toy_data(LinearRegression)
    model = configured(
        LinearRegression,
        epsilon=math.inf,
        penalty="l1" if ratio == 1.0 else "elasticnet",
        l1_ratio=ratio,
        alpha=0.04,
        row_bound=2.0,
        solver=GradientDescent(steps=600),
    ).fit(X, y)
    scaled, targets = as_scikit_learn_sees(X, y)
    reference = linear_model.ElasticNet(alpha=0.04, l1_ratio=ratio, tol=1e-12, max_iter=100_000)
    reference.fit(scaled, targets)
    np.testing.assert_allclose(model.coef_, 3.0 * reference.coef_, atol=1e-4)
    np.testing.assert_allclose(model.intercept_, 3.0 * reference.intercept_ + 3.0, atol=1e-4)
    assert np.array_equal(model.coef_ == 0.0, reference.coef_ == 0.0)


SPARSE = [
    {"penalty": "l1"},
    {"penalty": "elasticnet", "l1_ratio": 0.9},
    {"penalty": "group", "feature_groups": GROUPS},
]


@pytest.mark.at_once(
    "HuberRegressor-elasticnet",
    "LinearRegression-elasticnet",
    "LinearSVC-l1",
    "LogisticRegression-elasticnet",
    "PoissonRegressor-elasticnet",
    "QuantileRegressor-l1",
    "Ridge-elasticnet",
    "Ridge-group",
    "RobustClassifier-elasticnet",
    "RobustRegressor-elasticnet",
    "RobustRegressor-l1",
)
@pytest.mark.parametrize("penalty", SPARSE, ids=lambda penalty: penalty["penalty"])
@pytest.mark.parametrize("kind", PENALISED)
def test_a_strong_sparse_penalty_leaves_exact_zeros_and_the_intercept(kind: Any, penalty: Any) -> None:
    X, y = toy_data(kind)
    model = configured(kind, alpha=50.0, bounds=(-1.0, 3.0), random_state=0, **penalty).fit(X, y)
    assert not np.any(model.coef_)
    assert np.all(np.abs(model.intercept_) > 0.0)
    assert model.alpha_ == 50.0


def test_groups_vanish_together_under_noise() -> None:
    X, y = toy_data()
    wide = np.concatenate([X, np.random.default_rng(1).uniform(-1, 1, (ROWS, 4))], axis=1)
    groups = [[0, 1], [2, 3], [4, 5, 6]]
    model = configured(
        LogisticRegression, penalty="group", feature_groups=groups, alpha=0.05, epsilon=50.0, random_state=0
    ).fit(wide, y)
    kept = [np.count_nonzero(model.coef_[0, group]) for group in groups]
    assert kept == [2, 0, 0]


def test_groups_may_be_named_by_the_columns_of_a_frame() -> None:
    X, y = toy_data()
    frame = pd.DataFrame(X, columns=["age", "height", "weight"])
    seeded = configured(LogisticRegression, penalty="group", alpha=0.01, random_state=0)
    named = clone(seeded).set_params(feature_groups=[["age"], ["height", "weight"]])
    numbered = clone(seeded).set_params(feature_groups=GROUPS)
    np.testing.assert_array_equal(named.fit(frame, y).coef_, numbered.fit(X, y).coef_)
    with pytest.raises(ValueError, match="'age', but X is no DataFrame with names: give positions"):
        clone(named).fit(X, y)
    with pytest.raises(ValueError, match="'age', but X is no DataFrame"):
        named.plan(n=ROWS, n_features=WIDTH)
    assert groups_of(np.array([[0, 1]]), WIDTH, None) == ((0, 1),)


def test_the_weights_stay_in_the_ball() -> None:
    X, y = toy_data()
    model = configured(LogisticRegression, l1_radius=0.5, epsilon=20.0, random_state=0, bounds=(-2.0, 2.0))
    scaled_weights = model.fit(X, y).coef_ * 2.0
    assert 0.3 < np.abs(scaled_weights).sum() <= 0.5 * (1 + 1e-9)
    assert abs(model.intercept_[0]) <= 0.5 + 1e-9
    assert model.score(X, y) > 0.7
    assert model.alpha_ is None
    assert any("l1 ball" in sentence for sentence in model.privacy_.declared)


def test_a_linear_regression_in_the_ball_is_the_lasso() -> None:
    X, y = toy_data(LinearRegression)
    model = configured(
        LinearRegression, epsilon=math.inf, l1_radius=0.6, row_bound=2.0, solver=GradientDescent(steps=400)
    ).fit(X, y)
    assert np.abs(model.coef_ / 3.0).sum() == pytest.approx(0.6, rel=1e-6)
    assert model.coef_[2] == pytest.approx(0.0, abs=1e-6)


def test_the_report_and_the_model_tell_the_penalty() -> None:
    X, y = toy_data()
    model = configured(LogisticRegression, penalty="l1", alpha=0.01).fit(X, y)
    assert "Penalty, given by the user: the sum of the sizes of the weights." in model.privacy_.declared
    announced = configured(LogisticRegression, penalty="l1", alpha=0.01).plan(n=ROWS, n_features=WIDTH)
    assert announced.event == model.plan_.event
    assert announced.settings["penalty"] == model.plan_.settings["penalty"] == "l1"
    assert announced.settings["alpha"] == model.plan_.settings["alpha"] == 0.01
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).coef_, model.coef_)
    assert clone(model).penalty == "l1"


@pytest.mark.audit
def test_a_search_may_vary_the_penalty() -> None:
    X, y = toy_data(Ridge)
    estimator = Ridge(bounds=(-1, 1), target_bounds=(0, 6), solver=GradientDescent(steps=20))
    grid = [{"penalty": ["l1", "l2"], "alpha": [1e-3, 30.0]}, {"penalty": ["l1"]}, {"l1_radius": [1.0]}]
    found = PrivateSearchCV(estimator, grid, epsilon=300.0, delta=1e-2, random_state=0).fit(X, y)
    assert len(list(found._grid())) == 6
    assert found.best_params_.get("alpha") != 30.0


WRONG = [
    ({"penalty": "l3"}, ValueError, "penalty must be one of"),
    ({"penalty": ["l1"]}, ValueError, "penalty must be one of"),
    ({"alpha": -1.0}, ValueError, "alpha must be at least 0"),
    ({"alpha": "strong"}, ValueError, "alpha must be a number, None or 'private'"),
    ({"alpha": 0.1, "penalty": None}, ValueError, "given beside penalty=None"),
    ({"alpha": 0.1, "l1_radius": 1.0}, ValueError, "given beside l1_radius"),
    ({"penalty": "l1", "l1_radius": 1.0}, ValueError, "were both given"),
    ({"l1_radius": 0.0}, ValueError, "l1_radius must be positive"),
    ({"penalty": "elasticnet", "l1_ratio": 1.5}, ValueError, "l1_ratio must lie between 0"),
    ({"penalty": "group"}, ValueError, "feature_groups is missing"),
    ({"penalty": "group", "feature_groups": "all"}, TypeError, "must be a list of lists"),
    ({"penalty": "group", "feature_groups": [0, 1]}, TypeError, "non-empty list of columns"),
    ({"penalty": "group", "feature_groups": [[0, 3]]}, ValueError, "positions from 0 to 2"),
    ({"penalty": "group", "feature_groups": [[0, 1], [1]]}, ValueError, "holds a column twice"),
]


@pytest.mark.parametrize(("change", "error", "message"), WRONG)
def test_a_wrong_argument_gets_a_sentence(change: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        configured(LogisticRegression, **change).fit(*toy_data())
