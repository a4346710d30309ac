"""Frank-Wolfe on simplexes, polytopes and products, and the refit of what it selects."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from tests.support.mirror_reference import largest_move, neighbours, solve_on

from privopt.curator.dry_run import DryRun
from privopt.data.units import Units
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.events import BoundedRangeEvent, GaussianEvent, leaf_counts
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.constraints import Box, L1Ball, L2Ball, Polytope, Product, Simplex
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.public import Public
from privopt.solve import minimize
from privopt.solvers import frank_wolfe as planning
from privopt.solvers.frank_wolfe import FrankWolfe

BUDGET = Budget(1.0, 1e-6)
NOISELESS = Budget(math.inf, 1e-6)
WITH_INTERCEPT = Product(((L1Ball(2.0), 4), (Box(-1.0, 3.0), 1)))
MIXED = Product(((Simplex(1.5), 2), (Box((0.0, 0.4), (1.0, 0.4)), 2), (L1Ball(0.5), 1)))
ALONE = {WITH_INTERCEPT: [4], MIXED: [2, 3, 4]}
CORNERS = np.random.default_rng(3).normal(size=(7, 5)) + 5.0


def rows_and_signs(seed=0, n=60, d=5):
    rng = np.random.default_rng(seed)
    rows = rng.uniform(-1, 1, size=(n, d))
    rows[:, -1] = 1.0
    return rows, np.where(rows[:, 0] - rows[:, 1] + 0.5 * rng.normal(size=n) + 0.3 > 0, 1.0, -1.0)


def units_of(seed=0, **options):
    rows, signs = rows_and_signs(seed, **options)
    return Units.from_arrays(rows, signs, row_bound=math.sqrt(rows.shape[1]), storage="float64")


def plain_frank_wolfe(problem, units, steps):
    """Its iterates, to vertices by the linear minimiser of the whole set, without noise."""
    rows, signs = np.asarray(units.private_features), units.private_targets
    iterates = []
    with double_precision():
        w = np.asarray(problem.constraint.project(jnp.zeros(rows.shape[1])))
    with double_precision():
        for t in range(steps):
            gradient = rows.T @ (-signs / (1 + np.exp(signs * (rows @ w)))) / len(rows)
            gradient = gradient + np.asarray(problem.regulariser.gradient(jnp.asarray(w)))
            vertex = np.asarray(problem.constraint.linear_minimiser(jnp.asarray(gradient)))
            w = (1 - 2 / (t + 2)) * w + 2 / (t + 2) * vertex
            iterates.append(w)
    return iterates


def contains(constraint, params):
    with double_precision():
        return bool(constraint.contains(jnp.asarray(np.asarray(params))))


@pytest.mark.at_once("Simplex(radius=2.0)")
@pytest.mark.parametrize("constraint", [WITH_INTERCEPT, MIXED, Simplex(2.0), Polytope(CORNERS)], ids=str)
def test_without_noise_it_is_plain_frank_wolfe_on_the_whole_set(constraint):
    units, problem = units_of(), Problem(losses.logistic, Ridge(0.05), constraint)
    result = minimize(problem, units, budget=NOISELESS, solver=FrankWolfe(steps=60))
    iterates = np.stack(plain_frank_wolfe(problem, units, 60))
    expected, alone = iterates[-1], ALONE.get(constraint, [])
    expected[alone] = iterates[30:, alone].mean(axis=0)  # intervals go to and fro
    np.testing.assert_allclose(result.params, expected, atol=1e-9)
    assert contains(constraint, result.params)


@pytest.mark.later("Polytope(7 vertices in 5 dimensions)")
@pytest.mark.parametrize("constraint", [WITH_INTERCEPT, Simplex(2.0), Polytope(CORNERS)], ids=str)
def test_no_neighbour_moves_a_choice_further_than_its_range_and_some_move_it_so_far(constraint):
    solver = FrankWolfe(steps=4, clip=0.2, noise_multiplier=3.0)
    solver = solver.configure(
        Instance(Problem(losses.logistic, constraint=constraint), Public(n=40, d=5), BUDGET)
    )
    problem = Problem(losses.logistic, constraint=constraint)
    moves = [largest_move(solver, problem, *neighbours(seed, keep_label=seed < 3)) for seed in range(5)]
    assert 0.95 <= max(moves) <= 1.0


def test_the_cost_of_a_step_is_divided_so_that_the_predicted_gap_is_least():
    problem = Problem(losses.logistic, constraint=Product(((L1Ball(4.0), 500), (Box(-4.0, 4.0), 1))))
    public = Public(n=20_000, d=501, row_bound=math.sqrt(501), entry_bound=1.0)
    instance = Instance(problem, public, BUDGET)
    solver = FrankWolfe().configure(instance)
    assert solver.shares == pytest.approx([0.823, 0.177], abs=1e-3)
    weights = np.array([4 * math.log(1000), 4 * math.log(2)])
    assert planning.noise_weight(instance) == pytest.approx(np.sum(weights / np.sqrt(solver.shares)))
    for moved in (0.02, -0.02):
        others = np.add(solver.shares, (moved, -moved))
        assert np.sum(weights / np.sqrt(others)) > planning.noise_weight(instance)
    assert 0.999 <= accounting.epsilon(solver.event(public), 1e-6, public.relation) <= 1.0
    leaves, _ = leaf_counts(solver.event(public))
    assert set(leaves.values()) == {solver.steps}
    assert sorted(leaf.epsilon for leaf in leaves) == pytest.approx(
        sorted(2.0 * math.sqrt(share) / solver.noise_multiplier for share in solver.shares), rel=1e-12
    )
    assert solver.releases() == 2 * solver.steps
    assert solver.passes() == solver.steps


@pytest.mark.audit
def test_a_part_without_a_choice_is_free_and_stays_where_it_is():
    solver = FrankWolfe(steps=3).configure(
        Instance(Problem(losses.logistic, constraint=MIXED), Public(n=60, d=5), BUDGET)
    )
    assert len(solver.shares) == 3
    params = minimize(
        Problem(losses.logistic, constraint=MIXED), units_of(), budget=BUDGET, solver=solver
    ).params
    assert float(params[3]) == pytest.approx(0.4, abs=1e-15)


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (Product(((L2Ball(1.0), 3), (Box(0.0, 1.0), 2))), r"an l1 ball, a simplex, a polytope, or a product"),
        (Product(((L1Ball(1.0), 4), (Box(0.0, math.inf), 1))), r"and the set is Product"),
        (Box(-1.0, 1.0), r"a choice a step for every ball, .* here 30, and takes 1 to 20"),
        (Box(0.5, 0.5), r"here 0, and takes 1 to 20"),
        (Polytope(CORNERS), r"its vertices have 5 entries, and there are 30 parameters"),
    ],
)
def test_a_set_without_vertices_to_choose_among_is_refused(constraint, message):
    with pytest.raises(ValueError, match=message):
        FrankWolfe().check_applicable(Problem(losses.logistic, constraint=constraint), Public(n=50, d=30))


def test_the_bound_on_entries_that_is_public_about_the_data_is_used():
    problem = Problem(losses.logistic, constraint=L1Ball(4.0))
    stated = Public(n=2_000_000, d=100, row_bound=10.0, entry_bound=1.0)
    known = FrankWolfe().configure(Instance(problem, stated, BUDGET))
    given = FrankWolfe(clip=0.3, entry_bound=1.0).configure(Instance(problem, stated, BUDGET))
    assert known.with_(entry_bound=1.0) == given
    beside = Problem(losses.logistic, constraint=Product(((L1Ball(4.0), 99), (Box(-4.0, 4.0), 1))))
    assert FrankWolfe().configure(Instance(beside, stated, BUDGET)).clip == pytest.approx(0.6)
    assert known.clip == pytest.approx(0.3)
    assert known.steps > FrankWolfe().configure(Instance(problem, Public(n=2_000_000, d=100), BUDGET)).steps
    assert FrankWolfe().plan(Instance(problem, stated, BUDGET)).notices == ()


# Refit ----------------------------------------------------------------------------------------------------------------


def sparse_units(n=3000, d=60):
    rng = np.random.default_rng(4)
    rows = rng.choice([-1.0, 1.0], size=(n, d))
    truth = np.zeros(d)
    truth[[3, 17, 40]] = [0.5, -0.5, 0.4]
    signs = np.where(rng.random(n) < 1 / (1 + np.exp(-rows @ truth)), 1.0, -1.0)
    return Units.from_arrays(rows, signs, row_bound=math.sqrt(d), entry_bound=1.0), truth


def test_the_refit_costs_what_the_plan_says_and_takes_its_share():
    public = Public(n=3000, d=60, row_bound=math.sqrt(60), entry_bound=1.0)
    instance = Instance(Problem(losses.logistic, constraint=L1Ball(4.0)), public, BUDGET)
    solver = FrankWolfe(refit=True, selection_share=0.3).configure(instance)
    event = solver.event(public)
    assert 0.999 <= accounting.epsilon(event, 1e-6, public.relation) <= 1.0
    leaves, _ = leaf_counts(event)
    choices = {leaf: count for leaf, count in leaves.items() if isinstance(leaf, BoundedRangeEvent)}
    descent = {leaf: count for leaf, count in leaves.items() if isinstance(leaf, GaussianEvent)}
    selection = sum(count * leaf.epsilon**2 / 8 for leaf, count in choices.items())
    rest = sum(count / (2 * leaf.noise_multiplier**2) for leaf, count in descent.items())
    assert selection / (selection + rest) == pytest.approx(0.3)
    assert (solver.releases(), solver.passes()) == (solver.steps + 20, solver.steps + 20)
    rehearsal = DryRun(public)
    solver.solve(rehearsal, instance.problem)
    assert rehearsal.transcript.releases == solver.releases()


def test_the_refit_moves_the_selected_parameters_alone_and_towards_the_truth():
    units, truth = sparse_units()
    problem = Problem(losses.logistic, constraint=L1Ball(4.0))
    seeded = {"budget": Budget(5.0, 1e-5), "random_state": 3}
    found = {
        refit: np.asarray(minimize(problem, units, solver=FrankWolfe(steps=30, refit=refit), **seeded).params)
        for refit in (False, True)
    }
    assert np.linalg.norm(found[True] - truth) < 0.7 * np.linalg.norm(found[False] - truth)
    assert np.sum(np.abs(found[True])) <= 4.0 * (1 + 1e-9)
    assert np.count_nonzero(found[True]) <= 30


def test_the_refit_keeps_the_intercept_and_its_box():
    rows, signs = rows_and_signs(2, n=400)
    units = Units.from_arrays(rows, signs, row_bound=math.sqrt(5), entry_bound=1.0)
    constraint = Product(((L1Ball(2.0), 4), (Box(0.1, 0.2), 1)))
    solver = FrankWolfe(steps=10, refit=True)
    params = minimize(
        Problem(losses.logistic, Ridge(0.1, (1.0, 1.0, 1.0, 1.0, 0.0)), constraint),
        units,
        budget=Budget(20.0, 1e-5),
        solver=solver,
        random_state=1,
    ).params
    assert 0.1 <= float(params[4]) <= 0.2
    assert contains(constraint, params)


def test_without_noise_the_refit_is_exact_on_the_selected_features():
    units, _ = sparse_units(n=500)
    problem = Problem(losses.logistic, constraint=L1Ball(40.0))
    solver = FrankWolfe(steps=4, refit=True)
    params = np.asarray(minimize(problem, units, budget=NOISELESS, solver=solver).params)
    first = np.asarray(minimize(problem, units, budget=NOISELESS, solver=FrankWolfe(steps=4)).params)
    support = np.flatnonzero(first)
    np.testing.assert_array_equal(np.flatnonzero(params), support)
    rows, signs = np.asarray(units.private_features)[:, support].astype(float), units.private_targets
    w, average = np.zeros(len(support)), np.zeros(len(support))
    weights = np.arange(1.0, 21.0) ** 2
    for weight in weights:
        w = w + 2.0 * rows.T @ (signs / (1 + np.exp(signs * (rows @ w)))) / len(rows)  # without a clip
        average += weight * w / np.sum(weights)
    np.testing.assert_allclose(params[support], average, rtol=1e-6)


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (
            Problem(losses.RecordLoss(lambda w, a, t: (a @ w - t) ** 2), constraint=L1Ball(1.0)),
            r"parameters of a user-written loss",
        ),
        (Problem(losses.logistic, constraint=Polytope(np.eye(4))), r"a refit cannot restrict Polytope"),
        (
            Problem(losses.softmax(3), constraint=Product(((L1Ball(1.0), 10), (Box(0.0, 1.0), 2)))),
            r"a refit drops whole features",
        ),
    ],
)
def test_a_refit_is_refused_where_parameters_belong_to_no_feature(problem, message):
    with pytest.raises(ValueError, match=message):
        FrankWolfe(refit=True).check_applicable(problem, Public(n=50, d=4))


def test_zero_steps_with_a_refit_return_the_start_and_cost_nothing():
    units = units_of()
    solver = FrankWolfe(steps=0, refit=True, clip=1.0, noise_multiplier=1.0)
    start = np.full(5, 0.1)
    result = solve_on(
        units, solver, Problem(losses.logistic, constraint=L1Ball(1.0)), noise=NoiseSource(1), start=start
    )
    np.testing.assert_array_equal(result.params, start)
    assert solver.releases() == 0


def test_shares_that_do_not_sum_to_one_are_refused():
    with pytest.raises(ValueError, match=r"shares must be positive and sum to 1, got \(0.5, 0.6\)"):
        FrankWolfe(shares=(0.5, 0.6))
