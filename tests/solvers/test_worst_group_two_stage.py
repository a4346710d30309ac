"""Two stages for the worst group: columns that matter are selected, the price is the budget, the result is sparse."""

import numpy as np
import pytest
from scipy.special import expit

from privopt import Budget, Problem, Units, losses, minimize
from privopt.planning.task import Instance
from privopt.problems.constraints import Box, L1Ball, L2Ball, Product
from privopt.problems.grouped_loss import GroupedLoss
from privopt.public import Public
from privopt.solvers.worst_group_descent import WorstGroupDescent
from privopt.solvers.worst_group_two_stage import WorstGroupTwoStage

SHARES, D = (0.7, 0.3), 120
LOSS = GroupedLoss(losses.logistic, 2, SHARES)
BALL = Problem(LOSS, constraint=L1Ball(4.0))


def sparse_records(rows=6000):
    rng = np.random.default_rng(0)
    features, groups = rng.choice([-1.0, 1.0], (rows, D)), rng.choice(2, rows, p=SHARES)
    scores = 2.0 * features[:, 3] + np.where(groups == 1, 2.0 * features[:, 60], -1.0 * features[:, 9])
    return features, (groups + 1) * np.where(rng.random(rows) < expit(scores), 1.0, -1.0)


@pytest.mark.audit
def test_the_columns_of_both_groups_are_found_and_few_others():
    features, targets = sparse_records()
    units = Units.from_arrays(features, targets, row_bound=np.sqrt(D) * (1 + 1e-6))
    result = minimize(BALL, units, budget=Budget(3.0, 1e-6), solver=WorstGroupTwoStage(), random_state=0)
    params = np.asarray(result.params)
    assert params[3] > 0.3
    assert params[60] > 0.3
    assert np.sum(params != 0) <= 20
    assert np.sum(np.abs(params)) <= 4.0 * (1 + 1e-9)
    assert result.findings["group_weights"].value.shape == (30, 2)


def test_both_stages_cost_the_budget_together():
    public = Public(n=6000, d=D, row_bound=np.sqrt(D))
    instance = Instance(BALL, public, Budget(1.0, 1e-6))
    announced = WorstGroupTwoStage().plan(instance)
    assert 0.998 <= announced.epsilon <= 1.0
    assert announced.releases == 2 * 20 + 2 * 30
    without = WorstGroupTwoStage().configure(Instance(BALL, public, Budget(np.inf, 0.0)))
    assert without.noise_multiplier == 0
    assert without.inner.noise_multiplier == 0


@pytest.mark.audit
def test_an_intercept_stays_outside_of_the_ball_and_is_always_kept():
    features, targets = sparse_records(2000)
    rows = np.hstack([features[:, :10], np.ones((2000, 1))])
    problem = Problem(LOSS, constraint=Product(((L1Ball(1.0), 10), (Box(-3.0, 3.0), 1))))
    targets = np.where(np.arange(2000) % 4 == 0, targets, np.abs(targets))  # mostly +1
    units = Units.from_arrays(rows, targets, row_bound=np.sqrt(11) * (1 + 1e-6))
    solver = WorstGroupTwoStage(selection_steps=4, inner=WorstGroupDescent(steps=15))
    params = np.asarray(
        minimize(problem, units, budget=Budget(20.0, 1e-6), solver=solver, random_state=0).params
    )
    assert params[10] > 0.5
    assert np.sum(np.abs(params[:10])) <= 1.0 + 1e-9


def test_without_an_l1_ball_it_says_what_is_wrong():
    public = Public(n=6000, d=D)
    for problem, words in (
        (Problem(LOSS), "moves between vertices of an l1 ball"),
        (Problem(LOSS, constraint=L2Ball(1.0)), "moves between vertices of an l1 ball"),
        (Problem(losses.logistic, constraint=L1Ball(1.0)), "knows no groups"),
    ):
        with pytest.raises(ValueError, match=words):
            WorstGroupTwoStage().configure(Instance(problem, public, Budget(1.0, 1e-6)))
    with pytest.raises(ValueError, match="must sum to less than 1"):
        WorstGroupTwoStage(group_share=0.7, shares_share=0.5)
