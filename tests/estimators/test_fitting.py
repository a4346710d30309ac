"""What a fit promises: public attributes only, nothing read off a record, one price, and everything reported."""

import copy
import math
import pickle
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import clone
from tests.support.configured_estimators import (
    EVERY_ESTIMATOR,
    FEW_STEPS,
    PENALISED,
    ROWS,
    WIDTH,
    configured,
    toy_data,
)

from privopt.errors import BudgetExceeded
from privopt.estimators.linear import (
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    PrivateClassifier,
    Ridge,
)
from privopt.ledger.account import Account
from privopt.solvers.stochastic_gradient_descent import StochasticGradientDescent


@pytest.mark.at_once("LinearRegression", "LinearSVC", "Ridge")
@pytest.mark.parametrize("kind", EVERY_ESTIMATOR)
def test_a_fit_costs_what_was_asked_for_and_sets_what_scikit_learn_users_expect(kind: Any) -> None:
    X, y = toy_data(kind)
    model = configured(kind).fit(X, y)
    assert 0.999 <= model.privacy_.epsilon <= 1.0
    assert model.privacy_.is_private
    assert model.n_features_in_ == WIDTH
    assert model.n_iter_ == 20
    assert model.plan_.releases == 21  # the usable records are counted first
    assert model.predict(X).shape == (ROWS,)
    assert math.isfinite(model.score(X, y))
    assert model.coef_.shape == ((1, WIDTH) if hasattr(model, "classes_") else (WIDTH,))


@pytest.mark.at_once("LassoRegressor")
@pytest.mark.parametrize("kind", EVERY_ESTIMATOR)
def test_the_plan_is_the_one_that_is_announced_without_data(kind: Any) -> None:
    model = configured(kind, solver="auto").fit(*toy_data(kind))
    announced = configured(kind, solver="auto").plan(n=ROWS, n_features=WIDTH)
    assert announced.event == model.plan_.event
    assert announced.public.row_bound == pytest.approx(model.plan_.public.row_bound)
    for name, value in announced.settings.items():
        assert value == pytest.approx(model.plan_.settings[name])


def test_the_plan_of_users_counts_users() -> None:
    plan = configured(LogisticRegression, max_records_per_user=7).plan(n=50, n_features=WIDTH, by_user=True)
    assert (plan.public.n, plan.public.unit, plan.public.records_per_unit) == (50, "user", 7)


def test_little_noise_finds_the_signal() -> None:
    X, y = toy_data()
    assert (
        configured(LogisticRegression, epsilon=50.0, delta=1e-3, random_state=0).fit(X, y).score(X, y) > 0.9
    )


@pytest.mark.at_once("LassoClassifier", "LassoRegressor", "LinearRegression")
@pytest.mark.parametrize("kind", EVERY_ESTIMATOR)
def test_a_fitted_model_pickles_without_data(kind: Any) -> None:
    X, y = toy_data(kind)
    model = configured(kind).fit(X, y)
    packed = pickle.dumps(model)
    np.testing.assert_array_equal(pickle.loads(packed).predict(X), model.predict(X))
    longer, targets = np.tile(X, (50, 1)), np.tile(y, 50)
    assert len(pickle.dumps(configured(kind).fit(longer, targets))) < len(packed) + 2000
    copy.deepcopy(model)


def test_records_that_are_no_numbers_count_as_zero_where_it_is_asked_for_and_change_nothing_else() -> None:
    X, y = toy_data(LinearRegression)
    broken, targets = X.copy(), y.copy()
    broken[3, 0], broken[50, 1], broken[51, 2], targets[9], targets[10] = (
        np.nan,
        np.inf,
        -np.inf,
        np.nan,
        np.inf,
    )
    rest = np.delete(np.arange(ROWS), [3, 50, 51, 9, 10])
    seeded = configured(LinearRegression, random_state=0, missing="zero")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = clone(seeded).fit(broken, targets)
        # The same number of records, five of them absent: what add-or-remove-one makes of n.
        without = clone(seeded).set_params(n=ROWS).fit(X[rest], y[rest])
    np.testing.assert_allclose(model.coef_, without.coef_, rtol=1e-12)
    assert model.plan_.event == without.plan_.event


