from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest
from tests.reference.promises import (
    assert_costs,
    assert_rehearses,
    assert_replays,
    assert_tight,
    hostile_rows,
    largest_move,
    solve,
)
from tests.reference.staged_descent import StagedDescent
from tests.support.formula_noise import FormulaNoise, cosines
from tests.support.plain_logistic import PlainLogistic
from tests.support.reference_rows import reference_arrays

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.errors import BudgetExceeded, PlanMismatch
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.solvers.gradient_descent import GradientDescent

N, D = 8, 3
PROBLEM = Problem(PlainLogistic(), Ridge(0.1))
STAGE = GradientDescent(steps=2, step_size=2.0, clip=1.0, momentum=0.0, returns="last", noise_multiplier=0.4)
SOLVER = StagedDescent(stages=(STAGE, replace(STAGE, steps=3)))
FILTER = {"composition": "gaussian", "budget": Budget(500.0, 1e-5)}


def as_units(rows, targets):
    return Units.from_arrays(rows, targets, row_bound=1.0)


def program(solver):
    return lambda curator: solver.solve(curator, PROBLEM, jnp.zeros(D, jnp.float64))


@pytest.mark.parametrize("shares", [None, (0.4, 0.6)], ids=["plan", "filter"])
def test_two_stages_are_one_descent_and_have_its_reference_value(shares):
    """Five steps, the k-th release with noise 0.1 cos(1 + k + 0.7 j)."""
    units, solver = as_units(*reference_arrays()), replace(SOLVER, shares=shares)
    options = {"plan": SOLVER.event(units.public)} if shares is None else FILTER
    noise = FormulaNoise(cosines)
    result = solve(program(solver), units, noise=noise, **options)
    # The rows are stored in float32.
    np.testing.assert_allclose(result.params, [0.0044201432, -0.3333645686, -0.5143627149], atol=3e-7)


def test_replay_and_price():
    units = as_units(*reference_arrays())
    plan = SOLVER.event(units.public)
    result = solve(program(SOLVER), units, plan=plan)
    assert_replays(program(SOLVER), result, units.public)
    assert_replays(program(SOLVER), result, units.public, Ledger(Budget(1e6, 1e-5), "replace-one", plan=plan))
    assert_costs(result, plan, units.public)
    assert_rehearses(program(SOLVER), plan, units.public)


def test_a_stage_gets_its_share_of_a_filter_and_no_more():
    units = as_units(*reference_arrays())
    ledger = Ledger(Budget(500.0, 1e-5), "replace-one", composition="gaussian")
    cost = 5 / (2 * 0.4**2)
    exact = replace(SOLVER, shares=(2.001 / (2 * 0.4**2) / ledger.remaining, 0.5))
    program(exact)(LocalCurator(units, ledger, noise=NoiseSource(1)))
    assert ledger.spent == pytest.approx(cost)
    with pytest.raises(BudgetExceeded, match="would cost rho"):
        solve(program(replace(exact, shares=(0.5 * exact.shares[0], 0.5))), units, **FILTER)


def test_a_stage_gets_its_piece_of_the_plan_and_no_more():
    units = as_units(*reference_arrays())
    curator = LocalCurator(units, Ledger(Budget(1e6, 1e-5), "replace-one", plan=SOLVER.event(units.public)))
    lent = curator.allot("short", plan=STAGE.event(units.public))
    with pytest.raises(PlanMismatch, match="left"):
        replace(STAGE, steps=3).solve(lent, PROBLEM)


@pytest.mark.parametrize("kind", hostile_rows(np.ones(D)))
def test_no_record_moves_a_gradient_by_more_than_its_sensitivity(kind):
    rows, targets = reference_arrays()
    other = rows.copy()
    other[3] = hostile_rows(other[5])[kind]
    left, right = as_units(rows, targets), as_units(other, targets)
    assert largest_move(program(SOLVER), left, right, plan=SOLVER.event(left.public)) <= 1.0


def test_the_audit_notices_an_understated_sensitivity_inside_a_stage():
    clipped = replace(SOLVER, stages=tuple(replace(stage, clip=0.2) for stage in SOLVER.stages))
    rows = np.tile([0.6, 0.0, 0.8], (N, 1))
    other = rows.copy()
    other[2] *= -1.0
    left, right = (as_units(x, np.ones(N)) for x in (rows, other))
    assert_tight(program(clipped), left, right, plan=clipped.event(left.public))
