"""The promises of every solver of games: post-processing, a known price, and no unit that moves a query too far."""

import pytest
from tests.contracts.game_cases import EVERY_GAME, GAME_PAIRS, N, as_units, toy_rows

from privopt.games import registry
from privopt.ledger.amounts import Budget
from privopt.planning.task import Task
from privopt.precision import double_precision
from privopt.public import Relation
from privopt.testing.games import GameTrial, ToyGame, width_of


@pytest.fixture(scope="module", params=GAME_PAIRS)
def trial(request):
    """A case, as `check_game` tries it: played once, and then promise by promise."""
    case, relation = request.param
    data = ToyGame(
        problem=case.game,
        relation=Relation.parse(relation),
        records=N,
        columns=width_of(case.game),
        by_user=case.by_user,
    )
    with double_precision():
        yield GameTrial(case.solver, data, case.budget, f"{case.name}, {relation}")


@pytest.mark.at_once(
    "best response, replace-one",
    "mirror descent, epochs, fresh, replace-one",
    "mirror descent, paper, add-or-remove-one",
    "noisy exponentiated gradient, replace-one",
    "noisy matrix, add-or-remove-one",
    "noisy matrix, users, replace-one",
    "sampled dual averaging, derived, add-or-remove-one",
    "sampled dual averaging, one noised, add-or-remove-one",
    "sampled dual averaging, replace-one",
    "sampled dual averaging, users, add-or-remove-one",
)
def test_the_result_is_a_function_of_the_transcript_alone(trial):
    trial.require_repeatable()


@pytest.mark.later("gradient descent and ascent, own payoff, add-or-remove-one")
def test_on_other_data_the_same_answers_lead_to_the_same_requests_and_the_same_end(trial):
    trial.require_control()


def test_the_transcript_and_a_dry_run_hold_exactly_the_plan(trial):
    trial.require_plan()
    transcript = trial.result.transcript
    assert transcript.releases == trial.configured.releases()
    assert transcript.epsilon(trial.budget.delta) <= trial.budget.epsilon


def test_strategies_lie_in_their_sets(trial):
    trial.require_sets()


@pytest.mark.at_once(
    "bias-reduced mirror descent, add-or-remove-one",
    "mirror descent, paper, add-or-remove-one",
    "noisy exponentiated gradient, replace-one",
    "noisy matrix, add-or-remove-one",
    "noisy matrix, users, replace-one",
    "sampled dual averaging, derived, add-or-remove-one",
    "sampled dual averaging, one noised, add-or-remove-one",
    "sampled dual averaging, one pass, replace-one",
    "sampled dual averaging, replace-one",
)
def test_no_unit_moves_a_query_by_more_than_its_sensitivity(trial):
    assert trial.require_sensitivities() >= 1


@pytest.mark.later(
    "best response, own payoff, replace-one",
    "noisy extragradient, add-or-remove-one",
    "noisy extragradient, one vertex, replace-one",
    "noisy extragradient, own payoff, replace-one",
    "sampled dual averaging, one vertex, replace-one",
)
def test_hopeless_data_raises_nothing_and_gives_finite_strategies(trial):
    trial.require_ordinary_ending()


def test_no_solver_of_games_names_anything_private(trial):
    trial.require_names()


@pytest.mark.at_once(
    "best response",
    "best response, own payoff",
    "bias-reduced mirror descent, one vertex",
    "gradient descent and ascent",
    "gradient descent and ascent, own payoff",
    "noisy exponentiated gradient",
    "noisy extragradient",
    "noisy extragradient, one vertex",
    "noisy extragradient, own payoff",
    "noisy matrix",
    "noisy matrix, users",
)
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
    assert {type(registry.named(name)) for name in registry.NAMES} <= named
