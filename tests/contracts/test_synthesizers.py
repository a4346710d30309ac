"""The promises of every synthesizer: post-processing, a known price, and no unit that moves a query too far."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from tests.contracts.synthesis_cases import (
    BUDGET,
    EVERY_SYNTHESIZER,
    IDS,
    LEVELS,
    SYNTHESES,
    as_units,
    neighbours,
    toy_codes,
)

from privopt.curator.audit import Audit
from privopt.curator.dry_run import DryRun
from privopt.curator.local import LocalCurator
from privopt.curator.replay import Replay
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Task
from privopt.synthesis.query_game import QueryGame
from privopt.synthesis.query_game_ml import QueryGameML
from privopt.synthesis.registry import SYNTHESIZERS
from privopt.testing.solvers import priced

ROWS = {
    "another row": lambda row: (row + 1) % 2,
    "a huge row": lambda row: np.full_like(row, 1e300),
    "a row with NaN": lambda row: np.full_like(row, np.nan),
    "undeclared values": lambda row: row + 0.5,
}


def run(case, relation, curator_type, *units, seed=3):
    """Model a table on a fresh ledger that holds the program's plan."""
    public = units[0].public
    program = case.synthesizer.configure(Task(case.workload, public, BUDGET))
    curator = curator_type(
        *units, Ledger(BUDGET, relation, plan=program.event(public)), noise=NoiseSource(seed)
    )
    return curator, program, program.solve(curator, case.workload)


@pytest.fixture(scope="module", params=SYNTHESES, ids=IDS)
def solved(request):
    case, relation = request.param
    units = as_units(case, toy_codes(), relation)
    _, program, result = run(case, relation, LocalCurator, units)
    return case, units.public, program, result


def test_the_result_is_a_function_of_the_transcript_alone(solved):
    case, public, program, result = solved
    again = program.solve(Replay(result.transcript, public), case.workload)
    for mine, theirs in zip(jax.tree.leaves(again.params), jax.tree.leaves(result.params), strict=True):
        assert np.array_equal(mine, theirs)


def test_the_transcript_and_a_dry_run_hold_exactly_the_plan(solved):
    case, public, program, result = solved
    assert result.transcript.epsilon(BUDGET.delta) <= BUDGET.epsilon
    if program.adaptive:
        assert result.transcript.releases <= program.releases()
        return
    rehearsal = DryRun(public)
    program.solve(rehearsal, case.workload)
    planned = priced(program.event(public))
    assert priced(result.transcript.event()) == planned
    assert priced(rehearsal.transcript.event()) == planned
    assert result.transcript.releases == program.releases()


def test_the_model_answers_and_samples(solved):
    case, _, _, result = solved
    model = result.params
    answers = model.answers(case.workload)
    assert np.all((answers >= -1e-12) & (answers <= 1 + 1e-9))
    assert model.marginal((1,)).sum() == pytest.approx(1.0)
    rows = model.sample(50, np.random.default_rng(0))
    assert rows.shape == (50, len(LEVELS))
    assert np.all((rows >= 0) & (rows < LEVELS))


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize(("case", "relation"), SYNTHESES, ids=IDS)
def test_no_unit_moves_a_query_by_more_than_its_sensitivity(case, relation, kind):
    codes = toy_codes()
    left, right = neighbours(case, relation, codes, ROWS[kind](codes[3]))
    audit, _, _ = run(case, relation, Audit, left, right)
    assert len(audit.moves) >= 1
    assert max(ratio for _, ratio in audit.moves) <= 1.0


@pytest.mark.parametrize("value", [np.nan, 1e300, 0.0])
@pytest.mark.parametrize(("case", "relation"), SYNTHESES, ids=IDS)
def test_hopeless_data_raises_nothing_and_gives_a_model(case, relation, value):
    units = as_units(case, np.full_like(toy_codes(), value), relation)
    _, _, result = run(case, relation, LocalCurator, units)
    assert np.all(np.isfinite(result.params.answers(case.workload)))


@pytest.mark.parametrize("case", EVERY_SYNTHESIZER, ids=[case.name for case in EVERY_SYNTHESIZER])
def test_plans_stay_within_any_budget(case):
    public = as_units(case, toy_codes(), "replace-one").public
    for epsilon in (0.01, 1.0, 50.0):
        plan = case.synthesizer.plan(Task(case.workload, public, Budget(epsilon, 1e-5)))
        assert 0.998 * epsilon <= plan.epsilon <= epsilon
        assert str(plan)


@pytest.mark.parametrize("case", EVERY_SYNTHESIZER, ids=[case.name for case in EVERY_SYNTHESIZER])
def test_without_privacy_there_is_a_model_too(case):
    units = as_units(case, toy_codes(), "replace-one")
    free = Budget(np.inf, 1e-5)
    task = Task(case.workload, units.public, free)
    if isinstance(case.synthesizer, QueryGame | QueryGameML):
        with pytest.raises(ValueError, match="without privacy use another method"):
            case.synthesizer.configure(task)
        return
    program = case.synthesizer.configure(task)
    ledger = Ledger(free, "replace-one", plan=program.event(units.public))
    result = program.solve(LocalCurator(units, ledger, noise=NoiseSource(3)), case.workload)
    assert np.all(np.isfinite(result.params.answers(case.workload)))


STILL = [case for case in EVERY_SYNTHESIZER if case.still is not None]


@pytest.mark.parametrize("case", STILL, ids=[case.name for case in STILL])
def test_no_rounds_release_nothing(case):
    units = as_units(case, toy_codes(), "replace-one")
    still = replace(case, synthesizer=replace(case.synthesizer, **case.still))
    _, program, result = run(still, "replace-one", LocalCurator, units)
    assert program.releases() == 0
    assert len(result.transcript) == 0


def test_every_synthesizer_is_in_the_list():
    named = {type(case.synthesizer) for case in EVERY_SYNTHESIZER}
    assert {type(make()) for make in SYNTHESIZERS.values()} == named
