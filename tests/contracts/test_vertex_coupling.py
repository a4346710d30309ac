"""Minimisers that draw vertices, on neighbours with the same draws: their hidden scores move within what is charged."""

import pytest
from tests.contracts.cases import EVERY_CASE as CASES
from tests.contracts.cases import D, N

from privopt.ledger.amounts import Budget
from privopt.public import Relation
from privopt.solvers.vertices import VertexSolver
from privopt.testing.solvers import SolverTrial
from privopt.testing.toy_data import ToyData

DRAWN = [case for case in CASES if isinstance(case.solver, VertexSolver)]


@pytest.mark.at_once("variance-reduced frank-wolfe-replace-one", "vertex-anytime-replace-one")
@pytest.mark.parametrize(
    "relation", ["replace-one", pytest.param("add-or-remove-one", marks=pytest.mark.audit)]
)
@pytest.mark.parametrize("case", DRAWN, ids=[case.name for case in DRAWN])
def test_scores_move_by_no_more_than_the_declared_range(case, relation):
    data = ToyData(
        problem=case.problem,
        relation=Relation.parse(relation),
        records=N,
        columns=D,
        by_user=case.by_user,
    )
    shown = SolverTrial(case.solver, data, Budget(50.0, 1e-5), case.name).require_coupling()
    if relation == "replace-one" and not case.by_user:
        assert shown >= 0.05  # one of the records shows
