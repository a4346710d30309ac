"""Whole runs that are stopped anywhere: what may have been seen is paid, the message says so, the next run works."""

import random
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from tests.support.interrupting import house, interrupted_at, lines_of

import privopt
from privopt import Account, BilinearGame, Budget, LogisticRegression, SyntheticData, Units
from privopt.curator import scan
from privopt.curator.local import LocalCurator
from privopt.errors import AccountError, BudgetExceeded, add_note, notes_of, tells_what_was_spent
from privopt.estimators.selection import PrivateSearchCV
from privopt.ledger.account_file import AccountFile
from privopt.problems import losses
from privopt.solvers.correlated_noise_descent import CorrelatedNoiseDescent
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.stochastic_gradient_descent import StochasticGradientDescent

DRAW = np.random.default_rng(0)
X = DRAW.uniform(size=(60, 2))
Y = (X[:, 0] > 0.5).astype(int)
SIGNS = DRAW.choice([-1.0, 1.0], (60, 7))
BUDGET = Budget(1.0, 1e-6)
STEPS = GradientDescent(steps=4)
FLAGS = {"columns": {name: {"kind": "flag"} for name in "ab"}}

Run = Callable[[], Any]


def solved(solver: Any) -> Callable[[Account], Run]:
    units = Units.from_arrays(X, 2.0 * Y - 1.0, row_bound=1.0)
    return lambda account: (
        lambda: privopt.minimize(losses.logistic, units, budget=BUDGET, solver=solver, account=account)
    )


def a_fit_in_stages(account: Account) -> Run:
    model = LogisticRegression(
        epsilon=1.0, delta=1e-6, loose_bounds=(0, 9), classes=[0, 1], solver=STEPS, account=account
    )
    return lambda: model.fit(X, Y)


def a_search(account: Account) -> Run:
    model = LogisticRegression(bounds=(0, 1), classes=[0, 1], solver=STEPS)
    search = PrivateSearchCV(model, {"alpha": [0.1, 1.0]}, epsilon=1.0, delta=1e-6, account=account)
    return lambda: search.fit(X, Y)


def a_chosen_penalty(account: Account) -> Run:
    model = LogisticRegression(
        epsilon=1.0, delta=1e-6, bounds=(0, 1), classes=[0, 1], solver=STEPS, alpha="private", account=account
    )
    return lambda: model.fit(X, Y)


def a_game(account: Account) -> Run:
    units = Units.from_arrays(SIGNS, row_bound=3.0)
    return lambda: privopt.minimax(BilinearGame(rows=4, columns=3), units, budget=BUDGET, account=account)


def a_table(account: Account) -> Run:
    data = SyntheticData(FLAGS, epsilon=1.0, delta=1e-6, account=account)
    return lambda: data.fit({"a": Y, "b": 1 - Y})


def a_mean(account: Account) -> Run:
    return lambda: privopt.user_mean(
        X, np.arange(60), bound=1.0, radius=0.5, epsilon=1.0, delta=1e-6, account=account
    )


RUNS: dict[str, Callable[[Account], Run]] = {
    "gradient descent": solved(STEPS),
    "sampled descent": solved(StochasticGradientDescent(steps=4, rate=0.2)),
    "a stream": solved(CorrelatedNoiseDescent(epochs=2, blocks=3)),
    "a fit in stages": a_fit_in_stages,
    "a search": a_search,
    "a chosen penalty": a_chosen_penalty,
    "a game": a_game,
    "a table": a_table,
    "a mean": a_mean,
}
IN_A_FILE = {"a fit in stages", "a table"}


