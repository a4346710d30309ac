"""Stages of a strongly convex problem: public radii that shrink, projections that hold, prices that add up."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from tests.papers.test_phased_sgd import stored, table

from privopt.curator.local import LocalCurator
from privopt.ledger.amounts import Budget
from privopt.ledger.events import Parallel
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.papers.phased_sgd import PhasedSGD
from privopt.papers.strongly_convex_stages import StronglyConvexStages
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.constraints import CentredBall, L2Ball
from privopt.problems.problem import Problem
from privopt.problems.regularisers import ElasticNet, Ridge
from privopt.public import Public, of_users
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.whitening import Whitening

PROBLEM = Problem(losses.logistic, Ridge(0.1))
BUDGET = Budget(1.0, 1e-6)


def test_the_radii_and_sizes_follow_the_recurrence():
    public, lam, c = Public(n=7000, d=3), 0.1, 2.0
    instance = Instance(PROBLEM, public, BUDGET)
    solver = StronglyConvexStages(distance=1e4).configure(instance)
    sizes = [stage.units for stage in solver.stages]
    assert sizes == [1000, 2000, 4000]
    radius = 1e4
    for stage in solver.stages:
        alpha = 1.0 / math.sqrt(stage.units) + math.sqrt(3.0) / (stage.units * instance.mu)
        assert stage.radius == pytest.approx(radius, rel=1e-12)
        assert stage.error == pytest.approx(c * 1.0 * radius * alpha, rel=1e-12)
        radius = math.sqrt(2.0 * stage.error / lam)
    assert solver.stages[0].radius > solver.stages[1].radius > solver.stages[2].radius


@pytest.mark.parametrize(
    ("distance", "n", "stages"), [(0.1, 7000, 1), (1e4, 7000, 3), (1e4, 500, 2), (1e4, 200, 1)]
)
def test_the_number_of_stages_follows_from_public_numbers(distance, n, stages):
    instance = Instance(PROBLEM, Public(n=n, d=3), BUDGET)
    assert len(StronglyConvexStages(distance=distance).configure(instance).stages) == stages


def test_many_records_a_user_make_the_expected_error_smaller():
    users = Public(n=7000, d=3, **of_users(100, "user", 100.0))
    solver = StronglyConvexStages(distance=1e4)
    few, many = (
        solver.planned_stages(Instance(PROBLEM, public, BUDGET)) for public in (Public(n=7000, d=3), users)
    )
    assert many[0].error == pytest.approx(few[0].error / 10.0)


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("split", ["blocks", "allot"])
def test_the_stages_cost_the_budget(split, relation):
    public = Public(n=7000, d=3, relation=stored(*table(40)).public.relation.parse(relation))
    solver = StronglyConvexStages(distance=1e4, split=split).configure(Instance(PROBLEM, public, BUDGET))
    ledger = Ledger(BUDGET, relation, plan=solver.event(public))
    assert 0.999 <= ledger.epsilon() <= 1.0
    assert isinstance(solver.event(public), Parallel) is (split == "blocks")


@pytest.mark.later("gradient-descent-blocks", "gradient-descent-allot")
@pytest.mark.parametrize("split", ["blocks", "allot"])
@pytest.mark.parametrize("inner", [GradientDescent(), PhasedSGD()], ids=lambda inner: inner.name)
def test_it_comes_near_the_optimum_whatever_runs_inside(inner, split):
    rows, targets = table(20_000)
    units = stored(rows, targets)
    budget = Budget(8.0, 1e-6)
    solver = StronglyConvexStages(inner=inner, split=split, distance=1e3)
    solver = solver.configure(Instance(PROBLEM, units.public, budget))
    assert len(solver.stages) == 3
    ledger = Ledger(budget, "replace-one", plan=solver.event(units.public))
    result = solver.solve(LocalCurator(units, ledger, noise=NoiseSource(3)), PROBLEM)
    optimum = np.zeros(3)
    for _ in range(400):
        slopes = -targets / (1.0 + np.exp(targets * (rows @ optimum)))
        optimum -= 2.0 * (rows.T @ slopes / len(rows) + 0.1 * optimum)
    with double_precision():
        found, best = (
            float(PROBLEM.objective(jnp.asarray(w), rows, targets)) for w in (result.params, optimum)
        )
    assert found - best < 2e-3


def test_each_stage_stays_within_its_radius_of_the_last_answer():
    rows, targets = table(20_000)
    units = stored(rows, targets)
    solver = StronglyConvexStages(distance=1e-3, constant=1e-9).configure(
        Instance(PROBLEM, units.public, BUDGET)
    )
    ledger = Ledger(BUDGET, "replace-one", plan=solver.event(units.public))
    result = solver.solve(LocalCurator(units, ledger, noise=NoiseSource(3)), PROBLEM)
    assert np.linalg.norm(np.asarray(result.params)) <= sum(stage.radius for stage in solver.stages) * (
        1 + 1e-9
    )


@pytest.mark.parametrize(
    ("problem", "inner", "why"),
    [
        (Problem(losses.logistic), GradientDescent(), "a ridge on every coordinate"),
        (
            Problem(losses.logistic, Ridge(0.1, (1.0, 1.0, 0.0))),
            GradientDescent(),
            "a ridge on every coordinate",
        ),
        (Problem(losses.logistic, ElasticNet(0.1, 0.1)), GradientDescent(), "a ridge on every coordinate"),
        (Problem(losses.logistic, Ridge(0.1), L2Ball(1.0)), GradientDescent(), "within another set"),
        (PROBLEM, Whitening(), "not exact in other coordinates"),
    ],
)
def test_what_it_does_not_solve_is_refused(problem, inner, why):
    with pytest.raises(ValueError, match=why):
        StronglyConvexStages(inner=inner).check_applicable(problem, Public(n=7000, d=3))


def test_a_noise_multiplier_cannot_be_given():
    with pytest.raises(ValueError, match="is set by `configure`"):
        StronglyConvexStages(noise_multiplier=1.0)


def test_the_ball_of_a_matrix_is_that_of_its_entries():
    with double_precision():
        ball = CentredBall((1.0, 2.0, 3.0, 4.0), 0.5)
        middle = np.array([[1.0, 2.0], [3.0, 4.0]])
        away = middle + np.array([[3.0, 0.0], [0.0, 4.0]])
        np.testing.assert_allclose(ball.project(jnp.asarray(away)), middle + np.diag([0.3, 0.4]))
        with pytest.raises(ValueError, match="the centre has 4 entries"):
            ball.project(jnp.zeros(3))
