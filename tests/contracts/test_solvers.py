"""The promises of every solver: its result is post-processing, its price is known, no unit moves a query too far."""

from dataclasses import replace

import numpy as np
import pytest
from tests.contracts.cases import (
    BUDGET,
    CASE_ARGUMENTS,
    CASE_PAIRS,
    D,
    N,
    as_units,
    neighbours,
    tagged,
    those,
    toy_arrays,
)

from privopt.curator.audit import Audit
from privopt.curator.dry_run import DryRun
from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.errors import BudgetTooSmall
from privopt.ledger.amounts import Budget
from privopt.ledger.events import leaf_counts
from privopt.ledger.gaussian_dp import gaussian_mu
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.instance import Instance
from privopt.result import Status

NEIGHBOURS = {
    "another row": lambda row: -row,
    "a huge row": lambda row: np.full_like(row, 1e30),
    "a tiny row": lambda row: np.full_like(row, 1e-30),
    "an empty row": np.zeros_like,
    "a row with NaN": lambda row: np.full_like(row, np.nan),
    "an infinite row": lambda row: np.full_like(row, -np.inf),
    "a duplicated row": lambda row: row,
}


def run(case, relation, curator_type=LocalCurator, *units, seed=3, **options):
    """Solve on a fresh ledger that holds the solver's plan; returns the curator and the result."""
    public = units[0].public
    solver = case.solver.configure(Instance(case.problem, public, BUDGET))
    budget = BUDGET if case.solver.noise_multiplier is None else replace(BUDGET, epsilon=1e6)
    ledger = Ledger(budget, relation, plan=solver.event(public))
    curator = curator_type(*units, ledger, noise=NoiseSource(seed), **options)
    return curator, solver, solver.solve(curator, case.problem)


@pytest.fixture(scope="module", params=CASE_PAIRS)
def solved(request):
    case, relation = request.param
    units = as_units(*toy_arrays(case), relation, by_user=case.by_user)
    _curator, solver, result = run(case, relation, LocalCurator, units)
    return case, relation, units.public, solver, result


def test_the_result_is_a_function_of_the_transcript_alone(solved):
    case, _, public, solver, result = solved
    again = solver.solve(Replay(result.transcript, public), case.problem)  # holds no data at all
    assert np.array_equal(again.params, result.params)
    assert again.status is result.status


def test_the_transcript_and_a_dry_run_hold_exactly_the_plan(solved):
    case, _, public, solver, result = solved
    rehearsal = DryRun(public)
    solver.solve(rehearsal, case.problem)
    planned = priced(solver.event(public))
    assert priced(result.transcript.event()) == planned
    assert priced(rehearsal.transcript.event()) == planned
    releases = result.transcript.releases
    assert releases <= solver.releases() if solver.adaptive else releases == solver.releases()


def priced(event):
    """What an event counts, without blocks that release nothing of their own: a transcript has no line for them."""
    counts, parallels = leaf_counts(event)
    branches = [([priced(branch) for branch in node.events], count) for node, count in parallels]
    return counts, [one for one in branches if any(branch != ({}, []) for branch in one[0])]


@pytest.mark.parametrize("kind", NEIGHBOURS)
@pytest.mark.parametrize(("case", "relation"), CASE_ARGUMENTS)
def test_no_unit_moves_a_query_by_more_than_its_sensitivity(case, relation, kind):
    features, targets = toy_arrays(case)
    left, right = neighbours(case, relation, features, targets, NEIGHBOURS[kind](features[3]))
    audit, _, _ = run(case, relation, Audit, left, right)
    assert len(audit.moves) >= 1
    assert max(ratio for _, ratio in audit.moves) <= 1.0


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300, 0.0])
@pytest.mark.parametrize(("case", "relation"), CASE_ARGUMENTS)
def test_hopeless_data_raises_nothing_and_gives_finite_parameters(case, relation, value):
    _, targets = toy_arrays(case)
    units = as_units(np.full((N, D), value), targets, relation, by_user=case.by_user)
    _, _, result = run(case, relation, LocalCurator, units)
    assert np.all(np.isfinite(result.params))
    assert isinstance(result.status, Status)


