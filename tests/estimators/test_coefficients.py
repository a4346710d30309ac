"""What the coefficients of every estimator are: the formula of its scores, and the units."""

from typing import Any

import numpy as np
import pytest
from tests.support.configured_estimators import (
    CLASSIFIERS,
    FEW_STEPS,
    PENALISED_CLASSIFIERS,
    PENALISED_REGRESSORS,
    REGRESSORS,
    configured,
    toy_data,
)

from privopt import FairClassifier, PrivateSearchCV
from privopt.estimators.lasso import LassoClassifier
from privopt.estimators.linear import HuberRegressor, LinearSVC, LogisticRegression, PoissonRegressor
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.whitening import Whitening
from privopt.solvers.worst_group_descent import WorstGroupDescent

WHITENED = Whitening(inner=GradientDescent(steps=5))
LINEAR = [{}, {"row_bound": "entries"}, {"row_bound": 1.5}, {"solver": FEW_STEPS}]
BY_LENGTH = [{"row_bound": "unit"}, {"row_bound": "unit", "solver": FEW_STEPS}, {"fit_intercept": False}]
TRUTH = np.array([1.0, -2.0, 0.5])


def fitted(kind: Any, **changes: Any) -> Any:
    """A model of toy data, whitened where it may be."""
    default = FEW_STEPS if kind is LassoClassifier else WHITENED
    X, y = toy_data(LogisticRegression if kind is FairClassifier else kind)
    if kind is FairClassifier:
        given = {"epsilon": 1.0, "delta": 1e-6, "bounds": (-1.0, 1.0), "classes": [0, 1]}
        inner = WorstGroupDescent(steps=5)
        solver = inner if changes.get("solver") is FEW_STEPS else Whitening(inner=inner)
        model = FairClassifier(**(given | {"sensitive_values": [0, 1], "shares": [0.5, 0.5]} | changes))
        groups = np.arange(len(y)) % 2
        return model.set_params(solver=solver).fit(X, y, sensitive_features=groups), X
    return configured(kind, **({"solver": default} | changes)).fit(X, y), X


def three_classes(kind: Any, **changes: Any) -> Any:
    """A model of three classes."""
    X, y = toy_data()
    labels = y + (X[:, 2] > 0.5)
    return configured(kind, **({"solver": WHITENED, "classes": [0, 1, 2]} | changes)).fit(X, labels), X


def scores(model: Any, X: Any) -> Any:
    """`X @ coef_.T + intercept_`, shaped like what `decision_function` gives."""
    linear = X @ model.coef_.T + model.intercept_
    return linear[:, 0] if linear.shape[1] == 1 else linear


@pytest.mark.at_once(
    "FairClassifier-changes2",
    "LassoClassifier-changes1",
    "LassoClassifier-changes2",
    "LogisticRegression-changes3",
    "RobustClassifier-changes3",
)
@pytest.mark.parametrize("changes", LINEAR)
@pytest.mark.parametrize("kind", [*CLASSIFIERS, FairClassifier])
def test_scores_are_linear_by_default_and_where_rows_are_not_divided(kind: Any, changes: Any) -> None:
    model, X = fitted(kind, **changes)
    far = 3.0 * X
    assert model.row_lengths_ is None
    np.testing.assert_allclose(model.decision_function(far), scores(model, far), rtol=1e-12, atol=1e-12)
    assert "divided by the length of the record's scaled row" not in model.privacy_.model.meaning


@pytest.mark.at_once(
    "FairClassifier-changes0", "LinearSVC-changes1", "LinearSVC-changes2", "LogisticRegression-changes0"
)
@pytest.mark.parametrize("changes", BY_LENGTH)
@pytest.mark.parametrize("kind", [LogisticRegression, LinearSVC, FairClassifier])
def test_elsewhere_scores_are_divided_by_the_length_of_each_row(kind: Any, changes: Any) -> None:
    model, X = fitted(kind, **changes)
    expected = scores(model, X) / model.row_lengths_.of(X)
    np.testing.assert_allclose(model.decision_function(X), expected, rtol=1e-12, atol=1e-12)
    assert "divided by the length of the record's scaled row" in model.privacy_.model.meaning


