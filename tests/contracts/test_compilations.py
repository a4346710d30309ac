"""A fit compiles at most two programs, and a second fit with another budget compiles no more than that."""

from collections.abc import Iterator

import jax
import numpy as np
import pytest
from tests.contracts.cases import as_units, tagged, toy_arrays

from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.events import EveryUnit
from privopt.ledger.payer import Unlimited
from privopt.precision import double_precision
from privopt.problems.saddle import BilinearGame
from privopt.public import Relation
from privopt.queries.payoffs import PlayerGradient
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


@pytest.mark.at_once(
    "adaptive gradient descent, whitened, add-or-remove-one",
    "gradient descent, add-or-remove-one",
    "gradient descent, replace-one",
)
@pytest.mark.parametrize(("case", "relation"), **tagged("typical"))
def test_a_fit_with_another_budget_compiles_at_most_two_programs(case, relation, compiled):
    units = as_units(*toy_arrays(case), relation, by_user=case.by_user)
    minimize(case.problem, units, budget=Budget(20.0, 1e-4), solver=case.solver, random_state=1)
    compiled.clear()
    minimize(case.problem, units, budget=Budget(30.0, 1e-4), solver=case.solver, random_state=2)
    assert len(compiled) <= 2, compiled


def test_blocks_of_different_sizes_share_a_program(compiled):
    """One pass over batches of many sizes compiles its query once."""
    rows = np.random.default_rng(0).choice([-1.0, 1.0], (60, 6))
    units = Units.from_arrays(rows, relation="replace-one", row_bound=3.0)
    with double_precision():
        blocks = LocalCurator(units, Unlimited(Relation.REPLACE_ONE)).blocks([7, 9, 13, 17])
        game = BilinearGame(rows=3, columns=3)
        asked = PlayerGradient(game=game, who="x", x=np.ones(3) / 3, y=np.ones(3) / 3, half_range=1.0)
        values = []
        for block in blocks:
            values.append(block.private_value(asked, EveryUnit(), None))
            if len(values) == 1:
                compiled.clear()
    assert not compiled
    assert len({tuple(value) for value in values}) == 4