def test_a_label_that_is_not_declared_counts_as_zero() -> None:
    X, y = toy_data()
    labels = np.array(["no", "yes"])[y].astype(object)
    labels[5], labels[6] = "perhaps", None
    rest = np.delete(np.arange(ROWS), [5, 6])
    seeded = configured(LogisticRegression, classes=["yes", "no"], random_state=0, n=ROWS)
    model = clone(seeded).fit(X, labels)
    assert list(model.classes_) == ["no", "yes"]
    np.testing.assert_allclose(model.coef_, clone(seeded).fit(X[rest], labels[rest]).coef_, rtol=1e-12)
    assert set(model.predict(X)) <= {"no", "yes"}


def test_labels_read_off_y_are_declared_in_the_report() -> None:
    X, y = toy_data()
    model = configured(LogisticRegression, classes="from_y").fit(X, y)
    assert any("the set of labels in y is public" in sentence for sentence in model.privacy_.declared)
    given = configured(LogisticRegression, row_bound=2.0).fit(X, y)
    assert any("Classes, given by the user: 0, 1." in sentence for sentence in given.privacy_.declared)
    assert any("every feature lies between -1 and 1" in sentence for sentence in given.privacy_.declared)
    assert any("Longest scaled row, given by the user: 2" in sentence for sentence in given.privacy_.declared)


@pytest.mark.at_once("HuberRegressor", "QuantileRegressor", "Ridge")
@pytest.mark.parametrize("kind", EVERY_ESTIMATOR)
def test_sparse_rows_give_what_dense_rows_give(kind: Any) -> None:
    X, y = toy_data(kind)
    X[np.abs(X) < 0.5] = 0.0
    seeded = configured(kind, random_state=0, bounds=(-2.0, 2.0))
    dense, csr = clone(seeded).fit(X, y), clone(seeded).fit(sparse.csr_matrix(X), y)
    # The sums differ in the last digits, and may be rounded to neighbouring points of a release's lattice.
    np.testing.assert_allclose(csr.coef_, dense.coef_, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(csr.predict(sparse.csc_array(X)), csr.predict(X))


def test_users_are_protected_as_wholes() -> None:
    X, y = toy_data()
    users = np.array([f"user {row % 60}" for row in range(ROWS)])
    model = configured(LogisticRegression, max_records_per_user=3, user_weighting="user").fit(
        X, y, groups=users
    )
    assert (model.privacy_.unit, model.privacy_.n, model.plan_.public.records_per_unit) == ("user", 60, 3)
    assert any("Number of users: public" in sentence for sentence in model.privacy_.declared)
    with pytest.raises(ValueError, match="groups must have shape"):
        configured(LogisticRegression).fit(X, y, groups=users[:-1])


def test_add_or_remove_one_asks_for_a_nominal_number_and_takes_any_data_set() -> None:
    X, y = toy_data()
    with pytest.raises(
        ValueError, match="n is missing: under add-or-remove-one the number of units is private"
    ):
        configured(LogisticRegression, relation="add-or-remove-one").fit(X, y)
    model = configured(LogisticRegression, relation="add-or-remove-one", n=300)
    assert clone(model).fit(X, y).privacy_.n == 300
    assert clone(model).fit(X[:1], y[:1]).privacy_.n == 300
    assert clone(model).fit(X[:0], y[:0]).privacy_.n == 300


def test_a_seed_makes_a_fit_reproducible_and_says_so() -> None:
    X, y = toy_data()
    first, second, secret = (
        configured(LogisticRegression, random_state=seed).fit(X, y) for seed in (7, 7, None)
    )
    np.testing.assert_array_equal(first.coef_, second.coef_)
    assert not np.array_equal(first.coef_, secret.coef_)
    assert first.privacy_.seeded
    assert not first.privacy_.is_private
    assert secret.privacy_.is_private
    assert "not private" in str(first.privacy_)


def test_privacy_can_be_switched_off_and_the_report_says_so() -> None:
    X, y = toy_data()
    model = configured(LogisticRegression, epsilon=math.inf, delta=None).fit(X, y)
    assert math.isinf(model.privacy_.epsilon)
    assert "Noise off: not private" in str(model.privacy_)


def test_fits_share_an_account_and_are_refused_before_it_is_overdrawn() -> None:
    X, y = toy_data()
    account = Account(1.0, 1e-6, composition="gaussian")
    model = configured(LogisticRegression, epsilon=0.6, account=account).fit(X, y)
    assert clone(model).account is account
    left = account.remaining_epsilon()
    assert 0.0 < left < 1.0
    with pytest.raises(BudgetExceeded, match="is left"):
        clone(model).set_params(epsilon=0.95).fit(X, y)
    assert account.remaining_epsilon() == left
    clone(model).set_params(epsilon=left * 0.99).fit(X, y)


def test_a_pickled_model_leaves_its_account_behind_and_is_not_fitted_again_for_free() -> None:
    X, y = toy_data()
    account = Account(1.0, 1e-6)
    model = configured(LogisticRegression, epsilon=0.5, account=account)
    with pytest.raises(TypeError, match="an account cannot be pickled"):
        pickle.dumps(model)
    loaded = pickle.loads(pickle.dumps(model.fit(X, y)))
    assert loaded.account is None
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    with pytest.raises(ValueError, match="the account that paid for its fit stayed behind"):
        loaded.fit(X, y)
    loaded.set_params(account=Account(1.0, 1e-6)).fit(X, y)


def test_an_account_that_stayed_behind_is_missed_by_later_copies_too() -> None:
    X, y = toy_data()
    model = configured(LogisticRegression, epsilon=0.5, account=Account(1.0, 1e-6)).fit(X, y)
    again = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(model))))
    with pytest.raises(ValueError, match="stayed behind"):
        again.fit(X, y)


