"""Arguments of estimators that nothing looked at, arrays that are no matrix: one sentence, and no cell of the data."""

import tracemalloc
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from tests.support.configured_estimators import ROWS, configured, toy_data

from privopt.estimators.linear import LogisticRegression, Ridge
from privopt.estimators.selection import PrivateSearchCV
from privopt.ledger.account import Account
from privopt.solvers.gradient_descent import GradientDescent
from privopt.tables import TabularEncoder

FEW_STEPS = GradientDescent(steps=3)
WRONG: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"user_weighting": "x"}, ValueError, "user_weighting must be 'user', 'sqrt' or 'record'"),
    ({"max_records_per_user": 0}, ValueError, "max_records_per_user must be an integer of at least 1"),
    ({"scale_share": 3}, ValueError, "scale_share must lie strictly between 0 and 1"),
    ({"fit_intercept": "yes"}, TypeError, "fit_intercept must be True or False"),
    ({"bounds": (0, 0)}, ValueError, "bounds must have low < high for at least one feature"),
    ({"bounds": None, "loose_bounds": (2, 2)}, ValueError, "loose_bounds must have low < high"),
    ({"l1_ratio": 7}, ValueError, "l1_ratio must lie between 0 .* and 1"),
    ({"feature_groups": [[0]]}, ValueError, "feature_groups was given, but nothing uses them"),
    ({"alphas": [1.0, 2.0]}, ValueError, "alphas was given without alpha='private'"),
    ({"account": 3}, TypeError, "account must be an Account or None, got int"),
    ({"n": 300.0}, TypeError, "n must be an integer or None"),
    ({"n": "all"}, TypeError, "n must be an integer or None"),
    ({"solver": 3}, TypeError, "solver must be 'auto', a name"),
    ({"solver": GradientDescent}, TypeError, "got GradientDescent itself"),
]


@pytest.mark.parametrize(("change", "error", "sentence"), WRONG)
def test_a_wrong_argument_is_never_ignored(change: dict[str, Any], error: Any, sentence: str) -> None:
    for kind in (LogisticRegression, Ridge):
        X, y = toy_data(kind)
        account = Account(10.0, 1e-4)
        model = configured(kind, **({"account": account} | change))
        with pytest.raises(error, match=sentence):
            model.fit(X, y)
        assert account.entries == ()
        with pytest.raises(error, match=sentence):
            configured(kind, **change).plan(n_features=X.shape[1], n=ROWS)


def test_an_observer_that_cannot_be_called_is_refused_before_anything_is_charged() -> None:
    X, y = toy_data()
    account = Account(10.0, 1e-4)
    with pytest.raises(TypeError, match="observer must be a function"):
        configured(LogisticRegression, account=account).fit(X, y, observer=3)
    assert account.entries == ()


@pytest.mark.parametrize(
    ("change", "error", "sentence"),
    [
        ({"refit": "no"}, TypeError, "refit must be True or False"),
        ({"account": 3}, TypeError, "account must be an Account or None"),
        ({"holdout": 2}, ValueError, "holdout must lie strictly between 0 and 1"),
        ({"param_grid": {"fit_intercept": ["yes"]}}, TypeError, "fit_intercept must be True or False"),
        ({"param_grid": {"l1_ratio": [0.5, 7]}}, ValueError, "l1_ratio must lie between 0"),
    ],
)
def test_a_search_ignores_no_argument_either(change: dict[str, Any], error: Any, sentence: str) -> None:
    X, y = toy_data()
    base = configured(LogisticRegression, epsilon=None, delta=None)
    search = PrivateSearchCV(
        **({"estimator": base, "param_grid": {"alpha": [0.1, 1.0]}, "epsilon": 1.0, "delta": 1e-5} | change)
    )
    with pytest.raises(error, match=sentence):
        search.fit(X, y)


def odd_features(X: Any) -> dict[str, Any]:
    return {
        "one column": X[:, 0],
        "one number": X[0, 0],
        "complex": X + 1j,
        "complex sparse": sparse.csr_array(X + 1j),
        "complex frame": pd.DataFrame(X + 1j),
        "three dimensions": X[None],
    }


@pytest.mark.parametrize("name", odd_features(np.ones((2, 3))))
def test_features_that_are_no_matrix_are_refused_without_a_cell_of_them(name: str) -> None:
    X, y = toy_data()
    secret = 0.7331984251
    X = np.full_like(X, secret)
    model = configured(LogisticRegression, solver=FEW_STEPS)
    fitted = configured(LogisticRegression, solver=FEW_STEPS).fit(*toy_data())
    for call in (lambda: model.fit(odd_features(X)[name], y), lambda: fitted.predict(odd_features(X)[name])):
        with pytest.raises(
            (ValueError, TypeError),
            match=r"Expected 2D|[Cc]omplex data|do not hold numbers|rows of X have different",
        ) as refused:
            call()
        assert "733" not in str(refused.value)
        assert "\n" not in str(refused.value)


def test_a_row_of_another_length_than_most_is_a_record_that_cannot_be_read() -> None:
    """To refuse it would tell of that record, as of any other odd cell."""
    X, y = toy_data()
    rows: list[Any] = X.tolist()
    missing = X.copy()
    missing[3] = np.nan
    expected = configured(LogisticRegression, solver=FEW_STEPS, random_state=3).fit(missing, y).coef_
    for odd in ([0.5], [], [*rows[3], 0.5], 0.5, None):
        found = configured(LogisticRegression, solver=FEW_STEPS, random_state=3).fit(
            [*rows[:3], odd, *rows[4:]], y
        )
        np.testing.assert_array_equal(found.coef_, expected)


@pytest.mark.parametrize("alpha", [0.1, pytest.param("private", marks=pytest.mark.audit)])
def test_memory_of_a_fit_is_that_of_the_rows_whatever_n(alpha: Any) -> None:
    X, y = toy_data()

    def peak(n: int) -> float:
        model = configured(
            LogisticRegression, relation="add-or-remove-one", n=n, alpha=alpha, solver=FEW_STEPS
        )
        tracemalloc.start()
        model.fit(X, y)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    peak(ROWS)  # compiles
    assert peak(10**7) < peak(ROWS) + 20e6


def test_under_replace_one_n_is_refused_where_it_is_not_the_number_of_rows() -> None:
    X, y = toy_data()
    account = Account(10.0, 1e-4)
    for n in (ROWS - 1, 10**9):
        with pytest.raises(ValueError, match=f"n = {n} was given with {ROWS} rows"):
            configured(LogisticRegression, n=n, account=account).fit(X, y)
    assert account.entries == ()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"numeric_range": (0, 1, 2)}, "numeric_range must be a pair of numbers"),
        ({"numeric_range": "ab"}, "numeric_range must be a pair of numbers"),
        ({"features": "age"}, "features must be a list of column names"),
        ({"exclude": "age"}, "exclude must be a list of column names"),
        ({"exclude": 3}, "exclude must be a list of column names"),
    ],
)
def test_an_encoder_takes_pairs_and_lists(change: dict[str, Any], sentence: str) -> None:
    schema = {"columns": {"age": {"kind": "num", "low": 0, "high": 100}}}
    with pytest.raises(TypeError, match=sentence):
        TabularEncoder(schema, **change).fit(pd.DataFrame({"age": [25, 200]}))
