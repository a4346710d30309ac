"""The panel of `auto`: what it takes, beside what else could be taken, on one problem of every family.

    python -m benchmarks auto [--quick]

A cell is a family of `auto_problems`, a size and an epsilon (delta = 1e-6, replace-one). Its rivals stand in the lists
below and run at their defaults. Reported is the mean over five seeds of the excess that a user sees: the objective
above its least value, or the duality gap; every seed has records and noise of its own. The ratio of a cell is the mean
of `auto` over the smallest mean of its rivals. A rival of 0 returns the start, or the uniform strategies.
"""

import math
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import auto_problems as problems
from benchmarks.auto_problems import Posed
from benchmarks.bars import Verdict
from benchmarks.results import Record, machine, select
from privopt.games.dual_averaging import NoisyExponentiatedGradient, SampledDualAveraging
from privopt.games.noisy_extragradient import NoisyExtragradient, SaddleGradientDescent
from privopt.games.noisy_matrix import NoisyMatrix
from privopt.ledger.amounts import Budget
from privopt.papers.best_response import BestResponse
from privopt.problems import losses
from privopt.problems.saddle import Game
from privopt.solve import minimize
from privopt.solve_games import minimax
from privopt.solvers.accelerated_mirror_descent import AcceleratedMirrorDescent
from privopt.solvers.adaptive_gradient_descent import AdaptiveGradientDescent
from privopt.solvers.clip_choice import PrivateClip
from privopt.solvers.curvature_probe import CurvatureProbe
from privopt.solvers.frank_wolfe import FrankWolfe
from privopt.solvers.gradient_descent import GradientDescent
from privopt.solvers.kl_spider import KLSpider
from privopt.solvers.o2nc import O2NC
from privopt.solvers.objective_perturbation import ObjectivePerturbation
from privopt.solvers.phased_accelerated_erm import PhasedAcceleratedERM
from privopt.solvers.randomized_smoothing import RandomizedSmoothing
from privopt.solvers.user_federated_averaging import UserFederatedAveraging
from privopt.solvers.user_gradient_descent import UserGradientDescent
from privopt.solvers.whitening import Whitening

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks-auto.md"
DELTA, SEEDS, QUICK_SEEDS = 1e-6, 5, 1
AUTO, START = "auto", "start"
NEAR, SHARE, WORST = 1.25, 0.9, 2.0
HEAD = ("cell", "epsilon", "auto took", "auto", "best rival", "of it", "auto / best")

RIVAL_HEAD = ("cell", "epsilon", "excess of every method, the smallest first")

Rivals = dict[str, Any]

