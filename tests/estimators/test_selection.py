"""The charged search: its price, its split, its choice."""

import math
import pickle
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from tests.support.configured_estimators import CLASSIFIERS, FEW_STEPS, ROWS, WIDTH, toy_data

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.engine.in_process import InProcessEngine
from privopt.errors import BudgetExceeded
from privopt.estimators.linear import (
    HuberRegressor,
    LinearSVC,
    LogisticRegression,
    PoissonRegressor,
    QuantileRegressor,
    Ridge,
)
from privopt.estimators.selection import PrivateSearchCV
from privopt.ledger import accounting
from privopt.ledger.account import Account
from privopt.ledger.composition import dominating
from privopt.ledger.events import GaussianEvent, NonPrivateEvent, Repeated, Sequence
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.public import Relation
from privopt.queries.scores import Accuracy, BoundedLoss, HoldoutScores
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.stochastic_gradient_descent import StochasticGradientDescent

GRID = {"alpha": [1e-3, 30.0]}


def search(kind: Any = LogisticRegression, grid: Any = None, **changes: Any) -> PrivateSearchCV:
    target = {"classes": [0, 1]} if kind in CLASSIFIERS else {"target_bounds": (0, 6)}
    estimator = kind(bounds=(-1, 1), solver=FEW_STEPS, **target)
    return PrivateSearchCV(estimator, grid or GRID, **({"epsilon": 2.0, "delta": 1e-5} | changes))


@pytest.mark.later("True")
@pytest.mark.parametrize("refit", [True, False])
def test_the_whole_search_costs_what_was_asked_for(refit: bool) -> None:
    X, y = toy_data()
    found = search(refit=refit).fit(X, y)
    assert 2.0 * (1 - 1e-3) <= found.privacy_.epsilon <= 2.0
    assert found.plan_.releases == 1 + 20 * 2 + 1 + 20 * refit
    assert found.privacy_.count == found.plan_.releases
    assert found.privacy_.selection is not None
    assert found.privacy_.selection.private
    assert found.best_estimator_.privacy_ is found.privacy_
    assert found.best_estimator_.n_iter_ == 20
    assert found.best_params_ == {"alpha": GRID["alpha"][found.best_index_]}
    assert not [name for name in vars(found) if "score" in name or "results" in name]


def test_the_plan_is_known_without_data() -> None:
    found = search().fit(*toy_data())
    announced = search().plan(n=ROWS, n_features=WIDTH)
    assert announced.event == found.plan_.event


@pytest.mark.audit
def test_with_little_noise_the_better_candidate_is_chosen_and_fitted_on_everything() -> None:
    X, y = toy_data(Ridge)
    found = search(Ridge, epsilon=300.0, delta=1e-2, random_state=0).fit(X, y)
    assert found.best_params_ == {"alpha": 1e-3}
    assert found.score(X, y) > 0.8


def test_with_privacy_off_the_best_candidate_is_chosen() -> None:
    X, y = toy_data(Ridge)
    found = search(Ridge, epsilon=math.inf, delta=None, grid={"alpha": [30.0, 1e-3]}).fit(X, y)
    assert found.best_index_ == 1
    assert found.privacy_.selection is not None
    assert not found.privacy_.selection.private


@pytest.mark.at_once("PoissonRegressor")
@pytest.mark.parametrize("kind", [LinearSVC, HuberRegressor, QuantileRegressor, PoissonRegressor])
def test_every_kind_of_estimator_can_be_searched(kind: Any) -> None:
    X, y = toy_data(kind)
    found = search(kind, grid={"alpha": [1e-3, 1.0], "fit_intercept": [True, False]}).fit(X, y)
    assert found.predict(X).shape == (ROWS,)
    assert is_classifier(found) == (kind in CLASSIFIERS)
    assert hasattr(found, "decision_function") == (kind in CLASSIFIERS)


def test_users_are_split_and_scored_as_wholes() -> None:
    X, y = toy_data()
    found = search().fit(X, y, groups=np.arange(ROWS) // 4)
    assert (found.privacy_.unit, found.privacy_.n) == ("user", ROWS // 4)


@pytest.mark.audit
def test_add_or_remove_one_is_searched_on_a_nominal_number() -> None:
    X, y = toy_data()
    estimator = LogisticRegression(
        bounds=(-1, 1), classes=[0, 1], solver=FEW_STEPS, relation="add-or-remove-one", n=300
    )
    found = PrivateSearchCV(estimator, GRID, epsilon=2.0, delta=1e-5).fit(X, y)
    assert found.privacy_.relation is Relation.ADD_OR_REMOVE_ONE
    assert 2.0 * (1 - 1e-3) <= found.privacy_.epsilon <= 2.0


def test_a_search_can_be_seeded_cloned_and_pickled() -> None:
    X, y = toy_data()
    first, second = search(random_state=3).fit(X, y), search(random_state=3).fit(X, y)
    assert first.best_index_ == second.best_index_
    np.testing.assert_array_equal(first.best_estimator_.coef_, second.best_estimator_.coef_)
    assert first.privacy_.seeded
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(first)).predict(X), first.predict(X))
    assert clone(first).random_state == 3


def test_candidates_with_longer_and_with_unit_rows_are_compared() -> None:
    X, y = toy_data()
    found = search(grid={"row_bound": ["unit", 0.5, 2.0]}).fit(X, y)
    assert found.decision_function(X).shape == (ROWS,)
    assert found.predict_proba(X).shape == (ROWS, 2)


def test_an_account_pays_for_everything_at_once() -> None:
    X, y = toy_data()
    account = Account(2.5, 1e-5)
    search(account=account).fit(X, y)
    assert len(account.entries) == 1
    with pytest.raises(BudgetExceeded, match="is left"):
        search(account=account).fit(X, y)
    assert len(account.entries) == 1


