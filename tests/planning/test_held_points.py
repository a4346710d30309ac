"""A plan says how many numbers of the units a run holds, and is refused where these do not fit beside its rows."""

from typing import Any

import pytest
from tests.contracts.cases import BUDGET, CASES, as_units, toy_arrays

from privopt import LogisticRegression
from privopt.curator.dry_run import DryRun
from privopt.planning.task import Instance
from privopt.precision import double_precision
from privopt.queries.base import PassQuery, Query, RecordsQuery

HOLDS = {"user-federated-averaging", "phased-accelerated-erm", "phased-group-sgd"}
ONE_RELATION = [
    pytest.param(
        case,
        relation,
        id=case.name,
        marks=() if case.solver.name in HOLDS or case.solver.needs_rows else (pytest.mark.audit,),
    )
    for case, relation in CASES
    if relation == case.relations[0]
]


@pytest.mark.later(
    "phased accelerated erm",
    "phased accelerated erm, blocks, sampled",
    "phased accelerated erm, own loss, ball",
)
@pytest.mark.parametrize(("case", "relation"), ONE_RELATION)
def test_a_solver_holds_as_many_numbers_as_its_plan_says(case: Any, relation: str) -> None:
    public = as_units(*toy_arrays(case), relation, by_user=case.by_user).public
    asked, kinds = [0], set[type[Query]]()

    def noted(kind: type[Query], held: int) -> None:
        kinds.add(kind)
        asked.append(held)

    with double_precision():
        instance = Instance(case.problem, public, BUDGET)
        solver = case.solver.configure(instance)
        if not solver.adaptive and (solver.held_numbers(case.problem, public) or solver.releases() <= 100):
            solver.solve(DryRun(public, require=noted), case.problem)
            assert any(issubclass(kind, PassQuery | RecordsQuery) for kind in kinds) == solver.needs_rows
            assert max(asked) == solver.held_numbers(case.problem, public) == solver.plan(instance).held
        assert solver.name in HOLDS or not solver.held_numbers(case.problem, public)


@pytest.mark.parametrize("alpha", [0.1, "private"])
def test_a_search_holds_as_much_as_its_dearest_fit(alpha: Any) -> None:
    model = LogisticRegression(
        epsilon=1.0,
        delta=1e-9,
        alpha=alpha,
        bounds=(-1, 1),
        classes=[0, 1],
        fit_intercept=False,
        solver="user-federated-averaging",
    )
    assert model.plan(n_features=3, n=10**6, by_user=True).held == 3 * 10**6
