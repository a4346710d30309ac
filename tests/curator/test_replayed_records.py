"""A replay of a compiled loop does without the records: as many absent ones, or one in place of very many."""

import numpy as np
import pytest

from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.data.units import Units
from privopt.engine.compiled_loops import traced_shapes
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.instance import Instance
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.public import Public
from privopt.solvers.stochastic_gradient_descent import StochasticGradientDescent


@pytest.mark.parametrize("rows", [1, 4_800])
def test_a_replay_is_the_same_to_the_bit_however_many_absent_records_it_has(rows, monkeypatch):
    rng = np.random.default_rng(0)
    units = Units.from_arrays(rng.normal(size=(4_800, 3)), rng.normal(size=4_800), row_bound=1.0)
    problem, budget = Problem(losses.squared, Ridge(0.1)), Budget(1.0, 1e-4)
    if rows == 1:
        monkeypatch.setattr("privopt.engine.compiled_loops._REPLAYED_ENTRIES", 0)
    assert len(traced_shapes(units.public).private_features) == rows
    made = StochasticGradientDescent(rate=0.02, steps=30)
    solver = made.configure(Instance(problem, units.public, budget))
    ledger = Ledger(budget, units.public.relation, plan=solver.event(units.public))
    result = solver.solve(LocalCurator(units, ledger, noise=NoiseSource(1)), problem)
    again = solver.solve(Replay(result.transcript, units.public), problem)
    np.testing.assert_array_equal(again.params, result.params)


def test_the_records_of_a_replay_take_no_more_for_more_units():
    assert traced_shapes(Public(n=10**9, d=100)).private_features.shape == (1, 100)