@pytest.mark.parametrize(("case", "relation"), **those(lambda case: case.solver.noise_multiplier is None))
def test_a_hopeless_budget_warns_and_still_gives_finite_parameters(case, relation):
    """n mu < 1: less than one unit's worth of signal."""
    hopeless = Budget(0.02, 1e-5)
    units = as_units(*toy_arrays(case), relation, by_user=case.by_user)
    assert N * gaussian_mu(hopeless.epsilon, hopeless.delta) < 1.0
    instance = Instance(case.problem, units.public, hopeless)
    try:
        solver = case.solver.configure(instance)
    except BudgetTooSmall:
        assert case.by_user
        return
    ledger = Ledger(hopeless, relation, plan=solver.event(units.public))
    result = solver.solve(LocalCurator(units, ledger, noise=NoiseSource(3)), case.problem)
    assert np.all(np.isfinite(result.params))
    assert 0.999 * hopeless.epsilon <= ledger.epsilon() <= hopeless.epsilon


@pytest.mark.parametrize(("case", "relation"), **those(lambda case: case.still is not None))
def test_zero_steps_return_the_start_and_spend_nothing(case, relation):
    units = as_units(*toy_arrays(case), relation, by_user=case.by_user)
    still = replace(case, solver=replace(case.solver, noise_multiplier=1.0, **case.still))
    _, _solver, result = run(still, relation, LocalCurator, units)
    assert len(result.transcript) == 0
    assert not np.any(np.asarray(result.params))


@pytest.mark.parametrize(
    ("case", "relation"),
    **those(lambda case: case.still is not None and case.solver.noise_multiplier is None),
)
def test_zero_steps_can_be_planned(case, relation):
    units = as_units(*toy_arrays(case), relation, by_user=case.by_user)
    still = replace(case.solver, **case.still).configure(Instance(case.problem, units.public, BUDGET))
    assert still.releases() == 0
    result = still.solve(
        LocalCurator(units, Ledger(BUDGET, relation, plan=still.event(units.public)), noise=NoiseSource(3)),
        case.problem,
    )
    assert len(result.transcript) == 0


@pytest.mark.parametrize(("case", "relation"), **tagged("plain descent"))
def test_no_noise_and_no_clip_equal_a_plain_reference(case, relation):
    features, targets = toy_arrays(case)
    units = as_units(features, targets, relation)
    silent = replace(case, solver=replace(case.solver, clip=np.inf, noise_multiplier=0.0))
    solver = silent.solver.configure(Instance(case.problem, units.public, replace(BUDGET, epsilon=np.inf)))
    ledger = Ledger(replace(BUDGET, epsilon=np.inf), relation, plan=solver.event(units.public))
    result = solver.solve(LocalCurator(units, ledger, noise=NoiseSource(3)), case.problem)
    expected = plain_descent(solver, case.problem, units)
    np.testing.assert_allclose(result.params, expected, rtol=1e-9, atol=1e-12)


def plain_descent(solver, problem, units):
    """Algorithm 4 with momentum and averaging, in NumPy, written from the paper."""
    rows, targets = np.asarray(units.private_features, np.float64), units.private_targets
    x = previous = np.zeros(D)
    visited = []
    for _ in range(solver.steps):
        u = x + solver.momentum * (x - previous)
        gradient = rows.T @ _slope(problem.loss, rows @ u, targets) / N
        step = u - solver.step_size * (gradient + _ridge(problem) * u)
        previous, x = x, _project(problem, _soft(step, solver.step_size * _lasso(problem)))
        visited.append(x)
    if solver.returns == "last":
        return x
    weights = (np.arange(solver.steps) + 1.0) ** 2
    if solver.returns == "tail":
        weights = (np.arange(solver.steps) >= solver.steps - -(-solver.steps // 2)).astype(float)
    return np.average(visited, axis=0, weights=weights)


def _slope(loss, predictions, targets):
    if loss.name == "logistic":
        return -targets / (1.0 + np.exp(targets * predictions))
    residual = predictions - targets
    return np.clip(residual, -0.5, 0.5) if loss.name == "huber" else residual


def _ridge(problem):
    return problem.regulariser.strong_convexity


def _lasso(problem):
    return 0.0 if problem.regulariser.is_smooth else 0.02


def _soft(vector, threshold):
    return np.sign(vector) * np.maximum(np.abs(vector) - threshold, 0.0)


def _project(problem, vector):
    radius = getattr(problem.constraint, "radius", np.inf)
    return vector * min(1.0, radius / max(np.linalg.norm(vector), 1e-300))
