"""Reference values of descent with falling noise, and its horizon, schedule and prediction."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.support.exact_curator import exact_run, public_of
from tests.support.kl_reference import LOGISTIC, RHO, reference_run, twelve_records

from privopt import plan, solvers, zoo
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.planning.descent_theory import predicted_path, trace_ratio
from privopt.planning.kl_theory import FallingNoise
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.growth import KL
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.public import Public, Relation
from privopt.solvers.gradient_descent import GradientDescent

STEPS = 5


def five_steps(ratio):
    return GradientDescent.geometric(
        steps=STEPS,
        step_size=4.0,
        clip=1.0,
        ratio=ratio,
        noise_multiplier=math.sqrt(STEPS / (2.0 * RHO)),
    ).filled(Instance(LOGISTIC, twelve_records().public, Budget(1.0, 1e-6)))


@pytest.mark.parametrize(
    ("ratio", "noise", "expected"),
    [
        (1.0, "zero", [1.4318976470e-01, -1.4341076757e-02, -1.3125377725e-01]),
        (1.0, "cos", [4.0929402302e-01, -2.8434857539e-01, -3.0793030726e-02]),
        (30.0, "cos", [4.7408710297e-02, -8.4415189763e-02, -4.4027802706e-01]),
    ],
)
def test_the_last_iterate(ratio, noise, expected):
    np.testing.assert_allclose(reference_run(five_steps(ratio), noise).params, expected, rtol=1e-8)


def test_without_noise_the_objective_falls_at_every_step():
    """Steps of 1 / L, no clip active."""
    units = twelve_records()
    losses_seen = []
    for steps in range(6):
        solver = replace(five_steps(1.0), steps=steps, step_size=4.0, clip=2.0)
        params = reference_run(solver, "zero").params
        margins = units.private_targets * (np.asarray(units.private_features) @ np.asarray(params))
        losses_seen.append(np.mean(np.logaddexp(0.0, -margins)))
    assert np.all(np.diff(losses_seen) < 0)


def public(n=20_000, d=10):
    return Public(n=n, d=d, relation=Relation.REPLACE_ONE, row_bound=1.0)


def test_the_horizon_and_the_steps_it_gives():
    budget, problem = Budget(1.0, 1e-6), Problem(losses.logistic)
    solver = GradientDescent.geometric(clip=1.0, distance=20.0).filled(Instance(problem, public(), budget))
    assert solver.step_size == 4.0
    assert solver.steps == 1000  # 1871 but for `most_steps`
    assert (
        GradientDescent.geometric(clip=1.0, distance=20.0, most_steps=4000)
        .filled(Instance(problem, public(), budget))
        .steps
        == 1872
    )
    small = GradientDescent.geometric().filled(Instance(problem, public(n=50), budget))
    assert small.steps == 10
    assert small == small.with_(falling=FallingNoise(distance=10.0), steps=None).filled(
        Instance(problem, public(n=50), budget)
    ).with_(falling=FallingNoise())


def test_the_shares_grow_by_the_ratio_and_cost_together_what_equal_ones_would():
    solver = replace(five_steps(30.0), steps=7, contraction=None, noise_multiplier=None).configure(
        Instance(LOGISTIC, twelve_records().public, Budget(1.0, 1e-6))
    )
    costs = np.asarray([0.5 / m.noise_multiplier**2 for m in solver.mechanisms()])
    assert costs[-1] / costs[0] == pytest.approx(30.0)
    np.testing.assert_allclose(costs[1:] / costs[:-1], 30.0 ** (1.0 / 6.0))
    assert costs.sum() == pytest.approx(gaussian_mu(1.0, 1e-6) ** 2 / 2.0, rel=1e-6)


def test_one_step_and_no_noise_are_planned():
    once = GradientDescent.geometric(steps=1).configure(Instance(LOGISTIC, public(), Budget(1.0, 1e-6)))
    assert len(once.mechanisms()) == 1
    silent = GradientDescent.geometric(most_steps=30).configure(
        Instance(LOGISTIC, public(), Budget(math.inf, 1e-6))
    )
    assert silent.steps == 30
    assert silent.noise_multiplier == 0.0
    assert silent.plan(Instance(LOGISTIC, public(), Budget(math.inf, 1e-6))).indicators == {}


def test_steps_and_curvature_include_the_ridge():
    solver = GradientDescent.geometric().filled(
        Instance(Problem(losses.logistic, Ridge(0.15)), public(), Budget(1.0, 1e-6))
    )
    assert solver.step_size == pytest.approx(1.0 / 0.4)
    assert (
        solver.forecast(Instance(Problem(losses.logistic, Ridge(0.15)), public(), Budget(1.0, 1e-6))).notices
        == ()
    )


def test_the_prediction_is_the_recursion():
    growth = KL(gamma=0.5, kappa=1.5, gap=2.0)
    noises = np.asarray([0.3, 0.2])
    excess = 2.0
    for noise in noises:
        excess += -0.4 * (1 - 0.2) * excess ** (4 / 3) / 0.25 + 0.5 * 0.16 * 3.0 * noise**2
        excess = max(excess, 0.5 * 0.16 * 3.0 * noise**2)
    found = predicted_path(growth, gap=2.0, step_size=0.4, smoothness=1.0, trace=3.0, noises=noises)
    assert found == pytest.approx(excess)


def test_the_trace_of_a_record():
    assert trace_ratio(Problem(losses.logistic), public()) == 1.0
    assert trace_ratio(Problem(losses.softmax(5)), public()) == 2.0
    assert trace_ratio(zoo.power(d=7).problem, public(d=7)) == 7.0


def test_with_a_known_growth_the_steps_stop_where_the_prediction_is_flat():
    """On the quadratic bowl a dozen passes do what the horizon would take hundreds for."""
    bowl = zoo.power(p=2.0, d=10)
    budget, n = Budget(1.0, 1e-6), 10_000
    at = public_of(bowl, n)
    solver = GradientDescent.geometric(clip=bowl.lipschitz, smoothness=bowl.smoothness, step_size=0.5)
    planned = solver.configure(Instance(bowl.problem, at, budget))
    assert 5 <= planned.steps <= 40
    predicted = planned.forecast(Instance(bowl.problem, at, budget)).excess
    measured = np.mean([exact_run(planned, bowl, n, budget=budget, noise=seed)[1] for seed in range(10)])
    assert 0.3 * predicted < measured < 2.0 * predicted
    plan = planned.plan(Instance(bowl.problem, at, budget))
    assert {"gradient_noise", "horizon", "one_query_floor", "least_excess_rate"} <= set(plan.indicators)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ratio": 0.5}, "ratio must be"),
        ({"distance": 0.0}, "distance must be"),
        ({"most_steps": 0}, "most_steps must be"),
    ],
)
def test_settings_out_of_range_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        GradientDescent.geometric(**wrong)


def test_a_loss_of_ones_own_is_taken_to_be_curved():
    """0.5 R^2 in place of what is not known: a guess of 0.1 overshot on rows that are much alike."""
    own = Problem(losses.RecordLoss(lambda params, features, target: (features @ params - target) ** 2))
    solver = GradientDescent.geometric().filled(Instance(own, public(), Budget(1.0, 1e-6)))
    assert solver.step_size == pytest.approx(2.0)
    assert solver.clip == pytest.approx(0.6)


def test_its_old_names_say_the_new_ones():
    with pytest.raises(ValueError, match="which is 'geometric-gradient-descent' now"):
        plan(losses.logistic, n=1_000, d=3, epsilon=1.0, delta=1e-6, solver="scheduled-gradient-descent")
    with pytest.raises(AttributeError, match=r"it is GradientDescent\.geometric"):
        solvers.ScheduledGradientDescent  # noqa: B018
    found = plan(losses.logistic, n=1_000, d=3, epsilon=1.0, delta=1e-6, solver="geometric-gradient-descent")
    assert found.default.solver == "geometric-gradient-descent"