class Reads:
    """Notes every time that a curator turns to the data."""

    LOOKS = ("private_value", "hold_as", "hold_mean_as", "_iterate_compiled")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for name in self.LOOKS:
            monkeypatch.setattr(LocalCurator, name, self._noting(getattr(LocalCurator, name)))

    def _noting(self, look: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            return look(*arguments, **named)

        return noted


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Reads:
    return Reads(monkeypatch)


def opened(name: str, folder: Path) -> Account:
    if name in IN_A_FILE:
        return Account.create(
            folder / "budget.sqlite", 1e6, 1e-2, data_set="made up", composition="basic", bad_event_delta=0.0
        )
    return Account(1e6, 1e-2, composition="basic")


def surroundings() -> tuple[Any, ...]:
    """What a run sets for its time and must put back."""
    return (
        jax.config.read("jax_enable_x64"),
        np.geterr(),
        len(warnings.filters),
        signal.getsignal(signal.SIGINT),
        Path.cwd(),
    )


def check_stopped(name: str, account: Account, before: float, read: bool, error: BaseException) -> None:
    """Whatever may have been seen is paid, and what is paid is said."""
    paid, said = before - account.remaining, " ".join(notes_of(error))
    assert paid in (pytest.approx(0.0, abs=1e-9), pytest.approx(1.0))
    if read:
        assert paid == pytest.approx(1.0)
    if paid > 0.5:
        assert "has paid for the run" in said or "was paying for the run" in said, said
        assert "epsilon = 1, delta = 1e-06" in said
    else:
        assert "has paid" not in said
    if account.file is not None:
        assert account.file.trouble() is None
        left = sorted(one.name for one in account.file.path.parent.iterdir())
        assert left == ["budget.sqlite", "budget.sqlite.counter"], name


def check_stops(name: str, folder: Path, reads: Reads, places: Callable[[list[Any]], list[Any]]) -> None:
    """Stop the run at some of its lines, and run it again each time."""
    account = opened(name, folder)
    run = RUNS[name](account)
    run()
    around, lines = surroundings(), lines_of(run, house())
    assert len(lines) > 500
    stopped = 0
    for number, place in enumerate(places(lines)):
        before, reads.count = account.remaining, 0
        error = interrupted_at(place, run, (KeyboardInterrupt, MemoryError)[number % 2], house())
        assert surroundings() == around
        if error is None:  # a line that is not met again, or where an exception is taken for an answer
            assert before - account.remaining == pytest.approx(1.0)
            continue
        stopped += 1
        check_stopped(name, account, before, reads.count > 0, error)
        middle = account.remaining
        run()
        assert middle - account.remaining == pytest.approx(1.0)
    assert stopped > 0


@pytest.mark.at_once("sampled descent")
@pytest.mark.parametrize("name", sorted(IN_A_FILE | {"sampled descent", "a search"}))
def test_a_run_that_is_stopped_at_some_line_has_paid_and_can_be_run_again(
    name: str, tmp_path: Path, reads: Reads
) -> None:
    chance = random.Random(name)
    check_stops(name, tmp_path, reads, lambda lines: chance.sample(lines, 2))


@pytest.mark.audit
@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_is_stopped_at_any_line_has_paid_and_can_be_run_again(
    name: str, tmp_path: Path, reads: Reads
) -> None:
    check_stops(name, tmp_path, reads, lambda lines: lines)


def test_a_signal_while_compiled_loops_run_is_one_of_these_stops(reads: Reads) -> None:
    account = Account(1e6, 1e-2, composition="basic")
    run = solved(StochasticGradientDescent(steps=300, rate=0.2))(account)
    run()
    armed = False

    def handler(number: int, frame: Any) -> None:
        if armed:
            raise KeyboardInterrupt("by the user")

    previous = signal.signal(signal.SIGALRM, handler)
    try:
        for delay in (0.001, 0.01, 0.03):
            before, reads.count, armed = account.remaining, 0, True
            signal.setitimer(signal.ITIMER_REAL, delay)
            try:
                run()
                armed = False
            except KeyboardInterrupt as error:
                if armed:
                    check_stopped("sampled descent", account, before, reads.count > 0, error)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, previous)
    before = account.remaining
    run()
    assert before - account.remaining == pytest.approx(1.0)


