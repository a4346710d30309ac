"""Descent for the worst group: a plain reference, the game's value without noise, its price and its words."""

import math

import numpy as np
import pytest
from scipy.special import expit

from privopt import Budget, Problem, Units, constraints, losses, minimize, plan, regularisers
from privopt.planning.task import Instance
from privopt.problems.grouped_loss import GroupedLoss
from privopt.public import Public, Relation
from privopt.solvers.whitening import Whitening
from privopt.solvers.worst_group_descent import WorstGroupDescent, as_shares

SHARES = (0.6, 0.3, 0.1)
LOSS = GroupedLoss(losses.logistic, 3, SHARES)
PUBLIC = Public(n=4000, d=4)
WEIGHTS = np.array([[2.0, 0, 0, 0], [0, 2.0, 0, 0], [-2.0, 0, 2.0, 0]])


def grouped_records(rows=4000, seed=0):
    """Records whose labels follow other weights in each group."""
    rng = np.random.default_rng(seed)
    features = rng.uniform(-1.0, 1.0, (rows, 4))
    groups = rng.choice(3, rows, p=SHARES)
    labels = np.where(rng.random(rows) < expit(3.0 * np.sum(features * WEIGHTS[groups], axis=1)), 1.0, -1.0)
    return features, groups, labels


def losses_of_groups(params, features, groups, labels):
    each = np.logaddexp(0.0, -labels * (features @ params))
    return np.array([np.mean(each[groups == g]) for g in range(3)])


@pytest.mark.audit
def test_without_noise_it_is_the_plain_descent_ascent_on_the_groups():
    features, groups, labels = grouped_records(500)
    units = Units.from_arrays(features, (groups + 1) * labels, row_bound=2.0, storage="float64")
    solver = WorstGroupDescent(steps=5, step_size=0.8, clip=math.inf)
    result = minimize(Problem(LOSS), units, budget=Budget(math.inf, 0.0), solver=solver)
    params, average, score = np.zeros(4), np.zeros(4), np.zeros(3)
    for t in range(5):
        weights = np.sqrt(SHARES) * np.exp(score)
        weights /= weights.sum()
        margins = labels * (features @ params)
        slopes = -labels * expit(-margins) * (weights / np.asarray(SHARES))[groups]
        each = np.minimum(np.logaddexp(0.0, -margins), 2.0) - 1.0
        score += (np.bincount(groups, each, 3) / 500 + np.asarray(SHARES)) / np.asarray(SHARES)
        shortened = 0.8 / max(1.0, np.max(weights / np.asarray(SHARES)) / 4.0)
        params = params - shortened * features.T @ slopes / 500
        average += (params - average) * 2.0 / (t + 2.0)
    np.testing.assert_allclose(result.params, average, rtol=1e-9)
    np.testing.assert_allclose(result.findings["group_weights"].value[-1], weights, rtol=1e-9)


@pytest.mark.audit
def test_without_noise_the_worst_group_is_better_off_than_after_a_plain_fit():
    features, groups, labels = grouped_records()
    units = Units.from_arrays(features, (groups + 1) * labels, row_bound=2.0)
    plain = minimize(
        losses.logistic, Units.from_arrays(features, labels, row_bound=2.0), budget=Budget(math.inf, 0.0)
    )
    solver = Whitening(inner=WorstGroupDescent(steps=120))
    fair = minimize(Problem(LOSS), units, budget=Budget(math.inf, 0.0), solver=solver)
    before = losses_of_groups(np.asarray(plain.params), features, groups, labels)
    after = losses_of_groups(np.asarray(fair.params), features, groups, labels)
    assert np.max(after) < np.max(before) - 0.05
    # At the value of the game the weights have made the losses of the groups that count nearly equal.
    counted = fair.findings["group_weights"].value[-1] > 0.05
    assert np.ptp(after[counted]) < 0.04 < np.ptp(before[counted])


def test_private_descent_helps_the_worst_group_and_its_weights_grow():
    features, groups, labels = grouped_records()
    fresh = grouped_records(seed=1)
    units = Units.from_arrays(features, (groups + 1) * labels, row_bound=2.0)
    budget = Budget(2.0, 1e-6)
    plain = minimize(
        losses.logistic, Units.from_arrays(features, labels, row_bound=2.0), budget=budget, random_state=0
    )
    fair = minimize(Problem(LOSS), units, budget=budget, random_state=0)
    worst = [np.max(losses_of_groups(np.asarray(result.params), *fresh)) for result in (plain, fair)]
    assert worst[1] < worst[0] - 0.03
    weights = fair.findings["group_weights"].value
    assert weights[-1, 2] > weights[0, 2]
    assert fair.pictures[0].title == "Weights of the groups"
    assert "nothing to gain" not in fair.findings["worst_group_excess"].meaning


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_all_releases_together_cost_the_budget(relation):
    public = Public(n=4000, d=4, relation=Relation.parse(relation))
    budget = Budget(1.0, 1e-6)
    unknown = GroupedLoss(losses.logistic, 3)
    for loss, fields, releases in ((LOSS, {}, 60), (unknown, {"report_share": 0.1}, 62)):
        announced = WorstGroupDescent(**fields).plan(Instance(Problem(loss), public, budget))
        assert 0.999 <= announced.epsilon <= 1.0
        assert announced.releases == releases


