"""A program of the user's own with a mistake is refused before anything is paid, for data and games alike."""

from dataclasses import dataclass, replace
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import pytest
from examples.plain_descent import PlainDescent

from privopt import (
    Account,
    BilinearGame,
    Budget,
    LogisticRegression,
    Problem,
    Units,
    losses,
    minimax,
    minimize,
)
from privopt.errors import BudgetExceeded, PlanMismatch
from privopt.games.noisy_matrix import NoisyMatrix
from privopt.ledger.events import NoEvent
from privopt.planning.task import Task
from privopt.result import Outcome
from privopt.solvers.whitening import Whitening
from privopt.status import Status

GENERATOR = np.random.default_rng(0)
ROWS = GENERATOR.uniform(-1.0, 1.0, (200, 3))
LABELS = np.sign(ROWS[:, 0] + 0.1)
BUDGET = {"epsilon": 1.0, "delta": 1e-6}


@dataclass(frozen=True, kw_only=True)
class Fails(PlainDescent):
    """With a mistake after the last release."""

    name: ClassVar[str] = "fails"

    def run(self, curator, problem, start):
        super().run(curator, problem, start)
        return Outcome(start["missing"], Status.FINISHED)


@dataclass(frozen=True, kw_only=True)
class AsksTwice(PlainDescent):
    """Asks for more than it plans."""

    name: ClassVar[str] = "asks twice"

    def run(self, curator, problem, start):
        super().run(curator, problem, start)
        return super().run(curator, problem, start)


@dataclass(frozen=True, kw_only=True)
class Cut(PlainDescent):
    """Gives back parameters of another length."""

    name: ClassVar[str] = "cut"

    def run(self, curator, problem, start):
        outcome = super().run(curator, problem, start)
        return outcome._replace(params=jnp.zeros(2))


@dataclass(frozen=True, kw_only=True)
class Divides(PlainDescent):
    """By what it is answered, which is never exactly zero."""

    name: ClassVar[str] = "divides"

    def run(self, curator, problem, start):
        outcome = super().run(curator, problem, start)
        return outcome._replace(params=outcome.params / (1.0 / float(np.abs(outcome.params).max())))


@dataclass(frozen=True, kw_only=True)
class FailsToPlay(NoisyMatrix):
    """With a mistake after the last release."""

    name: ClassVar[str] = "fails to play"

    def run(self, curator, game):
        super().run(curator, game)
        raise KeyError("missing")


@pytest.mark.parametrize(
    ("solver", "error", "said"),
    [
        (Fails(steps=2), TypeError, "missing"),
        (AsksTwice(steps=2), PlanMismatch, "plan"),
        (Cut(steps=2), ValueError, r"cut ends with parameters of shape \(2,\), and the problem has \(3,\)"),
    ],
)
def test_of_a_minimisation(solver, error, said):
    units = Units.from_arrays(ROWS, LABELS, row_bound=2.0)
    account = Account(5.0, 1e-5)
    with pytest.raises(error, match=said):
        minimize(Problem(losses.logistic), units, budget=Budget(1.0, 1e-6), solver=solver, account=account)
    assert not account.entries


def test_of_a_model():
    account = Account(5.0, 1e-5)
    model = LogisticRegression(
        **BUDGET, classes=[-1.0, 1.0], bounds=(-1.0, 1.0), solver=AsksTwice(steps=2), account=account
    )
    with pytest.raises(PlanMismatch, match="plan"):
        model.fit(ROWS, LABELS)
    assert not account.entries


def test_of_a_search():
    account = Account(5.0, 1e-5)
    model = LogisticRegression(
        **BUDGET,
        classes=[-1.0, 1.0],
        bounds=(-1.0, 1.0),
        alpha="private",
        solver=AsksTwice(steps=2),
        account=account,
    )
    with pytest.raises(PlanMismatch, match="plan"):
        model.fit(ROWS, LABELS)
    assert not account.entries


def test_a_trial_says_that_it_was_one_and_answers_noise():
    units = Units.from_arrays(ROWS, LABELS, row_bound=2.0)
    with pytest.raises(TypeError, match="missing") as refused:
        minimize(Problem(losses.logistic), units, budget=Budget(1.0, 1e-6), solver=Fails(steps=2))
    assert any("nothing was read or paid" in note for note in refused.value.__notes__)
    minimize(Problem(losses.logistic), units, budget=Budget(1.0, 1e-6), solver=Divides(steps=2))


def test_of_a_game():
    game = BilinearGame(rows=2, columns=2)
    account = Account(5.0, 1e-5)
    units = Units.from_arrays(GENERATOR.uniform(-1.0, 1.0, (200, 4)), row_bound=2.0)
    with pytest.raises(KeyError, match="missing"):
        minimax(game, units, budget=Budget(1.0, 1e-6), solver=FailsToPlay(), account=account)
    assert not account.entries


def test_a_noisy_matrix_plays_other_games_too():
    units = Units.from_arrays(GENERATOR.uniform(-1.0, 1.0, (200, 4)), row_bound=2.0)
    task = Task(BilinearGame(rows=2, columns=2), units.public, Budget(1.0, 1e-6))
    solver = NoisyMatrix().configure(task)
    other = BilinearGame(rows=2, columns=2, entries=(-0.5, 0.5))
    assert solver.obstacle(other, units.public) is None


def test_what_is_ours_is_known_inside_too():
    assert Whitening().is_ours
    assert not replace(Whitening(), inner=PlainDescent()).is_ours


@dataclass(frozen=True, kw_only=True)
class PlansMore(PlainDescent):
    """Plans for a larger budget than it was given, and spends it."""

    name: ClassVar[str] = "plans more"

    def announcement(self, instance):
        return replace(super().announcement(instance), budget=Budget(1000.0, 0.1))


@dataclass(frozen=True, kw_only=True)
class PlansNothing(NoisyMatrix):
    """States a free event in its plan."""

    name: ClassVar[str] = "plans nothing"

    def announcement(self, instance):
        return replace(super().announcement(instance), event=NoEvent())


def test_a_plan_of_ones_own_raises_no_budget() -> None:
    account = Account(5000.0, 0.5)
    units = Units.from_arrays(ROWS, LABELS, row_bound=2.0)
    with pytest.raises(BudgetExceeded, match="epsilon"):
        minimize(
            losses.logistic,
            units,
            budget=Budget(1.0, 1e-6),
            solver=PlansMore(noise_multiplier=0.05, step_size=0.1),
            account=account,
        )
    assert account.remaining_epsilon() == Account(5000.0, 0.5).remaining_epsilon()


def test_what_is_paid_is_what_is_tried() -> None:
    account = Account(5000.0, 0.5)
    game = BilinearGame(rows=2, columns=2)
    units = Units.from_arrays(GENERATOR.choice([-1.0, 1.0], (100, 4)), row_bound=game.row_bound)
    with pytest.raises(PlanMismatch, match="plan"):
        minimax(game, units, budget=Budget(1.0, 1e-6), solver=PlansNothing(), account=account)
    assert account.remaining_epsilon() == Account(5000.0, 0.5).remaining_epsilon()