def test_a_device_without_memory_is_one_of_these_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(*arguments: Any, **named: Any) -> Any:
        raise jax.errors.JaxRuntimeError(
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes."
        )

    account = Account(1e6, 1e-2, composition="basic")
    run, before = RUNS["sampled descent"](account), account.remaining
    monkeypatch.setattr(scan, "run", exhausted)
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED") as raised:
        run()
    check_stopped("sampled descent", account, before, True, raised.value)
    assert "paid for before this, and not given back" in notes_of(raised.value)[0]
    monkeypatch.undo()
    run()
    assert before - account.remaining == pytest.approx(2.0)


def test_without_an_account_the_price_is_said_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(LocalCurator, "private_value", broken)
    units = Units.from_arrays(X, 2.0 * Y - 1.0, row_bound=1.0)
    with pytest.raises(RuntimeError, match="broken") as raised:
        privopt.minimize(losses.logistic, units, budget=BUDGET, solver=STEPS)
    assert notes_of(raised.value)[-1] == (
        "the run 'gradient-descent' had begun: count its whole price as spent on these data, "
        "epsilon = 1, delta = 1e-06."
    )


def test_a_run_that_is_refused_says_nothing_of_payment() -> None:
    with pytest.raises(BudgetExceeded, match="would cost") as raised:
        RUNS["gradient descent"](Account(0.1, 1e-6))()
    assert notes_of(raised.value) == []


def test_a_payment_that_was_entered_says_so_whatever_stops_it_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = opened("a table", tmp_path)

    def full(*arguments: Any) -> None:
        raise AccountError("the counter cannot be written: no space left.")

    monkeypatch.setattr(AccountFile, "_count", full)
    with pytest.raises(AccountError, match="no space") as raised:
        RUNS["a table"](account)()
    assert notes_of(raised.value) == [
        "payment 1, 'synthetic data (gaussian-marginals)', was entered in the account before this, and stays."
    ]
    monkeypatch.undo()
    assert len(account.entries) == 1


def test_each_run_of_a_call_is_told_once_by_the_outermost() -> None:
    account = Account(1e6, 1e-2, composition="basic")

    @tells_what_was_spent
    def two() -> None:
        for _ in range(2):
            RUNS["gradient descent"](account)()
        raise ValueError("afterwards")

    with pytest.raises(ValueError, match="afterwards") as raised:
        two()
    assert len(raised.value.__notes__) == 2


class Unnoted(Exception):
    """Takes no attributes of its own, and so no notes either."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("__traceback__", "__context__", "__cause__"):
            raise AttributeError(f"cannot assign to {name}")
        super().__setattr__(name, value)


def test_an_exception_that_takes_no_notes_is_told_of_and_goes_on_as_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*arguments: Any) -> Any:
        raise Unnoted("broken")

    account = Account(1e6, 1e-2, composition="basic")
    monkeypatch.setattr(LocalCurator, "private_value", broken)
    with pytest.raises(Unnoted, match="broken") as raised:
        RUNS["gradient descent"](account)()
    assert "has paid for the run" in notes_of(raised.value)[-1]


def test_notes_of_an_exception_that_comes_from_itself_end() -> None:
    error = ValueError("mine")
    error.__cause__ = error
    add_note(error, "said")
    assert notes_of(error) == ["said"]


def test_a_model_that_is_fitted_anew_is_the_old_one_or_the_new_one() -> None:
    """A stop while the results are set leaves no report of one fit beside the numbers of another."""
    model = LogisticRegression(epsilon=1.0, delta=1e-6, bounds=(0, 1), classes=[0, 1], solver=STEPS)
    first = vars(model.fit(X, Y)).copy()
    places = [place for place in lines_of(lambda: model.fit(X, Y), house()) if place[0].co_name == "_adopt"]
    second = vars(model).copy()
    assert places
    for place in places:
        error = interrupted_at(place, lambda: model.fit(X, Y), KeyboardInterrupt, house())
        assert error is not None
        fitted = vars(model)
        assert [fitted[key] is second[key] for key in ("coef_", "privacy_", "plan_")] in (
            [True] * 3,
            [False] * 3,
        )
        second = fitted.copy()
    assert first["privacy_"] is not second["privacy_"]
