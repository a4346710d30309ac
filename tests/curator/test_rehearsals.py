"""What a resumed run would refuse is refused before it is paid for: by every program, adaptive ones included."""

from typing import Any

import pytest
from tests.contracts import cases, game_cases, synthesis_cases

from privopt.curator.cuts import Standing
from privopt.curator.local import LocalCurator
from privopt.curator.resumed import Rehearsal
from privopt.data.units import Units
from privopt.errors import ArgumentError
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.planning.task import Instance, Task
from privopt.precision import double_precision
from privopt.public import Relation

QUICK = (
    "adaptive gradient descent",
    "kl spider",
    "boosted saddle",
    "multiplicative weights",
)  # adaptive; quick


def _marks(name: str) -> Any:
    return () if name in QUICK else pytest.mark.audit


MINIMISED = [
    pytest.param(case, relation, id=f"{case.name}, {relation}", marks=_marks(case.name))
    for case, relation in cases.CASES
    if relation == case.relations[0]
]
PLAYED = [pytest.param(case, id=case.name, marks=_marks(case.name)) for case in game_cases.EVERY_GAME]
MODELLED = [
    pytest.param(case, id=case.name, marks=_marks(case.name)) for case in synthesis_cases.EVERY_SYNTHESIZER
]


class Watched(LocalCurator):
    """Notes what a program keeps between its releases."""

    kept: set[str]
    made: set[str]

    def _mapped_units(self, *arguments: Any) -> Any:
        self.made.add("maps")
        return super()._mapped_units(*arguments)

    def hold(self, query: Any, **named: Any) -> Any:
        self.kept.add("points")
        return super().hold(query, **named)

    def _disjoint_units(self, *arguments: Any) -> Any:
        lasting = self.public.relation is Relation.REPLACE_ONE and not self.public.by_user
        self.kept.add("lasting blocks" if lasting else "blocks")
        self.made.add("blocks")
        return super()._disjoint_units(*arguments)

    def _open_stream(self, *arguments: Any) -> Any:
        self.kept.add("stream")
        return super()._open_stream(*arguments)


def check(program: Any, problem: Any, units: Units, budget: Budget) -> None:
    """A rehearsal refuses a program if and only if it keeps what is lost with the process."""
    event = program.event(units.public)
    budget = budget if budget.epsilon > 100.0 else Budget(1e6, budget.delta)

    def ledger() -> Ledger:
        return Ledger(budget, units.public.relation, plan=event)

    refused = False
    with double_precision():
        try:
            program.solve(Rehearsal(units.public, Standing("files"), ledger()), problem)
        except ArgumentError:
            refused = True
        watched = Watched(units, ledger())
        watched.kept, watched.made = set(), set()
        program.solve(watched, problem)
    assert refused is bool(watched.kept - {"lasting blocks"}), watched.kept
    if program.adaptive:
        may = {what for what, times in zip(("blocks", "maps"), program.makes, strict=True) if times}
        assert watched.made <= may, watched.made


@pytest.mark.later("adaptive gradient descent, replace-one")
@pytest.mark.parametrize(("case", "relation"), MINIMISED)
def test_of_every_solver(case: cases.Case, relation: str) -> None:
    units = cases.as_units(*cases.toy_arrays(case), relation, by_user=case.by_user)
    solver = case.solver.configure(Instance(case.problem, units.public, cases.BUDGET))
    check(solver, case.problem, units, cases.BUDGET)


@pytest.mark.parametrize("case", PLAYED)
def test_of_every_game(case: game_cases.GameCase) -> None:
    units = game_cases.as_units(case, *game_cases.toy_rows(case), case.relations[0])
    check(case.solver.configure(Task(case.game, units.public, case.budget)), case.game, units, case.budget)


@pytest.mark.parametrize("case", MODELLED)
def test_of_every_synthesizer(case: synthesis_cases.SynthesisCase) -> None:
    units = synthesis_cases.as_units(case, synthesis_cases.toy_codes(), "replace-one")
    program = case.synthesizer.configure(Task(case.workload, units.public, synthesis_cases.BUDGET))
    check(program, case.workload, units, synthesis_cases.BUDGET)
