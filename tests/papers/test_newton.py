"""Newton's method with double noise: against a plain reference, against the optimum, and what it refuses."""

import math
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from tests.support.formula_noise import FormulaNoise
from tests.support.reference_rows import reference_arrays

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.papers.newton import DoubleNoiseNewton
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.constraints import L2Ball
from privopt.problems.problem import Problem
from privopt.problems.regularisers import L1, NoRegulariser, Ridge
from privopt.public import Public
from privopt.result import Status
from privopt.solve import minimize

RIDGE, CLIP = 0.1, 0.4


def reference_units():
    return Units.from_arrays(*reference_arrays(), row_bound=1.0, storage="float64")


def plain_newton(steps, multiplier, damping, model):
    """Algorithm 1 with the noise of `FormulaNoise`, in NumPy, mean of the last half."""
    rows, targets = reference_arrays()
    lengths = np.linalg.norm(rows, axis=1)
    x, iterates, draw = np.zeros(3), [], FormulaNoise()
    for _ in range(steps):
        z = rows @ x
        slopes = np.clip(-targets / (1 + np.exp(targets * z)), -CLIP / lengths, CLIP / lengths)
        gradient = rows.T @ slopes / 8
        gradient = gradient + multiplier * 2 * CLIP / 8 * draw.normal(3) + RIDGE * x
        safe = np.where(np.abs(z) > 1e-9, z, 1.0)
        weights = np.where(np.abs(z) > 1e-9, np.tanh(safe / 2) / (2 * safe), 0.25)
        if model == "hessian":
            weights = 1 / (2 + 2 * np.cosh(z))
        matrix = (rows.T * weights) @ rows / 8 + (RIDGE + damping) * np.eye(3)
        least = RIDGE + damping
        sensitivity = np.linalg.norm(gradient) * 0.25 / (least * (8 * least + 0.25))
        x = x - np.linalg.solve(matrix, gradient) - multiplier * sensitivity * draw.normal(3)
        iterates.append(x)
    return np.mean(iterates[-math.ceil(steps / 2) :], axis=0)


@pytest.mark.parametrize("model", ["bound", "hessian"])
def test_a_run_equals_a_plain_reference(model):
    solver = DoubleNoiseNewton(
        steps=3, clip=CLIP, damping=0.3, model=model, returns="tail", noise_multiplier=0.2
    )
    units = reference_units()
    ledger = Ledger(Budget(1000.0, 1e-6), "replace-one", plan=solver.event(units.public))
    result = solver.solve(
        LocalCurator(units, ledger, noise=FormulaNoise()), Problem(losses.logistic, Ridge(RIDGE))
    )
    np.testing.assert_allclose(result.params, plain_newton(3, 0.2, 0.3, model), rtol=0, atol=1e-8)
    assert result.transcript.releases == 6


@pytest.mark.later("bound")
@pytest.mark.parametrize("model", ["bound", "hessian"])
def test_infinite_epsilon_reaches_the_optimum(model):
    rows, targets = reference_arrays()
    problem = Problem(losses.logistic, Ridge(RIDGE))
    result = minimize(
        problem, reference_units(), budget=Budget(np.inf, 1e-6), solver=DoubleNoiseNewton(model=model)
    )
    direct = LogisticRegression(C=1 / (RIDGE * 8), fit_intercept=False, tol=1e-12).fit(rows, targets)
    np.testing.assert_allclose(result.params, direct.coef_[0], atol=1e-4)


def test_least_squares_without_noise_take_one_step():
    rows, targets = reference_arrays()
    solver = DoubleNoiseNewton(steps=1)
    result = minimize(
        Problem(losses.squared, Ridge(RIDGE)), reference_units(), budget=Budget(np.inf, 1e-6), solver=solver
    )
    exact = np.linalg.solve(rows.T @ rows / 8 + RIDGE * np.eye(3), rows.T @ targets / 8)
    np.testing.assert_allclose(result.params, exact, rtol=1e-7)  # the clip aims 1e-9 inside


