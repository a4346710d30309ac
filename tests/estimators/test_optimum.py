"""With privacy off every model reaches scikit-learn's optimum, or a plain reference's where it has no such model."""

from typing import Any

import numpy as np
import pytest
import sklearn.linear_model
import sklearn.svm
from numpy.typing import NDArray
from scipy.optimize import minimize
from tests.support.configured_estimators import ROWS, configured, toy_data

from privopt.estimators.linear import (
    HuberRegressor,
    LinearRegression,
    LinearSVC,
    LogisticRegression,
    PoissonRegressor,
    QuantileRegressor,
    Ridge,
)
from privopt.solvers.gradient_descent import GradientDescent

ALPHA = 0.02
NO_ROW_IS_LONGER = 2.0  # than sqrt(3): the plain linear model
# Bounds that are neither symmetric nor equal, so that scaling is really undone.
LOW, HIGH = np.array([-1.0, -2.0, -1.0]), np.array([1.0, 2.0, 3.0])
CENTER, SPREAD = (LOW + HIGH) / 2, (HIGH - LOW) / 2


def exact(kind: Any, steps: int = 1500, **changes: Any) -> Any:
    return configured(
        kind,
        epsilon=np.inf,
        delta=None,
        bounds=(LOW, HIGH),
        solver=GradientDescent(steps=steps, returns="last"),
        **changes,
    )


def scaled(features: NDArray[Any]) -> NDArray[Any]:
    return (features - CENTER) / SPREAD


def unscaled(reference: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    coef = reference.coef_ / SPREAD
    return coef, reference.intercept_ - coef @ CENTER


def same(model: Any, coef: Any, intercept: Any) -> None:
    np.testing.assert_allclose(model.coef_, coef, atol=1e-4)
    np.testing.assert_allclose(model.intercept_, intercept, atol=1e-4)


def test_logistic_regression_of_two_classes() -> None:
    X, y = toy_data()
    reference = sklearn.linear_model.LogisticRegression(C=1 / (ROWS * ALPHA), tol=1e-10).fit(scaled(X), y)
    model = exact(LogisticRegression, alpha=ALPHA, row_bound=NO_ROW_IS_LONGER).fit(X, y)
    same(model, *unscaled(reference))
    np.testing.assert_allclose(model.predict_proba(X), reference.predict_proba(scaled(X)), atol=1e-4)


@pytest.mark.audit
def test_logistic_regression_of_three_classes() -> None:
    X, _ = toy_data()
    y = np.array(["low", "mid", "top"])[np.digitize(X[:, 0] + 0.3 * X[:, 1], [-0.3, 0.3])]
    reference = sklearn.linear_model.LogisticRegression(C=1 / (ROWS * ALPHA), tol=1e-10, max_iter=1000).fit(
        scaled(X), y
    )
    model = exact(
        LogisticRegression, alpha=ALPHA, classes=["low", "top", "mid"], row_bound=NO_ROW_IS_LONGER
    ).fit(X, y)
    same(model, *unscaled(reference))
    np.testing.assert_allclose(model.predict_proba(X), reference.predict_proba(scaled(X)), atol=1e-4)
    assert list(model.classes_) == ["low", "mid", "top"]


@pytest.mark.audit
def test_rows_of_length_one_where_they_are_divided() -> None:
    X, y = toy_data()
    rows = np.column_stack([scaled(X), np.ones(ROWS)])
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)

    def objective(params: NDArray[Any]) -> float:
        loss = np.logaddexp(0.0, -(2 * y - 1) * (rows @ params))
        return float(np.mean(loss) + ALPHA / 2 * params[:3] @ params[:3])

    best = minimize(objective, np.zeros(4), tol=1e-13).x
    coef = best[None, :3] / SPREAD
    model = exact(LogisticRegression, alpha=ALPHA, row_bound="unit").fit(X, y)
    same(model, coef, best[3] - coef @ CENTER)
    np.testing.assert_allclose(model.decision_function(X), rows @ best, atol=1e-4)
    np.testing.assert_array_equal(model.predict(X), (X @ model.coef_[0] + model.intercept_ > 0).astype(int))


