"""The child process of `tests.golden.runs`: makes the runs that it is asked for, and writes their lines to a file."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.golden import commands, contracts, fits, plans
from tests.golden.comparing import Line
from tests.golden.transcripts import shortened

from privopt.engine import placement
from privopt.planning import averaging
from privopt.precision import run_in_numpy
from privopt.solvers import program
from privopt.solvers.program import ROW_PASSES

PARTS: dict[str, Callable[[], Iterator[tuple[str, Callable[[], Any]]]]] = {
    "solvers": contracts.solver_runs,
    "games": contracts.game_runs,
    "synthesizers": contracts.synthesis_runs,
    "fits": fits.fit_runs,
    "model_plans": plans.model_plan_runs,
    "solver_plans": plans.solver_plan_runs,
    "commands": commands.command_runs,
}


def main(asked: dict[str, Any]) -> None:
    """Make the runs of some parts whose names begin as asked."""
    # What is measured on this machine and now.
    averaging.seconds_per_value = lambda loss, features: 1e-6
    placement.available_memory = lambda root=None: 24 * 10**9
    lines: dict[str, dict[str, Line]] = {}
    runs: dict[str, list[str]] = {}
    others: dict[str, list[str]] = {}
    for part, first, step in asked["parts"]:
        for place, (name, run) in enumerate(PARTS[part]()):
            if place % step != first or not _is_wanted(part, name, asked["names"]):
                others.setdefault(part, []).append(name)
                continue
            try:
                several = _lines_of(name, run)
            except Exception as failed:
                failed.add_note(f"in the golden run {part}, {name!r}")
                raise
            runs.setdefault(part, []).append(name)
            lines.setdefault(part, {}).update(
                several if asked["whole"] else {one: shortened(line) for one, line in several.items()}
            )
    Path(asked["file"]).write_text(json.dumps([lines, runs, others]), encoding="utf-8")


def _lines_of(name: str, run: Callable[[], Any]) -> dict[str, Line]:
    """The lines of a run, by JAX and compiled kernels; where it is in NumPy by its public sizes, also as it then is."""
    entered: list[bool] = []

    def noted(*, is_so: bool) -> Any:
        entered.append(is_so)
        return run_in_numpy(is_so=is_so)

    program.run_in_numpy = noted
    try:
        made = run()
        if not any(entered):
            return {name: made} if set(made) == {"values", "words"} else made
        program.ROW_PASSES = 0.0
        return {name: run(), f"{name}: in NumPy": made}
    finally:
        program.run_in_numpy, program.ROW_PASSES = run_in_numpy, ROW_PASSES


def _is_wanted(part: str, name: str, names: list[str]) -> bool:
    return not names or part in names or any(name.startswith(beginning) for beginning in names)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
