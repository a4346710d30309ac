"""What minimisers by drawn vertices leave on generated sparse rows: their order, and sizes to expect."""

import warnings

import numpy as np
import pytest
from benchmarks.sparse_data import generated

from privopt.ledger.amounts import Budget
from privopt.papers.anytime_mirror_descent import AnytimeMirrorDescent
from privopt.papers.variance_reduced_frank_wolfe import VarianceReducedFrankWolfe
from privopt.solve import minimize
from privopt.solvers.vertices import VertexAnytime

pytestmark = pytest.mark.audit
SEEDS = 4


@pytest.fixture(scope="module")
def rows():
    return generated(20_000, 500, seed=1)


def test_loss(rows, solver, epsilon):
    units, found = rows.units(), []
    for seed in range(SEEDS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = minimize(
                rows.problem, units, budget=Budget(epsilon, 1e-6), solver=solver, random_state=seed
            )
        found.append(rows.test_loss(np.asarray(result.params)))
    return float(np.mean(found))


test_loss.__test__ = False


@pytest.mark.parametrize("epsilon", [0.5, 1.0])
def test_one_pass_of_vertex_anytime_beats_what_it_replaces(rows, epsilon):
    entry = rows.entry_bound
    one_pass = test_loss(rows, VertexAnytime(entry_bound=entry, single_pass=True), epsilon)
    trees = test_loss(rows, VarianceReducedFrankWolfe(entry_bound=entry), epsilon)
    paper = test_loss(rows, AnytimeMirrorDescent(entry_bound=entry), epsilon)
    whole = test_loss(rows, VertexAnytime(entry_bound=entry), epsilon)
    assert whole <= one_pass < trees < paper
    assert one_pass < 0.58
    assert whole < 0.56


def test_a_record_is_worth_more_where_there_are_more_of_them():
    entry = 500**-0.5
    losses = [
        test_loss(generated(n, 500, seed=2), VertexAnytime(entry_bound=entry), 1.0) for n in (2_500, 20_000)
    ]
    excess = [loss - 0.541 for loss in losses]
    assert excess[1] < 0.5 * excess[0]