@pytest.mark.audit
def test_with_many_units_little_noise_is_left():
    generator = np.random.default_rng(0)
    rows = generator.normal(size=(200_000, 3)) / 4
    targets = np.where(generator.random(200_000) < 1 / (1 + np.exp(-rows @ [3.0, -2.0, 1.0])), 1.0, -1.0)
    units = Units.from_arrays(rows, targets, row_bound=1.0)
    result = minimize(
        losses.logistic,
        units,
        budget=Budget(3.0, 1e-8),
        solver=DoubleNoiseNewton(steps=8, damping=0.01),
        random_state=1,
    )
    assert np.linalg.norm(np.asarray(result.params) - [3.0, -2.0, 1.0]) < 0.6


def test_the_damping_keeps_the_noise_of_a_direction_below_its_length():
    problem, budget = Problem(losses.logistic, NoRegulariser()), Budget(1.0, 1e-6)
    derived = [
        DoubleNoiseNewton().configure(Instance(problem, Public(n=n, d=55), budget))
        for n in (2000, 20_000, 10**7)
    ]
    assert [solver.damping for solver in derived] == sorted((s.damping for s in derived), reverse=True)
    assert derived[-1].damping == pytest.approx(0.01)
    assert {(s.steps, s.model, s.releases(), s.passes()) for s in derived} == {(20, "bound", 40, 40.0)}
    kept = replace(derived[0], noise_multiplier=None, damping=0.5).configure(
        Instance(problem, Public(n=2000, d=55), budget)
    )
    assert kept.damping == 0.5


def test_without_noise_the_last_point_is_returned_unless_another_is_asked_for():
    problem, public = Problem(losses.logistic), Public(n=100, d=3)
    private, silent = (Instance(problem, public, Budget(epsilon, 1e-6)) for epsilon in (1.0, np.inf))
    assert DoubleNoiseNewton().configure(private).returns == "tail"
    assert DoubleNoiseNewton().configure(silent).returns == "last"
    assert DoubleNoiseNewton(returns="weighted").configure(silent).returns == "weighted"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"damping": -0.1}, "damping must be at least 0, got -0.1: it is lambda0"),
        ({"step_size": 0.0}, "step_size must be above 0, got 0.0"),
        ({"model": "parabola"}, "model must be one of .* got 'parabola'"),
        ({"returns": "first"}, "returns must be one of .* got 'first'"),
    ],
)
def test_settings_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DoubleNoiseNewton(**options)


def test_a_run_without_a_finite_length_says_so():
    solver = DoubleNoiseNewton(
        steps=3,
        step_size=1e200,
        clip=1.0,
        damping=0.1,
        model="hessian",
        returns="tail",
        noise_multiplier=0.1,
    )
    units = reference_units()
    ledger = Ledger(Budget(1000.0, 1e-6), "replace-one", plan=solver.event(units.public))
    result = solver.solve(
        LocalCurator(units, ledger, noise=FormulaNoise()), Problem(losses.squared, Ridge(1e200))
    )
    assert result.status in (Status.DIVERGED, Status.FINISHED)
    assert np.all(np.isfinite(result.params))
    assert result.transcript.releases == 6


@pytest.mark.parametrize(
    ("solver", "problem", "message"),
    [
        (DoubleNoiseNewton(), Problem(losses.softmax(3)), "one output"),
        (DoubleNoiseNewton(), Problem(losses.quantile(0.3)), "finite second derivative"),
        (DoubleNoiseNewton(model="bound"), Problem(losses.squared), "for the logistic loss"),
        (DoubleNoiseNewton(), Problem(losses.squared, L1(0.1)), "ridge or no penalty"),
        (DoubleNoiseNewton(), Problem(losses.squared, NoRegulariser(), L2Ball(1.0)), "constraint set"),
    ],
)
def test_what_it_cannot_solve_is_refused(solver, problem, message):
    assert message in solver.applicable(problem, Public(n=10, d=3))
    with pytest.raises(ValueError, match=message):
        minimize(problem, reference_units(), budget=Budget(1.0, 1e-6), solver=solver)


def test_the_plan_says_that_it_is_an_experiment():
    plan = DoubleNoiseNewton().plan(
        Instance(Problem(losses.logistic), Public(n=10**5, d=3), Budget(1.0, 1e-8))
    )
    assert any("experimental" in notice for notice in plan.notices)
