"""The model that a fit returns is the one that it trained: the objective of its own predictions is the fit's."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.configured_estimators import (
    CLASSIFIERS,
    EVERY_ESTIMATOR,
    FEW_STEPS,
    PENALISED_CLASSIFIERS,
    configured,
    toy_data,
)

from privopt import FairClassifier
from privopt.estimators.linear import LogisticRegression, PoissonRegressor, PrivateClassifier
from privopt.estimators.records import HeldRecords, Shape
from privopt.estimators.setup import Setup
from privopt.mechanisms.noise import NoiseSource
from privopt.precision import double_precision
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.whitening import Whitening
from privopt.solvers.worst_group_descent import WorstGroupDescent

WHITENED = Whitening(inner=GradientDescent(steps=5))
CASES = [
    *((kind, {}) for kind in EVERY_ESTIMATOR),
    *((kind, {"row_bound": "unit"}) for kind in PENALISED_CLASSIFIERS),
    (LogisticRegression, {"classes": [0, 1, 2]}),
    (LogisticRegression, {"classes": [0, 1, 2], "row_bound": "unit"}),
    (LogisticRegression, {"alpha": 10.0}),
    (LogisticRegression, {"fit_intercept": False}),
    (FairClassifier, {}),
    (FairClassifier, {"row_bound": "unit"}),
]


def trained(kind: Any, monkeypatch: Any, **changes: Any) -> tuple[Any, Any, Any, Setup, Any]:
    """A model of rows 1 to 2 long, its rows and targets, and the parameters that its solver found."""
    found: list[tuple[Setup, Any]] = []
    unscaled = Setup.unscaled

    def watched(setup: Setup, params: Any) -> Any:
        found.append((setup, np.asarray(params, np.float64)))
        return unscaled(setup, params)

    monkeypatch.setattr(Setup, "unscaled", watched)
    X, y = toy_data(LogisticRegression if kind is FairClassifier else kind)
    X = X * np.linspace(0.0, 1.0, len(X))[:, None]
    if kind is FairClassifier:
        solver = Whitening(inner=WorstGroupDescent(steps=5))
        given = {"epsilon": 1.0, "delta": 1e-6, "bounds": (-1.0, 1.0), "classes": [0, 1], "solver": solver}
        model = FairClassifier(sensitive_values=[0], shares=[1.0], **given, **changes)
        return (
            model.fit(X, y, sensitive_features=np.zeros(len(y), int)),
            X,
            np.where(y == 1, 1.0, -1.0),
            *found[-1],
        )
    if len(changes.get("classes", ())) == 3:
        y = y + (X[:, 2] > 0.25)
    ball = kind in EVERY_ESTIMATOR and "Lasso" in kind.__name__
    given = {"solver": FEW_STEPS if ball else WHITENED, "random_state": 0}  # no rate is cut at the largest
    model = configured(kind, **(given | changes)).fit(X, y)
    setup, params = found[-1]
    records = HeldRecords(
        private_features=X, private_targets=y, groups=None, noise=NoiseSource(0), choice=NoiseSource(0)
    )
    return model, X, np.asarray(setup.units(records).private_targets), setup, params  # type: ignore[union-attr]


def stored_rows(setup: Setup, X: Any) -> Any:
    """The rows that the solver saw, (n, d + 1)."""
    records = HeldRecords(
        private_features=X,
        private_targets=np.zeros(len(X), int)
        if setup.target.coded is None
        else np.full(len(X), setup.target.coded[0]),
        groups=None,
        noise=NoiseSource(0),
        choice=NoiseSource(0),
    )
    return np.asarray(setup.units(records).private_features, np.float64)  # type: ignore[union-attr]


def predictions(model: Any, setup: Setup, X: Any) -> Any:
    """What the loss is a function of, (n,) or (n, K), by what the user holds in hand."""
    if isinstance(model, PrivateClassifier):
        return model.decision_function(X)
    if isinstance(model, PoissonRegressor):
        return np.log(model.predict(X))
    return setup.target.scaling.apply(model.predict(X))  # type: ignore[union-attr]


@pytest.mark.at_once(
    "HuberRegressor-{}",
    "LassoRegressor-{}",
    "LinearSVC-{'row_bound': 'unit'}",
    "LogisticRegression-{'alpha': 10.0}",
    "RobustClassifier-{'row_bound': 'unit'}",
    "RobustRegressor-{}",
)
@pytest.mark.parametrize(("kind", "changes"), CASES, ids=lambda case: getattr(case, "__name__", str(case)))
def test_the_objective_of_the_predictions_is_that_of_the_parameters_found(kind, changes, monkeypatch):
    model, X, targets, setup, params = trained(kind, monkeypatch, **changes)
    problem, said = setup.problem, predictions(model, setup, X)
    with double_precision():
        trained_on = problem.objective(
            jnp.asarray(params), jnp.asarray(stored_rows(setup, X)), jnp.asarray(targets)
        )
        losses = problem.loss.value(jnp.asarray(said), jnp.asarray(targets))
        returned = jnp.mean(losses) + problem.regulariser.value(jnp.asarray(params))
    assert float(returned) == pytest.approx(float(trained_on), rel=2e-6)
    assert (getattr(model, "row_lengths_", None) is not None) == setup.unit_rows


@pytest.mark.parametrize("kind", [*CLASSIFIERS, FairClassifier])
def test_rows_of_a_classifier_stay_as_they_are_unless_told_otherwise(kind, monkeypatch):
    _, X, _, setup, _ = trained(kind, monkeypatch)
    np.testing.assert_allclose(stored_rows(setup, X)[:, :-1], X, rtol=1e-6, atol=1e-7)
    assert setup.problem.constant == X.shape[1]


def test_a_second_moment_needs_a_constant_or_few_columns_else_rows_are_divided():
    for changes, divided in (
        ({}, False),
        ({"fit_intercept": False}, True),
        ({"row_bound": "entries"}, False),
    ):
        model = LogisticRegression(epsilon=1.0, delta=1e-6, bounds=(-1, 1), classes=[0, 1], **changes)
        for width, wide in ((1_999, False), (2_000, True)):
            _, unit = model._specification().rows(_shape(width), divisible=True)
            assert unit == (divided or (wide and not changes))


def _shape(width: int) -> Any:
    return Shape(width=width, n=100, by_user=False)
