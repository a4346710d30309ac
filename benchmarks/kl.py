"""The methods for objectives under the KL condition, without tuning, against constant noise that an oracle tuned.

    python -m benchmarks kl [--data NAME ...] [--epsilon E ...] [--method M ...] [--seeds S] [--resume]

Every method minimises the mean loss of `kl_data` at the same (epsilon, delta = 1e-6), replace-one, without a penalty;
reported is the excess of the mean loss on the same rows over the non-private optimum, the mean over seeds. The oracle
of the tuned baseline chooses the best of eight settings by that very excess, averaged over the seeds that it then
reports.
"""

import math
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import kl_methods
from benchmarks.bars import Verdict
from benchmarks.kl_data import CONVEX, DATA, Case, case
from benchmarks.results import Record, machine, select
from privopt.errors import NotPriceable
from privopt.ledger.amounts import Budget
from privopt.solve import minimize

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks-kl.md"
DELTA = 1e-6
EPSILONS = (0.25, 0.5, 1.0, 2.0, 4.0)
COARSE = (0.25, 1.0, 4.0)  # where a pass is dear
FAST = (kl_methods.AUTO, kl_methods.PLAIN)
SLOW = (
    kl_methods.CONSTANT,
    kl_methods.ADAPTIVE_PAPER,
    kl_methods.KL_PAPER,
    kl_methods.KL_PLANNED,
    kl_methods.DP_SPIDER,
)
FAST_SEEDS = 8
SEEDS = {
    "randhie": 4,
    "generated": 4,
    "adult": 2,
    "leaky": 2,
    "network": 2,
}  # of the slow methods half as many
QUICK_EPSILONS, QUICK_ROWS, QUICK_SEEDS = (0.25, 1.0), 2_000, 1
LARGE_BAR, SMALL_BAR = 0.6, 1.15  # of auto's excess over the tuned baseline's, epsilon at least 1 and below
RUNS_HEAD = ("data", "method", "solver", "releases", "seconds", "seeds")
WORSE_HEAD = ("data", "epsilon", "excess of auto over oracle-tuned DP-GD's")
HEAD = ("data", "method", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS))


def measure(
    shared: Path,
    *,
    seeds: int | None = None,
    quick: bool = False,
    data: Sequence[str] = DATA,
    epsilons: Sequence[float] | None = None,
    methods: Sequence[str] = kl_methods.METHODS,
    done: Collection[tuple[str, str, float]] = (),
) -> Iterator[Record]:
    """One record a data set, method and epsilon.

    Args:
        shared: the folder of the shared data.
        seeds: runs of a cell; default `default_seeds`.
        quick: fewer rows, epsilons and candidates, one seed.
        data: of `kl_data.DATA`.
        epsilons: privacy budgets; default `EPSILONS`, `COARSE` for the losses of the user's own.
        methods: of `kl_methods.METHODS`.
        done: (data, method, epsilon) that are not measured again.
    """
    for name in data:
        usual = QUICK_EPSILONS if quick else EPSILONS if name in CONVEX else COARSE
        wanted = [
            (method, epsilon)
            for method in methods
            for epsilon in epsilons or usual
            if (name, method, epsilon) not in done
        ]
        if not wanted:
            continue
        problem = case(name, shared, rows=QUICK_ROWS if quick else None)
        for method, epsilon in wanted:
            runs = seeds or (QUICK_SEEDS if quick else default_seeds(name, method))
            yield cell(problem, method, epsilon, runs, quick=quick)


