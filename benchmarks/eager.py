"""How long a step takes beside its pass over the data: price, noise, record and the solver's own arithmetic.

    python -m benchmarks eager

Solvers run by turns on 200 records of 5 columns, whose pass takes a few microseconds, so that a step's time is what
stands beside it. The first run of each compiles and is not counted. The time from release to release is taken in
microseconds: its median, and its lowest tenth for machines on which other processes run. For two versions of the
library to be compared, run them by turns on one core (`taskset -c 0`).
"""

import statistics
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.results import Record, machine
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.papers.mirror_descent import MirrorDescent
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.constraints import L2Ball
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.solvers.adaptive_gradient_descent import AdaptiveGradientDescent
from privopt.solvers.base import Solver
from privopt.solvers.continuous_spider import ContinuousSpider
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.kl_proximal_point import KLProximalPoint

ROWS, COLUMNS = 200, 5
BUDGET = Budget(1.0, 1e-6)
RIDGE = Problem(losses.logistic, Ridge(1e-2))
BALL = Problem(losses.logistic, constraint=L2Ball(5.0))


def solvers(steps: int) -> tuple[tuple[Solver, Problem], ...]:
    """A handful of solvers whose steps are eager, with a problem for each."""
    return (
        (GradientDescent(steps=steps), RIDGE),
        (ContinuousSpider(steps=steps), RIDGE),
        (AdaptiveGradientDescent(most_steps=steps), RIDGE),
        (MirrorDescent(steps=steps), BALL),
        (KLProximalPoint(weight=1.0, outer_steps=2, inner_steps=steps // 2), RIDGE),
    )


def measure(*, repeats: int, quick: bool) -> Iterator[Record]:
    """One record a solver."""
    units = small_units()
    configured = [
        (solver.configure(Instance(problem, units.public, BUDGET)), problem)
        for solver, problem in solvers(40 if quick else 300)
    ]
    times: dict[str, list[float]] = {solver.name: [] for solver, _ in configured}
    for seed in range(1 + repeats):
        for solver, problem in configured:
            found = step_seconds(solver, problem, units, seed)
            times[solver.name] += found if seed else []
    for name, seconds in times.items():
        yield {
            "benchmark": "eager",
            "what": "step beside its pass",
            "method": name,
            "rows": ROWS,
            "columns": COLUMNS,
            "steps": len(seconds),
            "median_us": 1e6 * statistics.median(seconds),
            "lowest_tenth_us": 1e6 * float(np.quantile(seconds, 0.1)),
            "machine": machine(),
        }


def small_units() -> Units:
    """Records of which a pass takes next to no time."""
    generator = np.random.default_rng(0)
    features = generator.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    labels = (features.sum(axis=1) + generator.normal(size=ROWS) > 0).astype(int)
    return Units.from_arrays(features, labels, row_bound=1.0, classes=[0, 1])


def step_seconds(solver: Solver, problem: Problem, units: Units, seed: int) -> list[float]:
    """The times between the releases of one run."""
    moments: list[float] = []
    ledger = Ledger(BUDGET, units.public.relation, plan=solver.event(units.public))
    curator = LocalCurator(
        units,
        ledger,
        noise=NoiseSource(seed),
        observer=lambda name, count: moments.append(time.perf_counter()),
    )
    solver.solve(curator, problem)
    return np.diff(moments).tolist()