@pytest.mark.audit
def test_any_solver_can_be_given() -> None:
    X, y = toy_data()
    sampled = StochasticGradientDescent(steps=30, rate=0.2)
    model = configured(LogisticRegression, epsilon=2.0, solver=sampled).fit(X, y)
    assert 0.99 * 2.0 <= model.privacy_.epsilon <= 2.0
    assert model.n_iter_ == 30
    with pytest.raises(ValueError, match="solver must be 'auto'"):
        configured(LogisticRegression, solver="bfgs").fit(X, y)


def test_names_of_columns_reach_the_report() -> None:
    X, y = toy_data()
    frame = pd.DataFrame(X, columns=["age", "height", "weight"])
    model = configured(LogisticRegression).fit(frame, pd.Series(y))
    assert list(model.feature_names_in_) == ["age", "height", "weight"]
    assert model.privacy_.model is not None
    assert model.privacy_.model.features == ("age", "height", "weight")


def test_missing_entries_of_pandas_columns_count_as_zero() -> None:
    X, y = toy_data()
    frame, labels = pd.DataFrame(X).astype("Float64"), pd.Series(y).astype("Int64")
    frame.iloc[3, 0], labels[4] = pd.NA, pd.NA
    seeded = configured(LogisticRegression, random_state=0, n=ROWS, missing="zero")
    rest = np.delete(np.arange(ROWS), [3, 4])
    np.testing.assert_allclose(
        seeded.fit(frame, labels).coef_, clone(seeded).fit(X[rest], y[rest]).coef_, rtol=1e-12
    )


def test_counts_are_predicted_up_to_the_largest_rate() -> None:
    X, y = toy_data(PoissonRegressor)
    model = configured(PoissonRegressor, epsilon=math.inf, max_rate=1.5, fit_intercept=False).fit(X, y)
    assert 0.0 < model.predict(100 * X).max() <= 1.5
    assert model.intercept_ == 0.0


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_scores_of_sparse_and_dense_rows_agree_in_a_model_of_unit_rows(fit_intercept: bool) -> None:
    X, y = toy_data()
    X[np.abs(X) < 0.5] = 0.0
    X[0] = 0.0
    for rows in (X, sparse.csr_array(X)):  # centered, and not
        model = configured(LogisticRegression, bounds=(-1.0, 3.0), fit_intercept=fit_intercept).fit(rows, y)
        scores = model.decision_function(X)
        assert np.isfinite(scores).all()
        np.testing.assert_allclose(model.decision_function(sparse.csr_array(X)), scores, atol=1e-12)
        np.testing.assert_array_equal(model.predict(X), (scores > 0).astype(int))


