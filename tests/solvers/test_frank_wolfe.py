"""Private Frank-Wolfe (Talwar, Thakurta, Zhang 2015): reference values, price and shape of the result."""

import math
from dataclasses import replace

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

from privopt.curator.dry_run import DryRun
from privopt.data.units import Units
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import zcdp_rho_budget
from privopt.ledger.events import BoundedRangeEvent, Repeated
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.constraints import L1Ball, L2Ball
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.public import Public
from privopt.solve import minimize
from privopt.solvers.frank_wolfe import FrankWolfe

FOUR = FrankWolfe(steps=4, clip=1.0, noise_multiplier=0.1)
BUDGET = Budget(1.0, 1e-6)


def test_reference_value():
    # epsilon_0 = 2 / 0.1 = 20, so the Gumbel draws have the scale 2 R (S C / n) / epsilon_0 = 0.05.
    result = solve_on(reference_units(), FOUR, plain_problem(L1Ball(2.0)))  # RV7
    np.testing.assert_allclose(result.params, [-0.8, 0.0, -0.4], **CLOSE)


@pytest.mark.later("1", "2", "5")
@pytest.mark.parametrize("steps", [1, 2, 5, 12])
def test_the_result_is_in_the_ball_and_has_a_nonzero_a_step_at_most(steps):
    rng = np.random.default_rng(steps)
    units = Units.from_arrays(rng.normal(size=(50, 40)), np.sign(rng.normal(size=50)), row_bound=1.0)
    solver = replace(FOUR, steps=steps, noise_multiplier=3.0)
    result = solve_on(
        units, solver, Problem(losses.logistic, constraint=L1Ball(1.7)), noise=NoiseSource(steps)
    )
    assert np.sum(np.abs(result.params)) <= 1.7 * (1 + 1e-12)
    assert 1 <= np.count_nonzero(result.params) <= steps


@pytest.mark.audit
def test_no_neighbour_moves_the_scores_further_than_their_range_and_some_move_them_so_far():
    solver = replace(FOUR, clip=0.2, noise_multiplier=3.0)
    problem = Problem(losses.logistic, constraint=L1Ball(2.0))
    moves = [largest_move(solver, problem, *neighbours(seed, keep_label=seed < 15)) for seed in range(20)]
    assert 1.0 - 1e-6 <= max(moves) <= 1.0


@pytest.mark.parametrize(
    ("epsilon", "delta", "rho"),
    [(1.0, 1e-6, 0.02429), (0.1, 1e-6, 3.205e-4), (3.0, 1e-6, 0.18507), (1.0, 1e-3, 0.05938)],
)
def test_a_choice_costs_the_zcdp_of_a_gaussian_of_the_same_multiplier(epsilon, delta, rho):
    assert 0.9999 * rho <= zcdp_rho_budget(epsilon, delta) <= 1.003 * rho  # no finite list of orders here
    problem, public = Problem(losses.logistic, constraint=L1Ball(5.0)), Public(n=10_000, d=50)
    solver = FrankWolfe(steps=40).configure(Instance(problem, public, Budget(epsilon, delta)))
    event = solver.event(public)
    assert event == Repeated(BoundedRangeEvent(2.0 / solver.noise_multiplier), 40)
    assert 0.999 * epsilon <= accounting.epsilon(event, delta, public.relation) <= epsilon
    spent = 40 * (2.0 / solver.noise_multiplier) ** 2 / 8.0
    assert 0.999 * rho <= spent <= 1.2 * rho  # the best accountant is no worse than zCDP, and not much better


@pytest.mark.audit
def test_without_noise_it_comes_near_the_optimum():
    units, body = reference_units(), L1Ball(1.0)
    problem = Problem(losses.logistic, Ridge(0.05), body)
    result = minimize(problem, units, budget=Budget(np.inf, 1e-6), solver=FrankWolfe(steps=300))
    rows, signs = np.asarray(units.private_features), units.private_targets
    w = np.zeros(3)
    for t in range(300):  # plain Frank-Wolfe
        gradient = rows.T @ (-signs / (1 + np.exp(signs * (rows @ w)))) / 8 + 0.05 * w
        best = np.argmax(np.abs(gradient))
        vertex = np.zeros(3)
        vertex[best] = -np.sign(gradient[best])
        w = (1 - 2 / (t + 2)) * w + 2 / (t + 2) * vertex
    np.testing.assert_allclose(result.params, w, atol=1e-9)


def test_zero_steps_return_the_start():
    result = solve_on(
        reference_units(), replace(FOUR, steps=0), plain_problem(L1Ball(1.0)), start=np.array([0.1, 0.0, 0.2])
    )
    np.testing.assert_array_equal(result.params, [0.1, 0.0, 0.2])


def test_ties_go_to_the_first_vertex_when_the_noise_is_off():
    units = Units.from_arrays(np.zeros((8, 3)), np.ones(8), row_bound=1.0)
    solver = FrankWolfe(steps=1, clip=math.inf, noise_multiplier=0.0)
    ball = Problem(losses.logistic, constraint=L1Ball(1.5))
    result = minimize(ball, units, budget=Budget(np.inf, 1e-6), solver=solver)
    np.testing.assert_array_equal(result.params, [1.5, 0.0, 0.0])


def test_a_rehearsal_asks_for_every_choice():
    public = Public(n=20, d=3)
    rehearsal = DryRun(public)
    FOUR.solve(rehearsal, Problem(losses.logistic, constraint=L1Ball(1.0)))
    assert rehearsal.transcript.releases == 4


@pytest.mark.later("3")
@pytest.mark.parametrize("outputs", [1, 3])
def test_users_as_units_and_several_outputs(outputs):
    rng = np.random.default_rng(2)
    rows, codes = rng.normal(size=(60, 4)), rng.integers(0, max(outputs, 2), size=60)
    sides = []
    for flip in (1.0, -1.0):
        changed = rows.copy()
        changed[:3] *= flip  # all records of the first user
        sides.append(
            Units.from_arrays(
                changed,
                codes,
                row_bound=1.0,
                classes=list(range(max(outputs, 2))),
                groups=np.arange(60) // 3,
                max_records_per_user=3,
                noise=NoiseSource(1),
            )
        )
    loss = losses.logistic if outputs == 1 else losses.softmax(outputs)
    problem = Problem(loss, constraint=L1Ball(4.0))
    solver = FrankWolfe(steps=5, clip=0.1, noise_multiplier=3.0)
    assert 0.1 < largest_move(solver, problem, *sides) <= 1.0
    result = minimize(problem, sides[0], budget=Budget(5.0, 1e-3), solver=FrankWolfe(), random_state=1)
    assert np.sum(np.abs(result.params)) <= 4.0 * (1 + 1e-9)


def test_another_set_than_an_l1_ball_is_refused():
    with pytest.raises(ValueError, match=r"vertices of an l1 ball.*, and the set is L2Ball.*use L1Ball"):
        minimize(
            Problem(losses.logistic, constraint=L2Ball(1.0)),
            reference_units(),
            budget=BUDGET,
            solver=FrankWolfe(),
        )


def test_few_steps_and_a_missing_entry_bound_are_noticed():
    problem, public = Problem(losses.logistic, constraint=L1Ball(1.0)), Public(n=100, d=5)
    notices = FrankWolfe(steps=3).plan(Instance(problem, public, BUDGET)).notices
    assert any("3 steps are few" in notice for notice in notices)
    assert any("state `entry_bound`" in notice for notice in notices)
    assert FrankWolfe(steps=30, entry_bound=0.5).plan(Instance(problem, public, BUDGET)).notices == ()
