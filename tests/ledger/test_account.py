"""An account is one budget for several fits; it cannot be doubled."""

import copy
import json
import pickle

import pytest

from privopt.errors import BudgetExceeded, NotPriceable
from privopt.ledger.account import Account
from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.ledger.events import (
    DeltaEvent,
    GaussianEvent,
    LaplaceEvent,
    Repeated,
    RoundingEvent,
    SampledEvent,
    SelectionsEvent,
    Sequence,
)
from privopt.ledger.sampling import Poisson


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
        "account: epsilon = 2, delta = 1e-06, replace-one, Gaussian composition; epsilon = "
    )
    assert "  fit: Gaussian noise, 10 times the sensitivity" in str(account)
    assert json.loads(json.dumps(account.to_dict()))["entries"][0]["name"] == "fit"


def test_an_account_has_no_plan() -> None:
    with pytest.raises(ValueError, match="so there is no plan of all of them"):
        Account(1.0, 1e-6, composition="plan")