def test_every_record_has_the_same_influence_whatever_its_length() -> None:
    X, y = toy_data()
    seeded = configured(LogisticRegression, random_state=0, fit_intercept=False, bounds=(-100.0, 100.0))
    longer = X * np.linspace(1.0, 90.0, ROWS)[:, None]
    np.testing.assert_allclose(clone(seeded).fit(longer, y).coef_, clone(seeded).fit(X, y).coef_, rtol=1e-5)
    with pytest.raises(ValueError, match="row_bound='unit' is for classifiers"):
        configured(Ridge, row_bound="unit").fit(X, y)


def test_a_model_without_an_intercept_goes_through_the_origin() -> None:
    X, y = toy_data(Ridge)
    model = configured(Ridge, bounds=(-1, 3), fit_intercept=False).fit(X, y)
    assert model.predict(np.zeros((1, WIDTH))) == 0.0


WRONG_ARGUMENTS = [
    ({"epsilon": None}, ValueError, "epsilon is missing: give the privacy budget"),
    ({"epsilon": 0.0}, ValueError, "epsilon must be positive"),
    ({"epsilon": "1"}, TypeError, "epsilon must be a number"),
    ({"delta": None}, ValueError, r"delta is missing: .*1 / n\*\*2 = 1.7e-05 for n = 240; .*1 / n = 4.2e-03"),
    ({"delta": 0.0}, ValueError, "delta must be above 0"),
    ({"delta": 1.0}, ValueError, "delta must be at least 0 and below 1"),
    (
        {"bounds": None},
        ValueError,
        "bounds is missing: .* give it as loose_bounds=.* for a share of the budget",
    ),
    ({"bounds": 3.0}, TypeError, "bounds must be a pair"),
    ({"bounds": (1.0, -1.0)}, ValueError, "low <= high"),
    ({"bounds": (-1.0, math.inf)}, ValueError, "bounds must be finite"),
    ({"bounds": ([0.0, 0.0], 1.0)}, ValueError, "arrays of 3 entries"),
    ({"relation": "zero-out"}, ValueError, "relation must be"),
    ({"row_bound": -1.0}, ValueError, "row_bound must be positive"),
    ({"row_bound": "long"}, TypeError, "row_bound must be a number"),
    (
        {"n": 10},
        ValueError,
        "n = 10 was given with 240 rows: under replace-one it lies between 240 and twice",
    ),
    (
        {"n": 10, "relation": "add-or-remove-one"},
        ValueError,
        "n must be a public number that no data set exceeds",
    ),
    ({"random_state": -1}, ValueError, "random_state must be at least 0"),
]


@pytest.mark.parametrize(("change", "error", "message"), WRONG_ARGUMENTS)
def test_a_missing_or_wrong_argument_gets_a_sentence(change: Any, error: Any, message: str) -> None:
    X, y = toy_data()
    with pytest.raises(error, match=message):
        configured(LogisticRegression, **change).fit(X, y)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"classes": None},
            ValueError,
            "classes is missing: .*classes='from_y' to declare that it is public",
        ),
        ({"classes": [1]}, ValueError, "at least two different labels"),
        ({"classes": [1, 1]}, ValueError, "at least two different labels"),
        ({"classes": "yes"}, TypeError, "classes must be a list of labels or 'from_y'"),
        ({"classes": ["a", "b"]}, TypeError, "give the labels as stored"),
        ({"alpha": -1.0}, ValueError, "alpha must be at least 0"),
    ],
)
def test_what_classifiers_are_told(change: Any, error: Any, message: str) -> None:
    X, y = toy_data()
    with pytest.raises(error, match=message):
        configured(LogisticRegression, **change).fit(X, y)


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        (Ridge, {"target_bounds": None}, "target_bounds is missing"),
        (Ridge, {"target_bounds": (1.0, 1.0)}, "low < high"),
        (PoissonRegressor, {"target_bounds": None}, "target_bounds is missing"),
        (PoissonRegressor, {"target_bounds": (-1.0, 4.0)}, "counts are not negative"),
        (PoissonRegressor, {"max_rate": 0.0}, "max_rate must be positive"),
    ],
)
def test_what_regressors_are_told(kind: Any, change: Any, message: str) -> None:
    X, y = toy_data(kind)
    with pytest.raises(ValueError, match=message):
        configured(kind, **change).fit(X, y)


