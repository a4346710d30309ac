"""An account in a file: what was paid survives, whatever happens to the process, the disk, the clock or the file."""

import errno
import pickle
import shutil
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.account_files import FIT, names, opened, pay

from privopt.errors import AccountError, BudgetExceeded, NotPriceable
from privopt.ledger import account_file, claims, payments
from privopt.ledger.account import Account
from privopt.ledger.accounting import zcdp_rho
from privopt.ledger.claims import CounterBeside, CounterFolder, Mark
from privopt.ledger.events import (
    DeltaEvent,
    GaussianEvent,
    LaplaceEvent,
    NonPrivateEvent,
    Poisson,
    Repeated,
    RoundingEvent,
    SampledEvent,
    Sequence,
)


def edit(path: Path, *statements: str) -> None:
    """Change the file as somebody would who knows SQLite: the triggers go first, and come back."""
    connection = sqlite3.connect(path)
    triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        connection.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        connection.execute(statement)
    for _, sql in triggers:
        connection.execute(sql)
    connection.commit()
    connection.close()


# What is paid stays paid ---------------------------------------------------------------------------------------------


def test_what_one_process_paid_another_cannot_spend(path: Path) -> None:
    pay(opened(path), "first")
    again = Account(path=path)
    left = again.remaining
    assert left < Account(1.0, 1e-6, bad_event_delta=1e-7).remaining - 10 / (2 * 60.0**2)
    pay(again, "second")
    assert names(Account(path=path)) == ["first", "second"]
    with pytest.raises(BudgetExceeded, match=r"'too much' would cost rho=\d"):
        again.spend("too much", GaussianEvent(1.0), 0.3, 1e-6)
    assert names(again) == ["first", "second"]
    assert [entry.name for entry in again.entries] == ["first", "second"]
    assert again.to_dict()["data_set"] == "patients 2026"
    assert str(again).startswith("account of 'patients 2026': epsilon = 1, delta = 1e-06, replace-one, zCDP")


def test_it_pays_as_an_account_in_memory_does_and_never_less(path: Path) -> None:
    account, memory = opened(path, bad_event_delta=1e-7), Account(1.0, 1e-6, bad_event_delta=1e-7)
    fit = Sequence((FIT, LaplaceEvent(30.0), DeltaEvent(1e-9), RoundingEvent(1e-10)))
    for _ in range(5):
        account.spend("fit", fit, 0.3, 1e-6)
        memory.spend("fit", fit, 0.3, 1e-6)
    assert account.remaining == pytest.approx(memory.remaining, rel=1e-12)
    assert account.remaining <= memory.remaining
    assert account.remaining_epsilon() == pytest.approx(memory.remaining_epsilon(), rel=1e-9)
    assert account.entries == memory.entries
    assert account.affords(GaussianEvent(20.0), 0.3, 1e-6)
    assert not account.affords(GaussianEvent(1.0), 0.3, 1e-6)


def test_the_stored_price_covers_the_events_and_all_of_them_the_sum(path: Path) -> None:
    account = opened(path, epsilon=3.0)
    for z in (17.0, 33.3, 71.9):
        account.spend("fit", Repeated(GaussianEvent(z), 3), 0.3, 1e-6)
    assert account.file is not None
    stored = account.file.payments()
    rhos = [zcdp_rho(payment.event) for payment in stored]
    for payment, rho in zip(stored, rhos, strict=True):
        assert rho is not None
        assert rho < payment.cost.amount < rho * (1 + 1e-13)
    ledger = account.file.ledger()
    assert sum(rho or 0.0 for rho in rhos) <= ledger.spent <= sum(rho or 0.0 for rho in rhos) * (1 + 1e-12)
    assert ledger.spent_event() == Sequence(tuple(payment.event for payment in stored))


