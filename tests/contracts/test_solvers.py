"""The promises of every solver: its result is post-processing, its price is known, no unit moves a query too far."""

from dataclasses import replace

import numpy as np
import pytest
from tests.contracts.cases import (
    AT_ONCE,
    BUDGET,
    CASE_PAIRS,
    CASES,
    D,
    N,
    as_units,
    tagged,
    those,
    toy_arrays,
)

from privopt.curator.local import LocalCurator
from privopt.errors import BudgetTooSmall
from privopt.ledger.amounts import Budget
from privopt.ledger.curves import gaussian_mu
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.public import Relation
from privopt.solvers import program
from privopt.testing.solvers import SolverTrial
from privopt.testing.toy_data import ToyData


def run(case, relation, curator_type=LocalCurator, *units, seed=3, **options):
    """Solve on a fresh ledger that holds the solver's plan; returns the curator and the result."""
    public = units[0].public
    solver = case.solver.configure(Instance(case.problem, public, BUDGET))
    budget = BUDGET if case.solver.noise_multiplier is None else replace(BUDGET, epsilon=1e6)
    ledger = Ledger(budget, relation, plan=solver.event(public))
    curator = curator_type(*units, ledger, noise=NoiseSource(seed), **options)
    return curator, solver, solver.solve(curator, case.problem)


def parts_of(solver):
    """The class of a solver, and of those that it runs inside."""
    inner = getattr(solver, "inner", None)
    return (type(solver), *(parts_of(inner) if inner is not None else ()))


def test_every_solver_is_tried_by_default_and_for_users_where_it_is_tried_for_users():
    """The default run leaves out cases, no solver: all three laws hold for each, alone and inside of each other one."""
    everything = {(parts_of(case.solver), case.by_user) for case, _ in CASES}
    assert {(parts_of(case.solver), case.by_user) for case, _ in AT_ONCE} == everything
    for relation in ("replace-one", "add-or-remove-one"):
        assert sum(which == relation for _, which in AT_ONCE) > len(AT_ONCE) // 3


@pytest.fixture(scope="module", params=CASE_PAIRS)
def trial(request):
    """A case, as `check_solver` tries it: run once, and then promise by promise."""
    case, relation = request.param
    data = ToyData(
        problem=case.problem,
        relation=Relation.parse(relation),
        records=N,
        columns=D,
        by_user=case.by_user,
    )
    with double_precision():
        tried = SolverTrial(case.solver, data, BUDGET, f"{case.name}, {relation}")
        assert tried.result is not None
        yield tried


@pytest.mark.audit
@pytest.mark.parametrize(
    ("case", "relation"),
    [pair for pair in CASES if pair[0].solver.steps_in_numpy(pair[0].problem) and not pair[0].by_user],
    ids=lambda part: getattr(part, "name", part),
)
def test_what_runs_in_numpy_keeps_every_promise_by_kernels_as_well(case, relation, monkeypatch):
    """The rows of a case are few: without a limit of 0 no kernel would sum them."""
    monkeypatch.setattr(program, "ROW_PASSES", 0.0)
    data = ToyData(
        problem=case.problem, relation=Relation.parse(relation), records=N, columns=D, by_user=False
    )
    with double_precision():
        tried = SolverTrial(case.solver, data, BUDGET, case.name)
        tried.require_repeatable()
        tried.require_control()
        tried.require_plan()
        assert tried.require_sensitivities() >= 1
        tried.require_ordinary_ending()


@pytest.mark.later(
    "single-pass o2nc, changes by lunes, own loss, add-or-remove-one",
)
def test_the_result_is_a_function_of_the_transcript_alone(trial):
    trial.require_repeatable()


def test_on_other_data_the_same_answers_lead_to_the_same_requests_and_the_same_end(trial):
    trial.require_control()


def test_the_transcript_and_a_dry_run_hold_exactly_the_plan(trial):
    trial.require_plan()


@pytest.mark.later(
    "o2nc with a private clip, black box, users, add-or-remove-one", "o2nc, black box, replace-one"
)
def test_no_unit_moves_a_query_by_more_than_its_sensitivity(trial):
    assert trial.require_sensitivities() >= 1


@pytest.mark.later(
    "strongly convex stages, add-or-remove-one", "strongly convex stages, all units, replace-one"
)
def test_hopeless_data_raises_nothing_and_gives_finite_parameters(trial):
    trial.require_ordinary_ending()


def test_no_solver_names_anything_private(trial):
    trial.require_names()


@pytest.mark.later(
    "randomized smoothing, median, replace-one",
    "randomized smoothing, own loss, sampled, add-or-remove-one",
    "svrg, add-or-remove-one",
    "svrg, whitened, add-or-remove-one",
)
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