USERS: Rivals = {
    "user-gradient-descent": UserGradientDescent(),
    "user-whitening": Whitening(inner=UserGradientDescent()),
    "user-federated-averaging": UserFederatedAveraging(),
    "phased-accelerated-erm": PhasedAcceleratedERM(),
}
CORNERS: Rivals = {
    **USERS,
    "smoothed phased-accelerated-erm": RandomizedSmoothing(inner=PhasedAcceleratedERM()),
}  # with one record each; with more it was 3 to 9 times behind, and takes a quarter of a minute a run
GAMES: Rivals = {
    "sampled-dual-averaging": SampledDualAveraging(),
    "noisy-matrix": NoisyMatrix(),
    "noisy-exponentiated-gradient": NoisyExponentiatedGradient(),
    "saddle-gradient-descent": SaddleGradientDescent(),
    "noisy-extragradient": NoisyExtragradient(),
    "best-response": BestResponse(),
}
CURVED: Rivals = {
    "saddle-gradient-descent": SaddleGradientDescent(),
    "noisy-extragradient": NoisyExtragradient(),
}  # the others were 1.6 to 77 times behind, and take half of the panel's time
STATED: Rivals = {
    "gradient-descent": GradientDescent(),
    "o2nc with a private clip": PrivateClip(inner=O2NC(quantile=0.8)),
    "kl-spider": KLSpider(),
}
POWERS: Rivals = {
    **STATED,
    "adaptive-gradient-descent": AdaptiveGradientDescent(),
}  # for p = 2; for p = 4, where it was 2 to 40 times behind, and on waves it takes minutes
OWN: Rivals = {
    "gradient-descent": GradientDescent(),
    "o2nc with a private clip": PrivateClip(inner=O2NC(quantile=0.8)),
    "o2nc": O2NC(),
    "gradient-descent with a private clip": PrivateClip(inner=GradientDescent()),
    "smoothed gradient-descent": RandomizedSmoothing(inner=GradientDescent()),
}
VALUES: Rivals = {
    "o2nc": O2NC(),
    "o2nc with a private clip": PrivateClip(inner=O2NC()),
    "o2nc, 100 steps": O2NC(steps=100),
    "o2nc, 300 steps": O2NC(steps=300),
}
SETS: Rivals = {
    "frank-wolfe": FrankWolfe(),
    "accelerated-mirror-descent": AcceleratedMirrorDescent(),
    "gradient-descent": GradientDescent(),
    "probed gradient-descent": CurvatureProbe(inner=GradientDescent()),
}
LINEAR: Rivals = {
    "whitening": Whitening(),
    "gradient-descent": GradientDescent(),
    "probed gradient-descent": CurvatureProbe(inner=GradientDescent()),
    "objective-perturbation": ObjectivePerturbation(),
    "o2nc": O2NC(),
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A problem of one size, a budget and rivals."""

    family: str
    made: Callable[[int], Posed]
    epsilon: float
    rivals: Rivals


def cells() -> list[Cell]:
    """The panel, in the order of its tables."""
    found: list[Cell] = []

    def add(family: str, made: Callable[[int], Posed], epsilons: Sequence[float], rivals: Rivals) -> None:
        found.extend(Cell(family=family, made=made, epsilon=one, rivals=rivals) for one in epsilons)

    every, one = (0.3, 1.0, 3.0), (1.0,)
    for records, epsilons in ((1, one), (10, every), (100, one)):
        made = partial(problems.by_user, losses.quantile(0.5), records)
        add(f"quantile by user, {records} records", made, epsilons, CORNERS if records == 1 else USERS)
    made = partial(problems.by_user, losses.quantile(0.5, 0.5), 1)
    add("smoothed quantile by user, 1 records", made, one, USERS)
    for records in (1, 10, 100):
        made = partial(problems.by_user, losses.logistic, records)
        add(f"logistic by user, {records} records", made, one, USERS)
    for n, size, epsilons in ((2_000, 10, one), (8_000, 60, every), (32_000, 60, one)):
        add(
            f"curved game, {n} x {size}",
            partial(problems.curved, n, size),
            epsilons,
            GAMES if n == 2_000 else CURVED,
        )
    for n, size, epsilons in ((5_000, 30, one), (10_000, 100, one), (10_000, 300, every)):
        add(f"matrix game, {n} x {size}", partial(problems.matrix_game, n, size), epsilons, GAMES)
    for size in (100, 300):
        made = partial(problems.offset_game, 20_000, size)
        add(f"matrix game with offsets, 20000 x {size}", made, one, GAMES)
    for kind, sizes in (("power 2", (20_000,)), ("power 4", (20_000, 60_000)), ("sine", (20_000,))):
        for n in sizes:
            rivals = POWERS if kind == "power 2" else STATED
            add(f"{kind}, {n}", partial(problems.stated, kind, n), every if n == 20_000 else one, rivals)
    add("kink, 20000", partial(problems.stated, "kink", 20_000), one, OWN)
    for kind in problems.OWN:
        for n, epsilons in ((5_000, every), (20_000, one)) if kind == "convex" else ((5_000, every),):
            add(f"own {kind} loss, {n}", partial(problems.own, kind, n), epsilons, OWN)
    for n, epsilons in ((2_000, one), (5_000, (0.3, 1.0))):
        add(f"largest entry by values, {n}", partial(problems.by_values, n), epsilons, VALUES)
    for d, epsilons in ((100, one), (1_000, one)):
        add(f"l1 ball, 10000 x {d}", partial(problems.sparse, 10_000, d), epsilons, SETS)
    for kind, n, epsilons in (("logistic", 5_000, one), ("hinge", 5_000, one)):
        add(f"{kind}, {n} x 20", partial(problems.linear, kind, n, 20), epsilons, LINEAR)
    add("ramp, 6000", partial(problems.flipped, 6_000), one, LINEAR)
    return found


def measure(*, seeds: int | None = None, quick: bool = False, only: str = "") -> Iterator[Record]:
    """One record a cell and method; as many cells at a time as there are processors.

    Args:
        seeds: of a cell.
        quick: one seed, and one cell of every list of rivals.
        only: families whose names begin so.
    """
    seen: list[Rivals] = []
    places: list[int] = []
    for place, cell in enumerate(cells()):
        if not cell.family.startswith(only) or (quick and any(cell.rivals is one for one in seen)):
            continue
        seen.append(cell.rivals)
        places.append(place)
    measured = partial(_measured, seeds or (QUICK_SEEDS if quick else SEEDS))
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        for records in pool.map(measured, places):
            yield from records


def _measured(seeds: int, place: int) -> list[Record]:
    """The records of the cell at a place of the panel."""
    cell = cells()[place]
    posed = [cell.made(seed) for seed in range(seeds)]
    found = [run(cell, method, solver, posed) for method, solver in {AUTO: "auto", **cell.rivals}.items()]
    found.append(_record(cell, START, "", [one.trivial for one in posed], 0.0))
    return [one for one in found if one is not None]


def run(cell: Cell, method: str, solver: Any, posed: Sequence[Posed]) -> Record | None:
    """One method on the problems of all seeds; None where it does not apply."""
    begun, found, name = time.perf_counter(), [], ""
    for seed, one in enumerate(posed):
        budget = Budget(cell.epsilon, DELTA)
        problem: Any = one.problem
        if method != AUTO and solver.applicable(problem, one.units.public) is not None:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            common: dict[str, Any] = {"budget": budget, "solver": solver, "random_state": seed}
            if isinstance(problem, Game):
                result = minimax(problem, one.units, **common)
            else:
                result = minimize(problem, one.units, start=one.start, **common)
        assert result.plan is not None
        name = result.plan.solver
        found.append(one.excess(result.params))
    return _record(cell, method, name, found, (time.perf_counter() - begun) / len(posed))


def _record(cell: Cell, method: str, took: str, found: Sequence[float], seconds: float) -> Record:
    return {
        "benchmark": "auto",
        "data": cell.family,
        "method": method,
        "relation": "replace-one",
        "epsilon": cell.epsilon,
        "delta": DELTA,
        "took": took,
        "seeds": len(found),
        "excess": float(np.mean(found)),
        "excess_error": float(np.std(found, ddof=1) / math.sqrt(len(found))) if len(found) > 1 else None,
        "fit_s": seconds,
        "machine": machine(),
    }


def ratios(records: Sequence[Record]) -> dict[tuple[str, float], tuple[Record, Record, float]]:
    """By family and epsilon: auto's record, the best rival's, and the ratio of their means."""
    ours = select(records, benchmark="auto")
    found: dict[tuple[str, float], tuple[Record, Record, float]] = {}
    for auto in select(ours, method=AUTO):
        cell = {key: auto[key] for key in ("data", "epsilon")}
        rivals = [
            one for one in select(ours, **cell) if one["method"] != AUTO and math.isfinite(one["excess"])
        ]
        if rivals:
            best = min(rivals, key=lambda one: one["excess"])
            found[auto["data"], auto["epsilon"]] = auto, best, auto["excess"] / best["excess"]
    return found


def verdicts(records: Sequence[Record]) -> Iterator[Verdict]:
    """How often `auto` is near the best, and how far it is at worst."""
    found = [ratio for *_, ratio in ratios(records).values()]
    if not found:
        return
    near = sum(ratio <= NEAR for ratio in found) / len(found)
    what = f"cells of {len(found)} where auto is within {NEAR:g} of the best rival"
    yield Verdict(what, near, f"at least {SHARE:g}", near >= SHARE)
    yield Verdict(
        "auto over the best rival, worst cell", max(found), f"at most {WORST:g}", max(found) <= WORST
    )


def table_rows(records: Sequence[Record]) -> list[list[str]]:
    """A row a cell."""
    return [
        [
            family,
            f"{epsilon:g}",
            auto["took"],
            _text(auto),
            _text(best),
            best["method"],
            f"{ratio:.2f}" if ratio <= NEAR else f"**{ratio:.2f}**",
        ]
        for (family, epsilon), (auto, best, ratio) in ratios(records).items()
    ]


def rival_rows(records: Sequence[Record]) -> list[list[str]]:
    """Every method of every cell, the best first."""
    rows: list[list[str]] = []
    for family, epsilon in ratios(records):
        cell = select(records, benchmark="auto", data=family, epsilon=epsilon)
        words = [
            f"{one['method']} {one['excess']:.2g}" for one in sorted(cell, key=lambda one: one["excess"])
        ]
        rows.append([family, f"{epsilon:g}", ", ".join(words)])
    return rows


def _text(record: Record) -> str:
    error = record["excess_error"]
    return f"{record['excess']:.3g}" + ("" if error is None else f" ± {error:.1g}")
