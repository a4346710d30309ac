"""The promises of every solver of games: post-processing, a known price, and no unit that moves a query too far."""

import jax.numpy as jnp
import numpy as np
import pytest
from tests.contracts.game_cases import EVERY_GAME, GAME_PAIRS, GAMES, as_units, neighbours, toy_rows

from privopt.curator.audit import Audit
from privopt.curator.dry_run import DryRun
from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.games.registry import GAME_SOLVERS
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Task
from privopt.problems.vertices import set_of
from privopt.testing.solvers import priced

NEIGHBOURS = {
    "another row": lambda row: -row,
    "a huge row": lambda row: np.full_like(row, 1e30),
    "a row with NaN": lambda row: np.full_like(row, np.nan),
}


def run(case, relation, curator_type, *units, seed=3):
    """Play on a fresh ledger that holds the solver's plan."""
    public = units[0].public
    solver = case.solver.configure(Task(case.game, public, case.budget))
    ledger = Ledger(case.budget, relation, plan=solver.event(public))
    curator = curator_type(*units, ledger, noise=NoiseSource(seed))
    return curator, solver, solver.solve(curator, case.game)


@pytest.fixture(scope="module", params=GAME_PAIRS)
def solved(request):
    case, relation = request.param
    units = as_units(case, *toy_rows(case), relation)
    _, solver, result = run(case, relation, LocalCurator, units)
    return case, relation, units.public, solver, result


def test_the_result_is_a_function_of_the_transcript_alone(solved):
    case, _, public, solver, result = solved
    again = solver.solve(Replay(result.transcript, public), case.game)
    for mine, theirs in zip(again.params, result.params, strict=True):
        assert np.array_equal(mine, theirs)


def test_the_transcript_and_a_dry_run_hold_exactly_the_plan(solved):
    case, _, public, solver, result = solved
    rehearsal = DryRun(public)
    solver.solve(rehearsal, case.game)
    planned = priced(solver.event(public))
    assert priced(result.transcript.event()) == planned
    assert priced(rehearsal.transcript.event()) == planned
    assert result.transcript.releases == solver.releases()
    assert result.transcript.epsilon(case.budget.delta) <= case.budget.epsilon


def test_strategies_lie_in_their_sets(solved):
    case, _, _, _, result = solved
    for who, strategy in zip(("x", "y"), result.params, strict=True):
        vertices = case.game.players[who].vertices
        if f"{who}_vertices" not in result.findings:
            assert bool(set_of(vertices).contains(jnp.asarray(strategy)))
            continue
        mixed = np.zeros(vertices.count)
        mixed[result.findings[f"{who}_vertices"].value] = result.findings[f"{who}_weights"].value
        assert np.min(mixed) >= 0.0
        assert np.sum(mixed) == pytest.approx(1.0, abs=1e-12)
        np.testing.assert_allclose(vertices.mix(mixed), strategy, atol=1e-12)


@pytest.mark.parametrize("kind", NEIGHBOURS)
@pytest.mark.parametrize(("case", "relation"), GAMES)
def test_no_unit_moves_a_query_by_more_than_its_sensitivity(case, relation, kind):
    features, targets = toy_rows(case)
    left, right = neighbours(case, relation, features, targets, NEIGHBOURS[kind](features[3]))
    audit, _, _ = run(case, relation, Audit, left, right)
    assert len(audit.moves) >= 1
    assert max(ratio for _, ratio in audit.moves) <= 1.0


@pytest.mark.parametrize("value", [np.nan, 1e300])
@pytest.mark.parametrize(("case", "relation"), GAMES)
def test_hopeless_data_raises_nothing_and_gives_finite_strategies(case, relation, value):
    features, targets = toy_rows(case)
    units = as_units(case, np.full_like(features, value), targets, relation)
    _, _, result = run(case, relation, LocalCurator, units)
    assert all(np.all(np.isfinite(part)) for part in result.params)


@pytest.mark.parametrize("case", EVERY_GAME, ids=[case.name for case in EVERY_GAME])
def test_a_larger_budget_is_never_overspent(case):
    units = as_units(case, *toy_rows(case), "replace-one")
    for epsilon in (0.01, 1.0, 50.0):
        budget = Budget(epsilon, case.budget.delta)
        plan = case.solver.plan(Task(case.game, units.public, budget))
        assert plan.epsilon <= epsilon
        if plan.epsilon < 0.999 * epsilon:
            assert any("An account pays for the plan only" in notice for notice in plan.notices)


def test_every_solver_of_games_is_in_the_list():
    named = {type(case.solver) for case in EVERY_GAME}
    assert {type(make()) for make in GAME_SOLVERS.values()} <= named