def test_a_basic_account_stores_what_a_fit_declares(path: Path) -> None:
    account = opened(path, composition="basic")
    fit = Repeated(SampledEvent(Poisson(0.01), GaussianEvent(4.0)), 100)
    account.spend("sgd", fit, 0.5, 5e-7)
    assert Account(path=path).remaining_epsilon() == pytest.approx(0.5, abs=1e-12)
    assert not account.affords(fit, 0.5, 6e-7)
    with pytest.raises(ValueError, match="its events cost"):
        account.spend("sgd", fit, 1e-3, 1e-8)
    with pytest.raises(NotPriceable, match="composition='basic'"):
        opened(path.with_name("other.sqlite")).spend("sgd", fit, 0.5, 5e-7)
    assert names(account) == ["sgd"]


def test_what_has_no_noise_is_refused(path: Path) -> None:
    account = opened(path)
    with pytest.raises(BudgetExceeded, match="rho=inf"):
        account.spend("no privacy", NonPrivateEvent(), float("inf"), 1e-6)
    assert names(account) == []


def test_the_seed_is_part_of_the_payment(path: Path) -> None:
    account = opened(path)
    pay(account)
    assert "not private" not in str(account)
    pay(account, "with a seed", seeded=True)
    assert str(Account(path=path)).startswith("seeded: not private")
    account.mark_seeded()  # known already
    assert len(names(account)) == 2
    late = opened(path.with_name("late.sqlite"))
    pay(late)
    late.mark_seeded()
    late.mark_seeded()
    assert names(late) == ["a fit", "a seed was used"]
    assert Account(path=late.file.path).to_dict()["mark"] == "seeded: not private"  # type: ignore[union-attr]
    assert [entry.name for entry in late.entries] == ["a fit"]


def test_a_pickled_account_is_the_same_one(path: Path) -> None:
    account = opened(path)
    copy = pickle.loads(pickle.dumps(account))
    pay(copy)
    assert names(account) == ["a fit"]
    path.rename(path.with_name("elsewhere.sqlite"))
    with pytest.raises(
        AccountError, match=r"there is no account at .* Its counter .* is still there: bring back"
    ):
        pickle.loads(pickle.dumps(account))


# Who may pay, and for what -------------------------------------------------------------------------------------------


def test_it_refuses_other_data_and_other_terms(path: Path) -> None:
    opened(path, relation="add-or-remove-one")
    Account(1.0, 1e-6, path=path, relation="add-or-remove-one", data_set="patients 2026")
    for other in (
        {"data_set": "customers"},
        {"relation": "replace-one"},
        {"composition": "gaussian"},
        {"epsilon": 2.0},
        {"bad_event_delta": 0.0},
    ):
        with pytest.raises(
            AccountError, match=f"has {next(iter(other)).replace('_', ' ')} .* not .* its terms were set when"
        ):
            Account(path=path, **other)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="keeps add-or-remove-one privacy, but the fit is under replace-one"):
        pay(Account(path=path), relation="replace-one")


