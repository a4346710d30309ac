"""Minimisers that draw vertices on l1 balls: Frank-Wolfe, vertex-anytime, and what it replaces.

    python -m benchmarks vertices

Problems are those of `sparse_data`, with n = 20 000 rows in 500 columns for the generated one. Every method has the
same (epsilon, delta = 1e-6), replace-one, and knows that entries are within 1. Reported is the mean logistic loss of
the test rows, over seeds of the noise, with its standard error.
"""

import math
import time
import warnings
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.results import Record, select
from benchmarks.sparse_data import SignedData, generated, parities
from privopt.ledger.amounts import Budget
from privopt.papers.anytime_mirror_descent import AnytimeMirrorDescent
from privopt.papers.variance_reduced_frank_wolfe import VarianceReducedFrankWolfe
from privopt.solve import minimize
from privopt.solvers.base import Solver
from privopt.solvers.frank_wolfe import FrankWolfe
from privopt.solvers.vertices import VertexAnytime

HEAD = ("problem", "epsilon", "method", "passes", "draws", "test loss")
EPSILONS = (0.5, 1.0, 3.0)
DELTA = 1e-6


def problems(*, quick: bool) -> Iterator[SignedData]:
    """The data sets."""
    yield generated(2_000 if quick else 20_000, 100 if quick else 500)
    if not quick:
        yield parities()


def methods(data: SignedData) -> dict[str, Solver]:
    """The solvers at their defaults, and settings of theory for the last."""
    entry = data.entry_bound
    return {
        "frank-wolfe": FrankWolfe(entry_bound=entry),
        "vertex-anytime": VertexAnytime(entry_bound=entry),
        "vertex-anytime, balanced": VertexAnytime(entry_bound=entry, balanced=True),
        "vertex-anytime, one draw": VertexAnytime(entry_bound=entry, draws=1),
        "vertex-anytime, one pass": VertexAnytime(entry_bound=entry, single_pass=True),
        "variance-reduced frank-wolfe": VarianceReducedFrankWolfe(entry_bound=entry),
        "anytime mirror descent": AnytimeMirrorDescent(entry_bound=entry),
        "anytime mirror descent, first order": AnytimeMirrorDescent(entry_bound=entry, smooth="first order"),
    }


def measure(*, seeds: int, quick: bool) -> Iterator[Record]:
    """One record a problem, epsilon and method."""
    for data in problems(quick=quick):
        for epsilon in EPSILONS:
            yield from compare(data, epsilon, seeds)


def compare(data: SignedData, epsilon: float, seeds: int) -> Iterator[Record]:
    """One record a method."""
    units, budget = data.units(), Budget(epsilon, DELTA)
    for name, solver in methods(data).items():
        begun, found = time.perf_counter(), []
        for seed in range(seeds):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found.append(minimize(data.problem, units, budget=budget, solver=solver, random_state=seed))
        seconds = (time.perf_counter() - begun) / seeds
        losses = [data.test_loss(np.asarray(one.params)) for one in found]
        plan = found[0].plan
        assert plan is not None
        yield {
            "benchmark": "vertices",
            "data": data.name,
            "method": name,
            "relation": units.public.relation.value,
            "epsilon": epsilon,
            "delta": DELTA,
            "n": units.public.n,
            "d": units.public.d,
            "seeds": seeds,
            "test_loss": float(np.mean(losses)),
            "test_loss_error": float(np.std(losses, ddof=1) / math.sqrt(seeds)) if seeds > 1 else math.nan,
            "train_loss": float(np.mean([data.loss(np.asarray(one.params)) for one in found])),
            "loss_at_zero": data.test_loss(np.zeros(units.public.d)),
            "spent": plan.epsilon,
            "steps": int(plan.releases),
            "draws": int(plan.settings.get("draws", 1)),
            "passes": plan.passes,
            "fit_s": seconds,
        }


def table_rows(records: Sequence[Record]) -> list[list[str]]:
    """One row a problem, epsilon and method."""
    return [
        [
            one["data"],
            f"{one['epsilon']:g}",
            one["method"],
            f"{one['passes']:g}",
            str(one["draws"]),
            f"{one['test_loss']:.4f} +- {one['test_loss_error']:.1g}",
        ]
        for one in sorted(
            select(records, benchmark="vertices"), key=lambda one: (one["data"], one["epsilon"])
        )
    ]
