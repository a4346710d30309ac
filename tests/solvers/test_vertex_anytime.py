"""Vertex-anytime: reference values, its price, and what it gives back on small and odd problems."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tests.support.sparse_rows import logistic_loss, reference_signs

from privopt.data.units import Units
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.events import NoEvent
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.problems import losses
from privopt.problems.constraints import Box, L1Ball, L2Ball, Polytope, Simplex
from privopt.problems.problem import Problem
from privopt.problems.regularisers import L1, Ridge
from privopt.public import Public
from privopt.solve import minimize, plan
from privopt.solvers.vertices import VertexAnytime, batch_sizes, need

BALL = Problem(losses.logistic, constraint=L1Ball(2.0))
BUDGET = Budget(1.0, 1e-6)
PUBLIC = Public(n=10_000, d=50)


def small_units(rows=40, columns=3, seed=0, **options):
    rng = np.random.default_rng(seed)
    features = rng.uniform(-0.5, 0.5, size=(rows, columns))
    return Units.from_arrays(
        features, np.where(features[:, 0] > features[:, -1], 1.0, -1.0), row_bound=1.0, **options
    )


def test_reference_value_of_the_best_vertices():
    rows, labels = reference_signs(24)
    units = Units.from_arrays(rows, labels, row_bound=2.0, storage="float64")
    solver = VertexAnytime(steps=5, draws=1, clip=math.inf)
    result = minimize(BALL, units, budget=Budget(math.inf, 1e-6), solver=solver)
    np.testing.assert_allclose(result.params, [0.133333333333, 0.0, -1.866666666667], atol=1e-8)
    assert logistic_loss(rows, labels, result.params) == pytest.approx(0.293519603588, abs=1e-8)


def test_the_batches_of_one_pass_weigh_alike():
    assert need(6) == pytest.approx(
        [1.169520319523, 1.212893693244, 1.144552314226, 0.997775303140, 0.745355992500], abs=1e-11
    )
    assert batch_sizes(100, 6) == (22, 23, 22, 19, 14)
    assert batch_sizes(100, 1) == ()
    assert min(batch_sizes(20, 11)) == 2
    assert sum(batch_sizes(20, 11)) == 20


@pytest.mark.parametrize("single_pass", [False, True])
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_all_draws_cost_the_zcdp_of_one_gaussian_release_of_the_multiplier(single_pass, relation):
    public = replace(PUBLIC, relation=type(PUBLIC.relation).parse(relation))
    solver = VertexAnytime(single_pass=single_pass).configure(Instance(BALL, public, BUDGET))
    stream = solver.stream(public)
    assert stream.rho() == pytest.approx(0.5 / solver.noise_multiplier**2, rel=1e-7)
    assert accounting.epsilon(solver.event(public), 1e-6, relation) == pytest.approx(1.0, rel=1e-3)
    ranges = stream.range_bounds(stream.participation[0])
    assert ranges[0] == 0.0
    if not single_pass:  # the average of clipped means moves by c C / n whatever the weights
        t = np.arange(solver.steps)
        np.testing.assert_allclose(ranges, ranges[1] * np.sqrt(t), rtol=1e-9)
        assert solver.draws * np.sum(ranges**2) / 8 == pytest.approx(stream.rho(), rel=1e-12)
    else:
        sizes, items = solver.block_sizes(public), solver.steps - 1
        costs = [np.sum(stream.range_bounds((r,)) ** 2) for r in range(items)]
        assert sum(sizes) <= public.n < sum(sizes) + items
        assert min(costs) >= 0.9 * max(costs)


def test_defaults_follow_the_preset():
    whole = VertexAnytime().filled(Instance(BALL, PUBLIC, BUDGET))
    single = VertexAnytime(single_pass=True).filled(Instance(BALL, PUBLIC, BUDGET))
    preset = 0.7 * (10_000 * math.sqrt(0.0243559704) / math.log(100)) ** (2 / 3)
    assert whole.steps == 2 * round(preset)
    assert single.steps == round(preset)
    assert whole.draws == single.draws == 4
    assert VertexAnytime(single_pass=True).filled(Instance(BALL, Public(n=12, d=50), BUDGET)).steps == 7


@pytest.mark.parametrize("single_pass", [False, True])
def test_no_steps_return_the_start_and_one_step_looks_at_nothing(single_pass):
    units = small_units()
    start = np.array([0.1, 0.0, 0.2])
    none = minimize(
        BALL, units, budget=BUDGET, solver=VertexAnytime(steps=0, single_pass=single_pass), start=start
    )
    np.testing.assert_array_equal(none.params, start)
    one = minimize(
        BALL, units, budget=BUDGET, solver=VertexAnytime(steps=1, single_pass=single_pass, draws=1)
    )
    assert one.plan.epsilon == 0.0
    assert any("before any data" in note for note in one.plan.notices)
    assert sorted(np.abs(np.asarray(one.params))) == [0.0, 0.0, 2.0]


def test_a_set_of_one_point_needs_no_draws():
    units = small_units(columns=1)
    solver = VertexAnytime(steps=5)
    result = minimize(Problem(losses.logistic, constraint=Simplex(3.0)), units, budget=BUDGET, solver=solver)
    np.testing.assert_array_equal(result.params, [3.0])
    assert len(result.transcript) == 0
    public = units.public
    configured = solver.configure(Instance(Problem(losses.logistic, constraint=Simplex(3.0)), public, BUDGET))
    assert configured.event(public) == NoEvent()


def test_more_batches_than_pairs_of_units_are_refused():
    with pytest.raises(ValueError, match="take at most 21 steps"):
        minimize(BALL, small_units(), budget=BUDGET, solver=VertexAnytime(single_pass=True, steps=22))


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        (Problem(losses.logistic, constraint=L2Ball(1.0)), "draws vertices of an l1 ball"),
        (Problem(losses.logistic), "draws vertices of an l1 ball"),
        (Problem(losses.logistic, L1(0.1), L1Ball(1.0)), "not smooth"),
        (Problem(losses.logistic, constraint=Polytope(((0.0, 1.0), (1.0, 0.0)))), "Polytope"),
    ],
)
def test_other_problems_are_refused_in_a_sentence(problem, why):
    with pytest.raises(ValueError, match=why):
        minimize(problem, small_units(), budget=BUDGET, solver="vertex-anytime")


@pytest.mark.later("polytope-False")
@pytest.mark.parametrize("single_pass", [False, True])
@pytest.mark.parametrize(
    "constraint",
    [
        L1Ball(2.0),
        Simplex(2.0),
        Polytope(((0.0, 1.0, 0.0), (1.0, 0.0, 0.0), (0.0, -1.0, 2.0))),
        Box(-1.0, 0.5),
    ],
    ids=["ball", "simplex", "polytope", "box"],
)
def test_the_result_is_an_average_of_vertices(constraint, single_pass):
    problem = Problem(losses.logistic, Ridge(0.1), constraint)
    solver = VertexAnytime(single_pass=single_pass, steps=6, draws=2)
    result = minimize(problem, small_units(), budget=BUDGET, solver=solver, random_state=1)
    with double_precision():
        assert bool(constraint.contains(result.params))
    assert result.plan.releases == 7
    assert result.plan.passes == (1.0 if single_pass else 5.0)


@pytest.mark.audit
def test_without_noise_it_comes_near_the_optimum():
    rows, labels = reference_signs(24)
    units = Units.from_arrays(rows, labels, row_bound=2.0, storage="float64")
    best = minimize(BALL, units, budget=Budget(math.inf, 1e-6), solver=VertexAnytime(steps=200))
    finer = minimize(BALL, units, budget=Budget(math.inf, 1e-6), solver="frank-wolfe")
    values = [logistic_loss(rows, labels, one.params) for one in (best, finer)]
    assert values[0] <= values[1] + 2e-3


def test_users_several_outputs_and_balanced_clips():
    rng = np.random.default_rng(2)
    rows, codes = rng.normal(size=(60, 4)), rng.integers(0, 3, size=60)
    units = Units.from_arrays(
        rows, codes.astype(float), row_bound=1.0, groups=np.arange(60) // 3, max_records_per_user=3, n=20
    )
    problem = Problem(losses.softmax(3), constraint=L1Ball(1.5))
    result = minimize(problem, units, budget=BUDGET, solver=VertexAnytime(steps=4), random_state=0)
    assert np.asarray(result.params).shape == (4, 3)
    assert np.sum(np.abs(np.asarray(result.params))) <= 1.5 * (1 + 1e-12)
    balanced = VertexAnytime(steps=4, balanced=True)
    assert minimize(BALL, small_units(), budget=BUDGET, solver=balanced, random_state=0).plan.epsilon <= 1.0
    squared = Problem(losses.squared, constraint=L1Ball(2.0))
    with pytest.raises(ValueError, match="has no balanced clip"):
        minimize(squared, small_units(), budget=BUDGET, solver=balanced)


def test_a_field_for_another_set_is_refused():
    solver = VertexAnytime().configure(Instance(BALL, PUBLIC, BUDGET))
    with pytest.raises(ValueError, match="leave `vertices` open"):
        solver.configure(Instance(Problem(losses.logistic, constraint=L1Ball(3.0)), PUBLIC, BUDGET))


def test_a_pure_epsilon_can_be_spent_and_every_solver_is_planned():
    pure = VertexAnytime().configure(Instance(BALL, PUBLIC, Budget(1.0)))
    assert pure.draws == 1
    assert accounting.epsilon(pure.event(PUBLIC), 0.0, "replace-one") == pytest.approx(1.0, rel=1e-3)
    for name in ("vertex-anytime", "variance-reduced-frank-wolfe", "anytime-mirror-descent"):
        planned = plan(BALL, n=10_000, d=50, epsilon=1.0, delta=1e-6, solver=name)
        assert [one.solver for one in planned.plans] == [name]


def test_a_bound_is_stated_where_it_says_something():
    tiny = Problem(losses.logistic, constraint=L1Ball(0.02))
    found = VertexAnytime(steps=300, draws=1).plan(Instance(tiny, PUBLIC, BUDGET))
    assert found.bound is not None
    assert found.bound.value < math.log(2)
    assert VertexAnytime().plan(Instance(BALL, PUBLIC, BUDGET)).bound is None
