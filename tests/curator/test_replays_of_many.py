"""A replay needs releases only: of 10^9 units, without a row, in the memory that one of forty takes."""

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.contracts.cases import BUDGET, CASES, as_units, toy_arrays

from privopt.curator.dry_run import DryRun
from privopt.curator.replay import Replay
from privopt.planning.task import Instance
from privopt.precision import double_precision

MANY = 10**9
ROOM = 64 * 2**20  # bytes that a replay may take at its peak, programs that are compiled included
MOST_RELEASES = 2_000
# Several samples in one compiled loop, blocks, and a view; all others in the audit.
AT_ONCE = {"svrg", "correlated noise", "whitening, rescaled"}
# Whose plan names each record's place, or has one release for each of its many batches.
REFUSED = {case.name for case, _ in CASES if "phased sgd" in case.name or "snowball sgd" in case.name}


def quick(pairs: Any) -> list[Any]:
    return [
        pytest.param(
            case,
            relation,
            id=f"{case.name}, {relation}",
            marks=() if case.name in AT_ONCE and relation == case.relations[0] else (pytest.mark.audit,),
        )
        for case, relation in pairs
    ]


@pytest.mark.at_once("correlated noise, replace-one")
@pytest.mark.parametrize(("case", "relation"), quick(pair for pair in CASES if pair[0].name not in REFUSED))
def test_a_replay_of_a_billion_units_takes_no_memory_for_them(case: Any, relation: str) -> None:
    toy = as_units(*toy_arrays(case), relation, by_user=case.by_user).public
    public = replace(toy, n=MANY)
    with double_precision():
        solver = case.solver.configure(Instance(case.problem, public, BUDGET))
        if solver.releases() > MOST_RELEASES:
            pytest.skip(f"{solver.releases():,} releases")
        result = solver.solve(DryRun(public), case.problem)
        tracemalloc.start()
        try:
            again = solver.solve(Replay(result.transcript, public), case.problem)
            assert tracemalloc.get_traced_memory()[1] < ROOM
        finally:
            tracemalloc.stop()
    assert np.array_equal(again.params, result.params)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name) for case, _ in CASES if case.name in REFUSED]
)
def test_who_plans_by_places_says_how_many_it_can_plan_for(case: Any) -> None:
    public = replace(as_units(*toy_arrays(case), "replace-one").public, n=MANY)
    with (
        double_precision(),
        pytest.raises(ValueError, match="planned place by place, for at most 67,108,864 rec"),
    ):
        case.solver.configure(Instance(case.problem, public, BUDGET))
