"""Sparse logistic regression on an l1 ball: accelerated mirror descent and Frank-Wolfe against their baselines.

    python -m benchmarks lasso

Every method minimises the mean logistic loss over ||w||_1 <= R at the same (epsilon, delta = 1 / n^1.5), replace-one,
without an intercept. Reported is the gap F(w) - F* to the optimum on the same ball, the mean over seeds, and how much
of the true support (synthetic data) or of the non-private optimum's (real data) is among the k largest entries, k its
size.

    independent   n = 20000, d = 1000: columns uniform on [-1, 1]
    correlated    n = 20000, d = 300: columns clip(z_j / 2, -1, 1), z Gaussian with correlation 0.9^|i - j|
    hiva, w8a     sets of items as 0/1 columns; rows with more than 150 or 25 items are shortened

Rows are divided by sqrt(d), or by the square root of that number of items, so that 1 bounds their norms (row_bound) and
the same factor their entries (entry_bound). On the synthetic sets the true parameters have 10 entries of equal size and
alternating sign at evenly spaced places, scaled so that the predictions have a standard deviation of 2; labels are
logistic; R is the l1 norm of the true parameters. On the real sets R = 10 / entry_bound.
"""

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.special import expit

from benchmarks.datasets import load
from benchmarks.results import Record, select
from privopt.curator.local import LocalCurator
from privopt.data.units import Units
from privopt.ledger.amounts import Budget
from privopt.ledger.ledger import Ledger
from privopt.mechanisms.noise import NoiseSource
from privopt.papers.mirror_descent import MirrorDescent
from privopt.planning.task import Instance
from privopt.problems import losses
from privopt.problems.constraints import L1Ball
from privopt.problems.problem import Problem
from privopt.solvers.accelerated_mirror_descent import AcceleratedMirrorDescent
from privopt.solvers.base import Solver
from privopt.solvers.frank_wolfe import FrankWolfe
from privopt.solvers.gradient_descent import GradientDescent

ITEMS = {"hiva": 150, "w8a": 25}  # public: about what a row holds
HEAD = ("problem", "epsilon", "method", "steps", "gap", "precision", "recall")
DATA = ("independent", "correlated", *ITEMS)
EPSILONS = (0.3, 1.0, 3.0)
TUNED = "projected gradient descent, oracle-tuned"
SMOOTHNESS = 0.25  # of the logistic loss of rows of length 1
NONZERO = 1e-3  # of the largest entry: what counts as the optimum's support


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SparseProblem:
    """A data set, an l1 ball, and the optimum on it.

    Attributes:
        name: the data set's name.
        units: rows behind a row bound of 1.
        entry_bound: public bound on the entries.
        radius: R.
        support: places of the parameters to be found.
        best: F*.
    """

    name: str
    units: Units
    entry_bound: float
    radius: float
    support: NDArray[np.int64]
    best: float

    @property
    def problem(self) -> Problem:
        """Logistic loss on the ball."""
        return Problem(losses.logistic, constraint=L1Ball(self.radius))

    def objective(self, params: NDArray[np.float64]) -> float:
        """F(w)."""
        features: Any = self.units.private_features
        margins = self.units.private_targets * (features @ params)
        return float(np.mean(np.logaddexp(0.0, -margins)))


