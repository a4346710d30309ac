"""The number of steps that the public rule of whitened descent takes, against the best number in hindsight.

    python -m benchmarks steps

Every table is made binary (its first class against the rest) and fitted by logistic regression on rows of length 1;
MNIST by softmax. Each cell runs the rule's T and multiples of it, all else as by the rule, and reports the excess of
the mean training loss over the non-private optimum: the rule's, and the least of all multiples (chosen on the same
noise, so that it flatters hindsight).
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.datasets import load
from benchmarks.optimum import TINY_PENALTY, mean_loss, minimised, unit_rows
from benchmarks.results import Record, machine, select
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.planning.task import Instance
from privopt.planning.whitening import default_ridge
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.problems.regularisers import Ridge
from privopt.solve import minimize
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.whitening import Whitening

TABLES = ("adult", "compas", "german", "randhie", "w8a", "kdd99", "covertype", "fars", "mnist")
TARGETS = {"randhie": "binexp"}
ROWS = {"kdd99": 100_000, "fars": 80_000}
EPSILONS = (0.1, 0.3, 1.0, 3.0)
FACTORS = (0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
MNIST = {
    "epsilons": (0.3, 1.0),
    "factors": (0.5, 1.0, 2.0),
    "seeds": 1,
}  # ten columns of parameters: a pass is dear
HEAD = ("table", "epsilon", "T", "excess x 1000", "best T", "its excess", "ratio")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Table:
    """Rows of length 1 and their class codes."""

    rows: Any
    codes: NDArray[np.int64]
    classes: int


def measure(shared: Path, *, seeds: int, quick: bool) -> Iterator[Record]:
    """One record a table and epsilon."""
    for name in ("compas", "german") if quick else TABLES:
        table = open_table(name, shared)
        best = optimal_loss(table)
        limits = MNIST if name == "mnist" else {}
        units = Units.from_arrays(
            table.rows, table.codes, row_bound=1.0 + 2.0**-20, classes=list(range(table.classes))
        )
        loss = losses.logistic if table.classes == 2 else losses.softmax(table.classes)
        for epsilon in limits.get("epsilons", EPSILONS):
            budget = Budget(epsilon, 1.0 / units.public.n**2)
            problem = Problem(loss, Ridge(default_ridge(Instance(Problem(loss), units.public, budget))))
            rule = Whitening().configure(Instance(problem, units.public, budget)).inner
            assert isinstance(rule, GradientDescent)
            assert rule.steps is not None
            wanted = sorted({max(2, round(rule.steps * f)) for f in limits.get("factors", FACTORS)})
            runs = {}
            for steps in wanted:
                inner = replace(rule, steps=steps, noise_multiplier=None)
                fits = [
                    minimize(problem, units, budget=budget, solver=Whitening(inner=inner), random_state=seed)
                    for seed in range(limits.get("seeds", seeds))
                ]
                runs[steps] = [loss_of(table, np.asarray(fit.params)) - best for fit in fits]
            means = {steps: statistics.fmean(excess) for steps, excess in runs.items()}
            chosen = min(means, key=lambda steps: means[steps])
            yield {
                "benchmark": "steps",
                "data": name,
                "n": units.public.n,
                "features": units.public.d,
                "method": "whitening",
                "relation": "replace-one",
                "epsilon": epsilon,
                "what": "steps",
                "steps": rule.steps,
                "excess": means[rule.steps],
                "best_steps": chosen,
                "best_excess": means[chosen],
                "all": {str(steps): mean for steps, mean in means.items()},
                "seeds": limits.get("seeds", seeds),
                "machine": machine(),
            }


def open_table(name: str, shared: Path) -> Table:
    """A table made binary, MNIST as it is."""
    features, codes, *_ = load(name, shared, target=TARGETS.get(name), train=ROWS.get(name))
    rows = unit_rows(features)
    codes = codes if name == "mnist" else (codes > 0).astype(np.int64)
    return Table(rows=rows, codes=codes, classes=int(codes.max()) + 1)


def loss_of(table: Table, weights: NDArray[np.float64]) -> float:
    """The mean loss on all rows."""
    scores = np.asarray(table.rows @ weights)
    return mean_loss(scores[:, None] if scores.ndim == 1 else scores, table.codes)


def optimal_loss(table: Table) -> float:
    """The least mean loss, with a tiny ridge so that there is one."""
    options = {"maxiter": 60 if table.classes > 2 else 500, "maxcor": 20}
    return loss_of(table, minimised(table.rows, table.codes, table.classes, TINY_PENALTY, **options).x)


def table_rows(records: Sequence[Record]) -> list[list[str]]:
    """The rule against hindsight, and the geometric mean of the ratios."""
    rows, ratios = [], []
    for one in select(records, benchmark="steps"):
        ratio = one["excess"] / one["best_excess"]
        ratios.append(ratio)
        rows.append(
            [
                one["data"],
                f"{one['epsilon']:g}",
                str(one["steps"]),
                f"{1e3 * one['excess']:.3g}",
                str(one["best_steps"]),
                f"{1e3 * one['best_excess']:.3g}",
                f"{ratio:.2f}",
            ]
        )
    if ratios:
        mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
        rows.append(["geometric mean", "", "", "", "", "", f"{mean:.2f}"])
    return rows
