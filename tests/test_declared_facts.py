"""Runs by hand list what was declared to them, and say so where nothing was released; arguments get one sentence."""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from tests.support.configured_estimators import FEW_STEPS, configured, toy_data

import privopt
from privopt import losses
from privopt.data.units import Units
from privopt.estimators.linear import LinearRegression, LogisticRegression
from privopt.ledger.amounts import Budget
from privopt.problems.constraints import L2Ball, Simplex
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.problems.saddle import SaddleProblem
from privopt.solvers.gradient_descent import GradientDescent

BUDGET = Budget(1.0, 1e-5)
ROWS = np.random.default_rng(0).uniform(-0.5, 0.5, (200, 2))
KEYS = np.arange(200) // 2


def units(**more: Any) -> Units:
    return Units.from_arrays(ROWS, np.sign(ROWS[:, 0]), row_bound=1.0, **more)


@pytest.mark.audit
def test_a_minimisation_lists_what_was_declared() -> None:
    problem = Problem(losses.logistic, Ridge(1e-3), L2Ball(10.0))
    found = privopt.minimize(
        problem, units(groups=KEYS), budget=BUDGET, start=np.array([3.0, 4.0]), solver=FEW_STEPS
    )
    declared = " ".join(found.report.declared)
    for what in (
        "Longest row, given by the user: 1; longer rows",
        "Number of users: 100, public under replace-one. Where it was counted from the keys",
        "User keys, given by the user",
        "At most 100 records of each person are used",
        "Start, given by the user: 2 numbers of length 5; it is public",
        "Penalty, given by the user: Ridge(strength=0.001",
        "Set of the parameters, given by the user: L2Ball(radius=10.0)",
    ):
        assert what in declared
    assert all(sentence in found.report.to_html() for sentence in found.report.declared[:2])


@pytest.mark.audit
def test_a_game_and_a_mean_of_users_list_what_was_declared() -> None:
    def payoff(x: Any, y: Any, features: Any, target: Any) -> Any:
        return (x @ features) * y[0] + target * y[1]

    game = SaddleProblem(payoff, x=Simplex(), y=Simplex(), sizes=(2, 2))
    played = privopt.minimax(game, units(), budget=BUDGET).report.declared
    assert any(
        "Payoff, written by the user: a function of both players' strategies (2 and 2" in one
        for one in played
    )
    assert any(one.startswith("Number of records: 200") for one in played)
    mean = privopt.user_mean(ROWS, KEYS, bound=1.0, radius=0.5, epsilon=1.0, delta=1e-5).report.declared
    assert mean[0].startswith("Longest row, given by the user: 1;")
    assert "Radius around the mean within which most users' averages lie, given by the user: 0.5." in mean
    assert any(one.startswith("User keys") for one in mean)


def test_a_run_without_releases_says_that_it_returns_its_start() -> None:
    start = np.array([1.0, 2.0])
    found = privopt.minimize(
        losses.logistic, units(), budget=BUDGET, solver=GradientDescent(steps=0), start=start
    )
    np.testing.assert_array_equal(found.params, start)
    assert any("Start, given by the user: 2 numbers" in one for one in found.report.declared)
    assert found.plan is not None
    for notices in (found.plan.notices, found.report.notices):
        assert sum("nothing is released: the run returns the start" in one for one in notices) == 1
    busy = privopt.minimize(losses.logistic, units(), budget=BUDGET, solver=FEW_STEPS)
    assert not any("nothing is released" in one for one in busy.report.notices)


def test_users_that_were_counted_are_said_to_be_in_the_report() -> None:
    X, y = toy_data()
    keys = np.arange(len(X)) // 4
    counted = configured(LogisticRegression).fit(X, y, groups=keys).privacy_.declared
    given = configured(LogisticRegression, n=60).fit(X, y, groups=keys).privacy_.declared
    assert any(
        "compares with data in which the replaced user has at least one record" in one for one in counted
    )
    assert not any("at least one record" in one for one in given)


@pytest.mark.later("500.0-above 100")
@pytest.mark.parametrize(
    ("epsilon", "side"), [(500.0, "above 100"), (5e-4, "below 0.001"), (1.0, ""), (math.inf, "")]
)
def test_an_unusual_epsilon_is_noticed_in_plan_and_report(epsilon: float, side: str) -> None:
    X, y = toy_data()
    for model in (
        configured(LogisticRegression, epsilon=epsilon),
        configured(LogisticRegression, epsilon=epsilon, bounds=None, loose_bounds=(-50, 50)),
    ):
        plan = model.plan(n_features=3, n=240)
        report = model.fit(X, y).privacy_
        for notices in (plan.notices, report.notices):
            found = [one for one in notices if "Common values lie between 0.1 and 10" in one]
            assert len(found) == bool(side)
            assert all(f"epsilon {epsilon:g} is {side}" in one for one in found)