def synthetic(name: str, rows: int) -> tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.float64]]:
    """Rows (undivided), labels and true parameters of a synthetic set."""
    rng = np.random.default_rng(0)
    width = {"independent": 1000, "correlated": 300}[name]
    if name == "independent":
        features = rng.uniform(-1.0, 1.0, size=(rows, width)).astype(np.float32)
    else:
        features = rng.normal(size=(rows, width)).astype(np.float32)
        for j in range(1, width):
            features[:, j] = 0.9 * features[:, j - 1] + math.sqrt(1 - 0.81) * features[:, j]
        features = np.clip(features / 2.0, -1.0, 1.0)
    truth = np.zeros(width)
    truth[np.arange(10) * (width // 10)] = (-1.0) ** np.arange(10)
    truth *= 2.0 / np.std(features @ truth)
    labels = np.where(rng.random(rows) < expit(features @ truth), 1.0, -1.0)
    return features, labels, truth


def sparse_problem(name: str, shared: Path, rows: int | None = None) -> SparseProblem:
    """Build a data set and solve it without privacy."""
    if name in ITEMS:
        features, codes, *_ = load(name, shared, train=rows)
        entry = 1.0 / math.sqrt(ITEMS[name])
        units = Units.from_arrays(
            sparse.csr_array(features) * np.float32(entry), 2.0 * codes - 1.0, row_bound=1.0
        )
        radius, truth = 10.0 / entry, None
    else:
        features, labels, truth = synthetic(name, rows or 20_000)
        entry = 1.0 / math.sqrt(features.shape[1])
        units = Units.from_arrays(features * np.float32(entry), labels, row_bound=1.0)
        radius = float(np.sum(np.abs(truth))) / entry
    optimum = optimum_on_ball(units.private_features, units.private_targets, radius)
    found = optimum if truth is None else truth
    support = np.flatnonzero(np.abs(found) > NONZERO * np.max(np.abs(found)))
    made = SparseProblem(name=name, units=units, entry_bound=entry, radius=radius, support=support, best=0.0)
    return replace(made, best=made.objective(optimum))


def optimum_on_ball(features: Any, signs: NDArray[np.float64], radius: float) -> NDArray[np.float64]:
    """Projected accelerated descent with restarts (O'Donoghue, Candes 2015), to a Frank-Wolfe gap of 1e-6."""
    rows = features.shape[0]
    w = y = np.zeros(features.shape[1])
    curvature, momentum = 1e-3, 1.0

    def value(at: NDArray[np.float64]) -> float:
        return float(np.mean(np.logaddexp(0.0, -signs * (features @ at))))

    for _ in range(3000):
        predictions = features @ y
        slopes = (-signs * expit(-signs * predictions)).astype(np.float32)
        gradient = np.asarray(features.T @ slopes, np.float64) / rows
        if gradient @ y + radius * np.max(np.abs(gradient)) < 1e-6:
            return y
        at_y = float(np.mean(np.logaddexp(0.0, -signs * predictions)))
        while True:  # the smallest curvature that the step itself confirms
            moved = _project(y - gradient / curvature, radius)
            away = moved - y
            if value(moved) <= at_y + gradient @ away + 0.5 * curvature * (away @ away) + 1e-12:
                break
            curvature *= 2.0
        following = (1.0 + math.sqrt(1.0 + 4.0 * momentum**2)) / 2.0
        if gradient @ (moved - w) > 0:
            following = momentum = 1.0
        w, y = moved, moved + (momentum - 1.0) / following * (moved - w)
        momentum, curvature = following, 0.98 * curvature
    return w


def _project(vector: NDArray[np.float64], radius: float) -> NDArray[np.float64]:
    sizes = np.abs(vector)
    if np.sum(sizes) <= radius:
        return vector
    ordered = np.sort(sizes)[::-1]
    excess = np.cumsum(ordered) - radius
    last = np.flatnonzero(ordered * np.arange(1, len(ordered) + 1) > excess)[-1]
    return np.sign(vector) * np.maximum(sizes - excess[last] / (last + 1), 0.0)


def candidates(problem: SparseProblem, *, quick: bool) -> dict[str, list[Solver]]:
    """The methods; of several candidates an oracle chooses by the gap of the first seed."""
    entry = problem.entry_bound
    grid = itertools.product((20,) if quick else (20, 60), (0.3, 0.6), (4.0, 16.0))
    return {
        "accelerated mirror descent": [AcceleratedMirrorDescent(entry_bound=entry)],
        "frank-wolfe": [FrankWolfe(entry_bound=entry)],
        "mirror descent": [MirrorDescent(entry_bound=entry)],
        "projected gradient descent": [GradientDescent()],
        TUNED: [
            GradientDescent(
                steps=steps, clip=clip, step_size=factor / SMOOTHNESS, momentum=0.0, returns="last"
            )
            for steps, clip, factor in grid
        ],
    }


def solve(problem: SparseProblem, solver: Solver, budget: Budget, seed: int) -> NDArray[np.float64]:
    """One run of a configured solver."""
    ledger = Ledger(
        budget, problem.units.public.relation, plan=solver.event(problem.units.public), seeded=True
    )
    curator = LocalCurator(problem.units, ledger, noise=NoiseSource(seed))
    return np.asarray(solver.solve(curator, problem.problem).params)


def recovered(params: NDArray[np.float64], support: NDArray[np.int64]) -> tuple[float, float]:
    """Precision and recall of the nonzero ones among the k largest entries, k the size of the support."""
    largest = np.argsort(-np.abs(params), kind="stable")[: len(support)]
    chosen = largest[params[largest] != 0]
    right = len(np.intersect1d(chosen, support))
    return right / max(len(chosen), 1), right / len(support)


def measure(shared: Path, *, seeds: int, quick: bool) -> Iterator[Record]:
    """One record a problem, epsilon and method."""
    for name in DATA:
        problem = sparse_problem(name, shared, 2_000 if quick else None)
        for epsilon in EPSILONS:
            yield from compare(problem, epsilon, seeds, quick=quick)


def compare(problem: SparseProblem, epsilon: float, seeds: int, *, quick: bool) -> Iterator[Record]:
    """One record a method."""
    public = problem.units.public
    budget = Budget(epsilon, public.n**-1.5)
    zero = problem.objective(np.zeros(public.d)) - problem.best
    for method, choices in candidates(problem, quick=quick).items():
        solvers = [choice.configure(Instance(problem.problem, public, budget)) for choice in choices]
        firsts = [solve(problem, solver, budget, 0) for solver in solvers]
        chosen = int(np.argmin([problem.objective(params) for params in firsts]))
        solver = solvers[chosen]
        begun = time.perf_counter()
        results = [firsts[chosen], *(solve(problem, solver, budget, seed) for seed in range(1, seeds))]
        seconds = (time.perf_counter() - begun) / max(seeds - 1, 1)
        gaps = [problem.objective(params) - problem.best for params in results]
        precision, recall = np.mean([recovered(params, problem.support) for params in results], axis=0)
        yield {
            "benchmark": "lasso",
            "data": problem.name,
            "method": method,
            "relation": public.relation.value,
            "epsilon": epsilon,
            "delta": budget.delta,
            "n": public.n,
            "d": public.d,
            "radius": problem.radius,
            "seeds": len(results),
            "gap": float(np.mean(gaps)),
            "gap_error": float(np.std(gaps, ddof=1) / math.sqrt(len(gaps))),
            "gap_at_zero": zero,
            "support": len(problem.support),
            "precision": float(precision),
            "recall": float(recall),
            "steps": solver.releases(),
            "clip": float(getattr(solver, "clip", math.nan)),
            "fit_s": seconds,
            "predicted": solver.forecast(Instance(problem.problem, public, budget)).excess,
        }


def table_rows(records: Sequence[Record]) -> list[list[str]]:
    """One row a problem, epsilon and method."""
    return [
        [
            one["data"],
            f"{one['epsilon']:g}",
            one["method"],
            str(one["steps"]),
            f"{one['gap']:.2g} +- {one['gap_error']:.1g}",
            f"{one['precision']:.2f}",
            f"{one['recall']:.2f}",
        ]
        for one in sorted(select(records, benchmark="lasso"), key=lambda one: (one["data"], one["epsilon"]))
    ]
