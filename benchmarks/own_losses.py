"""The default for losses of a user's own, told nothing, against private gradient descent that an oracle tuned.

    python -m benchmarks own_losses [--data NAME ...] [--epsilon E ...] [--method M ...] [--seeds S] [--resume]

Every method minimises the mean loss of `own_losses_data` at the same (epsilon, delta = 1e-6), replace-one; reported is
the excess of the mean loss on the same rows over the best found without privacy, the mean over seeds. The oracle of the
baseline chooses clip, step size and number of steps by that very excess, averaged over the seeds that it then reports:
the best of 18 settings; for the two losses that stand in `kl_data` that of 8 settings, as `python -m benchmarks kl`
measured it.
"""

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import kl, kl_data, kl_methods
from benchmarks.bars import Verdict
from benchmarks.kl_data import Case
from benchmarks.own_losses_data import CHOSEN_ON, DATA, JUDGED_ON, case
from benchmarks.results import Record, machine, select
from privopt.solvers.base import Solver
from privopt.solvers.gradient_descent import GradientDescent

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks-own-losses.md"
DELTA = 1e-6
EPSILONS = (0.25, 1.0, 4.0)
AUTO, TUNED = "auto", "DP-GD, oracle-tuned"
METHODS = (AUTO, TUNED)
SEEDS = 3
STEPS, FACTORS, CLIPS = (
    (30, 100, 300),
    (1.0, 4.0),
    (0.4, 1.0),
)  # steps of 1 / curvature, clips of the median norm
QUICK_ROWS = 1_000
BAR, WORST_BAR = 1.0, 1.15  # of auto's excess over the tuned baseline's: geometric mean, any cell
LEAKY_BARS = {0.25: 5.1e-3, 1.0: 0.52e-3, 4.0: 0.058e-3}  # what descent reached on the leaky link
HEAD = ("data", "method", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS))
RATIO_HEAD = ("data", "chosen on it", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS))


def measure(
    shared: Path,
    *,
    seeds: int | None = None,
    quick: bool = False,
    data: Sequence[str] = DATA,
    epsilons: Sequence[float] | None = None,
    methods: Sequence[str] = METHODS,
    done: Collection[tuple[str, str, float]] = (),
) -> Iterator[Record]:
    """One record a loss, method and epsilon.

    Args:
        shared: the folder of the shared data.
        seeds: runs of a cell.
        quick: fewer rows, one seed.
        data: of `own_losses_data.DATA`.
        epsilons: privacy budgets.
        methods: of `METHODS`.
        done: (data, method, epsilon) that are not measured again.
    """
    for name in data:
        wanted = [
            (method, epsilon)
            for method in methods
            for epsilon in epsilons or EPSILONS
            if (name, method, epsilon) not in done and not (method == TUNED and name in kl_data.DATA)
        ]
        problem = case(name, shared, rows=QUICK_ROWS if quick else None) if wanted else None
        for method, epsilon in wanted:
            assert problem is not None
            yield cell(problem, method, epsilon, 1 if quick else seeds or SEEDS)


def cell(problem: Case, method: str, epsilon: float, seeds: int) -> Record:
    """Run one method at one budget."""
    tried = [
        (setting, kl.runs_of(problem, solver, epsilon, seeds))
        for setting, solver in candidates(problem, method)
    ]
    setting, runs = min(tried, key=lambda one: float(np.mean(one[1]["excess"])))
    excess = runs.pop("excess")
    return {
        "benchmark": "own-losses",
        "data": problem.name,
        "n": problem.units.public.n,
        "parameters": problem.parameters,
        "method": method,
        "relation": problem.units.public.relation.value,
        "epsilon": epsilon,
        "delta": DELTA,
        "start_excess": problem.objective(problem.start) - problem.best,
        "machine": machine(),
        **runs,
        **({"oracle": setting, "candidates": len(tried)} if len(tried) > 1 else {}),
        "seeds": seeds,
        "excess": float(np.mean(excess)),
        "excess_error": float(np.std(excess, ddof=1) / math.sqrt(seeds)) if seeds > 1 else None,
    }


def candidates(problem: Case, method: str) -> list[tuple[dict[str, float], Solver | str]]:
    """The settings of a method; more than one means that an oracle chooses."""
    if method == AUTO:
        return [({}, "auto")]
    found: list[tuple[dict[str, float], Solver | str]] = []
    for steps, factor, share in itertools.product(STEPS, FACTORS, CLIPS):
        setting: dict[str, Any] = {
            "steps": steps,
            "step_size": factor / problem.curvature,
            "clip": share * problem.lipschitz,
        }
        found.append((setting, GradientDescent(momentum=0.0, returns="last", **setting)))
    return found


def cells(records: Sequence[Record], data: str, method: str, epsilon: float) -> list[Record]:
    """What was measured of a method on a loss, here or in the comparison under the KL condition."""
    found = select(records, benchmark="own-losses", data=data, method=method, epsilon=epsilon)
    if not found and method == TUNED:
        found = select(records, benchmark="kl", data=data, method=kl_methods.TUNED, epsilon=epsilon)
    return found


def ratios(records: Sequence[Record], data: Collection[str] = DATA) -> dict[tuple[str, float], float]:
    """auto's excess over the tuned baseline's, by loss and epsilon."""
    found: dict[tuple[str, float], float] = {}
    for record in select(records, benchmark="own-losses", method=AUTO):
        for rival in cells(records, record["data"], TUNED, record["epsilon"]):
            if record["data"] in data:
                found[record["data"], record["epsilon"]] = record["excess"] / rival["excess"]
    return found


def verdicts(records: Sequence[Record]) -> Iterator[Verdict]:
    """Whether the default is as good as the tuned baseline, and no worse than it was on the leaky link."""
    for data, where in ((DATA, "all"), (CHOSEN_ON, "chosen on"), (JUDGED_ON, "judged on")):
        found = list(ratios(records, data).values())
        if found:
            mean = math.exp(math.fsum(math.log(max(one, 1e-12)) for one in found) / len(found))
            what = f"auto's excess over oracle-tuned DP-GD's, losses of one's own, {where}"
            yield Verdict(f"{what}, geometric mean", mean, f"at most {BAR:g}", mean <= BAR)
            yield Verdict(f"{what}, worst", max(found), f"at most {WORST_BAR:g}", max(found) <= WORST_BAR)
    for record in select(records, benchmark="own-losses", method=AUTO, data="leaky"):
        bar = LEAKY_BARS[record["epsilon"]]
        what = f"auto's excess on the leaky link x 1000, epsilon {record['epsilon']:g}"
        yield Verdict(what, 1e3 * record["excess"], f"at most {1e3 * bar:g}", record["excess"] <= bar)


def table_rows(records: Sequence[Record]) -> list[list[str]]:
    """The excess x 1000 of every method, a row a loss and method."""
    rows: list[list[str]] = []
    for name, method in itertools.product(DATA, METHODS):
        found = [cells(records, name, method, epsilon) for epsilon in EPSILONS]
        if any(found):
            texts = (f"{1e3 * one[0]['excess']:.3g}" if one else "" for one in found)
            rows.append([name, method, *texts])
    return rows


def ratio_rows(records: Sequence[Record]) -> list[list[str]]:
    """auto's excess over the tuned baseline's, a row a loss."""
    found = ratios(records)
    return [
        [
            name,
            "yes" if name in CHOSEN_ON else "no",
            *(f"{found[name, e]:.2f}" if (name, e) in found else "" for e in EPSILONS),
        ]
        for name in DATA
        if any(key[0] == name for key in found)
    ]