@pytest.mark.parametrize(
    ("loss", "start", "sentence"),
    [
        (
            lambda w, x: w @ x,
            np.zeros(2),
            r"must take 3 arguments, \(params, features, target\), got a function of \(w, x\)",
        ),
        (lambda w, x, t, more: w @ x, np.zeros(2), "must take 3 arguments"),
        (lambda w, x, t: w @ x, np.zeros(3), "cannot be computed for one record .*features of shape"),
        (lambda w, x, t: w["a"] @ x, np.zeros(2), "cannot be computed for one record"),
        (
            lambda w, x, t: jnp.sum(w) * (1 / 0),
            np.zeros(2),
            "cannot be computed for one record .ZeroDivisionError",
        ),
    ],
)
def test_a_loss_that_does_not_fit_gets_a_sentence(loss: Any, start: Any, sentence: str) -> None:
    with pytest.raises(TypeError, match=sentence):
        privopt.minimize(loss, units(), budget=BUDGET, start=start)
    with pytest.raises(TypeError, match=sentence):
        privopt.plan(loss, n=200, d=2, epsilon=1.0, delta=1e-5, start=start)


def test_arguments_that_do_not_exist_get_a_sentence() -> None:
    X, y = toy_data()
    model: Any = configured(LogisticRegression)
    anything: Any = privopt
    for call, sentence in (
        (
            lambda: model.fit(X, y, np.ones(len(y))),
            "takes only X and y without a name.*there are no sample weights",
        ),
        (
            lambda: model.fit(X, y, sample_weight=y),
            "LogisticRegression.fit has no argument 'sample_weight' yet",
        ),
        (
            lambda: anything.minimize(losses.logistic, units(), budget=BUDGET, seed=3),
            "is called 'random_state' here",
        ),
        (lambda: anything.QuantileRegressor(level=0.3), "is called 'quantile' here"),
        (lambda: anything.losses.quantile(level=0.3), "is called 'quantile' here"),
        (lambda: anything.losses.capped(1.0, "quantile", level=0.3), "is called 'quantile' here"),
        (lambda: anything.SyntheticData({}).fit(X, y), "takes only table without a name"),
        (lambda: anything.PoissonRegressor(exposure=1), "no argument 'exposure' yet"),
        (lambda: anything.LogisticRegression(1.0), "takes every argument by its name"),
    ):
        with pytest.raises(TypeError, match=sentence):
            call()


def test_a_score_leaves_out_rows_without_a_target() -> None:
    X, y = toy_data()
    model = configured(LogisticRegression, random_state=0).fit(X, y)
    half = len(y) // 2
    expected = model.score(X[half:], y[half:])
    for targets in (
        np.where(np.arange(len(y)) < half, np.nan, y),
        [None] * half + y[half:].tolist(),
        pd.Series(y).astype("Int64").where(np.arange(len(y)) >= half),
    ):
        assert model.score(X, targets) == expected
    assert math.isnan(model.score(X, [None] * len(y)))
    numbers = configured(LinearRegression, random_state=0).fit(*toy_data(LinearRegression))
    targets = toy_data(LinearRegression)[1]
    gaps = np.where(np.arange(len(y)) < half, np.inf, targets)
    assert numbers.score(X, gaps) == pytest.approx(numbers.score(X[half:], targets[half:]))
    with pytest.raises(ValueError, match="one target for each row"):
        model.score(X, y[:-1])


def test_labels_print_as_they_are() -> None:
    model = configured(LogisticRegression, classes=list(np.unique([0, 1])))
    assert "classes=[0, 1]" in repr(model)
    report = model.fit(*toy_data()).privacy_
    assert not any("np.int64" in text for text in (str(report), report.to_html(), report.to_json()))


@pytest.mark.audit
def test_plans_show_methods_for_users_apart() -> None:
    budget: dict[str, Any] = {"n": 2000, "d": 2, "epsilon": 1.0, "delta": 1e-6}
    plans = privopt.plan(losses.logistic, **budget, max_records_per_user=10)
    tables = {heading: {one.solver for one in listed} for heading, listed in plans.others()}
    users, records = (
        tables["Other solvers, made for users"],
        tables["Made for records, here on users' averages"],
    )
    assert "user-gradient-descent" in users
    assert "svrg" in records
    assert not users & records
    assert all(heading in str(plans) for heading in tables)
    assert "made for users" in plans._repr_html_()
