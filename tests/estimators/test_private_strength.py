"""alpha="private": a charged search inside one fit."""

import math
import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from tests.support.configured_estimators import PENALISED, ROWS, WIDTH, configured, toy_data

from privopt.errors import BudgetExceeded
from privopt.estimators.base import HOLDOUT, SELECTION_SHARE
from privopt.estimators.linear import LinearRegression, LogisticRegression, Ridge
from privopt.estimators.selection import PrivateSearchCV
from privopt.ledger.account import Account
from privopt.ledger.composition import dominating
from privopt.ledger.events import GaussianEvent, NonPrivateEvent, Repeated, Sequence, ShiftedGaussianEvent
from privopt.solvers.stochastic_gradient_descent import StochasticGradientDescent

GRID = (1e-3, 30.0)


def chosen(kind: Any = LogisticRegression, **changes: Any) -> Any:
    penalty = {"penalty": "l2"} if kind is LinearRegression else {}
    return configured(kind, **(penalty | {"alpha": "private", "alphas": GRID, "epsilon": 2.0} | changes))


@pytest.mark.at_once("RobustClassifier")
@pytest.mark.parametrize("kind", PENALISED)
def test_the_choice_is_part_of_the_price(kind: Any) -> None:
    X, y = toy_data(kind)
    model = chosen(kind).fit(X, y)
    assert 2.0 * (1 - 1e-3) <= model.privacy_.epsilon <= 2.0
    assert model.plan_.releases == model.privacy_.count == 1 + 20 * 2 + 1 + 20
    assert model.n_iter_ == 20
    assert model.alpha_ in GRID
    assert model.plan_.event == chosen(kind).plan(n=ROWS, n_features=WIDTH).event
    assert model.privacy_.selection.private
    assert (
        "chosen privately among 2 public ones for 49.5 % of the budget" in model.privacy_.selection.sentence
    )
    assert model.predict(X).shape == (ROWS,)


def test_it_is_what_a_private_search_would_cost_and_find() -> None:
    X, y = toy_data()
    inside = chosen(random_state=3).fit(X, y)
    estimator = configured(LogisticRegression, epsilon=None, delta=None)
    search = PrivateSearchCV(
        estimator,
        {"alpha": list(GRID)},
        epsilon=2.0,
        delta=1e-6,
        holdout=HOLDOUT,
        selection_share=SELECTION_SHARE,
        random_state=3,
    ).fit(X, y)
    assert inside.plan_.event == search.plan_.event
    assert inside.alpha_ == search.best_params_["alpha"]
    np.testing.assert_array_equal(inside.coef_, search.best_estimator_.coef_)


def test_with_little_noise_the_better_strength_is_chosen() -> None:
    X, y = toy_data(Ridge)
    model = chosen(Ridge, epsilon=300.0, delta=1e-2, random_state=0).fit(X, y)
    assert model.alpha_ == 1e-3
    assert model.score(X, y) > 0.8


@pytest.mark.at_once("gradient-descent-l1")
@pytest.mark.parametrize("penalty", ["l2", "l1"])
@pytest.mark.parametrize("solver", ["auto", "gradient-descent"])
def test_there_is_a_default_grid(penalty: str, solver: str) -> None:
    X, y = toy_data()
    model = chosen(alphas=None, penalty=penalty, solver=solver).fit(X, y)
    assert model.plan_.settings["candidates"] == 4
    assert model.privacy_.epsilon <= 2.0


def test_bounds_and_strength_together_are_one_plan() -> None:
    X, y = toy_data()
    model = chosen(bounds=None, loose_bounds=(-1e3, 1e3), scale_share=0.1).fit(X, y)
    assert 2.0 * (1 - 1e-3) <= model.privacy_.epsilon <= 2.0
    assert model.privacy_.count == 2 + 40 + 1 + 20
    assert "for 44.5 % of the budget" in model.privacy_.selection.sentence
    assert model.privacy_.releases[0].name == "ColumnMagnitudes"


def test_an_account_pays_once_and_a_model_clones_and_pickles() -> None:
    X, y = toy_data()
    account = Account(2.5, 1e-5)
    model = chosen(account=account).fit(X, y)
    assert len(account.entries) == 1
    with pytest.raises(BudgetExceeded, match="is left"):
        chosen(account=account).fit(X, y)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).coef_, model.coef_)
    assert clone(model).alpha == "private"


def test_users_and_infinite_epsilon_are_served() -> None:
    X, y = toy_data()
    assert chosen().fit(X, y, groups=np.arange(ROWS) // 4).privacy_.unit == "user"
    free = chosen(epsilon=math.inf, delta=None).fit(X, y)
    assert not free.privacy_.is_private


WRONG = [
    ({"alphas": [0.1]}, "at least two strengths"),
    ({"alphas": 0.1}, "at least two strengths"),
    ({"alphas": [0.1, -1.0]}, "each of alphas must be at least 0"),
    ({"penalty": None}, "needs a penalty whose strength it chooses"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_a_wrong_argument_gets_a_sentence(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chosen(**change).fit(*toy_data())


def test_a_search_refuses_a_search_inside() -> None:
    estimator = configured(LogisticRegression, epsilon=None, delta=None)
    with pytest.raises(ValueError, match="a search of its own"):
        PrivateSearchCV(estimator, {"alpha": [0.1, "private"]}, epsilon=1.0, delta=1e-6).fit(*toy_data())


@pytest.mark.later("True")
@pytest.mark.parametrize("refit", [True, False])
def test_a_search_may_choose_the_solver(refit: bool) -> None:
    X, y = toy_data()
    estimator = LogisticRegression(bounds=(-1, 1), classes=[0, 1])
    grid = {"solver": ["gradient-descent", "whitening"]}
    found = PrivateSearchCV(estimator, grid, epsilon=2.0, delta=1e-5, refit=refit).fit(X, y)
    assert 2.0 * (1 - 1e-3) <= found.privacy_.epsilon <= 2.0
    assert found.privacy_.count <= found.plan_.releases


def test_solvers_that_sample_are_searched_without_a_refit_and_refused_with_one() -> None:
    X, y = toy_data()
    estimator = LogisticRegression(bounds=(-1, 1), classes=[0, 1])
    grid = {"solver": ["gradient-descent", StochasticGradientDescent(steps=6, rate=0.5)]}
    search = PrivateSearchCV(estimator, grid, epsilon=2.0, delta=1e-5, refit=False)
    assert search.fit(X, y).privacy_.epsilon <= 2.0
    with pytest.raises(ValueError, match="the price of the refit would depend on which candidate is chosen"):
        search.set_params(refit=True).fit(X, y)


def test_what_dominates_is_known_or_refused() -> None:
    whitened = Sequence((GaussianEvent(12.0), Repeated(GaussianEvent(9.0), 5)))
    plain = Repeated(GaussianEvent(20.0), 9)
    dearest = dominating([plain, whitened])
    assert isinstance(dearest, GaussianEvent)
    assert dearest.noise_multiplier == pytest.approx((1 / 144 + 5 / 81) ** -0.5)
    perturbed = ShiftedGaussianEvent(0.3, 0.01)
    assert dominating([perturbed, perturbed]) == perturbed
    for others in ([perturbed, plain], [perturbed, ShiftedGaussianEvent(0.3, 0.02)]):
        with pytest.raises(ValueError, match="noise inside the objective"):
            dominating(others)
    assert dominating([Repeated(NonPrivateEvent(), 3), plain]) == NonPrivateEvent()
