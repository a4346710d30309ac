"""`minimax` and the plans of games: what comes out, and what is refused in one sentence before data is read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import privopt
from privopt import Account, BilinearGame, Budget, SaddleProblem, Units
from privopt.errors import BudgetExceeded
from privopt.problems.constraints import L1Ball, Simplex
from privopt.solvers import SampledDualAveraging

GAME = BilinearGame(rows=4, columns=3)
BUDGET = Budget(2.0, 1e-5)


def units(width=7, n=60):
    rows = np.random.default_rng(0).choice([-1.0, 1.0], (n, width))
    return Units.from_arrays(rows, row_bound=3.0)


def pay(x, y, features, target):
    return (features[:3] @ x) * y[0] - 0.1 * jnp.sum(y * y) * (1.0 + 0.0 * target)


def test_it_gives_a_strategy_for_each_player_and_the_plan():
    account = Account(5.0, 1e-4)
    result = privopt.minimax(GAME, units(), budget=BUDGET, account=account, random_state=0)
    x, y = result.params
    assert x.shape == (4,)
    assert y.shape == (3,)
    assert result.plan.epsilon <= 2.0
    assert result.transcript.seeded
    assert "duality gap" in str(result.plan)
    assert len(result.report.to_html()) > 1000
    again = privopt.minimax(GAME, units(), budget=BUDGET, random_state=0)
    assert np.array_equal(again.params[0], x)


def test_a_users_payoff_is_played_on_other_sets():
    game = SaddleProblem(pay, x=L1Ball(2.0), y=Simplex(), sizes=(3, 2))
    solver = SampledDualAveraging(steps=5)
    x, y = privopt.minimax(game, units(), budget=BUDGET, solver=solver).params
    assert np.sum(np.abs(x)) <= 2.0 + 1e-9
    assert np.sum(y) == pytest.approx(1.0)


def test_an_account_that_cannot_pay_refuses_before_data_is_read():
    with pytest.raises(BudgetExceeded, match="left"):
        privopt.minimax(GAME, units(), budget=BUDGET, account=Account(0.1, 1e-6))


def test_plan_takes_games():
    plans = privopt.plan(GAME, n=2_000, d=7, epsilon=1.0, delta=1e-6)
    assert plans["sampled-dual-averaging"].measure == "duality gap"
    assert plans.default.epsilon <= 1.0
    assert not any("row_bound" in notice for notice in plans.default.notices)
    short = privopt.plan(GAME, n=2_000, d=7, epsilon=1.0, delta=1e-6, row_bound=1.0)
    assert any("row_bound=game.row_bound" in notice for notice in short.default.notices)
    again = type(plans.default).from_dict(plans.default.to_dict())
    assert str(again) == str(plans.default)


def test_a_hopeless_budget_is_said():
    plan = privopt.plan(BilinearGame(rows=1000, columns=1000), n=10, d=2000, epsilon=0.1, delta=1e-6).default
    assert any("budget is too small" in notice for notice in plan.notices)


def calls_back(x, y, features, target):
    jax.debug.print("{}", features[0])
    return x[0] * y[0]


@pytest.mark.parametrize(
    ("game", "arguments", "error", "message"),
    [
        (lambda x, y: 0.0, {}, TypeError, "the game must be a BilinearGame"),
        (BilinearGame, {}, TypeError, "got BilinearGame itself"),
        (
            BilinearGame(rows=9, columns=3),
            {},
            ValueError,
            "a record needs 12 features for u and v, and has 7",
        ),
        (GAME, {"solver": "newton"}, ValueError, "solver must be 'auto', one of"),
        (GAME, {"solver": SampledDualAveraging}, TypeError, "got SampledDualAveraging itself"),
        (GAME, {"solver": 3}, TypeError, "or a solver of games like"),
        (GAME, {"budget": 1.0}, TypeError, "budget must be a Budget"),
        (GAME, {"units": np.ones((4, 7))}, TypeError, "units must be Units"),
        (lambda x, y, f, t: x, {"wrap": True}, TypeError, "the payoff of one record must be one real number"),
        (lambda x, y, f, t: float(x[0]), {"wrap": True}, TypeError, "the payoff cannot be differentiated"),
        (calls_back, {"wrap": True}, ValueError, "the payoff does more than compute"),
    ],
)
def test_what_is_not_usable_gets_one_sentence(game, arguments, error, message):
    given = {"units": units(), "budget": BUDGET, **arguments}
    if given.pop("wrap", False):
        game = SaddleProblem(game, x=Simplex(), y=Simplex(), sizes=(2, 2))
    with pytest.raises(error, match=message):
        privopt.minimax(game, given.pop("units"), **given)


def test_a_solver_of_games_is_not_for_losses():
    with pytest.raises(TypeError, match="plays games, and the problem is none"):
        privopt.plan(
            privopt.losses.logistic, n=100, d=3, epsilon=1.0, delta=1e-6, solver=SampledDualAveraging()
        )
