"""DP-Spider: reference runs, its schedule and price, the bound on the gradient, and refusals."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.contracts.cases import own_loss
from tests.support.kl_reference import reference_run, twelve_records

from privopt.curator.dry_run import DryRun
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.ledger.events import leaf_counts
from privopt.papers.dp_spider import DPSpider, planned_schedule
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.constraints import L2Ball
from privopt.problems.problem import Problem
from privopt.public import Public
from privopt.result import Status
from privopt.solvers.adaptive_gradient_descent import AdaptiveGradientDescent

RHO = gaussian_mu(1.0, 1e-6) ** 2 / 2
PUBLIC = Public(n=20_000, d=10)
SIX = DPSpider(
    steps=6, period=3, step_size=2.0, clip=1.0, curvature=0.25, noise_multiplier=0.5, returns="last"
)


@pytest.mark.parametrize(
    ("noise", "expected"),
    [
        ("zero", [1.0600922251e-01, -1.1247835806e-02, -9.6647719933e-02]),
        ("cos", [-8.9901799027e-01, 9.2286083861e-01, -1.3905260260e00]),
    ],
)
def test_runs_on_twelve_records_are_the_reference_runs(noise, expected):
    np.testing.assert_allclose(reference_run(SIX, noise).params, expected, rtol=1e-8)


def test_the_flattest_point_is_the_one_with_the_shortest_estimate():
    """Without noise the gradient shrinks from step to step, so it is the last one whose gradient was estimated."""
    flattest = reference_run(replace(SIX, returns="flattest"), "zero").params
    np.testing.assert_array_equal(flattest, reference_run(replace(SIX, steps=5), "zero").params)


def test_the_schedule_is_the_reference_value():
    signal = 2 * RHO * (20_000 / 2) ** 2
    found = planned_schedule(signal=signal, clip=1.0, smoothness=0.25, gap=0.7, parameters=10)
    assert found == (3802, 147)


def test_the_planned_schedule_makes_the_gradient_as_small_as_the_theorem_says():
    problem = Problem(losses.logistic)
    instance = Instance(problem, PUBLIC, Budget(1.0, 1e-6))
    solver = DPSpider(clip=1.0, gap=0.7).configure(instance)
    assert (solver.steps, solver.period) == (3802, 147)
    bound = solver.gradient_norm_bound(instance)
    assert bound == pytest.approx(math.sqrt(6 * 0.25 * 0.7 / 3802), rel=0.02)
    assert solver.forecast(instance).indicators["gradient_norm"].value == bound
    assert not solver.forecast(instance).notices
    restless = replace(solver, period=solver.steps)
    assert restless.gradient_norm_bound(instance) is None
    assert "build up" in restless.forecast(instance).notices[0]


def test_gradients_and_differences_cost_their_shares():
    anchor, difference = SIX.mechanisms()
    assert 2 * 0.5 / anchor.noise_multiplier**2 == pytest.approx(1.0)
    assert 4 * 0.5 / difference.noise_multiplier**2 == pytest.approx(1.0)
    assert leaf_counts(SIX.event(PUBLIC)) == leaf_counts(reference_run(SIX, "cos").transcript.event())
    every = replace(SIX, period=1)
    assert 6 * 0.5 / every.mechanisms()[0].noise_multiplier ** 2 == pytest.approx(2.0)
    assert leaf_counts(every.event(PUBLIC)) == leaf_counts(reference_run(every, "cos").transcript.event())


def test_without_noise_and_without_budget_nothing_breaks():
    problem = Problem(losses.logistic)
    silent = DPSpider(steps=7).configure(Instance(problem, PUBLIC, Budget(math.inf, 1e-6)))
    assert silent.period == 7
    rehearsal = DryRun(twelve_records().public)
    assert np.all(np.isfinite(silent.solve(rehearsal, problem).params))
    tiny = DPSpider().configure(Instance(problem, Public(n=2, d=500), Budget(1e-6, 1e-9)))
    assert (tiny.steps, tiny.period) == (1, 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"steps": -1}, "steps must be at least 0"),
        ({"period": 0}, "period must be at least 1"),
        ({"anchor_share": 1.0}, "anchor_share must be above 0 and below 1"),
        ({"returns": "random"}, r"returns must be one of \['flattest', 'last'\]"),
        ({"clip": -1.0}, "clip must be above 0"),
    ],
)
def test_a_bad_argument_is_named(fields, message):
    with pytest.raises(ValueError, match=message):
        DPSpider(**fields)


def test_what_it_cannot_plan_is_refused_with_a_reason():
    own = Problem(losses.RecordLoss(own_loss))
    assert "give `curvature`" in DPSpider().applicable(own, PUBLIC)
    assert "give `gap` or `steps`" in DPSpider(curvature=1.0).applicable(own, PUBLIC)
    assert DPSpider(curvature=1.0, gap=1.0).applicable(own, PUBLIC) is None


def test_no_gradient_norm_is_promised_in_a_set():
    """At the edge of a ball the gradient does not vanish."""
    budget = Budget(8.0, 1e-6)
    free, held = Problem(losses.logistic), Problem(losses.logistic, constraint=L2Ball(0.05))
    assert "gradient_norm" in DPSpider().plan(Instance(free, PUBLIC, budget)).indicators
    assert "gradient_norm" not in DPSpider().plan(Instance(held, PUBLIC, budget)).indicators
    assert "stationarity" in AdaptiveGradientDescent().plan(Instance(free, PUBLIC, budget)).indicators
    assert "stationarity" not in AdaptiveGradientDescent().plan(Instance(held, PUBLIC, budget)).indicators


def test_a_step_beyond_all_numbers_ends_the_run():
    units = twelve_records()
    wild = DPSpider(steps=6, period=3, step_size=1e200, clip=1.0, curvature=0.25)
    result = reference_run(replace(wild, noise_multiplier=0.5), "cos", units=units)
    assert result.status is Status.DIVERGED
    assert np.all(np.isfinite(result.params))
