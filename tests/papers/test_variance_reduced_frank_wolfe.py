"""Variance-reduced Frank-Wolfe: its trees, a reference value, and the price of a unit by its place."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
from tests.support.sparse_rows import InOrder, reference_signs

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger import accounting
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.papers.variance_reduced_frank_wolfe import (
    VarianceReducedFrankWolfe,
    largest_batch,
    looks,
    smallest_batch,
    units_needed,
)
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.constraints import L1Ball, L2Ball, Simplex
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.public import Public
from privopt.solve import minimize

BUDGET = Budget(1.0, 1e-6)
BALL = Problem(losses.logistic, constraint=L1Ball(6.0))
PUBLIC = Public(n=10_000, d=50)


@dataclass(frozen=True, kw_only=True)
class Doubled(VarianceReducedFrankWolfe):
    """Looks at twice as many units: blocks of one unit are refused, and every row is there twice."""

    def looks(self):
        return [replace(look, size=2 * look.size) for look in super().looks()]


def test_reference_value_of_the_best_vertices():
    rows, labels = (np.repeat(one, 2, axis=0) for one in reference_signs(32))
    units = Units.from_arrays(rows, labels, row_bound=2.0, storage="float64")
    solver = Doubled(trees=3, root_batch=4, clip=math.inf, noise_multiplier=0.0)
    solver = replace(solver, vertices=_vertices(units.public), penalty_bound=0.0)
    free = Budget(math.inf, 1e-6)
    ledger = Ledger(free, "replace-one", plan=solver.event(units.public))
    result = solver.solve(LocalCurator(units, ledger, noise=InOrder(0)), BALL)
    np.testing.assert_allclose(result.params, [2.042424242424, -1.472727272727, -2.339393939394], atol=1e-8)
    assert units_needed(3, 4) == 26


def _vertices(public):
    return VarianceReducedFrankWolfe().filled(Instance(BALL, Public(n=1000, d=public.d), BUDGET)).vertices


def by_recursion(tree, batch):
    """Nodes that look, in the order of a visit written as the paper has it: (level, size, leaves below)."""
    visited, above, leaves = [], [], []

    def visit(level, fresh):
        if fresh:
            visited.append((level, math.ceil(batch / 2**level)))
            above.append(len(visited) - 1)
        if level == tree:
            leaves.append(tuple(above))
        else:
            visit(level + 1, False)
            visit(level + 1, True)
        if fresh:
            above.pop()

    visit(0, True)
    return visited, leaves


@pytest.mark.parametrize("batch", [5, 8, 33])
@pytest.mark.parametrize("tree", [1, 2, 3, 4])
def test_looks_are_those_of_a_depth_first_visit(tree, batch):
    visited, leaves = by_recursion(tree, batch)
    found = [look for look in looks(tree, batch, 1.0) if look.tree == tree]
    assert [(look.level, look.size) for look in found] == visited
    assert [look.chain for look in found] == leaves
    below = [sum(number in chain for chain in leaves) for number in range(len(visited))]
    assert [look.leaves for look in found] == below
    assert sum(look.size for look in looks(tree, batch, 1.0)) == units_needed(tree, batch)
    assert found[0].share == 2.0 / (2 ** (tree - 1) + 1)


@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
@pytest.mark.parametrize("trees", [1, 2, 4])
def test_the_price_is_that_of_the_dearest_place_and_roots_are_the_dearest(trees, relation):
    public = replace(PUBLIC, relation=type(PUBLIC.relation).parse(relation))
    solver = VarianceReducedFrankWolfe(trees=trees, noise_multiplier=3.0).filled(
        Instance(BALL, public, BUDGET)
    )
    stream, found = solver.stream(public), solver.looks()
    factor, clip, batch = public.relation.factor, solver.clip, solver.root_batch
    for tree in range(1, trees + 1):
        # eta_t from its closed form, 2^t (eta c C / b)^2 / 8 = rho, then every level by hand
        eta = math.sqrt(8.0 * (0.5 / 9.0) / 2.0**tree) * batch / (factor * clip)
        for index, look in enumerate(found):
            if look.tree == tree:
                by_hand = look.leaves * (eta * factor * look.clip / look.size) ** 2 / 8.0
                ranges = stream.range_bounds((index,))
                assert np.sum(ranges**2) / 8.0 == pytest.approx(by_hand, rel=1e-6)
                assert by_hand <= 0.5 / 9.0 * (1.0 + 1e-12)
                assert (look.level == 0) <= (by_hand >= 0.5 / 9.0 * (1.0 - 1e-12))
    assert stream.rho() == pytest.approx(0.5 / 9.0, rel=1e-9)


def test_the_plan_spends_the_budget_and_looks_at_every_unit_once_at_most():
    solver = VarianceReducedFrankWolfe().configure(Instance(BALL, PUBLIC, BUDGET))
    assert 2 <= solver.trees <= 5
    assert accounting.epsilon(solver.event(PUBLIC), 1e-6, "replace-one") == pytest.approx(1.0, rel=1e-3)
    used = units_needed(solver.trees, solver.root_batch)
    assert 0.99 * PUBLIC.n <= used <= PUBLIC.n < units_needed(solver.trees, solver.root_batch + 1)
    assert solver.releases() == sum(2**t for t in range(1, solver.trees + 1)) + 1
    assert solver.passes() == 1.0


def test_too_few_units_are_refused():
    assert largest_batch(19, 2) < smallest_batch(2) == 5
    assert largest_batch(20, 2) == 5
    rng = np.random.default_rng(0)
    few = Units.from_arrays(rng.normal(size=(19, 3)), np.sign(rng.normal(size=19)), row_bound=1.0)
    with pytest.raises(ValueError, match="look at 20 units, and there are n = 19: take fewer trees"):
        minimize(BALL, few, budget=BUDGET, solver="variance-reduced-frank-wolfe")
    one = VarianceReducedFrankWolfe(trees=1)
    assert minimize(BALL, few, budget=BUDGET, solver=one, random_state=0).plan.epsilon <= 1.0
    with pytest.raises(ValueError, match="root_batch must be at least 9 for 3 trees"):
        minimize(BALL, few, budget=BUDGET, solver=VarianceReducedFrankWolfe(trees=3, root_batch=4))


def test_other_sets_are_refused_and_odd_ones_return_their_points():
    rng = np.random.default_rng(0)
    units = Units.from_arrays(rng.normal(size=(60, 1)), np.sign(rng.normal(size=60)), row_bound=1.0)
    with pytest.raises(ValueError, match="draws vertices of an l1 ball"):
        minimize(
            Problem(losses.logistic, constraint=L2Ball(1.0)),
            units,
            budget=BUDGET,
            solver="variance-reduced-frank-wolfe",
        )
    point = Problem(losses.logistic, constraint=Simplex(3.0))
    still = minimize(point, units, budget=BUDGET, solver="variance-reduced-frank-wolfe")
    np.testing.assert_array_equal(still.params, [3.0])
    assert len(still.transcript) == 0
    none = minimize(BALL, units, budget=BUDGET, solver=VarianceReducedFrankWolfe(trees=0))
    np.testing.assert_array_equal(none.params, [0.0])
    ridged = Problem(losses.logistic, Ridge(0.3), L1Ball(2.0))
    ended = minimize(ridged, units, budget=BUDGET, solver=VarianceReducedFrankWolfe(trees=2), random_state=3)
    assert np.sum(np.abs(np.asarray(ended.params))) <= 2.0 * (1 + 1e-12)