def default_seeds(data: str, method: str) -> int:
    """How many runs a cell has: fewer where they take long."""
    if method in FAST:
        return FAST_SEEDS
    return max(1, SEEDS[data] // 2) if method in SLOW else SEEDS[data]


def cell(problem: Case, method: str, epsilon: float, seeds: int, *, quick: bool = False) -> Record:
    """Run one method at one budget."""
    public = problem.units.public
    found: Record = {
        "benchmark": "kl",
        "data": problem.name,
        "n": public.n,
        "parameters": problem.parameters,
        "method": method,
        "relation": public.relation.value,
        "epsilon": epsilon,
        "delta": DELTA,
        "start_excess": problem.objective(problem.start) - problem.best,
        "machine": machine(),
    }
    choices = kl_methods.solvers(method, problem, quick=quick)
    for _, solver in choices:
        obstacle = None if isinstance(solver, str) else solver.applicable(problem.problem, public)
        if obstacle is not None:
            return {**found, "refused": obstacle}
    try:
        tried = [(setting, runs_of(problem, solver, epsilon, seeds)) for setting, solver in choices]
    except NotPriceable as refusal:
        return {**found, "refused": str(refusal)}
    setting, runs = min(tried, key=lambda one: float(np.mean(one[1]["excess"])))
    excess = runs.pop("excess")
    return {
        **found,
        **runs,
        **({"oracle": setting, "candidates": len(tried)} if len(tried) > 1 else {}),
        "seeds": seeds,
        "excess": float(np.mean(excess)),
        "excess_error": float(np.std(excess, ddof=1) / math.sqrt(seeds)) if seeds > 1 else None,
    }


def runs_of(problem: Case, solver: Any, epsilon: float, seeds: int) -> dict[str, Any]:
    """The excess of every seed, and what a run took."""
    excess, seconds, releases = [], [], []
    name, bound = "", None
    for seed in range(seeds):
        begun = time.perf_counter()
        result = minimize(
            problem.problem,
            problem.units,
            budget=Budget(epsilon, DELTA),
            solver=solver,
            start=problem.start,
            random_state=seed,
        )
        seconds.append(time.perf_counter() - begun)
        releases.append(result.transcript.releases)
        excess.append(problem.objective(result.params) - problem.best)
        assert result.plan is not None
        name, bound = result.plan.solver, result.plan.bound
    return {
        "solver": name,
        "excess": excess,
        "releases": float(np.mean(releases)),
        "fit_s": float(np.median(seconds)),
        **({} if bound is None else {"bound": bound.value}),
    }


def ratios(records: Sequence[Record], data: Collection[str], *, small: bool) -> list[float]:
    """auto's excess over the tuned baseline's, a number a cell with epsilon below 1 (`small`) or not."""
    found: list[float] = []
    for record in select(records, benchmark="kl", method=kl_methods.AUTO):
        same = {key: record[key] for key in ("benchmark", "data", "epsilon")}
        rivals = select(records, **same, method=kl_methods.TUNED)
        if record["data"] in data and (record["epsilon"] < 1.0) == small and rivals:
            found.append(record["excess"] / rivals[0]["excess"])
    return found


def verdicts(records: Sequence[Record]) -> Iterator[Verdict]:
    """Whether auto is ahead of the tuned baseline by what was asked for, in the mean and the geometric mean."""
    for small, bar in ((False, LARGE_BAR), (True, SMALL_BAR)):
        groups = ((set(DATA), "all"), (CONVEX, "logistic"), (set(DATA) - set(CONVEX), "not convex"))
        for data, where in groups:
            found = ratios(records, data, small=small)
            if not found:
                continue
            budgets = "epsilon < 1" if small else "epsilon >= 1"
            what = f"auto's excess over oracle-tuned DP-GD's, {where}, {budgets}"
            means = {
                "mean": math.fsum(found) / len(found),
                "geometric mean": math.exp(
                    math.fsum(math.log(max(one, 1e-12)) for one in found) / len(found)
                ),
            }
            for kind, value in means.items():
                yield Verdict(f"{what}, {kind}", value, f"at most {bar}", value <= bar)


def table_rows(records: Sequence[Record]) -> list[list[str]]:
    """The excess x 1000 of every method, a row a data set and method."""
    rows: list[list[str]] = []
    for name in DATA:
        for method in kl_methods.METHODS:
            cells = {one["epsilon"]: one for one in select(records, benchmark="kl", data=name, method=method)}
            if cells:
                rows.append([name, method, *(_text(cells.get(epsilon)) for epsilon in EPSILONS)])
    return rows


def worse_rows(records: Sequence[Record]) -> list[list[str]]:
    """The cells in which auto's excess is above the tuned baseline's."""
    rows: list[list[str]] = []
    for record in select(records, benchmark="kl", method=kl_methods.AUTO):
        same = {key: record[key] for key in ("benchmark", "data", "epsilon")}
        for rival in select(records, **same, method=kl_methods.TUNED):
            ratio = record["excess"] / rival["excess"]
            if ratio > 1.0:
                rows.append([record["data"], f"{record['epsilon']:g}", f"{ratio:.2f}"])
    return rows


def setting_rows(records: Sequence[Record]) -> list[list[str]]:
    """What ran where: the solver that auto took, releases and seconds of a run at epsilon 1."""
    rows: list[list[str]] = []
    for record in select(records, benchmark="kl", epsilon=1.0):
        if "refused" not in record:
            spent = (f"{record['releases']:.0f}", f"{record['fit_s']:.2g}", str(record["seeds"]))
            rows.append([record["data"], record["method"], record["solver"], *spent])
    return sorted(rows, key=lambda row: (DATA.index(row[0]), kl_methods.METHODS.index(row[1])))


def _text(record: Record | None) -> str:
    if record is None:
        return ""
    return "refused" if "refused" in record else f"{1e3 * record['excess']:.2g}"