def test_many_groups_are_drawn_and_few_are_not():
    many = GroupedLoss(losses.logistic, 60, (1 / 60,) * 60)
    instance = Instance(Problem(many), Public(n=50_000, d=4), Budget(1.0, 1e-6))
    solver = WorstGroupDescent().configure(instance)
    assert solver.draws > 0
    assert solver.plan(instance).epsilon <= 1.0
    few = Instance(Problem(LOSS), PUBLIC, Budget(1.0, 1e-6))
    assert WorstGroupDescent().configure(few).draws == 0
    cvar = GroupedLoss(losses.logistic, 60, (1 / 60,) * 60, alpha=0.5)
    with pytest.raises(ValueError, match="CVaR over groups needs noisy losses"):
        WorstGroupDescent(draws=4).configure(Instance(Problem(cvar), PUBLIC, Budget(1.0, 1e-6)))


@pytest.mark.audit
def test_drawn_groups_are_those_with_large_losses():
    rng = np.random.default_rng(0)
    groups, features = rng.integers(0, 60, 20_000), rng.uniform(-1.0, 1.0, (20_000, 3))
    features[:, 2] = 1.0
    labels = np.where(groups == 7, -1.0, np.where(rng.random(20_000) < 0.95, 1.0, -1.0))
    loss = GroupedLoss(losses.logistic, 60, (1 / 60,) * 60)
    units = Units.from_arrays(features, (groups + 1) * labels, row_bound=2.0)
    result = minimize(
        Problem(loss), units, budget=Budget(8.0, 1e-6), solver=WorstGroupDescent(), random_state=0
    )
    weights = result.findings["group_weights"].value
    assert np.argmax(np.mean(weights[5:], axis=0)) == 7
    assert np.mean(weights[5:, 7]) > 5 / 60


def test_a_plan_says_what_is_known_of_the_groups():
    budget = Budget(1.0, 1e-6)
    rare = GroupedLoss(losses.logistic, 2, (0.995, 0.005))
    notices = WorstGroupDescent().plan(Instance(Problem(rare), PUBLIC, budget)).notices
    assert any("1 of 2 groups have a share below the floor 0.02" in notice for notice in notices)
    alone = GroupedLoss(losses.logistic, 1, (1.0,))
    announced = WorstGroupDescent().plan(Instance(Problem(alone), PUBLIC, budget))
    assert announced.releases == 30
    assert any("nothing is to be gained" in notice for notice in announced.notices)
    small = Public(n=200, d=4)
    notices = WorstGroupDescent().plan(Instance(Problem(LOSS), small, budget)).notices
    assert any("nothing to gain over a plain fit" in notice for notice in notices)


def test_solvers_of_means_refuse_groups_and_those_of_groups_other_losses():
    with pytest.raises(ValueError, match="does not weight groups against each other"):
        plan(Problem(LOSS), n=1000, d=4, epsilon=1.0, delta=1e-6, solver="gradient-descent")
    with pytest.raises(ValueError, match="the logistic loss knows no groups"):
        plan(losses.logistic, n=1000, d=4, epsilon=1.0, delta=1e-6, solver="worst-group-descent")
    with pytest.raises(ValueError, match="the penalty is not smooth"):
        plan(
            Problem(LOSS, regularisers.L1(0.1)),
            n=1000,
            d=4,
            epsilon=1.0,
            delta=1e-6,
            solver="worst-group-descent",
        )
    with pytest.raises(ValueError, match="must sum to less than 1"):
        WorstGroupDescent(group_share=0.6, report_share=0.5)
    found = plan(Problem(LOSS), n=1000, d=4, epsilon=1.0, delta=1e-6)
    assert found.default.solver == "whitened worst-group-descent"
    assert {one.solver for one in found.plans} == {"whitened worst-group-descent", "worst-group-descent"}
    ball = Problem(LOSS, constraint=constraints.L1Ball(2.0))
    assert plan(ball, n=1000, d=4, epsilon=1.0, delta=1e-6).default.solver == "worst-group-descent"
    assert plan(ball, n=1000, d=200, epsilon=1.0, delta=1e-6).default.solver == "worst-group-two-stage"
    assert Whitening(inner=WorstGroupDescent()).weighs_groups


def test_released_shares_become_shares():
    found = as_shares(np.array([0.7, -0.1, np.nan, 0.5]))
    assert found.sum() == pytest.approx(1.0)
    assert np.all(found > 0)