def test_it_keeps_the_privacy_of_one_kind_of_unit(path: Path) -> None:
    account = opened(path)
    pay(account, unit="user")
    with pytest.raises(ValueError, match="paid for fits that protect a user, but this one protects a record"):
        pay(Account(path=path), unit="record")
    fixed = opened(path.with_name("fixed.sqlite"), unit="record")
    with pytest.raises(ValueError, match="but this one protects a user"):
        pay(fixed, unit="user")
    assert names(fixed) == []


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"epsilon": float("inf")}, "must be finite"),
        ({"composition": "plan"}, "so there is no plan of all of them"),
        ({"composition": "renyi"}, "composition must be one of"),
        ({"bad_event_delta": 1e-6}, "bad_event_delta must be at least 0 and below delta"),
        ({"unit": "household"}, "unit must be 'record' or 'user'"),
        ({"data_set": " "}, "data_set must be a name"),
        ({"data_set": "two\nlines"}, "data_set must be a name"),
        ({"delta": 0.0, "bad_event_delta": 0.0}, "needs a delta above 0"),
    ],
)
def test_terms_that_no_account_can_keep_make_no_file(path: Path, terms: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Account.create(path, **{"epsilon": 1.0, "delta": 1e-6, "data_set": "patients", **terms})
    assert list(path.parent.iterdir()) == []


def test_an_account_is_created_once(path: Path) -> None:
    with pytest.raises(AccountError, match=r"there is no account at .* created once, by whoever answers"):
        Account(path=path)
    with pytest.raises(TypeError, match=r"both epsilon and delta, .* or path="):
        Account()
    with pytest.raises(ValueError, match="are of an account in a file"):
        Account(1.0, 1e-6, data_set="patients")
    opened(path)
    with pytest.raises(AccountError, match=r"an account is never replaced|the counter of an account"):
        opened(path)
    path.unlink()
    with pytest.raises(
        AccountError, match=r"the counter of an account that was at .* bring that account back"
    ):
        opened(path)
    with pytest.raises(AccountError, match="cannot be created: no such file"):
        opened(path.parent / "missing" / "budget.sqlite")


# Copies and changed files --------------------------------------------------------------------------------------------


def test_an_older_copy_is_noticed(path: Path) -> None:
    account = opened(path)
    pay(account)
    shutil.copy(path, path.with_name("backup"))
    pay(account)
    shutil.copy(path.with_name("backup"), path)
    with pytest.raises(AccountError, match="no longer holds the 2 payments that this process has seen"):
        pay(account)
    with pytest.raises(AccountError, match=r"holds 1 payments, but the counter .* has seen 2: .* older copy"):
        pay(Account(path=path))
    assert Account(path=path).file.trouble() is not None  # type: ignore[union-attr]


def test_a_copy_elsewhere_is_noticed_and_a_move_is_not(path: Path) -> None:
    account = opened(path)
    pay(account)
    copy = shutil.copy(path, path.with_name("copy.sqlite"))
    with pytest.raises(
        AccountError, match=r"counter 'copy.sqlite.counter' .* is missing: this looks like a copy"
    ):
        pay(Account(path=copy))
    moved = path.with_name("moved.sqlite")
    path.rename(moved)
    CounterBeside.of(path).path.rename(CounterBeside.of(moved).path)
    pay(Account(path=moved))
    linked = path.with_name("linked.sqlite")
    linked.symlink_to(moved)
    pay(Account(path=linked))
    assert len(names(Account(path=moved))) == 3


def test_a_copy_that_went_its_own_way_is_noticed(path: Path) -> None:
    account = opened(path)
    copy = path.with_name("copy.sqlite")
    shutil.copy(path, copy)
    shutil.copy(CounterBeside.of(path).path, CounterBeside.of(copy).path)
    pay(account, "on the account")
    other = Account(path=copy)
    pay(other, "on the copy")
    pay(other, "and again")
    shutil.copy(copy, path)
    with pytest.raises(AccountError, match=r"payment 1 in the account .* is not the one that the counter"):
        pay(Account(path=path))
    shutil.copy(
        CounterBeside.of(opened(path.with_name("third.sqlite")).file.path).path, CounterBeside.of(path).path
    )  # type: ignore[union-attr]
    with pytest.raises(AccountError, match="belongs to another account"):
        pay(Account(path=path))
    CounterBeside.of(path).path.write_text("{")
    with pytest.raises(AccountError, match="cannot be read"):
        pay(Account(path=path))


class Remote:
    """A counter on another machine; both files can be restored, it cannot."""

    def __init__(self, *, reached: bool = True) -> None:
        self.marks: dict[str, Mark] = {}
        self.reached = reached

    def read(self, account: str) -> Mark | None:
        return self.marks.get(account)

    def advance(self, mark: Mark) -> None:
        if not self.reached:
            raise AccountError("the remote counter cannot be reached.")
        self.marks[mark.account] = mark


def test_a_counter_elsewhere_notices_what_the_one_beside_cannot(path: Path) -> None:
    remote = Remote()
    account = opened(path, counter=remote)
    pay(account)
    backup = path.parent / "backup"
    backup.mkdir()
    for file in (path, CounterBeside.of(path).path):
        shutil.copy(file, backup)
    pay(account)
    for file in (path, CounterBeside.of(path).path):
        shutil.copy(backup / file.name, path.parent)
    with pytest.raises(
        AccountError, match=r"holds 1 payments, but the counter elsewhere \(Remote\) has seen 2"
    ):
        pay(Account(path=path, counter=remote))
    with pytest.raises(AccountError, match="is counted elsewhere too, and cannot be used without that"):
        pay(Account(path=path))


def _copy_both(path: Path, target: Path) -> Path:
    """The account's file and the counter beside it, in another folder."""
    target.mkdir(exist_ok=True)
    for file in (path, CounterBeside.of(path).path):
        shutil.copy(file, target)
    return target / path.name


def test_a_folder_elsewhere_counts_too_and_is_found_again(path: Path) -> None:
    folder = path.parent / "other disk"
    folder.mkdir()
    pay(opened(path, counter=CounterFolder(folder)))
    backup = _copy_both(path, path.parent / "backup")
    pay(pickle.loads(pickle.dumps(Account(path=path))))
    assert sorted(file.name for file in folder.rglob("*.*")) == [f"{n:08d}.json" for n in range(3)]
    _copy_both(backup, path.parent)
    with pytest.raises(AccountError, match=r"holds 1 payments, but the counter in .* has seen 2"):
        pay(Account(path=path))
    moved = folder.rename(path.parent / "elsewhere")
    with pytest.raises(AccountError, match=r"other disk' cannot be reached .* not used without it"):
        pay(Account(path=path))
    with pytest.raises(AccountError, match=r"holds 1 payments, but the counter in .* has seen 2"):
        pay(Account(path=path, counter=CounterFolder(moved)))


@pytest.mark.parametrize("second", ["of the second", "of the first"])
def test_of_two_copies_that_pay_at_once_a_folder_lets_one(
    path: Path, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both see the same counter, both enter a payment, perhaps for the same at the same time: one may read data."""
    monkeypatch.setattr(payments, "now", lambda: "2026-11-23T00:00:00+00:00")
    folder = path.parent / "other disk"
    folder.mkdir()
    account = opened(path, counter=CounterFolder(folder))
    copy = Account(path=_copy_both(path, path.parent / "copy"))
    assert copy.file is not None
    check = copy.file._checked

    def while_the_other_pays(connection: sqlite3.Connection) -> Any:
        found = check(connection)
        pay(account, "of the first")
        return found

    copy.file._checked = while_the_other_pays  # type: ignore[method-assign]
    with pytest.raises(AccountError, match=r"is not the one that the counter in .* has seen"):
        pay(copy, second)
    mark = CounterFolder(folder).read(account.file.terms.account)  # type: ignore[union-attr]
    assert mark is not None
    other = Mark(mark.account, mark.payments, "0" * 64)
    CounterFolder(folder).advance(mark)  # the same again is nothing new
    with pytest.raises(AccountError, match="payment 1 of this account was made by another copy"):
        CounterFolder(folder).advance(other)
    assert CounterFolder(folder).read(mark.account) == mark


def test_without_its_folder_no_account_is_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(AccountError, match=r"cannot be reached \(no such folder\)"):
        opened(path, counter=CounterFolder(path.parent / "nowhere"))
    monkeypatch.setattr(claims, "add_file", full)
    with pytest.raises(AccountError, match=r"cannot be written: No space .* No account was opened\."):
        opened(path, counter=CounterFolder(path.parent))
    assert not path.exists()
    assert not CounterBeside.of(path).path.exists()
    with pytest.raises(AccountError, match="not one that privopt gave"):
        CounterFolder(path.parent).read("../..")


def test_a_payment_that_a_counter_missed_counts_and_nothing_is_read_for_it(path: Path) -> None:
    remote = Remote()
    account = opened(path, counter=remote)
    remote.reached = False
    with pytest.raises(AccountError, match="cannot be reached"):
        pay(account, "paid, not read")
    assert names(account) == ["paid, not read"]
    remote.reached = True
    pay(account, "and on")
    assert next(iter(remote.marks.values())).payments == 2


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE payment SET amount = 0",
        "DELETE FROM payment WHERE number = 2",
        "INSERT OR REPLACE INTO payment SELECT * FROM payment WHERE number = 1",
        "INSERT INTO payment SELECT number + 5, time, name, event, epsilon, delta, amount, amount_delta, unit, "
        "seeded, nonce, previous, hash FROM payment WHERE number = 1",
        "UPDATE account SET terms = replace(terms, '1.0', '9.0')",
        "INSERT OR REPLACE INTO account SELECT * FROM account",
    ],
)
def test_rows_are_only_ever_added(path: Path, statement: str) -> None:
    account = opened(path)
    pay(account)
    pay(account)
    connection = sqlite3.connect(path)
    with pytest.raises(sqlite3.IntegrityError, match=r"append-only|numbered in order|one account"):
        connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("UPDATE payment SET amount = 0 WHERE number = 1", "payment 1 .* does not carry the hash"),
        ("UPDATE payment SET name = 'other' WHERE number = 2", "payment 2 .* does not carry the hash"),
        ("DELETE FROM payment WHERE number = 1", "payment 2 .* does not carry the hash"),
        ("DELETE FROM payment WHERE number = 2", "holds 1 payments, but the counter"),
        (
            "UPDATE account SET terms = replace(terms, '\"epsilon\": 1.0', '\"epsilon\": 9.0')",
            "payment 1 .* hash",
        ),
        ("UPDATE account SET terms = '{'", "the terms of the account cannot be read"),
        ("CREATE TABLE more (x)", "its tables or the triggers .* were changed"),
        ("PRAGMA user_version = 2", "has form 2, and this version of privopt knows form 1"),
    ],
)
def test_a_changed_file_is_refused(path: Path, statement: str, message: str) -> None:
    account = opened(path)
    pay(account)
    pay(account)
    edit(path, statement)
    with pytest.raises(AccountError, match=message):
        pay(Account(path=path))


def test_a_file_without_its_triggers_is_refused(path: Path) -> None:
    opened(path)
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER no_update_of_payment")
    connection.close()
    with pytest.raises(AccountError, match="the triggers that keep it append-only were changed"):
        Account(path=path)


def test_a_file_that_is_no_account_is_refused(path: Path) -> None:
    sqlite3.connect(path).execute("CREATE TABLE t (x)").connection.close()
    with pytest.raises(AccountError, match="is no account of privopt"):
        Account(path=path)
    path.write_text("column,column\n" * 100)
    with pytest.raises(AccountError, match="file is not a database"):
        Account(path=path)


def test_an_event_that_this_version_does_not_know_stops_the_account(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pay(opened(path))

    def unknown(values: Any) -> None:
        raise ValueError(f"event must be one of none; got {values['event']!r}.")

    monkeypatch.setattr(payments, "event_from_dict", unknown)
    payments._priced.cache_clear()  # as in another process
    with pytest.raises(
        AccountError, match="cannot be priced by this version of privopt, perhaps because a later"
    ):
        pay(Account(path=path))


def test_the_dearer_of_the_stored_price_and_todays_counts(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pay(opened(path, epsilon=3.0))
    before = Account(path=path).remaining
    true = payments.price

    def dearer(*arguments: Any) -> Any:
        cost = true(*arguments)
        return type(cost)(2 * cost.amount, cost.delta)

    monkeypatch.setattr(payments, "price", dearer)
    payments._priced.cache_clear()  # as in another process
    assert Account(path=path).remaining < before
    monkeypatch.setattr(payments, "price", lambda *arguments: type(true(*arguments))(0.0, 0.0))
    payments._priced.cache_clear()
    assert Account(path=path).remaining == before


def test_a_payment_of_another_while_an_account_is_read_is_no_older_copy(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pay(opened(path))
    file, check, reader = Account(path=path).file, account_file.check_counter, threading.current_thread()
    assert file is not None
    payer = threading.Thread(target=pay, args=(Account(path=path), "meanwhile"))

    def check_later(*arguments: Any) -> Mark:
        if threading.current_thread() is reader and payer.ident is None:
            payer.start()
            payer.join(0.3)
        return check(*arguments)

    monkeypatch.setattr(account_file, "check_counter", check_later)
    assert len(file.ledger().entries) == 1
    payer.join()
    assert file.trouble() is None
    assert names(Account(path=path)) == ["a fit", "meanwhile"]
