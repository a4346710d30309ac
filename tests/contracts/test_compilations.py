"""A fit compiles at most two programs, and a second fit with another budget compiles no more than that."""

from collections.abc import Iterator

import jax
import pytest
from tests.contracts.cases import as_units, tagged, toy_arrays

from privopt.ledger.amounts import Budget
from privopt.solve import minimize

EVENT = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compiled() -> Iterator[list[str]]:
    """Names of the programs compiled during a test."""
    names: list[str] = []

    def listen(event: str, _: float, **details: object) -> None:
        if event == EVENT:
            names.append(str(details.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.mark.parametrize(("case", "relation"), **tagged("typical"))
def test_a_fit_with_another_budget_compiles_at_most_two_programs(case, relation, compiled):
    units = as_units(*toy_arrays(case), relation, by_user=case.by_user)
    minimize(case.problem, units, budget=Budget(20.0, 1e-4), solver=case.solver, random_state=1)
    compiled.clear()
    minimize(case.problem, units, budget=Budget(30.0, 1e-4), solver=case.solver, random_state=2)
    assert len(compiled) <= 2, compiled
