"""The promises of every synthesizer: post-processing, a known price, and no unit that moves a query too far."""

from dataclasses import replace

import numpy as np
import pytest
from tests.contracts.synthesis_cases import (
    BUDGET,
    EVERY_SYNTHESIZER,
    IDS,
    SYNTHESES,
    N,
    as_units,
    toy_codes,
)

from privopt.curator.local import LocalCurator
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.planning.task import Task
from privopt.precision import double_precision
from privopt.public import Relation
from privopt.synthesis import registry
from privopt.synthesis.query_game import QueryGame, QueryGameML
from privopt.testing.synthesizers import SynthesizerTrial, ToyTable


def run(case, relation, curator_type, *units, seed=3):
    """Model a table on a fresh ledger that holds the program's plan."""
    public = units[0].public
    program = case.synthesizer.configure(Task(case.workload, public, BUDGET))
    curator = curator_type(
        *units, Ledger(BUDGET, relation, plan=program.event(public)), noise=NoiseSource(seed)
    )
    return curator, program, program.solve(curator, case.workload)


@pytest.fixture(scope="module", params=SYNTHESES, ids=IDS)
def trial(request):
    """A case, as `check_synthesizer` tries it: run once, and then promise by promise."""
    case, relation = request.param
    data = ToyTable(
        problem=case.workload,
        relation=Relation.parse(relation),
        records=N,
        columns=len(case.workload.levels),
        by_user=case.by_user,
    )
    with double_precision():
        yield SynthesizerTrial(case.synthesizer, data, BUDGET, f"{case.name}, {relation}")


@pytest.mark.later(
    "adaptive marginals, add-or-remove-one",
    "adaptive marginals, triples, add-or-remove-one",
    "adaptive marginals, triples, replace-one",
    "multiplicative weights, add-or-remove-one",
    "multiplicative weights, queries, add-or-remove-one",
    "multiplicative weights, queries, replace-one",
    "multiplicative weights, replace-one",
    "mwem, add-or-remove-one",
    "mwem, replace-one",
    "mwem, users, add-or-remove-one",
    "mwem, users, replace-one",
    "query game, likelihood, add-or-remove-one",
    "query game, likelihood, queries, add-or-remove-one",
    "query game, likelihood, queries, replace-one",
    "query game, likelihood, replace-one",
)
def test_the_result_is_a_function_of_the_transcript_alone(trial):
    trial.require_repeatable()


@pytest.mark.later(
    "mwem, add-or-remove-one",
    "mwem, users, add-or-remove-one",
    "query game, likelihood, add-or-remove-one",
    "query game, likelihood, queries, add-or-remove-one",
)
def test_on_other_data_the_same_answers_lead_to_the_same_requests_and_the_same_end(trial):
    trial.require_control()


@pytest.mark.later("query game, likelihood, queries, add-or-remove-one")
def test_the_transcript_and_a_dry_run_hold_the_plan(trial):
    trial.require_plan()
    assert trial.result.transcript.epsilon(BUDGET.delta) <= BUDGET.epsilon


def test_the_model_answers_and_samples(trial):
    trial.require_model()
    assert trial.result.params.marginal((1,)).sum() == pytest.approx(1.0)


@pytest.mark.later(
    "adaptive marginals, triples, add-or-remove-one",
    "adaptive marginals, triples, replace-one",
    "adaptive marginals, users, add-or-remove-one",
    "adaptive marginals, users, replace-one",
    "multiplicative weights, add-or-remove-one",
    "multiplicative weights, queries, add-or-remove-one",
    "multiplicative weights, replace-one",
    "mwem, add-or-remove-one",
    "mwem, replace-one",
    "mwem, users, add-or-remove-one",
    "mwem, users, replace-one",
    "query game, likelihood, add-or-remove-one",
    "query game, likelihood, queries, add-or-remove-one",
    "query game, likelihood, queries, replace-one",
    "query game, likelihood, replace-one",
)
def test_no_unit_moves_a_query_by_more_than_its_sensitivity(trial):
    assert trial.require_sensitivities() >= 1


@pytest.mark.later(
    "dual query, replace-one",
    "mwem, add-or-remove-one",
    "mwem, replace-one",
    "mwem, users, add-or-remove-one",
    "query game, likelihood, add-or-remove-one",
    "query game, likelihood, queries, add-or-remove-one",
    "query game, likelihood, queries, replace-one",
    "query game, likelihood, replace-one",
    "query game, replace-one",
)
def test_hidden_scores_move_by_no_more_than_was_paid_for(trial):
    trial.require_coupling()


@pytest.mark.later(
    "multiplicative weights, add-or-remove-one",
    "multiplicative weights, queries, add-or-remove-one",
    "multiplicative weights, replace-one",
    "mwem, add-or-remove-one",
    "mwem, replace-one",
    "mwem, users, add-or-remove-one",
    "mwem, users, replace-one",
    "query game, likelihood, add-or-remove-one",
    "query game, likelihood, queries, add-or-remove-one",
    "query game, likelihood, queries, replace-one",
    "query game, likelihood, replace-one",
)
def test_hopeless_data_raises_nothing_and_gives_a_model(trial):
    trial.require_ordinary_ending()


def test_no_synthesizer_names_anything_private(trial):
    trial.require_names()


@pytest.mark.at_once(
    "gaussian marginals",
    "gaussian queries",
    "mwem, queries",
    "mwem, users",
    "query game, likelihood",
    "query game, likelihood, queries",
    "query game, literal",
)
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
    assert {type(registry.named(name)) for name in registry.NAMES} == named
