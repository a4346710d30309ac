"""Robust models: wrong records lead the usual models astray and not these; what they minimise and what they refuse."""

import numpy as np
import pytest
from tests.support.configured_estimators import configured, toy_data

from privopt import HuberRegressor, LogisticRegression, PrivateSearchCV, RobustClassifier, RobustRegressor
from privopt.problems import losses

SETTINGS = {"epsilon": 2.0, "delta": 1e-6, "bounds": (-1.0, 1.0), "random_state": 0}


@pytest.mark.audit
def test_labels_that_are_surely_wrong_lead_the_logistic_model_astray_and_not_the_ramp() -> None:
    X = np.random.default_rng(0).uniform(-1, 1, (6000, 2))
    truth = (X[:, 0] > 0).astype(int)
    y = np.where(X[:, 0] > 0.8, 0, truth)
    usual, robust = (
        kind(classes=[0, 1], **SETTINGS).fit(X, y).score(X, truth)
        for kind in (LogisticRegression, RobustClassifier)
    )
    assert robust > 0.96
    assert usual < robust - 0.05


def test_targets_at_the_end_of_their_range_pull_huber_and_not_the_capped_loss() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (6000, 2))
    truth = 2.0 + X[:, 0]
    y = np.where(rng.random(6000) < 0.15, 10.0, truth + 0.1 * rng.normal(size=6000))
    errors = [
        np.median(np.abs(kind(target_bounds=(0.0, 10.0), **SETTINGS).fit(X, y).predict(X) - truth))
        for kind in (HuberRegressor, RobustRegressor)
    ]
    assert errors[1] < 0.6 * errors[0]


def test_the_losses_are_those_of_scaled_targets() -> None:
    assert configured(RobustClassifier, width=0.25)._target(None).loss == losses.ramp(0.25)
    default = configured(RobustRegressor, target_bounds=(0.0, 10.0))._target(None).loss
    assert default == losses.capped(0.4)
    one = configured(RobustRegressor, target_bounds=(0.0, 4.0), cap=1.0, loss="squared")._target(None).loss
    assert one == losses.capped(0.5, "squared")
    level = configured(RobustRegressor, loss="quantile", quantile=0.8)._target(None).loss
    assert level == losses.capped(0.4, "quantile", quantile=0.8)


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (RobustClassifier, {"classes": [0, 1, 2]}, "Only binary classification"),
        (RobustClassifier, {"width": 0.0}, "width must be"),
        (RobustClassifier, {"width": 2.0}, r"width must lie in \[0, 1\]"),
        (RobustRegressor, {"loss": "huber"}, "loss must be one of"),
        (RobustRegressor, {"cap": -1.0}, "cap must be"),
        (RobustRegressor, {"quantile": 1.5, "loss": "quantile"}, "quantile must lie strictly"),
        (RobustRegressor, {"quantile": 0.9}, "give that loss, or leave quantile out"),
        (
            RobustClassifier,
            {"solver": "objective-perturbation"},
            "rest on a convex loss, and the ramp loss is not",
        ),
        (RobustRegressor, {"solver": "svrg"}, "rest on a convex loss, and the capped absolute loss is not"),
    ],
)
def test_what_cannot_be_is_refused_before_data_is_read(kind, arguments, message) -> None:
    X, y = toy_data(kind)
    with pytest.raises(ValueError, match=message):
        configured(kind, **arguments).fit(X, y)


def test_a_plan_names_the_default_and_predicts_nothing_from_convexity() -> None:
    plan = configured(RobustClassifier, solver="auto").plan(n_features=4, n=10_000)
    assert plan.solver == "whitened gradient-descent"
    assert plan.predicted_excess is None
    assert "not convex" in plan.prediction


@pytest.mark.audit
def test_robust_models_are_chosen_among_by_a_private_search() -> None:
    X, y = toy_data(RobustClassifier)
    search = PrivateSearchCV(
        configured(RobustClassifier, epsilon=None, delta=None),
        {"width": [0.25, 1.0]},
        epsilon=3.0,
        delta=1e-6,
        random_state=0,
    )
    assert search.fit(X, y).best_params_["width"] in (0.25, 1.0)
    numbers, targets = toy_data(RobustRegressor)
    search = PrivateSearchCV(
        configured(RobustRegressor, epsilon=None, delta=None),
        {"cap": [0.5, 2.0]},
        epsilon=3.0,
        delta=1e-6,
        random_state=0,
    )
    assert search.fit(numbers, targets).best_params_["cap"] in (0.5, 2.0)


@pytest.mark.audit
def test_scores_are_those_of_the_loss() -> None:
    X, y = toy_data(RobustRegressor)
    for loss in ("absolute", "squared", "quantile"):
        model = configured(RobustRegressor, loss=loss, epsilon=50.0, solver="auto", random_state=0).fit(X, y)
        assert 0.2 < model.score(X, y) < 1.0


@pytest.mark.parametrize(
    "model", [RobustClassifier(classes=[0, 1]), RobustRegressor(target_bounds=(0.0, 1.0))]
)
def test_their_default_is_whitened_descent(model):
    model.set_params(epsilon=1.0, delta=1e-6, bounds=(-1, 1))
    assert model.plan(n_features=3, n=4000).solver == "whitened gradient-descent"
