import numpy as np
import pytest
from tests.reference.promises import (
    NO_PRIVACY,
    assert_costs,
    assert_rehearses,
    assert_replays,
    assert_tight,
    hostile_rows,
    largest_move,
    solve,
)
from tests.reference.sampled_dual_averaging import MeanDualAveraging, SampledDualAveraging

from privopt.data.blocks import block_assignment
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.calibration import calibrate
from privopt.mechanisms.noise import NoiseSource
from privopt.public import Relation

ROWS, COLUMNS, N = 3, 4, 12
SETTINGS = {"rows": ROWS, "steps": 5, "scale": 2.0, "clip": 1.0}
FULL = SampledDualAveraging(draws=3, **SETTINGS)
ONE_PASS = SampledDualAveraging(draws=3, batches=(3, 3, 3, 3), **SETTINGS)


def game(n=N):
    i, j = np.arange(n)[:, None], np.arange(COLUMNS)[None, :]
    return np.concatenate([np.sin(i + 2 * j[:, :ROWS] + 1), np.cos(2 * i + j + 1)], axis=1)


def as_units(records, relation="replace-one", n=N):
    return Units.from_arrays(records, relation=relation, row_bound=3.0, n=n)


@pytest.mark.audit
def test_full_batches_with_draws_replaced_by_their_means_have_their_reference_values():
    solver = MeanDualAveraging(draws=1, **SETTINGS)
    units = as_units(game())
    result = solve(solver.solve, units, plan=solver.event(units.public), budget=NO_PRIVACY)
    x, y = (np.asarray(part) for part in result.params)
    # The records are stored in float32, the reference was computed on float64 records.
    np.testing.assert_allclose(x, [0.338710049804, 0.343771531165, 0.317518419031], atol=3e-8)
    np.testing.assert_allclose(y, [0.248403920575, 0.248394265193, 0.250465527229, 0.252736287003], atol=3e-8)
    payoff = game()[:, :ROWS].T @ game()[:, ROWS:] / N
    assert np.max(x @ payoff) - np.min(payoff @ y) == pytest.approx(0.013687236976, abs=3e-8)


@pytest.mark.audit
def test_plays_and_outputs_lie_on_the_simplex():
    result = solve(FULL.solve, as_units(game()), plan=FULL.event(as_units(game()).public))
    for part in result.params:
        assert np.sum(part) == pytest.approx(1.0, abs=1e-12)
        assert np.min(part) >= 0.0


@pytest.mark.later("add-or-remove-one-full batch", "replace-one-one pass", "replace-one-full batch")
@pytest.mark.parametrize("solver", [FULL, ONE_PASS], ids=["full batch", "one pass"])
@pytest.mark.parametrize("relation", ["replace-one", "add-or-remove-one"])
def test_replay_and_price(solver, relation):
    units = as_units(game(), relation)
    plan = solver.event(units.public)
    result = solve(solver.solve, units, plan=plan)
    assert_replays(solver.solve, result, units.public)
    assert_costs(result, plan, units.public)
    assert_rehearses(solver.solve, plan, units.public)


def test_the_noise_scale_is_calibrated_from_the_plan():
    budget, public = Budget(1.0, 1e-6), as_units(game()).public

    def cooled(temperature):
        return SampledDualAveraging(draws=3, **{**SETTINGS, "scale": 1.0 / temperature})

    solver = cooled(calibrate(lambda z: cooled(z).event(public), budget, public.relation))
    result = solve(solver.solve, as_units(game()), plan=solver.event(public), budget=budget)
    assert 0.999 <= result.transcript.epsilon(1e-6) <= 1.0


@pytest.mark.later(
    "full batch-turned",
    "one pass-empty",
    "one pass-huge",
    "one pass-infinite",
    "one pass-not a number",
    "one pass-tiny",
)
@pytest.mark.parametrize("kind", hostile_rows(game()[0]))
@pytest.mark.parametrize("solver", [FULL, ONE_PASS], ids=["full batch", "one pass"])
def test_no_record_moves_a_score_by_more_than_its_range(solver, kind):
    other = game()
    other[7] = hostile_rows(other[3])[kind]
    left, right = as_units(game()), as_units(other)
    assert largest_move(solver.solve, left, right, plan=solver.event(left.public)) <= 1.0


@pytest.mark.later("full batch-Relation.ADD_OR_REMOVE_ONE", "one pass-Relation.REPLACE_ONE")
@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("solver", [FULL, ONE_PASS], ids=["full batch", "one pass"])
def test_the_audit_notices_an_understated_range(solver, relation):
    """Every record pulls the scores apart as far as it may; one that is in a batch is turned, or not there."""
    records = np.tile([1.0, -1.0, 1.0, 1.0, 1.0, 1.0, 1.0], (N, 1))
    left = as_units(records, relation)
    places, _ = block_assignment(
        left.public, solver.batches or 1, NoiseSource(3).units_generator, private_count=left.private_count
    )[0]
    other = records.copy()
    other[places.within(0, N)[0], :ROWS] *= -1.0 if relation is Relation.REPLACE_ONE else np.nan
    assert_tight(solver.solve, left, as_units(other, relation), plan=solver.event(left.public))