@pytest.mark.audit
def test_support_vectors_where_the_smooth_hinge_is_a_squared_hinge() -> None:
    # (1 + width - m)^2 / (4 width) with no margin below 1 - width: liblinear's squared hinge in units of 1 + width.
    X, y = toy_data()
    width, alpha = 20.0, 0.002
    cost = 1 / (4 * width * alpha * ROWS)
    features = X / np.maximum(np.abs(LOW), np.abs(HIGH))
    reference = sklearn.svm.LinearSVC(C=cost, fit_intercept=False, tol=1e-10, max_iter=100_000).fit(
        features, y
    )
    model = exact(LinearSVC, alpha=alpha, width=width, fit_intercept=False, row_bound=NO_ROW_IS_LONGER).fit(
        X, y
    )
    same(model, (1 + width) * reference.coef_ / np.maximum(np.abs(LOW), np.abs(HIGH)), 0.0)


def test_least_squares() -> None:
    X, y = toy_data(LinearRegression)
    reference = sklearn.linear_model.LinearRegression().fit(X, y)
    model = exact(LinearRegression).fit(X, y)
    same(model, reference.coef_, reference.intercept_)
    assert model.score(X, y) == pytest.approx(reference.score(X, y), abs=1e-6)


@pytest.mark.audit
def test_ridge() -> None:
    X, y = toy_data(Ridge)
    reference = sklearn.linear_model.Ridge(alpha=ROWS * ALPHA).fit(scaled(X), y)
    same(exact(Ridge, alpha=ALPHA).fit(X, y), *unscaled(reference))


@pytest.mark.audit
def test_counts() -> None:
    X, y = toy_data(PoissonRegressor)
    reference = sklearn.linear_model.PoissonRegressor(alpha=ALPHA, tol=1e-10, max_iter=1000).fit(scaled(X), y)
    model = exact(PoissonRegressor, alpha=ALPHA, max_rate=12.0, steps=3000).fit(X, y)
    same(model, *unscaled(reference))
    assert model.score(X, y) == pytest.approx(reference.score(scaled(X), y), abs=1e-4)


@pytest.mark.audit
def test_the_median_has_the_pinball_loss_of_scikit_learns_linear_program() -> None:
    X, y = toy_data(QuantileRegressor)
    reference = sklearn.linear_model.QuantileRegressor(quantile=0.3, alpha=0.0).fit(X, y)
    model = exact(QuantileRegressor, steps=4000, alpha=0.0, quantile=0.3, smoothing=0.01).fit(X, y)

    def pinball(prediction: NDArray[Any]) -> float:
        rest = y - prediction
        return float(np.mean(np.maximum(0.3 * rest, -0.7 * rest)))

    assert (
        pinball(model.predict(X)) - pinball(reference.predict(X)) < 1e-4 * 3.0
    )  # in units of half the target's width


@pytest.mark.audit
def test_huber_against_a_plain_reference() -> None:
    X, y = toy_data(HuberRegressor)  # scikit-learn's own estimates a scale as well: another model
    features, targets, threshold = scaled(X), (y - 3) / 3, 0.1

    def objective(params: NDArray[Any]) -> float:
        rest = np.abs(features @ params[:3] + params[3] - targets)
        near = np.minimum(rest, threshold)
        return float(np.mean(near * (rest - near / 2)) + ALPHA / 2 * params[:3] @ params[:3])

    best = minimize(objective, np.zeros(4), tol=1e-14).x
    coef = 3 * best[:3] / SPREAD
    same(exact(HuberRegressor, alpha=ALPHA, threshold=0.3).fit(X, y), coef, 3 * best[3] + 3 - coef @ CENTER)
