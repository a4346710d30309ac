"""Noisy mirror descent (Talwar, Thakurta, Zhang 2014): reference values and bounds."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.mirror_reference import (
    CLOSE,
    largest_move,
    neighbours,
    plain_problem,
    reference_units,
    solve_on,
)

from privopt.ledger.amounts import Budget
from privopt.mechanisms.noise import NoiseSource
from privopt.papers.mirror_descent import MirrorDescent
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.constraints import L1Ball, L2Ball
from privopt.problems.problem import Problem
from privopt.problems.regularisers import L1
from privopt.public import Public
from privopt.solve import minimize
from privopt.solvers.accelerated_mirror_descent import AcceleratedMirrorDescent

FOUR = MirrorDescent(steps=4, step_size=0.5, clip=1.0, noise_multiplier=0.4)
BUDGET = Budget(1.0, 1e-6)


@pytest.fixture(autouse=True)
def double():
    with double_precision():
        yield


def test_reference_value():
    result = solve_on(reference_units(), FOUR, plain_problem(L1Ball(2.0)))  # RV6e
    np.testing.assert_allclose(result.params, [-0.0179635841, -0.0089048585, 0.0043306749], **CLOSE)


@pytest.mark.parametrize("body", [L2Ball(0.3), L1Ball(0.4)], ids=str)
def test_whatever_is_released_the_result_stays_in_the_body(body):
    solver = replace(FOUR, steps=6, step_size=50.0, noise_multiplier=30.0)
    result = solve_on(reference_units(), solver, plain_problem(body), noise=NoiseSource(4))
    assert body.contains(jnp.asarray(result.params))


@pytest.mark.parametrize("body", [L2Ball(2.0), L1Ball(2.0)], ids=str)
def test_a_neighbour_moves_a_release_as_far_as_its_sensitivity_and_no_further(body):
    solver = replace(FOUR, clip=0.4, noise_multiplier=3.0)
    problem = Problem(losses.logistic, constraint=body)
    worst = [largest_move(solver, problem, *neighbours(seed, keep_label=True)) for seed in range(10)]
    assert 1.0 - 1e-6 <= max(worst) <= 1.0


def test_its_bound_is_above_that_of_the_accelerated_form():
    problem, public = Problem(losses.logistic, constraint=L1Ball(20.0)), Public(n=100_000, d=200)
    plain, accelerated = (
        solver.plan(Instance(problem, public, BUDGET)).predicted_excess
        for solver in (
            MirrorDescent(steps=60, entry_bound=0.1),
            AcceleratedMirrorDescent(steps=60, entry_bound=0.1),
        )
    )
    assert accelerated < plain


def test_without_noise_it_descends_to_the_optimum():
    problem, units = Problem(losses.logistic, constraint=L2Ball(1.0)), reference_units()
    silent = Budget(np.inf, 1e-6)
    slow = minimize(problem, units, budget=silent, solver=MirrorDescent(steps=400))
    fast = minimize(problem, units, budget=silent, solver=AcceleratedMirrorDescent(steps=200))
    np.testing.assert_allclose(slow.params, fast.params, atol=5e-3)


def test_a_penalty_that_is_not_smooth_is_refused():
    with pytest.raises(ValueError, match="is not smooth"):
        minimize(
            Problem(losses.logistic, L1(0.1), L1Ball(1.0)),
            reference_units(),
            budget=BUDGET,
            solver=MirrorDescent(),
        )
