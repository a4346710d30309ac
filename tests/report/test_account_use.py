"""A report of a run that an account in a file paid for says so, and how much is left."""

import json
from pathlib import Path

import pytest
from tests.support.account_files import pay
from tests.support.report_samples import gaussian_report, gaussian_result

from privopt.ledger.account import Account
from privopt.ledger.default_account import Statement
from privopt.report.model import AccountUse, burn_down
from privopt.report.report import PrivacyReport


@pytest.fixture(scope="module")
def statement(tmp_path_factory: pytest.TempPathFactory) -> Statement:
    path: Path = tmp_path_factory.mktemp("account") / "budget.sqlite"
    account = Account.create(path, 0.5, 1e-6, data_set="patients <2026>")
    for name in ("first", "second", "third"):
        pay(account, name)
    pay(account, "after the run")
    assert account.file is not None
    return Statement.of(account.file, last=3)


@pytest.fixture(scope="module")
def report(statement: Statement) -> PrivacyReport:
    result = gaussian_result()
    result.transcript.paid_by = statement
    return PrivacyReport.of(result)


def test_the_last_payment_of_the_statement_is_the_runs(statement: Statement) -> None:
    use = AccountUse.of(statement)
    assert (use.payment, use.data_set, use.epsilon, use.delta) == (3, "patients <2026>", 0.5, 1e-6)
    assert use.used == pytest.approx(statement.used / 3)
    assert use.remaining == pytest.approx(1 - 3 * use.used)
    assert use.left == statement.left < 0.5


def test_the_picture_burns_down_from_all_of_the_budget(statement: Statement) -> None:
    (left,) = burn_down(statement).series
    assert left.xs == (0.0, 1.0, 2.0, 3.0)
    assert left.ys[0] == 1.0
    assert left.ys == tuple(sorted(left.ys, reverse=True))
    assert left.ys[-1] == pytest.approx(1 - statement.used)


def test_a_report_names_the_account_in_every_form(report: PrivacyReport) -> None:
    printed, page = " ".join(str(report).split()), report.to_html()
    assert (
        "account payment 3 of the account of 'patients <2026>', which keeps epsilon 0.5 at delta 1e-6"
        in printed
    )
    assert "What is left in the account" in page
    assert "payment 3 of the account of &#39;patients &lt;2026&gt;&#39;" in page
    assert "after the run" not in page + json.dumps(report.to_dict())
    again = PrivacyReport.from_dict(json.loads(report.to_json()))
    assert again.account == report.account
    assert again.pictures == report.pictures
    assert str(again) == str(report)


def test_without_an_account_a_report_says_nothing_of_one() -> None:
    report = gaussian_report()
    assert report.account is None
    assert report.to_dict()["account"] is None
    assert "\n  account" not in str(report)
    document = report.to_dict()
    del document["account"]  # as written before there were accounts in files
    assert PrivacyReport.from_dict(document).account is None
