"""Descent over blocks in turn with correlated noise, beside independent noise, secret samples and full batches.

    python -m benchmarks correlated

Logistic regression on rows of length 1, epsilon 1, delta 1e-6, replace-one: the excess of the mean training loss over
the non-private optimum. Step size and momentum of every method are the best of a grid in hindsight, which flatters all
of them alike; "default" chooses nothing by the data. One epoch has 32 blocks, several have 16. Beside it: the noise of
every strategy for several epochs, and how long a step takes that feeds a stream.
"""

import itertools
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from benchmarks.bars import Verdict
from benchmarks.results import Record, machine, select
from benchmarks.steps import Table, loss_of, open_table, optimal_loss
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.mechanisms.strategies import (
    Participation,
    banded,
    binary_tree,
    dense_optimum,
    independent,
    prefix_noise,
    square_root_toeplitz,
    unit_sensitivity,
)
from privopt.problems import losses
from privopt.problems.problem import Problem
from privopt.solve import minimize
from privopt.solvers.base import Solver
from privopt.solvers.correlated_noise_descent import CorrelatedNoiseDescent
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.stochastic_gradient_descent import StochasticGradientDescent

PAGE = Path(__file__).resolve().parent.parent / "docs" / "algorithms" / "correlated-noise-descent.md"
DATA = ("adult", "randhie")
BUDGET = Budget(1.0, 1e-6)
EPOCHS = {1: 32, 4: 16, 8: 16}  # and the number of blocks
STEP_SIZES, MOMENTA = (2.0, 3.5, 5.0, 8.0, 12.0, 30.0), (0.0, 0.5, 0.8, 0.9)
TUNING_SEEDS, FIRST_TUNING_SEED = 3, 100
INDEPENDENT, SAMPLED, FULL, DEFAULT = "independent", "secret samples", "full batches", "default"
METHODS = (INDEPENDENT, "square-root", "bands", SAMPLED, FULL, DEFAULT)
BARS = {4: 0.6, 8: 0.45}  # of the excess of independent noise
STEP_RATIO = 2.0  # a step that feeds a stream over a sampled one
NOISE = ((1, 32), (1, 64), (4, 16), (8, 16), (16, 8))


def measure(shared: Path, *, seeds: int, quick: bool) -> Iterator[Record]:
    """One record a table, method and number of epochs; then the noise, and the time of a step."""
    common = {
        "benchmark": "correlated",
        "relation": "replace-one",
        "epsilon": BUDGET.epsilon,
        "machine": machine(),
    }
    for name in DATA[:1] if quick else DATA:
        table = open_table(name, shared)
        best = optimal_loss(table)
        units = Units.from_arrays(table.rows, table.codes, row_bound=1.0 + 2.0**-20, classes=[0, 1])
        for epochs, blocks in list(EPOCHS.items())[: 1 if quick else None]:
            for method in METHODS:
                candidates = list(_candidates(method, epochs, blocks))[: 2 if quick else None]
                fits = {
                    key: _excess(table, units, solver, best, TUNING_SEEDS, FIRST_TUNING_SEED)
                    for key, solver in candidates
                }
                chosen = min(fits, key=lambda key, fits=fits: fits[key])
                yield {
                    **common,
                    "data": name,
                    "n": units.public.n,
                    "features": units.public.d,
                    "method": method,
                    "what": f"epochs {epochs}",
                    "epochs": epochs,
                    "blocks": blocks,
                    "step_size": chosen[0],
                    "momentum": chosen[1],
                    "excess": _excess(table, units, dict(candidates)[chosen], best, seeds, 0),
                    "seeds": seeds,
                }
        if name == DATA[0]:
            yield {**common, "data": name, "method": "time of a step", **_step_times(units, quick=quick)}
    for epochs, blocks in NOISE[: 1 if quick else None]:
        yield {
            **common,
            "data": "none",
            "method": "noise",
            "what": f"{epochs} x {blocks}",
            **_noise(epochs, blocks),
        }


def _candidates(
    method: str, epochs: int, blocks: int
) -> Iterator[tuple[tuple[float | None, float | None], Solver]]:
    """Solvers, by step size and momentum."""
    if method == DEFAULT:
        yield (None, None), CorrelatedNoiseDescent(epochs=epochs)
        return
    for step_size, momentum in itertools.product(STEP_SIZES, MOMENTA):
        given = {"step_size": step_size, "momentum": momentum, "clip": 1.0}
        if method == SAMPLED:
            yield (
                (step_size, momentum),
                StochasticGradientDescent(steps=epochs * blocks, rate=1.0 / blocks, **given),
            )
        elif method == FULL:
            yield (step_size, momentum), GradientDescent(steps=epochs, **given)
        else:
            yield (
                (step_size, momentum),
                CorrelatedNoiseDescent(epochs=epochs, blocks=blocks, strategy=method, **given),
            )


