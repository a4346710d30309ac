"""Golden runs of every contract case: solvers, games and synthesizers."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pandas as pd
from tests.contracts import cases, game_cases, synthesis_cases
from tests.golden.comparing import Line
from tests.golden.transcripts import line_of_run, recorded

from privopt import SyntheticData, minimax, minimize

SEED = 11
COLUMNS = ("shape", "side", "size")
SCHEMA = {
    "columns": {
        name: {"kind": "cat", "levels": [f"{name} {level}" for level in range(count - 1)]}
        for name, count in zip(
            COLUMNS, synthesis_cases.LEVELS, strict=True
        )  # the last cell is that of a missing one
    }
}
OTHER_SYNTHESES = 8  # of the cases once more, under the other relation


def solver_runs() -> Iterator[tuple[str, Callable[[], Line]]]:
    """Every solver case, the relations in turn."""
    for turn, case in enumerate(cases.EVERY_CASE):
        relation = case.relations[turn % len(case.relations)]
        yield f"{case.name} ({relation})", partial(_solved, case, relation)


def _solved(case: cases.Case, relation: str) -> Line:
    units = cases.as_units(*cases.toy_arrays(case), relation, by_user=case.by_user)
    # Noise that a case gives may cost more than the budget.
    budget = cases.BUDGET if case.solver.noise_multiplier is None else replace(cases.BUDGET, epsilon=1e6)
    with recorded() as releases:
        result = minimize(case.problem, units, budget=budget, solver=case.solver, random_state=SEED)
    return line_of_run(releases, result.plan, result.params, {"status": result.status.value})


def game_runs() -> Iterator[tuple[str, Callable[[], Line]]]:
    """Every case of a game, the relations in turn."""
    for turn, case in enumerate(game_cases.EVERY_GAME):
        relation = case.relations[turn % len(case.relations)]
        yield f"{case.name} ({relation})", partial(_played, case, relation)


def _played(case: game_cases.GameCase, relation: str) -> Line:
    units = game_cases.as_units(case, *game_cases.toy_rows(case), relation)
    with recorded() as releases:
        result = minimax(case.game, units, budget=case.budget, solver=case.solver, random_state=SEED)
    return line_of_run(releases, result.plan, result.params, {"status": result.status.value})


def synthesis_runs() -> Iterator[tuple[str, Callable[[], Line]]]:
    """Every synthesizer case, the relations in turn, and some under the other relation too."""
    for turn, case in enumerate(synthesis_cases.EVERY_SYNTHESIZER):
        first, second = synthesis_cases.RELATIONS[turn % 2], synthesis_cases.RELATIONS[1 - turn % 2]
        for relation in (first, second) if turn < OTHER_SYNTHESES else (first,):
            yield f"{case.name} ({relation})", partial(_synthesized, case, relation)


def _synthesized(case: synthesis_cases.SynthesisCase, relation: str) -> Line:
    codes = synthesis_cases.toy_codes().astype(int)
    table = pd.DataFrame(
        {name: [f"{name} {code}" for code in codes[:, place]] for place, name in enumerate(COLUMNS)}
    )
    rows, workload = len(table), case.workload
    data = SyntheticData(
        SCHEMA,
        workload,
        epsilon=synthesis_cases.BUDGET.epsilon,
        delta=synthesis_cases.BUDGET.delta,
        relation=relation,
        n=rows // 2 if case.by_user else rows,
        method=case.synthesizer,
        max_records_per_user=3,
        random_state=SEED,
    )
    with recorded() as releases:
        data.fit(table, groups=[row // 2 for row in range(rows)] if case.by_user else None)
    rows_drawn = data.sample(20, random_state=SEED).to_csv(index=False)
    return line_of_run(
        releases,
        data.plan_,
        [data.model_.answers(workload), data.error_.value],
        {"rows": rows_drawn, "report": str(data.privacy_)},
    )
