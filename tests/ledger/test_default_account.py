"""Which account pays for a run that names none: the environment's, the project's, or none at all."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from privopt import Account, Budget, LogisticRegression, Units, minimize
from privopt.attacks.one_run import one_run_attack
from privopt.errors import AccountError, BudgetExceeded
from privopt.ledger.default_account import ACCOUNT, REQUIRE, nothing_private, paying_account
from privopt.problems import losses
from privopt.solvers.gradient_descent import GradientDescent
from privopt.testing import check_solver

TERMS = {"epsilon": 1.0, "delta": 1e-6, "data_set": "patients"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, below a project's."""
    work = tmp_path / "work" / "deep"
    work.mkdir(parents=True)
    monkeypatch.chdir(work)
    monkeypatch.delenv(ACCOUNT, raising=False)
    monkeypatch.delenv(REQUIRE, raising=False)
    return tmp_path


def names(account: Account | None) -> str:
    return "none" if account is None or account.file is None else account.file.path.name


def test_without_a_word_no_account_pays(project: Path) -> None:
    assert paying_account(None) is None
    account = Account(1.0, 1e-6)
    assert paying_account(account) is account


def test_the_environment_names_the_account(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Account.create("mine.sqlite", **TERMS)
    other = Account.create("other.sqlite", **TERMS)
    monkeypatch.setenv(ACCOUNT, "mine.sqlite")
    assert names(paying_account(None)) == "mine.sqlite"
    assert paying_account(other) is other
    monkeypatch.setenv(ACCOUNT, "missing.sqlite")
    with pytest.raises(AccountError, match="there is no account at"):
        paying_account(None)


@pytest.mark.parametrize(
    ("file", "table"), [("privopt.toml", ""), ("pyproject.toml", "[project]\nname='x'\n[tool.privopt]\n")]
)
def test_a_project_file_names_the_account_beside_it(project: Path, file: str, table: str) -> None:
    Account.create(project / "budget.sqlite", **TERMS)
    (project / "work" / "pyproject.toml").write_text("[project]\nname = 'says nothing of privopt'\n")
    (project / file).write_text(f"{table}account = 'budget.sqlite'\ndata_set = 'patients'\n")
    assert names(paying_account(None)) == "budget.sqlite"
    (project / file).write_text(f"{table}account = 'budget.sqlite'\ndata_set = 'customers'\n")
    with pytest.raises(AccountError, match="has data set 'patients', not 'customers'"):
        paying_account(None)


def test_required_means_a_file(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "privopt.toml").write_text("require_account = true\n")
    with pytest.raises(AccountError, match=r"privopt.toml requires an account in a file .* none was given"):
        paying_account(None)
    with pytest.raises(AccountError, match="this one ends with its process"):
        paying_account(Account(1.0, 1e-6))
    kept = Account.create("budget.sqlite", **TERMS)
    assert paying_account(kept) is kept
    with nothing_private():
        assert paying_account(None) is None
    (project / "privopt.toml").unlink()
    monkeypatch.setenv(REQUIRE, "1")
    with pytest.raises(AccountError, match=f"{REQUIRE} requires an account"):
        paying_account(None)
    monkeypatch.setenv(REQUIRE, "0")
    assert paying_account(None) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("require_account = ", "cannot be read, and it may say which account pays"),
        ("require_acount = true", "may name account, data_set, require_account, and nothing else"),
        ("require_account = 1", "must be true or false, got 1"),
        ("account = 3", "must be a text, got 3"),
    ],
)
def test_a_project_file_that_is_not_understood_stops_runs(project: Path, text: str, message: str) -> None:
    (project / "privopt.toml").write_text(text)
    with pytest.raises(AccountError, match=message):
        paying_account(None)


def test_a_switch_that_is_not_understood_stops_runs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(REQUIRE, "yes")
    with pytest.raises(AccountError, match="must be 1 or 0, got 'yes'"):
        paying_account(None)


def test_runs_pay_from_the_default_account_and_say_so(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    account = Account.create("budget.sqlite", **TERMS)
    monkeypatch.setenv(ACCOUNT, "budget.sqlite")
    draw = np.random.default_rng(0)
    units = Units.from_arrays(draw.uniform(-0.5, 0.5, (200, 2)), draw.choice([-1.0, 1.0], 200), row_bound=1.0)

    def run(epsilon: float, **more: int) -> object:
        return minimize(
            losses.logistic,
            units,
            budget=Budget(epsilon, 1e-6),
            solver="gradient-descent",
            **more,  # type: ignore[arg-type]
        )

    result = run(0.5)
    assert [entry.name for entry in account.entries] == ["gradient-descent"]
    statement = result.transcript.paid_by  # type: ignore[attr-defined]
    assert statement.terms.data_set == "patients"
    assert statement.left == account.remaining_epsilon() < 1.0
    assert statement.fits == 1
    assert pickle.loads(pickle.dumps(statement)) == statement
    with pytest.raises(BudgetExceeded, match="would cost rho"):
        run(0.99)
    run(0.1, random_state=1)
    assert str(account).startswith("seeded: not private")


def test_checks_and_attacks_on_made_up_records_are_not_paid_for(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = Account.create("budget.sqlite", **TERMS)
    monkeypatch.setenv(ACCOUNT, "budget.sqlite")
    check_solver(GradientDescent(steps=2, step_size=1.0, clip=1.0), relations=["replace-one"])
    one_run_attack(
        LogisticRegression,
        "membership",
        name="logistic",
        epsilon=1.0,
        delta=1e-6,
        of_classes=True,
        pairs=16,
        others=9,
        width=2,
    )
    assert account.entries == ()
