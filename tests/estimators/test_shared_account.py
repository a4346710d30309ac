"""Fits of scikit-learn's searches, in threads and in processes, share one account in a file."""

import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import joblib
import numpy as np
import pytest
from joblib.externals.loky.process_executor import TerminatedWorkerError
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


@pytest.mark.audit
def test_a_worker_that_is_killed_has_paid_and_the_account_says_so(tmp_path: Path) -> None:
    account = opened(tmp_path)

    def dies(name: str, count: int) -> None:
        if count:  # a release was made, so its fit was paid for
            os.kill(os.getpid(), signal.SIGKILL)

    with (
        joblib.parallel_config("loky"),
        pytest.raises(TerminatedWorkerError, match="unexpectedly terminated"),
    ):
        cross_val_score(model(account), X, Y, cv=3, n_jobs=2, params={"observer": dies})
    assert account.file is not None
    paid = len(account.file.payments())
    assert 1 <= paid <= 3
    assert account.file.trouble() is None
    assert sorted(one.name for one in tmp_path.iterdir()) == ["budget.sqlite", "budget.sqlite.counter"]
    model(account).fit(X, Y)
    assert len(account.file.payments()) == paid + 1


FIT_THAT_DIES = """
import os, signal, sys
import numpy as np
from privopt import Account, LogisticRegression
model = LogisticRegression(
    epsilon=0.2, delta=1e-8, bounds=(0, 1), classes=[0, 1], solver="gradient-descent", account=Account(path=sys.argv[1])
)
X = np.random.default_rng(0).uniform(size=(300, 2))
model.fit(X, X[:, 0] > 0.5, observer=lambda name, count: count and os.kill(os.getpid(), signal.SIGKILL))
"""


@pytest.mark.audit
def test_a_fit_that_is_killed_at_its_first_release_has_paid_for_all(tmp_path: Path) -> None:
    account = opened(tmp_path)
    assert account.file is not None
    typed = [sys.executable, "-c", FIT_THAT_DIES, str(account.file.path)]
    assert subprocess.run(typed, capture_output=True, check=False).returncode == -signal.SIGKILL
    model(account).fit(X, Y)
    killed, made = account.file.payments()
    assert killed.event == made.event
    assert account.file.trouble() is None
