"""Solvers of games that draw vertices, on neighbours with the same draws: hidden scores move within what is charged."""

import pytest
from tests.contracts.game_cases import EVERY_GAME, RELATIONS, N, as_units, toy_rows

from privopt.games.gradients import Noised
from privopt.ledger.amounts import Budget
from privopt.planning.task import Task
from privopt.problems.saddle import BilinearGame
from privopt.public import Relation
from privopt.testing.games import GameTrial, ToyGame, width_of

_MEANWHILE = Budget(20.0, 1e-5)


def draws_only(case):
    """Whether draws are all that is released of either player's gradients, and there are some."""
    public = as_units(case, *toy_rows(case), "replace-one").public
    solver = case.solver.configure(Task(case.game, public, _MEANWHILE))
    noised = [isinstance(getattr(solver, who, None), Noised) for who in ("x", "y")]
    return not any(noised) and "exponential-mechanism selections" in solver.event(public).describe()


DRAWN = [case for case in EVERY_GAME if draws_only(case)]
# Payoffs that are compiled take longer.
QUICK = {case.name for case in DRAWN if isinstance(case.game, BilinearGame)}
PAIRS = [
    pytest.param(
        case,
        relation,
        marks=[] if case.name in QUICK and relation == RELATIONS[place % 2] else pytest.mark.audit,
        id=f"{case.name}, {relation}",
    )
    for place, case in enumerate(DRAWN)
    for relation in RELATIONS
]


@pytest.mark.at_once(
    "boosted saddle, one run, replace-one",
    "mirror descent, paper, add-or-remove-one",
    "sampled dual averaging, one pass, replace-one",
    "sampled dual averaging, replace-one",
    "sampled dual averaging, users, add-or-remove-one",
)
@pytest.mark.parametrize(("case", "relation"), PAIRS)
def test_scores_move_by_no_more_than_the_declared_range(case, relation):
    data = ToyGame(
        problem=case.game,
        relation=Relation.parse(relation),
        records=N,
        columns=width_of(case.game),
        by_user=case.by_user,
    )
    shown = GameTrial(case.solver, data, _MEANWHILE, case.name).require_coupling()
    if not case.by_user and getattr(case.solver, "batches", None) == "full" and "boosted" not in case.name:
        assert shown > 0.05  # the record is one that shows; of batches, it may be in none
