"""Fits of scikit-learn's searches, in threads and in processes, share one account in a file."""

import pickle
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.model_selection import cross_val_score

from privopt import Account, LogisticRegression
from privopt.errors import BudgetExceeded

DRAW = np.random.default_rng(0)
X = DRAW.uniform(size=(300, 2))
Y = (X[:, 0] > 0.5).astype(int)


def model(account: Account) -> LogisticRegression:
    return LogisticRegression(
        epsilon=0.2,
        delta=1e-8,
        bounds=(0, 1),
        classes=[0, 1],
        solver="gradient-descent",
        account=account,
    )


def opened(folder: Path) -> Account:
    return Account.create(folder / "budget.sqlite", 1.0, 1e-6, data_set="patients")


@pytest.mark.parametrize("backend", ["threading", pytest.param("loky", marks=pytest.mark.audit)])
def test_every_fit_of_a_cross_validation_pays(tmp_path: Path, backend: str) -> None:
    account = opened(tmp_path)
    with joblib.parallel_config(backend):
        cross_val_score(model(account), X, Y, cv=3, n_jobs=2)
    assert account.file is not None
    assert [payment.name for payment in account.file.payments()] == ["gradient-descent"] * 3
    assert account.file.trouble() is None


def test_a_fitted_model_is_pickled_without_the_account_and_a_plain_one_with_its_path(tmp_path: Path) -> None:
    account = opened(tmp_path)
    plain = pickle.loads(pickle.dumps(model(account)))
    plain.fit(X, Y)
    fitted = pickle.loads(pickle.dumps(plain))
    assert str(tmp_path).encode() not in pickle.dumps(plain)
    assert fitted.account is None
    with pytest.raises(ValueError, match="the account that paid for its fit stayed behind"):
        fitted.fit(X, Y)
    assert len(account.entries) == 1


def test_a_fit_that_the_account_refuses_is_not_made(tmp_path: Path) -> None:
    account = opened(tmp_path)
    refused = model(account).set_params(epsilon=3.0)
    with pytest.raises(BudgetExceeded, match="would cost rho"):
        refused.fit(X, Y)
    assert not hasattr(refused, "coef_")
    assert account.entries == ()
