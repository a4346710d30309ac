"""One measuring process: fits of one method on one data set, a JSON line a cell.

A process of its own, so that memory and compilation belong to the method measured and to nothing else.
"""

import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import methods
from benchmarks.encoded import Encoded, open_encoded
from benchmarks.methods import Cell
from benchmarks.optimum import accuracy, mean_loss, optimum, scores
from benchmarks.peak_memory import peak_memory_mb, reset_peak_memory
from benchmarks.results import Record, machine
from privopt.errors import NotPriceable

TUNING_SEED = 10_000


@dataclass(frozen=True, kw_only=True)
class Task:
    """What one process measures.

    Attributes:
        encoded: the folder of the encoded data.
        optima: the folder of the optima.
        method: one of `methods`.
        relation: the neighbouring relation.
        epsilons: privacy budgets.
        seeds: the number of fits of a cell.
        quick: whether the oracle has a smaller grid.
    """

    encoded: str
    optima: str
    method: str
    relation: str = "replace-one"
    epsilons: Sequence[float] = ()
    seeds: int = 1
    quick: bool = False


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One fit and how good it is."""

    seconds: float
    memory_mb: float
    memory_added_mb: float
    accuracy: float
    loss: float
    objective: float
    model: Any


def measure(task: Task) -> Iterator[Record]:
    """The records of a task, one as soon as it is measured."""
    data = open_encoded(Path(task.encoded))
    if task.method == methods.PLAIN:
        yield _plain(data, Path(task.optima))
        return
    for epsilon in task.epsilons:
        cell = Cell(relation=task.relation, epsilon=epsilon, delta=1.0 / data.rows**2)
        try:
            yield _private(data, task, cell)
        except NotPriceable as refusal:
            yield {**_common(data, task.method), **asdict(cell), "refused": str(refusal)}


def _common(data: Encoded, method: str) -> Record:
    return {
        "benchmark": "accuracy",
        "data": data.name,
        "n": data.rows,
        "features": data.train.shape[1],
        "outputs": 1 if len(data.classes) == 2 else len(data.classes),
        "method": method,
        "machine": machine(),
    }


def _plain(data: Encoded, optima: Path) -> Record:
    before = reset_peak_memory()
    begun = time.perf_counter()
    model = methods.plain(data)
    seconds = time.perf_counter() - begun
    memory = peak_memory_mb()
    best = optimum(data, None, optima)
    return {
        **_common(data, methods.PLAIN),
        "accuracy": accuracy(scores(model, data.test), data.test_targets),
        "fit_s": seconds,
        "memory_mb": memory,
        "memory_added_mb": memory - before,
        "iterations": int(np.max(model.n_iter_)),
        "converged": bool(np.max(model.n_iter_) < model.max_iter),
        "optimum_loss": best["loss"],
        "optimum_accuracy": best["test_accuracy"],
        "optimum_gradient_norm": best["gradient_norm"],
    }


def _private(data: Encoded, task: Task, cell: Cell) -> Record:
    candidates = methods.solvers(task.method, data, quick=task.quick)
    chosen = candidates[0]
    if len(candidates) > 1:
        chosen = max(candidates, key=lambda one: _fit(data, cell, one[1], TUNING_SEED).accuracy)
    fits = [_fit(data, cell, chosen[1], seed) for seed in range(task.seeds)]
    model = fits[0].model
    optima = Path(task.optima)
    excess = [fit.loss - optimum(data, None, optima)["loss"] for fit in fits]
    own = optimum(data, _alpha(model), optima)["objective"]
    measured = statistics.fmean(fit.objective - own for fit in fits)
    predicted = model.plan_.predicted_excess if task.method == methods.DEFAULT else None
    accuracies = [fit.accuracy for fit in fits]
    return {
        **_common(data, task.method),
        **asdict(cell),
        "seeds": task.seeds,
        "solver": model.plan_.solver,
        "releases": model.plan_.releases,
        "passes": model.plan_.passes,
        **({"oracle": chosen[0], "candidates": len(candidates)} if len(candidates) > 1 else {}),
        "accuracy": statistics.fmean(accuracies),
        "accuracy_sd": statistics.stdev(accuracies) if task.seeds > 1 else None,
        "excess": statistics.fmean(excess),
        "excess_sd": statistics.stdev(excess) if task.seeds > 1 else None,
        "objective_excess": measured,
        "predicted_excess": predicted,
        "predicted_over_measured": None if predicted is None or measured <= 0 else predicted / measured,
        "first_fit_s": fits[0].seconds,
        "fit_s": statistics.median(fit.seconds for fit in fits[1:] or fits),
        "memory_mb": max(fit.memory_mb for fit in fits),
        "memory_added_mb": max(fit.memory_added_mb for fit in fits),
        "spent_epsilon": model.privacy_.epsilon,
    }


def _fit(data: Encoded, cell: Cell, solver: Any, seed: int) -> Fit:
    model = cell.model(data, solver, seed)
    before = reset_peak_memory()
    begun = time.perf_counter()
    model.fit(data.train, data.train_targets)
    seconds = time.perf_counter() - begun
    memory = peak_memory_mb()
    loss = mean_loss(scores(model, data.train), data.train_targets)
    return Fit(
        seconds=seconds,
        memory_mb=memory,
        memory_added_mb=memory - before,
        accuracy=accuracy(scores(model, data.test), data.test_targets),
        loss=loss,
        # Features within [-1, 1] are not scaled, so the penalty is on the coefficients as they are.
        objective=loss + 0.5 * _alpha(model) * float(np.sum(np.square(model.coef_))),
        model=model,
    )


def _alpha(model: Any) -> float:
    """The strength of the penalty that the model's objective has."""
    return float(model.alpha_)


def main() -> None:
    """Measure the task given as JSON."""
    for record in measure(Task(**json.loads(sys.argv[1]))):
        print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