def _excess(table: Table, units: Units, solver: Solver, best: float, seeds: int, first: int) -> float:
    problem = Problem(losses.logistic)
    fits = [
        minimize(problem, units, budget=BUDGET, solver=solver, random_state=first + seed)
        for seed in range(seeds)
    ]
    return statistics.fmean(loss_of(table, np.asarray(fit.params)) - best for fit in fits)


def _step_times(units: Units, *, quick: bool) -> Record:
    """Seconds of a step in a compiled loop, the best of a few runs: sixteen blocks in turn, and secret sixteenths."""
    epochs = 2 if quick else 40
    steps, given = 16 * epochs, {"step_size": 1.0, "momentum": 0.5, "clip": 1.0, "noise_multiplier": 50.0}
    seconds: dict[str, float] = {}
    for name, solver in (
        ("fed_s", CorrelatedNoiseDescent(epochs=epochs, blocks=16, **given)),
        ("sampled_s", StochasticGradientDescent(steps=steps, rate=1.0 / 16, **given)),
    ):
        times: list[float] = []
        for seed in range(4):
            begun = time.perf_counter()
            minimize(
                Problem(losses.logistic), units, budget=Budget(1e3, 1e-6), solver=solver, random_state=seed
            )
            times.append(time.perf_counter() - begun)
        seconds[name] = min(times[1:]) / steps
    return {**seconds, "ratio": seconds["fed_s"] / seconds["sampled_s"], "what": "step"}


def _noise(epochs: int, blocks: int) -> Record:
    """The root mean square of the noise of all sums, each strategy at sensitivity 1."""
    items, admitted = epochs * blocks, Participation(separation=blocks, most=epochs)
    made = {
        "independent": independent(items),
        "tree": binary_tree(items),
        "square-root": square_root_toeplitz(items),
        "optimum": dense_optimum(np.ones(items)),
        "bands": banded(items, blocks),
    }
    noise = {name: prefix_noise(unit_sensitivity(one, admitted)) for name, one in made.items()}
    return {
        "epochs": epochs,
        "blocks": blocks,
        **{name: math.sqrt(np.mean(one**2)) for name, one in noise.items()},
    }


def rows(records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """Excess x 1000 of every method, by table and epochs."""
    found = [one for one in select(records, benchmark="correlated") if "excess" in one]
    head = ["data", "epochs x blocks", *METHODS]
    cells = {(one["data"], one["epochs"], one["method"]): f"{1e3 * one['excess']:.3g}" for one in found}
    return head, [
        [name, f"{epochs} x {blocks}", *(cells.get((name, epochs, method), "") for method in METHODS)]
        for name in DATA
        for epochs, blocks in EPOCHS.items()
        if (name, epochs, INDEPENDENT) in cells
    ]


def noise_rows(records: Sequence[Record]) -> tuple[list[str], list[list[str]]]:
    """The noise of every strategy."""
    names = ("independent", "tree", "square-root", "optimum", "bands")
    found = select(records, benchmark="correlated", method="noise")
    return ["epochs x blocks", *names], [
        [f"{one['epochs']} x {one['blocks']}", *(f"{one[name]:.4g}" for name in names)] for one in found
    ]


def verdicts(records: Sequence[Record]) -> list[Verdict]:
    """What was asked for and what was reached."""
    found: list[Verdict] = []
    for name, (epochs, most) in itertools.product(DATA, BARS.items()):
        cell = {"benchmark": "correlated", "data": name, "what": f"epochs {epochs}"}
        ours, plain = (select(records, **cell, method=method) for method in ("bands", INDEPENDENT))
        if ours and plain:
            ratio = ours[0]["excess"] / plain[0]["excess"]
            what = f"excess of cut bands over that of independent noise, {name}, {epochs} epochs"
            found.append(Verdict(what, ratio, f"at most {most}", ratio <= most))
    for one in select(records, benchmark="correlated", method="time of a step"):
        what = "a step that feeds a stream over a sampled step"
        found.append(Verdict(what, one["ratio"], f"at most {STEP_RATIO}", one["ratio"] <= STEP_RATIO))
    return found
