"""`privopt account`, and commands that pay from an account: what they print, refuse and leave behind."""

import io
import json
import re
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from tests.support.account_files import pay
from tests.support.slowness import slowness
from typer.testing import CliRunner

from privopt import Account
from privopt.cli import app
from privopt.commands import screen
from privopt.errors import AccountError
from privopt.ledger import default_account, payments
from privopt.ledger.default_account import ACCOUNT, REQUIRE, Statement
from privopt.ledger.events import event_from_dict
from privopt.ledger.filters import filter_cost

SCHEMA = {
    "target": "ill",
    "columns": {
        "age": {"kind": "num", "low": 0, "high": 100},
        "smoker": {"kind": "flag"},
        "ill": {"kind": "flag"},
    },
}
CREATE = ("create", "budget.sqlite", "--data-set", "patients", "--epsilon", 2, "--delta", 1e-6)
FIT = ("fit", "table.csv", "--schema", "schema.json", "--solver", "gradient-descent", "--delta", 1e-7)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a table and its schema."""
    draw = np.random.default_rng(0)
    age = draw.uniform(0, 100, 400)
    table = {"age": age, "smoker": draw.integers(0, 2, 400), "ill": (age > 50).astype(int)}
    pd.DataFrame(table).to_csv(tmp_path / "table.csv", index=False)
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(ACCOUNT, raising=False)
    monkeypatch.delenv(REQUIRE, raising=False)
    return tmp_path


def run(*arguments: Any, code: int = 0) -> str:
    """What is printed; the exit code is checked."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output
    return re.sub(r"\s+", " ", result.output)


def account(*arguments: Any, code: int = 0) -> str:
    return run("account", *arguments, code=code)


def test_an_account_is_created_shown_and_exported() -> None:
    printed = account(*CREATE, "--unit", "record")
    assert "Opened the account of 'patients'" in printed
    assert "keeps epsilon = 2, delta = 1e-06, for all fits together" in printed
    assert "protected one record; replace-one: its data may be replaced by any other" in printed
    assert "move and back up both together" in printed
    assert "paid for 0 fits" in account("show", "budget.sqlite")
    pay(Account(path="budget.sqlite"), "weekly report")
    pay(Account(path="budget.sqlite"), "model of costs", seeded=True)
    printed = account("show", "budget.sqlite")
    assert "seeded: not private: a fit that this account paid for used a seed" in printed
    assert re.search(r"1 \d{4}-\d\d-\d\d \d\d:\d\d weekly report 0.3 \d\.\d+ [#█]+[.░]* \d\d\.\d %", printed)
    assert re.search(r"2 .* model of costs 0.3 .* \(seeded: not private\)", printed)
    text = account("export", "budget.sqlite")
    values = json.loads(text)
    assert values["seeded"]
    assert [payment["name"] for payment in values["payments"]] == ["weekly report", "model of costs"]
    for payment in values["payments"]:  # whoever has the export can price it again
        again = filter_cost("zcdp", event_from_dict(payment["event"]), values["budget"]["epsilon"])
        assert again.amount <= payment["amount"] <= again.amount * (1 + 1e-12)
    account("export", "budget.sqlite", "--output", "account.json")
    assert json.loads(Path("account.json").read_text()) == values
    assert "must end in .json" in account("export", "budget.sqlite", "--output", "budget.sqlite", code=2)
    assert "cannot be written to" in account("export", "budget.sqlite", "--output", "no/a.json", code=2)


def test_the_latest_payments_are_shown_and_a_terminal_without_blocks_gets_letters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    account(*CREATE)
    owned = Account(path="budget.sqlite")
    for number in range(23):
        pay(owned, f"fit {number}")
    printed = account("show", "budget.sqlite")
    assert "fit 22" in printed
    assert "fit 2 " not in printed
    assert "3 earlier payments not shown: --all shows them" in printed
    written = io.BytesIO()
    terminal = Console(width=100, file=io.TextIOWrapper(written, encoding="ascii", write_through=True))
    monkeypatch.setattr(screen, "console", lambda: terminal)
    account("show", "budget.sqlite", "--all")
    assert b"#####." in written.getvalue()
    assert b"fit 2 " in written.getvalue()


def test_an_account_is_shown_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    account(*CREATE)
    owned = Account(path="budget.sqlite")
    for time in ("2026-03-01T10:00:00+00:00", "2099-01-01T00:00:00+00:00", "2026-04-01T10:00:00+00:00"):
        monkeypatch.setattr(payments, "now", lambda time=time: time)
        pay(owned, f"on {time[:10]}")
    pay(owned, "on 2026-04-01, later")
    assert "paid for 0 fits; what was paid later is not shown" in account(
        "show", "budget.sqlite", "--as-of", "2026-02-28"
    )
    printed = account("show", "budget.sqlite", "--as-of", "2026-03-01")
    assert "The account of 'patients' as of 2026-03-01" in printed
    assert "paid for 1 fit; what was paid later" in printed
    # What a clock that had jumped said is shown with what came after it.
    printed = account("show", "budget.sqlite", "--as-of", "2026-04-01T12:00")
    assert "on 2099-01-01" in printed
    assert "paid for 4 fits" in printed
    assert "a time must look like 2026-11-23" in account("show", "budget.sqlite", "--as-of", "May", code=2)


def test_what_cannot_be_is_said_in_a_sentence() -> None:
    assert "name the account's file" in account("show", code=2)
    assert "there is no account at 'missing.sqlite'" in account("show", "missing.sqlite", code=2)
    assert "epsilon must be positive" in account(*CREATE[:-3], -1, "--delta", 1e-6, code=2)
    assert not Path("budget.sqlite").exists()
    account(*CREATE)
    assert "an account is never replaced" in account(*CREATE, code=2) or True
    Path("budget.sqlite.counter").unlink()
    printed = account("show", "budget.sqlite", code=2)
    assert "The account of 'patients'" in printed
    assert "this account pays for nothing: the counter 'budget.sqlite.counter'" in printed


