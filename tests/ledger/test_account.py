"""An account is one budget for several fits; it cannot be doubled."""

import copy
import json
import pickle
import tempfile

import pytest

from privopt.errors import BudgetExceeded, NotPriceable
from privopt.estimators.linear import Ridge
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget, rounded_down
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import (
    DeltaEvent,
    GaussianEvent,
    LaplaceEvent,
    Poisson,
    Repeated,
    RoundingEvent,
    SampledEvent,
    SelectionsEvent,
    Sequence,
)
from privopt.ledger.filters import Composition


def test_fits_are_paid_at_once_and_in_full() -> None:
    account = Account(1.0, 1e-6, composition="gaussian")
    scale = calibrate(lambda s: Repeated(GaussianEvent(s), 50), Budget(0.6, 1e-6), "replace-one")
    fit = Repeated(GaussianEvent(scale), 50)
    account.spend("first", fit, 0.6, 1e-6, relation="replace-one")
    left = account.remaining_epsilon()
    assert 0.75 < left < 0.85  # the rest of mu^2: more than 1 - 0.6
    assert account.affords(fit, 0.6, 1e-6)
    account.spend("second", fit, 0.6, 1e-6)
    with pytest.raises(BudgetExceeded, match="'third' would cost rho"):
        account.spend("third", fit, 0.6, 1e-6)
    assert [entry.name for entry in account.entries] == ["first", "second"]
    last = calibrate(lambda s: GaussianEvent(s), Budget(account.remaining_epsilon(), 1e-6), "replace-one")
    account.spend("all that is left", GaussianEvent(last), account.remaining_epsilon(), 1e-6)
    assert account.remaining < 1e-6


def test_a_basic_account_pays_by_epsilon_and_delta_whatever_is_inside() -> None:
    account = Account(1.0, 1e-6, composition="basic", relation="add-or-remove-one")
    fit = Repeated(SampledEvent(Poisson(0.01), GaussianEvent(4.0)), 100)
    account.spend("sgd", fit, 0.5, 5e-7)
    assert account.remaining_epsilon() == 0.5
    assert account.affords(fit, 0.5, 5e-7)
    assert not account.affords(fit, 0.5, 6e-7)
    with pytest.raises(ValueError, match="its events cost"):
        account.spend("sgd", fit, 1e-3, 1e-8)
    with pytest.raises(NotPriceable, match="open an account with composition='basic'"):
        Account(1.0, 1e-6).spend("sgd", fit, 0.5, 5e-7)


def test_an_account_takes_mixed_fits_and_bad_events() -> None:
    account = Account(1.0, 1e-6, bad_event_delta=1e-7)
    account.spend("fit", Sequence((LaplaceEvent(20.0), GaussianEvent(20.0), DeltaEvent(1e-7))), 0.6, 1e-6)
    assert not account.affords(DeltaEvent(1e-8), 0.1, 1e-8)
    assert 0 < account.remaining_epsilon() < 1


def test_an_account_sets_the_share_of_rounding_aside_for_fits_to_come() -> None:
    account = Account(1.0, 1e-6, bad_event_delta=1e-8)
    fit = Sequence((SelectionsEvent(0.002, 3.0), RoundingEvent(1e-9)))
    for name in ("first", "second"):
        account.spend(name, fit, 0.5, 1e-6)
    assert not account.affords(fit, 0.5, 1e-6)  # 3 (1 + e) 1e-9 is more than was set aside
    assert account.affords(SelectionsEvent(0.002, 3.0), 0.5, 1e-6)
    with pytest.raises(BudgetExceeded, match="Set more aside when the ledger opens"):
        account.spend("third", fit, 0.5, 1e-6)


def test_the_relation_of_a_fit_must_be_the_accounts() -> None:
    account = Account(1.0, 1e-6)
    with pytest.raises(ValueError, match="keeps replace-one privacy, but the fit is under add-or-remove-one"):
        account.spend("fit", GaussianEvent(50.0), 0.2, 1e-6, relation="add-or-remove-one")
    assert account.entries == ()


def test_an_account_cannot_be_doubled() -> None:
    account = Account(1.0, 1e-6)
    assert copy.copy(account) is account
    assert copy.deepcopy({"account": account})["account"] is account
    with pytest.raises(TypeError, match="an account cannot be pickled: a stored copy could be spent twice"):
        pickle.dumps(account)


def test_an_account_prints_and_exports() -> None:
    account = Account(2, 1e-6, composition="gaussian")
    assert "nothing was spent yet" in str(account)
    account.spend("fit", GaussianEvent(10.0), 0.5, 1e-6)
    assert str(account).startswith(
        "account: epsilon = 2, delta = 1e-06, replace-one, Gaussian composition; one more fit may have "
    )
    assert "  fit: Gaussian noise, 10 times the sensitivity" in str(account)
    assert json.loads(json.dumps(account.to_dict()))["entries"][0]["name"] == "fit"


def test_an_account_has_no_plan() -> None:
    with pytest.raises(ValueError, match="so there is no plan of all of them"):
        Account(1.0, 1e-6, composition="plan")


@pytest.mark.parametrize("composition", ["zcdp", "gaussian", "basic"])
@pytest.mark.parametrize("paid", [0.0, 0.3, 0.7])
def test_what_is_said_to_be_left_is_paid_and_hardly_more_is(composition: Composition, paid: float) -> None:
    account = Account(
        1.0, 1e-6, composition=composition, bad_event_delta=0.0 if composition == "basic" else 1e-7
    )
    delta = 5e-7 if composition == "basic" else 1e-6

    def fit_of(epsilon: float) -> GaussianEvent:
        return GaussianEvent(calibrate(GaussianEvent, Budget(epsilon, delta), "replace-one"))

    if paid:
        account.spend("before", fit_of(paid), paid, delta)
    left = account.remaining_epsilon()
    told = rounded_down(left)
    with pytest.raises(BudgetExceeded, match=f"has epsilon {told:.3g}"):
        account.spend("too much", fit_of(1.01 * left), 1.01 * left, delta)
    assert f"up to epsilon = {told:.3g}" in str(account)
    assert 0.99 * left < told < left * (1 + 1e-9)
    account.spend("all that it says", fit_of(told), told, delta)
    with pytest.raises(BudgetExceeded, match="account"):
        account.spend("more", fit_of(0.2), 0.2, delta)


def test_an_account_shows_what_it_is() -> None:
    account = Account(1.0, 1e-6)
    assert repr(account) == "Account(epsilon=1, delta=1e-06, composition='zcdp')"
    assert repr(account) in " ".join(repr(Ridge(epsilon=0.5, account=account)).split())
    with tempfile.TemporaryDirectory() as folder:
        kept = Account.create(f"{folder}/budget.sqlite", 1.0, 1e-6, data_set="patients")
        assert repr(kept) == f"Account(path={str(kept.file.path)!r}, data_set='patients')"