def test_candidates_may_take_different_numbers_of_steps() -> None:
    X, y = toy_data()
    found = search(grid={"solver": [GradientDescent(steps=5), GradientDescent(steps=15)]}).fit(X, y)
    assert 2.0 * (1 - 1e-3) <= found.privacy_.epsilon <= 2.0


def test_a_refit_whose_price_depends_on_the_choice_is_refused() -> None:
    X, y = toy_data()
    grid = {"solver": [StochasticGradientDescent(steps=5, rate=rate) for rate in (0.5, 0.9)]}
    with pytest.raises(ValueError, match="the price of the refit would depend on which candidate is chosen"):
        search(grid=grid).fit(X, y)


def test_the_dominating_release_costs_what_the_dearest_costs() -> None:
    cheap, dear = Repeated(GaussianEvent(20.0), 9), Sequence((GaussianEvent(8.0), GaussianEvent(8.0)))
    event = dominating([cheap, dear])
    assert accounting.epsilon(event, 1e-6, Relation.REPLACE_ONE) == pytest.approx(
        accounting.epsilon(dear, 1e-6, Relation.REPLACE_ONE), rel=1e-9
    )
    assert dominating([NonPrivateEvent(), NonPrivateEvent()]) == NonPrivateEvent()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"epsilon": None}, ValueError, "epsilon is missing"),
        ({"delta": None}, ValueError, "delta is missing"),
        ({"holdout": 1.0}, ValueError, "holdout must lie strictly between 0 and 1"),
        ({"holdout": 0.001}, ValueError, "both parts need 2"),
        ({"selection_share": 0.0}, ValueError, "selection_share must lie strictly"),
        ({"grid": {"bounds": [(-1, 1), (-2, 2)]}}, ValueError, "param_grid cannot vary bounds"),
        (
            {"grid": {"max_records_per_user": [9, 999]}},
            ValueError,
            "param_grid cannot vary max_records_per_user",
        ),
        ({"estimator": LogisticRegression(epsilon=1.0)}, ValueError, "leave them out of its estimator"),
        ({"estimator": object()}, TypeError, "estimator must be one of privopt's"),
    ],
)
def test_a_wrong_argument_gets_a_sentence(change: Any, error: Any, message: str) -> None:
    X, y = toy_data()
    replaced = {name: value for name, value in change.items() if name == "estimator"}
    wrong = search(**{name: value for name, value in change.items() if name != "estimator"}).set_params(
        **replaced
    )
    with pytest.raises(error, match=message):
        wrong.fit(X, y)


def scores_of(units: Units, query: HoldoutScores) -> Any:
    with double_precision():
        return np.asarray(InProcessEngine(units).clipped_sum(query))


def test_scores_are_the_mean_accuracy_of_each_model() -> None:
    X, y = toy_data()
    units = Units.from_arrays(X, y, row_bound=2.0, classes=[0, 1], intercept=1.0)
    parameters = np.random.default_rng(0).normal(size=(5, WIDTH + 1))
    with double_precision():
        query = HoldoutScores(score=Accuracy(), models=jnp.asarray(parameters[:, :, None]))
    expected = [np.mean((X.astype(np.float32) @ w[:-1] + w[-1] > 0) == y) for w in parameters]
    np.testing.assert_allclose(scores_of(units, query) / ROWS + 0.5, expected, atol=1e-12)


@pytest.mark.later("odd0-Relation.REPLACE_ONE")
@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("odd", [[1.0, 1.0, 1.0], [np.nan, 0.0, 0.0], [1e30, -1e30, 0.0]])
def test_one_unit_moves_the_scores_by_at_most_their_sensitivity(relation: Relation, odd: list[float]) -> None:
    X, y = toy_data()
    other, targets = X.copy(), y.copy()
    if relation is Relation.REPLACE_ONE:
        other[0], targets[0] = odd, 1 - targets[0]
    else:
        other, targets = np.concatenate([X, [odd]]), np.append(y, 1)
    sides = [
        Units.from_arrays(
            rows, labels, row_bound=2.0, classes=[0, 1], intercept=1.0, relation=relation, n=ROWS + 1
        )
        for rows, labels in ((X, y), (other, targets))
    ]
    parameters = np.random.default_rng(1).normal(size=(8, WIDTH + 1, 1))
    with double_precision():
        for score in (Accuracy(), BoundedLoss(loss=losses.logistic, cap=0.7)):
            query = HoldoutScores(score=score, models=jnp.asarray(parameters))
            moved = scores_of(sides[0], query) - scores_of(sides[1], query)
            assert np.ptp(moved) <= float(query.sensitivity(sides[0].public)) * (ROWS + 1) + 1e-9


def test_bounded_losses_lie_between_zero_and_one() -> None:
    predictions = jnp.asarray(np.linspace(-50.0, 50.0, 41)[:, None].astype(np.float32))
    for loss, targets in (
        (losses.squared, (-1.0, 1.0)),
        (losses.quantile(0.3, 0.1), (-1.0, 1.0)),
        (losses.poisson(2.0, 9.0), (0.0, 9.0)),
    ):
        for target in targets:
            scores = np.asarray(BoundedLoss(loss=loss, cap=1.5).of(predictions, jnp.float32(target)))
            assert scores.min() >= 0.0
            assert scores.max() <= 1.0
            assert scores.max() > 0.2


def test_the_choice_passes_the_curator(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    release = LocalCurator.release

    def watched(self: Any, query: Any, *arguments: Any) -> Any:
        asked.append(query.name)
        return release(self, query, *arguments)

    monkeypatch.setattr(LocalCurator, "release", watched)
    search().fit(*toy_data())
    assert asked.count("HoldoutScores") == 1
    assert asked.count("ClippedGradient") == 60