@pytest.mark.later("changes0")
@pytest.mark.parametrize("changes", [{}, {"row_bound": "unit"}, {"row_bound": 2.0}])
def test_several_classes_have_the_same_formulas(changes: Any) -> None:
    model, X = three_classes(LogisticRegression, **changes)
    length = 1.0 if model.row_lengths_ is None else model.row_lengths_.of(X)[:, None]
    np.testing.assert_allclose(model.decision_function(X), scores(model, X) / length, rtol=1e-12, atol=1e-12)
    assert (model.row_lengths_ is None) == (changes != {"row_bound": "unit"})


@pytest.mark.at_once("PoissonRegressor", "RobustRegressor")
@pytest.mark.parametrize("kind", REGRESSORS)
def test_predictions_of_a_regression_are_linear_or_the_exponential_of_that(kind: Any) -> None:
    model, X = fitted(kind, solver=FEW_STEPS)
    linear = X @ model.coef_ + model.intercept_
    expected = np.minimum(np.exp(linear), model.max_rate_) if kind is PoissonRegressor else linear
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.at_once(
    "HuberRegressor-solver6",
    "LassoClassifier-solver3",
    "LassoRegressor-solver10",
    "LinearRegression-solver4",
    "LinearSVC-solver12",
    "PoissonRegressor-solver8",
    "QuantileRegressor-solver7",
    "Ridge-solver5",
    "RobustClassifier-solver2",
)
@pytest.mark.parametrize(
    ("kind", "solver"),
    [
        *((kind, FEW_STEPS) for kind in (*CLASSIFIERS, *REGRESSORS)),
        *((kind, WHITENED) for kind in (*PENALISED_CLASSIFIERS, *PENALISED_REGRESSORS)),
    ],
)
def test_a_coefficient_is_per_unit_of_its_column(kind: Any, solver: Any) -> None:
    X, y = toy_data(kind)
    units = np.array([4.0, 0.25, 1.0])
    common = {"solver": solver, "random_state": 0}
    plain = configured(kind, **common).fit(X, y)
    scaled = configured(kind, bounds=(-units, units), **common).fit(X * units, y)
    np.testing.assert_allclose(scaled.coef_ * units, plain.coef_, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(scaled.intercept_, plain.intercept_, rtol=1e-6, atol=1e-9)


@pytest.mark.later("HuberRegressor", "LassoRegressor", "RobustRegressor")
@pytest.mark.parametrize("kind", [kind for kind in REGRESSORS if kind is not PoissonRegressor])
def test_a_coefficient_of_a_regression_is_in_units_of_the_target(kind: Any) -> None:
    X, y = toy_data(kind)
    options = {"threshold": 1.0} if kind is HuberRegressor else {}
    plain = configured(kind, random_state=0, **options).fit(X, y)
    options = {name: 8.0 * value for name, value in options.items()}
    scaled = configured(kind, random_state=0, target_bounds=(0.0, 48.0), **options).fit(X, 8.0 * y)
    np.testing.assert_allclose(scaled.coef_, 8.0 * plain.coef_, rtol=1e-6)
    np.testing.assert_allclose(scaled.intercept_, 8.0 * plain.intercept_, rtol=1e-6)


@pytest.mark.later("options0")
@pytest.mark.parametrize("options", [{}, {"row_bound": 2.0}])
def test_coefficients_are_log_odds(options: Any) -> None:
    generator = np.random.default_rng(0)
    X = generator.uniform(-1.0, 1.0, (60_000, 3))
    y = (X @ TRUTH + generator.logistic(size=len(X)) > 0).astype(int)
    given: Any = {"epsilon": 50.0, "delta": 1e-9, "bounds": (-1.0, 1.0), "classes": [0, 1], "random_state": 0}
    model = LogisticRegression(**given, **options).fit(X, y)
    np.testing.assert_allclose(model.coef_[0], TRUTH, rtol=0.05)
    chances = model.predict_proba(X)[:, 1]
    for low in (0.1, 0.3, 0.5, 0.7):
        inside = (chances >= low) & (chances < low + 0.2)
        assert np.mean(y[inside]) == pytest.approx(np.mean(chances[inside]), abs=0.02)


@pytest.mark.audit
def test_a_candidate_of_a_search_divides_rows_as_its_own_rule_says() -> None:
    X, y = toy_data()
    model = LogisticRegression(bounds=(-1.0, 1.0), classes=[0, 1], solver=WHITENED)
    grid = {"row_bound": ["unit", 2.0, None]}
    search = PrivateSearchCV(model, grid, epsilon=1.0, delta=1e-6, refit=False, random_state=3).fit(X, y)
    found = search.best_estimator_
    assert (found.row_lengths_ is not None) == (search.best_params_["row_bound"] == "unit")