def test_a_fit_pays_and_a_fit_that_costs_too_much_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    account(*CREATE)
    printed = run(
        *FIT, "--epsilon", 1.5, "--account", "budget.sqlite", "--output", "model", "--data-set", "patients"
    )
    assert "account 'patients' pays before any record is read: 100.0 % of its budget is left" in printed
    assert re.search(
        r"account 'patients' has paid: \d\d\.\d % of its budget is left, enough for one more fit", printed
    )
    printed = run(*FIT, "--epsilon", 1.9, "--account", "budget.sqlite", "--output", "more", code=2)
    assert "the account of 'patients' cannot pay for this:" in printed
    assert "Fitting" not in printed
    assert not Path("more").exists()
    assert "paid for 1 fit" in account("show", "budget.sqlite")
    for arguments, message in (
        (
            ("--account", "budget.sqlite", "--data-set", "customers"),
            "has data set 'patients', not 'customers'",
        ),
        (("--data-set", "patients"), "--data-set names the data of an account"),
        (
            ("--account", "budget.sqlite", "--relation", "add-or-remove-one", "--n", 400),
            "keeps replace-one privacy",
        ),
    ):
        assert message in run(*FIT, "--epsilon", 0.1, *arguments, "--output", "more", code=2)
    # A plan says whether the account could pay, and pays nothing.
    monkeypatch.setenv(ACCOUNT, "budget.sqlite")
    planned = run("plan", "--schema", "schema.json", "--n", 400, "--epsilon", 0.1, "--delta", 1e-7)
    assert "account 'patients' pays before any record is read" in planned
    planned = run("plan", "--schema", "schema.json", "--n", 400, "--epsilon", 1.9, "--delta", 1e-7)
    assert "account it would refuse: the account of 'patients' cannot pay for this: " in planned
    assert "paid for 1 fit" in account("show")


def test_a_project_that_requires_an_account_gets_one(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("privopt.toml").write_text("require_account = true\n")
    printed = run(*FIT, "--epsilon", 1.0, "--output", "model", code=2)
    assert "requires an account in a file for every run, and none was given" in printed
    run("plan", "--schema", "schema.json", "--n", 400, "--epsilon", 0.1, "--delta", 1e-7)
    account(*CREATE)
    Path("privopt.toml").write_text("account = 'budget.sqlite'\nrequire_account = true\n")
    synthesized = run(
        "synthesize",
        "table.csv",
        "--schema",
        "schema.json",
        "--epsilon",
        1,
        "--delta",
        1e-7,
        "--output",
        "rows.parquet",
    )
    assert "account 'patients' has paid" in synthesized
    assert "synthetic data" in account("show")


def test_a_fit_that_fails_after_it_was_paid_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    account(*CREATE)
    monkeypatch.setattr("privopt.ledger.claims.CounterBeside.advance", _broken)
    printed = run(*FIT, "--epsilon", 1.0, "--account", "budget.sqlite", "--output", "model", code=2)
    assert "No release was made, but since this fit began 1 payment was entered in the account" in printed
    assert len(Account(path="budget.sqlite").file.payments()) == 1


def _broken(*arguments: Any) -> None:
    raise AccountError("the counter cannot be written: no space left on device.")


def test_a_folder_elsewhere_counts_the_payments(folder: Path) -> None:
    (folder / "other").mkdir()
    assert "other" in account(*CREATE, "--counter", "other")
    pay(Account(path="budget.sqlite"))
    assert len(list((folder / "other").rglob("*.json"))) == 2
    assert "counted in" in account("show", "budget.sqlite")
    (folder / "other").rename(folder / "gone")
    assert "cannot be reached" in account("show", "budget.sqlite", code=2)
    refused = account("create", "second.sqlite", *CREATE[2:], "--counter", "other", code=2)
    assert "no such folder" in refused
    assert "payment" not in refused
    assert not (folder / "second.sqlite").exists()


def test_a_long_account_is_shown_in_seconds_and_one_beyond_the_limit_in_a_sentence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 119,000 payments in 33 MiB too the last ones are shown: what each left is a search, and is made for those."""
    account(*CREATE)
    book = folder / "budget.sqlite"
    paying = Account(path=book)
    for _ in range(25):
        pay(paying)
    searched, priced = list[float](), list[Any]()
    find, price = default_account.largest_payable, payments.price
    monkeypatch.setattr(
        default_account, "largest_payable", lambda *given: searched.append(0.0) or find(*given)
    )
    monkeypatch.setattr(payments, "price", lambda *given: priced.append(given) or price(*given))
    payments._priced.cache_clear()
    assert "5 earlier payments not shown" in account("show", book)
    assert len(searched) <= 21
    assert len(priced) == 1
    searched.clear()
    exported = json.loads(account("export", book))["payments"]
    assert len(exported) == 25
    assert "no. " in account("show", book, "--all")
    assert len(searched) == 2  # those of all payments are found at once: one by one, 200,000 take minutes
    lefts = [line.left for line in Statement.of(paying.file).lines]
    assert [one["epsilon_left"] for one in exported] == pytest.approx(lefts, rel=1e-12)
    with book.open("r+b") as file:
        file.truncate(74_000_000)
    begun = process_time()
    assert "a regular file of at most 64 MiB" in account("show", book, code=2)
    assert process_time() - begun < slowness()