def test_planning_needs_what_the_data_would_have_shown() -> None:
    with pytest.raises(ValueError, match="n is missing: give the public number of units"):
        configured(LogisticRegression).plan(n_features=3)
    with pytest.raises(ValueError, match="to plan without data, give the labels"):
        configured(LogisticRegression, classes="from_y").plan(n=100, n_features=3)


def test_text_is_refused_by_its_type_and_no_value_is_repeated() -> None:
    X, y = toy_data()
    frame = pd.DataFrame(X, columns=["age", "height", "weight"])
    frame["job"] = "spy"
    for odd in (frame, frame.to_numpy(), np.full((ROWS, 2), "spy")):
        with pytest.raises(TypeError, match="encode") as caught:
            configured(LogisticRegression).fit(odd, y)
        assert "spy" not in str(caught.value)


def test_predicting_takes_missing_values_and_checks_names_and_numbers_of_features() -> None:
    X, y = toy_data()
    model = configured(LogisticRegression).fit(X, y)
    missing = X.copy()
    missing[0, 0] = np.nan
    assert model.predict(missing).shape == (ROWS,)
    with pytest.raises(ValueError, match="2 features"):
        model.predict(X[:, :2])


def test_a_vector_and_complex_features_are_refused_without_their_values() -> None:
    X, y = toy_data()
    model = configured(LogisticRegression)
    fitted = configured(LogisticRegression, solver=FEW_STEPS).fit(X, y)
    for refused in (lambda: model.fit(X[:, 0], y), lambda: fitted.predict(X[0])):
        with pytest.raises(ValueError, match=r"Expected 2D array, got 1D array instead") as caught:
            refused()
        assert "\n" not in str(caught.value)
    with pytest.raises(
        ValueError, match=r"Complex data not supported: features have dtype complex128"
    ) as caught:
        model.fit(X.astype(complex), y)
    assert "\n" not in str(caught.value)


def test_no_rows_have_no_predictions() -> None:
    X, y = toy_data()
    model = configured(LogisticRegression, solver=FEW_STEPS).fit(X, y)
    assert model.predict(X[:0]).shape == (0,)
    assert model.predict_proba(X[:0]).shape == (0, 2)
    assert model.predict(sparse.csr_array(X[:0])).shape == (0,)


def test_nothing_of_the_data_stays_in_a_fitted_model() -> None:
    X, y = toy_data()
    model = configured(LogisticRegression, solver=FEW_STEPS).fit(X, y)

    def arrays(value: Any) -> list[NDArray[Any]]:
        return [entry for entry in vars(value).values() if isinstance(entry, np.ndarray)]

    assert all(array.size <= WIDTH for array in arrays(model))
    assert not {"curator", "units", "result", "transcript"} & {name.strip("_") for name in vars(model)}


@pytest.mark.at_once("HuberRegressor", "LinearRegression", "Ridge")
@pytest.mark.parametrize("kind", PENALISED)
def test_the_report_says_what_the_coefficients_are_and_what_became_of_long_rows(kind: Any) -> None:
    X, y = toy_data(kind)
    divisible: list[Any] = [{"row_bound": "unit"}] if issubclass(kind, PrivateClassifier) else []
    for options in ({}, {"row_bound": 1.5}, *divisible):
        divided = options in divisible
        model = configured(kind, **options).fit(X, y)
        told = model.privacy_.model.meaning
        assert ("divided by the length of the record's scaled row" in told) == divided
        assert told.endswith("Columns are in the units that they were given in.")
        said = " ".join(model.privacy_.to_dict()["utility_assumptions"])
        assert ("Every row was divided by its length" in said) == divided
        assert ("are shortened to it" in said) != divided
